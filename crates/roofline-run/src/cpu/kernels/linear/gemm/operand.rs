//! What micro-kernels multiply, and how rows become it.
//!
//! Whatever the numbers, kernels see dwords: one FP32, two BF16 or INT16, four INT8. Blocking, packing and transposing
//! are then the same for all of them.

use std::slice;

use super::super::{
    weights::{Code, Rows},
    wide::Wide,
};

/// Dwords of a row in one block along `k`: with 32 lanes a third of a first-level cache of 48 KiB, beside packed rows and
/// sums.
pub(super) const STEPS: usize = 128;
/// The same with tiles, whose sums are moved less often the longer a block is: tiles of both sides then come from the
/// second-level cache, which has them in time.
pub(super) const TILE_STEPS: usize = 384;
/// Bytes from one packed row to the next: a block and a cache line, so that rows do not share sets.
pub(super) const PITCH: usize = 4 * STEPS + 64;
/// Bytes from one step to the next of rows that lie side by side: a cache line.
pub(super) const COLUMNS_PITCH: usize = 64;
/// Dwords between rows beyond their own, so that they do not share sets.
pub(super) const SKEW: usize = 16;
/// Blocks are padded with zeros to a multiple of these dwords, the height of a tile.
pub(super) const DEPTH: usize = 16;

/// Numbers as a micro-kernel takes them.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Fp32,
    Bf16,
    /// INT8 codes, widened: what vectors without byte products multiply exactly.
    Int16,
    Int8,
    /// INT8 codes plus 128: the unsigned side of VNNI.
    Offset8,
}

impl Operand {
    /// Numbers in a dword.
    pub(super) const fn per_dword(self) -> usize {
        match self {
            Self::Fp32 => 1,
            Self::Bf16 | Self::Int16 => 2,
            Self::Int8 | Self::Offset8 => 4,
        }
    }

    pub(super) const fn is_integer(self) -> bool {
        matches!(self, Self::Int16 | Self::Int8 | Self::Offset8)
    }

    /// Whether weights stored so are multiplied as they are.
    pub(super) fn is_native(self, code: Code) -> bool {
        match self {
            Self::Fp32 => code == Code::Fp32,
            Self::Bf16 => code == Code::Bf16,
            Self::Int16 | Self::Int8 | Self::Offset8 => code == Code::Int8,
        }
    }
}

/// Block `block` along `k` of one row, as `operand`, padded with zeros. Inlined where wider vectors are enabled; FP32
/// values come from `decode`.
#[inline(always)]
pub(super) fn pack(
    rows: &Rows<'_>,
    row: usize,
    block: usize,
    (operand, steps): (Operand, usize),
    out: &mut [u8],
    decode: impl Fn(&Rows<'_>, usize, usize, &mut [f32]),
) {
    let k = rows.stored.k;
    let width = steps * operand.per_dword();
    let start = block * width;
    let length = (k - start).min(width);
    let used = match operand {
        Operand::Fp32 => {
            decode(rows, row, start, floats(&mut out[..4 * length]));
            4 * length
        }
        Operand::Bf16 if rows.stored.code == Code::Bf16 => {
            out[..2 * length].copy_from_slice(&rows.codes(row)[2 * start..][..2 * length]);
            2 * length
        }
        Operand::Bf16 => {
            let mut values = [0.0; 2 * TILE_STEPS];
            decode(rows, row, start, &mut values[..length]);
            Wide::Bf16.encode(&values[..length], &mut out[..2 * length]);
            2 * length
        }
        Operand::Int16 => {
            for (out, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(&rows.codes(row)[start..][..length]) {
                *out = i16::from(*code as i8).to_le_bytes();
            }
            2 * length
        }
        Operand::Int8 => {
            out[..length].copy_from_slice(&rows.codes(row)[start..][..length]);
            length
        }
        Operand::Offset8 => {
            for (out, code) in out.iter_mut().zip(&rows.codes(row)[start..][..length]) {
                *out = code ^ 0x80;
            }
            length
        }
    };
    out[used..].fill(0);
}

/// Packed bytes as numbers; packed rows start on cache lines.
#[inline(always)]
fn floats(bytes: &mut [u8]) -> &mut [f32] {
    assert!(bytes.as_ptr().cast::<f32>().is_aligned());
    // SAFETY: aligned, and any bits are an FP32 number.
    unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / 4) }
}
