//! One query per sequence: every key and value is read once, so the cache's bandwidth is the ceiling.
//!
//! All keys of all sequences and KV heads are one line of work, cut evenly among the threads. A thread whose cut falls
//! inside of a head leaves its share of the softmax in a slot, and the caller merges the slots: at most two per thread.

#![allow(unsafe_code, clippy::inline_always)]
// Tiles of registers are indexed arrays, and inner kernels take what would be the fields of a structure.
#![allow(clippy::too_many_arguments, clippy::needless_range_loop, clippy::many_single_char_names)]

use roofline_isa::{Isa, Kernel, Vector, launch};

use super::{BLOCK, Call, NOTHING, Parts, Shape, manner::soften_tops};
use crate::cpu::{
    buffer::Buffer,
    kernels::{
        convert::{narrow, widen},
        element::{Fp32, Stored, with_kind},
    },
    pool::{Pool, share},
};

/// A cache line: one prefetch fetches all of it.
const LINE: usize = 64;

/// Per thread: queries, scores, two slots for partial results, and a block of widened keys or values for head sizes that
/// are no multiple of a vector.
pub(super) struct Scratch {
    buffer: Buffer,
    threads: usize,
    layout: Layout,
    /// Items that threads left unfinished, and where their slots are, in floats.
    unfinished: Vec<(usize, usize)>,
}

/// Offsets into a thread's part, in floats.
#[derive(Clone, Copy)]
struct Layout {
    /// Features of a key and of a value, rounded up to vectors.
    dim: usize,
    value_dim: usize,
    scores: usize,
    slots: usize,
    /// Floats of a slot: largest scores, sums, and weighted values of each head of a group.
    slot: usize,
    wide: usize,
    total: usize,
}

impl Layout {
    fn new(shape: &Shape, lanes: usize) -> Self {
        let (dim, value_dim) = (shape.dim.next_multiple_of(lanes), shape.value_dim.next_multiple_of(lanes));
        let group = shape.group;
        let scores = group * dim;
        let slots = scores + group * BLOCK;
        let slot = group.next_multiple_of(16) * 2 + group * value_dim;
        let wide = slots + 2 * slot;
        let total = (wide + BLOCK * dim.max(value_dim)).next_multiple_of(16);
        Self { dim, value_dim, scores, slots, slot, wide, total }
    }
}

impl Scratch {
    pub(super) fn new(shape: &Shape, threads: usize, lanes: usize) -> Option<Self> {
        let (layout, threads) = (Layout::new(shape, lanes), threads.max(1));
        let buffer = Buffer::zeroed(layout.total.checked_mul(4 * threads)?)?;
        Some(Self { buffer, threads, layout, unfinished: Vec::with_capacity(2 * threads) })
    }
}

pub(super) fn run(pool: &mut Pool, isa: Isa, call: &Call<'_>, scratch: &mut Scratch) {
    let shape = call.shape;
    let keys = shape.visible(0);
    let items = shape.batch * shape.kv_heads;
    let threads = scratch.threads.min(pool.threads());
    let layout = scratch.layout;
    let parts = Parts { start: scratch.buffer.as_mut_ptr().cast(), stride: layout.total };
    let cut = |thread: usize| share(items * keys.len(), BLOCK, thread, threads);
    let first = keys.start;
    let length = keys.len();
    pool.run(|thread| {
        if thread < threads {
            launch(isa, Share { call, layout, part: parts.of(thread), work: cut(thread), first, length });
        }
    });
    // The same walk as the threads', for the items they left unfinished.
    scratch.unfinished.clear();
    for thread in 0..threads {
        let parted = segments(cut(thread), length).filter(|(_, segment)| segment.len() < length);
        let slot = |(slot, (item, _))| (item, thread * layout.total + layout.slots + slot * layout.slot);
        scratch.unfinished.extend(parted.enumerate().map(slot));
    }
    for slots in scratch.unfinished.chunk_by(|a, b| a.0 == b.0) {
        launch(isa, Merge { call, layout, item: slots[0].0, start: parts.start, slots });
    }
}

/// The items that a range of the line of work touches, with the keys of each.
fn segments(work: std::ops::Range<usize>, length: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let items = if work.is_empty() { 0..0 } else { work.start / length..(work.end - 1) / length + 1 };
    items.map(move |item| {
        let (start, end) = (work.start.max(item * length), work.end.min((item + 1) * length));
        (item, start - item * length..end - item * length)
    })
}

