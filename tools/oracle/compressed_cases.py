"""compressed-tensors: every scheme, on every type, in one file and in shards, on regular and on awkward shapes."""

import json

import numpy as np

import checkpoints
from checks import header, quantize, read_folder
from folders import check_decoding, check_report, layer_products, open_with_library, raw, regular
from reference import compressed

LAYOUT = "compressed-tensors"


def expected(tensors, type_name, scheme_of):
    """The tensors that belong in the result, and what every coded weight stands for. `scheme_of` gives none for what is kept."""
    stored, decoded = {}, {}
    for name, weight in tensors.items():
        scheme = scheme_of(name)
        if scheme is None:
            stored[name] = raw(weight)
            continue
        module = name.removesuffix(".weight")
        members = [one for one in family(module) if one + ".weight" in tensors and scheme_of(one + ".weight") == scheme]
        parts, decoded[name] = compressed.encode(scheme, weight, type_name, [tensors[one + ".weight"] for one in members])
        stored |= {f"{module}.{part}": raw(array) for part, array in parts.items()}
        if scheme in compressed.RANGED:
            part, kind = compressed.RANGED[scheme]
            stored[f"{module}.{part}"] = raw(compressed.seen(kind, ranges(tensors)["inputs"][module], type_name))
    return stored, decoded


def ranges(tensors):
    """Largest magnitudes of every product's inputs, and of every layer's keys and values, none like another."""
    modules = sorted(name.removesuffix(".weight") for name in tensors if name.endswith("proj.weight"))
    layers = sorted({module.rpartition(".")[0] for module in modules if module.endswith("k_proj")})
    # One is zero, as of an expert that no token chose.
    inputs = {module: 0.37 * at for at, module in enumerate(modules)}
    keys = {layer: 5.5 + at for at, layer in enumerate(layers)}
    return {"inputs": inputs, "keys": keys, "values": {layer: 0.3 * (at + 1) for at, layer in enumerate(layers)}}


def family(module):
    """The modules that runtimes fuse with this one, itself included."""
    parent, _, last = module.rpartition(".")
    for members in compressed.FAMILIES:
        if last in members:
            return [f"{parent}.{member}" for member in members]
    return [module]


def case(checks, binary, known, name, model, tensors, type_name, plan, scheme_of, to, *more):
    if any(scheme_of(one) in compressed.RANGED for one in tensors):
        file = to.with_suffix(".json")
        file.write_text(json.dumps(ranges(tensors)))
        more = (*more, "--ranges", file)
    done = quantize(binary, model, plan, to, "--as", LAYOUT, *more)
    if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return None
    stored, decoded = expected(tensors, type_name, scheme_of)
    checks.same_tensors(f"{name}: every byte", read_folder(to), stored)
    open_with_library(checks, name, to, stored)
    check_report(checks, name, done.report, tensors, decoded)
    check_decoding(checks, binary, known, name, to, tensors, decoded)
    return done


def uniform(scheme):
    return lambda name: scheme if layer_products(name) else None


def run(checks, binary, known, work):
    names = [scheme for layout, scheme in known if layout == LAYOUT]
    unknown = set(names) - set(compressed.GRANULES)
    checks.check(f"{LAYOUT}: every scheme has a reference", not unknown, ", ".join(sorted(unknown)) or f"{len(names)} schemes")
    names = [name for name in names if name in compressed.GRANULES]
    for type_name in ("BF16", "F16", "F32"):
        model, tensors = regular(work, type_name)
        for scheme in names:
            to = work / f"{type_name}-{scheme}"
            case_name = f"{LAYOUT} {scheme} {type_name}"
            if case(checks, binary, known, case_name, model, tensors, type_name, scheme, uniform(scheme), to):
                check_configuration(checks, case_name, model, to, scheme)
            rng = np.random.default_rng(7)
            odd = checkpoints.odd(rng, type_name, compressed.GRANULES[scheme])
            folder = checkpoints.write(work / f"odd-{type_name}-{scheme}", odd, checkpoints.config(type_name))
            to = work / f"odd-{type_name}-{scheme}-out"
            case(checks, binary, known, f"{case_name} odd shapes", folder, odd, type_name, scheme, uniform(scheme), to)
    shards(checks, binary, known, names, work)
    mixed(checks, binary, known, work)
    cache(checks, binary, work)


