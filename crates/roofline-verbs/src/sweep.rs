//! How fast it would run over ranges of batch, context, precision and device; or over shapes of products.

mod models;
mod shapes;

pub use shapes::{BestOfShape, Doubt, QUICK, SHAPES, ShapePoint, ShapeSweep};
pub use {
    crate::passes::ModelPoint,
    models::{ModelSweep, Sweep},
};

use std::{fmt, str::FromStr};

use clap::Args;
use roofline_core::Dim;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

#[cfg(feature = "hardware")]
use crate::request::Measuring;
use crate::{
    Context, Error, Result,
    request::{Lower, ModelName, PHASES, Phase, Range, Setting, list, one_of},
};

/// Models over ranges, or products of many shapes.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "SweepRequest")]
pub struct Request {
    /// Models: names, `config.json` files or folders; shapes of products when left out
    #[arg(value_name = "MODEL")]
    #[serde(default, deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<ModelName>")]
    pub models: Vec<ModelName>,
    /// Shapes of products, as MxNxK
    #[arg(long, value_name = "SHAPE", value_delimiter = ',')]
    #[serde(default, deserialize_with = "list::split")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub shapes: Vec<Shape>,
    /// Measure the shapes, too
    #[cfg(feature = "hardware")]
    #[arg(long)]
    #[serde(default)]
    pub measure: bool,
    /// Which pass; both when left out
    #[arg(long, value_parser = one_of::<Phase>(PHASES))]
    pub phase: Option<Phase>,
    /// Sequences side by side
    #[arg(long, value_name = "RANGE", default_value = "1")]
    #[serde(default = "one")]
    pub batch: Range,
    /// Tokens of the prompt, or in the cache
    #[arg(long, value_name = "RANGE", default_value = "4096")]
    #[serde(default = "context")]
    pub context: Range,
    /// Factors on the memory bandwidth of each device: what a chip with more of it would do
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "1")]
    #[serde(default = "unscaled", deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<f64>")]
    pub scale_bandwidth: Vec<f64>,
    /// Factors on all its peaks
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "1")]
    #[serde(default = "unscaled", deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<f64>")]
    pub scale_compute: Vec<f64>,
    #[command(flatten)]
    #[serde(flatten)]
    pub lowering: Lower,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
    #[cfg(feature = "hardware")]
    #[command(flatten)]
    #[serde(flatten)]
    pub run: Measuring,
}

const HELP: &str = "\
Ranges are lists (1,2,8), doublings (1..512) or steps (512..4096+512). Text is a table, --csv and --json
are streamed row by row (--json as JSON lines).

Without a model it is a sweep over shapes of products, ten standard ones or those of --shapes, predicted and, with
--measure, measured.

Examples:
  roofline sweep --on h200
  roofline sweep --measure --precision fp32,bf16,w4a16 --out sweep.jsonl
  roofline sweep llama-3-8b --on h200 --phase decode --batch 1..256 --context 512..131072 --csv
  roofline sweep llama-3.1-70b --on h200,b200,mi300x --precision bf16,fp8,w4a16 --tp 1,2,4,8
  roofline sweep llama-3-8b --on h200 --scale-bandwidth 0.5,1,2 --scale-compute 0.5,1,2";

fn one() -> Range {
    Range::one(1)
}

fn context() -> Range {
    Range::one(crate::request::CONTEXT)
}

fn unscaled() -> Vec<f64> {
    vec![1.0]
}

/// The shape of a product, written as MxNxK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub m: u64,
    pub n: u64,
    pub k: u64,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split(['x', 'X']).map(|side| side.parse::<Dim>().map(Dim::get));
        let sides: Vec<u64> = sides.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        match sides[..] {
            [m, n, k] => Ok(Self { m, n, k }),
            _ => Err("write MxNxK, for example 16x4096x4096".to_owned()),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.m, self.n, self.k)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Every point.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "SweepAnswer")]
pub enum Answer {
    /// Of models.
    Models(Box<ModelSweep>),
    /// Of products.
    Shapes(Box<ShapeSweep>),
}

/// Every point at once; [`Sweep`] hands them out one by one.
pub fn sweep(context: &Context, request: &Request) -> Result<Answer> {
    Ok(if request.models.is_empty() {
        Answer::Shapes(Box::new(shapes::sweep(context, request)?))
    } else {
        Answer::Models(Box::new(Sweep::new(context, request)?.all(context)?))
    })
}

impl Request {
    /// What belongs to products is not asked of models, and factors are those that a chip could have.
    fn check(&self) -> Result<()> {
        let of_products = !self.shapes.is_empty() || self.measures();
        if !self.models.is_empty() && of_products {
            let hint = "leave out the model, or leave out ⟨shapes⟩ and ⟨measure⟩";
            return Err(Error::request("shapes of products and models are two sweeps", hint));
        }
        let factors = 1e-3..=1e3;
        match self.scale_bandwidth.iter().chain(&self.scale_compute).find(|factor| !factors.contains(*factor)) {
            Some(factor) => Err(Error::request(format!("a factor of {factor}"), "a factor is between 0.001 and 1000")),
            None => Ok(()),
        }
    }

    #[cfg(feature = "hardware")]
    fn measures(&self) -> bool {
        self.measure
    }

    #[cfg(feature = "hardware")]
    fn quick(&self) -> bool {
        self.run.quick
    }

    #[cfg(not(feature = "hardware"))]
    #[expect(clippy::unused_self, reason = "the same question of a build that cannot measure")]
    fn measures(&self) -> bool {
        false
    }

    #[cfg(not(feature = "hardware"))]
    #[expect(clippy::unused_self, reason = "the same question of a build that cannot measure")]
    fn quick(&self) -> bool {
        false
    }

    /// Refuses what would fill the memory of a machine that the caller does not sit at.
    #[cfg(feature = "hardware")]
    pub fn refuse_giants(&self) -> Result<()> {
        use roofline_core::Graph;
        let refuse = |Shape { m, n, k }: &Shape| crate::subjects::refuse_giants(&Graph::gemm(*m, *n, *k)?);
        self.shapes.iter().try_for_each(refuse)
    }
}
