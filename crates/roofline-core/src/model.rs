//! A language model as dimensions: enough to count its parameters, lower it to kernels and size its memory.

mod anatomy;
pub mod arithmetic;
mod config;
mod dialect;
mod family;
mod lowering;
mod memory;
mod name;
mod parameters;
mod rows;
mod shortfall;

pub use anatomy::Anatomy;
pub use arithmetic::Arithmetic;
pub use lowering::{Lowering, Workload};
pub use memory::Footprint;
pub use rows::Rows;
pub use shortfall::Shortfall;

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, OnceLock},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Dim, Error, Result};
use config::Config;

/// A model of the registry, or of a `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Model {
    /// The name commands take.
    pub key: String,
    /// The name people know.
    pub name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Where the dimensions come from.
    pub source: Option<String>,
    /// The published parameter count.
    pub published: Option<Published>,
    /// `model_type` of the checkpoint.
    pub family: String,
    /// Width of the residual stream.
    pub hidden: Dim,
    /// Tokens of the vocabulary.
    pub vocabulary: Dim,
    /// Longest context it was made for.
    pub max_context: Option<Dim>,
    /// Position vectors that it learned, where it turns nothing (GPT-2, OPT).
    pub positions: Option<Dim>,
    /// Whether the LM head is the embedding.
    pub tied: bool,
    /// Whether the LM head has a bias.
    pub head_bias: bool,
    /// The norms of each layer.
    pub norms: Norms,
    /// Layers; those of equal shape are one entry with a count.
    pub layers: Vec<Layer>,
    /// What of it decides which layer a plan stores how.
    #[serde(skip)]
    pub anatomy: Arc<Anatomy>,
    /// Functions and constants, which only those who run it need.
    #[serde(skip)]
    pub arithmetic: Arc<Arithmetic>,
    /// How the checkpoint stores its quantized weights, where it ships quantized.
    pub stored: Option<Stored>,
}

/// A parameter count somebody published.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PublishedParameters")]
pub struct Published {
    /// All parameters.
    pub parameters: u64,
    /// Parameters that a token uses (mixtures of experts).
    pub active: Option<u64>,
    /// Who says so.
    pub source: String,
}

/// The `quant_method` of a checkpoint's `quantization_config`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(rename = "StoredMethod")]
pub struct Stored(pub String);

impl Stored {
    /// The named precision that comes closest to what the method stores.
    pub fn precision(&self) -> Option<&'static str> {
        Some(match self.0.as_str() {
            "mxfp4" => "mxfp4a16",
            "fp8" | "fbgemm_fp8" => "fp8",
            "awq" | "gptq" => "w4a16",
            "bitsandbytes" => "nf4",
            _ => return None,
        })
    }
}

/// How many norms a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "LayerNorms")]
pub struct Norms {
    /// Two as a rule; four in Gemma 2 and 3; one where attention and feed-forward run side by side.
    pub per_layer: u64,
    /// `LayerNorm` has a bias, `RMSNorm` none.
    pub bias: bool,
}

/// Layers of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ModelLayer")]
pub struct Layer {
    /// How many layers have this shape.
    pub count: u64,
    /// Attention.
    pub attention: AttentionLayer,
    /// Feed-forward.
    pub feed_forward: FeedForward,
}

/// The attention of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum AttentionLayer {
    /// Multi-head, grouped-query or multi-query.
    Grouped {
        /// Query heads.
        heads: Dim,
        /// Key and value heads.
        kv_heads: Dim,
        /// Features per head; times heads need not be the hidden size.
        head_dim: Dim,
        /// Features per head that are rotated.
        rotary_dim: Dim,
        /// Keys a query sees, in a sliding-window layer.
        window: Option<Dim>,
        /// Biases of the query, key and value projections.
        input_bias: bool,
        /// Bias of the output projection.
        output_bias: bool,
        /// Norms of queries and keys.
        query_key_norm: bool,
        /// A learned sink per head.
        sinks: bool,
    },
    /// Multi-head latent attention: keys and values of a token are one compressed vector (DeepSeek-V2, arXiv 2405.04434).
    Latent {
        /// Query heads.
        heads: Dim,
        /// Rank of the compressed queries, where they are compressed.
        query_rank: Option<Dim>,
        /// Rank of the compressed keys and values: what is cached, with the rotated part.
        rank: Dim,
        /// Unrotated features per query and key head.
        plain_dim: Dim,
        /// Rotated features, shared by all key heads.
        rotary_dim: Dim,
        /// Features per value head.
        value_dim: Dim,
    },
}

