"""Adapters merged on the way, against the sum computed with numpy: `W + scale * alpha / r * B A`, rounded to the checkpoint's type."""

import json

import numpy as np
from safetensors.numpy import save_file

from checks import quantize, read_folder
from folders import regular
from reference.numbers import F32

MODULES = {"self_attn.q_proj": (256, 256), "mlp.gate_proj": (512, 256), "mlp.down_proj": (256, 512)}


def adapter(folder, rng, rank, **settings):
    """An adapter's folder in PEFT's manner, and what it adds to each weight."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 6, **settings}))
    factor = 6 / (np.sqrt(rank) if settings.get("use_rslora") else rank)
    tensors, sums = {}, {}
    for layer in range(2):
        for module, (rows, columns) in MODULES.items():
            name = f"model.layers.{layer}.{module}"
            a, b = ((rng.standard_normal(shape) * 0.1).astype(F32) for shape in ((rank, columns), (rows, rank)))
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
            sums[f"{name}.weight"] = factor * (b.astype(np.float64) @ a.astype(np.float64))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder, sums


def run(checks, binary, known, work):
    rng = np.random.default_rng(17)
    first, sums = adapter(work / "first", rng, 8)
    second, more = adapter(work / "second", rng, 3, use_rslora=True)
    for type_name in ("F32", "BF16", "F16"):
        model, tensors = regular(work, type_name, hard=False)
        to = work / f"{type_name}-merged"
        done = quantize(binary, model, "fp32", to, "--lora", first, "--lora", f"{second}=-0.25")
        name = f"adapters into {type_name}"
        if not checks.check(f"{name}: merges", done.code == 0, done.err.strip()[:300] if done.code else ""):
            continue
        # Half a unit in the last place of the type, and a few of FP32 for the order of the sum.
        unit = {"F32": 2**-21, "BF16": 2**-8 + 1e-6, "F16": 2**-11 + 1e-6}[type_name]
        written, wrong = read_folder(to), []
        for tensor_name, tensor in tensors.items():
            exact = tensor.astype(np.float64)
            if tensor_name in sums:
                exact = exact + sums[tensor_name] - 0.25 * more[tensor_name]
            stored = np.frombuffer(written[tensor_name].data, F32).reshape(tensor.shape)
            allowed = unit * (np.abs(exact) + 0.05) if tensor_name in sums else 0
            if (np.abs(stored - exact) > allowed).any():
                wrong.append(f"{tensor_name}: {np.abs(stored - exact).max()}")
        checks.check(f"{name}: the sums are right, and nothing else is changed", not wrong, "; ".join(wrong[:3]))
        told = {weight for report in done.report["adapters"] for weight in report["weights"]}
        checks.check(f"{name}: the report names the weights", told == set(sums), f"{len(told)} weights")
