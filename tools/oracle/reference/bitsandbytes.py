"""bitsandbytes 0.50: every scheme as `{part: array}`, and what the parts stand for."""

import json

import numpy as np

from .numbers import F32, widened

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    F32,
)  # fmt: skip
MAGNITUDES = (np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], F32) / F32(12)).astype(F32)
FP4 = np.concatenate([MAGNITUDES, np.where(MAGNITUDES == 0, 0, -MAGNITUDES)]).astype(F32)
# Kind, and whether maxima are quantized.
FOURS = {"nf4": ("nf4", False), "nf4-dq": ("nf4", True), "bnb-fp4": ("fp4", False), "bnb-fp4-dq": ("fp4", True)}
GRANULES = {**dict.fromkeys(FOURS, 1), "int8": 1}
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
LEAST = F32(1e-38)
BLOCK, SECOND = 64, 256


def dynamic():
    """The 256 values of the dynamic type, by PyTorch's arithmetic: `linspace` adds from the nearer end without rounding between."""
    values = [F32(0), F32(1)]
    for decade in range(7):
        steps = 2**decade
        step = F32((F32(1) - F32(0.1)) / F32(steps))
        low = [F32(np.float64(F32(0.1)) + np.float64(step) * at) for at in range(steps + 1)]
        high = [F32(1 - np.float64(step) * (steps - at)) for at in range(steps + 1)]
        edges = [low[at] if at < (steps + 1) // 2 else high[at] for at in range(steps + 1)]
        for one, other in zip(edges, edges[1:]):
            middle = F32(F32(10.0 ** (decade - 6)) * F32(F32(one + other) / F32(2)))
            values += [middle, F32(-middle)]
    return np.sort(np.array(values, F32))


def coded(values, table, block):
    """Codes by rank in the ascending `table`, and the maxima; a short last block is divided, the others multiplied."""
    full = len(values) // block * block
    maxima = np.abs(values[:full].reshape(-1, block)).max(1).astype(F32)
    inverse = (F32(1) / np.maximum(maxima, LEAST)).astype(F32)
    scaled = (values[:full].reshape(-1, block) * inverse[:, None]).astype(F32).ravel()
    if full < len(values):
        last = np.maximum(np.abs(values[full:]).max(), LEAST).astype(F32)
        maxima = np.append(maxima, last)
        scaled = np.append(scaled, (values[full:] / last).astype(F32))
    middles = ((table[:-1] + table[1:]) / F32(2)).astype(F32)
    return np.searchsorted(middles, np.clip(scaled, -1, 1), side="left"), maxima


def encode(scheme, weight, type_name):
    if scheme == "int8":
        return int8(widened(weight))
    return four(widened(weight), *FOURS[scheme], type_name)


def int8(weight):
    """Rows of FP16 times 127 and the reciprocal of `amax`, as PyTorch divides a number by a tensor; a row of zeros stays one."""
    half = weight.astype(np.float16).astype(F32)
    maxima = np.abs(half).max(1)
    inverse = (F32(1) / np.where(maxima > 0, maxima, F32(1))).astype(F32)
    factor = np.where(maxima > 0, inverse * F32(127), F32(0)).astype(F32)
    codes = np.rint((half * factor[:, None]).astype(F32)).astype(np.int8)
    decoded = ((codes.astype(F32) * maxima[:, None]).astype(F32) * F32(7.874015718698502e-3)).astype(F32)
    return {"weight": codes, "SCB": maxima, "weight_format": np.array(0, np.uint8)}, decoded


def four(weight, kind, double, type_name):
    table = NF4 if kind == "nf4" else FP4
    # NumPy's order of the two zeros is bitsandbytes' own: the first code before the eighth.
    order = np.argsort(table, kind="stable")
    ranks, maxima = coded(weight.ravel(), table[order], BLOCK)
    codes = order[ranks].astype(np.uint8)
    zero = order[np.searchsorted(((table[order][:-1] + table[order][1:]) / F32(2)).astype(F32), F32(0), side="left")]
    padded = np.append(codes, np.uint8(zero)) if codes.size % 2 else codes
    parts = {"weight": (padded[0::2] << 4 | padded[1::2]).reshape(-1, 1).astype(np.uint8)}
    state = {"quant_type": kind, "blocksize": BLOCK, "dtype": DTYPES[type_name], "shape": list(weight.shape)}
    blanks = 0
    if double:
        mean = F32(maxima.astype(np.float64).sum() / maxima.size)
        values = dynamic()
        second_codes, second = coded((maxima - mean).astype(F32), values, SECOND)
        state |= {"nested_blocksize": SECOND, "nested_dtype": "float32", "nested_offset": float(mean)}
        # Room for any number, since the header is written before it is known.
        blanks = 24 - len(repr(float(mean)))
        parts |= {"weight.absmax": second_codes.astype(np.uint8), "weight.nested_absmax": second, "weight.nested_quant_map": values}
        shared = np.repeat(second, SECOND)[: maxima.size]
        maxima = ((values[second_codes] * shared).astype(F32) + mean).astype(F32)
    else:
        parts["weight.absmax"] = maxima
    parts["weight.quant_map"] = table
    described = json.dumps(state).encode() + b" " * blanks
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(described, np.uint8)
    decoded = (table[codes] * np.repeat(maxima, BLOCK)[: codes.size]).astype(F32)
    return parts, decoded.reshape(weight.shape)
