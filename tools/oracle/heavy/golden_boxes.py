"""Makes `crates/roofline-quant/tests/golden/boxes.json`: what bitsandbytes and MLX store for a small matrix full of edge cases.

    python golden_boxes.py > ../../../crates/roofline-quant/tests/golden/boxes.json

The matrix is that of `vectors.json` beside it. bitsandbytes computes without its compiled library, whose table for quantized maxima has a limited
resolution. Its description of a weight is given the blanks that stand for digits of a mean that is not yet known.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"


def no_library(*_, **__):
    raise OSError("not used here")


loader = ctypes.cdll.LoadLibrary
ctypes.cdll.LoadLibrary = no_library
import bitsandbytes as bnb  # noqa: E402

ctypes.cdll.LoadLibrary = loader
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from bitsandbytes import functional  # noqa: E402

GOLDEN = Path(__file__).resolve().parents[3] / "crates/roofline-quant/tests/golden"
TYPES = {"BF16": (torch.bfloat16, mx.bfloat16), "F16": (torch.float16, mx.float16), "F32": (torch.float32, mx.float32)}
# Room for any number.
LONGEST_NUMBER = 24


def blanks(state):
    """The description with blanks after it for the digits that its last number might have had."""
    text = bytes(state.numpy())
    mean = json.loads(text).get("nested_offset")
    return text if mean is None else text + b" " * (LONGEST_NUMBER - len(repr(mean)))


def four(weight, kind, double):
    codes, state = functional.quantize_4bit(weight, quant_type=kind, compress_statistics=double)
    parts = {"weight": raw(codes)}
    for name, tensor in state.as_dict(packed=True).items():
        parts[f"weight.{name}"] = blanks(tensor) if name.startswith("quant_state") else raw(tensor)
    return parts


def int8(weight):
    module = bnb.nn.Linear8bitLt(weight.shape[1], weight.shape[0], bias=False, has_fp16_weights=False)
    module.weight = bnb.nn.Int8Params(weight.clone(), requires_grad=False, has_fp16_weights=False)
    return {name: raw(tensor) for name, tensor in module.to("cpu").state_dict().items()}


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else bytes([tensor.item()])


def affine(weight, bits, group):
    return named(mx.quantize(weight, group_size=group, bits=bits))


def named(arrays):
    sixteen = lambda array: array.view(mx.uint16) if array.dtype in (mx.bfloat16, mx.float16) else array  # noqa: E731
    return {name: np.array(sixteen(array)).tobytes() for name, array in zip(("weight", "scales", "biases"), arrays)}


BITSANDBYTES = {
    "bitsandbytes-nf4": lambda weight: four(weight, "nf4", False),
    "bitsandbytes-nf4-dq": lambda weight: four(weight, "nf4", True),
    "bitsandbytes-fp4": lambda weight: four(weight, "fp4", False),
    "bitsandbytes-fp4-dq": lambda weight: four(weight, "fp4", True),
    "bitsandbytes-int8": int8,
}
MLX = {f"mlx-{mode}": (lambda weight, mode=mode: named(mx.quantize(weight, mode=mode))) for mode in ("mxfp4", "mxfp8", "nvfp4")}
for bits in (2, 3, 4, 5, 6, 8):
    for group in (32, 64, 128):
        MLX[f"mlx-int{bits}-g{group}"] = lambda weight, bits=bits, group=group: affine(weight, bits, group)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def main():
    vectors = json.loads((GOLDEN / "vectors.json").read_text())
    rows, columns = vectors["shape"]
    words = np.frombuffer(bytes.fromhex(vectors["matrix"]), np.uint16).astype(np.uint32) << 16
    matrix = torch.tensor(words.view(np.float32).reshape(rows, columns))

    def stored(name, type_name, rows, columns):
        part = matrix[:rows, :columns].contiguous().to(TYPES[type_name][0])
        if name in BITSANDBYTES:
            return BITSANDBYTES[name](part)
        return MLX[name](mx.array(part.float().numpy()).astype(TYPES[type_name][1]))

    full = ["bitsandbytes-nf4-dq", "bitsandbytes-fp4", "bitsandbytes-int8", "mlx-int3-g64", "mlx-int4-g64", "mlx-nvfp4"]
    made = {
        "made_by": f"bitsandbytes {bnb.__version__}, mlx {mx.__version__}, by tools/oracle/heavy/golden_boxes.py",
        "shape": [rows, columns],
        "matrix": vectors["matrix"],
        "bytes": {name: {part: data.hex() for part, data in stored(name, "BF16", rows, columns).items()} for name in full},
        "hashes": {},
    }
    shapes = {**{name: [(3, 64), (5, 48), (1, 7)] for name in BITSANDBYTES}, **{name: [(7, 128)] for name in MLX}}
    for name, of_name in shapes.items():
        for type_name in TYPES:
            for shape in of_name:
                case = f"{name} {type_name} {shape[0]} {shape[1]}"
                made["hashes"][case] = {part: fnv(data) for part, data in stored(name, type_name, *shape).items()}
    json.dump(made, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
