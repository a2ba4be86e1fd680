//! Theory against measurement: errors, verdicts, speed-ups and what explains the rest.

mod diagnosis;
mod insight;
mod pass;
#[cfg(test)]
mod samples;
mod slow;
mod speedup;
mod verdict;

pub use diagnosis::Diagnosis;
pub use pass::{Pass, error_pct};
pub use slow::SlowKernel;
pub use speedup::{Gains, SpeedupPair};
pub use verdict::{Grade, Status, Verdict};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Machine, Op, Precision, Result,
    calibration::Quality,
    machine::Basis,
    measurement::{Measurement, Path, Phase, Residency, Warning, quantile},
    predict::{Bound, Estimate, Expected, Prediction, Tier},
    units::{ByteRate, Bytes, FlopRate, Seconds},
};

/// A measured time, whoever measured it.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Where the kernel belongs.
    pub site: String,
    /// The pass that it is a part of, where it is one of a model's.
    pub phase: Option<Phase>,
    /// The precision's name.
    pub precision: String,
    /// What was computed.
    pub op: Op,
    /// Its formats.
    pub formats: Precision,
    /// How often it runs in whatever it is a part of.
    pub count: u64,
    /// The median, or whatever was reported.
    pub time: Seconds,
    /// Samples it stands for; 1 where that is not known.
    pub samples: usize,
    /// 5th and 95th percentile, where known.
    pub range: Option<(Seconds, Seconds)>,
    /// Where the operands were, where known.
    pub residency: Option<Residency>,
    /// How the kernel reads its weights, where known.
    pub path: Option<Path>,
    /// The code that ran, where known.
    pub kernel: Option<String>,
    /// Bytes that it moved beyond the operator's own, where known.
    pub detour: Bytes,
    /// Doubts that came with it.
    pub warnings: Vec<Warning>,
}

impl From<&Measurement> for Observation {
    fn from(measured: &Measurement) -> Self {
        let summary = measured.summary();
        Self {
            site: measured.site.clone(),
            phase: measured.phase,
            precision: measured.precision.clone(),
            op: measured.op,
            formats: measured.formats,
            count: measured.count,
            time: measured.time(),
            samples: summary.samples,
            range: Some((summary.p5, summary.p95)),
            residency: Some(measured.residency),
            path: Some(measured.kernel.path),
            kernel: Some(measured.kernel.name.clone()),
            detour: measured.moved - measured.bytes,
            warnings: measured.warnings.clone(),
        }
    }
}

/// A prediction beside its measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// What was measured.
    pub observation: Observation,
    /// The speed of light.
    pub ideal: Estimate,
    /// What the machine is expected to do; none where the floor is to be judged, or the operands were in its caches.
    pub expected: Option<Expected>,
    /// Both times, whichever is judged.
    pub prediction: Prediction,
    /// What the expected one stands on.
    pub basis: Basis,
    /// What explains an error that needs explaining.
    pub diagnoses: Vec<Diagnosis>,
}

impl Pair {
    /// The prediction that is judged: the expected time, else the ideal one.
    pub fn predicted(&self) -> Seconds {
        self.expected.map_or(self.ideal.time().seconds(), |expected| expected.time.seconds())
    }

    /// What the machine is expected to do, where it or its like was measured.
    pub(crate) fn calibrated(&self) -> Option<Expected> {
        self.expected.filter(|_| self.basis != Basis::Prior)
    }

    /// Which tier is judged.
    pub fn tier(&self) -> Tier {
        if self.expected.is_some() { Tier::Expected } else { Tier::Ideal }
    }

    /// What the judged prediction is limited by.
    pub fn bound(&self) -> Bound {
        self.expected.map_or(self.ideal.bound(), |expected| expected.bound())
    }

    /// Measured over predicted.
    pub fn ratio(&self) -> f64 {
        self.observation.time / self.predicted()
    }

    /// `|predicted - measured| / predicted`.
    pub fn error(&self) -> f64 {
        (self.ratio() - 1.0).abs()
    }

    /// `(measured - predicted) / predicted`: positive when slower than predicted.
    pub fn signed_error(&self) -> f64 {
        self.ratio() - 1.0
    }

