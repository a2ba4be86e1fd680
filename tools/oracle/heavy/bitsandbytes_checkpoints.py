"""Proves that bitsandbytes checkpoints are what transformers with bitsandbytes writes and loads.

    python bitsandbytes_checkpoints.py BINARY FOLDER [MODEL ...]

For every scheme the same checkpoint is loaded in bitsandbytes' codes and saved by transformers: codes and maxima are equal to the byte. Where maxima
are quantized once more, bitsandbytes on a CPU looks their codes up in a table of limited resolution, and PyTorch's mean of them depends on its threads:
there, one code of twenty may differ by a step or two, and the rest by rounding. Logits of both, as loaded, agree; what we decode is what
bitsandbytes decodes, from our files and from theirs. Then models of other families: with experts, with images.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import logits, logits_of, relative
from checks import Checks, Tensor, quantize, read_folder

import bitsandbytes as bnb
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig

import box_models
import models

SCHEMES = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "bnb-fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "bnb-fp4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
DTYPES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}


def make(checks, binary, name, model, plan, to, *more):
    shutil.rmtree(to, ignore_errors=True)
    done = quantize(binary, model, plan, to, *more)
    return checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else "")


def near(ours, theirs):
    """What differs by more than a second quantization of the maxima may: words, or nothing."""
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(key), theirs.get(key)
        if a is None or b is None or a.dtype != b.dtype:
            found.append(f"{key} is missing or of another type")
        elif ".quant_state." in key:
            x, y = json.loads(a.data), json.loads(b.data)
            mean = [one.pop("nested_offset", 0) for one in (x, y)]
            if x != y or not np.isclose(*mean, rtol=1e-6):
                found.append(f"{key}: {x} {mean}, expected {y}")
        elif key.endswith(".weight.absmax") and a.dtype == "U8":
            steps = np.abs(np.frombuffer(a.data, np.uint8).astype(int) - np.frombuffer(b.data, np.uint8))
            if steps.max() > 2 or (steps > 0).mean() > 0.05:
                found.append(f"{key}: {(steps > 0).sum()} of {steps.size} codes differ by up to {steps.max()}")
        elif key.endswith("nested_absmax"):
            if not np.allclose(*(np.frombuffer(one.data, np.float32) for one in (a, b)), rtol=1e-5):
                found.append(f"{key} differs")
        elif a != b:
            found.append(f"{key}: {sum(x != y for x, y in zip(a.data, b.data))} of {len(b.data)} bytes differ")
    return found


def exact(tensors):
    """Descriptions without the blanks after them."""
    strip = lambda name, one: one if ".quant_state." not in name else Tensor(one.dtype, (), one.data.rstrip())  # noqa: E731
    return {name: strip(name, one) for name, one in tensors.items()}


def decoded_by_library(folder):
    """Every weight of a loaded model that is in codes, decoded by bitsandbytes, as FP32."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", device_map="cpu")
    found = {}
    for name, module in loaded.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            found[f"{name}.weight"] = bnb.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        elif isinstance(module, bnb.nn.Linear8bitLt):
            found[f"{name}.weight"] = bnb.functional.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    return {name: weight.float().numpy() for name, weight in found.items()}


def check_decoding(checks, binary, name, folder, type_name, work):
    to = work / "decoded"
    plan = "fp32" if type_name == "int8" else DTYPES[type_name]
    if not make(checks, binary, f"{name}: decoded", folder, plan, to):
        return
    plain = AutoModelForCausalLM.from_pretrained(to, dtype="auto").state_dict()
    theirs = decoded_by_library(folder)
    # Its kernels take subnormal numbers for zero.
    same = lambda key, weight: np.allclose(plain[key].float().numpy(), weight, rtol=0, atol=float(np.finfo(np.float32).tiny))  # noqa: E731
    wrong = [key for key, weight in theirs.items() if not same(key, weight)]
    checks.check(f"{name}: decodes to bitsandbytes' numbers", theirs and not wrong, "; ".join(wrong[:3]) or f"{len(theirs)} weights")


