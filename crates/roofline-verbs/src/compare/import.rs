//! Measurements made elsewhere: a CSV, or the JSON that benchmark scripts of this field print.

use std::path::Path;

use roofline_core::{
    Device, Graph, Plan,
    compare::Observation,
    device::key_of,
    units::{Bytes, Seconds},
};
use serde::Deserialize;

use crate::{Error, Result, context::files::read_points};

/// `{"benchmarks": [...]}`; a field that is not needed may be there.
#[derive(Deserialize)]
struct Benchmarks {
    /// The device that they were made on.
    hardware_key: Option<String>,
    benchmarks: Vec<Benchmark>,
}

#[derive(Deserialize)]
struct Benchmark {
    kernel_type: String,
    /// `[m, n, k]`, `[n, k]` of a matrix-vector product, or an object with those names.
    shape: Shape,
    precision: String,
    measured_time_us: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Shape {
    List(Vec<u64>),
    Named {
        #[serde(alias = "M")]
        m: Option<u64>,
        #[serde(alias = "N")]
        n: u64,
        #[serde(alias = "K")]
        k: u64,
    },
}

/// One product and how long it took.
struct Point {
    m: u64,
    n: u64,
    k: u64,
    precision: String,
    time_us: f64,
}

pub(super) fn read(path: &Path, device: &Device) -> Result<Vec<Observation>> {
    let text = read_points(path)?;
    let refuse = |reason: String| refused(&format!("{}: {reason}", path.display()));
    let points = if text.trim_start().starts_with(['{', '[']) { json(&text, device) } else { csv(&text) };
    let points = points.map_err(refuse)?;
    if points.is_empty() {
        return Err(refuse("no measurement".to_owned()));
    }
    points.into_iter().map(|point| observation(point, device)).collect()
}

/// The same from text in JSON.
pub(super) fn parse(text: &str, device: &Device) -> Result<Vec<Observation>> {
    let points = json(text, device).map_err(|reason| refused(&reason))?;
    if points.is_empty() {
        return Err(refused("no measurement"));
    }
    points.into_iter().map(|point| observation(point, device)).collect()
}

fn refused(reason: &str) -> Error {
    Error::request(reason, "a CSV with the columns m, n, k, precision, time_us, or JSON with a list `benchmarks`")
}

fn observation(point: Point, device: &Device) -> Result<Observation> {
    let Point { m, n, k, precision, time_us } = point;
    let node = Graph::gemm(m, n, k)?.nodes[0];
    let plan: Plan = precision.parse()?;
    Ok(Observation {
        site: node.site.to_owned(),
        phase: None,
        precision: plan.to_string(),
        op: node.op,
        formats: plan.layers(device)?,
        count: 1,
        time: Seconds::from_micros(time_us),
        samples: 1,
        range: None,
        residency: None,
        path: None,
        kernel: None,
        detour: Bytes::ZERO,
        warnings: Vec::new(),
    })
}

fn json(text: &str, device: &Device) -> std::result::Result<Vec<Point>, String> {
    let Benchmarks { hardware_key, benchmarks } = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map(|benchmarks| Benchmarks { hardware_key: None, benchmarks })
    } else {
        serde_json::from_str(text)
    }
    .map_err(|error| error.to_string())?;
    if let Some(key) = hardware_key.filter(|key| !names(key, device)) {
        return Err(format!("it was measured on `{key}`, ⟨on⟩ says `{}`", device.label()));
    }
    let point = |(at, benchmark): (usize, Benchmark)| {
        let wrong = |reason: String| format!("benchmark {}: {reason}", at + 1);
        let (m, n, k) = benchmark.sides().map_err(wrong)?;
        let time_us = positive(benchmark.measured_time_us).ok_or_else(|| wrong("no time".to_owned()))?;
        Ok(Point { m, n, k, precision: benchmark.precision, time_us })
    };
    benchmarks.into_iter().enumerate().map(point).collect()
}

/// Whether `device` answers to `key`; a power mode must be its own.
fn names(key: &str, device: &Device) -> bool {
    let (key, mode) = key.split_once('@').map_or((key, None), |(key, mode)| (key, Some(mode)));
    let own = |mode: &str| device.mode.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(mode));
    mode.is_none_or(own) && device.names().any(|name| name == key_of(key))
}

