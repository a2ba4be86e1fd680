//! Which precision to use: every plan predicted, ranked by a goal within limits.

mod explain;
mod model;
mod pareto;
#[cfg(feature = "files")]
mod recipe;
pub mod words;

pub use {
    model::{InMode, ModelAdvice},
    pareto::pareto,
};

use std::borrow::Cow;

use clap::{Args, Subcommand, ValueEnum};
use roofline_core::{
    Device, Dim, Machine, Plan,
    machine::Stack,
    predict::Tier,
    recommend::{Goal as CoreGoal, OperatorAdvice, OperatorNeed, RecommendationResult, recommend_operator},
    units::{Bytes, FileSize, Seconds},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    Context, Error, Note, Result, machine,
    request::{self, ModelName, PHASES, Phase, Rates, STACKS, TIERS, list, one_of},
};

/// What advice is asked on.
#[derive(Subcommand, Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "subject", rename_all = "lowercase")]
#[schemars(rename = "RecommendRequest")]
pub enum Request {
    /// A linear layer that decodes one token: n rows and k columns
    Gemv(Product),
    /// A linear layer over m tokens
    Gemm(Product),
    /// A whole model
    Model(Box<ModelWish>),
}

/// Where it runs.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Place {
    /// The device: a key, an alias, KEY@MODE for a power mode, a TOML file or `this`; left out, a chip of these rates
    #[arg(long, value_name = "DEVICE", help_heading = "Device")]
    pub on: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub rates: Rates,
    /// Which times are compared, the floor or the one to expect; left out, the latter, but of a chip that is only rates
    #[arg(long, value_parser = one_of::<Tier>(TIERS), help_heading = "Device")]
    pub tier: Option<Tier>,
    /// Whose kernels the expected tier speaks of
    #[arg(long, value_parser = one_of::<Stack>(STACKS), help_heading = "Device")]
    pub stack: Option<Stack>,
    /// Memory that may be used, such as 8GB; the device's when left out
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, help_heading = "Limits")]
    #[schemars(with = "Option<String>")]
    pub memory_limit: Option<Bytes>,
    /// Let plans compete that may raise the perplexity by more than 15 %, or by nobody knows how much, or that have fewer
    /// than 4 bits; the fastest wins then
    #[arg(long, help_heading = "Limits")]
    pub any_quality: bool,
}

/// A product.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = "\
Examples:
  roofline recommend gemv --n 4096 --k 4096 --on jetson_orin_nano
  roofline recommend gemm --m 2048 --n 4096 --k 4096 --on h100_sxm --json
  roofline recommend gemm --m 2048 --n 8192 --k 8192 --bandwidth 3TB/s --peak fp16=100TFLOP/s --peak fp8=2PFLOP/s")]
pub struct Product {
    /// Rows of the input: tokens in flight
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    #[serde(default = "request::one")]
    pub m: Dim,
    /// Outputs
    #[arg(long, allow_negative_numbers = true)]
    pub n: Dim,
    /// Inputs
    #[arg(long, allow_negative_numbers = true)]
    pub k: Dim,
    #[command(flatten)]
    #[serde(flatten)]
    pub place: Place,
}

/// A model, what it is for, and what must hold.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = MODEL_HELP)]
pub struct ModelWish {
    /// A name of `roofline models`, a `config.json`, or a folder with one
    #[arg(value_name = "MODEL")]
    pub model: ModelName,
    /// One pass alone: the prompt, or one more token
    #[arg(long, value_parser = one_of::<Phase>(PHASES))]
    pub phase: Option<Phase>,
    /// Tokens of the prompt in prefill, in the cache in decode
    #[arg(long, default_value = "4096", allow_negative_numbers = true)]
    #[serde(default = "request::context")]
    pub context: Dim,
    /// A whole request: tokens of its prompt
    #[arg(long, allow_negative_numbers = true)]
    pub prompt: Option<Dim>,
    /// A whole request: tokens to generate
    #[arg(long, allow_negative_numbers = true)]
    pub generate: Option<Dim>,
    /// Sequences side by side; the most of them for throughput and cost, which look for the best number. One, or as
    /// many as fit up to 256, when left out
    #[arg(long, allow_negative_numbers = true)]
    pub batch: Option<Dim>,
    /// Devices that share each layer (tensor parallel); left out, one, and 2, 4 or 8 for plans that one does not hold
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub tp: Option<Dim>,
    /// What matters most
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub goal: Goal,
    /// What an hour of one device costs in dollars
    #[arg(long, value_name = "DOLLARS", allow_negative_numbers = true)]
    pub price: Option<f64>,
    #[command(flatten)]
    #[serde(flatten)]
    pub limits: Limits,
    /// Walk through the reasons, step by step
    #[arg(long)]
    #[serde(default)]
    pub explain: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub place: Place,
}

