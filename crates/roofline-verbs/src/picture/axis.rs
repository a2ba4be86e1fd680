//! Axes: which values they span, where a value lies on them, and where the ticks are.

use crate::text::number;

/// A range of values, linear or logarithmic.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    log: bool,
    /// Ticks that say more than round numbers would.
    marks: Vec<f64>,
}

/// A grid line; only major ones have labels.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: Option<String>,
}

/// A logarithmic axis reaches this far from the median of its values: one absurd value must not hide the others.
const REACH: f64 = 1e9;
/// The most ticks at values that were asked for.
const MARKS: usize = 16;
/// Sizes of values that can be computed with and do not overflow.
const RANGE: std::ops::Range<f64> = 1e-280..1e280;

impl Axis {
    /// Spans the positive values and a margin; `margin` is a factor.
    pub(super) fn log(values: impl IntoIterator<Item = f64>, margin: f64) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| drawable(*value)).collect();
        values.sort_by(f64::total_cmp);
        let median = values.get(values.len() / 2).copied().unwrap_or(1.0);
        values.retain(|value| (median / REACH..=median * REACH).contains(value));
        let low = values.first().copied().unwrap_or(0.1);
        let high = values.last().copied().unwrap_or(1000.0);
        Self { low: low / margin, high: high * margin, log: true, marks: Vec::new() }
    }

    /// Spans the finite values, and zero where they do not stay clear of it.
    pub(super) fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let usable = values.into_iter().filter(|value| RANGE.contains(&value.abs()));
        let range = usable.fold((0.0, 0.0), |(low, high): (f64, f64), value| (low.min(value), high.max(value)));
        let (low, high) = if range.0 == range.1 { (0.0, 1.0) } else { range };
        let margin = (high - low) * 0.04;
        Self { low: if low < 0.0 { low - margin } else { low }, high: high + margin, log: false, marks: Vec::new() }
    }

    /// With ticks at the values that were asked for, as batches of 1, 2, 4, where these are few and well apart.
    pub(super) fn marked(mut self, values: impl IntoIterator<Item = f64>) -> Self {
        let mut marks: Vec<f64> = values.into_iter().filter(|value| self.position(*value).is_some()).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        let apart = |pair: &[f64]| self.fraction(pair[1]) - self.fraction(pair[0]) > 1.0 / MARKS as f64;
        if (2..=MARKS).contains(&marks.len()) && marks.windows(2).all(apart) {
            self.marks = marks;
        }
        self
    }

    /// Where a value lies, from 0 to 1; none for one that has no place on the axis.
    pub(super) fn position(&self, value: f64) -> Option<f64> {
        let inside = value >= self.low && value <= self.high;
        inside.then(|| self.fraction(value)).filter(|fraction| fraction.is_finite())
    }

    /// As [`Self::position`], for a value that may lie outside.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        if self.log {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    pub(super) fn low(&self) -> f64 {
        self.low
    }

    pub(super) fn high(&self) -> f64 {
        self.high
    }

    /// Grid lines from low to high; about `count` of them with a label.
    pub(super) fn ticks(&self, count: usize) -> Vec<Tick> {
        if !self.marks.is_empty() {
            return self.marks.iter().map(|value| Tick { value: *value, label: Some(plain(*value)) }).collect();
        }
        if self.log { self.decades(count) } else { self.steps(count) }
    }

    fn decades(&self, count: usize) -> Vec<Tick> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let every = ((last - first) as usize).div_ceil(count.max(1)).max(1) as i32;
        // On a short axis the decades alone would say too little.
        let also: &[i32] = if self.high / self.low < 150.0 { &[1, 2, 5] } else { &[1] };
        let tick = |(decade, digit): (i32, i32)| {
            let value = f64::from(digit) * 10_f64.powi(decade);
            let labelled = also.contains(&digit) && decade.rem_euclid(every) == 0;
            Tick { value, label: labelled.then(|| short(value)) }
        };
        let all = (first..=last).flat_map(|decade| (1..10).map(move |digit| (decade, digit))).map(tick);
        all.filter(|tick| self.position(tick.value).is_some()).collect()
    }

    fn steps(&self, count: usize) -> Vec<Tick> {
        let rough = (self.high - self.low) / count.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let (first, last) = ((self.low / step).ceil() as i64, (self.high / step).floor() as i64);
        let tick = |at: i64| {
            let value = at as f64 * step;
            Tick { value, label: Some(short(value)) }
        };
        (first..=last).map(tick).collect()
    }
}

