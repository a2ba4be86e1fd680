//! The clock of a core, measured: clocks are neither what the box says nor constant, and inside a virtual machine no
//! register tells. A chain of additions that each need the last one's result runs at one per cycle on every core of the
//! last decades, so `additions / time` is the clock. The operand is a register: Intel since Alder Lake folds additions
//! of constants away in the renamer.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use roofline_core::units::Hertz;

/// Additions per turn of the loop; its counter runs beside the chain.
const CHAIN: u64 = 64;
/// 30 to 60 µs at 2 to 4 GHz: long against the timer, short against a scheduler's slice.
const SHORT: u64 = 2000;

/// One short look, of about 40 µs. Preempted or throttled cores read low, which is what it is for: taken before and
/// after a sample, it tells whether the sample can be trusted. None on an architecture without a chain.
pub(crate) fn probe() -> Option<Hertz> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return None;
    }
    let start = Instant::now();
    chain(SHORT);
    let time = start.elapsed().as_secs_f64();
    (time > 0.0).then(|| Hertz::new((SHORT * CHAIN) as f64 / time))
}

/// The best of many short looks over `length`: interruptions only ever lower a look, so the highest is the clock.
pub(super) fn measure(length: Duration) -> Option<Hertz> {
    let start = Instant::now();
    let mut best = probe()?;
    while start.elapsed() < length {
        best = best.max(probe()?);
    }
    Some(best)
}

#[cfg(target_arch = "x86_64")]
fn chain(turns: u64) {
    // SAFETY: registers only.
    unsafe {
        std::arch::asm!(
            "2:",
            ".rept 64",
            "add {sum}, {step}",
            ".endr",
            "dec {turns}",
            "jnz 2b",
            sum = inout(reg) 0u64 => _,
            step = in(reg) 3u64,
            turns = inout(reg) turns => _,
            options(nomem, nostack),
        );
    }
}

#[cfg(target_arch = "aarch64")]
fn chain(turns: u64) {
    // SAFETY: registers only.
    unsafe {
        std::arch::asm!(
            "2:",
            ".rept 64",
            "add {sum}, {sum}, {step}",
            ".endr",
            "subs {turns}, {turns}, #1",
            "b.ne 2b",
            sum = inout(reg) 0u64 => _,
            step = in(reg) 3u64,
            turns = inout(reg) turns => _,
            options(nomem, nostack),
        );
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn chain(_turns: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_a_clock() {
        let Some(clock) = measure(Duration::from_millis(5)) else { return };
        assert!((2e8..1e10).contains(&clock.value()), "{clock}");
    }
}
