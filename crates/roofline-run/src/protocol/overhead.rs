//! Hazard: reading the clock takes time, and that time is in every sample. It is measured by timing nothing, and taken
//! away; where it is a large share of the sample, the measurement says so.

use roofline_core::{measurement::Warning, units::Seconds};

/// A share of the sample above which the instrument shows.
const VISIBLE: f64 = 0.05;

/// `sample` without the instrument's share. What would be nothing or less stays as it is: then the doubt is the result.
pub(crate) fn subtract(sample: Seconds, overhead: Seconds) -> Seconds {
    if sample > overhead { sample - overhead } else { sample }
}

/// The doubt, where there is one.
pub(crate) fn warning(time: Seconds, overhead: Seconds) -> Option<Warning> {
    let share = overhead / time;
    (share > VISIBLE).then_some(Warning::TooFast { overhead_pct: share * 100.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instrument_is_subtracted_and_named() {
        let us = Seconds::from_micros;
        assert!((subtract(us(10.0), us(0.1)).micros() - 9.9).abs() < 1e-9);
        assert_eq!(subtract(us(0.1), us(0.1)), us(0.1));
        assert!(warning(us(10.0), us(0.1)).is_none());
        assert!(matches!(warning(us(1.0), us(0.1)), Some(Warning::TooFast { .. })));
    }
}