/// The feed-forward part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum FeedForward {
    /// One for all tokens.
    Dense {
        /// Inner width.
        inner: Dim,
        /// Whether it has a gate: three matrices, else two.
        gated: bool,
        /// Whether its products have biases.
        bias: bool,
    },
    /// A mixture of experts.
    Experts {
        /// Routed experts.
        experts: Dim,
        /// How many of them a token uses.
        active: Dim,
        /// Inner width of each.
        inner: Dim,
        /// Inner width of the shared experts together.
        shared: Option<Dim>,
        /// Whether it has a gate: three matrices, else two.
        gated: bool,
        /// Biases of the experts.
        bias: bool,
        /// Bias of the router.
        router_bias: bool,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    source: String,
    parameters: u64,
    parameters_source: String,
    active_parameters: Option<u64>,
    config: Config,
}

/// Longest file that is read at all: tokenizers' worth of `config.json` do not exist.
const MAX_LENGTH: usize = 1 << 20;

/// Key and text of every built-in model file, sorted by key.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/models.rs"));

/// Every built-in model. A file that does not parse is a defect of the build, and a test of the data.
static BUILTIN: LazyLock<Vec<Model>> =
    LazyLock::new(|| FILES.iter().filter_map(|(key, text)| Model::from_toml(text, key).ok()).collect());

/// Every name of a model, where they were all read.
static INDEX: OnceLock<HashMap<String, usize>> = OnceLock::new();

impl Model {
    /// All models that ship with the program.
    pub fn builtin() -> &'static [Model] {
        &BUILTIN
    }

    /// The model called `name`, in any case, with `_` or spaces for `-`; or the one that a checkpoint is of, by the name
    /// that people paste (`meta-llama/Llama-3.1-8B-Instruct`).
    pub fn find(name: &str) -> Result<Model> {
        Self::named(name).map(|(model, _)| model)
    }

    /// The same, and the ending of the name that said how the checkpoint stores its weights (`-GGUF`, `-AWQ`), which is not
    /// part of a model.
    pub fn named(name: &str) -> Result<(Model, Option<&'static str>)> {
        Self::by_any_spelling(name).ok_or_else(|| Self::unknown(name))
    }

    fn by_any_spelling(name: &str) -> Option<(Model, Option<&'static str>)> {
        let mut spellings = name::spellings(name).into_iter();
        spellings.find_map(|spelling| Some((Self::by_key(&spelling.key)?, spelling.stored)))
    }

    /// The model with exactly this key or alias.
    fn by_key(key: &str) -> Option<Model> {
        if let Some(index) = INDEX.get() {
            return index.get(key).map(|at| BUILTIN[*at].clone());
        }
        if let Ok(at) = FILES.binary_search_by(|(known, _)| (*known).cmp(key)) {
            return Self::from_toml(FILES[at].1, FILES[at].0).ok();
        }
        let candidates = FILES.iter().filter(|(_, text)| text.contains(&format!("\"{key}\"")));
        let models = candidates.filter_map(|(key, text)| Self::from_toml(text, key).ok());
        models.into_iter().find(|model| model.aliases.iter().any(|alias| key_of(alias) == key))
    }

    fn unknown(name: &str) -> Error {
        let known = BUILTIN.iter().flat_map(|model| model.aliases.iter().chain([&model.key]));
        let hint = "`⟨roofline models⟩` lists them; a `config.json`, or the folder it is in, describes any other";
        Error::unknown("model", name, known.map(String::as_str), hint)
    }

    /// Reads every model now: a process that answers many questions finds each in a table from then on.
    pub fn preload() {
        INDEX.get_or_init(|| {
            let mut index = HashMap::new();
            let places = || BUILTIN.iter().enumerate();
            index.extend(places().flat_map(|(at, model)| model.aliases.iter().map(move |alias| (key_of(alias), at))));
            index.extend(places().map(|(at, model)| (model.key.clone(), at)));
            index
        });
    }

    /// Reads a file of the registry.
    pub(crate) fn from_toml(text: &str, key: &str) -> Result<Model> {
        let refuse = |reason: String| Error::Model { key: key.to_owned(), reason };
        let file: File = toml::from_str(text).map_err(|error| refuse(error.message().to_owned()))?;
        let published =
            Published { parameters: file.parameters, active: file.active_parameters, source: file.parameters_source };
        let model = file.config.model(key)?;
        Ok(Model {
            key: key.to_owned(),
            name: file.name,
            aliases: file.aliases,
            source: Some(file.source),
            published: Some(published),
            ..model
        })
    }

    /// Reads a checkpoint's `config.json`; `name` is what to call it.
    pub fn from_config(text: &str, name: &str) -> Result<Model> {
        let refuse = |reason: String| Error::Model { key: name.to_owned(), reason };
        if text.len() > MAX_LENGTH {
            return Err(refuse(format!("{} bytes is too long for a config.json", text.len())));
        }
        let config: Config = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        let model = config.model(name)?;
        Ok(Model { key: key_of(name), name: name.to_owned(), ..model })
    }
}

/// `name` as a key: lower case, with hyphens.
fn key_of(name: &str) -> String {
    name.trim().to_lowercase().replace(['_', ' '], "-")
}

/// The text of every built-in model file, for tests of the data itself.
#[doc(hidden)]
pub fn files() -> &'static [(&'static str, &'static str)] {
    FILES
}
