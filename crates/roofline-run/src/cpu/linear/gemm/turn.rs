//! Packing rows, transposing blocks and writing results: what happens around the micro-kernels, compiled once for each
//! width of vectors.

// `Rows::decode` is not general enough over the lifetime of rows.
#![allow(clippy::redundant_closure_for_method_calls)]

use std::ops::Range;

use super::{
    super::{output::Output, stored::Rows},
    micro::Micro,
    operand::{Operand, PITCH, TILE_STEPS, pack},
};
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::Level;
use crate::cpu::simd::Simd;

/// Transposes 16 steps of up to 16 lanes: rows of dwords at `from` become columns at `to`. Strides in bytes; the last
/// argument is the number of rows at `from`.
type Transpose = unsafe fn(*const u8, usize, *mut u8, usize, usize);

/// A packed row on its way to tiles.
#[repr(align(64))]
struct Packed([u8; 4 * TILE_STEPS]);

/// The functions of a level.
#[derive(Clone, Copy)]
pub(in super::super) struct Turn {
    pack_row: unsafe fn(&Rows<'_>, usize, usize, (Operand, usize), &mut [u8]),
    pub(super) transpose: Transpose,
    /// Writes part of a row of the output.
    pub(super) put: unsafe fn(&Output, usize, usize, &[f32]),
}

impl Turn {
    pub(in super::super) fn choose(simd: Simd) -> Self {
        match simd.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self { pack_row: pack_avx512, transpose: transpose_avx512, put: put_avx512 },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self { pack_row: pack_avx2, transpose, put: put_avx2 },
            _ => Self { pack_row, transpose, put },
        }
    }

    /// Packs the blocks of some rows of `W` for `micro`, `padded` rows to a block; rows beyond those given keep what they
    /// had.
    pub(super) fn pack_left(
        &self,
        source: &Rows<'_>,
        rows: Range<usize>,
        blocks: usize,
        padded: usize,
        micro: &Micro,
        out: &mut [u8],
    ) {
        for (index, row) in rows.enumerate() {
            for block in 0..blocks {
                let at = block * padded * micro.row_bytes() + micro.row_start(index);
                let what = (micro.left, micro.steps());
                if micro.tiles {
                    let mut packed = Packed([0; 4 * TILE_STEPS]);
                    // SAFETY: chosen by what the processor has.
                    unsafe { (self.pack_row)(source, row, block, what, &mut packed.0) };
                    for (line, part) in packed.0.as_chunks::<64>().0.iter().enumerate() {
                        out[at + 2048 * line..][..64].copy_from_slice(part);
                    }
                } else {
                    // SAFETY: as above.
                    unsafe { (self.pack_row)(source, row, block, what, &mut out[at..at + PITCH]) };
                }
            }
        }
    }

    /// One whole row as BF16.
    pub(in super::super) fn cast(&self, source: &Rows<'_>, row: usize, out: &mut [u8]) {
        for (block, out) in out.chunks_mut(4 * TILE_STEPS).enumerate() {
            // SAFETY: chosen by what the processor has.
            unsafe { (self.pack_row)(source, row, block, (Operand::Bf16, TILE_STEPS), out) };
        }
    }

    /// Packs one block of some rows of `x`, `pitch` bytes apart.
    pub(super) fn pack_right(
        &self,
        source: &Rows<'_>,
        rows: Range<usize>,
        block: usize,
        micro: &Micro,
        (out, pitch): (&mut [u8], usize),
    ) {
        for (row, out) in rows.zip(out.chunks_exact_mut(pitch)) {
            // SAFETY: chosen by what the processor has.
            unsafe { (self.pack_row)(source, row, block, (micro.right, micro.steps()), out) };
        }
    }

    /// Transposes a block of `height` rows and `count` columns, at most 16 of each.
    ///
    /// # Safety
    ///
    /// There are as many rows and columns at `from`, and at `to` the other way round.
    pub(super) unsafe fn block(
        &self,
        from: *const u8,
        from_stride: usize,
        to: *mut u8,
        to_stride: usize,
        (height, count): (usize, usize),
    ) {
        // SAFETY: the caller's blocks.
        unsafe {
            if (height, count) == (16, 16) {
                (self.transpose)(from, from_stride, to, to_stride, 16);
            } else {
                plain(from, from_stride, to, to_stride, (height, count));
            }
        }
    }
}

unsafe fn pack_row(rows: &Rows<'_>, row: usize, block: usize, what: (Operand, usize), out: &mut [u8]) {
    pack(rows, row, block, what, out, |rows, row, start, out| rows.decode(row, start, out));
}

#[inline(always)]
unsafe fn plain(from: *const u8, from_stride: usize, to: *mut u8, to_stride: usize, (height, count): (usize, usize)) {
    for row in 0..height {
        for column in 0..count {
            // SAFETY: within the caller's blocks.
            unsafe {
                let value = from.add(row * from_stride + 4 * column).cast::<u32>().read();
                to.add(column * to_stride + 4 * row).cast::<u32>().write(value);
            }
        }
    }
}

unsafe fn transpose(from: *const u8, from_stride: usize, to: *mut u8, to_stride: usize, height: usize) {
    // SAFETY: passed on.
    unsafe { plain(from, from_stride, to, to_stride, (height, 16)) };
}

unsafe fn put(output: &Output, row: usize, column: usize, values: &[f32]) {
    // SAFETY: passed on.
    unsafe { output.put_row(row, column, values) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack_avx512(rows: &Rows<'_>, row: usize, block: usize, what: (Operand, usize), out: &mut [u8]) {
    // SAFETY: the instructions are enabled here.
    pack(rows, row, block, what, out, |rows, row, start, out| unsafe {
        super::decode::decode(rows, row, start, out);
    });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose_avx512(from: *const u8, from_stride: usize, to: *mut u8, to_stride: usize, height: usize) {
    // SAFETY: passed on.
    unsafe {
        if height == 16 {
            super::avx512::transpose(from, from_stride, to, to_stride);
        } else {
            plain(from, from_stride, to, to_stride, (height, 16));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn put_avx512(output: &Output, row: usize, column: usize, values: &[f32]) {
    // SAFETY: passed on.
    unsafe { output.put_row(row, column, values) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack_avx2(rows: &Rows<'_>, row: usize, block: usize, what: (Operand, usize), out: &mut [u8]) {
    pack(rows, row, block, what, out, |rows, row, start, out| rows.decode(row, start, out));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn put_avx2(output: &Output, row: usize, column: usize, values: &[f32]) {
    // SAFETY: passed on.
    unsafe { output.put_row(row, column, values) };
}
