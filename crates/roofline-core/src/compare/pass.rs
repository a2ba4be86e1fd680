//! Whole passes: the sums over kernels that are counted as often as they run.
//!
//! Nobody waits for a kernel; people wait for a pass. So a pass is judged by time: a kernel weighs what it takes of it, not
//! one vote whatever it takes.

use schemars::JsonSchema;
use serde::Serialize;

use super::Pair;
use crate::{measurement::Phase, units::Seconds};

/// `|predicted - measured| / predicted`, in percent.
pub fn error_pct(predicted: Seconds, measured: Seconds) -> f64 {
    (measured / predicted - 1.0).abs() * 100.0
}

/// A pass of a model at one precision.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ComparedPass")]
pub struct Pass {
    /// Which pass, where the kernels say so.
    pub phase: Option<Phase>,
    /// The precision's name.
    pub precision: String,
    /// Kernels, each as often as it runs.
    pub kernels: u64,
    /// Kinds of kernels that were not measured: the sums are without them. Whoever knows of them counts them.
    pub missing: u64,
    /// Kernels whose predicted time is the ideal one, because no calibration covers them.
    pub ideal_kernels: u64,
    /// The time of the ideal roofline.
    pub ideal_time_us: f64,
    /// By the expected tier, where it covers a kernel.
    pub predicted_time_us: f64,
    /// The measured time.
    pub measured_time_us: f64,
    /// `|predicted - measured| / predicted` of the sums. Kernels that are off to either side cancel in it.
    pub error_pct: f64,
    /// `sum |predicted - measured| / sum predicted`: the errors of the kernels, weighed by the time that each is predicted to
    /// take of the pass. Nothing cancels, so it is never below `error_pct`.
    pub kernel_error_pct: f64,
}

impl Pass {
    fn new(pair: &Pair) -> Self {
        Self {
            phase: pair.observation.phase,
            precision: pair.observation.precision.clone(),
            kernels: 0,
            missing: 0,
            ideal_kernels: 0,
            ideal_time_us: 0.0,
            predicted_time_us: 0.0,
            measured_time_us: 0.0,
            error_pct: 0.0,
            kernel_error_pct: 0.0,
        }
    }

    /// Whether its predicted time is a sum of expected and of ideal ones.
    pub fn mixed(&self) -> bool {
        self.ideal_kernels > 0 && self.ideal_kernels < self.kernels
    }

    /// Phase and precision.
    pub fn name(&self) -> String {
        self.phase.map_or_else(|| self.precision.clone(), |phase| format!("{phase} {}", self.precision))
    }
}

/// Sums over kernels that were counted, per phase and precision.
pub(super) fn passes(pairs: &[Pair]) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    // A recipe stores one product of several layers in several formats.
    let places = || {
        let place = |pair: &Pair| (pair.observation.phase, pair.subject(), pair.label(), pair.observation.formats);
        pairs.iter().map(place)
    };
    let twice = places().enumerate().any(|(at, place)| places().take(at).any(|earlier| earlier == place));
    // Several passes in one run cannot be told apart.
    if twice || pairs.iter().all(|pair| pair.observation.count == 1) {
        return passes;
    }
    for pair in pairs {
        let of = |pass: &Pass| pass.precision == pair.observation.precision && pass.phase == pair.observation.phase;
        let at = passes.iter().position(of).unwrap_or_else(|| {
            passes.push(Pass::new(pair));
            passes.len() - 1
        });
        let count = pair.observation.count;
        let [ideal, predicted, measured] = [pair.ideal.time().seconds(), pair.predicted(), pair.observation.time]
            .map(|time| time.micros() * count as f64);
        let pass = &mut passes[at];
        pass.kernels = pass.kernels.saturating_add(count);
        pass.ideal_kernels += if pair.expected.is_none() { count } else { 0 };
        pass.ideal_time_us += ideal;
        pass.predicted_time_us += predicted;
        pass.measured_time_us += measured;
        pass.kernel_error_pct += (predicted - measured).abs();
    }
    for pass in &mut passes {
        pass.error_pct = error_pct(Seconds::new(pass.predicted_time_us), Seconds::new(pass.measured_time_us));
        pass.kernel_error_pct *= 100.0 / pass.predicted_time_us;
    }
    passes
}

