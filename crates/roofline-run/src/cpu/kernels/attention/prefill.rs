//! Many queries per sequence: products of small matrices, blocked so that what is multiplied lies in the nearest caches.
//!
//! A job is a block of query rows (queries of one sequence times heads of one group, which share keys). It walks the keys
//! in blocks: keys are widened and transposed, so that scores of 64 keys are four vectors and a query's feature is
//! broadcast; values are widened as they lie. Both products are then the same kernel: six rows by four vectors, 24 sums.

#![allow(unsafe_code, clippy::inline_always)]
// Tiles of registers are indexed arrays, and inner kernels take what would be the fields of a structure.
#![allow(clippy::too_many_arguments, clippy::needless_range_loop, clippy::many_single_char_names)]

use std::sync::atomic::{AtomicUsize, Ordering};

use roofline_isa::{Isa, Kernel, Vector, launch};

use super::{BLOCK, Call, NOTHING, Parts, Shape, manner::soften_tops};
use crate::cpu::{
    buffer::Buffer,
    kernels::convert::{narrow, widen},
    pool::Pool,
};

/// Query rows per job: enough to make converting keys and values cheap, few enough for the second cache.
const ROWS: usize = 192;
/// Rows of the inner kernel.
const TILE: usize = 6;

pub(super) struct Scratch {
    buffer: Buffer,
    threads: usize,
    layout: Layout,
}

/// Offsets into a thread's part, in floats.
#[derive(Clone, Copy)]
struct Layout {
    /// Queries of a job.
    queries: usize,
    /// Rows of a job: queries times heads of a group, rounded up to whole tiles.
    rows: usize,
    dim: usize,
    value_dim: usize,
    scores: usize,
    keys: usize,
    values: usize,
    sums: usize,
    /// Largest score and sum of weights of each row.
    largest: usize,
    total: usize,
    line: usize,
    size: usize,
}

impl Layout {
    fn new(shape: &Shape, lanes: usize) -> Self {
        let queries = (ROWS / shape.group).clamp(1, shape.queries);
        let rows = (queries * shape.group).next_multiple_of(TILE);
        let (dim, value_dim) = (shape.dim.next_multiple_of(lanes), shape.value_dim.next_multiple_of(lanes));
        let scores = rows * dim;
        let keys = scores + rows * BLOCK;
        let values = keys + dim * BLOCK;
        let sums = values + BLOCK * value_dim;
        let largest = sums + rows * value_dim;
        let total = largest + rows;
        let line = total + rows;
        let size = (line + dim.max(value_dim)).next_multiple_of(16);
        Self { queries, rows, dim, value_dim, scores, keys, values, sums, largest, total, line, size }
    }
}

impl Scratch {
    pub(super) fn new(shape: &Shape, threads: usize, lanes: usize) -> Option<Self> {
        let (layout, threads) = (Layout::new(shape, lanes), threads.max(1));
        let buffer = Buffer::zeroed(layout.size.checked_mul(4 * threads)?)?;
        Some(Self { buffer, threads, layout })
    }
}

pub(super) fn run(pool: &mut Pool, isa: Isa, call: &Call<'_>, scratch: &mut Scratch) {
    let (shape, layout, threads) = (call.shape, scratch.layout, scratch.threads);
    let parts = Parts { start: scratch.buffer.as_mut_ptr().cast(), stride: layout.size };
    let blocks = shape.queries.div_ceil(layout.queries);
    let items = shape.batch * shape.kv_heads;
    let next = AtomicUsize::new(0);
    pool.run(|thread| {
        if thread >= threads {
            return;
        }
        loop {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= items * blocks {
                return;
            }
            // Under a causal mask late queries see more keys: the longest jobs first, so that threads end together.
            let (item, block) = (job % items, blocks - 1 - job / items);
            launch(isa, Job { call, layout, part: parts.of(thread), item, block });
        }
    });
}

struct Job<'a> {
    call: &'a Call<'a>,
    layout: Layout,
    part: *mut f32,
    item: usize,
    block: usize,
}

impl Kernel for Job<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let first = self.block * layout.queries;
            let last = (first + layout.queries).min(shape.queries);
            let rows = (last - first) * shape.group;
            self.take_queries::<V>(first, last);
            let (start, end) = (shape.visible(first).start, shape.visible(last - 1).end);
            let tiles = rows.next_multiple_of(TILE);
            let (query, scores) = (self.part, self.part.add(layout.scores));
            let (keys, values) = (self.part.add(layout.keys), self.part.add(layout.values));
            let sums = self.part.add(layout.sums);
            let mut key = start;
            while key < end {
                let n = BLOCK.min(end - key);
                self.take_keys::<V>(key, n);
                self.take_values::<V>(key, n);
                product::<V, false>(tiles, layout.dim, query, layout.dim, keys, BLOCK, BLOCK, scores, BLOCK);
                for row in 0..rows {
                    let line = scores.add(row * BLOCK);
                    if let Some(cap) = self.call.soft_cap {
                        soften_tops::<V>(line, cap);
                    }
                    let seen = shape.visible(first + row / shape.group);
                    let (from, to) = (seen.start.max(key) - key, seen.end.clamp(key, key + n) - key);
                    for masked in (0..from.min(BLOCK)).chain(to..BLOCK) {
                        *line.add(masked) = NOTHING;
                    }
                    self.soften::<V>(row, line);
                }
                product::<V, true>(
                    tiles,
                    BLOCK,
                    scores,
                    BLOCK,
                    values,
                    layout.value_dim,
                    layout.value_dim,
                    sums,
                    layout.value_dim,
                );
                key += n;
            }
            self.finish::<V>(first, rows);
        }
    }
}