const MODEL_HELP: &str = "\
Plans are predicted, not looked up: weights and activations of attention and of the feed-forward part or the
experts, and the cache, in every format that the device multiplies and some runtime loads, and llama.cpp's
recipes. What is chosen is a plan's text, which `predict --precision`, `quantize --plan` and `evaluate` take.

Examples:
  roofline recommend model llama-3-8b --on jetson_orin_nano --memory-limit 8GB --phase decode
  roofline recommend model llama-3.1-8b --on h100_sxm --prompt 512 --generate 256
  roofline recommend model llama-3.1-70b --on h200 --goal throughput --max-quality-loss 2%
  roofline recommend model qwen2.5-7b --on b200 --native-only --deny mxfp4
  roofline recommend model llama-3-8b --on jetson_orin_nano --goal energy        in the best power mode
  roofline recommend model llama-3.1-70b --on h100_sxm --tp 2 --goal throughput
  roofline recommend model llama-3.1-8b --on h100_sxm --goal cost --price 2.50
  roofline recommend model ./Llama-3.1-8B --on jetson_orin_nano --target-size 4.5GB
  roofline recommend model llama-3-8b --on h200 --explain --plot";

/// What must hold.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// The largest rise of the perplexity, such as 1%
    #[arg(long, value_name = "SHARE", help_heading = "Limits")]
    pub max_quality_loss: Option<Share>,
    /// The most that all weights may take, such as 5GB
    #[arg(long, value_name = "SIZE", conflicts_with = "target_bits", help_heading = "Limits")]
    pub target_size: Option<FileSize>,
    /// The same as bits for each weight, such as 4.3
    #[arg(long, value_name = "BITS", allow_negative_numbers = true, help_heading = "Limits")]
    pub target_bits: Option<f64>,
    /// The fewest tokens per second of a sequence
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, help_heading = "Limits")]
    pub min_tokens_per_s: Option<f64>,
    /// The longest time to the first token, such as 200ms
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    #[schemars(with = "Option<String>")]
    pub max_ttft: Option<Seconds>,
    /// Only weights that a unit multiplies as they are stored
    #[arg(long, help_heading = "Limits")]
    pub native_only: bool,
    /// Only these precisions, recipes, formats, or whole plans; rules follow their name (w4a16,kv=fp8-e4m3)
    #[arg(long, value_name = "PLAN", help_heading = "Limits")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub allow: Vec<String>,
    /// Never these precisions, recipes or formats
    #[arg(long, value_name = "PLAN", help_heading = "Limits")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub deny: Vec<String>,
    /// Only plans that these load: vllm, llama.cpp, transformers
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Limits")]
    #[serde(deserialize_with = "list::split")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub runtime: Vec<String>,
}

/// A share, written as `1%` or `0.01`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no share: write 1% or 0.01");
        let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
        let value: f64 = number.trim().parse().map_err(|_| wrong())?;
        if value.is_finite() && value >= 0.0 { Ok(Self(value / scale)) } else { Err(wrong()) }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Share {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Share".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "number", "minimum": 0 }, { "type": "string", "examples": ["1%"] }] })
    }
}

/// What matters most.
#[derive(Clone, Copy, Debug, Default, ValueEnum, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "RecommendGoal")]
pub enum Goal {
    #[default]
    Latency,
    Throughput,
    Memory,
    Energy,
    Cost,
}

impl From<Goal> for CoreGoal {
    fn from(goal: Goal) -> Self {
        match goal {
            Goal::Latency => Self::Latency,
            Goal::Throughput => Self::Throughput,
            Goal::Memory => Self::Memory,
            Goal::Energy => Self::Energy,
            Goal::Cost => Self::Cost,
        }
    }
}

/// What is told.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "RecommendAnswer")]
pub enum Answer {
    /// On one product.
    Product(Box<ProductAdvice>),
    /// On a model.
    Model(Box<ModelAdvice>),
}

