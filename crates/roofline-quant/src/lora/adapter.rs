//! A folder of PEFT's: what it says of itself, and which of its tensors belong together.

use std::{collections::BTreeMap, fs, path::Path, time::UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};

use super::Delta;
use crate::{
    Error, Result,
    checkpoint::{Shard, read_json},
    coding::Matrix,
    number,
    safetensors::Entry,
};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// Numbers for modules whose names end so; the first in the file counts.
type Patterns = serde_json::Map<String, Value>;

/// What `adapter_config.json` says; what would change the arithmetic and is not known here is looked for by name.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    peft_type: String,
    r: f64,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    rank_pattern: Option<Patterns>,
    #[serde(default)]
    alpha_pattern: Option<Patterns>,
    #[serde(flatten)]
    more: BTreeMap<String, Value>,
}

/// An adapter whose tensors have not been read.
pub(super) struct Adapter {
    pub(super) shard: Shard,
    config: Config,
    text: Value,
}

/// What an adapter has for a module.
pub(super) enum Part {
    /// Two factors.
    Factors(Factors),
    /// A tensor in place of the model's own: which, and what follows the module's name.
    Whole(usize, String),
}

/// The tensors of two factors.
pub(super) struct Factors {
    a: Entry,
    b: Entry,
    pub(super) rank: usize,
    /// Whether the weight is stored with its inputs as rows: Conv1D's and embeddings' are.
    transposed: bool,
}

/// What a tensor's name says: its module and which part of it.
enum Name<'a> {
    A(&'a str),
    B(&'a str),
    EmbeddingA(&'a str),
    EmbeddingB(&'a str),
    Whole(&'a str, &'a str),
    Unknown,
}

impl Adapter {
    /// Reads the configuration and the names of the tensors; refuses by name what would be merged differently.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let text: Value = read_json(&path, CONFIG)?;
        let config: Config = serde_json::from_value(text.clone())
            .map_err(|error| Error::malformed(&path, CONFIG, format!("it is none of LoRA's: {error}")))?;
        let weights = WEIGHTS.map(|name| folder.join(name)).into_iter().find(|path| path.exists());
        let weights = weights.ok_or_else(|| {
            Error::malformed(folder, "adapter", format!("it holds no {} and no {}", WEIGHTS[0], WEIGHTS[1]))
        })?;
        let adapter = Self { shard: Shard::open(&weights)?, config, text };
        match adapter.unknown() {
            None => Ok(adapter),
            Some(what) => Err(Error::unsupported(
                format!("the adapter in `{}` {what}, which is not merged here", folder.display()),
                "merge it with PEFT's `merge_and_unload`, and quantize the result",
            )),
        }
    }

    /// What the configuration asks for beyond the sum that is computed here.
    fn unknown(&self) -> Option<String> {
        // Weights by their norm, sums that depend on the input, parts of embeddings, layers twice, tensors of no module.
        const OTHERS: [&str; 9] = [
            "use_dora",
            "lora_bias",
            "use_qalora",
            "use_bdlora",
            "alora_invocation_tokens",
            "arrow_config",
            "trainable_token_indices",
            "layer_replication",
            "target_parameters",
        ];
        let Config { peft_type, more, .. } = &self.config;
        if !matches!(peft_type.as_str(), "LORA" | "") {
            return Some(format!("is of the kind {peft_type}"));
        }
        let set = |key: &str| match more.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Array(all)) => !all.is_empty(),
            Some(Value::Object(all)) => !all.is_empty(),
            Some(_) => true,
        };
        if let Some(key) = OTHERS.iter().find(|key| set(key)) {
            return Some(format!("has `{key}`"));
        }
        // These begin with another model than the one that is merged into.
        let start = more.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
        let moved = ["pissa", "olora", "corda", "loftq"].iter().any(|kind| start.to_lowercase().starts_with(kind));
        if moved {
            return Some(format!("was begun with `{start}`, which changes the model, too"));
        }
        let patterns = [&self.config.rank_pattern, &self.config.alpha_pattern];
        let literal = |key: &str| key.chars().all(|char| char.is_alphanumeric() || matches!(char, '_' | '.' | '-'));
        let mut patterns = patterns.into_iter().flatten().flatten();
        patterns
            .find(|(key, value)| !literal(key) || value.as_f64().is_none())
            .map(|(key, value)| format!("has the pattern `{key}: {value}`, an expression"))
    }

    /// The number that `B A` is multiplied with.
    pub(super) fn alpha(&self, module: &str, rank: usize) -> f64 {
        let alpha = pattern(self.config.alpha_pattern.as_ref(), module).unwrap_or(self.config.lora_alpha);
        let rank = rank as f64;
        if self.config.use_rslora { alpha / rank.sqrt() } else { alpha / rank }
    }

    /// Everything it has, by module.
    pub(super) fn parts(&self) -> Result<Vec<(String, Part)>> {
        let mut halves: BTreeMap<(&str, bool), [Option<&Entry>; 2]> = BTreeMap::new();
        let mut parts = Vec::new();
        for (at, entry) in self.shard.header.tensors.iter().enumerate() {
            let (module, embedding, half) = match named(&entry.name) {
                Name::A(module) => (module, false, 0),
                Name::B(module) => (module, false, 1),
                Name::EmbeddingA(module) => (module, true, 0),
                Name::EmbeddingB(module) => (module, true, 1),
                Name::Whole(module, rest) => {
                    parts.push((module.to_owned(), Part::Whole(at, rest.to_owned())));
                    continue;
                }
                Name::Unknown => {
                    return Err(self.refuse(entry, "is a part of an adapter of a kind that is not merged here"));
                }
            };
            let slot = &mut halves.entry((module, embedding)).or_default()[half];
            if slot.replace(entry).is_some() {
                return Err(self.refuse(entry, "is there twice under other names"));
            }
        }
        for ((module, embedding), pair) in halves {
            let (a, b) = match pair {
                [Some(a), Some(b)] => (a, b),
                [Some(one), None] | [None, Some(one)] => return Err(self.refuse(one, "has no other factor")),
                [None, None] => continue,
            };
            parts.push((module.to_owned(), Part::Factors(self.factors(module, a, b, embedding)?)));
        }
        Ok(parts)
    }

    fn factors(&self, module: &str, a: &Entry, b: &Entry, embedding: bool) -> Result<Factors> {
        let ([rank, _], [_, across]) = (&a.shape[..], &b.shape[..]) else {
            return Err(self.refuse(a, "is no matrix: adapters of convolutions are not merged here"));
        };
        if rank != across || *rank == 0 {
            return Err(self.refuse(b, &format!("has the rank {across}, and its other factor {rank}")));
        }
        let stated = pattern(self.config.rank_pattern.as_ref(), module).unwrap_or(self.config.r);
        if stated != *rank as f64 {
            return Err(self.refuse(a, &format!("has the rank {rank}, and {CONFIG} says {stated}")));
        }
        for entry in [a, b] {
            if !number::is_number(entry.dtype) {
                return Err(self.refuse(entry, &format!("is stored as {}, which is no number", entry.dtype)));
            }
        }
        let transposed = embedding || self.config.fan_in_fan_out;
        Ok(Factors { a: a.clone(), b: b.clone(), rank: *rank, transposed })
    }

    /// An error about a tensor.
    fn refuse(&self, entry: &Entry, reason: &str) -> Error {
        let name = format!("{} of {}", entry.name, self.shard.path.display());
        Error::Weight { name, reason: reason.to_owned(), hint: None }
    }

    /// An error about a module that the model does not have.
    pub(super) fn homeless(&self, module: &str, rest: &str) -> Error {
        Error::unsupported(
            format!(
                "the adapter `{}` changes `{module}{rest}`, which the checkpoint does not have",
                self.shard.path.display()
            ),
            "an adapter fits the model that it was trained on; `⟨roofline inspect⟩` lists what a checkpoint has",
        )
    }

    /// What makes it this adapter and no other.
    pub(super) fn identity(&self) -> Result<Value> {
        let path = &self.shard.path;
        let metadata = fs::metadata(path).map_err(Error::file("read", path))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = changed.map(|time| time.as_nanos().to_string());
        Ok(json!([path.to_string_lossy(), metadata.len(), changed, self.text]))
    }
}

