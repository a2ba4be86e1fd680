//! A measured machine as a device, so that predictions for it need no file.

use roofline_core::{
    Device, Error, Math, Result,
    device::{Cache, Clock, Confidence, Kind, Origin, Peaks, Units},
};

use super::{Ceilings, Level, StreamKind};
use crate::cpu::machine::Machine;

/// The longest name whose key a device may have.
const LONGEST: usize = 64;

/// `machine` with the measured rates as its peaks: bandwidth is the best read by all threads, and each number format has
/// the fastest unit that multiplies it.
pub fn device(machine: &Machine, ceilings: &Ceilings) -> Result<Device> {
    let name: String = machine.name.as_deref().unwrap_or("this machine").chars().take(LONGEST).collect();
    let read = ceilings.stream(StreamKind::Read, Level::Memory).ok_or_else(|| Error::Device {
        key: name.clone(),
        reason: "its memory bandwidth was not measured: too little memory is free to stream past its caches".to_owned(),
    })?;
    let peaks = Math::ALL.iter().filter_map(|math| Some((*math, ceilings.peak(*math)?.best)));
    let device = Device::custom(&name, read.best, Peaks::distinct(peaks)?, machine.memory)?;
    let total = |level: u8| machine.cache(level).map(|size| size.total);
    Ok(Device {
        vendor: machine.vendor.clone().unwrap_or_default(),
        architecture: machine.architecture.clone().unwrap_or_default(),
        kind: Kind::Cpu,
        confidence: Confidence::User,
        source: Some("measured by roofline on this machine".to_owned()),
        units: Units { cores: machine.cores.and_then(|cores| u32::try_from(cores).ok()), ..Units::default() },
        clock: Clock { boost: ceilings.clock, ..Clock::default() },
        cache: Cache { l2: total(2), l3: total(3), ..Cache::default() },
        origin: Origin::User,
        ..device
    })
}

#[cfg(test)]
mod tests {
    use roofline_core::units::{ByteRate, Bytes, FlopRate, Hertz};

    use super::*;
    use crate::cpu::ceilings::{Peak, Stream, Way};

    fn ceilings() -> Ceilings {
        let stream = |threads, rate| Stream {
            kind: StreamKind::Read,
            level: Level::Memory,
            threads,
            busy: threads,
            bytes: Bytes::new(1e9),
            way: Way::Plain,
            best: ByteRate::new(rate),
            median: ByteRate::new(rate / 2.0),
            worst: ByteRate::new(rate / 4.0),
            trials: 3,
        };
        let peak = |math, unit: &str, rate| Peak {
            math,
            unit: unit.to_owned(),
            threads: 2,
            busy: 2,
            best: FlopRate::new(rate),
            median: FlopRate::new(rate),
            worst: FlopRate::new(rate),
            trials: 5,
            theory: None,
        };
        let peaks = vec![peak(Math::Fp32, "FMA", 1e11), peak(Math::Bf16, "dot", 2e11), peak(Math::Bf16, "AMX", 3e12)];
        Ceilings { streams: vec![stream(2, 3e10), stream(1, 1.5e10)], peaks, clock: Some(Hertz::new(3e9)) }
    }

    #[test]
    fn the_best_of_all_threads_is_the_device() {
        let machine = Machine { cores: Some(2), threads: 2, ..Machine::default() };
        let device = device(&machine, &ceilings()).unwrap();
        assert_eq!(device.memory.bandwidth, ByteRate::new(3e10));
        assert_eq!(device.peaks.of(Math::Bf16), Some(FlopRate::new(3e12)));
        assert_eq!((device.peaks.of(Math::Int8), device.units.cores), (None, Some(2)));
        assert_eq!(device.key, "this_machine");
        let long = Machine { name: Some("x".repeat(500)), ..machine };
        assert!(super::device(&long, &ceilings()).is_ok());
        let nothing = Ceilings { streams: Vec::new(), ..ceilings() };
        assert!(super::device(&long, &nothing).is_err());
    }

    #[test]
    fn the_better_of_two() {
        let mut other = ceilings();
        other.streams[0].best = ByteRate::new(4e10);
        other.streams[1].best = ByteRate::new(1e10);
        other.peaks[0].best = FlopRate::new(9e10);
        let better = ceilings().or_better(&other);
        let rates: Vec<f64> = better.streams.iter().map(|stream| stream.best.value()).collect();
        // One thread first.
        assert_eq!(rates, [1.5e10, 4e10]);
        assert_eq!(better.peaks[0].best, FlopRate::new(1e11));
    }

    /// A later look that was short of memory, or that somebody disturbed, takes nothing away from what was found before.
    #[test]
    fn what_was_found_stays_found() {
        let short = Ceilings { streams: Vec::new(), clock: None, ..ceilings() };
        let kept = short.or_better(&ceilings());
        assert_eq!((kept.streams.len(), kept.clock), (2, Some(Hertz::new(3e9))));
        assert_eq!(kept.stream(StreamKind::Read, Level::Memory).unwrap().best, ByteRate::new(3e10));
    }

    /// Two threads that read less than one were disturbed: they can do what one can.
    #[test]
    fn more_threads_are_never_slower() {
        let mut disturbed = ceilings();
        disturbed.streams[0].best = ByteRate::new(1e10);
        let evened = disturbed.or_better(&Ceilings { streams: Vec::new(), ..ceilings() });
        let read = evened.stream(StreamKind::Read, Level::Memory).unwrap();
        assert_eq!((read.threads, read.busy, read.best), (2, 1, ByteRate::new(1.5e10)));
        // And a later look that was not disturbed says what two can do.
        let read = evened.or_better(&ceilings()).stream(StreamKind::Read, Level::Memory).cloned().unwrap();
        assert_eq!((read.threads, read.busy, read.best), (2, 2, ByteRate::new(3e10)));
    }

    #[test]
    fn ceilings_survive_a_file() {
        let text = serde_json::to_string(&ceilings()).unwrap();
        assert_eq!(serde_json::from_str::<Ceilings>(&text).unwrap(), ceilings());
    }
}
