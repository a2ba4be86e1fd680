//! Whole passes: the sums over kernels that were counted as often as they run.

use roofline_core::compare::Pair;
use serde::Serialize;

/// A pass of a model at one precision.
#[derive(Serialize)]
pub(super) struct Pass {
    pub(super) precision: String,
    pub(super) kernels: u64,
    /// Kinds of kernels that were not measured: the sums are without them.
    pub(super) missing: u64,
    /// Kernels whose predicted time is the ideal one, because no calibration covers them.
    pub(super) ideal_kernels: u64,
    pub(super) ideal_time_us: f64,
    pub(super) predicted_time_us: f64,
    pub(super) measured_time_us: f64,
    pub(super) error_pct: f64,
}

impl Pass {
    /// Whether its predicted time is a sum of expected and of ideal ones.
    pub(super) fn mixed(&self) -> bool {
        self.ideal_kernels > 0 && self.ideal_kernels < self.kernels
    }
}

/// Sums over kernels that were counted, per precision.
pub(super) fn passes(pairs: &[Pair]) -> Vec<Pass> {
    let mut passes: Vec<Pass> = Vec::new();
    let places = || pairs.iter().map(|pair| (pair.subject(), pair.label()));
    let twice = places().enumerate().any(|(at, place)| places().take(at).any(|earlier| earlier == place));
    // Several passes in one run cannot be told apart.
    if twice || pairs.iter().all(|pair| pair.observation.count == 1) {
        return passes;
    }
    for pair in pairs {
        let (name, count) = (&pair.observation.precision, pair.observation.count);
        let times =
            [pair.ideal.time(), pair.predicted(), pair.observation.time].map(|time| time.micros() * count as f64);
        let at = passes.iter().position(|pass| pass.precision == *name).unwrap_or_else(|| {
            let (ideal_time_us, predicted_time_us, measured_time_us, error_pct) = (0.0, 0.0, 0.0, 0.0);
            let precision = name.clone();
            passes.push(Pass {
                precision,
                kernels: 0,
                missing: 0,
                ideal_kernels: 0,
                ideal_time_us,
                predicted_time_us,
                measured_time_us,
                error_pct,
            });
            passes.len() - 1
        });
        let pass = &mut passes[at];
        pass.kernels = pass.kernels.saturating_add(count);
        pass.ideal_kernels += if pair.expected.is_none() { count } else { 0 };
        pass.ideal_time_us += times[0];
        pass.predicted_time_us += times[1];
        pass.measured_time_us += times[2];
    }
    for pass in &mut passes {
        pass.error_pct = (pass.measured_time_us / pass.predicted_time_us - 1.0).abs() * 100.0;
    }
    passes
}