impl Benchmark {
    /// `m`, `n` and `k`, as the kernel has them.
    fn sides(&self) -> std::result::Result<(u64, u64, u64), String> {
        let (m, n, k) = match &self.shape {
            Shape::List(list) => match list[..] {
                [n, k] => (None, n, k),
                [m, n, k] => (Some(m), n, k),
                _ => return Err(format!("its shape has {} numbers", list.len())),
            },
            Shape::Named { m, n, k } => (*m, *n, *k),
        };
        match (self.kernel_type.to_ascii_lowercase().as_str(), m) {
            ("gemv", None | Some(1)) => Ok((1, n, k)),
            ("gemv", Some(m)) => Err(format!("a gemv has one row, not {m}")),
            ("gemm", Some(m)) => Ok((m, n, k)),
            ("gemm", None) => Err("a gemm has m, n and k".to_owned()),
            _ => Err(format!("`{}` is neither gemm nor gemv", self.kernel_type)),
        }
    }
}

fn csv(text: &str) -> std::result::Result<Vec<Point>, String> {
    let mut lines = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let header = lines.headers().map_err(|error| error.to_string())?;
    let names: Vec<String> = header.iter().map(str::to_lowercase).collect();
    if names.iter().all(String::is_empty) {
        return Err("no header".to_owned());
    }
    let find = |known: &[&str]| names.iter().position(|name| known.contains(&name.as_str()));
    let column = |known: &[&str]| find(known).ok_or_else(|| format!("no column `{}`", known[0]));
    let (m, n, k) = (find(&["m"]), column(&["n"])?, column(&["k"])?);
    let precision = column(&["precision", "dtype"])?;
    let time = column(&["time_us", "measured_time_us", "meas_time_us", "us", "latency_us"])?;
    let mut points = Vec::new();
    for cells in lines.records() {
        let cells = cells.map_err(|error| error.to_string())?;
        let line = cells.position().map_or(0, csv::Position::line);
        let cell = |column: usize| cells.get(column).unwrap_or_default();
        let wrong = |column: usize| format!("line {line}: `{}` is no {}", cell(column), names[column]);
        let whole = |column: usize| cell(column).parse::<u64>().map_err(|_| wrong(column));
        let time_us = cell(time).parse::<f64>().ok().and_then(positive).ok_or_else(|| wrong(time))?;
        let m = m.map_or(Ok(1), whole)?;
        points.push(Point { m, n: whole(n)?, k: whole(k)?, precision: cell(precision).to_owned(), time_us });
    }
    Ok(points)
}

fn positive(value: f64) -> Option<f64> {
    (1e-6..=1e12).contains(&value).then_some(value)
}

#[cfg(test)]
mod tests {
    use roofline_core::{Machine, Registry, compare::compare, machine::Stack, predict::Tier};

    use super::*;

    #[test]
    fn columns_in_any_order_and_by_several_names() {
        let points = csv("precision, K ,n,time_us\nbf16,4096,14336,56.4\n\nint8,4096,4096,9\n").unwrap();
        assert_eq!((points.len(), points[0].m, points[0].n, points[1].k), (2, 1, 14336, 4096));
        for (text, why) in [
            ("", "no header"),
            ("m,n,k,precision\n1,2,3,bf16", "no column `time_us`"),
            ("m,n,k,precision,time_us\n1,2,x,bf16,3", "line 2: `x` is no k"),
            ("m,n,k,precision,time_us\n1,2,3,bf16,-3", "line 2: `-3` is no time_us"),
            ("m,n,k,precision,time_us\n1,2,3,bf16", "line 2: `` is no time_us"),
        ] {
            assert!(csv(text).err().unwrap().contains(why), "{text}");
        }
    }

    #[test]
    fn a_header_may_be_quoted() {
        let points = csv("\"m\",\"n\",\"k\",\"precision\",\"us\"\n512,4096,4096,bf16,56.4\n").unwrap();
        assert_eq!((points[0].m, points[0].time_us), (512, 56.4));
    }