#[cfg(test)]
mod tests {
    use crate::{
        Graph,
        compare::{Comparison, Observation, Pass, Verdict, compare, samples},
        format::Sizes,
        measurement::Phase,
        predict::{Estimate, Tier},
        units::Seconds,
    };

    fn compared(all: &[Observation]) -> Comparison {
        compare(all, &samples::machine(), Tier::Ideal).unwrap()
    }

    /// A product as a part of a pass.
    fn part(phase: Phase, count: u64, shape: (u64, u64, u64), ratio: f64) -> Observation {
        Observation { phase: Some(phase), count, ..samples::product("bf16", shape, ratio) }
    }

    /// A look-up of one row of 2048 numbers, which takes two microseconds to start and 1.7 nanoseconds to do.
    fn look_up(phase: Phase) -> Observation {
        let model = crate::Model::find("llama-3.2-1b").unwrap();
        let graph: Graph =
            model.graph(crate::model::Workload::decode(1, 4096).unwrap(), crate::model::Lowering::default()).unwrap();
        let node = graph.nodes.iter().find(|node| node.site == "embedding").unwrap();
        let like = part(phase, 1, (1, 2048, 2048), 1.0);
        let ideal = Estimate::of(&node.op, &like.formats, Sizes::Exact, &samples::device()).unwrap().time();
        assert!((ideal.seconds().value() - 1.7e-9).abs() < 0.1e-9, "{ideal}");
        Observation { site: node.site.to_owned(), op: node.op, time: Seconds::new(2e-6), ..like }
    }

    #[test]
    fn a_kernel_weighs_what_it_takes_of_the_pass() {
        // Sixteen layers at 1.05 times their ideal, and a look-up at a thousand times its own: the mean over kernels is in
        // the ten thousands of percent, and the pass is off by 6 %.
        let all = [look_up(Phase::Decode), part(Phase::Decode, 16, (1, 8192, 8192), 1.05)];
        let Comparison { totals, passes, verdict, .. } = compared(&all);
        assert!(totals.mean_error_pct > 10_000.0, "{totals:?}");
        assert!(totals.judged_by_pass && (5.0..6.0).contains(&totals.judged_error_pct), "{totals:?}");
        assert!((passes[0].error_pct - passes[0].kernel_error_pct).abs() < 1e-9, "{passes:?}");
        assert_eq!(totals.verdict, Verdict::Excellent, "{verdict}");
        assert!(verdict.contains("% of the pass (its sum by"), "{verdict}");
        // The same two side by side are no pass, and each has its vote.
        let apart = all.map(|one| Observation { count: 1, phase: None, ..one });
        let totals = compared(&apart).totals;
        assert!(!totals.judged_by_pass && totals.judged_error_pct > 10_000.0, "{totals:?}");
    }

    #[test]
    fn errors_to_either_side_do_not_cancel() {
        // 0.5 and 1.5 times as long as predicted: the sum is right, and neither kernel is.
        let all = [part(Phase::Decode, 2, (1, 8192, 8192), 0.5), part(Phase::Decode, 2, (1, 8192, 8193), 1.5)];
        let Comparison { passes, totals, .. } = compared(&all);
        let Pass { error_pct, kernel_error_pct, .. } = passes[0];
        assert!(error_pct < 0.1 && (kernel_error_pct - 50.0).abs() < 0.1, "{passes:?}");
        assert_eq!(totals.prediction, Verdict::Investigate);
    }

    #[test]
    fn phases_are_passes_of_their_own() {
        // The head is the same kernel in both.
        let head = |phase| part(phase, 1, (1, 32_768, 4096), 1.0);
        let all = [
            part(Phase::Decode, 16, (1, 8192, 8192), 1.0),
            head(Phase::Decode),
            part(Phase::Prefill, 16, (4096, 8192, 8192), 1.4),
            head(Phase::Prefill),
        ];
        let Comparison { passes, verdict, speedups, .. } = compared(&all);
        let told: Vec<(String, u64)> = passes.iter().map(|pass| (pass.name(), pass.kernels)).collect();
        assert_eq!(told, [("decode bf16".to_owned(), 17), ("prefill bf16".to_owned(), 17)]);
        assert!(passes[0].kernel_error_pct < 0.1 && passes[1].kernel_error_pct > 35.0, "{passes:?}");
        assert!(verdict.contains("(decode bf16 0 %, prefill bf16 40 %; 4 kernels"), "{verdict}");
        assert!(speedups.is_empty());
    }
}
