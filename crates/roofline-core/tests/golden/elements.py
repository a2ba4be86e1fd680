#!/usr/bin/env python3
"""Golden vectors of the element encodings, made by ml_dtypes and numpy.

    pip install ml_dtypes==0.6.0 numpy && python3 elements.py

Writes beside itself
  elements.json  the value of every code of every 8-, 6- and 4-bit element (null is NaN)
                 and a 64-bit FNV-1a hash over the FP32 bits of every finite value of the 16-bit ones, in code order
  NAME.bin       the codes of the 100,000 values of `inputs()`, one byte each (two, little endian, for 16-bit types),
                 as a plain cast gives them: no saturation beyond what the type itself does

The inputs are made from SplitMix64, so the Rust test makes the same ones and none are stored.
"""

import json
import pathlib

import ml_dtypes
import numpy as np

COUNT = 100_000
HERE = pathlib.Path(__file__).parent
ELEMENTS = {
    "fp8-e4m3": ml_dtypes.float8_e4m3fn,
    "fp8-e5m2": ml_dtypes.float8_e5m2,
    "fp6-e3m2": ml_dtypes.float6_e3m2fn,
    "fp6-e2m3": ml_dtypes.float6_e2m3fn,
    "fp4-e2m1": ml_dtypes.float4_e2m1fn,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}


def splitmix64(count):
    state = 0x5EED
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        yield z ^ (z >> 31)


def inputs():
    """Finite FP32 numbers: half of any exponent, half between 2^-20 and 2^19; every eighth keeps only its top five
    mantissa bits, so that ties happen."""
    bits = []
    for i, z in enumerate(splitmix64(COUNT)):
        sign = z >> 63
        exponent = (z >> 32) % 255 if i % 2 else 107 + (z >> 32) % 40
        mantissa = z & 0x7FFFFF
        if i % 8 < 2:
            mantissa &= 0x7C0000
        bits.append(sign << 31 | exponent << 23 | mantissa)
    return np.array(bits, np.uint32).view(np.float32)


def fnv1a(values):
    digest = 0xCBF29CE484222325
    for byte in values[np.isfinite(values)].astype("<f4").tobytes():
        digest = ((digest ^ byte) * 0x100000001B3) & (2**64 - 1)
    return f"{digest:016x}"


def main():
    values = inputs()
    tables = {}
    for name, dtype in ELEMENTS.items():
        with np.errstate(all="ignore"):
            codes = values.astype(dtype)
        width = np.uint16 if name in ("fp16", "bf16") else np.uint8
        (HERE / f"{name}.bin").write_bytes(codes.view(width).astype("<u2" if width == np.uint16 else np.uint8).tobytes())
        if width == np.uint8:
            bits = int(name[2])
            every = np.arange(2**bits, dtype=np.uint8).view(dtype).astype(np.float64)
            tables[name] = [None if np.isnan(v) else "inf" if v == np.inf else "-inf" if v == -np.inf else v for v in every]
        else:
            tables[name] = fnv1a(np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32))
    integers = np.clip(np.rint(values.astype(np.float64)), -128, 127).astype(np.int8)
    (HERE / "int8.bin").write_bytes(integers.tobytes())
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    tables["e8m0"] = [None if np.isnan(v) else v for v in every]
    (HERE / "elements.json").write_text(json.dumps(tables) + "\n")


main()
