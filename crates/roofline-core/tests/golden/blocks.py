#!/usr/bin/env python3
"""Golden vectors of whole packed tensors, made by the libraries that define the formats.

    pip install torch numpy ml_dtypes compressed-tensors==0.19.0 bitsandbytes==0.50.2 && python3 blocks.py

Writes blocks.json beside itself: one 8 x 256 BF16 matrix with edge cases (zero blocks, a zero row, -0.0, an outlier, a
tiny row, exact FP4 ties), and what compressed-tensors makes of it in MXFP4 and MXFP8, bitsandbytes in NF4 with and
without double quantization. `decoded` is the library's own dequantization, where it is not codes times scale.
"""

import json
import pathlib

import bitsandbytes.functional as bnb
import ml_dtypes
import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams

ROWS, COLUMNS = 8, 256


def matrix():
    rng = np.random.default_rng(42)
    w = (rng.standard_normal((ROWS, COLUMNS)) * 0.05).astype(np.float32)
    w[0, 5] = 3.0
    w[1, 128:] = 0.0
    w[2, :32] = 0.0
    w[3, :] *= 1e-4
    w[4, 7] = -3.0
    w[5, :] = 0.0
    w[6, 10] = -0.0
    w[6, 40] = 40.0
    ties = np.array([6, -6, 5, 5.0001, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -0.25, -0.75, 0.5, 1, 2, 4])
    w[7, :16] = ties / 6 * 0.05
    return w.astype(ml_dtypes.bfloat16)


def raw(tensor):
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes().hex()


def compressed(weight, preset, layout):
    scheme = preset_name_to_scheme(preset, ["Linear"])
    groups = weight.unflatten(-1, (COLUMNS // 32, 32))
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
    state = {"weight": weight, "weight_scale": scale.to(torch.bfloat16), "weight_zero_point": zero}
    return BaseCompressor.get_value_from_registry(layout).compress(state, scheme)


def main():
    packed = matrix()
    weight = torch.tensor(packed.astype(np.float32)).to(torch.bfloat16)
    mxfp4 = compressed(weight, "MXFP4A16", "mxfp4-pack-quantized")
    mxfp8 = compressed(weight, "MXFP8", "mxfp8-quantized")
    nf4, plain = bnb.quantize_4bit(weight.float(), quant_type="nf4", blocksize=64)
    _, double = bnb.quantize_4bit(weight.float(), quant_type="nf4", blocksize=64, compress_statistics=True)
    golden = {
        "rows": ROWS,
        "columns": COLUMNS,
        "input_bf16": packed.tobytes().hex(),
        "mxfp4": {"codes": raw(mxfp4["weight_packed"]), "scales": raw(mxfp4["weight_scale"])},
        "mxfp8-e4m3": {"codes": raw(mxfp8["weight"]), "scales": raw(mxfp8["weight_scale"])},
        "nf4": {"codes_high_nibble_first": raw(nf4), "scales": raw(plain.absmax)},
        "nf4-dq": {
            "codes_high_nibble_first": raw(nf4),
            "scales": raw(double.absmax),
            "second": raw(double.state2.absmax),
            "offset": float(double.offset),
            "map": [float(v) for v in double.state2.code],
        },
    }
    (pathlib.Path(__file__).parent / "blocks.json").write_text(json.dumps(golden) + "\n")


main()
