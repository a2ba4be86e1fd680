"""The bytes of ggml's quantizers with an importance matrix, for `ggml_importance.json`; and `IQ3_S` and `IQ3_XXS` without one, for
`ggml.json`, with what they decode to.

    python ggml_importance.py libggml-base.so

The library is that of llama.cpp, as llama-cpp-python 0.3.36 brings its source, built for any x86-64 (no fused products), by
`cmake --build . --target ggml-base`. Inputs are those of `ggml.json`.
"""

import ctypes
import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ3_XXS": 18, "IQ4_NL": 20, "IQ3_S": 21, "IQ4_XS": 23,
}  # fmt: skip
PLAIN = ["IQ3_XXS", "IQ3_S"]


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def importance(columns):
    """Over five decades, with zeros, in the bf16 that the file holds."""
    state, out = 0x1234, []
    for at in range(columns):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        value = 0.0 if at % 41 == 7 else 10.0 ** (-3 + 5 * (state >> 40) / 2**24)
        out.append(struct.unpack("<I", struct.pack("<f", value))[0] >> 16)
    return out


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_row_size.restype = ctypes.c_size_t
    ggml.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    known = json.loads((HERE / "ggml.json").read_text())
    rows, columns = known["rows"], known["columns"]
    halves = struct.unpack(f"<{rows * columns}H", bytes.fromhex(known["input"]))
    floats = lambda halves: (ctypes.c_float * len(halves))(*(struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves))
    weights, importances = floats(halves), importance(columns)

    def quantized(number, matrix):
        out = (ctypes.c_uint8 * (rows * ggml.ggml_row_size(number, columns)))()
        ggml.ggml_quantize_init(number)
        ggml.ggml_quantize_chunk(number, weights, out, ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(columns), matrix)
        return bytes(out)

    for name in PLAIN:
        stored = quantized(TYPES[name], None)
        values = (ctypes.c_float * (rows * columns))()
        getattr(ggml, f"dequantize_row_{name.lower()}")(stored, values, ctypes.c_int64(rows * columns))
        known["types"][name] = {"bytes": stored.hex(), "decoded": fnv1a(bytes(values))}
    (HERE / "ggml.json").write_text(json.dumps(known, indent=1) + "\n")
    made = {
        "provenance": "Made by ggml_importance.py: ggml_quantize_chunk of llama-cpp-python 0.3.36 on the input of ggml.json.",
        "importance": struct.pack(f"<{columns}H", *importances).hex(),
        "types": {name: quantized(number, floats(importances)).hex() for name, number in TYPES.items()},
    }
    (HERE / "ggml_importance.json").write_text(json.dumps(made, indent=1) + "\n")


main()
