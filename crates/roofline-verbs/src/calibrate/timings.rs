//! Files of timings that somebody published: read, fitted, and used to score what ships.

mod check;
mod held_out;
mod table;

pub use check::{Checked, Errors as TimingErrors, ErrorsOfGroup, SkippedDevice};
pub(super) use check::{Scoring, check};
pub(super) use table::{header, is_timings, open};

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use roofline_core::{
    Device,
    calibration::{
        Calibration, Dtype, KernelTerms, Library, Terms, TimedFit, TimedOp, TimedQuality, Timing, by_library,
        fit_timings,
    },
    machine::Stack,
};
use schemars::JsonSchema;
use serde::Serialize;

use self::table::{Row, read};
use super::{Request, keep};
use crate::{Context, Error, Note, Result, context::files::replace};

/// Calibrations that were made of timings.
#[derive(Serialize, JsonSchema)]
pub struct Timed {
    /// Each device and stack.
    pub calibrations: Vec<TimedCalibration>,
    /// Devices that nobody knows.
    pub skipped: Vec<SkippedDevice>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// One device and stack.
#[derive(Serialize, JsonSchema)]
pub struct TimedCalibration {
    pub device: String,
    pub stack: String,
    pub provenance: String,
    /// Each kernel, cross-validated.
    pub kernels: Vec<TimedKernelQuality>,
}

/// How well a kernel's terms predict shapes that they were not fitted to.
#[derive(Serialize, JsonSchema)]
pub struct TimedKernelQuality {
    pub op: TimedOp,
    pub dtype: Dtype,
    /// Whose, where the stack calls several libraries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<Library>,
    #[serde(flatten)]
    pub quality: TimedQuality,
    /// How many numbers it has.
    pub terms: usize,
    /// Each of them.
    pub values: Vec<super::Term>,
}

/// Fits every device and stack of some files.
pub(super) fn fit(context: &Context, request: &Request) -> Result<Timed> {
    let mut rows = Vec::new();
    for path in &request.from {
        let read = read(path)?;
        for ((device, dtype), count) in &read.unknown {
            let path = path.display();
            context.warn(format!("{path}: {count} rows of {device} in `{dtype}` are left out: no term describes it"));
        }
        rows.extend(read.rows);
    }
    let (places, skipped) = by_place(context, request, rows)?;
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let job = |(library, timings)| Job { place: at, device: &place.device, library, timings };
        jobs.extend(by_kernel(&place.rows).into_iter().map(job));
    }
    let fits = all(context, &jobs)?;
    let (mut calibrations, mut rows) = (Vec::new(), held_out::Table::new());
    for (at, place) in places.iter().enumerate() {
        let mut own = Vec::new();
        for (job, fit) in jobs.iter().zip(&fits).filter(|(job, _)| job.place == at) {
            match fit {
                Ok(fit) => own.push(fit.clone()),
                Err(error) => {
                    let kernel = job.timings[0].kernel;
                    context.warn(format!("{} {}: {error}", kernel.shape.op(), kernel.dtype));
                }
            }
        }
        if own.is_empty() {
            continue;
        }
        let provenance = provenance(request, place);
        let calibration = Calibration::of_timings(&place.device, place.stack.name(), provenance, own.clone())?;
        if request.rows.is_some() {
            rows.add(&calibration, &place.device, &own);
        }
        if let Some(folder) = &request.write {
            write(context, &calibration, folder)?;
        } else {
            keep(context, &calibration, &place.device)?;
            let (device, stack) = (&calibration.device, &calibration.stack);
            context.note(format!("kept; `⟨roofline predict --on {device} --stack {stack}⟩` uses it"));
        }
        calibrations.push(told(&calibration));
    }
    if calibrations.is_empty() {
        let hint = "a file has the columns device, framework, version, latency_us, and those of its operator";
        return Err(Error::request("nothing in these files could be fitted", hint));
    }
    if let Some(path) = &request.rows {
        replace(path, rows.text().as_bytes())?;
        context.note(format!("written: {}", path.display()));
    }
    Ok(Timed { calibrations, skipped, notes: context.notes() })
}

