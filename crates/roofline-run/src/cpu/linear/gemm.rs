//! Products with many rows of `x`: blocks that fit the caches, multiplied by micro-kernels in registers.
//!
//! ```text
//! x, packed once by all threads:  panels of `lanes` rows, transposed: [panel][k][lane]
//! each thread, for its rows of W, 256 at a time:
//!     decode them into packed rows: [k block][row][k]             (memory -> L2)
//!     for 512 rows of x, for each block along k, for each panel (L1), for a few packed rows (L2):
//!         sums[row][lane] += packed row * panel                     (registers)
//!     turn the sums, scale and store them
//! ```
//!
//! `W` is the broadcast side, so its rows are packed in the order they are stored in: whatever format they have, decoding
//! is all there is to do. Only `x`, which every row of `W` meets, is transposed.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod decode;
mod micro;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operand;
pub(super) mod turn;

use std::{ops::Range, sync::Mutex};

use roofline_core::Math;

use self::{
    micro::{Micro, Tile},
    operand::DEPTH,
    turn::Turn,
};
use super::{
    Unsupported,
    number::from_bf16,
    output::Output,
    stored::{Code, Rows, Stored},
};
use crate::cpu::{
    buffer::Buffer,
    pool::{Pool, share},
    simd::Simd,
};

/// Rows of `W` in a block: with `STEPS` dwords of each, an eighth of a 2 MiB second-level cache.
const BLOCK_ROWS: usize = 256;
/// Rows of `x` in a block: the sums of both, and the panels, take a quarter each.
const BLOCK_LANES: usize = 512;
/// Elements between rows of sums beyond their own, so that they do not share sets.
const SKEW: usize = 16;

/// A planned product.
pub(super) struct Gemm {
    micro: Micro,
    turn: Turn,
    /// How `x` is stored.
    x: Stored,
    m: usize,
    /// All panels of `x`.
    panels: Buffer,
    /// The sum of each row of `x`, which VNNI's offset of 128 is multiplied by.
    row_sums: Buffer,
    scratch: Vec<Mutex<Scratch>>,
}

/// What a thread keeps to itself.
struct Scratch {
    packed: Buffer,
    sums: Buffer,
    turned: Buffer,
}

/// Where threads write disjoint parts of a buffer.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: threads write parts of their own and read only after all have written.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The pointer, by a method so that closures capture the whole.
    fn start(self) -> *mut u8 {
        self.0
    }
}

impl Gemm {
    pub(super) fn plan(
        simd: Simd,
        math: Math,
        (m, n): (usize, usize),
        x: Stored,
        threads: usize,
    ) -> Result<Self, Unsupported> {
        let micro = Micro::choose(simd, math);
        let steps = x.k.div_ceil(micro.left.per_dword()).next_multiple_of(DEPTH);
        let rows = n.min(BLOCK_ROWS).next_multiple_of(micro.rows);
        let lanes = m.min(BLOCK_LANES).next_multiple_of(micro.lanes);
        let zeroed = |bytes: usize| Buffer::zeroed(bytes).ok_or_else(Unsupported::memory);
        let scratch = || {
            // While `x` is packed, the same memory holds the rows of one panel.
            let rows_or_lanes = rows.max(micro.lanes);
            let packed = zeroed(steps.div_ceil(micro.steps()) * rows_or_lanes * (micro.row_bytes() + SKEW * 4))?;
            // Large enough for a huge page: every product touches each of its rows.
            let (sums, turned) = (
                zeroed((rows * (lanes + SKEW) * 4).next_multiple_of(2 << 20))?,
                zeroed(16 * (rows.next_multiple_of(16) + SKEW) * 4)?,
            );
            Ok(Mutex::new(Scratch { packed, sums, turned }))
        };
        Ok(Self {
            micro,
            turn: Turn::choose(simd),
            x,
            m,
            panels: zeroed(m.next_multiple_of(micro.lanes) * steps * 4)?,
            row_sums: zeroed(m * 4)?,
            scratch: (0..threads).map(|_| scratch()).collect::<Result<_, _>>()?,
        })
    }

