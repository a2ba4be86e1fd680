//! Models of the llama family for llama.cpp: metadata, names, and the order of rows that it expects, from the files of a
//! Hugging Face checkpoint. The values are those that llama.cpp's own converter writes.

use std::path::Path;

use roofline_core::{Role, model::Anatomy};
use serde_json::Value as Json;

use super::{
    Value,
    rope::Rope,
    tokenizer::{self, Files},
};
use crate::{Error, Result};

/// The version of ggml's block layouts that a quantized file declares.
const QUANTIZATION_VERSION: u32 = 2;
/// More layers than any model has; a loop over them stays short.
const MOST_LAYERS: u64 = 10_000;
/// Wider heads than any model has; a list with a number for each row stays short.
const MOST_HEAD_DIM: usize = 1 << 16;

/// A family of models, as llama.cpp names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// Whether a tensor of that role may be quantized; the others are f32.
pub fn is_matrix(role: Role) -> bool {
    !matches!(role, Role::Router | Role::Vector)
}

/// Where a tensor of the checkpoint goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name in the GGUF file. An NVFP4's scale is called the same with `.scale` for `.weight`.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// In which layer.
    pub layer: Option<usize>,
    /// How many heads its rows are split into, where they have to be reordered by
    /// [`Order::Interleaved`](crate::job::Order::Interleaved).
    pub heads: Option<usize>,
    /// Which of the experts it is, where those are stacked into one tensor of a third dimension.
    pub expert: Option<usize>,
}

/// A model to be written.
#[derive(Clone, Debug)]
pub struct Model {
    family: Family,
    name: String,
    config: Json,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    experts: usize,
    tied: bool,
    rope: Rope,
    tokenizer: tokenizer::Tokenizer,
}

impl Model {
    /// The model of a `config.json` and the tokenizer's files. `output` is whether the checkpoint has `lm_head.weight`;
    /// without it the embeddings are used twice.
    pub fn new(name: &str, config: &Json, files: &Files<'_>, output: bool) -> Result<Self> {
        let wrong = |reason: String| Error::malformed(Path::new("config.json"), "config.json", reason);
        let architecture = config["architectures"][0].as_str().unwrap_or("none");
        let family = match architecture {
            "LlamaForCausalLM" | "MistralForCausalLM" | "MixtralForCausalLM" => Family::Llama,
            "Qwen2ForCausalLM" => Family::Qwen2,
            "Qwen3ForCausalLM" => Family::Qwen3,
            other => {
                return Err(Error::unsupported(
                    format!("the architecture `{other}` is not written as GGUF"),
                    "Llama, Mistral, Mixtral, Qwen2 and Qwen3 are; llama.cpp's converter knows more",
                ));
            }
        };
        let whole = |key: &str| {
            config[key]
                .as_u64()
                .filter(|number| (1..=u64::from(u32::MAX)).contains(number))
                .ok_or_else(|| wrong(format!("it has no whole `{key}`")))
        };
        let (layers, heads) = (whole("num_hidden_layers")?, whole("num_attention_heads")? as usize);
        if layers > MOST_LAYERS {
            return Err(wrong(format!("it has {layers} layers")));
        }
        let hidden = whole("hidden_size")? as usize;
        let given = |key: &str| if config[key].is_null() { Ok(None) } else { whole(key).map(|n| Some(n as usize)) };
        let kv_heads = given("num_key_value_heads")?.unwrap_or(heads);
        // Qwen3's heads are of 128 where nothing else is said, whatever the width.
        let usual = if family == Family::Qwen3 { 128 } else { hidden / heads };
        let head_dim = given("head_dim")?.unwrap_or(usual);
        if config["rms_norm_eps"].as_f64().is_none() {
            return Err(wrong("it has no `rms_norm_eps`".to_owned()));
        }
        if !(2..=MOST_HEAD_DIM).contains(&head_dim) {
            return Err(wrong(format!("it has heads of {head_dim}")));
        }
        if !head_dim.is_multiple_of(2) || !heads.is_multiple_of(kv_heads) {
            return Err(wrong(format!("it has {heads} heads of {head_dim} for {kv_heads} of keys")));
        }
        Ok(Self {
            family,
            name: name.to_owned(),
            config: config.clone(),
            layers: layers as usize,
            heads,
            kv_heads,
            head_dim,
            experts: given("num_local_experts")?.unwrap_or(0),
            tied: !output || config["tie_word_embeddings"].as_bool().unwrap_or(false),
            rope: Rope::new(config).map_err(|reason| wrong(format!("it {reason}")))?,
            tokenizer: tokenizer::Tokenizer::new(files, config, family == Family::Llama)?,
        })
    }

