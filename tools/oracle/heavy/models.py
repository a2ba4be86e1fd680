"""Makes the small Llama checkpoints that the heavy oracles compare on.

    python models.py FOLDER

`tiny` is bfloat16; `tiny-f16` and `tiny-f32` have other types; `tiny-sharded` lies in five files; `tiny-tied` has one table for embedding and head, and
Llama 3's rope scaling; `tiny-edge` has zero rows and groups, outliers, negative zeros, subnormal numbers and exact ties in its weights;
`mid` is large enough to time (0.8 GB). Weights are normal with one in five hundred eight times as large.
"""

import os
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def tokenizer(folder, markers=()):
    """A byte-level BPE tokenizer trained on the source of Python's `os`, with these special tokens beside the usual four."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>", *markers]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(Path(os.__file__).read_text().split("\n"), trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(folder)


def spoil(weight):
    """Numbers that are hard to code, in the first rows of a matrix."""
    rows, columns = weight.shape
    tiny = torch.finfo(weight.dtype).tiny
    weight[0, 5] = 3.0
    weight[1 % rows, : columns // 2] = 0.0
    weight[2 % rows, :32] = -0.0
    weight[3 % rows] *= 1e-4
    weight[4 % rows] = 0.0
    weight[5 % rows, 7] = -40.0
    weight[6 % rows, :16] = torch.linspace(-4, 4, 16) * tiny
    weight[7 % rows, :] = tiny / 4
    ties = torch.tensor([6, -6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5])
    weight[8 % rows, :16] = ties / 8
    weight[9 % rows] = -weight[9 % rows].abs()
    weight[10 % rows] = weight[10 % rows].abs()
    weight[11 % rows] = 0.05


def make(folder, hidden, inner, layers, heads, kv_heads, dtype=torch.bfloat16, shard=None, edge=False, **more):
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        **more,
    )
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                spread = 0.06 if hidden <= 256 else 0.02
                weight = torch.randn(parameter.shape, generator=generator, dtype=torch.float32) * spread
                weight[torch.rand(parameter.shape, generator=generator, dtype=torch.float32) < 0.002] *= 8
                parameter.copy_(weight.to(dtype))
                if edge and "layers." in name:
                    spoil(parameter)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    tokenizer(folder)


MODELS = {
    "tiny": lambda to: make(to, 256, 768, 2, 4, 2),
    "tiny-f16": lambda to: make(to, 256, 768, 2, 4, 2, dtype=torch.float16),
    "tiny-f32": lambda to: make(to, 256, 768, 2, 4, 2, dtype=torch.float32),
    "tiny-sharded": lambda to: make(to, 256, 768, 2, 4, 2, shard="1MB"),
    "tiny-tied": lambda to: make(to, 256, 768, 3, 4, 2, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "tiny-edge": lambda to: make(to, 256, 768, 2, 4, 2, edge=True),
    "tiny-edge-f16": lambda to: make(to, 256, 768, 2, 4, 2, edge=True, dtype=torch.float16),
    "mid": lambda to: make(to, 4096, 11008, 2, 32, 32),
}


def ensure(folder, name):
    """The model's folder, made if it is not there."""
    path = Path(folder) / name
    if not (path / "tokenizer.json").exists():
        MODELS[name](path)
    return path


if __name__ == "__main__":
    for name in MODELS:
        print(ensure(sys.argv[1], name))
