//! Tensors and keys that several families have.

use super::super::{
    Conversion::{self, Expert, KeyPairs, LatentKey, LatentValue, PlusOne, QueryPairs, Same},
    Family, From, Key, Lengths, Line, Tokens,
};

pub(super) const fn to(hf: &'static str, gguf: &'static str, conversion: Conversion) -> Line {
    Line { hf, gguf, conversion }
}

pub(super) const fn key(gguf: &'static str, from: From) -> Key {
    Key { gguf, from }
}

pub(super) const ENDS: &[Line] = &[
    to("model.embed_tokens", "token_embd", Same),
    to("model.norm", "output_norm", Same),
    to("lm_head", "output", Same),
];
pub(super) const GEMMA_ENDS: &[Line] =
    &[to("model.embed_tokens", "token_embd", Same), to("model.norm", "output_norm", PlusOne)];

pub(super) const NORMS: &[Line] =
    &[to("input_layernorm", "attn_norm", Same), to("post_attention_layernorm", "ffn_norm", Same)];
pub(super) const ATTENTION: &[Line] = &[
    to("self_attn.q_proj", "attn_q", Same),
    to("self_attn.k_proj", "attn_k", Same),
    to("self_attn.v_proj", "attn_v", Same),
    to("self_attn.o_proj", "attn_output", Same),
];
/// Those whose heads llama.cpp turns by neighbours.
pub(super) const PAIRED: &[Line] = &[
    to("self_attn.q_proj", "attn_q", QueryPairs),
    to("self_attn.k_proj", "attn_k", KeyPairs),
    to("self_attn.v_proj", "attn_v", Same),
    to("self_attn.o_proj", "attn_output", Same),
];
pub(super) const FUSED_ATTENTION: &[Line] =
    &[to("self_attn.qkv_proj", "attn_qkv", Same), to("self_attn.o_proj", "attn_output", Same)];
pub(super) const HEAD_NORMS: &[Line] =
    &[to("self_attn.q_norm", "attn_q_norm", Same), to("self_attn.k_norm", "attn_k_norm", Same)];
pub(super) const FORWARD: &[Line] =
    &[to("mlp.gate_proj", "ffn_gate", Same), to("mlp.up_proj", "ffn_up", Same), to("mlp.down_proj", "ffn_down", Same)];
/// Gate and way up in one matrix, the gate first.
pub(super) const FUSED_FORWARD: &[Line] =
    &[to("mlp.gate_up_proj", "ffn_up", Same), to("mlp.down_proj", "ffn_down", Same)];
pub(super) const EXPERTS: &[Line] = &[
    to("mlp.gate", "ffn_gate_inp", Same),
    to("mlp.experts.*.gate_proj", "ffn_gate_exps", Expert),
    to("mlp.experts.*.up_proj", "ffn_up_exps", Expert),
    to("mlp.experts.*.down_proj", "ffn_down_exps", Expert),
];
pub(super) const GEMMA2_LAYER: &[Line] = &[
    to("input_layernorm", "attn_norm", PlusOne),
    to("post_attention_layernorm", "post_attention_norm", PlusOne),
    to("pre_feedforward_layernorm", "ffn_norm", PlusOne),
    to("post_feedforward_layernorm", "post_ffw_norm", PlusOne),
];
pub(super) const LATENT_ATTENTION: &[Line] = &[
    to("self_attn.q_proj", "attn_q", Same),
    to("self_attn.q_a_proj", "attn_q_a", Same),
    to("self_attn.q_a_layernorm", "attn_q_a_norm", Same),
    to("self_attn.q_b_proj", "attn_q_b", Same),
    to("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", Same),
    to("self_attn.kv_a_layernorm", "attn_kv_a_norm", Same),
    to("self_attn.kv_b_proj", "attn_k_b", LatentKey),
    to("self_attn.kv_b_proj", "attn_v_b", LatentValue),
    to("self_attn.o_proj", "attn_output", Same),
];
pub(super) const SHARED_EXPERTS: &[Line] = &[
    to("mlp.shared_experts.gate_proj", "ffn_gate_shexp", Same),
    to("mlp.shared_experts.up_proj", "ffn_up_shexp", Same),
    to("mlp.shared_experts.down_proj", "ffn_down_shexp", Same),
];