/// Whether a logarithmic axis has a place for it.
pub(super) fn drawable(value: f64) -> bool {
    RANGE.contains(&value)
}

/// Three digits of a value, which stay short however large it is.
pub(super) fn figure(value: f64) -> String {
    if value.abs() < 1e6 { number(value) } else { format!("{value:.2e}") }
}

/// A round number as people write it at an axis: 0.1, 1, 200, 5 k, 10⁻⁶.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    let trimmed = |scaled: f64| {
        let text = format!("{scaled:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let prefixes = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.into_iter().find(|(factor, _)| size >= factor * 0.9995) {
        _ if !(0.000_999..9.9e14).contains(&size) => scientific(value),
        Some((factor, prefix)) => format!("{} {prefix}", trimmed(value / factor)),
        None => trimmed(value),
    }
}

/// A number that was asked for, which is not rounded as long as it is short: 4096, not 4.1 k.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e6 { format!("{value:.0}") } else { short(value) }
}

fn scientific(value: f64) -> String {
    let exponent = value.abs().log10().floor() as i32;
    let digits = format!("{exponent}");
    let raised = digits.chars().map(|digit| match digit {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        '0' | '4'..='9' => char::from_u32(0x2070 + digit as u32 - '0' as u32).unwrap_or(digit),
        other => other,
    });
    let mantissa = value / 10_f64.powi(exponent);
    let factor = if (mantissa - 1.0).abs() < 1e-6 { String::new() } else { format!("{mantissa:.1}·") };
    format!("{factor}10{}", raised.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks(8).into_iter().filter_map(|tick| tick.label).collect()
    }

    #[test]
    fn decades_are_labelled() {
        assert_eq!(labels(&Axis::log([0.2, 8000.0], 2.5)), ["0.1", "1", "10", "100", "1 k", "10 k"]);
        assert_eq!(labels(&Axis::log([1.0, 20.0], 1.1)), ["1", "2", "5", "10", "20"]);
    }

    #[test]
    fn values_that_were_asked_for_are_marked() {
        assert_eq!(labels(&Axis::log([1.0, 4096.0], 1.1).marked([4096.0, 1.0, 64.0, 1.0])), ["1", "64", "4096"]);
        assert_eq!(labels(&Axis::log([1.0, 1000.0], 1.1).marked([1.0, 1.01, 1000.0])), ["1", "10", "100", "1 k"]);
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(labels(&Axis::linear([0.0, 90.0])), ["0", "20", "40", "60", "80"]);
        assert_eq!(labels(&Axis::linear([-1.0, 1.0])), ["-1", "-0.5", "0", "0.5", "1"]);
    }

    #[test]
    fn numbers_at_an_axis_are_short() {
        let values = [0.0, 0.1, 0.001, 1e-6, 2.5, 1000.0, 2e6, 1e12, 1e15];
        assert_eq!(values.map(short), ["0", "0.1", "0.001", "10⁻⁶", "2.5", "1 k", "2 M", "1 T", "10¹⁵"]);
    }

    #[test]
    fn absurd_values_do_not_stretch_an_axis() {
        let axis = Axis::log([1.0, 2.0, 3.0, 1e-300, f64::NAN, f64::INFINITY, -1.0, 0.0], 2.0);
        assert_eq!((axis.low(), axis.high()), (0.5, 6.0));
        assert_eq!(axis.position(1e-300), None);
        for axis in [Axis::log([], 2.0), Axis::linear([]), Axis::linear([f64::MAX]), Axis::linear([f64::NAN, 1e-310])] {
            assert!(axis.low() < axis.high());
            assert!(!axis.ticks(6).is_empty() && axis.ticks(6).len() < 60);
        }
    }
}
