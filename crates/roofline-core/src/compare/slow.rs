//! Kernels that are far below what the machine could do.
//!
//! A prediction that is calibrated on a bad kernel predicts the bad kernel well, so a small error says nothing about how
//! good kernels are. The roof does.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Diagnosis, Pair, diagnosis};
use crate::{measurement::Phase, op::Class};

/// A product or an attention that takes a visible part of the time and reaches too little of its roof.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SlowKernel {
    /// The operator, in words.
    pub shape: String,
    /// The pass that it is a part of, where it is one of a model's.
    pub phase: Option<Phase>,
    /// Its precision.
    pub precision: String,
    /// The share of the roof that it reached, in percent.
    pub of_roof_pct: f64,
    /// Its part of the measured time, in percent.
    pub share_pct: f64,
}

/// A kernel below this share of its roof is slow.
const SLOW: f64 = 1.0 / 3.0;
/// What takes less of the time than this is nobody's trouble.
const VISIBLE: f64 = 0.05;

/// Finds the slow kernels, adds the diagnosis to their pairs, and lists them, the worst first. An emulated kernel is slow on
/// purpose: it has a diagnosis of its own.
pub(super) fn mark(pairs: &mut [Pair]) -> Vec<SlowKernel> {
    let found: Vec<(usize, f64)> = pairs
        .iter()
        .enumerate()
        .filter(|(_, pair)| low(pair))
        .map(|(at, pair)| (at, share(pair, pairs)))
        .filter(|(_, share)| *share >= VISIBLE)
        .collect();
    let mut slow = Vec::new();
    for (at, share) in found {
        let pair = &mut pairs[at];
        let of_roof = pair.efficiency();
        // Against the ideal alone, "slower than predicted" and "below the roof" are one statement.
        let doubled = |found: &Diagnosis| matches!(found, Diagnosis::Unexplained { ratio } if *ratio > 1.0);
        let uncalibrated = pair.calibrated().is_none();
        pair.diagnoses.retain(|found| !(uncalibrated && doubled(found)));
        pair.diagnoses.push(Diagnosis::SlowKernel { of_roof, share });
        slow.push(SlowKernel {
            shape: pair.subject(),
            phase: pair.observation.phase,
            precision: pair.label(),
            of_roof_pct: of_roof * 100.0,
            share_pct: share * 100.0,
        });
    }
    slow.sort_by(|one, other| one.of_roof_pct.total_cmp(&other.of_roof_pct));
    slow
}

/// Whether a kernel that should be near its roof is far below it, and not for its start: what starting it is expected to
/// take is taken away first.
fn low(pair: &Pair) -> bool {
    let heavy = matches!(pair.observation.op.class(), Class::Gemm | Class::Attention);
    let launch = pair.calibrated().map_or(0.0, |expected| expected.launch / pair.observation.time);
    heavy && !pair.emulated() && pair.efficiency() < SLOW * (1.0 - launch) && !diagnosis::mostly_launch(pair)
}

/// The part of the measured time that a kernel takes: of its phase's and precision's pass where kernels are counted, and where they
/// stand side by side, of its own operator in all precisions. Side by side the sum over shapes is the time of nothing: one
/// large product would hide every small one, however bad.
fn share(pair: &Pair, pairs: &[Pair]) -> f64 {
    let counted = pairs.iter().any(|pair| pair.observation.count != 1);
    let together = |other: &&Pair| {
        let (one, other) = (&pair.observation, &other.observation);
        let pass = one.precision == other.precision && one.phase == other.phase;
        if counted { pass } else { one.op == other.op }
    };
    let time = |pair: &Pair| pair.observation.time.value() * pair.observation.count as f64;
    let whole: f64 = pairs.iter().filter(|pair| !pair.emulated()).filter(together).map(time).sum();
    time(pair) / whole
}

#[cfg(test)]
mod tests {
    use crate::{
        compare::{Comparison, Observation, Pair, Verdict, compare, samples},
        machine::Basis,
        measurement::Path,
        predict::{Expected, Outlook, Tier},
        units::Seconds,
    };

    fn slow(observations: &[Observation]) -> Vec<String> {
        let Comparison { slow, pairs, .. } = compare(observations, &samples::machine(), Tier::Ideal).unwrap();
        let marked =
            pairs.iter().flat_map(|pair| &pair.diagnoses).filter(|found| found.name() == "slow kernel").count();
        assert_eq!(marked, slow.len(), "each has its diagnosis");
        slow.iter().map(|slow| format!("{} {} {:.0} %", slow.shape, slow.precision, slow.of_roof_pct)).collect()
    }

    #[test]
    fn a_kernel_below_a_third_of_its_roof_is_slow() {
        let shape = (4096, 4096, 4096);
        assert_eq!(slow(&[samples::product("bf16", shape, 50.0)]), ["gemm 4096 x 4096 x 4096 bf16 2 %"]);
        assert!(slow(&[samples::product("bf16", shape, 2.9)]).is_empty());
        assert_eq!(slow(&[samples::product("bf16", shape, 3.1)]).len(), 1);
    }

    #[test]
    fn what_is_mostly_its_start_is_not_slow() {
        // Eight microseconds, of which the roof explains 0.03.
        assert!(slow(&[samples::product("bf16", (1, 256, 256), 300.0)]).is_empty());
    }

    #[test]
    fn a_start_that_is_known_is_taken_away_first() {
        let observation = samples::product("bf16", (128, 4096, 4096), 3.3);
        let ideal = observation.time.value() / 3.3;
        let compared = compare(&[observation], &samples::machine(), Tier::Ideal).unwrap();
        let outlook = |factor: f64| Outlook::new(Seconds::new(factor * ideal));
        let expected = |launch: f64| Expected {
            time: outlook(3.0),
            low: outlook(2.0),
            high: outlook(4.0),
            launch: Seconds::new(launch * ideal),
            memory: Seconds::new(2.0 * ideal),
            compute: Seconds::new(ideal),
            network: Seconds::ZERO,
        };
        let basis = Basis::Calibrated;
        // 30 % of its roof, and 33.1 or 33.6 % of it without its start.
        let low = |launch| super::low(&Pair { expected: Some(expected(launch)), basis, ..compared.pairs[0].clone() });
        assert!(low(0.28) && !low(0.32));
    }

    #[test]
    fn a_large_product_does_not_hide_a_small_one() {
        let all =
            [samples::product("bf16", (8192, 8192, 8192), 1.1), samples::product("w4a16", (1, 16384, 16384), 50.0)];
        assert_eq!(slow(&all), ["gemv 1 x 16384 x 16384 w4a16 2 %"]);
    }

    #[test]
    fn in_a_pass_only_what_takes_time_counts() {
        let pass = |count| {
            let mut all =
                [samples::product("bf16", (8192, 8192, 8192), 1.1), samples::product("bf16", (1, 8192, 8192), 10.0)];
            // 1.2 ms once, 0.28 ms as often as it runs.
            (all[0].count, all[1].count) = (2, count);
            slow(&all)
        };
        assert!(pass(0).is_empty());
        assert_eq!(pass(32).len(), 1);
    }

    #[test]
    fn a_demonstration_of_a_bad_way_is_not_slow() {
        let mut cast = samples::product("w8a16", (1, 16384, 16384), 50.0);
        cast.path = Some(Path::CastEmulated);
        let all = [samples::product("bf16", (1, 16384, 16384), 1.05), cast];
        assert!(slow(&all).is_empty());
        let comparison = compare(&all, &samples::machine(), Tier::Ideal).unwrap();
        assert_eq!(comparison.totals.verdict, Verdict::Excellent, "{}", comparison.verdict);
    }
}
