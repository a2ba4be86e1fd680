//! How a matrix product cuts into tiles on a device.

use clap::Args;
use roofline_core::{
    Dim, Format,
    op::Linear,
    tiling::{Machine, Thin, Tile, Tiling},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Error, Note, Result};

/// A product, a device, and perhaps a tile.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = "Example:\n  roofline tiling --m 4096 --n 4096 --k 4096 --on h200 --format bf16")]
#[schemars(rename = "TilingRequest")]
pub struct Request {
    /// Rows of the output
    #[arg(long, allow_negative_numbers = true)]
    pub m: Dim,
    /// Columns of the output
    #[arg(long, allow_negative_numbers = true)]
    pub n: Dim,
    /// The dimension that is summed over
    #[arg(long, allow_negative_numbers = true)]
    pub k: Dim,
    /// The device
    #[arg(long, value_name = "DEVICE")]
    pub on: String,
    /// Format of the operands
    #[arg(long, default_value = "fp16")]
    #[serde(default = "format")]
    pub format: String,
    /// One tile, as MxNxK, instead of the standard ones
    #[arg(long, value_name = "TILE")]
    pub tile: Option<String>,
}

fn format() -> String {
    "fp16".to_owned()
}

/// The standard tiles, best first.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "TilingAnswer")]
pub struct Answer {
    pub device: String,
    pub machine: Machine,
    pub m: Dim,
    pub n: Dim,
    pub k: Dim,
    pub format: Format,
    pub tilings: Vec<Tiling>,
    /// How the rows of the weight are split, where the product has fewer rows than any tile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gemv: Option<Thin>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// How evenly the work falls.
pub fn tiling(context: &Context, request: &Request) -> Result<Answer> {
    let Request { m, n, k, .. } = *request;
    let device = context.device(&request.on)?;
    let (machine, format, product) = (Machine::of(&device)?, request.format.parse::<Format>()?, Linear { m, n, k });
    let (tilings, gemv) = match &request.tile {
        Some(text) => (vec![Tiling::of(product, tile(text)?, format, machine)], None),
        None if Thin::applies(product) => (Vec::new(), Some(Thin::of(product, format, &device)?)),
        None => (Tiling::sweep(product, format, machine)?, None),
    };
    Ok(Answer { device: device.label(), machine, m, n, k, format, tilings, gemv, notes: context.notes() })
}

fn tile(text: &str) -> Result<Tile> {
    let sides: Vec<u64> = text.split(['x', 'X']).filter_map(|side| side.parse::<Dim>().ok()).map(Dim::get).collect();
    match sides[..] {
        [m, n, k] if text.split(['x', 'X']).count() == 3 && sides.iter().all(|side| *side <= 1 << 20) => {
            Ok(Tile { m, n, k })
        }
        _ => Err(Error::request(format!("`{text}` is no tile"), "write MxNxK, for example 128x128x32")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::request::{answers_fit, from_json};

    fn asked(body: Value) -> Result<Answer> {
        tiling(&Context::pure(), &from_json(body)?)
    }

    /// 2048 x 4096 in tiles of 128 x 128 are 512 of them.
    #[test]
    fn tiles_in_json() {
        let answer = asked(json!({ "m": 2048, "n": 4096, "k": 4096, "on": "h200", "tile": "128x128x32" })).unwrap();
        answers_fit(&answer);
        assert_eq!((answer.tilings.len(), answer.tilings[0].tiles), (1, 512));
        let thin = asked(json!({ "m": 1, "n": 4096, "k": 4096, "on": "h200", "format": "bf16" })).unwrap();
        answers_fit(&thin);
        assert!(thin.tilings.is_empty() && thin.gemv.is_some());
        let long = asked(json!({ "m": 2048, "n": 4096, "k": 4096, "on": "h200", "tile": "1x1x2000000" }));
        assert!(long.err().unwrap().to_string().contains("2000000"));
    }
}
