//! What checkpoints call the weights that a program names, in the words of transformers' models.

use roofline_core::program::Weight;

/// The modules that may hold a weight, the first that is there being it. Four norms in a layer are called otherwise than
/// two: what stands after attention is then of what attention adds.
pub(crate) fn modules(weight: Weight, norms: u64) -> &'static [&'static str] {
    match weight {
        Weight::Embedding => &["embed_tokens"],
        Weight::InputNorm => &["input_layernorm"],
        Weight::Query => &["self_attn.q_proj"],
        Weight::Key => &["self_attn.k_proj"],
        Weight::Value => &["self_attn.v_proj"],
        Weight::QueryNorm => &["self_attn.q_norm"],
        Weight::KeyNorm => &["self_attn.k_norm"],
        Weight::Sinks => &["self_attn.sinks"],
        Weight::Output => &["self_attn.o_proj", "self_attn.dense"],
        Weight::FeedForwardNorm if norms == 4 => &["pre_feedforward_layernorm"],
        Weight::PostAttentionNorm | Weight::FeedForwardNorm => &["post_attention_layernorm"],
        Weight::Gate => &["mlp.gate_proj"],
        Weight::Up => &["mlp.up_proj", "mlp.fc1"],
        Weight::Down => &["mlp.down_proj", "mlp.fc2"],
        Weight::PostFeedForwardNorm => &["post_feedforward_layernorm"],
        Weight::Router => &["mlp.gate", "block_sparse_moe.gate", "mlp.router"],
        Weight::ExpertGate => &["mlp.experts.*.gate_proj", "block_sparse_moe.experts.*.w1"],
        Weight::ExpertUp => &["mlp.experts.*.up_proj", "block_sparse_moe.experts.*.w3"],
        Weight::ExpertDown => &["mlp.experts.*.down_proj", "block_sparse_moe.experts.*.w2"],
        Weight::FinalNorm => &["norm", "final_layernorm"],
        Weight::Head => &["lm_head"],
        // Of models that do not run here.
        Weight::QueryDown
        | Weight::QueryDownNorm
        | Weight::QueryUp
        | Weight::KeyValueDown
        | Weight::KeyValueDownNorm
        | Weight::KeyValueUp
        | Weight::SharedGate
        | Weight::SharedUp
        | Weight::SharedDown => &[],
    }
}

/// The module that holds several weights of one product, one below the other.
pub(crate) fn fused(weights: &[Weight]) -> Option<&'static str> {
    match weights {
        [Weight::Query, Weight::Key, Weight::Value] => Some("self_attn.qkv_proj"),
        [Weight::Gate, Weight::Up] => Some("mlp.gate_up_proj"),
        _ => None,
    }
}

/// The tensor that holds all experts of a layer, one below the other.
pub(crate) fn stacked(weights: &[Weight]) -> Option<&'static str> {
    match weights {
        [Weight::ExpertGate, Weight::ExpertUp] => Some("mlp.experts.gate_up_proj"),
        [Weight::ExpertDown] => Some("mlp.experts.down_proj"),
        _ => None,
    }
}
