//! Timings as files have them: a row for each kernel.
//!
//! The form is that of the tables of ai-dynamo/aiconfigurator: the device, the serving stack and its version, the library that
//! ran, the formats, the dimensions, and `latency_us`. Which operator a file has is told by its header.

use std::{collections::BTreeMap, path::Path};

use csv::StringRecord;
use roofline_core::{
    calibration::{Dtype, Shape, TimedKernel, Timing},
    units::Seconds,
};

use crate::{Error, Result, trace::source::Source};

/// Most bytes of a file, unpacked, and most rows.
const LONGEST: u64 = 1 << 30;
const MOST_ROWS: usize = 4_000_000;

/// A row: who timed which kernel where.
#[derive(Clone, Debug)]
pub(in crate::calibrate) struct Row {
    pub(in crate::calibrate) device: String,
    pub(in crate::calibrate) framework: String,
    pub(in crate::calibrate) version: String,
    /// The library that ran, where the file says so.
    pub(in crate::calibrate) library: String,
    /// The formats as the file spells them.
    pub(in crate::calibrate) dtype: String,
    pub(in crate::calibrate) timing: Timing,
}

/// A file that was read.
pub(in crate::calibrate) struct Read {
    pub(in crate::calibrate) rows: Vec<Row>,
    /// Rows in formats that no term describes, by device and format.
    pub(in crate::calibrate) unknown: BTreeMap<(String, String), usize>,
}

/// Whether a file is one of timings, by its first line.
pub(in crate::calibrate) fn is_timings(header: &StringRecord) -> bool {
    header.iter().any(|column| column.trim() == "latency_us")
}

/// A regular file, packed or not; a pipe or a device could go on for ever.
pub(in crate::calibrate) fn open(path: &Path) -> Result<Source> {
    if !std::fs::metadata(path).map_err(Error::file(path))?.is_file() {
        return Err(unreadable(path, "not a regular file"));
    }
    let file = std::fs::File::open(path).map_err(Error::file(path))?;
    Source::new(file, LONGEST).map_err(Error::file(path))
}

/// The first line of a file, for whoever wants to know what it is.
pub(in crate::calibrate) fn header(path: &Path) -> Result<StringRecord> {
    let source = open(path)?;
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(source);
    reader.headers().cloned().map_err(|error| unreadable(path, &error.to_string()))
}

fn unreadable(path: &Path, reason: &str) -> Error {
    let hint =
        "timings are CSV: device, framework, version, gemm_dtype, m, n, k, latency_us, or the columns of attention";
    Error::request(format!("{}: {reason}", path.display()), hint)
}

/// Reads one file.
pub(in crate::calibrate) fn read(path: &Path) -> Result<Read> {
    let source = open(path)?;
    let mut reader = csv::ReaderBuilder::new().from_reader(source);
    let header = reader.headers().cloned().map_err(|error| unreadable(path, &error.to_string()))?;
    let columns =
        Columns::of(&header).map_err(|missing| unreadable(path, &format!("there is no column `{missing}`")))?;
    let (mut rows, mut unknown) = (Vec::new(), BTreeMap::<(String, String), usize>::new());
    for record in reader.records() {
        let record = record.map_err(|error| unreadable(path, &error.to_string()))?;
        if rows.len() >= MOST_ROWS {
            return Err(unreadable(path, &format!("more than {MOST_ROWS} rows")));
        }
        let line = record.position().map_or(0, csv::Position::line);
        match columns.row(&record).map_err(|reason| unreadable(path, &format!("line {line}: {reason}")))? {
            Ok(row) => rows.push(row),
            Err(dtype) => {
                let device = record.get(columns.device).unwrap_or_default().trim().to_owned();
                *unknown.entry((device, dtype)).or_default() += 1;
            }
        }
    }
    Ok(Read { rows, unknown })
}

/// Where a file has what.
struct Columns {
    device: usize,
    framework: usize,
    version: Option<usize>,
    library: Option<usize>,
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
            library: find("kernel_source").ok(),
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
            library: self.library.map_or_else(String::new, |at| text(at).to_owned()),
            dtype: name,
            timing: Timing { kernel, time: Seconds::new(time) },
        }))
    }
}
