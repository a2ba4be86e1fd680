//! Products with few rows of `x`: each row of `W` is read once, decoded in registers, and multiplied with every `x`.
//!
//! One row takes as long as reading `W` (2 operations per weight and row of `x`), so a kernel is good when it reads as fast
//! as a loop that does nothing else; from a few rows on the units that multiply are the limit, so what is decoded is used
//! for several rows of `x`, and what is loaded of `x` for several rows of `W`:
//!
//! ```text
//! x, once per product:    rows in the order and the numbers that a register of weights meets   (fixed, float, exact)
//! each thread, a piece of W:
//!     for 16 rows of W, for a block along k that keeps x in the first cache:
//!         for 4 rows of x, for 2 rows of W:  decode, multiply, add                             (tile)
//!     add up the lanes, scale, store
//! ```
//!
//! The loops are here, written once; a [`Tile`] is what happens in registers, written once for every instruction set.

#![allow(unsafe_code)]
// Tiles of registers are indexed arrays.
#![allow(clippy::needless_range_loop)]

mod ahead;
mod exact;
mod fixed;
mod float;
mod form;

use std::{mem::MaybeUninit, ops::Range};

use roofline_core::Math;
use roofline_isa::{Isa, Vector};

use self::ahead::Ahead;
use super::{
    Unsupported, no_memory,
    output::Output,
    weights::{Rows, Stored},
    wide::Wide,
};
use crate::cpu::{
    buffer::Buffer,
    kernels::convert::widen,
    pool::{Pool, share},
    tensor::Tensor,
};

/// Rows of `W` that meet a block of `x` before the next block does.
const ROWS: usize = 16;
/// Rows of `x` that are multiplied in one go; FP32 ones count twice (see `fixed`).
const MOST: usize = 32;
/// Bytes of `x` that stay in the first cache while rows of `W` pass.
const NEAR: usize = 16 << 10;
/// The longest step of any form, in bytes of codes.
const LONGEST: usize = 256;
/// Bytes of scales of a step, at most.
const SCALES: usize = 16;

/// How `x` is laid out for a form of weights: blocks of a step each.
#[derive(Clone, Debug, Default)]
struct Shape {
    /// Elements of a step.
    step: usize,
    /// Bytes of a block of `x`.
    block: usize,
    /// The elements of a step in the order of a block.
    order: Vec<u16>,
    /// Registers of weights that share their sums.
    registers: usize,
    /// What weights are too high by, and where in a block the sums start from that.
    offset: i32,
    starts: usize,
    /// Minima of a step, and where in a block what they are multiplied by is.
    mins: usize,
    sums: usize,
    /// Where in a block its scale is, and what that is multiplied by.
    scale: usize,
    unit: f32,
}

/// A product as a thread sees it.
#[derive(Clone, Copy)]
struct Job<'a> {
    w: Rows<'a>,
    shape: &'a Shape,
    /// Rows of blocks of `x`, `steps` in each.
    x: *const u8,
    /// Rows of `x` as they are multiplied: `parts` of them make one.
    rows: usize,
    parts: usize,
    /// What each row's sums are multiplied by.
    factors: &'a [f32],
    y: Output,
}

// SAFETY: `x` is only read while threads run.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    fn steps(&self) -> usize {
        self.w.stored.k.div_ceil(self.shape.step)
    }
}

/// Where a step of a row of weights is.
#[derive(Clone, Copy)]
struct At {
    codes: *const u8,
    scales: *const u8,
    /// Of the whole row.
    zeros: *const u8,
    step: usize,
    /// Groups of the whole row.
    groups: usize,
}

/// What happens in registers.
trait Tile {
    /// Bytes of codes and of scales of a step, and of a block of `x`: known when the loops are compiled.
    const CODES: usize;
    const SCALES: usize;
    /// Whether a row's sums wait for each other, so that one row of `x` takes four rows of `W` to keep the units busy.
    const DEEP: bool = false;
    /// Sums of one row of `W` with one of `x`.
    type Sum: Copy;

    fn block() -> usize;

