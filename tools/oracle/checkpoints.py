"""Small Llama checkpoints, made with numpy: weights that are hard to code, in every type, in one file or several."""

import json

import numpy as np
from safetensors.numpy import save_file

from reference.numbers import TYPES, F32

VOCABULARY = 320
TYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def matrix(rng, rows, columns, type_name, hard=True, tame=False):
    """Normal weights with outliers; the first rows are `hard`: zeros, ties, subnormal numbers. `tame` leaves out the numbers that are
    subnormal in FP32, whose reciprocals are infinite."""
    dtype = TYPES[type_name]
    weight = (rng.standard_normal((rows, columns)) * 0.06).astype(F32)
    weight[rng.random((rows, columns)) < 0.003] *= 8
    if not hard:
        return weight.astype(dtype)
    tiny = 1e-7 if tame else float(np.finfo(np.float16).tiny if type_name == "F16" else np.finfo(F32).tiny)
    ties = np.array([6, -6, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5], F32)

    def front(row, values):
        values = np.asarray(values, F32)[:columns]
        weight[row, : len(values)] = values

    changes = [
        lambda row: front(row, [3.0]),
        lambda row: front(row, np.zeros(columns // 2)),
        lambda row: front(row, np.full(32, -0.0)),
        lambda row: front(row, weight[row] * 1e-4),
        lambda row: front(row, np.zeros(columns)),
        lambda row: front(row, [0.1, -40.0]),
        lambda row: front(row, np.linspace(-4, 4, 16) * tiny),
        lambda row: front(row, np.full(columns, tiny / 4)),
        lambda row: front(row, ties / 8),
        # Exact ties of INT4 and INT8: scales of one.
        lambda row: front(row, np.concatenate([[7.5], np.arange(-7, 7) + 0.5] * (columns // 15 + 1))),
        lambda row: front(row, np.concatenate([[127.5], np.arange(-100, 100, 3) + 0.5] * (columns // 67 + 1))),
        lambda row: front(row, -np.abs(weight[row])),
        lambda row: front(row, np.abs(weight[row])),
        lambda row: front(row, np.full(columns, 0.05)),
        lambda row: front(row, np.full(columns, -0.0)),
        lambda row: front(row, [448 / 256, 1.75, 1.7421875, 7 / 64]),
    ]
    for row, change in enumerate(changes[:rows]):
        change(row)
    return weight.astype(dtype)


def llama(rng, type_name, hidden=256, inner=512, heads=4, kv_heads=2, layers=2, hard=True, tame=False, tied=False):
    """The tensors of a Llama that runtimes load."""
    dtype = TYPES[type_name]
    narrow = hidden // heads * kv_heads
    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (narrow, hidden),
        "self_attn.v_proj": (narrow, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors = {"model.embed_tokens.weight": matrix(rng, VOCABULARY, hidden, type_name, hard=False)}
    for layer in range(layers):
        for module, (rows, columns) in shapes.items():
            tensors[f"model.layers.{layer}.{module}.weight"] = matrix(rng, rows, columns, type_name, hard, tame)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = (1 + 0.1 * rng.standard_normal(hidden)).astype(dtype)
    tensors["model.norm.weight"] = np.ones(hidden, dtype)
    if not tied:
        tensors["lm_head.weight"] = matrix(rng, VOCABULARY, hidden, type_name, hard=False)
    return tensors


def odd(rng, type_name, granule):
    """Tensors with names of a Llama and the most awkward shapes for schemes whose rows are multiples of `granule`."""
    q, k, v, o, up, down = (granule * factor for factor in ((37, 37, 37, 1, 131, 129) if granule == 1 else (3, 3, 3, 1, 5, 2)))
    shapes = {
        "self_attn.q_proj": (1, q),
        "self_attn.k_proj": (7, k),
        "self_attn.v_proj": (13, v),
        "self_attn.o_proj": (20, o),
        "mlp.gate_proj": (129, up),
        "mlp.up_proj": (17, up),
        "mlp.down_proj": (131, down),
    }
    tensors = {f"model.layers.0.{module}.weight": matrix(rng, *shape, type_name) for module, shape in shapes.items()}
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.arange(3).astype(TYPES[type_name])
    tensors["model.layers.0.mlp.zeros.down_proj.weight"] = np.zeros((9, granule * 2), TYPES[type_name])
    tensors["model.norm.weight"] = np.ones(5, TYPES[type_name])
    return tensors


def config(type_name, hidden=256, inner=512, heads=4, kv_heads=2, layers=2, tied=False, rope=None):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_parameters": rope or {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": TYPE_NAMES[type_name],
        "a_key_of_the_future": {"kept": True},
    }


def tokenizer():
    """A byte-level BPE tokenizer: four special tokens, the 256 bytes, some merges."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + at) for at, byte in enumerate(other)}
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    tokens = special + [letters[byte] for byte in range(256)]
    merges = []
    space = letters[ord(" ")]
    for pair in ["t h", "th e", f"{space} the", "i n", f"{space} t", "r e", f"{space} a", "o n", "a n", "an d", f"{space} and", "e r"]:
        merges.append(pair.split(" "))
        tokens.append(pair.replace(" ", ""))
    added = [
        {"id": at, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        for at, token in enumerate(special)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: at for at, token in enumerate(tokens)},
        "merges": merges,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": model,
    }


def write(folder, tensors, settings, shards=1):
    """A checkpoint's folder. With several shards neighbours by name lie in different files, fused weights among them."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    place = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensor for at, (name, tensor) in enumerate(sorted(tensors.items())) if at % shards == shard}
        save_file(part, folder / file, {"format": "pt"})
        place |= {name: file for name in part}
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder
