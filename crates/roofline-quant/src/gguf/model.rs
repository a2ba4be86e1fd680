//! A model in llama.cpp's words: metadata, names, and the order of rows that it expects, from the files of a Hugging Face
//! checkpoint and the table of families. The values are those that llama.cpp's own converter writes.

mod metadata;
mod names;

pub use metadata::{QUANTIZATION_VERSION, size_label};
pub use names::{Names, Target};

use std::path::Path;

use roofline_core::{Role, model::Anatomy};
use serde_json::Value as Json;

use super::{
    family::Family,
    rope::Rope,
    tokenizer::{self, Files},
};
use crate::{Error, Result};

/// Wider heads than any model has; a list with a number for each row stays short.
const MOST_HEAD_DIM: usize = 1 << 16;
/// More heads than any model has.
const MOST: usize = 1 << 16;
/// Whether a tensor of that name and that many dimensions may be quantized; the others are f32.
pub fn is_matrix(name: &str, dimensions: usize) -> bool {
    let kept = ["_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"];
    dimensions > 1 && name.ends_with(".weight") && !kept.iter().any(|kept| name.ends_with(kept))
}

/// What a tensor is to llama.cpp's recipes of types, which go by its name.
pub fn recipe_role(name: &str) -> Role {
    const NAMES: [(&str, Role); 10] = [
        ("attn_qkv.weight", Role::Value),
        ("attn_kv_b.weight", Role::Value),
        ("attn_v.weight", Role::Value),
        ("attn_k.weight", Role::Key),
        ("attn_q.weight", Role::Query),
        ("attn_output.weight", Role::Output),
        ("ffn_gate_inp.", Role::Router),
        ("ffn_up", Role::Up),
        ("ffn_gate", Role::Gate),
        ("ffn_down", Role::Down),
    ];
    match name {
        "output.weight" => Role::Head,
        "token_embd.weight" => Role::Embedding,
        _ => NAMES.iter().find(|(part, _)| name.contains(part)).map_or(Role::Other, |(_, role)| *role),
    }
}

/// What of the numbers of a configuration the order of rows depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub head_dim: usize,
    /// Experts of a layer; none where there is one feed-forward for all.
    pub experts: usize,
    /// Numbers of a key that are not rotated and numbers of a value, where both are unfolded from less.
    pub latent: Option<(usize, usize)>,
}

/// A model to be written.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its family.
    pub family: &'static Family,
    /// Its heads and experts.
    pub shape: Shape,
    name: String,
    config: Json,
    names: Names,
    rotary: usize,
    rope: Rope,
    tokenizer: tokenizer::Tokenizer,
}

/// A configuration with that of the language model at its root, and what transformers takes where it is silent.
pub fn flat(config: &Json, family: &Family) -> Json {
    let mut flat = config.clone();
    let inner = config["text_config"].as_object().cloned().unwrap_or_default();
    let defaults = serde_json::from_str::<Json>(family.defaults).unwrap_or_default();
    if let Some(flat) = flat.as_object_mut() {
        flat.remove("text_config");
        flat.extend(inner);
        for (key, value) in defaults.as_object().into_iter().flatten() {
            if flat.get(key).is_none_or(Json::is_null) {
                flat.insert(key.clone(), value.clone());
            }
        }
        // Falcon's older names.
        for (old, new) in
            [("n_head", "num_attention_heads"), ("n_layer", "num_hidden_layers"), ("n_head_kv", "num_kv_heads")]
        {
            if let Some(value) = flat.get(old).filter(|_| !flat.contains_key(new)).cloned() {
                flat.insert(new.to_owned(), value);
            }
        }
    }
    flat
}

