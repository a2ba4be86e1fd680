"""compressed-tensors 0.19 as llm-compressor 0.14 writes it: every scheme as `{part: array}`, and what the parts stand for.

All arithmetic is that of the model's own type; a scale of zero becomes the type's epsilon.
"""

import numpy as np

from .numbers import E2M1, F32, Arithmetic, e2m1, e4m3, nibbles, widened, words

# Bits, group (none: a scale per row), zero points.
INTEGERS = {
    "w4a16": (4, 128, False),
    "int4-g64": (4, 64, False),
    "int4-g32": (4, 32, False),
    "int4-g128-zp": (4, 128, True),
    "int4-g64-zp": (4, 64, True),
    "int4-g32-zp": (4, 32, True),
    "int4-channel": (4, None, False),
    "w8a16": (8, None, False),
    "int8-g128": (8, 128, False),
    "w4a8": (4, 128, False),
}
# Schemes whose inputs have a stored scale, what it is called, and what it is.
RANGED = {"fp8-static": ("input_scale", "fp8"), "nvfp4": ("input_global_scale", "nvfp4")}
# What the number of columns must be a multiple of.
GRANULES = {
    **{name: group or 1 for name, (_, group, _) in INTEGERS.items()},
    **{"w4a8-int8": 128, "int8": 1, "fp8": 1, "fp8-static": 1, "fp8-block": 128, "nvfp4a16": 16, "nvfp4": 16},
    **{"mxfp4a16": 32, "mxfp4": 32, "mxfp8": 32},
}
FAMILIES = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]


def encode(scheme, weight, type_name, family):
    """The parts of a weight, and the numbers they stand for. `family` has the weights that runtimes fuse with it, itself included."""
    to = Arithmetic(type_name)
    if scheme in INTEGERS:
        return integers(to, widened(weight), *INTEGERS[scheme])
    if scheme == "w4a8-int8":
        rows, columns = weight.shape
        codes, scale = symmetric(to, widened(weight).reshape(rows, -1, 128), 4)
        decoded = (codes * scale[..., None]).reshape(rows, columns)
        return {"weight": codes.reshape(rows, columns), "weight_scale": to.stored(scale)}, decoded
    if scheme == "int8":
        codes, scale = symmetric(to, widened(weight)[:, None, :], 8)
        return {"weight": codes[:, 0], "weight_scale": to.stored(scale)}, (codes * scale[..., None])[:, 0]
    if scheme == "fp8":
        return float8_rows(to, widened(weight))
    if scheme == "fp8-static":
        codes, scale = float8(to, widened(weight), np.abs(widened(weight)).max())
        return {"weight": codes, "weight_scale": to.stored(scale).reshape(1)}, widened(codes) * scale
    if scheme == "fp8-block":
        return float8_blocks(to, widened(weight))
    if scheme in ("nvfp4a16", "nvfp4"):
        return nvfp4(to, widened(weight), max(np.abs(widened(one)).max() for one in family))
    if scheme in ("mxfp4a16", "mxfp4"):
        return mxfp4(to, widened(weight))
    if scheme == "mxfp8":
        return mxfp8(to, widened(weight))
    raise KeyError(scheme)


def unless_zero(to, scale):
    return np.where(scale == 0, to.eps, scale).astype(F32)


def symmetric(to, groups, bits):
    """Codes and scales of weights `[rows, groups, members]`."""
    peak = np.abs(groups).max(-1)
    scale = unless_zero(to, to.round(peak / to.round((2**bits - 1) / 2)))
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes = np.rint(np.clip(to.round(groups / scale[..., None]), low, high)).astype(np.int8)
    return codes, scale


