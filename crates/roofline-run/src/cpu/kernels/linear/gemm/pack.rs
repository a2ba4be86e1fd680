//! Packing rows, transposing blocks and writing results: what happens around the micro-kernels, compiled once for each
//! width of vectors.

// `Rows::decode` is not general enough over the lifetime of rows.
#![allow(clippy::redundant_closure_for_method_calls)]

use std::ops::Range;

use super::{
    super::{
        output::Output,
        weights::{Code, Rows},
    },
    micro::{Layout, Micro},
    operand::{COLUMNS_PITCH, Operand, PITCH, STEPS, TILE_STEPS, pack},
};
use roofline_isa::Isa;
#[cfg(target_arch = "x86_64")]
use roofline_isa::Level;

/// Transposes 16 steps of up to 16 lanes: rows of dwords at `from` become columns at `to`. Strides in bytes; the last
/// argument is the number of rows at `from`.
type Transpose = unsafe fn(*const u8, usize, *mut u8, usize, usize);

/// Packs one block along `k` of some rows as an operand of so many dwords.
type PackTiles = unsafe fn(&Rows<'_>, Range<usize>, usize, (Operand, usize), &mut [u8]);

/// A packed row on its way to tiles.
#[repr(align(64))]
struct Packed([u8; 4 * TILE_STEPS]);

/// The functions of a level.
#[derive(Clone, Copy)]
pub(in super::super) struct Pack {
    row: unsafe fn(&Rows<'_>, usize, usize, (Operand, usize), &mut [u8]),
    /// One block of up to 32 rows, cut to tiles.
    tiles: PackTiles,
    pub(super) transpose: Transpose,
    /// Writes part of a row of the output.
    pub(super) put: unsafe fn(&Output, usize, usize, &[f32]),
    /// INT32 sums to FP32: less an offset, times a scale, which is itself times a scale for each.
    pub(super) scale: unsafe fn(&mut [f32], i32, f32, &[f32]),
}

/// Whether a block of sixteen rows from `first` on is stored as it is multiplied, and all there.
fn direct(source: &Rows<'_>, first: usize, block: usize, (operand, steps): (Operand, usize)) -> bool {
    let whole = steps * (block + 1) <= source.stored.k && first + 16 <= source.count;
    operand == Operand::Fp32 && source.stored.code == Code::Fp32 && whole
}

impl Pack {
    pub(in super::super) fn choose(isa: Isa) -> Self {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Self {
                row: pack_avx512,
                tiles: if isa.has_bf16() { tiles_bf16 } else { tiles_avx512 },
                transpose: transpose_avx512,
                put: put_avx512,
                scale: scale_avx512,
            },
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Self { row: pack_avx2, tiles: pack_tiles, transpose, put: put_avx2, scale: scale_avx2 },
            _ => Self { row: pack_row, tiles: pack_tiles, transpose, put, scale },
        }
    }

    /// Packs one block along `k` of some rows of `W` for `micro`; rows that are missing from a whole call keep what they had.
    pub(super) fn pack_left(
        &self,
        source: &Rows<'_>,
        rows: Range<usize>,
        block: usize,
        micro: &Micro,
        (out, scratch): (&mut [u8], &mut [u8]),
    ) {
        let what = (micro.left, micro.steps());
        let groups = out.chunks_exact_mut(micro.group_bytes());
        for (first, out) in rows.clone().step_by(micro.rows).zip(groups) {
            let rows = first..(first + micro.rows).min(rows.end);
            match micro.layout {
                Layout::Rows => {
                    for (row, out) in rows.zip(out.chunks_exact_mut(PITCH)) {
                        // SAFETY: chosen by what the processor has.
                        unsafe { (self.row)(source, row, block, what, out) };
                    }
                }
                // Sixteen rows that are numbers already are transposed from where they are; two too many do no harm.
                Layout::Columns if direct(source, first, block, what) => {
                    let from = source.codes(first)[4 * STEPS * block..].as_ptr();
                    for step in (0..STEPS).step_by(16) {
                        let to = out[step * COLUMNS_PITCH..].as_mut_ptr();
                        // SAFETY: sixteen rows of the source with this block, and as many lines.
                        unsafe { (self.transpose)(from.add(4 * step), source.stored.row_bytes, to, COLUMNS_PITCH, 16) };
                    }
                }
                Layout::Columns => {
                    for (row, out) in rows.zip(scratch.chunks_exact_mut(PITCH)) {
                        // SAFETY: as above.
                        unsafe { (self.row)(source, row, block, what, out) };
                    }
                    for step in (0..STEPS).step_by(16) {
                        let (from, to) = (&scratch[4 * step..], &mut out[step * COLUMNS_PITCH..]);
                        debug_assert!(from.len() >= 15 * PITCH + 64 && to.len() >= 16 * COLUMNS_PITCH);
                        // SAFETY: sixteen rows of scratch, and as many lines.
                        unsafe { (self.transpose)(from.as_ptr(), PITCH, to.as_mut_ptr(), COLUMNS_PITCH, 16) };
                    }
                }
                // SAFETY: as above; 32 rows are two tiles.
                Layout::Tiles => unsafe { (self.tiles)(source, rows, block, what, out) },
            }
        }
    }

    /// One whole row as BF16.
    pub(in super::super) fn cast(&self, source: &Rows<'_>, row: usize, out: &mut [u8]) {
        for (block, out) in out.chunks_mut(4 * TILE_STEPS).enumerate() {
            // SAFETY: chosen by what the processor has.
            unsafe { (self.row)(source, row, block, (Operand::Bf16, TILE_STEPS), out) };
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
            unsafe { (self.row)(source, row, block, (micro.right, micro.steps()), out) };
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

fn pack_row(rows: &Rows<'_>, row: usize, block: usize, what: (Operand, usize), out: &mut [u8]) {
    pack(rows, row, block, what, out, |rows, row, start, out| rows.decode(row, start, out));
}

/// Rows cut to tiles by way of `pack`, which packs one of them.
#[inline(always)]
fn cut(rows: Range<usize>, out: &mut [u8], mut pack: impl FnMut(usize, &mut [u8])) {
    let mut packed = Packed([0; 4 * TILE_STEPS]);
    for (index, row) in rows.enumerate() {
        pack(row, &mut packed.0);
        for (part, pair) in packed.0.as_chunks::<64>().0.iter().zip(out.chunks_exact_mut(2048)) {
            pair[64 * index..][..64].copy_from_slice(part);
        }
    }
}

fn pack_tiles(rows: &Rows<'_>, range: Range<usize>, block: usize, what: (Operand, usize), out: &mut [u8]) {
    cut(range, out, |row, out| pack_row(rows, row, block, what, out));
}

#[inline(always)]
fn scaled(values: &mut [f32], offset: i32, scale: f32, scales: &[f32]) {
    for (value, other) in values.iter_mut().zip(scales) {
        *value = (value.to_bits() as i32).wrapping_sub(offset) as f32 * (scale * other);
    }
}

fn scale(values: &mut [f32], offset: i32, scale: f32, scales: &[f32]) {
    scaled(values, offset, scale, scales);
}

/// One dword after the other.
///
/// # Safety
///
/// `from` has `height` rows of `count` dwords, `from_stride` bytes apart, and `to` room for them the other way round.
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

/// In plain loops, see [`Transpose`].
///
/// # Safety
///
/// `from` has `height` rows of 16 dwords, `from_stride` bytes apart, and `to` room for 16 of `height`, `to_stride`
/// bytes apart.
unsafe fn transpose(from: *const u8, from_stride: usize, to: *mut u8, to_stride: usize, height: usize) {
    // SAFETY: passed on.
    unsafe { plain(from, from_stride, to, to_stride, (height, 16)) };
}

/// Part of a row of the output, in plain loops.
///
/// # Safety
///
/// No other thread reads or writes those elements meanwhile.
unsafe fn put(output: &Output, row: usize, column: usize, values: &[f32]) {
    // SAFETY: passed on.
    unsafe { output.put_row(row, column, values) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pack_avx512(rows: &Rows<'_>, row: usize, block: usize, what: (Operand, usize), out: &mut [u8]) {
    // SAFETY: the instructions are enabled here.
    pack(rows, row, block, what, out, |rows, row, start, out| unsafe {
        super::decode::decode(rows, row, start, out);
    });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn tiles_avx512(rows: &Rows<'_>, range: Range<usize>, block: usize, what: (Operand, usize), out: &mut [u8]) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_storeu_si512};
    let (operand, steps) = what;
    let start = 4 * steps * block;
    if operand.is_native(rows.stored.code) && start + 4 * steps <= rows.stored.row_bytes {
        assert!(range.len() <= 32 && out.len() >= 32 * 4 * steps);
        for (index, row) in range.enumerate() {
            let from = &rows.codes(row)[start..start + 4 * steps];
            for (line, part) in from.as_chunks::<64>().0.iter().enumerate() {
                // SAFETY: a line of the row, and one of the `steps / 16` pairs of tiles.
                unsafe {
                    let to = out.as_mut_ptr().add(2048 * line + 64 * index);
                    _mm512_storeu_si512(to.cast(), _mm512_loadu_si512(part.as_ptr().cast()));
                }
            }
        }
        return;
    }
    cut(range, out, |row, out| {
        // SAFETY: the instructions are enabled here.
        pack(rows, row, block, what, out, |rows, row, start, out| unsafe {
            super::decode::decode(rows, row, start, out);
        });
    });
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn tiles_bf16(rows: &Rows<'_>, range: Range<usize>, block: usize, what: (Operand, usize), out: &mut [u8]) {
    if super::narrow::can(rows, block, what) {
        // SAFETY: it can, and the instructions are enabled here.
        unsafe { super::narrow::pack(rows, range, block, what.1, out) };
    } else {
        tiles_avx512(rows, range, block, what, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn scale_avx512(values: &mut [f32], offset: i32, scale: f32, scales: &[f32]) {
    scaled(values, offset, scale, scales);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn scale_avx2(values: &mut [f32], offset: i32, scale: f32, scales: &[f32]) {
    scaled(values, offset, scale, scales);
}

/// In 512-bit vectors, see [`Transpose`].
///
/// # Safety
///
/// The processor has AVX-512F; `from` has `height` rows of 16 dwords, `from_stride` bytes apart, and `to` room for 16
/// of `height`, `to_stride` bytes apart.
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

/// The same in 512-bit vectors.
///
/// # Safety
///
/// The processor has AVX-512 (F, BW, VL), and no other thread reads or writes those elements meanwhile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn put_avx512(output: &Output, row: usize, column: usize, values: &[f32]) {
    // SAFETY: passed on.
    unsafe { output.put_row(row, column, values) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn pack_avx2(rows: &Rows<'_>, row: usize, block: usize, what: (Operand, usize), out: &mut [u8]) {
    pack(rows, row, block, what, out, |rows, row, start, out| rows.decode(row, start, out));
}

/// The same in 256-bit vectors.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C, and no other thread reads or writes those elements meanwhile.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn put_avx2(output: &Output, row: usize, column: usize, values: &[f32]) {
    // SAFETY: passed on.
    unsafe { output.put_row(row, column, values) };
}
