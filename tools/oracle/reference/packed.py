"""GPTQ's and AWQ's packings as GPTQModel 7.7 rounds to nearest, and fine-grained FP8 as transformers 5.22 does: `{part: array}`, and what the
parts stand for."""

import numpy as np

from .numbers import F32, e4m3, widened

WIDTHS, GROUPS = (2, 3, 4, 8), (32, 64, 128, None)


def name_of(bits, group, zero):
    special = {(4, 128, False): "w4a16", (8, None, False): "w8a16", (3, 64, False): "int3", (2, 64, False): "int2"}
    span = f"g{group}" if group else "channel"
    return special.get((bits, group, zero), f"int{bits}-{span}{'-zp' if zero else ''}")


GPTQ = {name_of(bits, group, zero): (bits, group, zero) for bits in WIDTHS for group in GROUPS for zero in (False, True)}
AWQ = {f"int4-g{group}-zp": group for group in (32, 64, 128)}
# Which of eight output channels the fields of a word of AWQ's are of, from the low end.
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def rounded(weight, bits, group, zero):
    """Codes `[rows, columns]`, and scales and zero points `[rows, groups]`. A symmetric group without negative weights is as any other."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group or columns)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    if not zero:
        high = np.maximum(high, -low)
        low = -high
    empty = high == low
    low, high = np.where(empty, F32(-1), low), np.where(empty, F32(1), high)
    most = 2**bits - 1
    scale = np.maximum((high - low) / F32(most), np.finfo(F32).tiny).astype(F32)
    points = np.rint(np.clip(-low / scale, 0, most)) if zero else np.full_like(scale, (most + 1) / 2)
    codes = np.clip(np.rint(groups / scale[..., None]) + points[..., None], 0, most)
    return codes.reshape(rows, columns).astype(np.uint8), scale, points.astype(np.uint8)


def decoded(codes, scale, points):
    """With scales as they are stored, in FP16."""
    rows, columns = codes.shape
    grouped = codes.reshape(rows, scale.shape[1], -1).astype(F32) - points[..., None].astype(F32)
    return (grouped * scale.astype(np.float16).astype(F32)[..., None]).reshape(rows, columns)


def stream(codes, bits):
    """Codes down the first dimension as one stream of bits, in 32-bit words from the low end up."""
    count, wide = codes.shape
    fields = (codes[:, None, :] >> np.arange(bits, dtype=np.uint8)[None, :, None] & 1).reshape(count * bits, wide)
    words = fields.reshape(-1, 32, wide).astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]
    return words.sum(1).astype(np.uint32).view(np.int32)


def gptq(weight, bits, group, zero):
    codes, scale, points = rounded(widened(weight), bits, group, zero)
    # Symmetric weights are in the first format, whose zero points are less by one.
    stored = points if zero else points - 1
    columns = weight.shape[1]
    parts = {
        "qweight": stream(codes.T, bits),
        "qzeros": np.ascontiguousarray(stream(stored, bits).T),
        "scales": np.ascontiguousarray(scale.T.astype(np.float16)),
        "g_idx": (np.arange(columns) // (group or columns)).astype(np.int32),
    }
    return parts, decoded(codes, scale, points)


def awq(weight, group):
    codes, scale, points = rounded(widened(weight), 4, group, True)

    def words(fields):
        eights = fields.T.reshape(fields.shape[1], -1, 8)[..., ORDER].astype(np.uint64)
        return (eights << np.arange(0, 32, 4, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)

    parts = {"qweight": words(codes), "qzeros": words(points), "scales": np.ascontiguousarray(scale.T.astype(np.float16))}
    return parts, decoded(codes, scale, points)


def fine_grained(weight, side=128):
    rows, columns = weight.shape
    down, across = -(-rows // side), -(-columns // side)
    full = np.zeros((down * side, across * side), F32)
    full[:rows, :columns] = widened(weight)
    blocks = full.reshape(down, side, across, side)
    peak = np.abs(blocks).max((1, 3), keepdims=True)
    # A number by a tensor is a reciprocal and a product.
    factor = np.where(peak > 0, (F32(1) / np.where(peak > 0, peak, F32(1))) * F32(448), F32(1)).astype(F32)
    factor = np.minimum(factor, F32(2.0**127))
    codes, scale = e4m3(blocks * factor), (F32(1) / factor).astype(F32)
    cut = lambda x: np.ascontiguousarray(x.reshape(full.shape)[:rows, :columns])  # noqa: E731
    parts = {"weight": cut(codes), "weight_scale_inv": scale.reshape(down, across)}
    return parts, cut(widened(codes) * scale)