    pub(super) fn unit(&self) -> &'static str {
        self.micro.unit
    }

    pub(super) fn math(&self) -> Math {
        self.micro.math
    }

    pub(super) fn is_native(&self, code: Code) -> bool {
        self.micro.left.is_native(code)
    }

    /// `x` is stored as was planned; `scales` are those of its rows, where it has any.
    pub(super) fn run(&mut self, pool: &mut Pool, x: &crate::cpu::tensor::Tensor<'_>, w: Rows<'_>, y: Output) {
        let (panels, row_sums) = (Shared(self.panels.as_mut_ptr()), Shared(self.row_sums.as_mut_ptr()));
        let this = &*self;
        let stored = this.x;
        let rows = stored.rows(x);
        pool.split(this.m, this.micro.lanes, |index, lanes| {
            let mut scratch = this.lock(index);
            this.pack_panels(&rows, lanes, &mut scratch, panels, row_sums);
        });
        let row_groups = w.count.div_ceil(this.micro.rows);
        let threads = pool.threads();
        // Threads side by side along n; what n cannot feed goes along m.
        let across = (1..=threads).rev().find(|across| threads.is_multiple_of(*across) && *across <= row_groups);
        let across = across.unwrap_or(1);
        pool.run(|index| {
            let columns = share(w.count, this.micro.rows, index % across, across);
            let lanes = share(this.m, this.micro.lanes, index / across, threads / across);
            if !columns.is_empty() && !lanes.is_empty() {
                let part = Part { gemm: this, w, x_scales: x.scales, y };
                part.multiply(columns, lanes, &mut this.lock(index));
            }
        });
    }

    fn lock(&self, thread: usize) -> std::sync::MutexGuard<'_, Scratch> {
        self.scratch[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Dwords along `k`, padded.
    fn steps(&self) -> usize {
        self.x.k.div_ceil(self.micro.left.per_dword()).next_multiple_of(DEPTH)
    }

    fn blocks(&self) -> usize {
        self.steps().div_ceil(self.micro.steps())
    }

    /// Packs and transposes the panels of some rows of `x`.
    fn pack_panels(&self, x: &Rows<'_>, lanes: Range<usize>, scratch: &mut Scratch, panels: Shared, row_sums: Shared) {
        let width = self.micro.lanes;
        for first in lanes.clone().step_by(width) {
            let used = (self.m - first).min(width);
            for block in 0..self.blocks() {
                let pitch = 4 * self.micro.steps() + 4 * SKEW;
                let packed = &mut scratch.packed[..width * pitch];
                packed[used * pitch..].fill(0);
                self.turn.pack_right(x, first..first + used, block, &self.micro, (packed, pitch));
                let steps = (self.steps() - block * self.micro.steps()).min(self.micro.steps());
                let to = (first * self.steps() + block * self.micro.steps() * width) * 4;
                for step in (0..steps).step_by(16) {
                    for lane in (0..width).step_by(16) {
                        // SAFETY: this panel is this thread's, and steps come in sixteens.
                        unsafe {
                            let from = packed.as_ptr().add(lane * pitch + 4 * step);
                            let to = panels.start().add(to + (step * width + lane) * 4);
                            (self.turn.transpose)(from, pitch, to, 4 * width, (width - lane).min(16));
                        }
                    }
                }
            }
            if self.micro.left == operand::Operand::Offset8 {
                for row in first..first + used {
                    let sum: i32 = x.codes(row).iter().map(|code| i32::from(*code as i8)).sum();
                    // SAFETY: this row is this thread's.
                    unsafe { row_sums.start().cast::<i32>().add(row).write(sum) };
                }
            }
        }
    }
}

/// One thread's part of a product.
struct Part<'a> {
    gemm: &'a Gemm,
    w: Rows<'a>,
    x_scales: &'a [u8],
    y: Output,
}