impl Job<'_> {
    /// Widens and scales the queries, and starts their softmax.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `part` is this thread's alone and laid out by `layout`, and there are
    /// queries from `first` to `last`, no more than it has room for.
    #[inline(always)]
    unsafe fn take_queries<V: Vector>(&self, first: usize, last: usize) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let (batch, kv_head) = (self.item / shape.kv_heads, self.item % shape.kv_heads);
            let scale = shape.scale;
            let mut row = 0;
            for query in first..last {
                for head in 0..shape.group {
                    let from = shape.row(batch, query, kv_head * shape.group + head);
                    let to = self.part.add(row * layout.dim);
                    widen::<V>(
                        self.call.query,
                        self.call.q.add(from * shape.dim * self.call.query.bytes()),
                        shape.dim,
                        to,
                    );
                    for at in 0..layout.dim {
                        *to.add(at) = if at < shape.dim { *to.add(at) * scale } else { 0.0 };
                    }
                    row += 1;
                }
            }
            // Rows that fill the last tile.
            std::ptr::write_bytes(self.part.add(row * layout.dim), 0, (layout.rows - row) * layout.dim);
            std::ptr::write_bytes(self.part.add(layout.scores), 0, layout.rows * BLOCK);
            std::ptr::write_bytes(self.part.add(layout.sums), 0, layout.rows * layout.value_dim);
            for row in 0..layout.rows {
                *self.part.add(layout.largest + row) = NOTHING;
                *self.part.add(layout.total + row) = 0.0;
            }
        }
    }

    /// The scale of a cache row.
    ///
    /// # Safety
    ///
    /// `scales` has a BF16 number for each row up to `row`, where the cache has scales.
    #[inline(always)]
    unsafe fn row_scale(&self, scales: *const u8, row: usize) -> f32 {
        unsafe {
            if !self.call.cache.scaled() {
                return 1.0;
            }
            let code = u16::from_le_bytes(scales.add(2 * row).cast::<[u8; 2]>().read());
            f32::from_bits(u32::from(code) << 16)
        }
    }

    /// A block of keys as columns. Columns past the last key keep what they had: their scores are masked.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `part` is this thread's alone and laid out by `layout`, and the item
    /// has `n` keys from `key` on, no more than `BLOCK`.
    #[inline(always)]
    unsafe fn take_keys<V: Vector>(&self, key: usize, n: usize) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let (line, keys) = (self.part.add(layout.line), self.part.add(layout.keys));
            for column in 0..n {
                let row = self.item * shape.capacity + key + column;
                widen::<V>(
                    self.call.cache,
                    self.call.k.codes.add(row * shape.dim * self.call.cache.bytes()),
                    shape.dim,
                    line,
                );
                let scale = self.row_scale(self.call.k.scales, row);
                for at in 0..shape.dim {
                    *keys.add(at * BLOCK + column) = *line.add(at) * scale;
                }
            }
        }
    }

    /// A block of values as rows; rows past the last key are zero, and so is their part of the sum.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `part` is this thread's alone and laid out by `layout`, and the item
    /// has `n` values from `key` on, no more than `BLOCK`.
    #[inline(always)]
    unsafe fn take_values<V: Vector>(&self, key: usize, n: usize) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let values = self.part.add(layout.values);
            for at in 0..n {
                let row = self.item * shape.capacity + key + at;
                let to = values.add(at * layout.value_dim);
                let from = self.call.v.codes.add(row * shape.value_dim * self.call.cache.bytes());
                widen::<V>(self.call.cache, from, shape.value_dim, to);
                if self.call.cache.scaled() {
                    let scale = self.row_scale(self.call.v.scales, row);
                    for at in 0..shape.value_dim {
                        *to.add(at) *= scale;
                    }
                }
            }
            std::ptr::write_bytes(values.add(n * layout.value_dim), 0, (BLOCK - n) * layout.value_dim);
        }
    }

    /// Turns a row of scores into weights, and brings its sums to the same base.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `part` is this thread's alone and laid out by `layout` with a row
    /// `row`, and `line` has `BLOCK` scores.
    #[inline(always)]
    unsafe fn soften<V: Vector>(&self, row: usize, line: *mut f32) {
        unsafe {
            let layout = self.layout;
            let (largest, total) = (self.part.add(layout.largest + row), self.part.add(layout.total + row));
            let mut top = V::load(line);
            let mut at = V::LANES;
            while at < BLOCK {
                top = top.max(V::load(line.add(at)));
                at += V::LANES;
            }
            let now = (*largest).max(top.maximum());
            if now > *largest {
                let factor = (*largest - now).max(-126.0).exp2();
                *largest = now;
                *total *= factor;
                let factor = V::splat(factor);
                let sums = self.part.add(layout.sums + row * layout.value_dim);
                let mut at = 0;
                while at < layout.value_dim {
                    V::load(sums.add(at)).mul(factor).store(sums.add(at));
                    at += V::LANES;
                }
            }
            let base = V::splat(now);
            let mut sum = V::zero();
            let mut at = 0;
            while at < BLOCK {
                let weight = V::load(line.add(at)).sub(base).exp2();
                weight.store(line.add(at));
                sum = sum.add(weight);
                at += V::LANES;
            }
            *total += sum.sum();
        }
    }

    /// Divides by the sums and writes the outputs.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `part` is this thread's alone and laid out by `layout`, there are
    /// `rows` outputs from query `first` on, and no other thread writes them.
    #[inline(always)]
    unsafe fn finish<V: Vector>(&self, first: usize, rows: usize) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let (batch, kv_head) = (self.item / shape.kv_heads, self.item % shape.kv_heads);
            for row in 0..rows {
                let sums = self.part.add(layout.sums + row * layout.value_dim);
                let head = kv_head * shape.group + row % shape.group;
                let (largest, total) = (*self.part.add(layout.largest + row), *self.part.add(layout.total + row));
                let factor = V::splat(self.call.factor(head, largest, total));
                let mut at = 0;
                while at < layout.value_dim {
                    V::load(sums.add(at)).mul(factor).store(sums.add(at));
                    at += V::LANES;
                }
                let to = shape.row(batch, first + row / shape.group, head);
                let to = self.call.out.add(to * shape.value_dim * self.call.query.bytes());
                narrow::<V>(self.call.query, sums, shape.value_dim, to);
            }
        }
    }
}