    /// What recipes of types go by. All layers are alike.
    pub fn anatomy(&self) -> Anatomy {
        Anatomy {
            order: vec![0; self.layers],
            columns: Vec::new(),
            hidden: self.config["hidden_size"].as_u64().unwrap_or(0),
            experts: self.experts as u64,
            sharing: (self.heads / self.kv_heads) as u64,
            tied: self.tied,
        }
    }

    /// How many rows a tensor has by the configuration, if it is one of heads.
    pub fn rows(&self, target: &Target) -> Option<usize> {
        let heads = match target.role {
            Role::Query => Some(self.heads),
            Role::Key | Role::Value => Some(self.kv_heads),
            _ => target.heads,
        };
        heads.map(|heads| heads * self.head_dim)
    }

    /// How many experts a layer has; none where there is one feed-forward for all.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// What could not be taken over exactly, in sentences.
    pub fn notes(&self) -> &[String] {
        &self.tokenizer.notes
    }

    /// A tensor that no checkpoint has: `rope_freqs.weight`, f32, for models that stretch their context as Llama 3.1.
    pub fn rope_factors(&self) -> Option<(&'static str, Vec<f32>)> {
        self.rope.factors(self.head_dim).map(|factors| ("rope_freqs.weight", factors))
    }

    /// All the keys, in the order of llama.cpp's converter. `file_type` is its number for most of the types, `size` a word for
    /// the number of weights, [`size_label`].
    pub fn metadata(&self, file_type: u32, size: &str) -> Vec<(String, Value)> {
        let family = self.family.name();
        let mut keys: Vec<(String, Value)> = vec![
            ("general.architecture".to_owned(), family.into()),
            ("general.type".to_owned(), "model".into()),
            ("general.name".to_owned(), self.name.as_str().into()),
            ("general.size_label".to_owned(), size.into()),
        ];
        let number = |key: &str| self.config[key].as_u64().map(|number| Value::U32(number as u32));
        let real = |key: &str| self.config[key].as_f64().map(|number| Value::F32(number as f32));
        let mut own = vec![
            ("block_count", Some(Value::U32(self.layers as u32))),
            ("context_length", number("max_position_embeddings")),
            ("embedding_length", number("hidden_size")),
            ("feed_forward_length", number("intermediate_size")),
            ("attention.head_count", number("num_attention_heads")),
            ("attention.head_count_kv", Some(Value::U32(self.kv_heads as u32))),
        ];
        let rope = self.rope.metadata();
        own.extend(rope.iter().map(|(key, value)| (key.as_str(), Some(value.clone()))));
        own.extend([
            ("attention.layer_norm_rms_epsilon", real("rms_norm_eps")),
            ("expert_count", number("num_local_experts")),
            ("expert_used_count", number("num_experts_per_tok")),
        ]);
        // The configurations of these have it even where their file does not.
        if self.config["head_dim"].is_u64() || (self.family != Family::Qwen2 && self.experts == 0) {
            let size = Value::U32(self.head_dim as u32);
            own.extend([("attention.key_length", Some(size.clone())), ("attention.value_length", Some(size))]);
        }
        let prefixed = |(key, value): (&str, Option<Value>)| value.map(|value| (format!("{family}.{key}"), value));
        keys.extend(own.into_iter().filter_map(prefixed));
        keys.push(("general.file_type".to_owned(), Value::U32(file_type)));
        if self.family == Family::Llama {
            let vocabulary = ("vocab_size", Some(Value::U32(self.tokenizer.tokens() as u32)));
            let turned = ("rope.dimension_count", Some(Value::U32(self.head_dim as u32)));
            keys.extend([vocabulary, turned].into_iter().filter_map(prefixed));
        }
        keys.push(("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION)));
        keys.extend(self.tokenizer.metadata().iter().cloned());
        keys
    }

    /// Where a tensor of the checkpoint goes; nothing for what llama.cpp computes itself, or has already.
    pub fn tensor(&self, name: &str) -> Result<Option<Target>> {
        let unknown = || Error::Weight {
            name: name.to_owned(),
            reason: format!("is not known in a model of the family {}", self.family.name()),
            hint: None,
        };
        let whole = |name: &str, role| Target { name: name.to_owned(), role, layer: None, heads: None, expert: None };
        match name {
            "model.embed_tokens.weight" => return Ok(Some(whole("token_embd.weight", Role::Embedding))),
            "model.norm.weight" => return Ok(Some(whole("output_norm.weight", Role::Vector))),
            "lm_head.weight" if self.tied => return Ok(None),
            "lm_head.weight" => return Ok(Some(whole("output.weight", Role::Head))),
            _ if name.ends_with(".rotary_emb.inv_freq") => return Ok(None),
            _ => {}
        }
        let (layer, rest) = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'))
            .and_then(|(layer, rest)| Some((layer.parse::<usize>().ok().filter(|at| *at < self.layers)?, rest)))
            .ok_or_else(unknown)?;
        let (stem, kind) = rest.rsplit_once('.').ok_or_else(unknown)?;
        let (stem, role, expert) = self.stem(stem).ok_or_else(unknown)?;
        let role = match kind {
            "weight" => role,
            "bias" if is_matrix(role) && expert.is_none() => Role::Vector,
            _ => return Err(unknown()),
        };
        let heads = match (self.family, stem) {
            (Family::Llama, "attn_q") => Some(self.heads),
            (Family::Llama, "attn_k") => Some(self.kv_heads),
            _ => None,
        };
        Ok(Some(Target { name: format!("blk.{layer}.{stem}.{kind}"), role, layer: Some(layer), heads, expert }))
    }

    /// llama.cpp's name for a part of a layer, what it does, and which expert it is.
    fn stem(&self, stem: &str) -> Option<(&'static str, Role, Option<usize>)> {
        let (stem, role) = match stem {
            "input_layernorm" => ("attn_norm", Role::Vector),
            "post_attention_layernorm" => ("ffn_norm", Role::Vector),
            "self_attn.q_proj" => ("attn_q", Role::Query),
            "self_attn.k_proj" => ("attn_k", Role::Key),
            "self_attn.v_proj" => ("attn_v", Role::Value),
            "self_attn.o_proj" => ("attn_output", Role::Output),
            "self_attn.q_norm" if self.family == Family::Qwen3 => ("attn_q_norm", Role::Vector),
            "self_attn.k_norm" if self.family == Family::Qwen3 => ("attn_k_norm", Role::Vector),
            "mlp.gate_proj" => ("ffn_gate", Role::Gate),
            "mlp.up_proj" => ("ffn_up", Role::Up),
            "mlp.down_proj" => ("ffn_down", Role::Down),
            "block_sparse_moe.gate" if self.experts > 0 => ("ffn_gate_inp", Role::Router),
            other => {
                let (expert, part) = other.strip_prefix("block_sparse_moe.experts.")?.split_once('.')?;
                let expert = expert.parse::<usize>().ok().filter(|at| *at < self.experts)?;
                let (stem, role) = match part {
                    "w1" => ("ffn_gate_exps", Role::ExpertGate),
                    "w2" => ("ffn_down_exps", Role::ExpertDown),
                    "w3" => ("ffn_up_exps", Role::ExpertUp),
                    _ => return None,
                };
                return Some((stem, role, Some(expert)));
            }
        };
        Some((stem, role, None))
    }
}

/// A word for a number of weights, `8.0B` or `8x7.2B`: all that are not experts', those of one expert, and how many
/// experts there are.
pub fn size_label(shared: u64, expert: u64, experts: usize) -> String {
    let weights = (shared + expert) as f64;
    let (scaled, unit) = match weights {
        w if w > 1e12 => (w * 1e-12, 'T'),
        w if w > 1e9 => (w * 1e-9, 'B'),
        w if w > 1e6 => (w * 1e-6, 'M'),
        w => (w * 1e-3, 'K'),
    };
    // Two digits at least.
    let decimals = if scaled.round_ties_even() >= 10.0 { 0 } else { 1 + usize::from(scaled.round_ties_even() == 0.0) };
    let size = format!("{scaled:.decimals$}{unit}");
    if experts > 0 { format!("{experts}x{size}") } else { size }
}

#[cfg(test)]
mod tests;
