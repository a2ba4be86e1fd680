"""GPTQ's and AWQ's packings and fine-grained FP8: every scheme, in one file and in shards, and their configurations."""

import json

import numpy as np

import checkpoints
from checks import quantize, read_folder
from folders import check_decoding, check_report, layer_products, open_with_library, raw, regular
from reference import packed

CODINGS = {
    **{("gptq", name): lambda weight, of=scheme: packed.gptq(weight, *of) for name, scheme in packed.GPTQ.items()},
    **{("awq", name): lambda weight, of=group: packed.awq(weight, of) for name, group in packed.AWQ.items()},
    ("fp8", "fp8-block"): packed.fine_grained,
}


def case(checks, binary, known, name, model, tensors, layout, plan, coding_of, to, *more):
    done = quantize(binary, model, plan, to, "--as", layout, *more)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    stored, decoded = {}, {}
    for one, weight in tensors.items():
        coding = coding_of(one)
        if coding is None:
            stored[one] = raw(weight)
            continue
        parts, decoded[one] = coding(weight)
        stored |= {f"{one.removesuffix('.weight')}.{part}": raw(array) for part, array in parts.items()}
    checks.same_tensors(f"{name}: every byte", read_folder(to), stored)
    open_with_library(checks, name, to, stored)
    check_report(checks, name, done.report, tensors, decoded)
    check_decoding(checks, binary, known, name, to, tensors, decoded)


def configuration(layout, scheme):
    """The `quantization_config` of a Llama of which the layers are coded."""
    if layout == "gptq":
        bits, group, zero = packed.GPTQ[scheme]
        form = "gptq_v2" if zero else "gptq"
        told = {"bits": bits, "group_size": group or -1, "desc_act": False, "sym": not zero, "checkpoint_format": form}
        return {"quant_method": "gptq", **told, "lm_head": False, "pack_dtype": "int32"}
    kept = {"modules_to_not_convert": ["lm_head"]}
    if layout == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": packed.AWQ[scheme], "zero_point": True, "version": "gemm", **kept}
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], **kept}


def run(checks, binary, known, work):
    names = [(layout, scheme) for layout, scheme in known if layout in ("gptq", "awq", "fp8")]
    unknown = set(names) - set(CODINGS)
    checks.check("packings: every scheme has a reference", not unknown, f"{unknown or len(names)}")
    for type_name in ("BF16", "F16", "F32"):
        # Scales that FP16 cannot hold are no matter here.
        model, tensors = regular(work, type_name, hard=type_name != "F16", tame=True)
        for layout, scheme in names:
            if type_name != "BF16" and scheme not in ("w4a16", "int4-g32-zp", "int3-g128-zp", "fp8-block"):
                continue
            coding = CODINGS[layout, scheme]
            name, to = f"{layout} {scheme} {type_name}", work / f"{type_name}-{layout}-{scheme}"
            of = lambda one: coding if layer_products(one) else None  # noqa: E731
            case(checks, binary, known, name, model, tensors, layout, scheme, of, to)
            found = json.loads((to / "config.json").read_text())["quantization_config"]
            checks.check(f"{name}: quantization_config", found == configuration(layout, scheme), f"{found}")
    shards(checks, binary, known, work)
    kept(checks, binary, known, work)


def shards(checks, binary, known, work):
    model, tensors = regular(work, "BF16", shards=3, tame=True)
    for layout, scheme in (("gptq", "w4a16"), ("awq", "int4-g128-zp"), ("fp8", "fp8-block")):
        coding = CODINGS[layout, scheme]
        of = lambda one: coding if layer_products(one) else None  # noqa: E731
        name = f"{layout} {scheme} in shards"
        case(checks, binary, known, name, model, tensors, layout, scheme, of, work / f"shards-{layout}")


def kept(checks, binary, known, work):
    """What is not coded is named as each loader wants it."""
    model, tensors = regular(work, "BF16", tame=True)
    layer = [f"model.layers.0.mlp.{one}_proj" for one in ("down", "gate", "up")]
    for layout, scheme in (("gptq", "w4a16"), ("awq", "int4-g128-zp"), ("fp8", "fp8-block")):
        coding, to = CODINGS[layout, scheme], work / f"kept-{layout}"
        of = lambda one: coding if layer_products(one) and "layers.0.mlp" not in one else None  # noqa: E731
        name = f"{layout} {scheme} with kept products"
        case(checks, binary, known, name, model, tensors, layout, f"{scheme},layers.0.ffn=keep", of, to)
        found = json.loads((to / "config.json").read_text())["quantization_config"]
        if layout == "gptq":
            whole = sorted(one.removesuffix(".weight") for one in tensors if of(one))
            checks.check(f"{name}: names", sorted(found["modules_in_block_to_quantize"][0]) == whole, f"{len(whole)} modules")
            left = {"-:^" + one.replace(".", "\\.") + "$": {} for one in layer}
            checks.check(f"{name}: patterns", found["dynamic"] == left, f"{found['dynamic']}")
            same = json.loads((to / "quantize_config.json").read_text()) == found
            checks.check(f"{name}: quantize_config.json is the same", same)
        else:
            checks.check(f"{name}: names", found["modules_to_not_convert"] == ["lm_head", *layer], f"{found}")
    rng = np.random.default_rng(9)
    odd = checkpoints.llama(rng, "BF16", layers=1)
    odd["model.layers.0.mlp.down_proj.weight"] = np.ascontiguousarray(odd["model.layers.0.mlp.down_proj.weight"][:, :320])
    folder = checkpoints.write(work / "odd", odd, checkpoints.config("BF16", layers=1))
    for layout in ("fp8", "compressed-tensors"):
        done = quantize(binary, folder, "fp8-block", work / f"odd-{layout}", "--as", layout)
        said = done.code == 2 and "320 columns" in done.err
        checks.check(f"refused, {layout} of 320 columns in blocks of 128", said, done.err.strip()[:160])
