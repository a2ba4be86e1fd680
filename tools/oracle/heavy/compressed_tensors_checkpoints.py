"""Proves that compressed-tensors checkpoints are what llm-compressor writes and transformers loads.

    python compressed_tensors_checkpoints.py BINARY FOLDER [MODEL ...]

For every scheme and model, llm-compressor's `oneshot` with a `QuantizationModifier` quantizes the same checkpoint: our tensors have its names,
types, shapes and bytes. Both are then loaded by transformers: the logits are identical, bit for bit. Plans with two schemes, modules that are kept, shards,
other number types and tied embeddings are among the cases. FOLDER holds the models and takes the results.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import logits, logits_of, relative
from checks import Checks, quantize, read_folder

import torch
from compressed_tensors.quantization import preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import models

# Ours, the library's preset, and what differs from it.
SCHEMES = {
    "w4a16": ("W4A16", {}),
    "int4-g64": ("W4A16", {"group_size": 64}),
    "int4-g32": ("W4A16", {"group_size": 32}),
    "int4-g128-zp": ("W4A16_ASYM", {}),
    "int4-g64-zp": ("W4A16_ASYM", {"group_size": 64}),
    "int4-g32-zp": ("W4A16_ASYM", {"group_size": 32}),
    "int4-channel": ("W4A16", {"group_size": None, "strategy": "channel"}),
    "int8-g128": ("W8A16", {}),
    "w8a16": ("W8A16", {"group_size": None, "strategy": "channel"}),
    "int8": ("W8A8", {}),
    "fp8": ("FP8_DYNAMIC", {}),
    "fp8-block": ("FP8_BLOCK", {}),
    "nvfp4a16": ("NVFP4A16", {}),
    "mxfp4a16": ("MXFP4A16", {}),
    "mxfp4": ("MXFP4", {}),
    "mxfp8": ("MXFP8", {}),
}

# A plan of ours, and the library's groups and exceptions for the same.
MIXED = {
    "w4a16 with int8-g128 way down": (
        'plan = "w4a16,down=int8-g128"\n',
        {"w4a16": ["re:.*(q|k|v|o|gate|up)_proj$"], "int8-g128": ["re:.*down_proj$"]},
        ["lm_head"],
    ),
    "nvfp4a16 with fp8 attention": (
        'plan = "nvfp4a16,attention=fp8"\n',
        {"fp8": ["re:.*self_attn.*"], "nvfp4a16": ["re:.*mlp.*"]},
        ["lm_head"],
    ),
    "int8 with the first layer kept": (
        'plan = "int8,layers.0=keep"\n',
        {"int8": ["Linear"]},
        ["lm_head", "re:.*layers\\.0\\..*"],
    ),
    "mxfp4a16 with an int8-g128 head": (
        'plan = "mxfp4a16,head=int8-g128"\n',
        {"mxfp4a16": ["re:.*layers.*proj$"], "int8-g128": ["lm_head"]},
        [],
    ),
}


def scheme(name, targets):
    """The library's scheme for one of ours."""
    preset, changes = SCHEMES[name]
    made = preset_name_to_scheme(preset, targets)
    made.weights = type(made.weights)(**{**made.weights.model_dump(), **changes})
    return made


def theirs(model, groups, ignore, to):
    """Quantizes with llm-compressor."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    recipe = QuantizationModifier(
        config_groups={f"group_{at}": scheme(name, targets) for at, (name, targets) in enumerate(groups.items())},
        ignore=ignore,
    )
    oneshot(model=loaded, recipe=recipe)
    loaded.save_pretrained(to, save_compressed=True)


def attempt(folder):
    """The logits, or why there are none."""
    try:
        return logits(folder), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:200]


def compare(checks, binary, name, model, plan, groups, ignore, work, *more):
    """One case: the same tensors, the same logits. Where the library cannot run its own result, ours must fail in the same words."""
    ours, reference = work / "ours", work / "theirs"
    for folder in (ours, reference):
        shutil.rmtree(folder, ignore_errors=True)
    done = quantize(binary, model, plan, ours, *more)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    theirs(model, groups, ignore, reference)
    checks.same_tensors(f"{name}: tensors", read_folder(ours), read_folder(reference))
    (a, failure), (b, theirs_failure) = attempt(ours), attempt(reference)
    if failure or theirs_failure:
        if checks.check(f"{name}: transformers treats both alike", failure == theirs_failure, failure or theirs_failure):
            checks.skip(f"{name}: logits", "transformers cannot run the library's own checkpoint either")
        return
    detail = f"rel. rms to the original {relative(a, logits(model)):.4f}"
    if not torch.equal(a, b):
        detail += f", to theirs {relative(a, b):.2e}"
    checks.check(f"{name}: logits", torch.equal(a, b), detail)
    decoded(checks, binary, name, ours, work / "decoded")


def decoded(checks, binary, name, ours, to):
    """Decoding ours to its own type gives the weights that the library decompresses when it runs."""
    plan = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[json.loads((ours / "config.json").read_text())["dtype"]]
    shutil.rmtree(to, ignore_errors=True)
    done = quantize(binary, ours, plan, to)
    if not checks.check(f"{name}: decodes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    found = {}
    for path in sorted(to.glob("*.safetensors")):
        found |= load_file(path)
    model = AutoModelForCausalLM.from_pretrained(ours, dtype="auto", device_map="cpu")
    logits_of(model)
    theirs = {key: weight for key, weight in model.state_dict().items() if key in found}
    wrong = [f"{key}: {(found[key] != weight).sum().item()} of {weight.numel()}" for key, weight in theirs.items() if not torch.equal(found[key], weight)]
    checks.check(f"{name}: decodes to what the library decompresses", not wrong and theirs.keys() == found.keys(), "; ".join(wrong[:3]))


def main():
    binary, folder, *chosen = sys.argv[1:]
    chosen = chosen or ["tiny", "tiny-f16", "tiny-f32", "tiny-edge", "tiny-edge-f16", "tiny-sharded", "tiny-tied"]
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        work = Path(work)
        for model in chosen:
            path = models.ensure(folder, model)
            names = ["int4-g128-zp", "fp8-block", "nvfp4a16"] if model in ("tiny-sharded", "tiny-tied") else SCHEMES
            for name in names:
                compare(checks, binary, f"{model} {name}", path, name, {name: ["Linear"]}, ["lm_head"], work)
        path = models.ensure(folder, "tiny")
        for name, (plan, groups, ignore) in MIXED.items():
            file = work / "plan.toml"
            file.write_text(plan)
            compare(checks, binary, f"tiny {name}", path, file, groups, ignore, work)
        more = ("--keep", "*.down_proj", "--keep", "model.layers.1.self_attn.*")
        ignore = ["lm_head", "re:.*down_proj$", "re:model\\.layers\\.1\\.self_attn.*"]
        for name in ("w4a16", "nvfp4a16"):
            case = f"tiny {name} with --keep"
            compare(checks, binary, case, path, name, {name: ["Linear"]}, ignore, work, *more)
            kept = json.loads((work / "ours" / "config.json").read_text())["quantization_config"]["ignore"]
            expected = {"lm_head", "model.layers.0.mlp.down_proj"}
            checks.check(f"{case}: the configuration names what is kept", expected <= set(kept), f"{len(kept)} modules")
    checks.finish()


if __name__ == "__main__":
    main()