    /// Sums that start from nothing.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    unsafe fn zero() -> Self::Sum;
    /// One step of `R` rows of `W` with `M` rows of `x`, whose blocks are `pitch` bytes apart.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type; each of `at` is a whole step of a row of weights, and `x` has a
    /// block in each of `M` rows.
    unsafe fn step<const R: usize, const M: usize>(
        at: [At; R],
        x: *const u8,
        pitch: usize,
        sums: &mut [[Self::Sum; M]; R],
    );
    /// All lanes together.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of this type.
    unsafe fn total(sum: Self::Sum) -> f32;
}

/// The columns of `y` that belong to `rows` of `W`.
///
/// # Safety
///
/// The instructions of `V` and `T` are enabled where this is inlined, and the columns are the caller's.
#[inline(always)]
unsafe fn columns<V: Vector, T: Tile>(job: &Job<'_>, rows: Range<usize>) {
    unsafe {
        let shape = job.shape;
        let steps = job.steps();
        let together = job.rows.min(4);
        let near = (NEAR / (together * shape.block)).max(1);
        // Blocks of equal length, rather than full ones and a remainder.
        let near = steps.div_ceil(steps.div_ceil(near));
        for start in rows.clone().step_by(ROWS) {
            let few = start..(start + ROWS).min(rows.end);
            let mut sums = MaybeUninit::<[[T::Sum; MOST]; ROWS]>::uninit();
            let sums = sums.as_mut_ptr().cast::<T::Sum>();
            let mut from = 0;
            while from < steps {
                let block = from..(from + near).min(steps);
                let mut first = 0;
                while first < job.rows {
                    let place = (job, few.clone(), block.clone(), first, sums);
                    first += match job.rows - first {
                        _ if !V::TILED => part::<V, T, 1, 1>(place),
                        1 if T::DEEP => part::<V, T, 4, 1>(place),
                        1 => part::<V, T, 2, 1>(place),
                        2 => part::<V, T, 2, 2>(place),
                        // Sixteen registers hold integer products of one row of `W`, their sums, and what is multiplied.
                        _ if V::LANES == 8 && !T::DEEP => part::<V, T, 1, 4>(place),
                        _ => part::<V, T, 2, 4>(place),
                    };
                }
                from = block.end;
            }
            for row in few.clone() {
                let scale = job.w.row_scale(row);
                for index in 0..job.rows / job.parts {
                    let mut value = 0.0;
                    for part in index * job.parts..(index + 1) * job.parts {
                        value += T::total(*sums.add((row - start) * MOST + part)) * (job.factors[part] * scale);
                    }
                    job.y.put(index, row, value);
                }
            }
        }
    }
}

/// A few rows of `W`, a block along `k`, `M` rows of `x` from `first` on; where sums are kept.
type Place<'a, S> = (&'a Job<'a>, Range<usize>, Range<usize>, usize, *mut S);