    /// `|predicted - measured| / measured`.
    pub fn error_vs_measured(&self) -> f64 {
        (1.0 / self.ratio() - 1.0).abs()
    }

    /// `|ideal - measured| / ideal`.
    pub fn ideal_error(&self) -> f64 {
        (self.observation.time / self.ideal.time().seconds() - 1.0).abs()
    }

    /// Bytes that moved: the operator's own, and those of a detour.
    pub fn moved(&self) -> Bytes {
        self.ideal.work.bytes() + self.observation.detour
    }

    /// The share of the roof that was reached: ideal over measured. For a kernel that takes a detour, the roof of all that
    /// it moved.
    pub fn efficiency(&self) -> f64 {
        let ideal = self.ideal.time().seconds();
        let detour = self.observation.detour > Bytes::ZERO;
        let roof = if detour { ideal.max(self.ideal.memory * (self.moved() / self.ideal.work.bytes())) } else { ideal };
        roof / self.observation.time
    }

    /// Measured operations per second.
    pub fn rate(&self) -> FlopRate {
        self.ideal.work.flops / self.observation.time
    }

    /// Measured bytes per second.
    pub fn bandwidth(&self) -> ByteRate {
        self.moved() / self.observation.time
    }

    /// How many times the intensity would have to grow to reach the ridge; below 1 it is past it. Nothing where nothing is
    /// computed.
    pub fn ridge_distance(&self) -> Option<f64> {
        Some(self.ideal.ridge_distance()).filter(|distance| distance.is_finite())
    }

    /// How good the prediction was.
    pub fn grade(&self) -> Grade {
        Grade::of(self.error())
    }

    /// Whether the error needs no explaining.
    pub fn status(&self) -> Status {
        Status::of(self.error())
    }
}

/// All pairs together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ComparisonTotals")]
pub struct Totals {
    /// Kernels that were compared.
    pub count: usize,
    /// Mean `error`, in percent.
    pub mean_error_pct: f64,
    /// Median error, in percent.
    pub median_error_pct: f64,
    /// The largest error, in percent.
    pub max_error_pct: f64,
    /// Kernels whose error is below 15 %.
    pub within_15_pct: usize,
    /// The ideal roofline's mean error, in percent.
    pub ideal_mean_error_pct: f64,
    /// The ideal roofline's median error, in percent.
    pub ideal_median_error_pct: f64,
    /// The error that the verdict rests on: over kernels that stand side by side their mean, over the passes of a model
    /// the mean of [`Pass::kernel_error_pct`].
    pub judged_error_pct: f64,
    /// Whether `judged_error_pct` is over passes of a model.
    pub judged_by_pass: bool,
    /// What `judged_error_pct` alone comes to.
    pub prediction: Verdict,
    /// What the error of the prediction and the speed of the kernels come to together.
    pub verdict: Verdict,
}

/// A finished comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Each kernel.
    pub pairs: Vec<Pair>,
    /// Whole passes, where kernels are counted as often as they run.
    pub passes: Vec<Pass>,
    /// Precisions of one operator against each other.
    pub speedups: Vec<SpeedupPair>,
    /// Each format against 16 bit, for one row and for many.
    pub gains: Vec<Gains>,
    /// Narrower formats that ran slower than a wider one of the same operator, the worst first.
    pub losses: Vec<SpeedupPair>,
    /// Kernels that matter and are far below their roof, the worst first.
    pub slow: Vec<SlowKernel>,
    /// Over all pairs.
    pub totals: Totals,
    /// The verdict with its reasons, in a sentence or two.
    pub verdict: String,
    /// What to take home, in a sentence with its numbers.
    pub insight: Option<String>,
    /// What kernels that take a bad way on purpose show.
    pub demonstration: Option<String>,
}