def compare(checks, binary, name, model, scheme, work, *more):
    ours, theirs = work / "ours", work / "theirs"
    if not make(checks, binary, name, model, scheme, ours, "--as", "bitsandbytes", *more):
        return
    type_name = next(one.dtype for key, one in read_folder(model).items() if key.endswith("q_proj.weight"))
    settings = dict(SCHEMES[scheme])
    if "load_in_4bit" in settings:
        settings["bnb_4bit_compute_dtype"] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[type_name]
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype="auto", device_map="cpu", quantization_config=BitsAndBytesConfig(llm_int8_skip_modules=["lm_head"], **settings)
    )
    shutil.rmtree(theirs, ignore_errors=True)
    loaded.save_pretrained(theirs)
    a, b = exact(read_folder(ours)), exact(read_folder(theirs))
    if scheme.endswith("-dq"):
        found = near(a, b)
        checks.check(f"{name}: tensors", not found, "; ".join(found[:3]) or f"{len(a)} tensors")
    else:
        checks.same_tensors(f"{name}: tensors", a, b)
    a, b = (json.loads((folder / "config.json").read_text())["quantization_config"] for folder in (ours, theirs))
    wrong = {key: (a.get(key), b.get(key)) for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
    checks.check(f"{name}: quantization_config", not wrong, f"{wrong}" if wrong else "")
    a, b = logits(ours), logits(theirs)
    off = relative(a, b)
    same = off < 0.02 if scheme.endswith("-dq") else torch.equal(a, b)
    checks.check(f"{name}: logits", same, f"{off:.1e} from theirs, {relative(a, logits(model)):.4f} from the original")
    check_decoding(checks, binary, f"{name}, ours", ours, "int8" if scheme == "int8" else type_name, work)
    check_decoding(checks, binary, f"{name}, theirs", theirs, "int8" if scheme == "int8" else type_name, work)


def family(checks, binary, name, folder, work):
    """A family loads with what is stored: logits are those of the source, quantized by transformers with the same modules skipped."""
    model = box_models.ensure(folder, name)
    kind = AutoModelForImageTextToText if name in box_models.SEEING else AutoModelForCausalLM
    for plan, scheme in (("nf4", "nf4"), ("int8", "int8"), ("nf4-dq,layers.0.down=keep", "nf4-dq")):
        ours, plain = work / "ours", work / "plain"
        if not make(checks, binary, f"{name} {plan}", model, plan, ours, "--as", "bitsandbytes"):
            return
        settings = dict(SCHEMES[scheme])
        if "load_in_4bit" in settings:
            settings["bnb_4bit_compute_dtype"] = "bfloat16"
        skipped = json.loads((ours / "config.json").read_text())["quantization_config"]["llm_int8_skip_modules"]
        settings = BitsAndBytesConfig(llm_int8_skip_modules=skipped, **settings)
        theirs = kind.from_pretrained(model, dtype="auto", device_map="cpu", quantization_config=settings)
        loaded = kind.from_pretrained(ours, dtype="auto", device_map="cpu")
        a, b = logits_of(loaded), logits_of(theirs)
        off = relative(a, b)
        # Where experts are chosen, little changes much.
        same = off < 0.1 if scheme.endswith("-dq") else torch.equal(a, b)
        checks.check(f"{name} {plan}: logits", same and bool(torch.isfinite(a).all()), f"{off:.1e} from theirs")
        codes = (bnb.nn.Linear4bit, bnb.nn.Linear8bitLt)
        kinds = [{key for key, module in one.named_modules() if isinstance(module, codes)} for one in (loaded, theirs)]
        checks.check(f"{name} {plan}: the same modules", kinds[0] == kinds[1] and len(kinds[0]) > 5, f"{len(kinds[0])} modules")
        if not make(checks, binary, f"{name} {plan}: decoded", ours, "bf16", plain):
            return
        reference = dict(kind.from_pretrained(plain, dtype="auto", device_map="cpu").named_parameters())
        stored = dict(loaded.named_parameters())
        kept = [key for key, weight in stored.items() if weight.dtype.is_floating_point]
        wrong = [key for key in kept if not torch.equal(stored[key].float(), reference[key].float())]
        checks.check(f"{name} {plan}: what is kept is loaded", not wrong and len(kept) > 4, "; ".join(wrong[:3]) or f"{len(kept)} tensors")


def refused(checks, binary, name, model, plan, work, words):
    done = quantize(binary, model, plan, work / "refused", "--as", "bitsandbytes")
    fits = done.code == 2 and words in done.err and not (work / "refused").exists()
    checks.check(f"{name}: refused by name", fits, done.err.strip()[:120])


def main():
    binary, folder, *chosen = sys.argv[1:]
    checks = Checks()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        work = Path(work)
        for model in chosen or ["tiny", "tiny-f16", "tiny-f32", "tiny-sharded", "tiny-tied", "tiny-edge"]:
            path = models.ensure(folder, model)
            for scheme in SCHEMES:
                compare(checks, binary, f"{model} {scheme}", path, scheme, work)
        if not chosen:
            for name in ["qwen3", "gemma2", "phi3", "mixtral", "qwen3_moe", *box_models.SEEING]:
                family(checks, binary, name, folder, work)
            mixtral = box_models.ensure(folder, "mixtral")
            refused(checks, binary, "experts", mixtral, "nf4,experts=nf4", work, "transformers loads experts")
            refused(checks, binary, "falcon", box_models.ensure(folder, "falcon"), "nf4", work, "transformers cannot load a `falcon`")
    checks.finish()


if __name__ == "__main__":
    main()
