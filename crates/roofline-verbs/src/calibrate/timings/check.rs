//! How far what ships, or what was made here, is from a file of timings.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use roofline_core::{
    Machine,
    calibration::{Calibration, TimedOp},
    machine::{MOVED, Stack},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::table::{Row, read};
use crate::{Context, Error, Note, Result, machine::machine};

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
    /// The device that they were timed on, where it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
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
    /// As the file spells it.
    pub device: String,
    pub rows: usize,
    pub reason: String,
}

impl SkippedDevice {
    /// Counts rows that were left out, those of one device for one reason together.
    pub(super) fn add(all: &mut Vec<Self>, device: &str, rows: usize, reason: String) {
        match all.iter_mut().find(|known| known.device == device && known.reason == reason) {
            Some(known) => known.rows += rows,
            None => all.push(Self { device: device.to_owned(), rows, reason }),
        }
    }
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
    /// Where they were timed, if not here.
    from: Option<String>,
}

/// How a file is scored.
#[derive(Clone, Copy)]
pub(in crate::calibrate) struct Scoring {
    /// With the correction of what terms leave.
    pub(in crate::calibrate) corrected: bool,
    /// As if the device had never been timed: by what was timed on the most similar other one.
    pub(in crate::calibrate) left_out: bool,
}

/// Scores a file.
pub(in crate::calibrate) fn check(context: &Context, path: &Path, scoring: Scoring) -> Result<Checked> {
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
            .or_insert_with(|| known(context, &device, &framework, scoring).map_err(|error| error.to_string()));
        let scored: std::result::Result<Vec<Scored>, String> = match place {
            Ok(known) => rows
                .iter()
                .map(|row| known.score(row, scoring.corrected).ok_or_else(|| format!("no terms for {op} in {dtype}")))
                .collect(),
            Err(reason) => Err(reason.clone()),
        };
        match scored {
            Ok(scored) => {
                let (moved, from) =
                    place.as_ref().map_or((false, None), |known| (known.is_moved(), known.from.clone()));
                let basis = if moved { "transferred" } else { "calibrated" };
                all.extend_from_slice(&scored);
                told.push(ErrorsOfGroup { device, framework, dtype, op, basis, from, errors: Errors::of(&scored) });
            }
            Err(reason) => SkippedDevice::add(&mut skipped, &device, rows.len(), reason),
        }
    }
    for ((device, dtype), rows) in file.unknown {
        SkippedDevice::add(&mut skipped, &device, rows, format!("no term describes `{dtype}`"));
    }
    Ok(Checked { groups: told, total: Errors::of(&all), skipped, notes: context.notes() })
}

fn known(context: &Context, device: &str, framework: &str, scoring: Scoring) -> Result<Known> {
    let device = context.device(device)?;
    let stack: Stack = framework.parse()?;
    if scoring.left_out {
        let nobody = || Error::request(format!("no other device was timed with {stack}"), "leave out ⟨transfer⟩");
        let (other, from) = Calibration::of_another(&device, stack.name()).ok_or_else(nobody)?;
        let machine = Machine::new(device, stack).calibrated(Some(Cow::Owned(other)));
        return Ok(Known { machine, others: Vec::new(), from: Some(from) });
    }
    let others =
        [Stack::TrtLlm, Stack::Vllm, Stack::Sglang].into_iter().filter(|other| *other != stack).filter_map(|other| {
            let own = Calibration::builtin(&device, other.name()).cloned();
            own.or_else(|| Calibration::moved_to(&device, other.name()))
        });
    let own = Calibration::moved_to(&device, stack.name());
    let others = own.into_iter().chain(others).collect();
    Ok(Known { machine: machine(context, device, stack), others, from: None })
}

impl Known {
    fn is_moved(&self) -> bool {
        self.from.is_some() || self.machine.is_moved()
    }

    /// By the stack's own terms, else by those of the architecture, else by those of another stack.
    fn score(&self, row: &Row, corrected: bool) -> Option<Scored> {
        let (kernel, device) = (&row.timing.kernel, &self.machine.device);
        let own = self.machine.calibration().and_then(|own| {
            let (time, interval) = own.as_timed(kernel, Some(&row.library), device, corrected)?;
            Some((time, if self.is_moved() { MOVED * interval } else { interval }))
        });
        let other = || {
            let (time, interval) =
                self.others.iter().find_map(|other| other.as_timed(kernel, None, device, corrected))?;
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
