//! Bandwidth of each level of memory.
//!
//! Each thread owns a buffer that it touches first, so that its pages lie on its own memory node. A cache level is
//! streamed by a working set that fills half of it; the last level by a set that lies well beyond the level above and
//! well inside of it; memory by one of four times all caches.

#![allow(unsafe_code, clippy::inline_always)]

use std::{sync::Mutex, time::Instant};

use roofline_core::units::{ByteRate, Bytes};
use roofline_isa::{Isa, Kernel, Vector, launch};

use super::{Effort, Level, Stream, StreamKind, Trials, Way};
use crate::cpu::{
    buffer::Buffer,
    machine::Machine,
    pool::{Pool, share},
};

/// What a trial over a cache takes at least, in seconds: a thousand times what starting it costs.
const TRIAL: f64 = 1e-3;
/// Granule of a working set: whole lines of each of two or three arrays, unrolled eight times at any width.
const GRANULE: usize = 3 * 2 * 1024;

/// A cache line.
const LINE: usize = 64;
/// Bytes that lines are asked for ahead of their use.
const AHEAD: usize = 8192;

/// Part of a stream: `a`, and where the kind has them `b` and `c`, of `length` floats each.
struct Pass {
    kind: StreamKind,
    way: Way,
    arrays: *mut f32,
    length: usize,
    repeats: usize,
}

impl Kernel for Pass {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let (a, n) = (self.arrays, self.length);
            let (b, c) = (a.wrapping_add(n).cast_const(), a.wrapping_add(2 * n).cast_const());
            let streaming = self.way == Way::Streaming;
            for _ in 0..self.repeats {
                match (self.kind, streaming) {
                    (StreamKind::Read, _) if self.way == Way::Ahead => return read_ahead::<V>(a, n, self.repeats),
                    (StreamKind::Read, _) => return read::<V>(a, n, self.repeats),
                    (StreamKind::Write, false) => write::<V, false>(a, n),
                    (StreamKind::Write, true) => write::<V, true>(a, n),
                    (StreamKind::Copy, false) => copy::<V, false>(a, b, n),
                    (StreamKind::Copy, true) => copy::<V, true>(a, b, n),
                    (StreamKind::Triad, false) => triad::<V, false>(a, b, c, n),
                    (StreamKind::Triad, true) => triad::<V, true>(a, b, c, n),
                }
            }
            #[cfg(target_arch = "x86_64")]
            if streaming {
                std::arch::x86_64::_mm_sfence();
            }
        }
    }
}

/// Four streams at once keep at least as many lines in flight as one does, and eight sums never wait for an addition of
/// four cycles.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and at `a` there are `n` numbers, in whole vectors.
#[inline(always)]
unsafe fn read<V: Vector>(a: *const f32, n: usize, repeats: usize) {
    unsafe {
        let mut sums = [V::zero(); 8];
        let quarter = n / 4;
        for _ in 0..repeats {
            let a = std::hint::black_box(a);
            let mut at = 0;
            while at < quarter {
                for (lane, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(a.add(lane / 2 * quarter + at + lane % 2 * V::LANES)));
                }
                at += 2 * V::LANES;
            }
        }
        finish(sums);
    }
}

/// One stream, whose lines are asked for before the hardware would: it looks ahead no further than the end of a page.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and at `a` there are `n` numbers, in whole vectors.
#[inline(always)]
unsafe fn read_ahead<V: Vector>(a: *const f32, n: usize, repeats: usize) {
    unsafe {
        let mut sums = [V::zero(); 8];
        let line = LINE / size_of::<f32>();
        for _ in 0..repeats {
            let a = std::hint::black_box(a);
            let mut at = 0;
            while at < n {
                for lane in (0..8 * V::LANES).step_by(line) {
                    V::prefetch(a.wrapping_add(at + lane).cast::<u8>().wrapping_add(AHEAD));
                }
                for (lane, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(a.add(at + lane * V::LANES)));
                }
                at += 8 * V::LANES;
            }
        }
        finish(sums);
    }
}

/// Keeps sums from being thought of as useless.
///
/// # Safety
///
/// The processor has `V`'s instruction set.
#[inline(always)]
unsafe fn finish<V: Vector>(sums: [V; 8]) {
    unsafe {
        let mut total = V::zero();
        for sum in sums {
            total = total.add(sum);
        }
        std::hint::black_box(total.sum());
    }
}

/// Through the caches, or past them.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and at `to` there is room for a vector, aligned to its size where it goes
/// past the caches.
#[inline(always)]
unsafe fn put<V: Vector, const STREAMING: bool>(value: V, to: *mut f32) {
    unsafe { if STREAMING { value.stream(to) } else { value.store(to) } }
}