def asymmetric(to, groups, bits):
    """Codes, scales and zero points: zero is within every range."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    smallest, largest = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scale = to.round(to.round(largest - smallest) / F32(2**bits - 1))
    # Where the scale is zero the quotient is infinite or no number, and the latter becomes zero.
    zero = np.clip(to.round(low - to.round(smallest / scale)), low, high)
    zero = np.rint(np.nan_to_num(zero)).astype(np.int8)
    scale = unless_zero(to, scale)
    moved = to.round(to.round(groups / scale[..., None]) + zero[..., None].astype(F32))
    return np.rint(np.clip(moved, low, high)).astype(np.int8), scale, zero


def integers(to, weight, bits, group, shifted):
    """`pack-quantized`."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group or columns)
    parts = {"weight_shape": np.array([rows, columns], np.int64)}
    if shifted:
        codes, scale, zero = asymmetric(to, groups, bits)
        # Zero points are packed down the columns.
        parts["weight_zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
        decoded = (codes.astype(F32) - zero[..., None]) * scale[..., None]
    else:
        codes, scale = symmetric(to, groups, bits)
        decoded = codes * scale[..., None]
    parts |= {"weight_packed": words(codes.reshape(rows, columns), bits), "weight_scale": to.stored(scale)}
    return parts, decoded.reshape(rows, columns)


def float8(to, weight, peak):
    """Codes and scales where `peak` can be divided by. Adding zero makes a negative zero positive."""
    scale = unless_zero(to, to.round(peak / F32(448)))
    return e4m3(to.round(weight / scale) + F32(0)), scale


def float8_rows(to, weight):
    codes, scale = float8(to, weight, np.abs(weight).max(1, keepdims=True))
    return {"weight": codes, "weight_scale": to.stored(scale)}, widened(codes) * scale


def float8_blocks(to, weight, side=128):
    """Blocks of 128 x 128; those at the edges are filled up with zeros, which are then cut off."""
    rows, columns = weight.shape
    down, across = -(-rows // side), -(-columns // side)
    full = np.zeros((down * side, across * side), F32)
    full[:rows, :columns] = weight
    blocks = full.reshape(down, side, across, side)
    codes, scale = float8(to, blocks, np.abs(blocks).max((1, 3), keepdims=True))
    cut = lambda x: np.ascontiguousarray(x.reshape(full.shape)[:rows, :columns])  # noqa: E731
    parts = {"weight": cut(codes), "weight_scale": to.stored(scale.reshape(down, across))}
    return parts, cut(widened(codes) * scale)


def divisor_of(to, peak):
    """The global scale divides; PyTorch computes it as a reciprocal and a product."""
    divisor = to.round(to.round(F32(1) / max(F32(peak), to.tiny)) * F32(2688))
    return divisor if np.isfinite(divisor) else F32(1)


def seen(kind, peak, type_name):
    """What is stored for inputs, keys or values that data brought up to `peak`."""
    to = Arithmetic(type_name)
    peak = to.round(F32(peak))
    if kind == "nvfp4":
        return np.array([divisor_of(to, peak)], F32)
    return to.stored(unless_zero(to, to.round(peak / F32(448)))).reshape(1)


def nvfp4(to, weight, peak):
    divisor = divisor_of(to, peak)
    rows, columns = weight.shape
    blocks = weight.reshape(rows, -1, 16)
    stored = e4m3(to.round(np.abs(blocks).max(-1) / F32(6)) * divisor)
    stored = np.where(widened(stored) == 0, e4m3(0.125), stored)
    scale = widened(stored) / divisor
    codes = e2m1(blocks / scale[..., None] + F32(0))
    parts = {
        "weight_packed": nibbles(codes.reshape(rows, columns)),
        "weight_scale": stored,
        "weight_global_scale": np.array([divisor], F32),
    }
    return parts, (E2M1[codes] * scale[..., None]).reshape(rows, columns)


def powers(to, blocks, less):
    """Powers of two: the exponent of the largest magnitude, one more from a mantissa of 1.75 on, less that of the element's largest
    number. As they are stored, exactly, and in the model's type."""
    # A quarter of the last-but-one bit of the mantissa is added in the type's own bits, and the mantissa is then dropped.
    mantissa, integer = {"BF16": (7, np.uint16), "F16": (10, np.uint16), "F32": (23, np.uint32)}[to.name]
    bits = to.stored(np.abs(blocks).max(-1)).view(integer).astype(np.int64) + (1 << (mantissa - 2))
    power = ((bits >> mantissa) << mantissa).astype(integer).view(to.dtype).astype(F32)
    exponent = np.where(power > 0, 127 + np.floor(np.log2(np.where(power > 0, power, 1))) - less, 0)
    stored = np.clip(exponent, 0, 254).astype(np.uint8)
    exact = np.ldexp(F32(1), stored.astype(np.int32) - 127).astype(F32)
    scale = to.round(exact)
    # A power that the type does not have becomes one, and is stored so.
    return (np.where(scale == 0, one, x) for one, x in ((np.uint8(127), stored), (F32(1), exact), (F32(1), scale)))


def mxfp4(to, weight):
    rows, columns = weight.shape
    blocks = weight.reshape(rows, -1, 32)
    stored, exact, scale = powers(to, blocks, 2)
    codes = e2m1(to.round(blocks / scale[..., None]) + F32(0))
    decoded = (E2M1[codes] * exact[..., None]).reshape(rows, columns)
    return {"weight_packed": nibbles(codes.reshape(rows, columns)), "weight_scale": stored}, decoded


def mxfp8(to, weight):
    rows, columns = weight.shape
    blocks = weight.reshape(rows, -1, 32)
    stored, exact, scale = powers(to, blocks, 8)
    codes = e4m3(to.round(blocks / scale[..., None]) + F32(0))
    decoded = (widened(codes) * exact[..., None]).reshape(rows, columns)
    return {"weight": codes.reshape(rows, columns), "weight_scale": stored}, decoded


def configuration(scheme):
    """The format and the arguments of weights and inputs that belong in `quantization_config`."""
    token = {"symmetric": True, "strategy": "token", "dynamic": True}
    if scheme in INTEGERS:
        bits, group, shifted = INTEGERS[scheme]
        span = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
        inputs = {"w4a8": {"num_bits": 8, "type": "float", **token}}
        return "pack-quantized", {"num_bits": bits, "type": "int", "symmetric": not shifted, **span}, inputs.get(scheme)
    return {
        "w4a8-int8": (
            "int-quantized",
            {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128},
            {"num_bits": 8, "type": "int", **token},
        ),
        "int8": (
            "int-quantized",
            {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            {"num_bits": 8, "type": "int", **token},
        ),
        "fp8": (
            "float-quantized",
            {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
            {"num_bits": 8, "type": "float", **token},
        ),
        "fp8-block": (
            "float-quantized",
            {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128]},
            {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": True},
        ),
        "fp8-static": (
            "float-quantized",
            {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor"},
            {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False},
        ),
        "nvfp4": (
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16},
            {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
        ),
        "nvfp4a16": (
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16},
            None,
        ),
        "mxfp4a16": ("mxfp4-pack-quantized", micro(4), None),
        "mxfp4": ("mxfp4-pack-quantized", micro(4), {**micro(4), "dynamic": True}),
        "mxfp8": ("mxfp8-quantized", micro(8), {**micro(8), "dynamic": True}),
    }[scheme]


def micro(bits):
    span = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    return {"num_bits": bits, "type": "float", "symmetric": True, **span}
