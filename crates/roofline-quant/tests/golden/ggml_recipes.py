"""Which types llama.cpp's recipes below three and a half bits give the tensors of small models, for `ggml_recipes.json`.

    python ggml_recipes.py llama-quantize SCRATCH

`llama-quantize --dry-run` of llama.cpp, as llama-cpp-python 0.3.36 brings its source, on files of zeros, without and with an importance
matrix of ones. Types that differ from the recipe's own: names of tensors, and behind a colon their layers.
"""

import json
import re
import struct
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import numpy
from gguf import GGUFWriter

RECIPES = ["iq3_xxs", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s"]
BASES = ["IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"]
# layers, width, heads, heads of keys, experts, tied
MODELS = {
    "plain": (9, 256, 4, 2, 0, False),
    "shared": (16, 256, 8, 2, 0, False),
    "tied": (16, 288, 6, 3, 0, True),
    "mixtral": (16, 256, 4, 2, 8, False),
    "four": (9, 256, 4, 2, 4, False),
}
INNER = 256


def shapes(layers, width, heads, kv, experts, tied):
    """Names and shapes of the matrices, rows first."""
    head = width // heads
    all = {"token_embd": (8, width)} | ({} if tied else {"output": (8, width)})
    for layer in range(layers):
        all |= {f"blk.{layer}.attn_{which}": (rows, width) for which, rows in (("q", width), ("k", kv * head), ("v", kv * head))}
        all[f"blk.{layer}.attn_output"] = (width, width)
        stack = (experts,) if experts else ()
        for which, shape in (("gate", (INNER, width)), ("up", (INNER, width)), ("down", (width, INNER))):
            all[f"blk.{layer}.ffn_{which}{'_exps' if experts else ''}"] = (*stack, *shape)
        if experts:
            all[f"blk.{layer}.ffn_gate_inp"] = (experts, width)
    return all


def write(path, matrices, layers, width, heads, kv, experts):
    file = GGUFWriter(path, "llama")
    file.add_block_count(layers)
    file.add_context_length(64)
    file.add_embedding_length(width)
    file.add_feed_forward_length(INNER)
    file.add_head_count(heads)
    file.add_head_count_kv(kv)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_vocab_size(8)
    if experts:
        file.add_expert_count(experts)
        file.add_expert_used_count(2)
    for name, shape in matrices.items():
        file.add_tensor(f"{name}.weight", numpy.zeros(shape, dtype=numpy.float16))
    for name in ["output_norm", *(f"blk.{layer}.{which}_norm" for layer in range(layers) for which in ("attn", "ffn"))]:
        file.add_tensor(f"{name}.weight", numpy.ones(width, dtype=numpy.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def ones(path, matrices):
    """The older form of an importance matrix: names, how often, and as many ones as a tensor has columns."""
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(matrices)))
        for name, shape in matrices.items():
            count = shape[-1] * (shape[0] if len(shape) == 3 else 1)
            name = f"{name}.weight".encode()
            file.write(struct.pack("<i", len(name)) + name + struct.pack("<ii", 1, count) + struct.pack(f"<{count}f", *[1.0] * count))
        file.write(struct.pack("<ii", 1, 4) + b"ones")


def short(names):
    """`attn_v:0,2-4` for layers, and names of what has none."""
    split = sorted((name.split(".")[2], int(name.split(".")[1])) if name.startswith("blk.") else (name, -1) for name in names)
    told = []
    for tensor, layers in groupby(split, key=lambda one: one[0]):
        layers = [layer for _, layer in layers]
        runs = [[value for _, value in run] for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])]
        listed = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        told.append(tensor if layers == [-1] else f"{tensor}:{listed}")
    return " ".join(told)


def types(quantize, path, recipe, base, more):
    told = subprocess.run([quantize, "--dry-run", *more, path, recipe.upper()], capture_output=True, text=True)
    found = re.findall(r"\] +(\S+)\.weight +- .*?-> +[\d.]+ MiB \((\w+)\)", told.stdout + told.stderr, re.IGNORECASE)
    assert found, told.stdout + told.stderr
    by_type = {}
    for name, ty in found:
        if ty.upper() != base and "ffn_gate_inp" not in name and "norm" not in name:
            by_type.setdefault(ty.upper(), []).append(name)
    return {ty: short(names) for ty, names in sorted(by_type.items())}


def main():
    quantize, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    made = {"provenance": "Made by ggml_recipes.py: llama-quantize --dry-run of llama-cpp-python 0.3.36.", "models": {}}
    for name, (layers, width, heads, kv, experts, tied) in MODELS.items():
        matrices = shapes(layers, width, heads, kv, experts, tied)
        path, matrix = scratch / f"{name}.gguf", scratch / f"{name}.dat"
        write(path, matrices, layers, width, heads, kv, experts)
        ones(matrix, matrices)
        both = {"plain": [], "weighed": ["--imatrix", matrix]}
        made["models"][name] = {
            recipe: {which: types(quantize, path, recipe, base, more) for which, more in both.items()} for recipe, base in zip(RECIPES, BASES)
        }
    (Path(__file__).parent / "ggml_recipes.json").write_text(json.dumps(made, indent=1) + "\n")


main()
