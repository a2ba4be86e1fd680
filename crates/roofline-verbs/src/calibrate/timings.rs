//! Files of timings that somebody published: read, fitted, and used to score what ships.
//!
//! The form is that of the tables of ai-dynamo/aiconfigurator: a row for each kernel, with the device, the serving stack and its
//! version, the formats, the dimensions, and `latency_us`. Which operator a file has is told by its header.

mod check;

pub(super) use check::check;
pub use check::{Checked, Errors as TimingErrors, ErrorsOfGroup, SkippedDevice};

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Mutex, PoisonError},
    thread,
};

use csv::StringRecord;
use roofline_core::{
    Device,
    calibration::{
        Calibration, Dtype, KernelTerms, Shape, Terms, TimedFit, TimedKernel, TimedOp, TimedQuality, Timing,
        fit_timings,
    },
    machine::Stack,
    units::Seconds,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Request, keep};
use crate::{Context, Error, Note, Result, context::files::replace, trace::source::Source};

/// Most bytes of a file, unpacked, and most rows.
const LONGEST: u64 = 1 << 30;
const MOST_ROWS: usize = 4_000_000;

/// A row: who timed which kernel where.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) device: String,
    pub(super) framework: String,
    pub(super) version: String,
    /// The formats as the file spells them.
    pub(super) dtype: String,
    pub(super) timing: Timing,
}

/// A file that was read.
pub(super) struct Read {
    pub(super) rows: Vec<Row>,
    /// Rows in formats that no term describes, by format.
    pub(super) unknown: BTreeMap<String, usize>,
}

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
    #[serde(flatten)]
    pub quality: TimedQuality,
    /// How many numbers it has.
    pub terms: usize,
    /// Each of them.
    pub values: Vec<super::Term>,
}

/// Whether a file is one of timings, by its first line.
pub(super) fn is_timings(header: &StringRecord) -> bool {
    header.iter().any(|column| column.trim() == "latency_us")
}

/// Fits every device and stack of some files.
pub(super) fn fit(context: &Context, request: &Request) -> Result<Timed> {
    let mut rows = Vec::new();
    for path in &request.from {
        let read = read(path)?;
        for (dtype, count) in &read.unknown {
            context.warn(format!("{}: {count} rows in `{dtype}` are left out: no term describes it", path.display()));
        }
        rows.extend(read.rows);
    }
    let (places, skipped) = by_place(context, request, rows)?;
    let mut jobs: Vec<(usize, &[Timing], &Device)> = Vec::new();
    let groups: Vec<Vec<Vec<Timing>>> = places.iter().map(|place| by_kernel(&place.rows)).collect();
    for (at, (place, groups)) in places.iter().zip(&groups).enumerate() {
        jobs.extend(groups.iter().map(|group| (at, group.as_slice(), &place.device)));
    }
    let fits = all(context, &jobs)?;
    let mut calibrations = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let mut own = Vec::new();
        for ((_, group, _), fit) in jobs.iter().zip(&fits).filter(|((of, ..), _)| *of == at) {
            match fit {
                Ok(fit) => own.push(fit.clone()),
                Err(error) => {
                    let kernel = group[0].kernel;
                    context.warn(format!("{} {}: {error}", kernel.shape.op(), kernel.dtype));
                }
            }
        }
        if own.is_empty() {
            continue;
        }
        let provenance = provenance(request, place);
        let calibration = Calibration::of_timings(&place.device, place.stack.name(), provenance, own)?;
        if let Some(folder) = &request.write {
            let path = folder.join(format!("{}.{}.toml", calibration.device, calibration.stack));
            let text = toml::to_string(&calibration).map_err(|error| {
                Error::request(format!("{}: {error}", path.display()), "this is a defect of roofline")
            })?;
            replace(&path, text.as_bytes())?;
            context.note(format!("written: {}", path.display()));
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
    Ok(Timed { calibrations, skipped, notes: context.notes() })
}

fn told(calibration: &Calibration) -> TimedCalibration {
    let kernel = |kernel: &KernelTerms| {
        let values = super::terms::timed_kernel(kernel);
        let (op, dtype, quality) = (kernel.op, kernel.dtype, kernel.quality.clone());
        TimedKernelQuality { op, dtype, quality, terms: values.len(), values }
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
    rows: Vec<Timing>,
}

fn by_place(context: &Context, request: &Request, rows: Vec<Row>) -> Result<(Vec<Place>, Vec<SkippedDevice>)> {
    let only = request.on.as_deref().map(|on| context.device(on)).transpose()?;
    let mut places: BTreeMap<(String, String), Vec<Row>> = BTreeMap::new();
    for row in rows {
        places.entry((row.device.clone(), row.framework.clone())).or_default().push(row);
    }
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for ((device, framework), rows) in places {
        let skip = |reason: String| SkippedDevice {
            device: device.clone(),
            framework: framework.clone(),
            rows: rows.len(),
            reason,
        };
        let known = match context.device(&device) {
            Ok(known) => known,
            Err(error) => {
                skipped.push(skip(error.to_string()));
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
                skipped.push(skip(error.to_string()));
                continue;
            }
        };
        let mut versions: Vec<String> = rows.iter().map(|row| row.version.clone()).collect();
        versions.sort();
        versions.dedup();
        let rows = rows.into_iter().map(|row| row.timing).collect();
        found.push(Place { device: known, stack, versions, rows });
    }
    Ok((found, skipped))
}

/// The timings of each operator and format.
fn by_kernel(rows: &[Timing]) -> Vec<Vec<Timing>> {
    let mut groups: BTreeMap<(TimedOp, Dtype), Vec<Timing>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.kernel.shape.op(), row.kernel.dtype)).or_default().push(*row);
    }
    groups.into_values().collect()
}

