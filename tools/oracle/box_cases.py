"""bitsandbytes and MLX: every scheme, on every type, in one file and in shards, on regular and on awkward shapes."""

import json

import numpy as np

import checkpoints
from checks import header, quantize, read_folder
from folders import check_decoding, check_report, layer_products, open_with_library, raw, regular
from reference import bitsandbytes, mlx

LAYOUTS = {"bitsandbytes": (bitsandbytes, "pt"), "mlx": (mlx, "mlx")}


def expected(reference, tensors, type_name, scheme):
    stored, decoded = {}, {}
    for name, weight in tensors.items():
        if layer_products(name):
            module = name.removesuffix(".weight")
            parts, decoded[name] = reference.encode(scheme, weight, type_name)
            stored |= {f"{module}.{part}": raw(array) for part, array in parts.items()}
        else:
            stored[name] = raw(weight)
    return stored, decoded


def case(checks, binary, known, layout, name, model, tensors, type_name, scheme, to):
    reference, said = LAYOUTS[layout]
    done = quantize(binary, model, scheme, to, "--as", layout)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    stored, decoded = expected(reference, tensors, type_name, scheme)
    checks.same_tensors(f"{name}: every byte", read_folder(to), stored)
    open_with_library(checks, name, to, stored, said)
    check_report(checks, name, done.report, tensors, decoded)
    check_decoding(checks, binary, known, name, to, tensors, decoded)
    settings = json.loads((to / "config.json").read_text())
    if layout == "mlx":
        group, bits, mode = mlx.TERMS[scheme]
        wanted = {"group_size": group, "bits": bits, "mode": mode}
        fits = settings["quantization"] == wanted == settings["quantization_config"] and settings["tie_word_embeddings"] is False
        checks.check(f"{name}: quantization", fits and settings["rope_theta"] == 10000.0, f"{settings['quantization']}")
    else:
        found = settings["quantization_config"]
        kind, double = bitsandbytes.FOURS.get(scheme, ("fp4", False))
        fits = (found["quant_method"], found["bnb_4bit_quant_type"], found["bnb_4bit_use_double_quant"]) == ("bitsandbytes", kind, double)
        checks.check(f"{name}: quantization_config", fits and found["llm_int8_skip_modules"] == ["lm_head"], f"{found}"[:200])


def run(checks, binary, known, work):
    for layout, (reference, _) in LAYOUTS.items():
        names = [scheme for one, scheme in known if one == layout]
        unknown = set(names) ^ set(reference.GRANULES)
        checks.check(f"{layout}: every scheme has a reference", not unknown, ", ".join(sorted(unknown)) or f"{len(names)} schemes")
        for scheme in (name for name in names if name in reference.GRANULES):
            for type_name in ("BF16", "F16", "F32"):
                name = f"{layout} {scheme} {type_name}"
                # What FP16 takes for zero, and powers of two below FP32's, are no part of what is compared.
                model, tensors = regular(work, type_name, tame=True)
                case(checks, binary, known, layout, name, model, tensors, type_name, scheme, work / f"{layout}-{type_name}-{scheme}")
            odd = checkpoints.odd(np.random.default_rng(7), "BF16", reference.GRANULES[scheme])
            folder = checkpoints.write(work / f"odd-{layout}-{scheme}", odd, checkpoints.config("BF16"))
            head = {"tie_word_embeddings": False}
            settings = json.loads((folder / "config.json").read_text()) | head
            (folder / "config.json").write_text(json.dumps(settings))
            name = f"{layout} {scheme} BF16 odd shapes"
            done = quantize(binary, folder, scheme, work / f"odd-{layout}-{scheme}-out", "--as", layout)
            stored, _ = expected(reference, odd, "BF16", scheme)
            if checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
                checks.same_tensors(f"{name}: every byte", read_folder(work / f"odd-{layout}-{scheme}-out"), stored)
        model, tensors = regular(work, "BF16", shards=3, tame=True)
        scheme = names[0]
        case(checks, binary, known, layout, f"{layout} {scheme} BF16 in shards", model, tensors, "BF16", scheme, work / f"sharded-{layout}")
        for path in sorted((work / f"sharded-{layout}").glob("*.safetensors")):
            checks.check(f"{layout} in shards: {path.name} has a header", "__metadata__" in header(path)[0])
