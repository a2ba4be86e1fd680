//! Products with few rows of `x`: each row of `W` is read once, decoded in registers, and multiplied with every `x`.
//!
//! Such a product takes as long as reading `W` (2 operations per weight and row of `x`), so a kernel is good when it
//! reads as fast as a loop that does nothing else. Threads share the rows of `W`.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod fixed;
pub(super) mod integer;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plain;
#[cfg(target_arch = "x86_64")]
mod spread;

use std::{ops::Range, slice};

use super::{
    Unsupported, no_memory,
    number::Wide,
    output::Output,
    stored::{Code, Rows, Stored},
};
use crate::cpu::{
    buffer::Buffer,
    pool::Pool,
    simd::{Level, Simd},
    tensor::Tensor,
};

/// The order `x` is laid out in, so that it meets weights the way vectors decode them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As stored.
    Natural,
    /// Of 32 elements the even ones, then the odd ones: a dword holds two 16-bit weights.
    Pairs,
    /// Of 128 elements those at `8 * lane + j` for `j` in 0..8: a dword holds eight 4-bit weights.
    Eights,
}

impl Order {
    /// Rows of `x` are padded with zeros to a multiple of this: the elements of 64 bytes of the narrowest weights.
    const PAD: usize = 128;

    fn of(simd: Simd, code: Code) -> Self {
        match (simd.level, code) {
            (Level::Avx512, Code::Bf16) => Self::Pairs,
            (Level::Avx512, Code::Nibble) => Self::Eights,
            _ => Self::Natural,
        }
    }

    /// Puts `row`, whose length is a multiple of the padding, into this order.
    fn arrange(self, row: &mut [f32]) {
        let (width, lanes) = match self {
            Self::Natural => return,
            Self::Pairs => (2, 16),
            Self::Eights => (8, 16),
        };
        let mut block = [0.0; Self::PAD];
        for part in row.chunks_exact_mut(width * lanes) {
            block[..part.len()].copy_from_slice(part);
            for (j, vector) in part.chunks_exact_mut(lanes).enumerate() {
                for (lane, value) in vector.iter_mut().enumerate() {
                    *value = block[width * lane + j];
                }
            }
        }
    }
}

/// Where to ask for lines of `W`, ahead of their use and in the order of it: memory answers after hundreds of cycles, and
/// the hardware looks ahead by itself no further than the end of a page.
#[derive(Clone, Copy)]
struct Ahead {
    /// From memory into the second cache: the first has room for few lines in flight, and loads need it.
    memory: Distance,
    /// From there into the first: with the way to memory full, loads from the second cache wait behind what comes from it.
    cache: Distance,
    /// From the scales of these rows to those that are due.
    scales: usize,
}

impl Ahead {
    /// Bytes that one thread asks memory for ahead. Read alone on two cores of an Emerald Rapids server, 4 to 16 KiB are
    /// the fastest, and 1 KiB is 20 % slower.
    const MEMORY: usize = 8192;
    const CACHE: usize = 1024;

    /// With `together` rows read side by side, one after the other in memory.
    fn new(stored: &Stored, together: usize) -> Self {
        let group = together * stored.row_bytes.max(1);
        Self {
            memory: Distance::new(Self::MEMORY, stored.row_bytes, together),
            cache: Distance::new(Self::CACHE, stored.row_bytes, together),
            scales: Self::MEMORY.div_ceil(group) * together * stored.row_scales,
        }
    }

    /// Asks for the lines that are due when the one at `row + at` is used.
    #[inline(always)]
    fn ask(self, row: *const u8, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of anything is allowed.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(self.memory.from(at)).cast());
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(self.cache.from(at)).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (row, at);
    }

    /// Asks for scales: `at` are the bytes of them used so far of the rows that start at `row`.
    #[inline(always)]
    fn ask_scales(self, row: *const u8, at: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of anything is allowed.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(self.scales + at).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (row, at);
    }
}

/// How far ahead along rows that are read side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Distance {
    /// Bytes of a row after which what is due lies in the next rows.
    turn: usize,
    near: usize,
    far: usize,
}