/// `a[i] = s`.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `a` has room for `n` numbers, in whole and aligned vectors.
#[inline(always)]
unsafe fn write<V: Vector, const STREAMING: bool>(a: *mut f32, n: usize) {
    unsafe {
        let value = V::splat(std::hint::black_box(1.0));
        let mut at = 0;
        while at < n {
            for lane in 0..8 {
                put::<V, STREAMING>(value, a.add(at + lane * V::LANES));
            }
            at += 8 * V::LANES;
        }
        std::hint::black_box(a);
    }
}

/// `a[i] = b[i]`.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `a` has room for `n` numbers, in whole and aligned vectors, and `b` has as
/// many.
#[inline(always)]
unsafe fn copy<V: Vector, const STREAMING: bool>(a: *mut f32, b: *const f32, n: usize) {
    unsafe {
        let mut at = 0;
        while at < n {
            for lane in 0..8 {
                put::<V, STREAMING>(V::load(b.add(at + lane * V::LANES)), a.add(at + lane * V::LANES));
            }
            at += 8 * V::LANES;
        }
        std::hint::black_box(a);
    }
}

/// `a[i] = b[i] + s * c[i]`.
///
/// # Safety
///
/// The processor has `V`'s instruction set; `a` has room for `n` numbers, in whole and aligned vectors, and `b` and `c`
/// have as many.
#[inline(always)]
unsafe fn triad<V: Vector, const STREAMING: bool>(a: *mut f32, b: *const f32, c: *const f32, n: usize) {
    unsafe {
        let factor = V::splat(std::hint::black_box(3.0));
        let mut at = 0;
        while at < n {
            for lane in 0..8 {
                let (b, c) = (V::load(b.add(at + lane * V::LANES)), V::load(c.add(at + lane * V::LANES)));
                put::<V, STREAMING>(c.fma(factor, b), a.add(at + lane * V::LANES));
            }
            at += 8 * V::LANES;
        }
        std::hint::black_box(a);
    }
}

/// See [`super::read`]; what is left of whole granules is not read.
pub(super) fn read_once(pool: &mut Pool, bytes: &[u8]) {
    pool.split(bytes.len() / GRANULE * GRANULE, GRANULE, |_, part| {
        let part = &bytes[part];
        #[allow(clippy::cast_ptr_alignment)] // checked, and only read
        let arrays = part.as_ptr().cast::<f32>().cast_mut();
        assert!(arrays.is_aligned(), "what is read starts on a number");
        let (kind, way, length) = (StreamKind::Read, Way::Ahead, part.len() / size_of::<f32>());
        launch(Isa::best(), Pass { kind, way, arrays, length, repeats: 1 });
    });
}

impl StreamKind {
    const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Copy, Self::Triad];

    fn arrays(self) -> usize {
        match self {
            Self::Read | Self::Write => 1,
            Self::Copy => 2,
            Self::Triad => 3,
        }
    }
}

/// A working set: bytes of each thread, and where they live.
struct Set {
    level: Level,
    per_thread: usize,
}

pub(super) fn measure(
    pool: &mut Pool,
    machine: &Machine,
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Vec<Stream> {
    let all = pool.threads();
    let sets = sets(machine, all);
    let trials = if effort == Effort::Quick { 3 } else { 10 };
    progress("taking memory");
    let Some(buffers) = Buffers::take(pool, sets.iter().map(|set| set.per_thread).max().unwrap_or(0)) else {
        return Vec::new();
    };
    progress("streams");
    let mut cells: Vec<Cell<'_>> = Vec::new();
    for set in &sets {
        for kind in StreamKind::ALL {
            for threads in curve(all, kind, set.level, effort) {
                let cell = |way: &Way| Cell { set, kind, threads, way: *way, repeats: 1, rates: Vec::new() };
                let ways = ways(kind, set.level);
                // Where time is short, one thread goes the one way that memory likes.
                let short = effort == Effort::Quick && threads < all;
                cells.extend(ways[..if short { 1 } else { ways.len() }].iter().map(cell));
            }
        }
    }
    for cell in cells.iter_mut().filter(|cell| cell.set.level != Level::Memory) {
        // The shortest of three: one that was interrupted would do with too few repeats. And on this thread alone:
        // waiting for others, when threads share a core, would pass for work.
        while (0..3).map(|_| buffers.alone(cell)).fold(f64::INFINITY, f64::min) < TRIAL {
            cell.repeats *= 2;
        }
    }
    // Trials of all streams take turns, so that a disturbance costs each a trial and none all of them.
    for trial in 0..trials {
        for cell in &mut cells {
            if trial > 0 && effort == Effort::Quick && cell.is_second() {
                continue;
            }
            if cell.set.level != Level::Memory {
                buffers.time(pool, cell, 1); // brings the set in again
            }
            let time = buffers.time(pool, cell, cell.repeats);
            cell.rates.push(buffers.bytes(cell) * cell.repeats as f64 / time);
        }
    }
    let same = |a: &Cell<'_>, b: &Cell<'_>| (a.set.level, a.kind, a.threads) == (b.set.level, b.kind, b.threads);
    let faster = cells.chunk_by(same).map(|ways| ways.iter().map(|cell| cell.stream(&buffers)));
    faster.filter_map(|ways| ways.reduce(|a, b| if b.best > a.best { b } else { a })).collect()
}

/// The ways that a stream has, the likely fastest first.
fn ways(kind: StreamKind, level: Level) -> &'static [Way] {
    match (kind, level) {
        (StreamKind::Read, Level::Memory) => &[Way::Ahead, Way::Plain],
        (_, Level::Memory) => &[Way::Streaming, Way::Plain],
        _ => &[Way::Plain],
    }
}