/// `R` rows of `W` at a time. Where rows end within a group, the last one is computed again; `x` has rows of zeros there.
/// Returns `M`.
///
/// # Safety
///
/// As for [`columns`]; the rows and the block are the product's, and sums have room for `ROWS` times `MOST`.
#[inline(always)]
unsafe fn part<V: Vector, T: Tile, const R: usize, const M: usize>(
    (job, rows, block, first, kept): Place<'_, T::Sum>,
) -> usize {
    unsafe {
        let shape = job.shape;
        let steps = job.steps();
        let pitch = steps * T::block();
        let stored = job.w.stored;
        let x = job.x.add(first * pitch);
        let whole = block.end.min(stored.k / shape.step);
        let ahead = Ahead::new((block.end - block.start) * T::CODES, stored.row_bytes, R);
        // Within a block what is due lies further along the same rows, then in the rows after them.
        let turn = (block.start + ahead.turn() / T::CODES).min(whole);
        for group in rows.clone().step_by(R) {
            let row = |r: usize| (group + r).min(rows.end - 1);
            let mut at = [At { codes: x, scales: x, zeros: x, step: 0, groups: stored.groups() }; R];
            let mut sums = [[T::zero(); M]; R];
            let keep = kept.add((group - rows.start) * MOST + first);
            for r in 0..R {
                at[r].codes = job.w.codes(row(r)).as_ptr().add(block.start * T::CODES);
                at[r].scales = job.w.scales(row(r)).as_ptr().add(block.start * T::SCALES);
                at[r].zeros = job.w.zeros(row(r)).as_ptr();
                at[r].step = block.start;
                if block.start > 0 {
                    for m in 0..M {
                        sums[r][m] = *keep.add(r * MOST + m);
                    }
                }
                V::prefetch(at[r].scales.wrapping_add(2 * R * stored.row_scales));
            }
            for (steps, distance) in [(block.start..turn, ahead.near()), (turn..whole, ahead.far())] {
                for step in steps {
                    for r in 0..R {
                        for line in (0..T::CODES).step_by(ahead::LINE) {
                            V::prefetch(at[r].codes.wrapping_add(distance + line));
                        }
                    }
                    T::step::<R, M>(at, x.add(step * T::block()), pitch, &mut sums);
                    for at in &mut at {
                        at.codes = at.codes.wrapping_add(T::CODES);
                        at.scales = at.scales.wrapping_add(T::SCALES);
                        at.step += 1;
                    }
                }
            }
            if whole < block.end {
                let mut last = [([0u8; LONGEST], [0u8; SCALES]); R];
                for r in 0..R {
                    let (codes, scales) = (job.w.codes(row(r)), job.w.scales(row(r)));
                    let left = &codes[whole * T::CODES..];
                    last[r].0[..left.len()].copy_from_slice(left);
                    if T::SCALES > 0 {
                        let left = &scales[whole * T::SCALES..];
                        last[r].1[..left.len()].copy_from_slice(left);
                    }
                    at[r].codes = last[r].0.as_ptr();
                    at[r].scales = last[r].1.as_ptr();
                }
                T::step::<R, M>(at, x.add(whole * T::block()), pitch, &mut sums);
            }
            for r in 0..R {
                if group + r < rows.end {
                    for m in 0..M {
                        *keep.add(r * MOST + m) = sums[r][m];
                    }
                }
            }
        }
        M
    }
}

/// Functions that were compiled for a form of weights, for each instruction set.
#[derive(Clone, Copy)]
struct Lane {
    shape: fn(Isa) -> Shape,
    fill: fn(Isa, &Fill<'_>),
    run: fn(Isa, &Job<'_>, Range<usize>),
    math: Math,
    unit: fn(Isa) -> &'static str,
}

/// Steps of one row of `x` to be laid out.
struct Fill<'a> {
    /// The row's numbers as stored.
    codes: &'a [u8],
    wide: Option<Wide>,
    k: usize,
    shape: &'a Shape,
    steps: Range<usize>,
    /// The row's parts, `pitch` bytes apart.
    to: *mut u8,
    pitch: usize,
    parts: usize,
    /// A power of two that `x` is multiplied by.
    factor: f32,
}

impl Fill<'_> {
    /// The values of a step times the factor, zeros after the last.
    ///
    /// # Safety
    ///
    /// `V` is enabled where this is inlined, and `to` has room for a step and a vector.
    #[inline(always)]
    unsafe fn values<V: Vector>(&self, step: usize, to: *mut f32) {
        unsafe {
            let (start, size) = (step * self.shape.step, self.shape.step);
            let length = size.min(self.k - start);
            let Some(wide) = self.wide else { return };
            widen::<V>(wide.kind(), self.codes.as_ptr().add(start * wide.bytes()), length, to);
            for at in length..size {
                to.add(at).write(0.0);
            }
            if self.factor != 1.0 {
                let factor = V::splat(self.factor);
                let mut at = 0;
                while at < size {
                    V::load(to.add(at)).mul(factor).store(to.add(at));
                    at += V::LANES;
                }
            }
        }
    }
}

/// A planned product.
pub(super) struct Thin {
    isa: Isa,
    lane: Lane,
    shape: Shape,
    wide: Option<Wide>,
    /// Rows of `x` that are multiplied in one go.
    batch: usize,
    parts: usize,
    x: Buffer,
    /// What sums are multiplied by: for each row of `x` as it is multiplied.
    factors: Vec<f32>,
}

