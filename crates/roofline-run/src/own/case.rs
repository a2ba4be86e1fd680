//! Somebody's function behind the seam that the protocol uses.

use std::time::Instant;

use roofline_core::{
    Device,
    measurement::{Check, Kernel, Measurement, Path, Residency, Subject},
    units::{Bytes, Hertz, Seconds},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::operands::{Operands, Written};
use crate::{
    Case, Error, Protocol, Result,
    cpu::{
        backend::{cache_of, free_of},
        clock,
        machine::Machine,
    },
    cuda::Gpu,
    interference::Interference,
    measure::measure_case,
    protocol::{
        replay::{MOST, rounds},
        rotation::Rotation,
    },
};

/// What tells how long a kernel took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "KernelTimer")]
pub enum Timer {
    /// The processor's clock around each call.
    Clock,
    /// Events of the GPU around the replay of a graph of calls: no launch from the host is in it.
    CudaGraph,
    /// Events of the GPU around calls: where the host is slower than the GPU, its launches are in it.
    CudaEvents,
}

impl Timer {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Clock => "the clock around each call",
            Self::CudaGraph => "CUDA events around a replayed graph",
            Self::CudaEvents => "CUDA events around calls, launches included",
        }
    }
}

/// A function that somebody calls for us.
pub trait Own {
    /// What it is called.
    fn name(&self) -> String;

    /// Takes the operands, and `copies` of those that are rotated.
    fn load(&mut self, operands: &Operands, copies: usize) -> Result<()>;

    /// Calls it once on the first copy; what it wrote.
    fn written(&mut self) -> Result<Written>;

    /// Gets ready to be sampled: a sample is `calls` calls, one copy after the other.
    fn gather(&mut self, calls: usize) -> Result<()>;

    /// What the gathered calls write when they are made again; none where they are not recorded but made.
    fn replayed(&mut self) -> Result<Option<Written>>;

    /// Makes calls instead of replaying what was recorded, and keeps why.
    fn forget(&mut self, reason: &str);

    /// The time of all gathered calls.
    fn sample(&mut self) -> Result<Seconds>;

    /// What a call of nothing takes.
    fn overhead(&mut self) -> Seconds;

    /// What tells its time.
    fn timer(&self) -> Timer;
}

/// Where it runs, and what there is to rotate past.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The backend that our own kernels have there.
    pub backend: &'static str,
    /// The last cache before memory.
    pub cache: Bytes,
    /// Memory that nobody has taken.
    pub free: Bytes,
    /// Whether it is the processor, whose clock and company can be watched.
    pub processor: bool,
}

impl Place {
    /// The processor of a machine.
    pub fn processor(machine: &Machine) -> Self {
        let (cache, free) = (cache_of(machine), free_of(machine));
        Self { backend: "cpu", cache, free, processor: true }
    }

    /// A GPU.
    pub fn gpu(gpu: &Gpu) -> Result<Self> {
        Ok(Self { backend: "cuda", cache: gpu.l2, free: gpu.free()?, processor: false })
    }

    /// The copies that `operands` need.
    fn rotation(&self, operands: Bytes, residency: Residency) -> Result<Rotation> {
        let short = || Error::Memory { needed: operands, available: self.free };
        match residency {
            Residency::Cold => {
                let rotation = Rotation::cold(operands, self.cache, self.free).ok_or_else(short)?;
                let copies = rotation.copies.min(MOST);
                Ok(Rotation { copies, times_cache: operands * copies as f64 / self.cache })
            }
            Residency::Warm if operands < self.free => Ok(Rotation::warm(operands, self.cache)),
            Residency::Warm => Err(short()),
        }
    }
}

/// Measures a kernel of others as ours are: checked, warmed up, sampled until its median is known.
pub fn measure_own(
    own: &mut dyn Own,
    place: &Place,
    device: &Device,
    subject: &Subject,
    protocol: &Protocol,
) -> Result<Measurement> {
    let operands = Operands::of(subject)?;
    let rotation = place.rotation(operands.rotated(), protocol.residency)?;
    own.load(&operands, rotation.copies)?;
    let kernel = kernel(own.name(), subject);
    let known = device.clock.boost.filter(|_| place.processor);
    let case = OwnCase { own, operands, kernel, rotation, place, known, calls: None };
    measure_case(Box::new(case), place.backend, device, subject, protocol, None)
}