/// Biases of matrices, where a model may have them.
pub(super) const DENSE: &[&str] = &["attn_output", "ffn_gate", "ffn_up", "ffn_down"];
/// The same, and those of norms.
pub(super) const NORMED: &[&str] = &["attn_norm", "ffn_norm", "output_norm", "attn_output", "ffn_up", "ffn_down"];

/// What the converter writes of every model, unless its family has a list of its own.
pub(super) const GENERAL: &[Key] = &[
    key("block_count", From::Layers),
    key("context_length", From::Whole(&["max_position_embeddings", "n_positions"])),
    key("embedding_length", From::Whole(&["hidden_size"])),
    key("feed_forward_length", From::Whole(&["intermediate_size"])),
    key("attention.head_count", From::Whole(&["num_attention_heads"])),
    key("attention.head_count_kv", From::KvHeads),
    key("rope", From::Rope),
    key("attention.layer_norm_rms_epsilon", From::Real(&["rms_norm_eps"])),
    key("attention.layer_norm_epsilon", From::Real(&["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"])),
    key("expert_count", From::Whole(&["num_local_experts", "num_experts", "n_routed_experts"])),
    key("expert_used_count", From::Whole(&["num_experts_per_tok"])),
    key("expert_group_count", From::Whole(&["n_group"])),
    key("expert_group_used_count", From::Whole(&["topk_group"])),
    key("expert_gating_func", From::Scoring),
    key("attention", From::Lengths),
    key("general.file_type", From::FileType),
];
pub(super) const WINDOW: Key = key("attention.sliding_window", From::Whole(&["sliding_window"]));
pub(super) const LLAMA_KEYS: &[Key] = &[key("vocab_size", From::Vocabulary), key("rope.dimension_count", From::Rotary)];
pub(super) const EXPERT_KEYS: &[Key] = &[
    key("expert_feed_forward_length", From::Whole(&["moe_intermediate_size"])),
    key("expert_shared_feed_forward_length", From::Whole(&["shared_expert_intermediate_size"])),
];
pub(super) const DEEPSEEK_KEYS: &[Key] = &[
    key("leading_dense_block_count", From::WholeOr("first_k_dense_replace", 0)),
    key("vocab_size", From::Vocabulary),
    key("attention.q_lora_rank", From::Whole(&["q_lora_rank"])),
    key("attention.kv_lora_rank", From::Whole(&["kv_lora_rank"])),
    key("attention.key_length", From::Sum("kv_lora_rank", "qk_rope_head_dim")),
    key("attention.value_length", From::Whole(&["kv_lora_rank"])),
    key("attention.key_length_mla", From::Sum("qk_nope_head_dim", "qk_rope_head_dim")),
    key("attention.value_length_mla", From::Whole(&["v_head_dim"])),
    key("expert_feed_forward_length", From::Whole(&["moe_intermediate_size", "intermediate_size"])),
    key("expert_shared_count", From::WholeOr("n_shared_experts", 0)),
    key("expert_weights_scale", From::Real(&["routed_scaling_factor"])),
    key("expert_weights_norm", From::Yes("norm_topk_prob")),
    key("rope.dimension_count", From::Whole(&["qk_rope_head_dim"])),
    key("rope.scaling.yarn_log_multiplier", From::RopeTenth("mscale_all_dim")),
];

/// A family as most are: what differs is said beside it.
pub(super) const USUAL: Family = Family {
    arch: "llama",
    classes: &[],
    model_type: "llama",
    whole: ENDS,
    layers: "model.layers.",
    layer: &[NORMS, ATTENTION, FORWARD],
    keys: &[GENERAL],
    defaults: "{}",
    granted: "{}",
    lengths: Lengths::Given,
    tokens: Tokens::Usual,
    biases: &[],
    scales: false,
};
