//! Who else used the processor: time that the hypervisor gave to others, and how often this process had to yield.

#![allow(unsafe_code)]

use std::path::Path;

use roofline_core::units::Seconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stored;

/// Counters that only grow; each may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interference {
    /// Processor time that a hypervisor took (`steal` of `/proc/stat`), averaged over the processors.
    #[serde(deserialize_with = "stored::optional")]
    pub stolen: Option<Seconds>,
    /// Times the kernel took a core away from this process (`ru_nivcsw`).
    pub preemptions: Option<u64>,
}

impl Interference {
    /// The counters now.
    pub fn now() -> Self {
        Self { stolen: stolen(Path::new("/")), preemptions: preemptions() }
    }

    /// What came on top since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            stolen: self.stolen.zip(earlier.stolen).map(|(now, then)| (now - then).max(Seconds::ZERO)),
            preemptions: self.preemptions.zip(earlier.preemptions).map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// The eighth number of the first line of `/proc/stat` below `root`, in ticks of the kernel's user clock.
fn stolen(root: &Path) -> Option<Seconds> {
    let text = std::fs::read_to_string(root.join("proc/stat")).ok()?;
    let processors = text.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1).max(1);
    let mut fields = text.lines().next()?.split_whitespace();
    let ticks: u64 = (fields.next()? == "cpu").then(|| fields.nth(7))??.parse().ok()?;
    Some(Seconds::new(ticks as f64 / ticks_per_second()? / processors as f64))
}

#[cfg(unix)]
fn ticks_per_second() -> Option<f64> {
    // SAFETY: reads a constant of the system.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (ticks > 0).then_some(ticks as f64)
}

#[cfg(not(unix))]
fn ticks_per_second() -> Option<f64> {
    None
}

#[cfg(unix)]
fn preemptions() -> Option<u64> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure it is given.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0;
    if failed { None } else { u64::try_from(usage.ru_nivcsw).ok() }
}

#[cfg(not(unix))]
fn preemptions() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number() {
        let root = std::env::temp_dir().join(format!("roofline-stat-{}", std::process::id()));
        std::fs::create_dir_all(root.join("proc")).unwrap();
        let read = |text: &str| {
            std::fs::write(root.join("proc/stat"), text).unwrap();
            stolen(&root)
        };
        // Summed over the processors of the machine, of which there are one and two.
        let seconds = |ticks: f64| ticks_per_second().map(|rate| Seconds::new(ticks / rate));
        assert_eq!(read("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1\n"), seconds(250.0));
        assert_eq!(read("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1\ncpu1 1\nintr 5\n"), seconds(125.0));
        for broken in ["", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"] {
            assert_eq!(read(broken), None);
        }
        std::fs::remove_dir_all(root).unwrap();
        assert_eq!(stolen(Path::new("/nowhere")), None);
    }

    #[test]
    fn what_came_on_top_is_the_difference() {
        let at =
            |stolen, preemptions| Interference { stolen: Some(Seconds::new(stolen)), preemptions: Some(preemptions) };
        assert_eq!(at(5.0, 7).since(at(3.0, 4)), at(2.0, 3));
        // A counter that went back, as after a move to another host, took nothing.
        assert_eq!(at(3.0, 4).since(at(5.0, 7)), at(0.0, 0));
        assert_eq!(at(5.0, 7).since(Interference::default()), Interference::default());
        assert_eq!(Interference::now().preemptions.is_some(), cfg!(unix));
    }
}
