//! Asking for weights before they are needed.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};

use super::super::stored::Stored;

/// Bytes that are decoded at a time.
pub(super) const BLOCK: usize = 64;

/// Where to ask for lines of `W`, ahead of their use and in the order of it: memory answers after hundreds of cycles, and
/// the hardware looks ahead by itself no further than the end of a page.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// From memory into the second cache: the first has room for few lines in flight, and loads need it.
    memory: Distance,
    /// From there into the first: with the way to memory full, loads from the second cache wait behind what comes from it.
    cache: Distance,
    /// From the scales of these rows to those that are due.
    scales: usize,
}

impl Ahead {
    /// Bytes that one thread asks memory for ahead: of those tried on an Emerald Rapids server, from 1 to 64 KiB, the middle
    /// did best.
    const MEMORY: usize = 8192;
    const CACHE: usize = 1024;

    /// With `together` rows read side by side, one after the other in memory.
    pub(super) fn new(stored: &Stored, together: usize) -> Self {
        let group = together * stored.row_bytes.max(1);
        Self {
            memory: Distance::new(Self::MEMORY, stored.row_bytes, together),
            cache: Distance::new(Self::CACHE, stored.row_bytes, together),
            scales: Self::MEMORY.div_ceil(group) * together * stored.row_scales,
        }
    }

    /// Asks for the lines that are due when the one at `row + at` is used.
    #[inline(always)]
    pub(super) fn ask(self, row: *const u8, at: usize) {
        // SAFETY: a prefetch of anything is allowed.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(self.memory.from(at)).cast());
            _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(self.cache.from(at)).cast());
        }
    }

    /// Asks for scales: `at` are the bytes of them used so far of the rows that start at `row`.
    #[inline(always)]
    pub(super) fn ask_scales(self, row: *const u8, at: usize) {
        // SAFETY: a prefetch of anything is allowed.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(self.scales + at).cast());
        }
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
