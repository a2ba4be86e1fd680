"""torchao's flattened safetensors: every scheme, on every type, in one file and in shards, on regular and on awkward shapes."""

import json

import numpy as np

import checkpoints
from checks import differences, header, quantize, read_folder
from folders import check_decoding, check_report, layer_products, open_with_library, raw, regular
from reference import torchao
from reference.numbers import F32, TYPES

LAYOUT = "torchao"


def expected(tensors, type_name, scheme):
    stored, decoded, described = {}, {}, {}
    for name, weight in tensors.items():
        if not layer_products(name):
            stored[name], described[name] = raw(weight), {"_type": "Tensor"}
            continue
        module = name.removesuffix(".weight")
        parts, decoded[name] = torchao.encode(scheme, weight, type_name)
        stored |= {f"{module}._weight_{part}": raw(array) for part, array in parts.items()}
        described[name] = torchao.description(scheme, weight, type_name)
    return stored, decoded, described


def settle_open_rows(checks, name, found, stored, decoded):
    """Rows whose scale the reference leaves open, because torchao's own is zero and its codes no numbers, are taken from what was found:
    their scales must be positive, their codes numbers, and coding them better than leaving them out."""
    for tensor in [one for one in stored if one.endswith("._weight_scale") and stored[one].dtype == "F32"]:
        module = tensor.removesuffix("._weight_scale")
        scales = np.frombuffer(stored[tensor].data, F32).reshape(stored[tensor].shape).copy()
        rows = np.isnan(scales[:, 0])
        codes_name = f"{module}._weight_qdata"
        if not rows.any() or differences(shapes(found, tensor, codes_name), shapes(stored, tensor, codes_name)):
            continue
        found_scales = np.frombuffer(found[tensor].data, F32).reshape(scales.shape)
        codes = np.frombuffer(stored[codes_name].data, np.uint8).reshape(stored[codes_name].shape).copy()
        found_codes = np.frombuffer(found[codes_name].data, np.uint8).reshape(codes.shape)
        values = found_codes[rows].view(TYPES["F8_E4M3"]).astype(F32) * found_scales[rows]
        usable = (found_scales[rows] > 0).all() and np.isfinite(found_scales[rows]).all() and np.isfinite(values).all()
        checks.check(f"{name}: rows that torchao cannot code are usable, {module}", usable, f"{rows.sum()} rows")
        scales[rows], codes[rows] = found_scales[rows], found_codes[rows]
        decoded[f"{module}.weight"][rows] = values
        stored[tensor] = stored[tensor]._replace(data=scales.tobytes())
        stored[codes_name] = stored[codes_name]._replace(data=codes.tobytes())


def shapes(tensors, *names):
    """Types and shapes alone."""
    return {name: tensors[name]._replace(data=b"") for name in names if name in tensors}


def case(checks, binary, known, name, model, tensors, type_name, scheme, to):
    done = quantize(binary, model, scheme, to, "--as", LAYOUT)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    stored, decoded, described = expected(tensors, type_name, scheme)
    found = read_folder(to)
    settle_open_rows(checks, name, found, stored, decoded)
    checks.same_tensors(f"{name}: every byte", found, stored)
    open_with_library(checks, name, to, stored)
    check_report(checks, name, done.report, tensors, decoded)
    check_decoding(checks, binary, known, name, to, tensors, decoded)
    for path in sorted(to.glob("*.safetensors")):
        metadata = header(path)[0]["__metadata__"]
        names = json.loads(metadata.pop("tensor_names"))
        checks.check(f"{name}: {path.name} names every tensor", sorted(names) == sorted(tensors), f"{len(names)} tensors")
        del metadata["format"]
        found_metadata = {key: json.loads(text) for key, text in metadata.items()}
        wrong = [key for key in described if found_metadata.get(key) != described[key]]
        same = found_metadata == described
        checks.check(f"{name}: {path.name} describes every tensor", same, f"{wrong[:1]}" if not same else "")
    quantization = json.loads((to / "config.json").read_text())["quantization_config"]
    kind = quantization["quant_type"]["default"]["_type"]
    tensor_kind = next(one["_type"] for one in described.values() if one["_type"] != "Tensor")
    fits = quantization["quant_method"] == "torchao" and kind == torchao.CONFIGURATIONS[tensor_kind]
    checks.check(f"{name}: quantization_config", fits, kind)


def run(checks, binary, known, work):
    names = [scheme for layout, scheme in known if layout == LAYOUT]
    if not names:
        checks.skip(LAYOUT, "the program has no such layout")
        return
    unknown = set(names) - set(torchao.GRANULES)
    checks.check(f"{LAYOUT}: every scheme has a reference", not unknown, ", ".join(sorted(unknown)) or f"{len(names)} schemes")
    for scheme in (name for name in names if name in torchao.GRANULES):
        for type_name in ("BF16", "F16", "F32"):
            name = f"{LAYOUT} {scheme} {type_name}"
            model, tensors = regular(work, type_name)
            case(checks, binary, known, name, model, tensors, type_name, scheme, work / f"{type_name}-{scheme}")
            odd = checkpoints.odd(np.random.default_rng(7), type_name, torchao.GRANULES[scheme])
            folder = checkpoints.write(work / f"odd-{type_name}-{scheme}", odd, checkpoints.config(type_name))
            case(checks, binary, known, f"{name} odd shapes", folder, odd, type_name, scheme, work / f"odd-{type_name}-{scheme}-out")
        model, tensors = regular(work, "BF16", shards=3)
        case(checks, binary, known, f"{LAYOUT} {scheme} BF16 in shards", model, tensors, "BF16", scheme, work / f"sharded-{scheme}")