impl Factors {
    /// Bytes it takes in memory.
    pub(super) fn bytes(&self) -> u64 {
        4 * (self.a.elements() + self.b.elements())
    }

    /// Reads both, as they multiply.
    pub(super) fn read(&self, adapter: &Adapter, factor: f32) -> Result<Delta> {
        let rank = self.rank;
        let (a, b) = (numbers(&adapter.shard, &self.a)?, numbers(&adapter.shard, &self.b)?);
        let (inputs, outputs) = (a.len() / rank, b.len() / rank);
        Ok(if self.transposed {
            let (up, down) = (transpose(&a, inputs), transpose(&b, rank));
            Delta { matrix: Matrix { rows: inputs, columns: outputs }, rank, factor, up, down }
        } else {
            Delta { matrix: Matrix { rows: outputs, columns: inputs }, rank, factor, up: b, down: a }
        })
    }
}

/// What a table of patterns has for a module.
fn pattern(patterns: Option<&Patterns>, module: &str) -> Option<f64> {
    let fits = |key: &str| module.strip_suffix(key).is_some_and(|start| start.is_empty() || start.ends_with('.'));
    patterns?.iter().find(|(key, _)| fits(key))?.1.as_f64()
}

/// All numbers of a tensor, which is known to be small.
fn numbers(shard: &Shard, entry: &Entry) -> Result<Vec<f32>> {
    let mut bytes = vec![0; entry.bytes() as usize];
    shard.read(entry, 0, &mut bytes)?;
    let mut out = vec![0.0; entry.elements() as usize];
    number::read(entry.dtype, &bytes, &mut out);
    Ok(out)
}

/// A matrix of so many columns with its rows as columns.
fn transpose(matrix: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| matrix.iter().skip(column).step_by(columns).copied()).collect()
}

/// The module and the part of it that a tensor's name speaks of: `base_model.model.M.lora_A.weight`, or with the name of
/// the adapter before `weight`.
fn named(name: &str) -> Name<'_> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    let Some((module, part)) = name.find(".lora_").map(|at| (&name[..at], &name[at + 1..])) else {
        let (module, last) = name.rsplit_once('.').unwrap_or(("", name));
        // Wrappers that were there in training.
        let module = match module.split_once(".modules_to_save") {
            Some((start, rest)) if rest.is_empty() || rest.starts_with('.') => start,
            _ => module.strip_suffix(".base_layer").unwrap_or(module),
        };
        return Name::Whole(module, &name[name.len() - last.len() - usize::from(!module.is_empty())..]);
    };
    let words: Vec<&str> = part.split('.').collect();
    match words[..] {
        ["lora_A", "weight"] | ["lora_A", _, "weight"] => Name::A(module),
        ["lora_B", "weight"] | ["lora_B", _, "weight"] => Name::B(module),
        ["lora_embedding_A"] | ["lora_embedding_A", _] => Name::EmbeddingA(module),
        ["lora_embedding_B"] | ["lora_embedding_B", _] => Name::EmbeddingB(module),
        _ => Name::Unknown,
    }
}
