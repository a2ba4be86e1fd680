"""The bytes of ggml's quantizers with an importance matrix, for `ggml_importance.json`; and the types of three bits and less without
one, for `ggml.json` and for `gguf.json` of roofline-core, with what they decode to. Where ggml asks for a matrix, it gets one of ones.

    python ggml_importance.py libggml-base.so

The library is that of llama.cpp, as llama-cpp-python 0.3.36 brings its source, built for any x86-64 (no fused products), by
`cmake --build . --target ggml-base`. Inputs are those of `ggml.json` and of roofline-core's
`blocks.json`.
"""

import ctypes
import json
import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
CORE = HERE.parents[2] / "roofline-core/tests/golden"
TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ3_XXS": 18, "IQ4_NL": 20, "IQ3_S": 21, "IQ4_XS": 23, "IQ2_S": 22, "IQ2_XS": 17, "IQ2_XXS": 16,
    "IQ1_M": 29, "IQ1_S": 19,
}  # fmt: skip
PLAIN = ["IQ3_XXS", "IQ3_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"]


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


def floats(halves):
    """bf16 as ggml's floats."""
    return (ctypes.c_float * len(halves))(*(struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves))


def main():
    ggml = ctypes.CDLL(sys.argv[1])
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    ggml.ggml_row_size.restype = ctypes.c_size_t
    ggml.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    ggml.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    known, core = json.loads((HERE / "ggml.json").read_text()), json.loads((CORE / "gguf.json").read_text())
    rows, columns = known["rows"], known["columns"]
    halves = lambda hexadecimal: struct.unpack(f"<{rows * columns}H", bytes.fromhex(hexadecimal))
    weights, importances = floats(halves(known["input"])), importance(columns)

    def quantized(number, weights, matrix):
        out = (ctypes.c_uint8 * (rows * ggml.ggml_row_size(number, columns)))()
        ggml.ggml_quantize_init(number)
        ggml.ggml_quantize_chunk(number, weights, out, ctypes.c_int64(0), ctypes.c_int64(rows), ctypes.c_int64(columns), matrix)
        return bytes(out)

    def plain(name, weights):
        """Bytes without a matrix, and what they decode to."""
        number = TYPES[name]
        ones = (ctypes.c_float * columns)(*[1.0] * columns) if ggml.ggml_quantize_requires_imatrix(number) else None
        stored = quantized(number, weights, ones)
        values = (ctypes.c_float * (rows * columns))()
        getattr(ggml, f"dequantize_row_{name.lower()}")(stored, values, ctypes.c_int64(rows * columns))
        return {"bytes": stored.hex(), "decoded": fnv1a(bytes(values))}

    blocks = floats(halves(json.loads((CORE / "blocks.json").read_text())["input_bf16"]))
    for name in PLAIN:
        known["types"][name] = plain(name, weights)
        core["types"][name.lower()] = plain(name, blocks)
    (HERE / "ggml.json").write_text(json.dumps(known, indent=1) + "\n")
    (CORE / "gguf.json").write_text(json.dumps(core, indent=1) + "\n")
    made = {
        "provenance": "Made by ggml_importance.py: ggml_quantize_chunk of llama-cpp-python 0.3.36 on the input of ggml.json.",
        "importance": struct.pack(f"<{columns}H", *importances).hex(),
        "types": {name: quantized(number, weights, floats(importances)).hex() for name, number in TYPES.items()},
    }
    (HERE / "ggml_importance.json").write_text(json.dumps(made, indent=1) + "\n")


main()
