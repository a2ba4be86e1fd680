"""What the layouts of safetensors folders share."""

import json
import math

import numpy as np
from safetensors import safe_open

import checkpoints
from checks import Tensor, header, quantize, read_folder
from reference.numbers import F32, NAMES

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def layer_products(name):
    """Whether a tensor is a matrix product inside a layer: what a scheme's name speaks of."""
    return ".layers." in name and name.endswith(tuple(f"{module}.weight" for module in MODULES))


def raw(array):
    return Tensor(NAMES[array.dtype], array.shape, np.ascontiguousarray(array).tobytes())


def regular(work, type_name, shards=1, **more):
    """A checkpoint that runtimes load, made once."""
    folder = work / "-".join(["regular", type_name, str(shards), *map(str, more)])
    tensors = checkpoints.llama(np.random.default_rng(3), type_name, **more)
    if not folder.exists():
        checkpoints.write(folder, tensors, checkpoints.config(type_name), shards)
    return folder, tensors


def open_with_library(checks, name, folder, stored, said="pt"):
    """The files open with the library that defines them, which checks names, types, offsets and sizes."""
    seen, formats = [], set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            seen += list(file.keys())
            formats.add((file.metadata() or {}).get("format"))
        checks.check(f"{name}: {path.name} is aligned", header(path)[1] % 8 == 0)
    checks.check(f"{name}: safetensors reads it", sorted(seen) == sorted(stored), f"{len(seen)} tensors")
    checks.check(f"{name}: the metadata says {said}", formats == {said})


def check_report(checks, name, report, tensors, decoded):
    """The report names exactly the coded weights, with the errors of what the stored parts stand for."""
    lines = {line["name"]: line for line in report["weights"]}
    wrong = sorted(lines.keys() ^ decoded.keys())
    for weight, stands_for in decoded.items():
        line = lines.get(weight)
        if line is None:
            continue
        exact = tensors[weight].astype(F32).astype(np.float64)
        error = exact - stands_for.astype(np.float64)
        power = (exact**2).sum()
        relative = math.sqrt((error**2).sum() / power) if power else 0.0
        figures = {
            "relative_error": relative,
            "largest_error": np.abs(error).max(),
            "largest_weight": np.abs(exact).max(),
        }
        for key, value in figures.items():
            if not math.isclose(line[key], value, rel_tol=1e-5, abs_tol=1e-30):
                wrong.append(f"{weight} {key}: {line[key]} instead of {value}")
        if (line["rows"], line["columns"]) != exact.shape or not 0 <= line["clipped_share"] <= 1:
            wrong.append(f"{weight}: {line}")
    checks.check(f"{name}: the report has the true errors", not wrong, "; ".join(map(str, wrong[:3])) or f"{len(lines)} weights")


def check_decoding(checks, binary, known, name, folder, tensors, decoded):
    """Decoding the result gives the numbers that the reference says the parts stand for, and the other tensors as they were."""
    if ("safetensors", "fp32") not in known:
        checks.skip(f"{name}: decodes", "the program has no such layout")
        return
    to = folder.with_name(folder.name + "-decoded")
    done = quantize(binary, folder, "fp32", to)
    if not checks.check(f"{name}: decodes", done.code == 0, done.err.strip()[:300] if done.code else ""):
        return
    wanted = {one: raw(decoded[one].astype(F32) if one in decoded else tensor.astype(F32)) for one, tensor in tensors.items()}
    checks.same_tensors(f"{name}: decodes to what it stands for", read_folder(to), wanted)
    settings = json.loads((to / "config.json").read_text())
    checks.check(f"{name}: what is decoded says so", "quantization_config" not in settings and settings["dtype"] == "float32")
