"""Proves that MLX checkpoints are what MLX computes and mlx-lm loads.

    python mlx_checkpoints.py BINARY FOLDER [FAMILY ...]

Every tensor of every scheme is byte-equal to `mx.quantize` of the same weight, in three types. Small random models of each family are loaded by
mlx-lm, strictly, and their logits are those of transformers with the decoded weights, in FP32: names, stacks of experts, rotary bases, tied heads
and schemes by module all count. What mlx-lm's own converter makes of the same checkpoint is read and decoded.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import logits, relative, token_ids
from checks import Checks, Tensor, header, quantize, read_folder

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

import box_models
import models

# Group, bits, mode.
SCHEMES = {f"int{bits}-g{group}-zp16": (group, bits, "affine") for bits in (2, 3, 4, 6, 8) for group in (32, 64, 128)}
SCHEMES |= {"mxfp4a16": (32, 4, "mxfp4"), "mxfp8a16": (32, 8, "mxfp8"), "nvfp4a16": (16, 4, "nvfp4")}
TYPES = {mx.bfloat16: "BF16", mx.float16: "F16", mx.float32: "F32", mx.uint32: "U32", mx.uint8: "U8"}
# One scheme; symmetric ones; several, with table and head; experts apart; nothing but one role.
PLANS = ["mlx-4bit", "int3", "mlx-4bit,down=mlx-6bit,embedding=mlx-8bit,head=mlx-8bit,layers.0.query=keep", "mxfp4a16,output=mxfp8a16", "ffn=mlx-2bit"]


def raw(array):
    dtype = TYPES[array.dtype]
    wide = array.view(mx.uint16) if dtype in ("BF16", "F16") else array
    return Tensor(dtype, tuple(array.shape), np.array(wide).tobytes())


def make(checks, binary, name, model, plan, to, *more):
    shutil.rmtree(to, ignore_errors=True)
    done = quantize(binary, model, plan, to, *more)
    return checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else "")


def codings(checks, binary, model, scheme, work):
    """Every byte of every scheme, against the library."""
    name, ours = f"{model.name} {scheme}", work / "ours"
    if not make(checks, binary, name, model, scheme, ours, "--as", "mlx"):
        return
    group, bits, mode = SCHEMES[scheme]
    wanted = {}
    for path in sorted(model.glob("*.safetensors")):
        for key, weight in mx.load(str(path)).items():
            if ".layers." in key and key.endswith("_proj.weight"):
                parts = mx.quantize(weight, group_size=group, bits=bits, mode=mode)
                module = key.removesuffix(".weight")
                wanted |= {f"{module}.{part}": raw(array) for part, array in zip(("weight", "scales", "biases"), parts)}
            else:
                wanted[key] = raw(weight)
    checks.same_tensors(f"{name}: every byte is MLX's", read_folder(ours), wanted)
    formats = {header(path)[0]["__metadata__"]["format"] for path in ours.glob("*.safetensors")}
    checks.check(f"{name}: the files say mlx", formats == {"mlx"})


def mlx_logits(folder):
    model, _ = load_model(Path(folder), strict=True)
    return torch.tensor(np.array(model(mx.array(token_ids().numpy())).astype(mx.float32)))


def family(checks, binary, name, folder, work):
    model = box_models.ensure(folder, name, torch.float32)
    # The site of Starcoder 2's feed-forward products is not known by name.
    for plan in (plan for plan in PLANS if name != "starcoder2" or not plan.startswith("ffn")):
        ours, plain = work / "ours", work / "plain"
        label = f"{name} {plan}"
        if not make(checks, binary, label, model, plan, ours, "--as", "mlx"):
            continue
        if not make(checks, binary, f"{label}: decoded", ours, "fp32", plain):
            continue
        theirs = logits(plain)
        try:
            found = mlx_logits(ours)
        except (TypeError, ValueError) as error:
            checks.check(f"{label}: mlx-lm loads it", False, str(error)[:200])
            continue
        off = relative(found, theirs)
        checks.check(f"{label}: mlx-lm's logits", off < 1e-3, f"{off:.1e} from the decoded weights, {relative(theirs, logits(model)):.3f} from the original")
        names = set(read_folder(model)) - (set(read_folder(plain)))
        checks.check(f"{label}: has its names again", names <= {"lm_head.weight"}, f"{sorted(names)[:3]}")


def converted(checks, binary, name, folder, work):
    """What mlx-lm itself writes, read and decoded."""
    model = box_models.ensure(folder, name, torch.float32)
    ours = work / "ours"
    if not make(checks, binary, f"{name} for its configuration", model, "mlx-4bit", ours, "--as", "mlx"):
        return
    # mlx-lm takes defaults for what transformers 5 writes elsewhere, so it is given the configuration that we write.
    settings = json.loads((ours / "config.json").read_text())
    settings = {key: value for key, value in settings.items() if not key.startswith("quantization")}
    source = work / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(model, source)
    (source / "config.json").write_text(json.dumps(settings))
    loaded, config = load_model(source, strict=True)
    loaded, config = quantize_model(loaded, config, group_size=64, bits=4)
    theirs, plain = work / "theirs", work / "plain"
    shutil.rmtree(theirs, ignore_errors=True)
    save_model(theirs, loaded)
    save_config(config, theirs / "config.json")
    if make(checks, binary, f"{name} of mlx-lm: decoded", theirs, "fp32", plain):
        # What transformers needs beside the weights is that of the source.
        stated = json.loads((model / "config.json").read_text())
        (plain / "config.json").write_text(json.dumps(stated))
        off = relative(logits(plain), mlx_logits(theirs))
        checks.check(f"{name} of mlx-lm: logits", off < 1e-3, f"{off:.1e}")


def main():
    binary, folder, *chosen = sys.argv[1:]
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        work = Path(work)
        if not chosen:
            for model in ("tiny", "tiny-f16", "tiny-f32", "tiny-sharded"):
                for scheme in SCHEMES:
                    codings(checks, binary, models.ensure(folder, model), scheme, work)
        for name in chosen or [one for one in box_models.FAMILIES if one != "falcon"]:
            family(checks, binary, name, folder, work)
        for name in chosen or ["llama", "qwen3", "gemma3_text", "mixtral", "qwen3_moe"]:
            converted(checks, binary, name, folder, work)
        if not chosen:
            done = quantize(binary, box_models.ensure(folder, "falcon"), "mlx-4bit", work / "refused", "--as", "mlx")
            checks.check("falcon: refused by name", done.code == 2 and "mlx-lm" in done.err, done.err.strip()[:120])
    checks.finish()


if __name__ == "__main__":
    main()