/// `c[m,n] = a[m,k] * b[k,n]`, or added to it; `m` in tiles, `n` in vectors.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `a`, `b` and `c` have rows of `k`, `n` and `n` floats, as many as the
/// formula says, at their strides; `m` is whole tiles, `n` whole vectors.
#[inline(always)]
unsafe fn product<V: Vector, const ADD: bool>(
    m: usize,
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    n: usize,
    c: *mut f32,
    c_stride: usize,
) {
    unsafe {
        let mut column = 0;
        while column < n {
            let left = (n - column) / V::LANES;
            let (b, c) = (b.add(column), c.add(column));
            let mut row = 0;
            if V::LANES == 16 && left >= 4 {
                while row < m {
                    tile::<V, ADD, 4>(k, a.add(row * a_stride), a_stride, b, b_stride, c.add(row * c_stride), c_stride);
                    row += TILE;
                }
                column += 4 * V::LANES;
            } else if left >= 2 {
                while row < m {
                    tile::<V, ADD, 2>(k, a.add(row * a_stride), a_stride, b, b_stride, c.add(row * c_stride), c_stride);
                    row += TILE;
                }
                column += 2 * V::LANES;
            } else {
                while row < m {
                    tile::<V, ADD, 1>(k, a.add(row * a_stride), a_stride, b, b_stride, c.add(row * c_stride), c_stride);
                    row += TILE;
                }
                column += V::LANES;
            }
        }
    }
}

/// One tile of `c`, in registers.
///
/// # Safety
///
/// As for [`product`], with `TILE` rows and `C` vectors of columns.
#[inline(always)]
unsafe fn tile<V: Vector, const ADD: bool, const C: usize>(
    k: usize,
    a: *const f32,
    a_stride: usize,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
) {
    unsafe {
        let mut sums = [[V::zero(); C]; TILE];
        if ADD {
            for row in 0..TILE {
                for column in 0..C {
                    sums[row][column] = V::load(c.add(row * c_stride + column * V::LANES));
                }
            }
        }
        for at in 0..k {
            let mut right = [V::zero(); C];
            for column in 0..C {
                right[column] = V::load(b.add(at * b_stride + column * V::LANES));
            }
            for row in 0..TILE {
                let left = V::splat(*a.add(row * a_stride + at));
                for column in 0..C {
                    sums[row][column] = left.fma(right[column], sums[row][column]);
                }
            }
        }
        for row in 0..TILE {
            for column in 0..C {
                sums[row][column].store(c.add(row * c_stride + column * V::LANES));
            }
        }
    }
}
