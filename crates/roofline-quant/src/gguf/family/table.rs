//! The table itself.

mod shared;

use shared::{
    ATTENTION, DEEPSEEK_KEYS, DENSE, EXPERT_KEYS, EXPERTS, FORWARD, FUSED_ATTENTION, FUSED_FORWARD, GEMMA_ENDS,
    GEMMA2_LAYER, GENERAL, HEAD_NORMS, LATENT_ATTENTION, LLAMA_KEYS, NORMED, NORMS, PAIRED, SHARED_EXPERTS, USUAL,
    WINDOW, key, to,
};

use super::{
    Conversion::{Biases, Expert, Fused, PlusOne, Same, Stack},
    Family, From, Lengths,
    Share::{Even, First, Odd, Second, Whole},
    Tokens,
};

/// All that are known. Of two with the same architecture in GGUF, the one with experts comes second.
pub const FAMILIES: &[Family] = &[
    Family {
        classes: &["LlamaForCausalLM", "MistralForCausalLM", "LlavaForConditionalGeneration"],
        biases: DENSE,
        layer: &[NORMS, PAIRED, FORWARD],
        keys: &[GENERAL, LLAMA_KEYS],
        lengths: Lengths::Always,
        tokens: Tokens::Llama,
        scales: true,
        ..USUAL
    },
    Family {
        classes: &["MixtralForCausalLM"],
        model_type: "mixtral",
        layer: &[
            NORMS,
            PAIRED,
            &[
                to("block_sparse_moe.gate", "ffn_gate_inp", Same),
                to("block_sparse_moe.experts.*.w1", "ffn_gate_exps", Expert),
                to("block_sparse_moe.experts.*.w3", "ffn_up_exps", Expert),
                to("block_sparse_moe.experts.*.w2", "ffn_down_exps", Expert),
            ],
        ],
        keys: &[GENERAL, LLAMA_KEYS],
        defaults: r#"{"num_local_experts": 8, "num_experts_per_tok": 2}"#,
        biases: &["attn_output"],
        tokens: Tokens::Llama,
        ..USUAL
    },
    Family { arch: "qwen2", classes: &["Qwen2ForCausalLM"], model_type: "qwen2", ..USUAL },
    Family {
        arch: "qwen2vl",
        classes: &["Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration"],
        model_type: "qwen2_5_vl",
        ..USUAL
    },
    Family {
        arch: "qwen2moe",
        classes: &["Qwen2MoeForCausalLM"],
        model_type: "qwen2_moe",
        layer: &[
            NORMS,
            ATTENTION,
            EXPERTS,
            &[
                to("mlp.shared_expert.gate_proj", "ffn_gate_shexp", Same),
                to("mlp.shared_expert.up_proj", "ffn_up_shexp", Same),
                to("mlp.shared_expert.down_proj", "ffn_down_shexp", Same),
                to("mlp.shared_expert_gate", "ffn_gate_inp_shexp", Same),
            ],
        ],
        keys: &[GENERAL, EXPERT_KEYS],
        defaults: r#"{"num_experts": 60, "num_experts_per_tok": 4}"#,
        granted: r#"{"norm_topk_prob": false}"#,
        ..USUAL
    },
    Family {
        arch: "qwen3",
        classes: &["Qwen3ForCausalLM"],
        model_type: "qwen3",
        layer: &[NORMS, ATTENTION, HEAD_NORMS, FORWARD],
        defaults: r#"{"head_dim": 128}"#,
        scales: true,
        ..USUAL
    },
    Family {
        arch: "qwen3moe",
        classes: &["Qwen3MoeForCausalLM"],
        model_type: "qwen3_moe",
        layer: &[NORMS, ATTENTION, HEAD_NORMS, EXPERTS],
        keys: &[GENERAL, EXPERT_KEYS],
        defaults: r#"{"num_experts": 128, "num_experts_per_tok": 8}"#,
        granted: r#"{"norm_topk_prob": true}"#,
        ..USUAL
    },
    Family {
        arch: "gemma2",
        classes: &["Gemma2ForCausalLM"],
        model_type: "gemma2",
        whole: GEMMA_ENDS,
        layer: &[GEMMA2_LAYER, ATTENTION, FORWARD],
        keys: &[&[
            key("context_length", From::Whole(&["max_position_embeddings"])),
            key("embedding_length", From::Whole(&["hidden_size"])),
            key("block_count", From::Layers),
            key("feed_forward_length", From::Whole(&["intermediate_size"])),
            key("attention.head_count", From::Whole(&["num_attention_heads"])),
            key("attention.head_count_kv", From::KvHeads),
            key("attention.layer_norm_rms_epsilon", From::Real(&["rms_norm_eps"])),
            key("attention", From::Lengths),
            key("general.file_type", From::FileType),
            key("attn_logit_softcapping", From::Real(&["attn_logit_softcapping"])),
            key("final_logit_softcapping", From::Real(&["final_logit_softcapping"])),
            WINDOW,
            key("rope.freq_base", From::Base),
        ]],
        defaults: r#"{"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "sliding_window": 4096, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh"}"#,
        lengths: Lengths::Always,
        tokens: Tokens::Gemma,
        ..USUAL
    },
    Family {
        arch: "gemma3",
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        model_type: "gemma3_text",
        whole: GEMMA_ENDS,
        layer: &[
            GEMMA2_LAYER,
            ATTENTION,
            FORWARD,
            &[to("self_attn.q_norm", "attn_q_norm", PlusOne), to("self_attn.k_norm", "attn_k_norm", PlusOne)],
        ],
        keys: &[GENERAL, &[key("final_logit_softcapping", From::Real(&["final_logit_softcapping"])), WINDOW]],
        defaults: r#"{"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131072, "sliding_window": 4096, "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh"}"#,
        lengths: Lengths::Always,
        tokens: Tokens::Gemma,
        ..USUAL
    },
    Family {
        arch: "phi3",
        classes: &["Phi3ForCausalLM"],
        model_type: "phi3",
        layer: &[NORMS, FUSED_ATTENTION, FUSED_FORWARD],
        keys: &[&[
            key("context_length", From::Whole(&["max_position_embeddings"])),
            key(
                "rope.scaling.original_context_length",
                From::Whole(&["original_max_position_embeddings", "max_position_embeddings"]),
            ),
            key("embedding_length", From::Whole(&["hidden_size"])),
            key("feed_forward_length", From::Whole(&["intermediate_size"])),
            key("block_count", From::Layers),
            key("attention.head_count", From::Whole(&["num_attention_heads"])),
            key("attention.head_count_kv", From::KvHeads),
            key("attention.layer_norm_rms_epsilon", From::Real(&["rms_norm_eps"])),
            key("rope.dimension_count", From::Rotary),
            key("rope", From::Rope),
            key("general.file_type", From::FileType),
            key("attention.sliding_window", From::WholeOr("sliding_window", 0)),
        ]],
        tokens: Tokens::Phi,
        lengths: Lengths::Never,
        ..USUAL
    },
    Family {
        arch: "gpt-oss",
        biases: &["attn_output", "ffn_gate_inp"],
        classes: &["GptOssForCausalLM"],
        model_type: "gpt_oss",
        layer: &[
            ATTENTION,
            &[
                to("input_layernorm", "attn_norm", Same),
                to("post_attention_layernorm", "post_attention_norm", Same),
                to("self_attn.sinks", "attn_sinks.weight", Same),
                to("mlp.router", "ffn_gate_inp", Same),
                to("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", Stack(Even)),
                to("mlp.experts.gate_up_proj", "ffn_up_exps.weight", Stack(Odd)),
                to("mlp.experts.down_proj", "ffn_down_exps.weight", Stack(Whole)),
                to("mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", Biases(Even)),
                to("mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", Biases(Odd)),
                to("mlp.experts.down_proj_bias", "ffn_down_exps.bias", Biases(Whole)),
            ],
        ],
        keys: &[GENERAL, &[WINDOW, key("expert_feed_forward_length", From::Whole(&["intermediate_size"]))]],
        defaults: r#"{"head_dim": 64, "sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4}"#,
        ..USUAL
    },
    Family {
        arch: "deepseek2",
        classes: &["DeepseekV2ForCausalLM"],
        model_type: "deepseek_v2",
        layer: &[NORMS, LATENT_ATTENTION, FORWARD, EXPERTS, SHARED_EXPERTS],
        keys: &[GENERAL, DEEPSEEK_KEYS],
        defaults: r#"{"rms_norm_eps": 1e-6, "scoring_func": "softmax", "n_routed_experts": 64}"#,
        lengths: Lengths::Never,
        ..USUAL
    },
    Family {
        arch: "deepseek2",
        classes: &["DeepseekV3ForCausalLM"],
        model_type: "deepseek_v3",
        layer: &[
            NORMS,
            LATENT_ATTENTION,
            FORWARD,
            EXPERTS,
            SHARED_EXPERTS,
            &[to("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", Same)],
        ],
        keys: &[GENERAL, DEEPSEEK_KEYS],
        defaults: r#"{"rms_norm_eps": 1e-6, "scoring_func": "sigmoid", "norm_topk_prob": true, "n_routed_experts": 256}"#,
        lengths: Lengths::Never,
        ..USUAL
    },
    Family {
        arch: "llama4",
        classes: &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        model_type: "llama4_text",
        layer: &[
            NORMS,
            ATTENTION,
            &[
                to("feed_forward.gate_proj", "ffn_gate", Same),
                to("feed_forward.up_proj", "ffn_up", Same),
                to("feed_forward.down_proj", "ffn_down", Same),
                to("feed_forward.router", "ffn_gate_inp", Same),
                to("feed_forward.experts.gate_up_proj", "ffn_gate_exps.weight", Stack(First)),
                to("feed_forward.experts.gate_up_proj", "ffn_up_exps.weight", Stack(Second)),
                to("feed_forward.experts.down_proj", "ffn_down_exps.weight", Stack(Whole)),
                to("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp", Same),
                to("feed_forward.shared_expert.up_proj", "ffn_up_shexp", Same),
                to("feed_forward.shared_expert.down_proj", "ffn_down_shexp", Same),
            ],
        ],
        // What others call `intermediate_size` is an expert's here.
        keys: &[
            GENERAL,
            &[key("feed_forward_length", From::Whole(&["intermediate_size_mlp"]))],
            LLAMA_KEYS,
            &[
                key("interleave_moe_layer_step", From::WholeOr("interleave_moe_layer_step", 1)),
                key("expert_feed_forward_length", From::Whole(&["intermediate_size"])),
            ],
        ],
        defaults: r#"{"head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1}"#,
        ..USUAL
    },
    Family {
        arch: "glm4",
        classes: &["Glm4ForCausalLM"],
        model_type: "glm4",
        layer: &[
            NORMS,
            ATTENTION,
            FUSED_FORWARD,
            &[
                to("post_self_attn_layernorm", "post_attention_norm", Same),
                to("post_mlp_layernorm", "post_ffw_norm", Same),
            ],
        ],
        keys: &[GENERAL, &[key("rope.dimension_count", From::Rotary)]],
        defaults: r#"{"head_dim": 128, "partial_rotary_factor": 0.5}"#,
        tokens: Tokens::Glm,
        ..USUAL
    },
    Family {
        arch: "olmo2",
        classes: &["Olmo2ForCausalLM"],
        model_type: "olmo2",
        layer: &[
            ATTENTION,
            HEAD_NORMS,
            FORWARD,
            &[
                to("post_attention_layernorm", "post_attention_norm", Same),
                to("post_feedforward_layernorm", "post_ffw_norm", Same),
            ],
        ],
        ..USUAL
    },
    Family {
        arch: "granite",
        biases: DENSE,
        classes: &["GraniteForCausalLM"],
        model_type: "granite",
        layer: &[NORMS, PAIRED, FORWARD],
        keys: &[
            GENERAL,
            LLAMA_KEYS,
            &[
                key("attention.scale", From::Real(&["attention_multiplier"])),
                key("embedding_scale", From::Real(&["embedding_multiplier"])),
                key("residual_scale", From::Real(&["residual_multiplier"])),
                key("logit_scale", From::Real(&["logits_scaling"])),
            ],
        ],
        lengths: Lengths::Never,
        tokens: Tokens::Llama,
        ..USUAL
    },
    Family {
        arch: "starcoder2",
        biases: NORMED,
        classes: &["Starcoder2ForCausalLM"],
        model_type: "starcoder2",
        layer: &[NORMS, ATTENTION, &[to("mlp.c_fc", "ffn_up", Same), to("mlp.c_proj", "ffn_down", Same)]],
        defaults: r#"{"norm_epsilon": 1e-5, "tie_word_embeddings": true}"#,
        ..USUAL
    },
    Family {
        arch: "falcon",
        biases: &["attn_norm", "attn_norm_2", "output_norm"],
        classes: &["FalconForCausalLM", "RWForCausalLM"],
        model_type: "falcon",
        whole: &[
            to("transformer.word_embeddings", "token_embd", Same),
            to("transformer.ln_f", "output_norm", Same),
            to("lm_head", "output", Same),
        ],
        layers: "transformer.h.",
        layer: &[
            &[
                to("self_attention.query_key_value", "attn_qkv", Fused),
                to("self_attention.dense", "attn_output", Same),
                to("mlp.dense_h_to_4h", "ffn_up", Same),
                to("mlp.dense_4h_to_h", "ffn_down", Same),
            ],
            // The 7B's, and the 40B's.
            &[to("input_layernorm", "attn_norm", Same)],
            &[to("ln_mlp", "attn_norm", Same), to("ln_attn", "attn_norm_2", Same)],
        ],
        keys: &[&[
            // No configuration says it.
            key("context_length", From::Number(2048)),
            key("tensor_data_layout", From::Text("jploski")),
            key("embedding_length", From::Whole(&["hidden_size"])),
            key("feed_forward_length", From::Whole(&["ffn_hidden_size"])),
            key("block_count", From::Layers),
            key("attention.head_count", From::Whole(&["num_attention_heads"])),
            key("attention.head_count_kv", From::KvHeads),
            key("attention.layer_norm_epsilon", From::Real(&["layer_norm_epsilon"])),
            key("general.file_type", From::FileType),
            key("rope.freq_base", From::Base),
        ]],
        defaults: r#"{"layer_norm_epsilon": 1e-5, "tie_word_embeddings": true}"#,
        granted: r#"{"alibi": false, "parallel_attn": true}"#,
        lengths: Lengths::Never,
        ..USUAL
    },
    Family {
        arch: "gptneox",
        biases: NORMED,
        classes: &["GPTNeoXForCausalLM"],
        model_type: "gpt_neox",
        whole: &[
            to("gpt_neox.embed_in", "token_embd", Same),
            to("gpt_neox.final_layer_norm", "output_norm", Same),
            to("embed_out", "output", Same),
        ],
        layers: "gpt_neox.layers.",
        layer: &[
            NORMS,
            &[
                to("attention.query_key_value", "attn_qkv", Fused),
                to("attention.dense", "attn_output", Same),
                to("mlp.dense_h_to_4h", "ffn_up", Same),
                to("mlp.dense_4h_to_h", "ffn_down", Same),
            ],
        ],
        keys: &[&[
            key("context_length", From::Whole(&["max_position_embeddings"])),
            key("embedding_length", From::Whole(&["hidden_size"])),
            key("block_count", From::Layers),
            key("feed_forward_length", From::Whole(&["intermediate_size"])),
            key("rope.dimension_count", From::Rotary),
            key("attention.head_count", From::Whole(&["num_attention_heads"])),
            key("use_parallel_residual", From::Flag("use_parallel_residual")),
            key("attention.layer_norm_epsilon", From::Real(&["layer_norm_eps"])),
            key("general.file_type", From::FileType),
            key("rope.freq_base", From::Base),
        ]],
        defaults: r#"{"layer_norm_eps": 1e-5, "use_parallel_residual": true, "partial_rotary_factor": 0.25}"#,
        lengths: Lengths::Never,
        ..USUAL
    },
];
