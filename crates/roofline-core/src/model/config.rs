//! A checkpoint's `config.json`, in the dialects of transformers 4 and 5, and what it means for the dimensions.
//!
//! Only fields that change a shape are read; what a family's layers have beyond them, [`Family`] knows.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{
    Anatomy, Arithmetic, AttentionLayer, FeedForward, Layer, Model, Stored,
    dialect::{DbrxAttention, DbrxExperts},
    family::{Family, Mixture},
};
use crate::{Dim, Error, Result};

/// The fields that matter. Unknown ones are ignored: every checkpoint has its own.
#[derive(Clone, Debug, Default, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names are those of the file")]
pub(super) struct Config {
    model_type: Option<String>,
    pub(super) hidden_size: Option<u64>,
    pub(super) intermediate_size: Option<u64>,
    pub(super) num_hidden_layers: Option<u64>,
    pub(super) num_attention_heads: Option<u64>,
    pub(super) num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    vocab_size: Option<u64>,
    pub(super) max_position_embeddings: Option<u64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    qk_layernorm: Option<bool>,
    pub(super) partial_rotary_factor: Option<f64>,
    rope_parameters: Option<Value>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<u64>,
    sliding_window_pattern: Option<u64>,
    layer_types: Option<Vec<String>>,
    num_local_experts: Option<u64>,
    pub(super) num_experts: Option<u64>,
    n_routed_experts: Option<u64>,
    pub(super) num_experts_per_tok: Option<u64>,
    moe_intermediate_size: Option<u64>,
    n_shared_experts: Option<u64>,
    shared_expert_intermediate_size: Option<u64>,
    /// Llama 4: the inner width of layers without experts, and how far apart those with some are.
    intermediate_size_mlp: Option<u64>,
    interleave_moe_layer_step: Option<u64>,
    attention_chunk_size: Option<u64>,
    use_qk_norm: Option<bool>,
    first_k_dense_replace: Option<u64>,
    moe_layer_freq: Option<u64>,
    decoder_sparse_step: Option<u64>,
    mlp_only_layers: Option<Vec<u64>>,
    q_lora_rank: Option<u64>,
    kv_lora_rank: Option<u64>,
    qk_nope_head_dim: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    v_head_dim: Option<u64>,
    quantization_config: Option<Quantization>,
    /// The language part of a multimodal checkpoint.
    text_config: Option<Value>,
    // Names of older families: GPT-2, GPT-J, OPT, Falcon, DBRX.
    pub(super) n_embd: Option<u64>,
    pub(super) n_layer: Option<u64>,
    pub(super) n_head: Option<u64>,
    pub(super) n_inner: Option<u64>,
    pub(super) n_positions: Option<u64>,
    pub(super) rotary_dim: Option<u64>,
    pub(super) ffn_dim: Option<u64>,
    pub(super) multi_query: Option<bool>,
    pub(super) new_decoder_architecture: Option<bool>,
    pub(super) parallel_attn: Option<bool>,
    pub(super) bias: Option<bool>,
    pub(super) word_embed_proj_dim: Option<u64>,
    pub(super) d_model: Option<u64>,
    pub(super) n_layers: Option<u64>,
    pub(super) n_heads: Option<u64>,
    pub(super) max_seq_len: Option<u64>,
    pub(super) attn_config: Option<DbrxAttention>,
    pub(super) ffn_config: Option<DbrxExperts>,
    // What changes no shape: functions and constants.
    hidden_act: Option<Value>,
    hidden_activation: Option<Value>,
    rms_norm_eps: Option<Value>,
    layer_norm_eps: Option<Value>,
    rope_theta: Option<Value>,
    rope_scaling: Option<Value>,
    rope_local_base_freq: Option<Value>,
    original_max_position_embeddings: Option<Value>,
    query_pre_attn_scalar: Option<Value>,
    attn_logit_softcapping: Option<Value>,
    final_logit_softcapping: Option<Value>,
    norm_topk_prob: Option<Value>,
    swiglu_limit: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Quantization {
    quant_method: Option<String>,
}

/// More layers than any model has, few enough to list.
const MAX_LAYERS: u64 = 10_000;

impl Config {
    /// The model these dimensions describe; `file` tells in errors which one.
    pub(super) fn model(&self, file: &str) -> Result<Model> {
        let refuse = |reason: String| Error::Model { key: file.to_owned(), reason };
        let family = self.model_type.as_deref().ok_or_else(|| refuse("`model_type` is missing".to_owned()))?;
        if let Some(text) = &self.text_config {
            let mut text: Self = serde_json::from_value(text.clone()).map_err(|error| refuse(error.to_string()))?;
            if text.text_config.is_some() {
                return Err(refuse("its `text_config` has a `text_config` of its own".to_owned()));
            }
            text.tie_word_embeddings = text.tie_word_embeddings.or(self.tie_word_embeddings);
            text.quantization_config = text.quantization_config.or_else(|| self.quantization_config.clone());
            text.model_type = text.model_type.or_else(|| self.model_type.clone());
            return text.model(file);
        }
        let family = Family::named(family).ok_or_else(|| {
            let hint = format!("known: {}", Family::names().collect::<Vec<_>>().join(", "));
            Error::unknown("architecture", family, Family::names(), hint)
        })?;
        if let Some(variant) = self.variant(family.name) {
            return Err(refuse(variant.to_owned()));
        }
        let config = &self.with_defaults(family.name);
        Reader { config, family, file }.model()
    }
}

impl Config {
    /// What a family's configuration class fills in, where published checkpoints leave it out (transformers 5:
    /// `Gemma3TextConfig`, `MixtralConfig`).
    fn with_defaults(&self, family: &str) -> Self {
        let mut config = self.clone();
        match family {
            "gemma3" | "gemma3_text" => {
                config.num_attention_heads = config.num_attention_heads.or(Some(8));
                config.num_key_value_heads = config.num_key_value_heads.or(Some(4));
                config.head_dim = config.head_dim.or(Some(256));
                config.vocab_size = config.vocab_size.or(Some(262_208));
            }
            "mixtral" => {
                config.num_local_experts = config.num_local_experts.or(Some(8));
                config.num_experts_per_tok = config.num_experts_per_tok.or(Some(2));
            }
            "llama4_text" => config.attention_chunk_size = config.attention_chunk_size.or(Some(8192)),
            _ => return config.in_new_names(family),
        }
        config
    }
}

struct Reader<'a> {
    config: &'a Config,
    family: &'a Family,
    file: &'a str,
}