def cache(checks, binary, work):
    """Scales of keys and values, from the same file of ranges."""
    for type_name in ("BF16", "F16", "F32"):
        model, tensors = regular(work, type_name)
        file, to = work / f"cache-{type_name}.json", work / f"cache-{type_name}"
        given = ranges(tensors)
        file.write_text(json.dumps(given))
        done = quantize(binary, model, "fp8,kv=fp8", to, "--as", LAYOUT, "--ranges", file)
        name = f"{LAYOUT} kv=fp8 {type_name}"
        if not checks.check(f"{name}: quantizes", done.code == 0, done.err.strip()[:300] if done.code else ""):
            continue
        stored, _ = expected(tensors, type_name, uniform("fp8"))
        for part, table in (("k_scale", given["keys"]), ("v_scale", given["values"])):
            stored |= {f"{layer}.{part}": raw(compressed.seen("fp8", peak, type_name)) for layer, peak in table.items()}
        checks.same_tensors(f"{name}: every byte", read_folder(to), stored)
        found = json.loads((to / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
        wanted = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
        checks.check(f"{name}: kv_cache_scheme", found == wanted, f"{found}")


def shards(checks, binary, known, names, work):
    model, tensors = regular(work, "BF16", shards=3)
    for scheme in names:
        to = work / f"sharded-{scheme}"
        name = f"{LAYOUT} {scheme} BF16 in shards"
        if not case(checks, binary, known, name, model, tensors, "BF16", scheme, uniform(scheme), to):
            continue
        index = json.loads((to / "model.safetensors.index.json").read_text())
        placed = {}
        for file in sorted(to.glob("*.safetensors")):
            placed |= {tensor: file.name for tensor in header(file)[0] if tensor != "__metadata__"}
        total = sum(len(tensor.data) for tensor in read_folder(to).values())
        checks.check(f"{name}: the index places every tensor", index["weight_map"] == placed, f"{len(placed)} tensors")
        checks.check(f"{name}: the index has the total size", index["metadata"]["total_size"] == total, f"{total} bytes")


def mixed(checks, binary, known, work):
    """Plans with several schemes, and modules that are kept."""
    model, tensors = regular(work, "BF16")
    plan = work / "plan.toml"
    plan.write_text('plan = ["nvfp4a16", "down=int8-g128", "layers.-1.attention=keep", "head=fp8"]\n')

    def scheme_of(name):
        if name == "lm_head.weight":
            return "fp8"
        if not layer_products(name) or "layers.1.self_attn" in name:
            return None
        return "int8-g128" if "down_proj" in name else "nvfp4a16"

    to = work / "mixed"
    name = f"{LAYOUT} with three schemes"
    if case(checks, binary, known, name, model, tensors, "BF16", plan, scheme_of, to):
        found = json.loads((to / "config.json").read_text())["quantization_config"]
        modules = {module for group in found["config_groups"].values() for module in group["targets"]}
        coded = {one.removesuffix(".weight") for one in tensors if scheme_of(one)}
        checks.check(f"{name}: the groups name what is coded", modules == coded, f"{len(modules)} modules")
        kept = {f"model.layers.1.self_attn.{one}_proj" for one in "qkvo"}
        checks.check(f"{name}: what is kept is ignored", set(found["ignore"]) == kept, f"{found['ignore']}")
        checks.check(f"{name}: the format", found["format"] == "mixed-precision", found["format"])
    keep = lambda name: None if "k_proj" in name else uniform("nvfp4a16")(name)  # noqa: E731
    done = case(checks, binary, known, f"{LAYOUT} --keep", model, tensors, "BF16", "nvfp4a16", keep, work / "keep", "--keep", "*.k_proj")
    if done:
        noted = any("fused" in note for note in done.report["notes"])
        checks.check(f"{LAYOUT} --keep: a torn family is noted", noted, "; ".join(done.report["notes"])[:120])


def check_configuration(checks, name, model, to, scheme):
    """`config.json` is the source's with the minimal `quantization_config`; the tokenizer comes along as it is."""
    source = json.loads((model / "config.json").read_text())
    written = json.loads((to / "config.json").read_text())
    quantization = written.pop("quantization_config", None)
    # What loads four-bit floats computes in BF16, and the configuration says so.
    if scheme.startswith(("nvfp4", "mxfp4")) and "dtype" in source:
        source["dtype"] = "bfloat16"
    checks.check(f"{name}: the rest of config.json is untouched", written == source)
    form, weights, inputs = compressed.configuration(scheme)
    group = {"targets": ["Linear"], "weights": weights} | ({"input_activations": inputs} if inputs else {})
    if scheme == "w4a8":
        group["format"] = form
    wanted = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    checks.check(f"{name}: quantization_config", quantization == wanted, "" if quantization == wanted else f"{quantization}")
    same = all((to / file).read_bytes() == (model / file).read_bytes() for file in ("tokenizer.json", "tokenizer_config.json"))
    checks.check(f"{name}: the tokenizer comes along", same)