/// A thread's share.
struct Share<'a> {
    call: &'a Call<'a>,
    layout: Layout,
    part: *mut f32,
    work: std::ops::Range<usize>,
    /// First key that the query sees.
    first: usize,
    /// How many it sees.
    length: usize,
}

impl Kernel for Share<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut slot = 0;
            for (item, segment) in segments(self.work.clone(), self.length) {
                let state = State::at(
                    &self.layout,
                    self.call.shape.group,
                    self.part.add(self.layout.slots + slot * self.layout.slot),
                );
                let whole = segment.len() == self.length;
                self.segment::<V>(item, segment, state);
                if whole {
                    finish::<V>(self.call, &self.layout, item, state);
                } else {
                    slot += 1;
                }
            }
        }
    }
}

/// The running softmax of a group of heads.
#[derive(Clone, Copy)]
struct State {
    largest: *mut f32,
    sum: *mut f32,
    values: *mut f32,
}

impl State {
    fn at(layout: &Layout, group: usize, slot: *mut f32) -> Self {
        debug_assert!(layout.slot >= 2 * group);
        let column = group.next_multiple_of(16);
        Self { largest: slot, sum: slot.wrapping_add(column), values: slot.wrapping_add(2 * column) }
    }
}

impl Share<'_> {
    /// Queries of an item with some of its keys, from the first key of `keys` on.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `part` is this thread's alone and laid out by `layout`, as `state` is,
    /// and the tensors of `call` have the rows of `item`.
    #[inline(always)]
    unsafe fn segment<V: Vector>(&self, item: usize, keys: std::ops::Range<usize>, state: State) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let (batch, kv_head) = (item / shape.kv_heads, item % shape.kv_heads);
            let query = self.part;
            let scale = with_kind!(self.call.cache, F => F::FACTOR) * shape.scale;
            for head in 0..shape.group {
                let row = shape.row(batch, 0, kv_head * shape.group + head);
                let from = self.call.q.add(row * shape.dim * self.call.query.bytes());
                let to = query.add(head * layout.dim);
                widen::<V>(self.call.query, from, shape.dim, to);
                for at in 0..layout.dim {
                    *to.add(at) = if at < shape.dim { *to.add(at) * scale } else { 0.0 };
                }
                *state.largest.add(head) = NOTHING;
                *state.sum.add(head) = 0.0;
            }
            std::ptr::write_bytes(state.values, 0, shape.group * layout.value_dim);
            let row = item * shape.capacity + self.first + keys.start;
            with_kind!(self.call.cache, F => self.blocks::<V, F>(row, keys.len(), query, state));
        }
    }

    /// Walks `count` keys from cache row `row` on.
    ///
    /// # Safety
    ///
    /// As for [`Share::segment`]; the cache is stored as `F` and has `count` rows from `row` on.
    #[inline(always)]
    unsafe fn blocks<V: Vector, F: Stored>(&self, row: usize, count: usize, query: *const f32, state: State) {
        unsafe {
            let (shape, layout) = (self.call.shape, self.layout);
            let scores = self.part.add(layout.scores);
            let wide = self.part.add(layout.wide);
            let (k_stride, v_stride) = (shape.dim * F::BYTES, shape.value_dim * F::BYTES);
            let exact = (shape.dim == layout.dim, shape.value_dim == layout.value_dim);
            let scaled = self.call.cache.scaled();
            let mut done = 0;
            while done < count {
                let n = BLOCK.min(count - done);
                let at = row + done;
                let more = done + n < count;
                let keys = self.call.k.codes.add(at * k_stride);
                if exact.0 {
                    all_scores::<V, F>(query, layout.dim, shape.group, keys, k_stride, n, scores, more);
                } else {
                    spread::<V, F>(keys, shape.dim, layout.dim, n, wide);
                    let stride = 4 * layout.dim;
                    all_scores::<V, Fp32>(query, layout.dim, shape.group, wide.cast(), stride, n, scores, false);
                }
                for head in 0..shape.group {
                    let line = scores.add(head * BLOCK);
                    if scaled {
                        rescale(line, self.call.k.scales.add(2 * at), n, 1.0);
                    }
                    if let Some(cap) = self.call.soft_cap {
                        soften_tops::<V>(line, cap);
                    }
                    for pad in n..BLOCK {
                        *line.add(pad) = NOTHING;
                    }
                    soften::<V>(line, head, layout.value_dim, state);
                    if scaled {
                        rescale(line, self.call.v.scales.add(2 * at), n, F::FACTOR);
                    }
                }
                let values = self.call.v.codes.add(at * v_stride);
                if exact.1 {
                    all_values::<V, F>(scores, shape.group, values, v_stride, n, layout.value_dim, state.values, more);
                } else {
                    spread::<V, F>(values, shape.value_dim, layout.value_dim, n, wide);
                    let stride = 4 * layout.value_dim;
                    all_values::<V, Fp32>(
                        scores,
                        shape.group,
                        wide.cast(),
                        stride,
                        n,
                        layout.value_dim,
                        state.values,
                        false,
                    );
                }
                done += n;
            }
        }
    }
}

