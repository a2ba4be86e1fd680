//! Hazard: a GPU's events tell half a microsecond apart, and a graph takes some time to start. So a sample is a replay of many
//! calls, one copy of the operands after the other, and lasts long against both.

use roofline_core::units::Seconds;

/// A replay lasts at least so long, past the resolution of the events (half a microsecond) and the start of a graph.
const LEAST: Seconds = Seconds::new(300e-6);
/// Calls of a replay at most, unless there are more copies than that.
pub(crate) const MOST: usize = 4096;

/// How often a replay goes through all `copies`, one round of which takes `once`.
pub(crate) fn rounds(once: Seconds, copies: usize) -> usize {
    (LEAST / once).ceil().clamp(1.0, (MOST / copies).max(1) as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_long_and_have_an_end() {
        let us = Seconds::from_micros;
        assert_eq!(rounds(us(100.0), 4), 3);
        assert_eq!(rounds(us(1000.0), 4), 1);
        assert_eq!(rounds(us(0.001), 4), MOST / 4);
        assert_eq!(rounds(us(0.001), 2 * MOST), 1);
    }
}