    /// What contradicts itself or the command is refused, not guessed at.
    #[test]
    fn benchmarks_say_what_they_are() {
        let device = Registry::builtin().find("gb10").unwrap().into_owned();
        let read = |key: &str, kind: &str, shape: &str| {
            let text = format!(
                "{{{key} \"benchmarks\":[{{\"kernel_type\":\"{kind}\",\"shape\":{shape},\"precision\":\"bf16\",\"measured_time_us\":9}}]}}"
            );
            json(&text, &device).map(|points| (points[0].m, points[0].n, points[0].k))
        };
        assert_eq!(read("", "gemv", "[8,16]"), Ok((1, 8, 16)));
        assert_eq!(read("", "GEMV", "[1,8,16]"), Ok((1, 8, 16)));
        assert_eq!(read("\"hardware_key\":\"GB10\",", "gemm", "{\"m\":4,\"n\":8,\"k\":16}"), Ok((4, 8, 16)));
        for (key, kind, shape, why) in [
            ("\"hardware_key\":\"h200\",", "gemm", "[4,8,16]", "it was measured on `h200`, ⟨on⟩ says `gb10`"),
            ("\"hardware_key\":\"gb10@1W\",", "gemm", "[4,8,16]", "measured on `gb10@1W`"),
            ("", "softmax", "[4,8,16]", "`softmax` is neither gemm nor gemv"),
            ("", "gemv", "[4,8,16]", "benchmark 1: a gemv has one row, not 4"),
            ("", "gemv", "{\"M\":4,\"N\":8,\"K\":16}", "a gemv has one row, not 4"),
            ("", "gemm", "[8,16]", "a gemm has m, n and k"),
            ("", "gemm", "{\"n\":8,\"k\":16}", "a gemm has m, n and k"),
            ("", "gemm", "[8]", "its shape has 1 numbers"),
        ] {
            let said = read(key, kind, shape).unwrap_err();
            assert!(said.contains(why), "{said} should say {why}");
        }
    }

    /// Ten timings of a GB10 that a benchmark script of the field printed (PyTorch, FP16 products without a tuned
    /// library): the ideal roofline finds the GEMVs limited by memory, FP8 near it, INT8 far off because it was cast, and
    /// the FP16 product ten times slower than the chip can do.
    #[test]
    fn somebody_elses_timings_of_a_gb10() {
        let vector = [("FP16", 203.4), ("BF16", 199.9), ("TF32", 277.9), ("FP8_E4M3", 34.8), ("INT8", 409.5)];
        let square = [("FP16", 14339.4), ("BF16", 14275.1), ("TF32", 3681.2), ("FP8_E4M3", 834.0), ("INT8", 2528.8)];
        let entry = |kind: &str, shape: &str, (precision, time): (&str, f64)| {
            format!(
                "{{\"kernel_type\":\"{kind}\",\"shape\":{shape},\"precision\":\"{precision}\",\"measured_time_us\":{time}}}"
            )
        };
        let all: Vec<String> = vector
            .map(|point| entry("gemv", "[4096,4096]", point))
            .into_iter()
            .chain(square.map(|point| entry("gemm", "{\"M\":4096,\"N\":4096,\"K\":4096}", point)))
            .collect();
        let text = format!("{{\"hardware_key\":\"gb10\",\"benchmarks\":[{}]}}", all.join(","));
        let device = Registry::builtin().find("gb10").unwrap().into_owned();
        let points = json(&text, &device).unwrap();
        let observations: Vec<Observation> =
            points.into_iter().map(|point| observation(point, &device)).collect::<Result<_, _>>().unwrap();
        let comparison = compare(&observations, &Machine::new(device.clone(), Stack::Roofline), Tier::Ideal).unwrap();
        let pair = |site: &str, precision: &str| {
            let is = |pair: &&roofline_core::compare::Pair| {
                pair.observation.site == site && pair.observation.precision == precision
            };
            comparison.pairs.iter().find(is).unwrap()
        };
        assert_eq!(comparison.totals.count, 10);
        // 33.6 MB at 273 GB/s is 123 us.
        assert!((0.55..0.65).contains(&pair("gemv", "fp16").efficiency()), "{}", pair("gemv", "fp16").efficiency());
        // Faster than the memory can deliver 16.8 MB: they fit the 24 MiB cache.
        assert_eq!(pair("gemv", "fp8").diagnoses[0].name(), "cache resident");
        assert!(pair("gemv", "int8").efficiency() < 0.2);
        assert!(pair("gemm", "fp16").efficiency() < 0.2);
        assert_eq!(comparison.totals.verdict.to_string(), "INVESTIGATE");
    }
}
