"""MLX 0.32: every scheme as `{part: array}`, and what the parts stand for."""

import numpy as np

from .numbers import E2M1, F32, Arithmetic, e4m3, widened

# Bits and group.
AFFINE = {f"int{bits}-g{group}-zp16": (bits, group) for bits in (2, 3, 4, 6, 8) for group in (32, 64, 128)}
CENTRED = {"w4a16": (4, 128), "int4-g64": (4, 64), "int4-g32": (4, 32), "int8-g128": (8, 128), "int3": (3, 64), "int2": (2, 64)}
# Group, bits, mode.
FLOATS = {"mxfp4a16": (32, 4, "mxfp4"), "mxfp8a16": (32, 8, "mxfp8"), "nvfp4a16": (16, 4, "nvfp4")}
TERMS = {
    **{name: (group, bits, "affine") for name, (bits, group) in {**AFFINE, **CENTRED}.items()},
    **FLOATS,
}
GRANULES = {name: max(group, 32) for name, (group, _, _) in TERMS.items()}


def encode(scheme, weight, type_name):
    to = Arithmetic(type_name)
    if scheme in AFFINE:
        return affine(to, widened(weight), *AFFINE[scheme])
    if scheme in CENTRED:
        return centred(to, widened(weight), *CENTRED[scheme])
    return floats(to, widened(weight), *FLOATS[scheme])


def words(codes, bits):
    """A stream of bits from the low end up, in 32-bit words."""
    bit = (codes[..., None] >> np.arange(bits)) & 1
    return np.packbits(bit.reshape(len(codes), -1).astype(np.uint8), axis=1, bitorder="little").view(np.uint32)


def stored(to, groups, codes, scale, bias, bits):
    rows = codes.shape[0]
    scale, bias = to.stored(scale), to.stored(bias)
    decoded = (codes.astype(F32) * widened(scale)[..., None]).astype(F32) + widened(bias)[..., None]
    parts = {"weight": words(codes.reshape(rows, -1).astype(np.int64), bits), "scales": scale, "biases": bias}
    return parts, decoded.astype(F32).reshape(rows, -1)


def affine(to, weight, bits, group):
    """The bias is the weight of greatest magnitude, and the scale such that zero is a code."""
    top = F32(2**bits - 1)
    groups = weight.reshape(len(weight), -1, group)
    low, high = groups.min(-1), groups.max(-1)
    below = np.abs(low) > np.abs(high)
    scale = np.maximum(((high - low) / top).astype(F32), F32(1e-7))
    scale, edge = np.where(below, scale, -scale), np.where(below, low, high)
    steps = np.rint((edge / scale).astype(F32))
    some = steps != 0
    scale = np.where(some, (edge / np.where(some, steps, 1)).astype(F32), scale).astype(F32)
    bias = np.where(some, edge, F32(0)).astype(F32)
    codes = np.clip(np.rint(((groups - bias[..., None]) / scale[..., None]).astype(F32)), 0, top)
    return stored(to, groups, codes, scale, bias, bits)


def centred(to, weight, bits, group):
    """Symmetric integers; the bias is that of the least."""
    top = F32(2**bits - 1)
    groups = weight.reshape(len(weight), -1, group)
    scale = to.round(np.abs(groups).max(-1) / (top / 2))
    scale = np.where(scale == 0, to.eps, scale).astype(F32)
    bias = to.round(-((top + 1) / 2) * scale)
    codes = np.clip(np.rint(((groups - bias[..., None]) / scale[..., None]).astype(F32)), 0, top)
    return stored(to, groups, codes, scale, bias, bits)


def floats(to, weight, group, bits, mode):
    """Scales are the next power of two above `amax / 6`, or `amax / 448`, or for `nvfp4` the nearest E4M3."""
    rows = len(weight)
    groups = weight.reshape(rows, -1, group)
    ideal = to.round(np.abs(groups).max(-1) / F32(6 if bits == 4 else 448))
    if mode == "nvfp4":
        byte = e4m3(ideal).view(np.uint8)
        scale = e4m3(ideal).astype(F32)
    else:
        words_of = ideal.view(np.uint32)
        above = (words_of >> 23) + ((words_of & 0x7FFFFF) != 0)
        byte = np.where(ideal == 0, 127, np.minimum(above, 254)).astype(np.uint8)
        scale = np.ldexp(F32(1), byte.astype(int) - 127).astype(F32)
    usable = scale != 0
    scaled = np.where(usable[..., None], groups / np.where(usable, scale, 1)[..., None], 0).astype(F32)
    if bits == 8:
        codes = e4m3(scaled).view(np.uint8)
        decoded = (e4m3(scaled).astype(F32) * scale[..., None]).astype(F32)
    else:
        magnitude = np.abs(scaled)
        codes = sum((magnitude > middle).astype(np.uint8) for middle in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5))
        codes = codes | np.where((scaled < 0) & (codes > 0), 8, 0).astype(np.uint8)
        decoded = (E2M1[codes] * scale[..., None]).astype(F32)
    parts = {"weight": words(codes.reshape(rows, -1).astype(np.int64), bits), "scales": byte.reshape(rows, -1)}
    return parts, decoded.reshape(rows, -1)
