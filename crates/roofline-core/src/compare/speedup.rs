//! What a narrower format gains over a wider one in the same operator, and where it loses.

use schemars::JsonSchema;
use serde::Serialize;

use super::Pair;
use crate::Op;

/// A speed-up between two precisions of one operator.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SpeedupPair {
    /// The operator, in words.
    pub subject: String,
    /// The precision that is compared with.
    pub from: String,
    /// The precision whose speed-up it is.
    pub to: String,
    /// The speed-up of the ideal roofline.
    pub ideal: f64,
    /// By the expected tier where it covers both, else by the ideal one.
    pub predicted: f64,
    /// The measured speed-up.
    pub measured: f64,
    /// Whether the second is a kernel that casts its weights to memory first, which is not how a format should be run.
    pub emulated: bool,
}

impl SpeedupPair {
    fn between(base: &Pair, pair: &Pair) -> Self {
        Self {
            subject: pair.subject(),
            from: base.observation.precision.clone(),
            to: pair.label(),
            ideal: base.ideal.time() / pair.ideal.time(),
            // One tier for both, or a prediction could beat the speed of light.
            predicted: match (base.expected, pair.expected) {
                (Some(base), Some(expected)) => base.time / expected.time,
                _ => base.ideal.time() / pair.ideal.time(),
            },
            measured: base.observation.time / pair.observation.time,
            emulated: pair.emulated(),
        }
    }

    /// `|predicted - measured| / predicted`.
    pub fn error(&self) -> f64 {
        (self.measured / self.predicted - 1.0).abs()
    }
}

/// What each format gains over 16 bit in one product.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PrecisionGains")]
pub struct Gains {
    /// The product, in words.
    pub shape: String,
    /// Its rows: one is decoding, many are a prompt or a batch.
    pub rows: u64,
    /// The precision that all are set against: 16 bit, else the narrowest that is wider.
    pub against: String,
    /// The other precisions, in the order in which they were measured.
    pub formats: Vec<SpeedupPair>,
}

/// Whether two measurements differ in nothing but their precision.
fn alike(one: &Pair, other: &Pair) -> bool {
    let (one, other) = (&one.observation, &other.observation);
    one.op == other.op && one.residency == other.residency && one.phase == other.phase
}

/// Each narrower precision over each baseline of the same operator; a baseline stores its weights or, in attention, its
/// cache in at least 16 bits.
pub(super) fn speedups(pairs: &[Pair]) -> Vec<SpeedupPair> {
    let mut all = Vec::new();
    for base in pairs.iter().filter(|pair| pair.stored_bits() >= 16 && !pair.emulated()) {
        let narrower = |pair: &&Pair| pair.stored_bits() < base.stored_bits() && alike(pair, base);
        all.extend(pairs.iter().filter(narrower).map(|pair| SpeedupPair::between(base, pair)));
    }
    all
}

/// Measurements differ by a few percent from themselves: what is this much slower is slower.
const SLOWER: f64 = 0.95;

/// Formats that ran slower than a wider one of the same operator, each against the one that it loses most to; the worst
/// first. What casts first is slow on purpose and no loss of its format.
pub(super) fn losses(speedups: &[SpeedupPair]) -> Vec<SpeedupPair> {
    let mut losses: Vec<SpeedupPair> = Vec::new();
    for loss in speedups.iter().filter(|speedup| speedup.measured < SLOWER && !speedup.emulated) {
        match losses.iter_mut().find(|known| (&known.subject, &known.to) == (&loss.subject, &loss.to)) {
            Some(known) if loss.measured < known.measured => *known = loss.clone(),
            Some(_) => {}
            None => losses.push(loss.clone()),
        }
    }
    losses.sort_by(|one, other| one.measured.total_cmp(&other.measured));
    losses
}