impl Reader<'_> {
    fn refuse(&self, reason: impl Into<String>) -> Error {
        Error::Model { key: self.file.to_owned(), reason: reason.into() }
    }

    fn required(&self, name: &'static str, value: Option<u64>) -> Result<Dim> {
        Dim::new(name, value.ok_or_else(|| self.refuse(format!("`{name}` is missing")))?)
    }

    fn model(&self) -> Result<Model> {
        let config = self.config;
        let count = self.required("num_hidden_layers", config.num_hidden_layers)?.get();
        if count > MAX_LAYERS {
            return Err(self.refuse(format!("{count} layers are more than {MAX_LAYERS}")));
        }
        let (mut layers, mut order): (Vec<Layer>, Vec<u8>) = (Vec::new(), Vec::new());
        for at in 0..count {
            let (attention, feed_forward) = (self.attention(at)?, self.feed_forward(at)?);
            let same = |layer: &Layer| layer.attention == attention && layer.feed_forward == feed_forward;
            let group = layers.iter().position(same).unwrap_or(layers.len());
            match layers.get_mut(group) {
                Some(layer) => layer.count += 1,
                None => layers.push(Layer { count: 1, attention, feed_forward }),
            }
            // Windows or none, experts or none: four shapes at most.
            order.push(group as u8);
        }
        let stored = config.quantization_config.as_ref().and_then(|quantization| quantization.quant_method.clone());
        let hidden = self.required("hidden_size", config.hidden_size)?;
        let tied = config.tie_word_embeddings.unwrap_or(self.family.tied);
        let anatomy = Anatomy { falcon: self.family.name == "falcon", ..Anatomy::new(&layers, order, hidden, tied) };
        Ok(Model {
            key: String::new(),
            name: String::new(),
            aliases: Vec::new(),
            source: None,
            published: None,
            family: self.family.name.to_owned(),
            hidden,
            vocabulary: self.required("vocab_size", config.vocab_size)?,
            max_context: config
                .max_position_embeddings
                .map(|max| Dim::new("max_position_embeddings", max))
                .transpose()?,
            positions: config.positions(self.family.name)?,
            tied,
            head_bias: self.family.head_bias,
            norms: self.family.norms,
            layers,
            anatomy: Arc::new(anatomy),
            arithmetic: Arc::new(self.arithmetic(hidden)),
            stored: stored.map(Stored),
        })
    }

    /// Functions and constants, from the fields that are not dimensions and the few that are both.
    fn arithmetic(&self, hidden: Dim) -> Arithmetic {
        let config = self.config.clone();
        let fields = [
            ("max_position_embeddings", config.max_position_embeddings.map(Into::into)),
            ("rope_parameters", config.rope_parameters),
            ("hidden_act", config.hidden_act),
            ("hidden_activation", config.hidden_activation),
            ("rms_norm_eps", config.rms_norm_eps),
            ("layer_norm_eps", config.layer_norm_eps),
            ("rope_theta", config.rope_theta),
            ("rope_scaling", config.rope_scaling),
            ("rope_local_base_freq", config.rope_local_base_freq),
            ("original_max_position_embeddings", config.original_max_position_embeddings),
            ("query_pre_attn_scalar", config.query_pre_attn_scalar),
            ("attn_logit_softcapping", config.attn_logit_softcapping),
            ("final_logit_softcapping", config.final_logit_softcapping),
            ("norm_topk_prob", config.norm_topk_prob),
            ("swiglu_limit", config.swiglu_limit),
        ];
        let fields = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let beyond = self.family.beyond;
        Arithmetic { beyond, ..Arithmetic::of(&Value::Object(fields), self.family.name, hidden.get()) }
    }

    fn attention(&self, at: u64) -> Result<AttentionLayer> {
        let config = self.config;
        let heads = self.required("num_attention_heads", config.num_attention_heads)?;
        if let Some(rank) = config.kv_lora_rank {
            // The cached vector is both of them.
            let rotary = self.required("qk_rope_head_dim", config.qk_rope_head_dim)?;
            Dim::new("kv_lora_rank + qk_rope_head_dim", rank.saturating_add(rotary.get()))?;
            return Ok(AttentionLayer::Latent {
                heads,
                query_rank: config.q_lora_rank.map(|rank| Dim::new("q_lora_rank", rank)).transpose()?,
                rank: Dim::new("kv_lora_rank", rank)?,
                plain_dim: self.required("qk_nope_head_dim", config.qk_nope_head_dim)?,
                rotary_dim: rotary,
                value_dim: self.required("v_head_dim", config.v_head_dim)?,
            });
        }
        let hidden = self.required("hidden_size", config.hidden_size)?;
        let kv_heads = Dim::new("num_key_value_heads", config.num_key_value_heads.unwrap_or(heads.get()))?;
        if heads.get() % kv_heads.get() != 0 {
            return Err(self.refuse(format!("{heads} attention heads cannot share {kv_heads} KV heads evenly")));
        }
        let head_dim = match config.head_dim {
            Some(head_dim) => Dim::new("head_dim", head_dim)?,
            None if hidden.get() % heads.get() == 0 => Dim::new("head_dim", hidden.get() / heads.get())?,
            None => return Err(self.refuse(format!("`head_dim` is missing, and {heads} heads do not divide {hidden}"))),
        };
        Ok(AttentionLayer::Grouped {
            heads,
            kv_heads,
            head_dim,
            rotary_dim: self.rotary_dim(head_dim)?,
            window: self.window(at)?,
            input_bias: self.family.input_bias.is(config.attention_bias),
            output_bias: self.family.output_bias.is(config.attention_bias),
            query_key_norm: config.qk_layernorm.or(config.use_qk_norm).unwrap_or(false) || self.family.query_key_norm,
            sinks: self.family.sinks,
        })
    }

    fn rotary_dim(&self, head_dim: Dim) -> Result<Dim> {
        let rope = self.config.rope_parameters.as_ref().and_then(|rope| rope["partial_rotary_factor"].as_f64());
        let factor = self.config.partial_rotary_factor.or(rope).unwrap_or(self.family.rotary);
        if !(factor > 0.0 && factor <= 1.0) {
            return Err(self.refuse(format!("`partial_rotary_factor` of {factor} is outside 0 to 1")));
        }
        Dim::new("partial_rotary_factor", ((head_dim.get() as f64 * factor).round() as u64).max(1))
    }

    /// The window of layer `at`, where it is a sliding one.
    fn window(&self, at: u64) -> Result<Option<Dim>> {
        let config = self.config;
        // Llama 4 cuts the context into chunks in three of four layers: a query sees those of its chunk, at most as many as
        // a window of that size has.
        if let Some(chunk) = config.attention_chunk_size.filter(|_| self.family.name == "llama4_text") {
            let named = config.layer_types.as_ref().and_then(|types| types.get(at as usize));
            let cut = named.map_or(!(at + 1).is_multiple_of(4), |name| name == "chunked_attention");
            return cut.then(|| Dim::new("attention_chunk_size", chunk)).transpose();
        }
        let Some(window) = config.sliding_window else { return Ok(None) };
        let slides = if let Some(types) = &config.layer_types {
            let name = types.get(at as usize).ok_or_else(|| self.refuse("`layer_types` is shorter than the layers"))?;
            if !["sliding_attention", "full_attention"].contains(&name.as_str()) {
                return Err(self.refuse(format!("layers of type `{name}` are not known")));
            }
            name == "sliding_attention"
        } else {
            let all_but_every =
                |usual: u64| !(at + 1).is_multiple_of(config.sliding_window_pattern.unwrap_or(usual).max(1));
            match self.family.name {
                "gemma2" | "gpt_oss" => at.is_multiple_of(2),
                "gemma3" | "gemma3_text" => all_but_every(6),
                "cohere2" => all_but_every(4),
                "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" => {
                    config.use_sliding_window == Some(true) && at >= config.max_window_layers.unwrap_or(0)
                }
                _ => config.use_sliding_window != Some(false),
            }
        };
        slides.then(|| Dim::new("sliding_window", window)).transpose()
    }

    fn feed_forward(&self, at: u64) -> Result<FeedForward> {
        let (config, gated) = (self.config, self.family.gated);
        let experts = config.n_routed_experts.or(config.num_local_experts).or(config.num_experts);
        if self.family.experts.is_some() {
            self.required("num_experts", experts)?;
        }
        let sparse = self.family.experts.zip(experts).filter(|_| self.is_sparse(at));
        let Some((Mixture { bias, router_bias }, experts)) = sparse else {
            let inner = config.intermediate_size_mlp.or(config.intermediate_size);
            let inner = self.required("intermediate_size", inner)?;
            return Ok(FeedForward::Dense { inner, gated, bias: self.family.inner_bias.is(config.mlp_bias) });
        };
        let inner = config.moe_intermediate_size.or(config.intermediate_size);
        let inner = self.required("moe_intermediate_size", inner)?;
        let active = self.required("num_experts_per_tok", config.num_experts_per_tok)?;
        if active.get() > experts {
            return Err(self.refuse(format!("{active} of {experts} experts cannot be active")));
        }
        let count = config.n_shared_experts.or((self.family.name == "llama4_text").then_some(1));
        let shared = count.filter(|count| *count > 0).map(|count| count.saturating_mul(inner.get()));
        let shared = config.shared_expert_intermediate_size.or(shared);
        Ok(FeedForward::Experts {
            experts: Dim::new("num_experts", experts)?,
            active,
            inner,
            shared: shared.map(|shared| Dim::new("n_shared_experts", shared)).transpose()?,
            gated,
            bias,
            router_bias,
        })
    }

    fn is_sparse(&self, at: u64) -> bool {
        let config = self.config;
        let dense_first = at < config.first_k_dense_replace.unwrap_or(0);
        let listed_dense = config.mlp_only_layers.as_ref().is_some_and(|layers| layers.contains(&at));
        let last = config.decoder_sparse_step.or(config.interleave_moe_layer_step);
        let every = config.moe_layer_freq.or(last).unwrap_or(1).max(1);
        let step = if last.is_some() { (at + 1).is_multiple_of(every) } else { at.is_multiple_of(every) };
        !dense_first && !listed_dense && step
    }
}
