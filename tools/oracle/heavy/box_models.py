"""Makes small random models of several families, for the oracles of bitsandbytes and MLX.

They are of transformers' own classes, with dimensions that every scheme can group, and weights as `models.py` draws them.
"""

from pathlib import Path

import torch
import transformers
from models import VOCABULARY, tokenizer

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
THETA = {"rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}}
GEMMA3 = {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "sliding_window": 16,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
}
VISION = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28, "patch_size": 14}

# The class of the configuration, and what differs from the sizes.
FAMILIES = {
    "llama": ("LlamaConfig", THETA),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True, **THETA}),
    "mistral": ("MistralConfig", {**THETA, "head_dim": 64}),
    "qwen2": ("Qwen2Config", THETA),
    "qwen3": ("Qwen3Config", {**THETA, "head_dim": 64, "tie_word_embeddings": True}),
    "gemma": ("GemmaConfig", {"head_dim": 64}),
    "gemma2": ("Gemma2Config", {"head_dim": 64, "query_pre_attn_scalar": 64}),
    "gemma3_text": ("Gemma3TextConfig", GEMMA3),
    "phi3": ("Phi3Config", THETA),
    "olmo2": ("Olmo2Config", THETA),
    "granite": ("GraniteConfig", THETA),
    "starcoder2": ("Starcoder2Config", {**THETA, "use_bias": True}),
    "glm4": ("Glm4Config", {"head_dim": 64}),
    "mixtral": ("MixtralConfig", {**THETA, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**THETA, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128},
    ),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**THETA, "num_experts": 12, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 64, "norm_topk_prob": True},
    ),
    "olmoe": ("OlmoeConfig", {**THETA, "num_experts": 4, "num_experts_per_tok": 2}),
    "falcon": ("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 384}),
}


def configuration(family):
    name, more = FAMILIES[family]
    return getattr(transformers, name)(**{**SIZES, **more})


def seeing(family):
    """Models that see, whose modules transformers has elsewhere than their checkpoints say."""
    text = {**SIZES, "head_dim": 64}
    if family == "gemma3":
        config = transformers.Gemma3Config(text_config={**SIZES, **GEMMA3}, vision_config=VISION, mm_tokens_per_image=1)
        return transformers.Gemma3ForConditionalGeneration, config
    if family == "llava":
        config = transformers.LlavaConfig(
            text_config={"model_type": "llama", **text}, vision_config={"model_type": "clip_vision_model", "projection_dim": 64, **VISION}
        )
        return transformers.LlavaForConditionalGeneration, config
    vision = {"depth": 2, "hidden_size": 128, "intermediate_size": 192, "num_heads": 4, "out_hidden_size": 256, "patch_size": 14}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
    config = transformers.Qwen2_5_VLConfig(text_config={**SIZES, "rope_parameters": rope}, vision_config=vision)
    return transformers.Qwen2_5_VLForConditionalGeneration, config


SEEING = ["gemma3", "llava", "qwen2_5_vl"]


def ensure(folder, family, dtype=torch.bfloat16):
    """The folder of a model of the family, made if it is not there."""
    path = Path(folder) / f"box-{family}-{str(dtype).removeprefix('torch.')}"
    if (path / "tokenizer.json").exists():
        return path
    torch.manual_seed(0)
    if family in SEEING:
        made, config = seeing(family)
        model = made(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(configuration(family))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                weight = torch.randn(parameter.shape, generator=generator) * 0.06
                weight[torch.rand(parameter.shape, generator=generator) < 0.002] *= 8
                parameter.copy_(weight)
            else:
                # Vectors with a sign: norms that are taken for others would show.
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.to(dtype).save_pretrained(path)
    tokenizer(path)
    return path
