"""The small models that the engine is held to: one configuration of every family, in the words of the released ones.

Sizes are odd where a family allows it, so that nothing fits by chance: heads in threes, widths that no vector divides. Windows, caps and the borders of
rope scaling are so small that 24 tokens cross them. `MATTERS` names, for each family, changes of the configuration that must be seen in the logits.
"""


def config(model_type, architecture, **more):
    """What the released configurations of most families have."""
    usual = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": 97,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return {name: value for name, value in (usual | more).items() if value is not ABSENT}


ABSENT = object()

# Wavelengths of a head of 20 run from 6 to 5700 tokens: one is kept, some are blended, the others are stretched.
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# With a base of 1000, the blend runs from the second frequency of a head of 20 to the fourth, and its borders lie between two.
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
# As released, but for the length.
RELEASED_YARN = YARN | {"factor": 32.0, "beta_fast": 32.0}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.25],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 8.0, 12.0, 16.0],
}

GEMMA = {
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
GPT_OSS = {
    "num_hidden_layers": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "attention_bias": True,
}

FAMILIES = {
    # Llama 3.1.
    "llama": config(
        "llama", "LlamaForCausalLM", vocab_size=131, hidden_size=60, intermediate_size=56, rope_scaling=LLAMA3_ROPE, rope_theta=500000.0
    ),
    # SmolLM2 and Llama 3.2, and in the words of newer configurations. All widths are multiples of 32.
    "llama-tied": config(
        "llama",
        "LlamaForCausalLM",
        hidden_size=64,
        intermediate_size=32,
        head_dim=32,
        num_attention_heads=2,
        tie_word_embeddings=True,
        rope_theta=ABSENT,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        torch_dtype=ABSENT,
        dtype="bfloat16",
    ),
    "llama-bias": config(
        "llama", "LlamaForCausalLM", hidden_size=48, intermediate_size=72, head_dim=20, attention_bias=True, mlp_bias=True
    ),
    "mistral": config(
        "mistral",
        "MistralForCausalLM",
        hidden_size=42,
        intermediate_size=56,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=7,
    ),
    "mixtral": config(
        "mixtral",
        "MixtralForCausalLM",
        hidden_size=48,
        intermediate_size=24,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
        rope_theta=1e6,
    ),
    # A window that is not to be used.
    "qwen2": config(
        "qwen2",
        "Qwen2ForCausalLM",
        vocab_size=131,
        hidden_size=60,
        intermediate_size=56,
        use_sliding_window=False,
        sliding_window=5,
        max_window_layers=1,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=True,
    ),
    "qwen3": config(
        "qwen3",
        "Qwen3ForCausalLM",
        hidden_size=42,
        intermediate_size=56,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        attention_bias=False,
        use_sliding_window=False,
        sliding_window=None,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
    ),
    # The second layer is dense.
    "qwen3-moe": config(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        hidden_size=48,
        intermediate_size=56,
        moe_intermediate_size=24,
        head_dim=20,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
        attention_bias=False,
        use_sliding_window=False,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
    ),
    "gemma": config("gemma", "GemmaForCausalLM", **GEMMA, hidden_size=48, intermediate_size=72, head_dim=32),
    "gemma2": config(
        "gemma2",
        "Gemma2ForCausalLM",
        **GEMMA,
        num_hidden_layers=4,
        hidden_size=48,
        intermediate_size=56,
        head_dim=20,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=9.0,
        sliding_window=6,
    ),
    # The third of four layers sees everything.
    "gemma3-text": config(
        "gemma3_text",
        "Gemma3ForCausalLM",
        **GEMMA,
        num_hidden_layers=4,
        hidden_size=48,
        intermediate_size=56,
        head_dim=20,
        query_pre_attn_scalar=12,
        sliding_window=5,
        sliding_window_pattern=3,
        rope_theta=1000.0,
        rope_local_base_freq=100.0,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    # Phi-2.
    "phi": config(
        "phi",
        "PhiForCausalLM",
        hidden_size=48,
        intermediate_size=104,
        num_key_value_heads=3,
        hidden_act="gelu_new",
        rms_norm_eps=ABSENT,
        layer_norm_eps=1e-5,
        partial_rotary_factor=0.5,
        qk_layernorm=False,
    ),
    "phi3": config("phi3", "Phi3ForCausalLM", hidden_size=60, intermediate_size=56, sliding_window=None, rope_scaling=None),
    # 24 tokens are long, 12 are short.
    "phi3-longrope": config(
        "phi3",
        "Phi3ForCausalLM",
        hidden_size=48,
        intermediate_size=72,
        sliding_window=None,
        original_max_position_embeddings=16,
        rope_scaling=LONGROPE,
    ),
    "gpt-oss": config(
        "gpt_oss",
        "GptOssForCausalLM",
        **GPT_OSS,
        hidden_size=40,
        intermediate_size=24,
        head_dim=20,
        rope_theta=1000.0,
        rope_scaling=YARN,
        swiglu_limit=1.5,
    ),
    # As released: experts in blocks of 32.
    "gpt-oss-mxfp4": config(
        "gpt_oss",
        "GptOssForCausalLM",
        **GPT_OSS,
        hidden_size=64,
        intermediate_size=32,
        head_dim=16,
        rope_theta=150000.0,
        rope_scaling=RELEASED_YARN,
        swiglu_limit=7.0,
        quantization_config={
            "quant_method": "mxfp4",
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
        },
    ),
}

MATTERS = {
    "llama": {"rope_scaling": None, "rope_theta": 10000.0},
    "mistral": {"sliding_window": 8},
    "mixtral": {"num_experts_per_tok": 1},
    "qwen3-moe": {"norm_topk_prob": False, "num_experts_per_tok": 1},
    "gemma": {"hidden_act": "silu"},
    "gemma2": {
        "hidden_activation": "silu",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "query_pre_attn_scalar": 20,
        "sliding_window": 7,
    },
    "gemma3-text": {
        "query_pre_attn_scalar": 20,
        "sliding_window": 6,
        "sliding_window_pattern": 2,
        "rope_theta": 100.0,
        "rope_local_base_freq": 1000.0,
        "rope_scaling": None,
    },
    "phi": {"partial_rotary_factor": 1.0, "layer_norm_eps": 0.1},
    "phi3-longrope": {"rope_scaling": None, "original_max_position_embeddings": 64, "max_position_embeddings": 64},
    "gpt-oss": {"rope_scaling": YARN | {"truncate": True}, "sliding_window": 7, "swiglu_limit": 7.0, "num_experts_per_tok": 1},
    "gpt-oss-mxfp4": {"rope_scaling": RELEASED_YARN | {"factor": 4.0}, "sliding_window": 7},
}