/// A calibration as a file that can ship.
pub(super) fn write(context: &Context, calibration: &Calibration, folder: &Path) -> Result<()> {
    let path = folder.join(format!("{}.{}.toml", calibration.device, calibration.stack));
    let text = toml::to_string(calibration)
        .map_err(|error| Error::request(format!("{}: {error}", path.display()), "this is a defect of roofline"))?;
    replace(&path, text.as_bytes())?;
    context.note(format!("written: {}", path.display()));
    Ok(())
}

fn told(calibration: &Calibration) -> TimedCalibration {
    let kernel = |kernel: &KernelTerms| {
        let values = super::terms::timed_kernel(kernel);
        let (op, dtype, library, quality) = (kernel.op, kernel.dtype, kernel.library.clone(), kernel.quality.clone());
        TimedKernelQuality { op, dtype, library, quality, terms: values.len(), values }
    };
    let kernels = match &calibration.terms {
        Terms::Timed(terms) => terms.kernels.iter().map(kernel).collect(),
        Terms::Cpu(_) | Terms::Gpu(_) => Vec::new(),
    };
    let Calibration { device, stack, provenance, .. } = calibration.clone();
    TimedCalibration { device, stack, provenance, kernels }
}

/// Rows of one device and stack.
struct Place {
    device: Device,
    stack: Stack,
    versions: Vec<String>,
    /// With the library that ran.
    rows: Vec<(Timing, String)>,
}

/// Timings of one kernel of a place.
struct Job<'a> {
    place: usize,
    device: &'a Device,
    library: Option<Library>,
    timings: Vec<Timing>,
}

fn by_place(context: &Context, request: &Request, rows: Vec<Row>) -> Result<(Vec<Place>, Vec<SkippedDevice>)> {
    let only = request.on.as_deref().map(|on| context.device(on)).transpose()?;
    let mut places: BTreeMap<(String, String), Vec<Row>> = BTreeMap::new();
    for row in rows {
        places.entry((row.device.clone(), row.framework.clone())).or_default().push(row);
    }
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for ((device, framework), rows) in places {
        let mut skip = |reason: String| SkippedDevice::add(&mut skipped, &device, rows.len(), reason);
        let known = match context.device(&device) {
            Ok(known) => known,
            Err(error) => {
                skip(error.to_string());
                continue;
            }
        };
        if only.as_ref().is_some_and(|only| only.key != known.key) {
            continue;
        }
        let stack: Stack = match framework.parse() {
            Ok(stack) => stack,
            Err(error) => {
                let error: roofline_core::Error = error;
                skip(error.to_string());
                continue;
            }
        };
        let mut versions: Vec<String> = rows.iter().map(|row| row.version.clone()).collect();
        versions.sort();
        versions.dedup();
        let rows = rows.into_iter().map(|row| (row.timing, row.library)).collect();
        found.push(Place { device: known, stack, versions, rows });
    }
    Ok((found, skipped))
}

/// The timings of each operator and format, by library.
fn by_kernel(rows: &[(Timing, String)]) -> Vec<(Option<Library>, Vec<Timing>)> {
    let mut groups: BTreeMap<(TimedOp, Dtype), Vec<(Timing, String)>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.0.kernel.shape.op(), row.0.kernel.dtype)).or_default().push(row.clone());
    }
    groups.into_values().flat_map(by_library).collect()
}

/// Fits groups on all cores.
fn all(context: &Context, jobs: &[Job<'_>]) -> Result<Vec<roofline_core::Result<TimedFit>>> {
    let progress = Mutex::new((0..jobs.len()).map(|_| None).collect::<Vec<_>>());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let go = || {
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return };
            if context.watcher().cancelled() {
                return;
            }
            let fit = fit_timings(&job.timings, job.device).map(|mut fit| {
                fit.terms.library.clone_from(&job.library);
                fit
            });
            progress.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(fit);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(go))));
    let all = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.into_iter().map(|fit| fit.ok_or(Error::Cancelled)).collect()
}

fn provenance(request: &Request, place: &Place) -> String {
    let source = request.source.clone().unwrap_or_else(|| {
        let names: Vec<String> =
            request.from.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
        names.join(", ")
    });
    let licence = request.licence.as_ref().map_or_else(String::new, |licence| format!(" ({licence})"));
    let (stack, versions, rows) = (place.stack, place.versions.join(" and "), place.rows.len());
    format!("{source}{licence}: {rows} timings of {stack} {versions}")
}