/// Fits groups on all cores.
#[allow(clippy::type_complexity)]
fn all(
    context: &Context,
    jobs: &[(usize, &[Timing], &Device)],
) -> Result<Vec<std::result::Result<TimedFit, roofline_core::Error>>> {
    let progress = Mutex::new((0..jobs.len()).map(|_| None).collect::<Vec<_>>());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let go = || {
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some((_, timings, device)) = jobs.get(at) else { return };
            if context.watcher().cancelled() {
                return;
            }
            let fit = fit_timings(timings, device);
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

/// A regular file, packed or not; a pipe or a device could go on for ever.
pub(super) fn open(path: &Path) -> Result<Source> {
    if !std::fs::metadata(path).map_err(Error::file(path))?.is_file() {
        return Err(unreadable(path, "not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(Error::file(path))?;
    Source::new(file, LONGEST).map_err(Error::file(path))
}

/// The first line of a file, for whoever wants to know what it is.
pub(super) fn header(path: &Path) -> Result<StringRecord> {
    let source = open(path)?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(source);
    reader.headers().cloned().map_err(|error| unreadable(path, &error.to_string()))
}

pub(super) fn unreadable(path: &Path, reason: &str) -> Error {
    let hint =
        "timings are CSV: device, framework, version, gemm_dtype, m, n, k, latency_us, or the columns of attention";
    Error::request(format!("{}: {reason}", path.display()), hint)
}

/// Reads one file.
pub(super) fn read(path: &Path) -> Result<Read> {
    let source = open(path)?;
    let mut reader = csv::ReaderBuilder::new().from_reader(source);
    let header = reader.headers().cloned().map_err(|error| unreadable(path, &error.to_string()))?;
    let columns =
        Columns::of(&header).map_err(|missing| unreadable(path, &format!("there is no column `{missing}`")))?;
    let (mut rows, mut unknown) = (Vec::new(), BTreeMap::<String, usize>::new());
    for record in reader.records() {
        let record = record.map_err(|error| unreadable(path, &error.to_string()))?;
        if rows.len() >= MOST_ROWS {
            return Err(unreadable(path, &format!("more than {MOST_ROWS} rows")));
        }
        let line = record.position().map_or(0, csv::Position::line);
        match columns.row(&record).map_err(|reason| unreadable(path, &format!("line {line}: {reason}")))? {
            Ok(row) => rows.push(row),
            Err(dtype) => *unknown.entry(dtype).or_default() += 1,
        }
    }
    Ok(Read { rows, unknown })
}

/// Where a file has what.
struct Columns {
    device: usize,
    framework: usize,
    version: Option<usize>,
    latency: usize,
    kernel: KernelColumns,
}

enum KernelColumns {
    Product { dtype: usize, sides: [usize; 3] },
    Attention { math: usize, cache: usize, numbers: [usize; 7] },
}

impl Columns {
    fn of(header: &StringRecord) -> std::result::Result<Self, &'static str> {
        let find = |name: &'static str| header.iter().position(|column| column.trim() == name).ok_or(name);
        let kernel = if find("gemm_dtype").is_ok() {
            KernelColumns::Product { dtype: find("gemm_dtype")?, sides: [find("m")?, find("n")?, find("k")?] }
        } else {
            KernelColumns::Attention {
                math: find("attn_dtype")?,
                cache: find("kv_cache_dtype")?,
                numbers: [
                    find("batch_size")?,
                    find("isl")?,
                    find("step")?,
                    find("num_heads")?,
                    find("num_key_value_heads")?,
                    find("head_dim")?,
                    find("window_size")?,
                ],
            }
        };
        Ok(Self {
            device: find("device")?,
            framework: find("framework")?,
            version: find("version").ok(),
            latency: find("latency_us")?,
            kernel,
        })
    }

    /// A row, or formats that no term describes.
    fn row(&self, record: &StringRecord) -> std::result::Result<std::result::Result<Row, String>, String> {
        let text = |at: usize| record.get(at).unwrap_or_default().trim();
        let number = |at: usize, least: f64| {
            let value: f64 = text(at).parse().map_err(|_| format!("`{}` is no number", text(at)))?;
            let usable = value.is_finite() && (least..=1e12).contains(&value);
            if usable { Ok(value) } else { Err(format!("`{}` is out of range", text(at))) }
        };
        let time = number(self.latency, 1e-6)? * 1e-6;
        let (name, kernel) = match &self.kernel {
            KernelColumns::Product { dtype, sides: [m, n, k] } => {
                let shape = Shape::Product { m: number(*m, 1.0)?, n: number(*n, 1.0)?, k: number(*k, 1.0)? };
                let name = text(*dtype).to_owned();
                (name.clone(), name.parse::<Dtype>().map(|dtype| TimedKernel { dtype, shape }))
            }
            KernelColumns::Attention { math, cache, numbers } => {
                let [batch, queries, step, heads, kv_heads, head_dim, window] = *numbers;
                let (queries, step, heads) = (number(queries, 1.0)?, number(step, 0.0)?, number(heads, 1.0)?);
                let kv_heads = number(kv_heads, 0.0)?;
                let shape = Shape::Attention {
                    batch: number(batch, 1.0)?,
                    queries,
                    context: queries + step,
                    heads,
                    // Nought means as many as heads.
                    kv_heads: if kv_heads == 0.0 { heads } else { kv_heads.min(heads) },
                    head_dim: number(head_dim, 1.0)?,
                    window: number(window, 0.0)?,
                    decode: queries == 1.0 && step > 0.0,
                };
                let name = format!("{}/{}", text(*math), text(*cache));
                let known = if name == "bfloat16/bfloat16" { Ok(Dtype::Bfloat16) } else { name.parse() };
                (name, known.map(|dtype| TimedKernel { dtype, shape }))
            }
        };
        Ok(kernel.map_err(|_: roofline_core::Error| name.clone()).map(|kernel| Row {
            device: text(self.device).to_owned(),
            framework: text(self.framework).to_owned(),
            version: self.version.map_or_else(String::new, |at| text(at).to_owned()),
            dtype: name,
            timing: Timing { kernel, time: Seconds::new(time) },
        }))
    }
}