impl Distance {
    fn new(bytes: usize, row_bytes: usize, together: usize) -> Self {
        let near = (bytes / together).next_multiple_of(BLOCK);
        if row_bytes > near {
            Self { turn: row_bytes - near, near, far: near + (together - 1) * row_bytes }
        } else {
            let groups = bytes.next_multiple_of(together * row_bytes.max(1));
            Self { turn: 0, near: groups, far: groups }
        }
    }

    /// What is due at `at`, from the same row's start.
    #[inline(always)]
    fn from(self, at: usize) -> usize {
        at + if at < self.turn { self.near } else { self.far }
    }
}

/// Bytes that are decoded at a time.
const BLOCK: usize = 64;

/// Rows that a thread takes at a time: long enough that taking them costs nothing, and a few to each core of a small `W`.
fn piece(stored: &Stored) -> usize {
    const BYTES: usize = 1 << 17;
    (BYTES / stored.row_bytes.max(1)).next_multiple_of(4).max(4)
}

/// What a thread is given.
struct Job<'a> {
    w: Rows<'a>,
    /// `m` rows of `pitch` elements, in the kernel's order, padded with zeros.
    x: &'a [f32],
    pitch: usize,
    m: usize,
    y: Output,
}

/// Computes the columns of `y` that belong to a range of rows of `W`; the caller makes sure of the instructions and that
/// no other thread writes those columns.
type Kernel = unsafe fn(&Job<'_>, Range<usize>);

/// A planned product.
pub(super) struct Gemv {
    kernel: Kernel,
    order: Order,
    pitch: usize,
    x: Buffer,
}

impl Gemv {
    pub(super) fn plan(simd: Simd, m: usize, stored: &Stored) -> Result<Self, Unsupported> {
        let pitch = stored.k.next_multiple_of(Order::PAD);
        let x = Buffer::zeroed(m * pitch * 4).ok_or_else(no_memory)?;
        let kernel = match simd.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::kernel(stored),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::kernel(stored),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::kernel(stored),
            _ => plain::kernel(),
        };
        Ok(Self { kernel, order: Order::of(simd, stored.code), pitch, x })
    }

    pub(super) fn run(&mut self, pool: &mut Pool, (x, wide): (&Tensor<'_>, Wide), w: Rows<'_>, y: Output) {
        let (m, k, pitch) = (x.rows, x.columns, self.pitch);
        // SAFETY: the buffer is aligned for, and any bytes are, FP32.
        let scratch = unsafe { slice::from_raw_parts_mut(self.x.as_mut_ptr().cast::<f32>(), m * pitch) };
        for (row, codes) in scratch.chunks_exact_mut(pitch).zip(x.codes.chunks_exact(k * wide.bytes())) {
            wide.decode(codes, &mut row[..k]);
            row[k..].fill(0.0);
            self.order.arrange(row);
        }
        let job = Job { w, x: scratch, pitch, m, y };
        // SAFETY: planned for instructions that were found, and each thread has rows of its own.
        pool.deal(w.count, 4, piece(w.stored), |_, rows| unsafe { (self.kernel)(&job, rows) });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Rows read side by side, one block of each after the other, ask for every later line once and in time.
    #[test]
    fn lines_are_asked_for_once_and_in_the_order_of_use() {
        for (row_bytes, together) in [(16384, 1), (16384, 4), (2048, 4), (512, 2), (64, 1), (4160, 4)] {
            let distance = Distance::new(8192, row_bytes, together);
            let order = |group: usize| {
                (0..row_bytes / BLOCK).flat_map(move |block| {
                    (0..together).map(move |r| (group * together * row_bytes + r * row_bytes, block * BLOCK))
                })
            };
            let uses: Vec<(usize, usize)> = (0..300).flat_map(order).take(4096).collect();
            let asked: Vec<usize> = uses.iter().map(|(row, at)| row + distance.from(*at)).collect();
            assert_eq!(asked.iter().collect::<HashSet<_>>().len(), asked.len(), "{row_bytes} x {together}");
            for (now, line) in asked.iter().enumerate() {
                if let Some(used) = uses.iter().position(|(row, at)| row + at == *line) {
                    let bytes = (used - now) * BLOCK;
                    assert!((4096..=8192 + together * row_bytes).contains(&bytes), "{row_bytes} x {together}: {bytes}");
                }
            }
        }
    }
}
