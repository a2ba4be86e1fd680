//! The protocol on a backend whose every answer is a line of a test.

use roofline_core::{
    Device, Graph, Machine, Registry,
    compare::{Observation, compare},
    machine::Stack,
    measurement::{Check, Kernel, Path},
    precision::PrecisionSpec,
    predict::Tier,
    units::{Bytes, Hertz},
};

use super::*;

/// A kernel that takes `time` and moves `detour` bytes beside the operator's own, on a machine that reaches `known` and
/// runs at `clock`.
struct Fake {
    device: Device,
    time: Seconds,
    detour: Bytes,
    known: Option<Hertz>,
    clock: Option<Hertz>,
    end: End,
}

/// What happens to a call of a library.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Works,
    /// It says no, and the next may work.
    Refuses,
    /// It says no, and so will all that follow.
    Gone,
}

impl Fake {
    fn new() -> Self {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let time = Seconds::from_micros(100.0);
        Self { device, time, detour: Bytes::ZERO, known: None, clock: None, end: End::Works }
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn lost(&self) -> Option<Error> {
        (self.end == End::Gone).then(|| Error::GpuLost { reason: "it fell off its bus".to_owned() })
    }

    fn supports(&self, subject: &Subject) -> Result<Kernel> {
        let path = if subject.cast { Path::CastEmulated } else { Path::FusedDequant };
        Ok(Kernel { name: "fake".to_owned(), path, math: subject.formats.math })
    }

    fn prepare(&mut self, subject: &Subject, _: Residency) -> Result<Box<dyn Case + '_>> {
        Ok(Box::new(FakeCase { kernel: self.supports(subject)?, fake: self }))
    }
}

struct FakeCase<'a> {
    fake: &'a mut Fake,
    kernel: Kernel,
}

impl Case for FakeCase<'_> {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn check(&mut self) -> Result<Check> {
        Check::of(&[1.0], &[1.0], 1e-6).map_err(|reason| Error::NoSamples { reason })
    }

    fn sample(&mut self) -> Result<Seconds> {
        match self.fake.end {
            End::Works => Ok(self.fake.time),
            _ => Err(Error::Gpu { reason: "cuBLASLt: status 13".to_owned(), hint: None }),
        }
    }

    fn detour(&self) -> Bytes {
        self.fake.detour
    }

    fn clock(&mut self) -> Option<Hertz> {
        self.fake.clock
    }

    fn known_clock(&self) -> Option<Hertz> {
        self.fake.known
    }
}

fn subject(fake: &Fake) -> Subject {
    let formats = "w8a16".parse::<PrecisionSpec>().unwrap().on(&fake.device).unwrap();
    Subject::new(&Graph::gemv(4096, 4096).unwrap().nodes[0], "w8a16", formats)
}

fn measured(fake: &mut Fake) -> Measurement {
    let subject = subject(fake);
    measure(fake, &subject, &Protocol::default()).unwrap()
}

/// What a library says may be of one kernel, or of a GPU that is gone: the first is a result, the second is the end.
#[test]
fn a_refusal_is_told_from_a_gpu_that_is_gone() {
    let told = |end| {
        let mut fake = Fake { end, ..Fake::new() };
        let subject = subject(&fake);
        measure(&mut fake, &subject, &Protocol::default()).unwrap_err().kind()
    };
    assert_eq!((told(End::Refuses), told(End::Gone)), ("gpu", "gpu_lost"));
}

/// INT8 weights that are written as 16 bit and read again: 1 + 2 + 2 bytes a weight.
#[test]
fn what_moved_is_what_bandwidth_is_made_of() {
    let mut fake = Fake::new();
    let plain = measured(&mut fake);
    assert_eq!(plain.moved, plain.bytes);
    assert_eq!(plain.bandwidth(), plain.bytes / plain.time());
    fake.detour = Bytes::new(4.0 * 4096.0 * 4096.0);
    let cast = measured(&mut fake);
    assert_eq!(cast.bytes, plain.bytes, "what had to move stays what it was");
    let ratio = cast.bandwidth() / plain.bandwidth();
    assert!((4.9..5.0).contains(&ratio), "{ratio}");
    let observed = [Observation::from(&plain), Observation::from(&cast)];
    let machine = Machine::new(fake.device.clone(), Stack::Null);
    let compared = compare(&observed, &machine, Tier::Ideal).unwrap();
    for (pair, measured) in compared.pairs.iter().zip([&plain, &cast]) {
        assert!((pair.bandwidth() / measured.bandwidth() - 1.0).abs() < 1e-12);
        let roof = measured.roof(&fake.device).unwrap() / measured.time();
        assert!((pair.efficiency() / roof - 1.0).abs() < 1e-12);
    }
}

/// The weights alone take 3.5 us at least, all that moved 17.5 us: 10 us are possible for one and not for the other.
#[test]
fn the_roof_is_that_of_what_moved() {
    let mut fake = Fake { time: Seconds::from_micros(10.0), ..Fake::new() };
    assert!(measured(&mut fake).warnings.is_empty());
    fake.detour = Bytes::new(4.0 * 4096.0 * 4096.0);
    let warnings = measured(&mut fake).warnings;
    let [Warning::AboveRoofline { ratio }] = warnings[..] else { panic!("{warnings:?}") };
    assert!((1.7..1.8).contains(&ratio), "{ratio}");
}

#[test]
fn a_file_of_before_has_moved_what_had_to() {
    let mut fake = Fake { detour: Bytes::new(1e9), ..Fake::new() };
    let mut stored = serde_json::to_value(measured(&mut fake)).unwrap();
    let again: Measurement = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(again.moved, again.bytes + Bytes::new(1e9));
    stored.as_object_mut().unwrap().remove("moved").unwrap();
    let before: Measurement = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(before.moved, before.bytes);
    assert_eq!(before.clock, None);
    stored["moved"] = (-1.0).into();
    assert!(serde_json::from_value::<Measurement>(stored).is_err());
}

#[test]
fn the_clock_is_kept_and_one_that_is_low_throughout_is_a_doubt() {
    let (known, clock) = (Some(Hertz::new(3e9)), Some(Hertz::new(2.4e9)));
    let slow = measured(&mut Fake { known, clock, ..Fake::new() });
    assert!(matches!(slow.warnings[..], [Warning::LowClock { .. }]), "{:?}", slow.warnings);
    let again: Measurement = serde_json::from_value(serde_json::to_value(&slow).unwrap()).unwrap();
    let clocks = again.clock.unwrap();
    assert_eq!((clocks.first_mhz, clocks.last_mhz, clocks.lowest_mhz), (2400.0, 2400.0, 2400.0));
    let unknown = measured(&mut Fake { clock, ..Fake::new() });
    assert_eq!((unknown.samples().len(), unknown.warnings.len()), (slow.samples().len(), 0), "and takes no longer");
}

/// However long they take, and without a clock that would be at fault.
#[test]
fn a_slow_kernel_has_three_samples() {
    let mut fake = Fake { time: Seconds::new(9.0), ..Fake::new() };
    let slow = measured(&mut fake);
    assert_eq!(slow.samples().len(), 3);
    assert!(matches!(slow.warnings[..], [Warning::FewSamples { samples: 3 }]), "{:?}", slow.warnings);
}
