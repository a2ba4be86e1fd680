"""What compressed-tensors rounds inputs of products to, for the tests of `roofline_quant::activations`.

    python golden_inputs.py ../../../crates/roofline-quant/tests/golden/inputs.json

Inputs are made by a formula that both sides have; of what becomes of them, hashes (FNV-1a) of the bytes are kept, for each type of the inputs.
"""

import json
import sys

import common  # noqa: F401: settings of the libraries

import compressed_tensors
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

ROWS, COLUMNS = 4, 256
TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
DYNAMIC = {"symmetric": True, "dynamic": True}
# The library's own preset of NVFP4 rounds local scales to E4M3.
CASES = {
    "int8 token": dict(num_bits=8, type="int", strategy="token", **DYNAMIC),
    "int8-zero token": dict(num_bits=8, type="int", strategy="token", symmetric=False, dynamic=True),
    "int4 token": dict(num_bits=4, type="int", strategy="token", **DYNAMIC),
    "e4m3 token": dict(num_bits=8, type="float", strategy="token", **DYNAMIC),
    "e4m3 pass": dict(num_bits=8, type="float", strategy="tensor", **DYNAMIC),
    "e4m3 group 128": dict(num_bits=8, type="float", strategy="group", group_size=128, **DYNAMIC),
    "e4m3 stored": dict(num_bits=8, type="float", strategy="tensor", symmetric=True, dynamic=False),
    "e2m1 powers": dict(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8, **DYNAMIC),
    "e4m3 powers": dict(num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8, **DYNAMIC),
    "e2m1 local": dict(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn, symmetric=True, dynamic="local"
    ),
}
STORED, WHOLE = 0.0078125, 96.0


def inputs():
    """A generator's numbers, at several sizes; a few are much larger, and the last row has groups of nothing."""
    state, rows = 7, []
    for row in range(ROWS):
        values = []
        for column in range(COLUMNS):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            value = (state >> 40) / 2**23 - 1.0
            value *= 2.0 ** (2 * row - 3)
            if column % 61 == 0:
                value *= 8
            if row == 3 and column < 128:
                value = 0.0
            values.append(value)
        rows.append(values)
    return torch.tensor(rows, dtype=torch.float64)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def rounded(case, x):
    args = QuantizationArgs(**CASES[case])
    # Batches of tokens, as a model has them.
    x = x.unsqueeze(0)
    whole = torch.tensor([WHOLE]) if case == "e2m1 local" else None
    if case == "e4m3 stored":
        scale, zero = torch.tensor([STORED], dtype=x.dtype), None
    else:
        scale, zero = compute_dynamic_scales_and_zp(x, args, None, global_scale=whole)
    return fake_quantize(x, scale, zero, args, global_scale=whole).to(x.dtype)


def main(path):
    hashes = {case: {name: None for name in TYPES} for case in CASES}
    for case in CASES:
        for name, dtype in TYPES.items():
            result = rounded(case, inputs().to(dtype)).contiguous()
            # A zero has no sign that matters.
            result = torch.where(result == 0, torch.zeros_like(result), result)
            hashes[case][name] = fnv1a(result.view(torch.uint8).numpy().tobytes())
    versions = {"compressed-tensors": compressed_tensors.__version__, "torch": torch.__version__}
    with open(path, "w") as file:
        json.dump({"made_by": versions, "stored": STORED, "whole": WHOLE, "hashes": hashes}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