/// Advice on one product.
#[derive(Serialize, JsonSchema)]
pub struct ProductAdvice {
    pub device: String,
    pub device_name: String,
    pub m: Dim,
    pub n: Dim,
    pub k: Dim,
    #[serde(flatten)]
    pub advice: OperatorAdvice,
    pub commands: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The plan to take, and why.
pub fn recommend(context: &Context, request: &Request) -> Result<Answer> {
    Ok(match request {
        Request::Gemv(asked) | Request::Gemm(asked) => Answer::Product(Box::new(product(context, asked)?)),
        Request::Model(asked) => Answer::Model(Box::new(model::advise(context, asked)?)),
    })
}

/// The advice on a product in short.
pub fn short(context: &Context, asked: &Product) -> Result<RecommendationResult> {
    Ok(product(context, asked)?.advice.recommendation)
}

fn product(context: &Context, asked: &Product) -> Result<ProductAdvice> {
    let Machined { machine, tier } = Machined::of(context, &asked.place)?;
    let Product { m, n, k, .. } = *asked;
    let (memory, any_quality) = (asked.place.memory_limit, asked.place.any_quality);
    let need = OperatorNeed { machine: &machine, tier, memory, any_quality };
    let advice = recommend_operator((m.get(), n.get(), k.get()), &need)?;
    let (commands, device) = (checkpoint(&advice.plan), machine.device);
    let (device, device_name) = (device.label(), device.name);
    Ok(ProductAdvice { device, device_name, m, n, k, advice, commands, notes: context.notes() })
}

/// What makes a checkpoint of a plan, where this build knows checkpoints.
#[cfg(feature = "files")]
fn checkpoint(plan: &Plan) -> Vec<String> {
    recipe::checkpoint(plan, "./CHECKPOINT")
}

#[cfg(not(feature = "files"))]
fn checkpoint(_: &Plan) -> Vec<String> {
    Vec::new()
}

/// The machine of a question, and which of its times is spoken of.
struct Machined {
    machine: Machine,
    tier: Tier,
}

impl Machined {
    fn of(context: &Context, place: &Place) -> Result<Self> {
        let names: Vec<String> = place.on.iter().cloned().collect();
        let device = machine::devices(context, &names, &place.rates)?.pop();
        let device = device.ok_or_else(|| Error::request("no device was named", "name one: `⟨on h200⟩`"))?;
        Ok(Self::on(context, place, device))
    }

    /// The same question on another device: a power mode of the one that was named.
    fn on(context: &Context, place: &Place, device: Device) -> Self {
        let tier = machine::spoken(place.tier, &device);
        Self { machine: machine::usual(context, device, place.stack), tier }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request::{answers_fit, from_json};

    fn asked(body: Value) -> Result<Answer> {
        recommend(&Context::pure(), &from_json(body)?)
    }

    #[test]
    fn shares() {
        assert_eq!("1%".parse(), Ok(Share(0.01)));
        assert_eq!("0.5".parse(), Ok(Share(0.5)));
        assert!(["-1%", "one", "nan"].iter().all(|wrong| wrong.parse::<Share>().is_err()));
        assert_eq!(serde_json::from_str::<Share>("0.5").unwrap(), serde_json::from_str("\"50%\"").unwrap());
    }

    #[test]
    fn a_product_in_json() {
        let answer = asked(json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": "jetson_orin_nano" })).unwrap();
        answers_fit(&answer);
        let Answer::Product(advice) = answer else { panic!("no product") };
        assert!(!advice.advice.ranked.is_empty() && (advice.m.get(), advice.n.get()) == (1, 4096));
    }

    /// Everything that an answer may have: power modes, an explanation, what is published.
    #[test]
    fn a_model_in_json() {
        let body = json!({ "subject": "model", "model": "llama-3-8b", "on": "jetson_orin_nano", "goal": "energy",
            "context": 2048, "explain": true, "max_quality_loss": "5%", "deny": "mxfp4" });
        let answer = asked(body).unwrap();
        answers_fit(&answer);
        let Answer::Model(advice) = answer else { panic!("no model") };
        assert!(advice.modes.len() > 1 && advice.power_mode.is_some() && advice.explanation.is_some());
        assert!(advice.recommendation.choice().unwrap().loss().unwrap() <= 0.05);
    }

    /// What clap once refused.
    #[test]
    fn questions_that_contradict_themselves() {
        let refused = |more: Value| {
            let mut body = json!({ "subject": "model", "model": "llama-3-8b", "on": "h200" });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            asked(body).err().unwrap().to_string()
        };
        assert!(refused(json!({ "prompt": 1 })).contains("a prompt and an answer"));
        assert!(refused(json!({ "generate": 1 })).contains("a prompt and an answer"));
        assert!(refused(json!({ "phase": "decode", "prompt": 1, "generate": 1 })).contains("two questions"));
        assert!(refused(json!({ "goal": "cost" })).contains("what an hour costs"));
        assert!(asked(json!({ "subject": "gemv", "n": 1, "k": 1 })).is_err(), "nowhere");
    }
}