/// One stream in one way, and its trials.
struct Cell<'a> {
    set: &'a Set,
    kind: StreamKind,
    threads: usize,
    way: Way,
    repeats: usize,
    rates: Vec<f64>,
}

impl Cell<'_> {
    /// Floats of one array in one buffer.
    fn length(&self) -> usize {
        self.set.per_thread / size_of::<f32>() / self.kind.arrays()
    }

    /// Whether this is the way of storing that memory does not like: it reads each line before it is overwritten, and
    /// one trial tells.
    fn is_second(&self) -> bool {
        self.kind != StreamKind::Read && self.set.level == Level::Memory && self.way == Way::Plain
    }

    fn stream(&self, buffers: &Buffers) -> Stream {
        let rates = Trials(self.rates.clone());
        Stream {
            kind: self.kind,
            level: self.set.level,
            threads: self.threads,
            busy: self.threads,
            bytes: Bytes::new(buffers.bytes(self)),
            way: self.way,
            best: ByteRate::new(rates.best()),
            median: ByteRate::new(rates.median()),
            worst: ByteRate::new(rates.worst()),
            trials: self.rates.len(),
        }
    }
}

/// One thread and all; the steps between by doubling, where it is worth the time.
fn curve(all: usize, kind: StreamKind, level: Level, effort: Effort) -> Vec<usize> {
    let curve = effort == Effort::Full && kind == StreamKind::Read && level == Level::Memory;
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|n| *n < all).collect();
    if !curve {
        counts.truncate(1);
    }
    counts.push(all);
    counts.dedup();
    counts
}

/// The sets that fit, per thread.
fn sets(machine: &Machine, threads: usize) -> Vec<Set> {
    let size = |bytes: Bytes| bytes.value() as usize;
    let level = |number: u8| machine.cache(number);
    let granular = |bytes: usize| (bytes / GRANULE).max(1) * GRANULE;
    let mut sets = Vec::new();
    // Caches below the last belong to a core, or to few of them: a thread takes half of the smallest.
    if let Some(l1) = level(1) {
        sets.push(Set { level: Level::L1, per_thread: granular(size(l1.smallest) / 2) });
    }
    if let Some(l2) = level(2) {
        sets.push(Set { level: Level::L2, per_thread: granular(size(l2.smallest) / 2) });
    }
    // Twice what lies above it, but no more than a quarter of it; where that leaves nothing, it cannot be told apart.
    if let Some(l3) = level(3) {
        let above = 2 * level(2).map_or(0, |l2| size(l2.smallest)) * threads;
        let set = above.max(1 << 20);
        if set <= size(l3.total) / 4 {
            sets.push(Set { level: Level::L3, per_thread: granular(set / threads) });
        }
    }
    let caches = machine.last_level_cache().map_or(0, size);
    let wanted = (4 * caches).max(1 << 30);
    let most = machine.available.map_or(1 << 30, |available| size(available) / 4);
    // A set that half fits the caches would measure them, and call it memory.
    if wanted.min(most) >= 2 * caches {
        sets.push(Set { level: Level::Memory, per_thread: granular(wanted.min(most) / threads) });
    }
    sets
}

/// A buffer per thread.
struct Buffers {
    starts: Vec<Start>,
    /// What the starts point to.
    _owned: Vec<Buffer>,
}

/// The start of a buffer.
struct Start(*mut f32);

// SAFETY: in a trial each buffer belongs to one thread of the pool, so that nobody else reads or writes it meanwhile.
unsafe impl Sync for Start {}