/// Sets measurements beside what a tier of theory says of them on `machine`.
pub fn compare(observations: &[Observation], machine: &Machine, tier: Tier) -> Result<Comparison> {
    let pair = |observation: &Observation| {
        let (prediction, basis) = machine.prediction(&observation.op, &observation.formats)?;
        // Terms are of operands in memory.
        let cold = observation.residency != Some(Residency::Warm);
        let (ideal, expected) =
            (prediction.ideal, Some(prediction.expected).filter(|_| cold && tier == Tier::Expected));
        let (observation, diagnoses) = (observation.clone(), Vec::new());
        let mut pair = Pair { observation, ideal, expected, prediction, basis, diagnoses };
        pair.diagnoses = diagnosis::diagnose(&pair, &machine.device);
        Ok(pair)
    };
    let mut pairs: Vec<Pair> = observations.iter().map(pair).collect::<Result<_>>()?;
    if pairs.is_empty() {
        return Err(crate::Error::Shape("nothing was measured, so there is nothing to compare".to_owned()));
    }
    let slow = slow::mark(&mut pairs);
    // An emulated kernel is shown and explained, but it is not what was predicted.
    let comparable: Vec<&Pair> = pairs.iter().filter(|pair| !pair.emulated()).collect();
    let comparable = if comparable.is_empty() { pairs.iter().collect() } else { comparable };
    let quality = machine.calibration().map(|calibration| &calibration.quality);
    let quality = quality.filter(|_| comparable.iter().any(|pair| pair.calibrated().is_some()));
    let passes = pass::passes(&pairs);
    let totals = totals(&comparable, &passes, !slow.is_empty(), quality.is_some_and(Quality::doubtful));
    let verdict = verdict::sentence(&totals, &passes, &verdict::tier(&comparable), &slow, quality);
    let speedups = speedup::speedups(&pairs);
    let losses = speedup::losses(&speedups);
    let insight = insight::insight(&pairs, &speedups, &losses);
    let demonstration = insight::demonstration(&speedups);
    let gains = speedup::gains(&pairs);
    Ok(Comparison { pairs, passes, speedups, gains, losses, slow, totals, verdict, insight, demonstration })
}

fn totals(pairs: &[&Pair], passes: &[Pass], slow: bool, doubtful: bool) -> Totals {
    let sorted = |error: fn(&Pair) -> f64| {
        let mut errors: Vec<f64> = pairs.iter().map(|pair| error(pair) * 100.0).collect();
        errors.sort_by(f64::total_cmp);
        errors
    };
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    let (errors, ideal) = (sorted(Pair::error), sorted(Pair::ideal_error));
    // In a pass a kernel counts by its time: a look-up of a microsecond may be a thousand times its ideal, and nobody waits
    // for it.
    let weighed: Vec<f64> = passes.iter().map(|pass| pass.kernel_error_pct).collect();
    let judged = if passes.is_empty() { mean(&errors) } else { mean(&weighed) };
    let prediction = if doubtful { Verdict::Undecided } else { Verdict::of(judged / 100.0) };
    Totals {
        count: errors.len(),
        mean_error_pct: mean(&errors),
        median_error_pct: quantile(&errors, 0.5),
        max_error_pct: quantile(&errors, 1.0),
        within_15_pct: errors.iter().filter(|error| **error < 15.0).count(),
        ideal_mean_error_pct: mean(&ideal),
        ideal_median_error_pct: quantile(&ideal, 0.5),
        judged_error_pct: judged,
        judged_by_pass: !passes.is_empty(),
        prediction,
        verdict: prediction.given(slow),
    }
}

impl Pair {
    /// Bits of a stored weight or cached number.
    fn stored_bits(&self) -> u32 {
        let formats = &self.observation.formats;
        match self.observation.op {
            Op::Attention(_) | Op::Scores(_) | Op::Softmax(_) | Op::Values(_) => formats.kv.nominal_bits(),
            Op::Elementwise(_) | Op::AllReduce(_) => formats.query.nominal_bits(),
            _ => formats.weights.nominal_bits(),
        }
    }

    /// Whether it is a kernel that casts its weights to memory first: a demonstration of a bad way.
    pub fn emulated(&self) -> bool {
        self.observation.path == Some(Path::CastEmulated)
    }

    /// The operator in words.
    pub fn subject(&self) -> String {
        self.observation.op.words(&self.observation.site)
    }

    /// The precision, and how it was run where that matters.
    pub fn label(&self) -> String {
        let cast = if self.emulated() { " (cast)" } else { "" };
        format!("{}{cast}", self.observation.precision)
    }
}
