//! A kernel of a comparison, as JSON and CSV have it.

use roofline_core::{
    Machine,
    compare::{Diagnosis, Grade, Observation, Pair, Status},
    measurement::{Path, Phase, Residency, Warning},
    predict::{Figures, Ratios},
    units::Bytes,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::text::number;

/// A kernel: what was predicted of it, and what it did.
#[derive(Serialize, JsonSchema)]
pub struct ComparedKernel {
    pub site: String,
    pub shape: String,
    /// The pass of a model that it is a part of.
    pub phase: Option<Phase>,
    pub precision: String,
    pub count: u64,
    #[serde(flatten)]
    pub figures: Figures,
    /// What was predicted over the first precision of the same operator.
    #[serde(flatten)]
    pub ratios: Ratios,
    pub measured_time_us: f64,
    pub p5_us: Option<f64>,
    pub p95_us: Option<f64>,
    pub error_pct: f64,
    pub signed_pct: f64,
    pub error_vs_measured_pct: f64,
    pub ideal_error_pct: f64,
    pub ratio: f64,
    /// Ideal over measured: the share of the roof that was reached.
    pub efficiency: f64,
    pub status: Status,
    /// How good the prediction was, by the ladder of the verdict.
    pub grade: Grade,
    pub moved: Bytes,
    /// How many times the intensity would have to grow to reach the ridge, as `predict` has it; nothing where nothing is
    /// computed.
    pub ridge_distance: Option<f64>,
    pub measured_tflops: f64,
    pub measured_bandwidth_gb_s: f64,
    pub kernel: Option<String>,
    pub kernel_path: Option<Path>,
    pub residency: Option<Residency>,
    pub warnings: Vec<Warning>,
    pub diagnoses: Vec<Explained>,
}

/// What is wrong with a prediction or a kernel, in a sentence.
#[derive(Serialize, JsonSchema)]
pub struct Explained {
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    pub text: String,
}

impl ComparedKernel {
    /// How far the kernel is from the ridge, and on which side: `12x below`.
    pub fn ridge_side(&self) -> Option<String> {
        self.ridge_distance.map(|distance| match distance {
            below if below >= 1.0 => format!("{}x below", number(below)),
            above => format!("{}x above", number(1.0 / above)),
        })
    }

    /// The kernel in words, with the pass that it is a part of.
    pub fn placed(&self) -> String {
        self.phase.map_or_else(|| self.shape.clone(), |phase| format!("{phase} {}", self.shape))
    }
}

/// Every kernel, in order.
pub(crate) fn kernels(pairs: &[Pair], machine: &Machine) -> Vec<ComparedKernel> {
    pairs.iter().map(|pair| kernel(pair, pairs, machine)).collect()
}

fn kernel(pair: &Pair, all: &[Pair], machine: &Machine) -> ComparedKernel {
    let beside = |other: &&Pair| {
        (&other.observation.op, other.observation.phase) == (&pair.observation.op, pair.observation.phase)
            && other.tier() == pair.tier()
    };
    let first = all.iter().find(beside).map(|first| &first.prediction);
    let Observation { site, phase, count, range, path, kernel, residency, warnings, .. } = &pair.observation;
    ComparedKernel {
        site: site.clone(),
        shape: pair.subject(),
        phase: *phase,
        precision: pair.label(),
        count: *count,
        figures: Figures::of(&pair.prediction, pair.basis, pair.tier(), machine),
        ratios: Ratios::of(&pair.prediction, first, pair.tier()),
        measured_time_us: pair.observation.time.micros(),
        p5_us: range.map(|(low, _)| low.micros()),
        p95_us: range.map(|(_, high)| high.micros()),
        error_pct: pair.error() * 100.0,
        signed_pct: pair.signed_error() * 100.0,
        error_vs_measured_pct: pair.error_vs_measured() * 100.0,
        ideal_error_pct: pair.ideal_error() * 100.0,
        ratio: pair.ratio(),
        efficiency: pair.efficiency(),
        status: pair.status(),
        grade: pair.grade(),
        moved: pair.moved(),
        ridge_distance: pair.ridge_distance(),
        measured_tflops: pair.rate().value() / 1e12,
        measured_bandwidth_gb_s: pair.bandwidth().value() / 1e9,
        kernel: kernel.clone(),
        kernel_path: *path,
        residency: *residency,
        warnings: warnings.clone(),
        diagnoses: pair
            .diagnoses
            .iter()
            .map(|diagnosis| Explained { diagnosis: *diagnosis, text: diagnosis.sentence() })
            .collect(),
    }
}