/// Multiplies `n` numbers by the BF16 scales of their rows.
///
/// # Safety
///
/// There are `n` numbers at `line` and as many BF16 scales at `scales`.
#[inline(always)]
unsafe fn rescale(line: *mut f32, scales: *const u8, n: usize, factor: f32) {
    unsafe {
        for at in 0..n {
            let code = u16::from_le_bytes(scales.add(2 * at).cast::<[u8; 2]>().read());
            *line.add(at) *= f32::from_bits(u32::from(code) << 16) * factor;
        }
    }
}

/// Widens `n` rows of `length` elements to rows of `padded` floats, without factors.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `from` has `n` rows of `length` elements of `F`, and `to` room for as many
/// of `padded` floats, which is `length` rounded up to vectors.
#[inline(always)]
unsafe fn spread<V: Vector, F: Stored>(from: *const u8, length: usize, padded: usize, n: usize, to: *mut f32) {
    unsafe {
        for row in 0..n {
            let (from, to) = (from.add(row * length * F::BYTES), to.add(row * padded));
            let mut at = 0;
            while at < length {
                let vector = if at + V::LANES <= length {
                    F::load::<V>(from.add(at * F::BYTES))
                } else {
                    let mut codes = [0u8; 64];
                    std::ptr::copy_nonoverlapping(
                        from.add(at * F::BYTES),
                        codes.as_mut_ptr(),
                        (length - at) * F::BYTES,
                    );
                    F::load::<V>(codes.as_ptr())
                };
                vector.store(to.add(at));
                at += V::LANES;
            }
        }
    }
}

/// Scores of a block of keys with every head of a group: four heads at a time, so that a key is converted once for four.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `query` has `group` rows of `dim` floats, in whole vectors; `keys` has `n`
/// rows of `F`, `stride` bytes apart, of as many elements; `scores` has room for `group` rows of `BLOCK`.
#[inline(always)]
unsafe fn all_scores<V: Vector, F: Stored>(
    query: *const f32,
    dim: usize,
    group: usize,
    keys: *const u8,
    stride: usize,
    n: usize,
    scores: *mut f32,
    more: bool,
) {
    unsafe {
        let mut head = 0;
        while head < group {
            let (query, scores) = (query.add(head * dim), scores.add(head * BLOCK));
            let ahead = more && head == 0;
            // 16 sums fill half the registers of AVX-512 and would spill on anything narrower.
            if V::LANES == 16 && head + 4 <= group {
                some_scores::<V, F, 4>(query, dim, keys, stride, n, scores, ahead);
                head += 4;
            } else if head + 2 <= group {
                some_scores::<V, F, 2>(query, dim, keys, stride, n, scores, ahead);
                head += 2;
            } else {
                some_scores::<V, F, 1>(query, dim, keys, stride, n, scores, ahead);
                head += 1;
            }
        }
    }
}

