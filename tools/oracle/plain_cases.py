"""Plain safetensors: checkpoints turned into another number type, and coded ones decoded. Numbers are rounded to the nearest, ties to even."""

import json

import numpy as np

import checkpoints
from checks import quantize, read_folder
from compressed_cases import expected, uniform
from folders import raw, regular
from reference.numbers import F32, TYPES

LAYOUT = "safetensors"
PLANS = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def compare(checks, binary, name, model, plan, values, to):
    """Every tensor has the values, rounded to the plan's type."""
    done = quantize(binary, model, plan, to)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    wanted = {one: raw(tensor.astype(F32).astype(TYPES[PLANS[plan]])) for one, tensor in values.items()}
    checks.same_tensors(f"{name}: every byte", read_folder(to), wanted)
    settings = json.loads((to / "config.json").read_text())
    says = settings["dtype"] == checkpoints.TYPE_NAMES[PLANS[plan]] and "quantization_config" not in settings
    checks.check(f"{name}: the configuration says so", says, settings["dtype"])


def run(checks, binary, known, work):
    plans = [plan for plan in PLANS if (LAYOUT, plan) in known]
    if not plans:
        checks.skip(LAYOUT, "the program has no such layout")
        return
    for type_name in PLANS.values():
        model, tensors = regular(work, type_name)
        for plan in plans:
            to = work / f"{type_name}-{plan}"
            # A checkpoint in that type already may be refused, and is no test of anything.
            if PLANS[plan] != type_name:
                compare(checks, binary, f"{LAYOUT} {type_name} to {plan}", model, plan, tensors, to)
    model, tensors = regular(work, "BF16")
    for scheme in ("int4-g128-zp", "int8", "fp8-block", "nvfp4a16", "mxfp4a16", "mxfp8"):
        coded = work / f"coded-{scheme}"
        if checks.check(f"{LAYOUT} {scheme}: quantizes", quantize(binary, model, scheme, coded).code == 0):
            _, decoded = expected(tensors, "BF16", uniform(scheme))
            for plan in plans:
                to = work / f"{scheme}-{plan}"
                compare(checks, binary, f"{LAYOUT} {scheme} decoded to {plan}", coded, plan, tensors | decoded, to)
    overflow(checks, binary, work)


def overflow(checks, binary, work):
    """A number beyond the type's largest is refused by the weight's name, not written as something else."""
    tensors = checkpoints.llama(np.random.default_rng(5), "F32", layers=1)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][3, 4] = 1e6
    model = checkpoints.write(work / "large", tensors, checkpoints.config("F32", layers=1))
    to = work / "large-f16"
    done = quantize(binary, model, "f16", to)
    message = (done.out + done.err).strip()
    if done.code == 0:
        written = np.frombuffer(read_folder(to)[name].data, np.float16).reshape(tensors[name].shape)[3, 4]
        checks.check(f"{LAYOUT} F32 to f16, a number beyond its largest: refused", False, f"1e6 became {written}")
    else:
        checks.check(f"{LAYOUT} F32 to f16, a number beyond its largest: says so", name in message, message[:160])
        checks.check(f"{LAYOUT} F32 to f16, a number beyond its largest: nothing is left", not to.exists())
