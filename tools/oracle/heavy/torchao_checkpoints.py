"""Proves that torchao checkpoints are what transformers with torchao writes and loads.

    python torchao_checkpoints.py BINARY FOLDER [MODEL ...]

For every scheme that torchao computes without a GPU, the same checkpoint is quantized and saved by transformers: our tensors have its names,
types, shapes and bytes, our metadata the same descriptions, and the logits of both, as loaded, are identical. Plain INT4, whose kernels need
a GPU, is loaded and its parts are compared with torchao's formula.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import logits, relative
from checks import Checks, header, quantize, read_folder

import numpy as np
import torch
from reference import torchao as reference
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, MappingType
from torchao.quantization.granularity import PerGroup
from transformers import AutoModelForCausalLM, TorchAoConfig

import models

CONFIGURATIONS = {
    "w8a16": Int8WeightOnlyConfig,
    "int8-g128": lambda: Int8WeightOnlyConfig(granularity=PerGroup(128)),
    "fp8a16": Float8WeightOnlyConfig,
    "w4a16": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(128)),
    "int4-g32": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int4-g32-zp": lambda: IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=MappingType.ASYMMETRIC
    ),
}
INT4 = ["int4-g128-zp16", "int4-g64-zp16", "int4-g32-zp16"]


def descriptions(folder):
    """The metadata of every file, as objects."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for key, text in header(path)[0]["__metadata__"].items():
            found[key] = sorted(json.loads(text)) if key == "tensor_names" else text if key == "format" else json.loads(text)
    return found


def compare(checks, binary, name, model, scheme, work, *more, kept=None, tied=False):
    ours, theirs = work / "ours", work / "theirs"
    for folder in (ours, theirs):
        shutil.rmtree(folder, ignore_errors=True)
    done = quantize(binary, model, scheme, ours, "--as", "torchao", *more)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    # The library keeps the head unless told what else to keep.
    settings = TorchAoConfig(CONFIGURATIONS[scheme](), modules_to_not_convert=kept and [*kept, "lm_head"])
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", device_map="cpu", quantization_config=settings)
    loaded.save_pretrained(theirs)
    checks.same_tensors(f"{name}: tensors", read_folder(ours), read_folder(theirs))
    a, b = descriptions(ours), descriptions(theirs)
    if tied:
        # Theirs also describes the head, which no file holds.
        b.pop("lm_head.weight", None)
        b["tensor_names"].remove("lm_head.weight")
    wrong = [key for key in a.keys() | b.keys() if a.get(key) != b.get(key)]
    checks.check(f"{name}: descriptions", not wrong, "; ".join(f"{key}: {a.get(key)} instead of {b.get(key)}" for key in wrong[:2]))
    a, b = (json.loads((folder / "config.json").read_text())["quantization_config"] for folder in (ours, theirs))
    wrong = {key: (a.get(key), b.get(key)) for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
    # Ours may leave the head unnamed: loaders see that it is stored whole.
    if kept and set(a["modules_to_not_convert"]) | {"lm_head"} == set(b["modules_to_not_convert"]):
        wrong.pop("modules_to_not_convert", None)
    checks.check(f"{name}: quantization_config", not wrong, f"{wrong}" if wrong else "")
    a, b = logits(ours), logits(theirs)
    detail = f"rel. rms to the original {relative(a, logits(model)):.4f}"
    checks.check(f"{name}: logits", torch.equal(a, b), detail)


def plain_int4(checks, binary, name, model, scheme, work):
    ours = work / "ours"
    shutil.rmtree(ours, ignore_errors=True)
    done = quantize(binary, model, scheme, ours, "--as", "torchao")
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    original = AutoModelForCausalLM.from_pretrained(model, dtype="auto").state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(ours, dtype="auto", device_map="cpu").state_dict()
    wrong, seen = [], 0
    for key, weight in loaded.items():
        if type(weight).__name__ != "Int4Tensor":
            continue
        seen += 1
        qdata, scale, zero = formula(original[key], reference.INT4[scheme])
        for part, value in {"qdata": qdata, "scale": scale, "zero_point": zero}.items():
            if not torch.equal(getattr(weight, part), value):
                wrong.append(f"{key} {part}")
    layers = 7 * (max(int(key.split(".")[2]) for key in original if ".layers." in key) + 1)
    checks.check(f"{name}: loads, with torchao's own numbers", seen == layers and not wrong, "; ".join(wrong[:3]) or f"{seen} weights")


def formula(weight, group):
    """What torchao's `Int4Tensor.from_hp` computes: `int4_row_quantize_zp` of MSLK, and packing."""
    groups = weight.reshape(-1, group).float()
    high, low = groups.amax(1, keepdim=True), groups.amin(1, keepdim=True)
    scale = (high - low).clamp(min=1e-6) / 15
    zero = low + scale * 8
    codes = (groups.sub(low).div(scale).round().clamp_(0, 15) - 8).to(torch.int8).reshape(weight.shape)
    packed = torch.bitwise_or(torch.bitwise_and(codes[:, ::2], 0xF), torch.bitwise_left_shift(codes[:, 1::2], 4))
    across = lambda x: x.view(weight.shape[0], -1).t().contiguous().to(weight.dtype)  # noqa: E731
    return packed, across(scale), across(zero)


def main():
    binary, folder, *chosen = sys.argv[1:]
    np.seterr(all="ignore")
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        work = Path(work)
        for model in chosen or ["tiny", "tiny-f16", "tiny-f32", "tiny-sharded", "tiny-tied"]:
            path = models.ensure(folder, model)
            for scheme in CONFIGURATIONS:
                compare(checks, binary, f"{model} {scheme}", path, scheme, work, tied="tied" in model)
            for scheme in INT4:
                plain_int4(checks, binary, f"{model} {scheme}", path, scheme, work)
        path = models.ensure(folder, "tiny")
        kept = [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)]
        compare(checks, binary, "tiny w8a16 with --keep", path, "w8a16", work, "--keep", "*.down_proj", kept=kept)
    checks.finish()


if __name__ == "__main__":
    main()