/// Four keys by `H` heads at a time. A ragged end repeats the last key, whose scores the caller overwrites.
///
/// # Safety
///
/// As for [`all_scores`], with `H` for `group`.
#[inline(always)]
unsafe fn some_scores<V: Vector, F: Stored, const H: usize>(
    query: *const f32,
    dim: usize,
    keys: *const u8,
    stride: usize,
    n: usize,
    scores: *mut f32,
    ahead: bool,
) {
    unsafe {
        let mut key = 0;
        while key < n {
            let rows = [key, (key + 1).min(n - 1), (key + 2).min(n - 1), (key + 3).min(n - 1)];
            let rows = [
                keys.add(rows[0] * stride),
                keys.add(rows[1] * stride),
                keys.add(rows[2] * stride),
                keys.add(rows[3] * stride),
            ];
            let mut sums = [[V::zero(); 4]; H];
            let mut at = 0;
            while at < dim {
                if ahead && (at * F::BYTES).is_multiple_of(LINE) {
                    for row in rows {
                        V::prefetch(row.wrapping_add(at * F::BYTES + BLOCK * stride));
                    }
                }
                let loaded = [
                    F::load::<V>(rows[0].add(at * F::BYTES)),
                    F::load::<V>(rows[1].add(at * F::BYTES)),
                    F::load::<V>(rows[2].add(at * F::BYTES)),
                    F::load::<V>(rows[3].add(at * F::BYTES)),
                ];
                for head in 0..H {
                    let q = V::load(query.add(head * dim + at));
                    for row in 0..4 {
                        sums[head][row] = q.fma(loaded[row], sums[head][row]);
                    }
                }
                at += V::LANES;
            }
            for (head, sums) in sums.into_iter().enumerate() {
                V::sum4(sums, scores.add(head * BLOCK + key));
            }
            key += 4;
        }
    }
}

/// Turns a block of scores into weights, and brings what was summed so far to the same base.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `line` has `BLOCK` scores, and `state` is of a group that has `head`, with
/// `value_dim` sums for each.
#[inline(always)]
unsafe fn soften<V: Vector>(line: *mut f32, head: usize, value_dim: usize, state: State) {
    unsafe {
        let mut top = V::load(line);
        let mut at = V::LANES;
        while at < BLOCK {
            top = top.max(V::load(line.add(at)));
            at += V::LANES;
        }
        let before = *state.largest.add(head);
        let largest = before.max(top.maximum());
        if largest > before {
            let factor = (before - largest).max(-126.0).exp2();
            *state.sum.add(head) *= factor;
            let factor = V::splat(factor);
            let values = state.values.add(head * value_dim);
            let mut at = 0;
            while at < value_dim {
                V::load(values.add(at)).mul(factor).store(values.add(at));
                at += V::LANES;
            }
            *state.largest.add(head) = largest;
        }
        let base = V::splat(largest);
        let mut sum = V::zero();
        let mut at = 0;
        while at < BLOCK {
            let weight = V::load(line.add(at)).sub(base).exp2();
            weight.store(line.add(at));
            sum = sum.add(weight);
            at += V::LANES;
        }
        *state.sum.add(head) += sum.sum();
    }
}

/// Adds the weighted values of a block: up to four heads at a time, over as many features as registers hold.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `weights` has `group` rows of `BLOCK`; `values` has `n` rows of `F`,
/// `stride` bytes apart, of `value_dim` elements, in whole vectors; `sums` has `group` rows of as many floats.
#[inline(always)]
unsafe fn all_values<V: Vector, F: Stored>(
    weights: *const f32,
    group: usize,
    values: *const u8,
    stride: usize,
    n: usize,
    value_dim: usize,
    sums: *mut f32,
    more: bool,
) {
    unsafe {
        let mut head = 0;
        while head < group {
            let (weights, sums) = (weights.add(head * BLOCK), sums.add(head * value_dim));
            let ahead = more && head == 0;
            if V::LANES == 16 && head + 4 <= group {
                heads_values::<V, F, 4>(weights, values, stride, n, value_dim, sums, ahead);
                head += 4;
            } else if head + 2 <= group {
                heads_values::<V, F, 2>(weights, values, stride, n, value_dim, sums, ahead);
                head += 2;
            } else {
                heads_values::<V, F, 1>(weights, values, stride, n, value_dim, sums, ahead);
                head += 1;
            }
        }
    }
}

/// `H` heads, over as many features at a time as registers hold.
///
/// # Safety
///
/// As for [`all_values`], with `H` for `group`.
#[inline(always)]
unsafe fn heads_values<V: Vector, F: Stored, const H: usize>(
    weights: *const f32,
    values: *const u8,
    stride: usize,
    n: usize,
    value_dim: usize,
    sums: *mut f32,
    ahead: bool,
) {
    unsafe {
        let mut at = 0;
        while at < value_dim {
            let left = (value_dim - at) / V::LANES;
            let from = values.add(at * F::BYTES);
            if V::LANES == 16 && H < 4 && left >= 8 {
                some_values::<V, F, H, 8>(weights, from, stride, n, value_dim, sums.add(at), ahead);
                at += 8 * V::LANES;
            } else if left >= 4 {
                some_values::<V, F, H, 4>(weights, from, stride, n, value_dim, sums.add(at), ahead);
                at += 4 * V::LANES;
            } else {
                some_values::<V, F, H, 1>(weights, from, stride, n, value_dim, sums.add(at), ahead);
                at += V::LANES;
            }
        }
    }
}

