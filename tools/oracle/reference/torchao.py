"""torchao 0.18's flattened safetensors: every scheme as `{part: array}`, what the parts stand for, and how the metadata describes them."""

import numpy as np

from .numbers import F32, Arithmetic, e4m3, nibbles, widened

INT8 = {"w8a16": None, "int8-g128": 128}
INT4 = {"int4-g128-zp16": 128, "int4-g64-zp16": 64, "int4-g32-zp16": 32}
# Group, zero points.
INTX4 = {"w4a16": (128, False), "int4-g32": (32, False), "int4-g32-zp": (32, True)}
GRANULES = {"w8a16": 1, "int8-g128": 128, "fp8a16": 1, **INT4, **{name: group for name, (group, _) in INTX4.items()}}
CONFIGURATIONS = {
    "Int8Tensor": "Int8WeightOnlyConfig",
    "Float8Tensor": "Float8WeightOnlyConfig",
    "Int4Tensor": "Int4WeightOnlyConfig",
    "IntxUnpackedToInt8Tensor": "IntxWeightOnlyConfig",
}
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def encode(scheme, weight, type_name):
    to = Arithmetic(type_name)
    if scheme in INT8:
        return int8(to, widened(weight), INT8[scheme])
    if scheme == "fp8a16":
        return float8(to, widened(weight))
    if scheme in INT4:
        return int4(to, widened(weight), INT4[scheme])
    if scheme in INTX4:
        return intx4(to, widened(weight), *INTX4[scheme])
    raise KeyError(scheme)


def int8(to, weight, group):
    """`Int8Tensor`: scales in the model's type, stored as FP32; weights are multiplied with the reciprocal."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group or columns)
    scale = to.round(np.maximum(to.round(np.abs(groups).max(-1) / F32(127.5)), np.finfo(F32).eps))
    codes = np.clip(np.rint(groups * (F32(1) / scale)[..., None]), -128, 127).astype(np.int8)
    parts = {"qdata": codes.reshape(rows, columns), "scale": scale, "zero_point": np.zeros(scale.shape, np.int8)}
    return parts, (codes * scale[..., None]).reshape(rows, columns)


def float8(to, weight):
    """`Float8Tensor`. Where a scale is zero torchao stores codes that are no numbers; here such rows are left open, their scale NaN."""
    scale = to.round(np.abs(weight).max(1, keepdims=True) / F32(448))
    usable = scale > 0
    codes = e4m3(np.where(usable, weight / np.where(usable, scale, 1), 0))
    return {"qdata": codes, "scale": np.where(usable, scale, F32(np.nan))}, widened(codes) * np.where(usable, scale, 0)


def int4(to, weight, group):
    """`Int4Tensor`: FP32 throughout, scales and zero points stored transposed in the model's type."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group)
    low, high = groups.min(-1), groups.max(-1)
    scale = np.maximum(high - low, F32(1e-6)) / F32(15)
    zero = low + scale * F32(8)
    codes = np.clip(np.rint((groups - low[..., None]) / scale[..., None]), 0, 15).astype(np.int32) - 8
    stored_scale, stored_zero = to.stored(scale), to.stored(zero)
    decoded = codes.astype(F32) * widened(stored_scale)[..., None] + widened(stored_zero)[..., None]
    parts = {
        "qdata": nibbles(codes.reshape(rows, columns)).view(np.int8),
        "scale": np.ascontiguousarray(stored_scale.T),
        "zero_point": np.ascontiguousarray(stored_zero.T),
    }
    return parts, decoded.reshape(rows, columns)


def intx4(to, weight, group, shifted):
    """`IntxUnpackedToInt8Tensor`: a byte a code; every result in the model's type, and the reciprocal of the scale with it."""
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, group)
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    zero = np.zeros(low.shape, F32)
    if shifted:
        scale = np.maximum(to.round(to.round(high - low) / F32(15)), to.tiny)
        zero = np.clip(F32(-8) - np.rint(to.round(low / scale)), -8, 7)
    else:
        scale = np.maximum(to.round(np.maximum(-low, high) / F32(7.5)), to.tiny)
    inverse = to.round(F32(1) / scale)
    moved = to.round(np.rint(to.round(groups * inverse[..., None])) + zero[..., None])
    codes = np.clip(moved, -8, 7).astype(np.int8)
    parts = {"qdata": codes.reshape(rows, columns), "scale": to.stored(scale), "zero_point": zero.astype(np.int8)}
    return parts, ((codes - zero[..., None]) * scale[..., None]).astype(F32).reshape(rows, columns)


def description(scheme, weight, type_name):
    """The JSON that the metadata holds for a weight."""
    rows, columns = weight.shape
    dtype = {"_type": "torch.dtype", "_data": DTYPES[type_name]}
    if scheme in INT8:
        data = {"act_quant_kwargs": None, "reduce_range": False, "block_size": [1, INT8[scheme] or columns], "dtype": dtype}
        return {"_type": "Int8Tensor", "_data": data, "_tensor_data_names": ["zero_point", "qdata", "scale"]}
    if scheme == "fp8a16":
        data = {
            "block_size": [1, columns],
            "mm_config": None,
            "act_quant_kwargs": None,
            "kernel_preference": {"_type": "KernelPreference", "_data": "AUTO"},
            "dtype": dtype,
        }
        return {"_type": "Float8Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]}
    if scheme in INTX4:
        target = {"_type": "torch.dtype", "_data": "int4"}
        data = {"target_dtype": target, "block_size": [1, INTX4[scheme][0]], "dtype": dtype, "activation_quantization": None}
        return {"_type": "IntxUnpackedToInt8Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale", "zero_point"]}
    activation = {"_type": "torch.dtype", "_data": "bfloat16"}
    data = {"activation_dtype": activation, "block_size": [1, INT4[scheme]], "shape": [rows, columns]}
    return {"_type": "Int4Tensor", "_data": data, "_tensor_data_names": ["qdata", "scale", "zero_point"]}