impl Thin {
    /// For `m` rows of `x`, in batches where they are many; `wide` is none where they are INT8.
    pub(super) fn plan(isa: Isa, m: usize, wide: Option<Wide>, stored: &Stored) -> Result<Self, Unsupported> {
        let lane = match wide {
            None => exact::lane(),
            Some(_) => float::lane(stored)
                .or_else(|| fixed::lane(stored))
                .ok_or_else(|| Unsupported(format!("no processor kernel reads weights stored as {}", stored.format)))?,
        };
        let parts = if wide == Some(Wide::Fp32) && lane.math == Math::Int16 { 2 } else { 1 };
        let shape = (lane.shape)(isa);
        let batch = m.min(MOST / 2);
        let bytes = (batch * parts).next_multiple_of(4) * stored.k.div_ceil(shape.step) * shape.block;
        let x = Buffer::zeroed(bytes).ok_or_else(no_memory)?;
        Ok(Self { isa, lane, shape, wide, batch, parts, x, factors: vec![1.0; batch * parts] })
    }

    pub(super) fn math(&self) -> Math {
        self.lane.math
    }

    pub(super) fn unit(&self) -> &'static str {
        (self.lane.unit)(self.isa)
    }

    pub(super) fn run(&mut self, pool: &mut Pool, x: &Tensor<'_>, w: Rows<'_>, y: Output) {
        for first in (0..x.rows).step_by(self.batch) {
            let rows = first..(first + self.batch).min(x.rows);
            self.lay_out(pool, x, rows.clone(), w.stored);
            let job = Job {
                w,
                shape: &self.shape,
                x: self.x.as_ptr(),
                rows: rows.len() * self.parts,
                parts: self.parts,
                factors: &self.factors,
                y: y.after(first),
            };
            let (isa, run, piece) = (self.isa, self.lane.run, piece(w.stored, pool.threads(), w.count));
            pool.deal(w.count, 4, piece, |_, rows| run(isa, &job, rows));
        }
    }

    /// Turns some rows of `x` to what registers of weights meet.
    fn lay_out(&mut self, pool: &mut Pool, x: &Tensor<'_>, rows: Range<usize>, stored: &Stored) {
        let (k, m, parts, steps) = (x.columns, rows.len(), self.parts, x.columns.div_ceil(self.shape.step));
        let bytes = self.wide.map_or(1, Wide::bytes) * k;
        let codes = |line: usize| &x.codes[(rows.start + line) * bytes..][..bytes];
        let mut factors = [1.0; MOST];
        for (line, factor) in factors.iter_mut().enumerate().take(m) {
            let back = match self.wide {
                Some(wide) if self.lane.math == Math::Fp32 => {
                    *factor = float::factor(self.isa, stored, codes(line), wide);
                    float::unit(stored) / *factor
                }
                Some(_) => 1.0,
                None => row_scale(x.scales, rows.start + line),
            };
            self.factors[line * parts..(line + 1) * parts].fill(back);
        }
        let pitch = steps * self.shape.block;
        let to = Shared(self.x.as_mut_ptr());
        let (isa, lane, shape, wide) = (self.isa, self.lane, &self.shape, self.wide);
        let fill = |line: usize, steps: Range<usize>| {
            let to = to.at(line * parts * pitch);
            let factor = factors[line];
            (lane.fill)(isa, &Fill { codes: codes(line), wide, k, shape, steps, to, pitch, parts, factor });
        };
        // Handing it to others costs as much as a few thousand numbers.
        if m * k < 1 << 14 {
            (0..m).for_each(|line| fill(line, 0..steps));
            return;
        }
        let threads = pool.threads();
        pool.run(|thread| {
            let mut part = share(m * steps, 1, thread, threads);
            while !part.is_empty() {
                let (own, within) = (part.start / steps, part.start % steps);
                let end = steps.min(within + part.len());
                fill(own, within..end);
                part.start += end - within;
            }
        });
    }
}

/// The BF16 scale of a row of INT8 `x`.
fn row_scale(scales: &[u8], row: usize) -> f32 {
    roofline_isa::number::from_bf16(u16::from_le_bytes([scales[2 * row], scales[2 * row + 1]]))
}

/// Where threads write disjoint parts of `x`.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: threads write steps of their own and read only after all have written.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// Rows that a thread takes at a time: long enough that taking them costs nothing, and at least a few to each thread.
fn piece(stored: &Stored, threads: usize, rows: usize) -> usize {
    const BYTES: usize = 1 << 17;
    let long = BYTES / stored.row_bytes.max(1);
    long.min(rows / (4 * threads)).next_multiple_of(ROWS).max(ROWS)
}