/// `H` heads, over `C` vectors of features.
///
/// # Safety
///
/// As for [`all_values`], with `H` for `group` and, from `values` and `sums` on, `C` vectors.
#[inline(always)]
unsafe fn some_values<V: Vector, F: Stored, const H: usize, const C: usize>(
    weights: *const f32,
    values: *const u8,
    stride: usize,
    n: usize,
    value_dim: usize,
    sums: *mut f32,
    ahead: bool,
) {
    unsafe {
        let mut totals = [[V::zero(); C]; H];
        for head in 0..H {
            for column in 0..C {
                totals[head][column] = V::load(sums.add(head * value_dim + column * V::LANES));
            }
        }
        for key in 0..n {
            let row = values.add(key * stride);
            let mut weight = [V::zero(); H];
            for head in 0..H {
                weight[head] = V::splat(*weights.add(head * BLOCK + key));
            }
            for column in 0..C {
                let at = column * V::LANES * F::BYTES;
                if ahead && at.is_multiple_of(LINE) {
                    V::prefetch(row.wrapping_add(at + BLOCK * stride));
                }
                let value = F::load::<V>(row.add(at));
                for head in 0..H {
                    totals[head][column] = weight[head].fma(value, totals[head][column]);
                }
            }
        }
        for head in 0..H {
            for column in 0..C {
                totals[head][column].store(sums.add(head * value_dim + column * V::LANES));
            }
        }
    }
}

/// Divides by the sum and writes the outputs of an item.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `state` is that of `item`, laid out by `layout`, and no other thread writes
/// the outputs of `item`.
#[inline(always)]
unsafe fn finish<V: Vector>(call: &Call<'_>, layout: &Layout, item: usize, state: State) {
    unsafe {
        let shape = call.shape;
        let (batch, kv_head) = (item / shape.kv_heads, item % shape.kv_heads);
        for head in 0..shape.group {
            let values = state.values.add(head * layout.value_dim);
            let query = kv_head * shape.group + head;
            let factor = V::splat(call.factor(query, *state.largest.add(head), *state.sum.add(head)));
            let mut at = 0;
            while at < layout.value_dim {
                V::load(values.add(at)).mul(factor).store(values.add(at));
                at += V::LANES;
            }
            let row = shape.row(batch, 0, query);
            narrow::<V>(call.query, values, shape.value_dim, call.out.add(row * shape.value_dim * call.query.bytes()));
        }
    }
}

/// Brings the partial results of an item to one base, adds them into the first, and writes it.
struct Merge<'a> {
    call: &'a Call<'a>,
    layout: Layout,
    item: usize,
    /// Every thread's scratch, and where in it the item's slots are.
    start: *mut f32,
    slots: &'a [(usize, usize)],
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let group = self.call.shape.group;
            let first = State::at(&self.layout, group, self.start.add(self.slots[0].1));
            for (_, slot) in &self.slots[1..] {
                let other = State::at(&self.layout, group, self.start.add(*slot));
                for head in 0..group {
                    let (a, b) = (*first.largest.add(head), *other.largest.add(head));
                    let largest = a.max(b);
                    let (mine, theirs) = ((a - largest).max(-126.0).exp2(), (b - largest).max(-126.0).exp2());
                    *first.largest.add(head) = largest;
                    *first.sum.add(head) = *first.sum.add(head) * mine + *other.sum.add(head) * theirs;
                    let (mine, theirs) = (V::splat(mine), V::splat(theirs));
                    let offset = head * self.layout.value_dim;
                    let mut at = 0;
                    while at < self.layout.value_dim {
                        let to = first.values.add(offset + at);
                        let added = V::load(other.values.add(offset + at)).mul(theirs);
                        V::load(to).fma(mine, added).store(to);
                        at += V::LANES;
                    }
                }
            }
            finish::<V>(self.call, &self.layout, self.item, first);
        }
    }
}