/// The largest product of one row and the one with the most rows, each format against 16 bit. Kernels of a pass have no
/// place here: what a format gains in a pass is in its sums.
pub(super) fn gains(pairs: &[Pair]) -> Vec<Gains> {
    let rows = |pair: &Pair| match pair.observation.op {
        Op::Linear(linear) => Some(linear.m.get()),
        _ => None,
    };
    if pairs.iter().any(|pair| pair.observation.count != 1) {
        return Vec::new();
    }
    let usable = || pairs.iter().filter(|pair| !pair.emulated());
    let work = |pair: &Pair| pair.ideal.work.flops.value();
    // Of precisions of one product the first stands for all of them.
    let larger = |best: Option<&'_ Pair>, pair: &Pair| best.is_none_or(|best| work(pair) > work(best));
    let (mut one, mut many): (Option<&Pair>, Option<&Pair>) = (None, None);
    for pair in usable() {
        match rows(pair) {
            Some(1) if larger(one, pair) => one = Some(pair),
            Some(2..)
                if rows(pair) > many.and_then(rows) || (rows(pair) == many.and_then(rows) && larger(many, pair)) =>
            {
                many = Some(pair);
            }
            _ => {}
        }
    }
    let gains = |product: &Pair| {
        let same = || usable().filter(|pair| alike(pair, product));
        let base = same().filter(|pair| pair.stored_bits() >= 16).min_by_key(|pair| pair.stored_bits())?;
        let others = same().filter(|pair| !std::ptr::eq(*pair, base));
        let formats: Vec<SpeedupPair> = others.map(|pair| SpeedupPair::between(base, pair)).collect();
        let (shape, against) = (product.subject(), base.observation.precision.clone());
        (!formats.is_empty()).then(|| Gains { shape, rows: rows(product).unwrap_or(1), against, formats })
    };
    one.into_iter().chain(many).filter_map(gains).collect()
}

#[cfg(test)]
mod tests {
    use crate::compare::{Comparison, compare, samples};
    use crate::predict::Tier;

    fn compared(all: &[(&str, (u64, u64, u64), f64)]) -> Comparison {
        let observations: Vec<_> =
            all.iter().map(|(precision, shape, ratio)| samples::product(precision, *shape, *ratio)).collect();
        compare(&observations, &samples::machine(), Tier::Ideal).unwrap()
    }

    #[test]
    fn a_format_that_loses_is_found_once_and_against_the_best() {
        let (row, rows) = ((1, 8192, 8192), (4096, 8192, 8192));
        let all = [
            ("fp32", row, 1.0),
            ("bf16", row, 1.0),
            ("w4a16", row, 1.2),
            ("fp32", rows, 1.1),
            ("bf16", rows, 1.1),
            // The same operations as in bf16, at a fiftieth of the roof: slower than both.
            ("w4a16", rows, 50.0),
        ];
        let losses = compared(&all).losses;
        assert_eq!(losses.len(), 1, "{losses:?}");
        assert_eq!((losses[0].from.as_str(), losses[0].to.as_str()), ("bf16", "w4a16"));
        assert!((losses[0].measured - 1.1 / 50.0).abs() < 1e-9, "{losses:?}");
    }

    #[test]
    fn gains_are_against_sixteen_bits_for_one_row_and_for_the_most() {
        let (small, large, some, many) = ((1, 4096, 4096), (1, 8192, 8192), (16, 8192, 8192), (4096, 8192, 8192));
        let mut all = Vec::new();
        for shape in [small, large, some, many] {
            all.extend([("fp32", shape, 1.0), ("bf16", shape, 1.0), ("fp8", shape, 1.0)]);
        }
        let gains = compared(&all).gains;
        let told: Vec<_> =
            gains.iter().map(|gains| (gains.shape.as_str(), gains.rows, gains.against.as_str())).collect();
        assert_eq!(told, [("gemv 1 x 8192 x 8192", 1, "bf16"), ("gemm 4096 x 8192 x 8192", 4096, "bf16")]);
        let formats: Vec<_> = gains[1].formats.iter().map(|gain| (gain.to.as_str(), gain.ideal)).collect();
        assert_eq!(formats[1].0, "fp8");
        assert!((formats[1].1 - 2.0).abs() < 0.01 && formats[0].1 < 0.1, "{formats:?}");
        // One format has nothing to be set against, and a pass has its sums.
        assert!(compared(&[("bf16", large, 1.0)]).gains.is_empty());
        let mut pass = [samples::product("bf16", large, 1.0), samples::product("fp8", large, 1.0)];
        pass[0].count = 32;
        assert!(compare(&pass, &samples::machine(), Tier::Ideal).unwrap().gains.is_empty());
    }
}