impl Buffers {
    fn take(pool: &mut Pool, bytes: usize) -> Option<Self> {
        let slots: Vec<Mutex<Option<Buffer>>> = (0..pool.threads()).map(|_| Mutex::new(None)).collect();
        pool.run(|index| {
            if let Ok(mut slot) = slots[index].lock() {
                // The first touch places the pages, and pages that nobody wrote to are one page of zeros in the cache.
                *slot = Buffer::zeroed(bytes).map(|mut buffer| {
                    buffer.fill(0x3d);
                    buffer
                });
            }
        });
        let mut owned: Vec<Buffer> =
            slots.into_iter().map(|slot| slot.into_inner().ok().flatten()).collect::<Option<_>>()?;
        #[allow(clippy::cast_ptr_alignment)] // buffers start on a cache line
        let starts = owned.iter_mut().map(|buffer| Start(buffer.as_mut_ptr().cast())).collect();
        Some(Self { starts, _owned: owned })
    }

    /// Buffers that thread `index` streams: its own in a cache; in memory also those of threads that are idle.
    fn of(&self, cell: &Cell<'_>, index: usize) -> std::ops::Range<usize> {
        match cell.set.level {
            _ if index >= cell.threads => 0..0,
            Level::Memory => share(self.starts.len(), 1, index, cell.threads),
            _ => index..index + 1,
        }
    }

    /// Bytes that one repeat reads and writes.
    fn bytes(&self, cell: &Cell<'_>) -> f64 {
        let buffers: usize = (0..cell.threads).map(|index| self.of(cell, index).len()).sum();
        (buffers * cell.length() * cell.kind.arrays() * size_of::<f32>()) as f64
    }

    /// Seconds that the calling thread's part takes.
    fn alone(&self, cell: &Cell<'_>) -> f64 {
        let start = Instant::now();
        self.pass(cell, 0, cell.repeats);
        start.elapsed().as_secs_f64()
    }

    fn pass(&self, cell: &Cell<'_>, index: usize, repeats: usize) {
        let (kind, way, length) = (cell.kind, cell.way, cell.length());
        for start in &self.starts[self.of(cell, index)] {
            launch(Isa::best(), Pass { kind, way, arrays: start.0, length, repeats });
        }
    }

    /// Seconds from the start of the first thread to the end of the last.
    fn time(&self, pool: &mut Pool, cell: &Cell<'_>, repeats: usize) -> f64 {
        let start = Instant::now();
        pool.run(|index| self.pass(cell, index, repeats));
        start.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_do_what_they_say() {
        for isa in Isa::restrictions() {
            for way in [Way::Plain, Way::Ahead, Way::Streaming] {
                let n = GRANULE / 4;
                let mut buffer = Buffer::zeroed(3 * n * 4).unwrap();
                #[allow(clippy::cast_ptr_alignment)] // buffers start on a cache line
                let arrays = buffer.as_mut_ptr().cast::<f32>();
                let run = |kind| launch(isa, Pass { kind, way, arrays, length: n, repeats: 1 });
                // SAFETY: within the buffer.
                let value = |array: usize, at: usize| unsafe { *arrays.add(array * n + at) };
                run(StreamKind::Write);
                assert_eq!((value(0, 0), value(0, n - 1), value(1, 0)), (1.0, 1.0, 0.0));
                // SAFETY: within the buffer.
                unsafe { (*arrays.add(n + 5), *arrays.add(2 * n + 5)) = (2.0, 7.0) };
                run(StreamKind::Triad);
                assert_eq!((value(0, 5), value(0, n - 1)), (2.0 + 3.0 * 7.0, 0.0));
                run(StreamKind::Copy);
                assert_eq!(value(0, 5), 2.0);
                run(StreamKind::Read);
            }
        }
    }

    #[test]
    fn sets_stay_within_their_level() {
        let machine = Machine::detect();
        for threads in [1, 2, 7] {
            for set in sets(&machine, threads) {
                assert!(set.per_thread.is_multiple_of(GRANULE) && set.per_thread > 0);
                let level = match set.level {
                    Level::L1 => 1,
                    Level::L2 => 2,
                    _ => continue,
                };
                assert!(set.per_thread as f64 <= machine.cache(level).unwrap().smallest.value());
            }
        }
        assert_eq!(sets(&Machine::default(), 1).len(), 1);
    }

    #[test]
    fn the_curve_doubles() {
        assert_eq!(curve(6, StreamKind::Read, Level::Memory, Effort::Full), [1, 2, 4, 6]);
        assert_eq!(curve(6, StreamKind::Read, Level::Memory, Effort::Quick), [1, 6]);
        assert_eq!(curve(1, StreamKind::Copy, Level::L1, Effort::Full), [1]);
    }
}