impl Part<'_> {
    /// The columns of `y` that belong to rows `columns` of `W`, for rows `lanes` of `x`.
    fn multiply(&self, columns: Range<usize>, lanes: Range<usize>, scratch: &mut Scratch) {
        let gemm = self.gemm;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: asked for only where there are tiles.
        let _tiles = gemm.micro.tiles.then(|| unsafe { crate::cpu::tile::Tiles::configure() });
        let micro = gemm.micro;
        // Blocks of equal size, rather than full ones and a remainder.
        let most = BLOCK_ROWS / micro.rows * micro.rows;
        let count = columns.len().div_ceil(most);
        let size = columns.len().div_ceil(count).next_multiple_of(micro.rows);
        for start in columns.clone().step_by(size) {
            let rows = start..(start + size).min(columns.end);
            let padded = rows.len().next_multiple_of(micro.rows);
            gemm.turn.pack_left(&self.w, rows.clone(), gemm.blocks(), padded, &micro, &mut scratch.packed);
            for first in lanes.clone().step_by(BLOCK_LANES) {
                let block = first..(first + BLOCK_LANES).min(lanes.end);
                self.block(padded, block.clone(), scratch);
                self.store(rows.clone(), block, scratch);
            }
        }
    }

    /// The sums of `padded` packed rows with a block of `x`.
    fn block(&self, padded: usize, lanes: Range<usize>, scratch: &mut Scratch) {
        let (gemm, micro) = (self.gemm, self.gemm.micro);
        let pitch = lanes.len().next_multiple_of(micro.lanes) + SKEW;
        for block in 0..gemm.blocks() {
            let steps = (gemm.steps() - block * micro.steps()).min(micro.steps());
            for lane in lanes.clone().step_by(micro.lanes) {
                let right = &gemm.panels[(lane * gemm.steps() + block * micro.steps() * micro.lanes) * 4..];
                for row in (0..padded).step_by(micro.rows) {
                    let tile = Tile {
                        left: scratch.packed[block * padded * micro.row_bytes() + micro.row_start(row)..].as_ptr(),
                        right: right[..steps * micro.lanes * 4].as_ptr(),
                        steps,
                        sums: scratch.sums[(row * pitch + lane - lanes.start) * 4..].as_mut_ptr().cast(),
                        pitch,
                        first: block == 0,
                    };
                    // SAFETY: chosen by what the processor has; the slices above are as large as the tile needs.
                    unsafe { (micro.kernel)(&tile) };
                }
            }
        }
    }

    /// Turns the sums to rows of `y`, scales integers, and writes them.
    fn store(&self, rows: Range<usize>, lanes: Range<usize>, scratch: &mut Scratch) {
        let (gemm, micro) = (self.gemm, self.gemm.micro);
        let pitch = lanes.len().next_multiple_of(micro.lanes) + SKEW;
        let width = rows.len().next_multiple_of(16) + SKEW;
        let padded = rows.len().next_multiple_of(micro.rows);
        for lane in (0..lanes.len()).step_by(16) {
            let count = (pitch - SKEW - lane).min(16);
            for row in (0..padded).step_by(16) {
                let height = (padded - row).min(16);
                let from = scratch.sums[(row * pitch + lane) * 4..].as_ptr();
                let to = scratch.turned[row * 4..].as_mut_ptr();
                // SAFETY: sums of `height` rows by `count` lanes, turned to `count` rows.
                unsafe { gemm.turn.block(from, 4 * pitch, to, 4 * width, (height, count)) };
            }
            for index in 0..(lanes.len() - lane).min(16) {
                let values = scratch.turned[index * width * 4..][..rows.len() * 4].as_mut_ptr();
                // SAFETY: FP32 values, or INT32 sums of the same size, of this thread.
                let values = unsafe { std::slice::from_raw_parts_mut(values.cast::<f32>(), rows.len()) };
                let x_row = lanes.start + lane + index;
                if micro.left.is_integer() {
                    self.scale(x_row, rows.start, values);
                }
                // SAFETY: these columns of these rows are this thread's.
                unsafe { (gemm.turn.put)(&self.y, x_row, rows.start, values) };
            }
        }
    }

    /// INT32 sums to FP32 by the scales of their row of `x` and of their rows of `W`.
    fn scale(&self, x_row: usize, first: usize, values: &mut [f32]) {
        let scale = from_bf16(u16::from_le_bytes([self.x_scales[2 * x_row], self.x_scales[2 * x_row + 1]]));
        let offset = if self.gemm.micro.left == operand::Operand::Offset8 {
            let sum = [0, 1, 2, 3].map(|byte| self.gemm.row_sums[4 * x_row + byte]);
            i32::from_le_bytes(sum).wrapping_mul(128)
        } else {
            0
        };
        for (index, value) in values.iter_mut().enumerate() {
            let sum = (value.to_bits() as i32).wrapping_sub(offset);
            *value = sum as f32 * (scale * self.w.row_scale(first + index));
        }
    }
}