impl Model {
    /// The model of a `config.json` and the tokenizer's files. `output` is whether the checkpoint has a matrix for the output;
    /// without it the embeddings are used twice.
    pub fn new(name: &str, config: &Json, files: &Files<'_>, output: bool) -> Result<Self> {
        let wrong = |reason: String| Error::malformed(Path::new("config.json"), "config.json", reason);
        let family = Self::family(config)?;
        let whole_config = config;
        let config = flat(config, family);
        let granted = serde_json::from_str::<Json>(family.granted).unwrap_or_default();
        for (key, value) in granted.as_object().into_iter().flatten() {
            if !config[key].is_null() && config[key] != *value {
                return Err(Error::unsupported(
                    format!(
                        "config.json says `{key}` is {}, and llama.cpp's `{}` takes {value}",
                        config[key], family.arch
                    ),
                    "llama.cpp would compute something else; other layouts can be written",
                ));
            }
        }
        let whole = |key: &str| {
            config[key]
                .as_u64()
                .filter(|number| (1..=u64::from(u32::MAX)).contains(number))
                .ok_or_else(|| wrong(format!("it has no whole `{key}`")))
        };
        let names = Names::new(whole_config, output)?;
        let heads = whole("num_attention_heads")? as usize;
        let hidden = whole("hidden_size")? as usize;
        let given = |key: &str| if config[key].is_null() { Ok(None) } else { whole(key).map(|n| Some(n as usize)) };
        let kv_heads = if family.arch == "falcon" {
            let one = config["multi_query"].as_bool().unwrap_or(true);
            let grouped = config["new_decoder_architecture"].as_bool().unwrap_or(false);
            if grouped {
                given("num_kv_heads")?.unwrap_or(heads)
            } else if one {
                1
            } else {
                heads
            }
        } else if family.arch == "gptneox" {
            heads
        } else {
            given("num_key_value_heads")?.unwrap_or(heads)
        };
        let latent = match given("kv_lora_rank")? {
            Some(_) => Some((whole("qk_nope_head_dim")? as usize, whole("v_head_dim")? as usize)),
            None => None,
        };
        let head_dim = given("head_dim")?.unwrap_or(hidden / heads);
        let normed = ["rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"];
        if !normed.iter().any(|key| config[*key].is_f64() || config[*key].is_u64()) {
            return Err(wrong("it has no `rms_norm_eps`".to_owned()));
        }
        if !(2..=MOST_HEAD_DIM).contains(&head_dim) {
            return Err(wrong(format!("it has heads of {head_dim}")));
        }
        if let Some((key, value)) = latent.filter(|(key, value)| *key > MOST_HEAD_DIM || *value > MOST_HEAD_DIM) {
            return Err(wrong(format!("it has heads of {key} and {value}")));
        }
        if !head_dim.is_multiple_of(2) || !heads.is_multiple_of(kv_heads) {
            return Err(wrong(format!("it has {heads} heads of {head_dim} for {kv_heads} of keys")));
        }
        if heads > MOST {
            return Err(wrong(format!("it has {heads} heads")));
        }
        let rope = Rope::new(&config).map_err(|reason| wrong(format!("it {reason}")))?;
        Ok(Self {
            family,
            name: name.to_owned(),
            shape: Shape { heads, kv_heads, head_dim, experts: names.experts, latent },
            names,
            rotary: (rope.share().unwrap_or(1.0) * head_dim as f64) as usize,
            rope,
            tokenizer: tokenizer::Tokenizer::new(files, &config, family)?,
            config,
        })
    }

    /// The family that a configuration names.
    pub fn family(config: &Json) -> Result<&'static Family> {
        let class = config["architectures"][0].as_str().unwrap_or("none");
        Family::of_class(class).ok_or_else(|| {
            Error::unsupported(
                format!("the architecture `{class}` is not written as GGUF"),
                format!("{} are; llama.cpp's converter knows more", Family::names()),
            )
        })
    }

    /// What recipes of types go by. All layers are alike.
    pub fn anatomy(&self) -> Anatomy {
        Anatomy {
            order: vec![0; self.names.layers],
            columns: Vec::new(),
            hidden: self.config["hidden_size"].as_u64().unwrap_or(0),
            experts: self.shape.experts as u64,
            sharing: (self.shape.heads / self.shape.kv_heads) as u64,
            tied: self.names.tied,
            falcon: self.family.arch == "falcon",
        }
    }

    /// How many rows a tensor has by the configuration, if it is one of heads.
    pub fn rows(&self, target: &Target) -> Option<usize> {
        let Shape { heads, kv_heads, head_dim, latent, .. } = self.shape;
        let rest = target.name.split_once("attn_").map_or("", |(_, rest)| rest);
        let stem = rest.split('.').next().unwrap_or_default();
        match (stem, latent) {
            ("k_b" | "v_b", Some((key, value))) => Some(heads * (key + value)),
            ("q", None) => Some(heads * head_dim),
            ("k" | "v", None) => Some(kv_heads * head_dim),
            ("qkv", None) => Some((heads + 2 * kv_heads) * head_dim),
            _ => None,
        }
    }

    /// What could not be taken over exactly, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.tokenizer.notes.clone();
        if self.names.senses {
            notes.push(
                "only the language model is written: what sees or hears goes into a second file, `mmproj`, that llama.cpp's \
                 converter makes with `--mmproj`"
                    .to_owned(),
            );
        }
        notes
    }

    /// Tensors that no checkpoint has, f32: what frequencies are divided by in models that stretch their context.
    pub fn rope_factors(&self) -> Vec<(&'static str, Vec<f32>)> {
        self.rope.factors(self.rotary)
    }

    /// Where a tensor of the checkpoint goes; nowhere for what llama.cpp computes itself, has already, or wants elsewhere.
    pub fn tensor(&self, name: &str) -> Result<Vec<Target>> {
        self.names.tensor(name)
    }
}

/// Of groups of query heads with their key and their value, which head comes where if queries, keys and values are apart.
pub fn apart(heads: usize, kv_heads: usize) -> Vec<usize> {
    let queries = heads / kv_heads;
    let group = queries + 2;
    let queries = (0..heads).map(|head| head / queries * group + head % queries);
    let keys = (0..kv_heads).map(|head| head * group + group - 2);
    let values = (0..kv_heads).map(|head| head * group + group - 1);
    queries.chain(keys).chain(values).collect()
}

/// The way back from [`apart`].
pub fn joined(heads: usize, kv_heads: usize) -> Vec<usize> {
    let apart = apart(heads, kv_heads);
    let mut joined = vec![0; apart.len()];
    for (to, from) in apart.into_iter().enumerate() {
        // Heads that are no whole groups are a shape that is refused.
        if let Some(place) = joined.get_mut(from) {
            *place = to;
        }
    }
    joined
}

#[cfg(test)]
mod tests;