/// What is known of code that others wrote.
pub(crate) fn kernel(name: String, subject: &Subject) -> Kernel {
    Kernel { name, path: Path::Unknown, math: subject.op.math(&subject.formats) }
}

struct OwnCase<'a> {
    own: &'a mut dyn Own,
    operands: Operands,
    kernel: Kernel,
    rotation: Rotation,
    place: &'a Place,
    /// The clock that the device's ceilings were measured at.
    known: Option<Hertz>,
    /// Calls of a sample, once it is known how many.
    calls: Option<usize>,
}

impl OwnCase<'_> {
    fn judged(&self, written: &Written) -> Result<Check> {
        let wrong = |reason| Error::WrongOwn { kernel: self.kernel.name.clone(), reason };
        self.operands.check(written).map_err(wrong)
    }

    /// Calls that make a sample long enough. A processor's clock tells one call; a GPU's events need many.
    fn ready(&mut self) -> Result<usize> {
        if self.place.processor {
            self.own.gather(1)?;
            return Ok(1);
        }
        let copies = self.rotation.copies;
        self.gather(copies)?;
        self.own.sample()?;
        let rounds = rounds(self.own.sample()?, copies);
        if rounds > 1 {
            self.gather(rounds * copies)?;
        }
        Ok(rounds * copies)
    }

    /// A graph that records nothing, because the work went to another stream, would be very fast: it has to give the result.
    fn gather(&mut self, calls: usize) -> Result<()> {
        self.own.gather(calls)?;
        let Some(written) = self.own.replayed()? else { return Ok(()) };
        if let Err(reason) = self.operands.check(&written) {
            self.own.forget(&format!("what was recorded does not compute it when it is replayed: {reason}"));
            self.own.gather(calls)?;
        }
        Ok(())
    }
}

impl Case for OwnCase<'_> {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn check(&mut self) -> Result<Check> {
        let written = self.own.written()?;
        self.judged(&written)
    }

    fn sample(&mut self) -> Result<Seconds> {
        let calls = self.calls.map_or_else(|| self.ready(), Ok)?;
        self.calls = Some(calls);
        Ok(self.own.sample()? / calls as f64)
    }

    fn calls(&self) -> u64 {
        self.calls.unwrap_or(1) as u64
    }

    fn overhead(&mut self) -> Seconds {
        if self.place.processor { self.own.overhead() } else { Seconds::ZERO }
    }

    fn times_cache(&self) -> Option<f64> {
        Some(self.rotation.times_cache)
    }

    fn clock(&mut self) -> Option<Hertz> {
        self.place.processor.then(clock::probe).flatten()
    }

    fn known_clock(&self) -> Option<Hertz> {
        self.known
    }

    fn interference(&mut self) -> Interference {
        if self.place.processor { Interference::now() } else { Interference::default() }
    }
}

/// The shortest of `count` times of nothing that `call` takes.
pub fn shortest(count: u32, mut call: impl FnMut()) -> Seconds {
    let one = |_| {
        let start = Instant::now();
        call();
        Seconds::new(start.elapsed().as_secs_f64())
    };
    (0..count).map(one).reduce(Seconds::min).unwrap_or(Seconds::ZERO)
}

#[cfg(test)]
mod tests {
    use roofline_core::{Graph, Registry, measurement::Warning, precision::PrecisionSpec};

    use super::*;
    use crate::own::Dtype;

    /// A product that takes `time` by its own account, right or wrong.
    struct Somebody {
        time: Seconds,
        wrong: bool,
        /// Whether calls are recorded, and whether the record is any good.
        graph: Option<bool>,
        bytes: Vec<u8>,
        calls: usize,
        copies: usize,
        samples: usize,
        forgotten: Option<String>,
    }

    impl Somebody {
        fn new(micros: f64) -> Self {
            let time = Seconds::from_micros(micros);
            let (graph, forgotten) = (None, None);
            Self { time, wrong: false, graph, bytes: Vec::new(), calls: 0, copies: 0, samples: 0, forgotten }
        }
    }

    impl Own for Somebody {
        fn name(&self) -> String {
            "somebody's".to_owned()
        }

        fn load(&mut self, operands: &Operands, copies: usize) -> Result<()> {
            let numbers = |at: usize| -> Vec<f32> {
                let bytes = operands.parts()[at].bytes();
                bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            };
            let (x, w) = (numbers(0), numbers(1));
            let row = |row: &[f32]| row.iter().zip(&x).map(|(w, x)| w * x).sum::<f32>();
            self.bytes = w.chunks(x.len()).flat_map(|line| row(line).to_le_bytes()).collect();
            self.copies = copies;
            Ok(())
        }

