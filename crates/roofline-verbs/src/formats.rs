//! Number formats: what each stores, loses and runs on.

use std::thread;

use clap::Args;
use roofline_core::{
    Dim, Format, Math, Registry,
    format::{CATALOGUE, Distribution, Entry, Shape, Sizes},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Error, Note, Result, request::list};

/// The formats that are asked about.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(
    after_help = "Examples:\n  roofline formats\n  roofline formats nvfp4 int4-g64-zp\n  roofline formats --json"
)]
#[serde(default)]
#[schemars(rename = "FormatsRequest")]
pub struct Request {
    /// Formats to explain; all when left out
    #[arg(value_name = "FORMAT")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub names: Vec<String>,
    /// Shape of the tensor that sizes are given for, as ROWSxCOLUMNS
    #[arg(long, default_value = SHAPE, value_name = "SHAPE")]
    pub shape: String,
}

impl Default for Request {
    fn default() -> Self {
        Self { names: Vec::new(), shape: SHAPE.to_owned() }
    }
}

/// The tensor that sizes are given for where nobody says.
const SHAPE: &str = "4096x4096";

/// Formats, each with its size for one shape.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FormatsAnswer")]
pub struct Answer {
    pub rows: u64,
    pub columns: u64,
    pub formats: Vec<FormatFacts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A format.
#[derive(Serialize, JsonSchema)]
pub struct FormatFacts {
    pub name: String,
    pub aliases: Vec<&'static str>,
    pub summary: Option<&'static str>,
    pub element_bits: u32,
    pub exponent_bits: Option<u32>,
    pub mantissa_bits: Option<u32>,
    pub block: Option<u64>,
    pub scale: &'static str,
    pub stored_bits: f64,
    pub stored_bytes: f64,
    pub overhead_pct: f64,
    pub size_of_fp16: f64,
    pub element_max: f64,
    pub range_max: Option<f64>,
    pub positive_levels: Option<usize>,
    /// Every value of an element of at most 8 bits, ascending, before its scale.
    pub codebook: Option<Vec<f32>>,
    /// The codes of such an element that are no number.
    pub special_codes: Vec<SpecialCode>,
    pub error_gaussian: f64,
    pub error_student_t5: f64,
    pub native_units: &'static [Math],
    pub native_devices: Vec<String>,
    pub runtimes: Vec<&'static str>,
    pub source: Option<&'static str>,
}

/// A code that stands for no number. JSON has none for it, so it is said in words.
#[derive(Serialize, JsonSchema)]
pub struct SpecialCode {
    pub code: u64,
    /// NaN, +infinity or -infinity.
    pub means: &'static str,
}

/// Everything that is known of the formats that were named, or of all.
pub fn formats(context: &Context, request: &Request) -> Result<Answer> {
    let (rows, columns) = sides(&request.shape)?;
    let asked: Vec<Format> = if request.names.is_empty() {
        CATALOGUE.iter().map(|entry| entry.name.parse()).collect::<Result<_, _>>()?
    } else {
        request.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?
    };
    let samples = Samples { gaussian: Distribution::Gaussian.sample(), student: Distribution::StudentT5.sample() };
    let formats = facts(&asked, Shape::matrix(rows, columns), &samples);
    Ok(Answer { rows: rows.get(), columns: columns.get(), formats, notes: context.notes() })
}

fn sides(text: &str) -> Result<(Dim, Dim)> {
    let sides = text.split_once(['x', 'X']).and_then(|(rows, columns)| rows.parse().ok().zip(columns.parse().ok()));
    sides.ok_or_else(|| {
        let hint = format!("write ROWSxCOLUMNS, for example {SHAPE}, each from 1 to {}", Dim::MAX);
        Error::request(format!("`{text}` is no shape"), hint)
    })
}

struct Samples {
    gaussian: Vec<f32>,
    student: Vec<f32>,
}

/// Each encodes and decodes a quarter of a million weights, so all cores share them, where there are several.
fn facts(formats: &[Format], shape: Shape, samples: &Samples) -> Vec<FormatFacts> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let each = formats.len().div_ceil(cores).max(1);
    let part =
        |part: &[Format]| part.iter().map(|format| FormatFacts::new(*format, shape, samples)).collect::<Vec<_>>();
    if cores == 1 {
        return part(formats);
    }
    thread::scope(|scope| {
        let part = &part;
        let parts: Vec<_> = formats.chunks(each).map(|formats| scope.spawn(move || part(formats))).collect();
        parts.into_iter().filter_map(|part| part.join().ok()).flatten().collect()
    })
}

impl FormatFacts {
    fn new(format: Format, shape: Shape, samples: &Samples) -> Self {
        let element = format.element();
        let entry: Option<&Entry> = CATALOGUE.iter().find(|entry| entry.name == format.to_string());
        let units = format.native_units().unwrap_or_default();
        let stored_bits = format.bits_per_element(shape, Sizes::Exact);
        let codebook = format.codebook();
        let largest = codebook.as_ref().and_then(|book| book.last().copied());
        let registry = Registry::builtin();
        let native = registry.devices().filter(|device| device.fastest(units).is_some() && device.takes(format));
        let special = |(code, means)| SpecialCode { code, means };
        Self {
            name: format.to_string(),
            aliases: format.aliases(),
            summary: entry.map(|entry| entry.summary),
            element_bits: element.bits(),
            exponent_bits: element.exponent_mantissa().map(|(exponent, _)| exponent),
            mantissa_bits: element.exponent_mantissa().map(|(_, mantissa)| mantissa),
            block: format.block(),
            scale: format.scale(),
            stored_bits,
            stored_bytes: format.bytes(shape, Sizes::Exact).value(),
            overhead_pct: 100.0 * (1.0 - f64::from(element.bits()) / stored_bits),
            size_of_fp16: stored_bits / 16.0,
            element_max: largest.map_or(element.max(), f64::from),
            range_max: format.range(),
            positive_levels: codebook.as_ref().map(|book| book.iter().filter(|value| **value > 0.0).count()),
            codebook,
            special_codes: element.special_codes().into_iter().map(special).collect(),
            error_gaussian: format.relative_error(&samples.gaussian),
            error_student_t5: format.relative_error(&samples.student),
            native_units: units,
            native_devices: native.map(|device| device.key.clone()).collect(),
            runtimes: entry.map_or_else(Vec::new, |entry| entry.runtimes.to_vec()),
            source: entry.map(|entry| entry.source),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    /// 16 elements of 4 bits share a scale of 8, and 1024 of them one of 32: 4.53125 bits each.
    #[test]
    fn a_format_in_json() {
        let request = from_json(json!({ "names": ["nvfp4", "fp8"], "shape": "16x64" })).unwrap();
        let answer = formats(&Context::pure(), &request).unwrap();
        answers_fit(&answer);
        assert_eq!((answer.rows, answer.columns, answer.formats[0].stored_bits), (16, 64, 4.53125));
        assert_eq!(answer.formats[1].special_codes.len(), 2);
        for wrong in [json!({ "names": "fp4" }), json!({ "shape": "7" }), json!({ "shape": "0x7" })] {
            assert!(formats(&Context::pure(), &from_json(wrong).unwrap()).is_err());
        }
    }
}
