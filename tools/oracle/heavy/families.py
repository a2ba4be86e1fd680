"""Makes a small random model of every family, as transformers saves it.

    python families.py FOLDER [FAMILY ...]

Each function of `FAMILIES` gives a model of two layers or so, about 256 wide, with a vocabulary of 512 and four experts where the family has experts. All
matrices are multiples of 256 wide, so that every type fits. Weights are normal with a spread of 0.05 around what the family starts from, norms
and biases included: nothing is flat, and nothing that is misplaced stays unseen. They are stored as bfloat16.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sentencepiece
import tokenizers
import torch
import transformers as t
from tokenizers import Tokenizer

import models

VOCABULARY = models.VOCABULARY
SPREAD = 0.05
# Markers of images and videos: no token of `common.token_ids`.
IMAGE, VIDEO, VISION = 3, 4, 0


def text(**more):
    """What most configurations call the same."""
    usual = {
        "vocab_size": VOCABULARY,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
        "tie_word_embeddings": False,
    }
    return usual | more


# A vision tower: two layers, pictures of 4 x 4 patches.
CLIP = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}


def llama():
    return t.LlamaForCausalLM(t.LlamaConfig(**text()))


def mistral():
    return t.MistralForCausalLM(t.MistralConfig(**text(head_dim=64, sliding_window=None)))


def mixtral():
    return t.MixtralForCausalLM(t.MixtralConfig(**text(num_local_experts=4, num_experts_per_tok=2, sliding_window=None)))


def qwen2():
    return t.Qwen2ForCausalLM(t.Qwen2Config(**text()))


def qwen2_moe():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}
    return t.Qwen2MoeForCausalLM(t.Qwen2MoeConfig(**text(**experts, decoder_sparse_step=1, norm_topk_prob=False)))


def qwen3():
    return t.Qwen3ForCausalLM(t.Qwen3Config(**text(head_dim=64)))


def qwen3_moe():
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True}
    return t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**text(**experts, head_dim=64, decoder_sparse_step=1)))


GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 32, "tie_word_embeddings": True}


def gemma2():
    return t.Gemma2ForCausalLM(t.Gemma2Config(**text(**GEMMA)))


# The last of six layers sees everything, as in the released ones.
GEMMA3 = GEMMA | {"num_hidden_layers": 6}


def gemma3_text():
    return t.Gemma3ForCausalLM(t.Gemma3TextConfig(**text(**GEMMA3)))


def gemma3():
    markers = {"boi_token_index": VISION, "eoi_token_index": VIDEO, "image_token_index": IMAGE}
    config = t.Gemma3Config(text_config=text(**GEMMA3), vision_config=CLIP, mm_tokens_per_image=4, **markers)
    return t.Gemma3ForConditionalGeneration(config)


def qwen2_5_vl():
    rope = {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1000000.0}
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "out_hidden_size": 256,
        "fullatt_block_indexes": [1],
    }
    markers = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION,
        "vision_end_token_id": VISION,
    }
    config = t.Qwen2_5_VLConfig(text_config=text(rope_parameters=rope), vision_config=vision, **markers)
    return t.Qwen2_5_VLForConditionalGeneration(config)


def llava():
    config = t.LlavaConfig(
        text_config=t.LlamaConfig(**text()),
        vision_config=t.CLIPVisionConfig(**CLIP, projection_dim=64),
        image_token_index=IMAGE,
        image_seq_length=16,
    )
    return t.LlavaForConditionalGeneration(config)


def phi3():
    return t.Phi3ForCausalLM(t.Phi3Config(**text(sliding_window=None, original_max_position_embeddings=512)))


def gpt_oss():
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 64, "sliding_window": 32}
    # As released, but for the first window, and that llama.cpp rounds the borders between frequencies, which the released ones do not.
    rope = {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
        "original_max_position_embeddings": 64,
    }
    sizes = {"intermediate_size": 256, "max_position_embeddings": 2048}
    return t.GptOssForCausalLM(t.GptOssConfig(**text(**experts, **sizes, rope_parameters=rope)))


DEEPSEEK = {
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 256,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 256,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "routed_scaling_factor": 2.5,
}
# Stretched, as all released ones.
DEEPSEEK_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}


def deepseek_v2():
    choice = {"topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "scoring_func": "softmax"}
    rope = DEEPSEEK_ROPE | {"mscale": 0.707, "mscale_all_dim": 0.707}
    return t.DeepseekV2ForCausalLM(t.DeepseekV2Config(**text(**DEEPSEEK, **choice, rope_parameters=rope)))


def deepseek_v3():
    choice = {"n_group": 2, "topk_group": 1, "norm_topk_prob": True, "scoring_func": "sigmoid"}
    return t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**text(**DEEPSEEK, **choice, rope_parameters=DEEPSEEK_ROPE)))


LLAMA4 = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "intermediate_size": 256,
    "intermediate_size_mlp": 512,
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 64,
    "rope_parameters": models.LLAMA3_ROPE | {"factor": 16.0},
}


def llama4_text():
    return t.Llama4ForCausalLM(t.Llama4TextConfig(**text(**LLAMA4)))


def llama4():
    vision = CLIP | {"intermediate_size": 256, "vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64}
    markers = {"boi_token_index": VISION, "eoi_token_index": VIDEO, "image_token_index": IMAGE}
    config = t.Llama4Config(text_config=text(**LLAMA4), vision_config=vision, **markers, tie_word_embeddings=False)
    return t.Llama4ForConditionalGeneration(config)


def glm4():
    return t.Glm4ForCausalLM(t.Glm4Config(**text(head_dim=64, attention_bias=True)))


def olmo2():
    return t.Olmo2ForCausalLM(t.Olmo2Config(**text()))


def granite():
    scales = {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 8.0}
    return t.GraniteForCausalLM(t.GraniteConfig(**text(**scales, tie_word_embeddings=True)))


def starcoder2():
    return t.Starcoder2ForCausalLM(t.Starcoder2Config(**text(sliding_window=None, tie_word_embeddings=True)))


def falcon():
    # The 7B's shape: one head of keys, norms without a second, no biases.
    config = text(multi_query=True, num_kv_heads=1, new_decoder_architecture=False, parallel_attn=True, bias=False, tie_word_embeddings=True)
    return t.FalconForCausalLM(t.FalconConfig(**config, ffn_hidden_size=1024))


def falcon_40b():
    # Groups of queries with their key and value, and two norms.
    config = text(num_kv_heads=2, new_decoder_architecture=True, parallel_attn=True, bias=False, tie_word_embeddings=True)
    return t.FalconForCausalLM(t.FalconConfig(**config, ffn_hidden_size=1024))


def gpt_neox():
    return t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**text(rotary_pct=0.25, use_parallel_residual=True, hidden_act="gelu")))


FAMILIES = {
    function.__name__.replace("_", "-"): function
    for function in [
        llama,
        mistral,
        mixtral,
        qwen2,
        qwen2_moe,
        qwen3,
        qwen3_moe,
        gemma2,
        gemma3_text,
        gemma3,
        qwen2_5_vl,
        llava,
        phi3,
        gpt_oss,
        deepseek_v2,
        deepseek_v3,
        llama4_text,
        llama4,
        glm4,
        olmo2,
        granite,
        starcoder2,
        falcon,
        falcon_40b,
        gpt_neox,
    ]
}


# Those whose tokenizer is SentencePiece's, and its markers.
PIECES = {
    "gemma2": ["<start_of_turn>", "<end_of_turn>"],
    "gemma3": ["<start_of_turn>", "<end_of_turn>"],
    "gemma3-text": ["<start_of_turn>", "<end_of_turn>"],
    # llama.cpp asks for these by name.
    "phi3": ["<s>", "</s>", "<|endoftext|>"],
}
# Markers that a family's tokenizer always has.
MARKERS = {"glm4": ["<|endoftext|>", "<|user|>"]}


def pieces(folder, markers):
    """SentencePiece's tokenizer, trained on the source of Python's `os`, and the `tokenizer.json` that transformers makes of it."""
    special = {"pad_piece": "<pad>", "pad_id": 0, "eos_piece": "<eos>", "eos_id": 1, "bos_piece": "<bos>", "bos_id": 2, "unk_id": 3}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(Path(os.__file__).read_text().split("\n")),
        model_prefix=str(Path(folder) / "tokenizer"),
        vocab_size=VOCABULARY,
        model_type="bpe",
        byte_fallback=True,
        user_defined_symbols=markers,
        minloglevel=2,
        **special,
    )
    (Path(folder) / "tokenizer.vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(str(Path(folder) / "tokenizer.model"))
    words = {model.id_to_piece(at): at for at in range(model.vocab_size())}
    # A pair is merged in the order of what it makes.
    cuts = [(words[word], word[:at], word[at:]) for word in words for at in range(1, len(word))]
    merges = [(a, b) for _, a, b in sorted(cuts) if a in words and b in words and words[a] > 260 and words[b] > 260]
    made = Tokenizer(tokenizers.models.BPE(words, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    made.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    made.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", *markers])
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    t.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)


def fill(model):
    """Random numbers around what the model started from, the same every time."""
    generator = torch.Generator().manual_seed(1)
    tensors = dict(model.named_parameters())
    # DeepSeek-V3 chooses its experts by a buffer.
    tensors |= {name: tensor for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias")}
    with torch.no_grad():
        for name, tensor in tensors.items():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32) * SPREAD
            start = tensor.float() if tensor.ndim == 1 else 0.0
            if name.endswith("e_score_correction_bias"):
                start = 0.0
            tensor.copy_((start + noise).to(torch.bfloat16))


def make(folder, family):
    torch.manual_seed(0)
    model = FAMILIES[family]().to(torch.float32)
    fill(model)
    # Buffers that are computed keep their precision until they are saved, which leaves them out.
    model.to(torch.bfloat16).save_pretrained(folder)
    if family in PIECES:
        pieces(folder, PIECES[family])
    else:
        models.tokenizer(folder, MARKERS.get(family, []))


def ensure(folder, family):
    """The family's folder, made if it is not there."""
    path = Path(folder) / family
    if not (path / "tokenizer.json").exists():
        make(path, family)
    return path


if __name__ == "__main__":
    for family in sys.argv[2:] or FAMILIES:
        print(ensure(sys.argv[1], family), flush=True)