        fn written(&mut self) -> Result<Written> {
            let mut bytes = self.bytes.clone();
            if self.wrong {
                bytes[3] ^= 1;
            }
            Ok(Written { dtype: Dtype::Float32, shape: vec![bytes.len() / 4], bytes })
        }

        fn gather(&mut self, calls: usize) -> Result<()> {
            self.calls = calls;
            Ok(())
        }

        fn replayed(&mut self) -> Result<Option<Written>> {
            let Some(good) = self.graph else { return Ok(None) };
            let bytes = if good { self.bytes.clone() } else { vec![0xff; self.bytes.len()] };
            Ok(Some(Written { dtype: Dtype::Float32, shape: vec![bytes.len() / 4], bytes }))
        }

        fn forget(&mut self, reason: &str) {
            self.graph = None;
            self.forgotten = Some(reason.to_owned());
        }

        fn sample(&mut self) -> Result<Seconds> {
            self.samples += 1;
            Ok(self.time * self.calls as f64)
        }

        fn overhead(&mut self) -> Seconds {
            Seconds::from_micros(0.1)
        }

        fn timer(&self) -> Timer {
            if self.graph.is_some() { Timer::CudaGraph } else { Timer::CudaEvents }
        }
    }

    fn measured(own: &mut Somebody, place: &Place, residency: Residency) -> Result<Measurement> {
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        let formats = "fp32".parse::<PrecisionSpec>().unwrap().on(&h200).unwrap();
        let subject = Subject::new(&Graph::gemv(64, 128).unwrap().nodes[0], "fp32", formats);
        measure_own(own, place, &h200, &subject, &Protocol { residency, ..Protocol::default() })
    }

    fn gpu() -> Place {
        Place { backend: "cuda", cache: Bytes::new(1e6), free: Bytes::new(1e9), processor: false }
    }

    /// 64 x 128 numbers of 4 bytes: 77 copies are 2.5 MB. Two rounds of them are past 300 us at 3 us each.
    #[test]
    fn what_is_right_is_timed_over_copies_past_the_cache() {
        let mut own = Somebody { graph: Some(true), ..Somebody::new(3.0) };
        let measured = measured(&mut own, &gpu(), Residency::Cold).unwrap();
        assert_eq!((own.copies, own.calls), (77, 154));
        assert!((measured.time().micros() - 3.0).abs() < 1e-6);
        assert_eq!((measured.kernel.path, measured.backend.as_str()), (Path::Unknown, "cuda"));
        assert!(measured.check.error < measured.check.limit && measured.check.values == 64);
        assert!(measured.warnings.is_empty(), "{:?}", measured.warnings);
        assert_eq!(own.timer(), Timer::CudaGraph);
        let mut own = Somebody::new(3.0);
        self::measured(&mut own, &gpu(), Residency::Warm).unwrap();
        assert_eq!((own.copies, own.calls), (1, 100));
    }

    #[test]
    fn what_is_wrong_is_never_timed() {
        let mut own = Somebody { wrong: true, ..Somebody::new(3.0) };
        let error = measured(&mut own, &gpu(), Residency::Cold).unwrap_err();
        assert_eq!((error.kind(), own.samples), ("wrong_result", 0));
        assert!(error.to_string().starts_with("somebody's computes something else: relative error"), "{error}");
    }

    #[test]
    fn a_record_of_nothing_is_not_replayed() {
        let mut own = Somebody { graph: Some(false), ..Somebody::new(3.0) };
        measured(&mut own, &gpu(), Residency::Cold).unwrap();
        assert!(own.forgotten.is_some_and(|reason| reason.contains("not finite")));
    }

    #[test]
    fn on_the_processor_a_sample_is_a_call_less_the_instrument() {
        let place = Place { processor: true, ..gpu() };
        let mut own = Somebody::new(1.1);
        let measured = measured(&mut own, &place, Residency::Cold).unwrap();
        assert_eq!(own.calls, 1);
        assert!((measured.time().micros() - 1.0).abs() < 1e-6, "{}", measured.time());
        assert!(measured.warnings.iter().any(|warning| matches!(warning, Warning::TooFast { .. })));
        let small = Place { free: Bytes::new(1e4), ..place };
        assert_eq!(self::measured(&mut own, &small, Residency::Cold).unwrap_err().kind(), "memory");
    }
}
