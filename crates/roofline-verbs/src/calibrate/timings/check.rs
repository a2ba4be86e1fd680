//! How far what ships, or what was made here, is from a file of timings.

use std::{collections::BTreeMap, path::Path};

use roofline_core::{
    Machine,
    calibration::{Calibration, TimedOp},
    machine::{MOVED, Stack},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Row, read};
use crate::{Context, Note, Result, machine::machine};

/// Errors on a file of timings, as shares of the measured time.
#[derive(Serialize, JsonSchema)]
pub struct Checked {
    /// By device, stack, formats and operator.
    pub groups: Vec<ErrorsOfGroup>,
    /// Over all rows.
    pub total: Errors,
    /// Rows that could not be predicted.
    pub skipped: Vec<SkippedDevice>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Errors of one group.
#[derive(Serialize, JsonSchema)]
pub struct ErrorsOfGroup {
    /// As the file spells it.
    pub device: String,
    pub framework: String,
    /// As the file spells it; of attention what multiplies and what is cached.
    pub dtype: String,
    pub op: TimedOp,
    /// What the terms stand on.
    pub basis: &'static str,
    #[serde(flatten)]
    pub errors: Errors,
}

/// Errors of some rows.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TimingErrors")]
pub struct Errors {
    pub rows: usize,
    pub median: f64,
    pub mean: f64,
    pub p90: f64,
    /// The share of rows inside their 80 % intervals.
    pub coverage80: f64,
    /// The ideal roofline's mean error.
    pub ideal_mean: f64,
}

/// Rows that could not be used.
#[derive(Serialize, JsonSchema)]
pub struct SkippedDevice {
    pub device: String,
    pub framework: String,
    pub rows: usize,
    pub reason: String,
}

/// A row's measured over its predicted time, its ideal one, and whether it is inside.
#[derive(Clone, Copy)]
struct Scored {
    error: f64,
    ideal: f64,
    inside: bool,
}

/// Where a group's kernels are looked up.
struct Known {
    machine: Machine,
    /// The same kernels under other stacks of the architecture, for formats that this one was never timed in.
    others: Vec<Calibration>,
}

/// Scores a file.
pub(in crate::calibrate) fn check(context: &Context, path: &Path, corrected: bool) -> Result<Checked> {
    let file = read(path)?;
    let mut groups: BTreeMap<(String, String, TimedOp, String), Vec<Row>> = BTreeMap::new();
    for row in file.rows {
        let key = (row.device.clone(), row.framework.clone(), row.timing.kernel.shape.op(), row.dtype.clone());
        groups.entry(key).or_default().push(row);
    }
    let mut places: BTreeMap<(String, String), std::result::Result<Known, String>> = BTreeMap::new();
    let (mut told, mut all, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for ((device, framework, op, dtype), rows) in groups {
        let place = places
            .entry((device.clone(), framework.clone()))
            .or_insert_with(|| known(context, &device, &framework).map_err(|error| error.to_string()));
        let scored: std::result::Result<Vec<Scored>, String> = match place {
            Ok(known) => rows
                .iter()
                .map(|row| known.score(row, corrected).ok_or_else(|| format!("no terms for {op} in {dtype}")))
                .collect(),
            Err(reason) => Err(reason.clone()),
        };
        match scored {
            Ok(scored) => {
                let moved = place.as_ref().is_ok_and(|known| known.machine.is_moved());
                let basis = if moved { "transferred" } else { "calibrated" };
                all.extend_from_slice(&scored);
                told.push(ErrorsOfGroup { device, framework, dtype, op, basis, errors: Errors::of(&scored) });
            }
            Err(reason) => skipped.push(SkippedDevice { device, framework, rows: rows.len(), reason }),
        }
    }
    for (dtype, rows) in file.unknown {
        let reason = format!("no term describes `{dtype}`");
        skipped.push(SkippedDevice { device: String::new(), framework: String::new(), rows, reason });
    }
    Ok(Checked { groups: told, total: Errors::of(&all), skipped, notes: context.notes() })
}

fn known(context: &Context, device: &str, framework: &str) -> Result<Known> {
    let device = context.device(device)?;
    let stack: Stack = framework.parse()?;
    let others =
        [Stack::TrtLlm, Stack::Vllm, Stack::Sglang].into_iter().filter(|other| *other != stack).filter_map(|other| {
            let own = Calibration::builtin(&device, other.name()).cloned();
            own.or_else(|| Calibration::moved_to(&device, other.name()))
        });
    let own = Calibration::moved_to(&device, stack.name());
    let others = own.into_iter().chain(others).collect();
    Ok(Known { machine: machine(context, device, stack), others })
}

impl Known {
    /// By the stack's own terms, else by those of the architecture, else by those of another stack.
    fn score(&self, row: &Row, corrected: bool) -> Option<Scored> {
        let (kernel, device) = (&row.timing.kernel, &self.machine.device);
        let own = self.machine.calibration().and_then(|own| {
            let (time, interval) = own.as_timed(kernel, device, corrected)?;
            Some((time, if self.machine.is_moved() { MOVED * interval } else { interval }))
        });
        let other = || {
            let (time, interval) = self.others.iter().find_map(|other| other.as_timed(kernel, device, corrected))?;
            Some((time, MOVED * interval))
        };
        let (time, interval) = own.or_else(other)?;
        let ratio = time / row.timing.time;
        Some(Scored {
            error: (ratio - 1.0).abs(),
            ideal: (kernel.floor(device) / row.timing.time - 1.0).abs(),
            inside: ratio.ln().abs() <= interval,
        })
    }
}

impl Errors {
    fn of(scored: &[Scored]) -> Self {
        let mut errors: Vec<f64> = scored.iter().map(|one| one.error).collect();
        errors.sort_by(f64::total_cmp);
        let count = scored.len().max(1) as f64;
        let quantile =
            |share: f64| if errors.is_empty() { 0.0 } else { roofline_core::measurement::quantile(&errors, share) };
        Self {
            rows: scored.len(),
            median: quantile(0.5),
            mean: errors.iter().sum::<f64>() / count,
            p90: quantile(0.9),
            coverage80: scored.iter().filter(|one| one.inside).count() as f64 / count,
            ideal_mean: scored.iter().map(|one| one.ideal).sum::<f64>() / count,
        }
    }
}
