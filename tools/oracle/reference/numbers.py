"""Number types: rounding to them, and the codes of the narrow ones."""

import ml_dtypes
import numpy as np

F32 = np.float32
TYPES = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


class Arithmetic:
    """PyTorch's arithmetic on a type: every operation in FP32, every result rounded to the type."""

    def __init__(self, name):
        self.name = name
        self.dtype = TYPES[name]
        info = ml_dtypes.finfo(self.dtype)
        self.eps, self.tiny, self.max = F32(info.eps), F32(info.tiny), F32(info.max)

    def round(self, x):
        return np.asarray(x, F32).astype(self.dtype).astype(F32)

    def stored(self, x):
        return np.asarray(x, F32).astype(self.dtype)


def widened(weight):
    return weight.astype(F32)


def e4m3(x):
    """The nearest E4M3 codes of numbers within +-448."""
    return np.clip(np.asarray(x, F32), -448, 448).astype(ml_dtypes.float8_e4m3fn)


def e2m1(x):
    """The nearest E2M1 codes, ties to the even one; negative numbers keep their sign."""
    codes = np.clip(np.asarray(x, F32), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    return codes.view(np.uint8) & 15


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], F32)


def nibbles(codes):
    """Two codes a byte, the even column in the low half."""
    return (codes[:, 0::2] & 15 | codes[:, 1::2] << 4).astype(np.uint8)


def words(codes, bits):
    """Integers as offset binary in a little-endian stream of 32-bit words, every row for itself."""
    rows, columns = codes.shape
    per_word = 32 // bits
    unsigned = (codes.astype(np.int64) + (1 << (bits - 1))).astype(np.uint64)
    padded = np.zeros((rows, -(-columns // per_word) * per_word), np.uint64)
    padded[:, :columns] = unsigned
    shifts = np.arange(per_word, dtype=np.uint64) * np.uint64(bits)
    return (padded.reshape(rows, -1, per_word) << shifts).sum(-1).astype(np.uint32).view(np.int32)
