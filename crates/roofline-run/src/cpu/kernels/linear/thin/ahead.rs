//! Asking for weights before they are needed.

use roofline_isa::Vector;

/// A cache line.
const LINE: usize = 64;

/// Where to ask for lines of `W`, ahead of their use and in the order of it: memory answers after hundreds of cycles, and
/// the hardware looks ahead by itself no further than the end of a page.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// From memory into the second cache: the first has room for few lines in flight, and loads need it.
    memory: Distance,
    /// From there into the first: with the way to memory full, loads from the second cache wait behind what comes from it.
    cache: Distance,
}

impl Ahead {
    /// Bytes that one thread asks memory for ahead: of those tried on an Emerald Rapids server, from 1 to 64 KiB, the middle
    /// did best.
    const MEMORY: usize = 8192;
    const CACHE: usize = 1024;

    /// For `together` rows that are read side by side, `length` bytes of each, `row_bytes` from one to the next.
    pub(super) fn new(length: usize, row_bytes: usize, together: usize) -> Self {
        let distance = |bytes| Distance::new(bytes, length, row_bytes, together);
        Self { memory: distance(Self::MEMORY), cache: distance(Self::CACHE) }
    }

    /// Asks for the lines that are due when the `count` bytes at `now` are used, `at` bytes into their row's part. A line is
    /// asked for by the step that its first byte falls to.
    ///
    /// # Safety
    ///
    /// None: a prefetch of anything is allowed; `V` is there.
    #[inline(always)]
    pub(super) unsafe fn ask<V: Vector>(self, now: *const u8, at: usize, count: usize) {
        let mut line = now.align_offset(LINE) % LINE;
        while line < count {
            let now = now.wrapping_add(line);
            V::prefetch(now.wrapping_add(self.memory.from(at + line)));
            V::prefetch_near(now.wrapping_add(self.cache.from(at + line)));
            line += LINE;
        }
    }
}

/// How far ahead along rows that are read side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Distance {
    /// Bytes of a part after which what is due lies in the next rows.
    turn: usize,
    near: usize,
    far: usize,
}

impl Distance {
    fn new(bytes: usize, length: usize, row_bytes: usize, together: usize) -> Self {
        let near = (bytes / together).next_multiple_of(LINE);
        if length > near {
            let turn = length - near;
            Self { turn, near, far: together * row_bytes - turn }
        } else {
            let groups = bytes.next_multiple_of(together * row_bytes.max(1));
            Self { turn: 0, near: groups, far: groups }
        }
    }

    /// How far ahead of the byte `at` of a part the one is that is due.
    #[inline(always)]
    fn from(self, at: usize) -> usize {
        if at < self.turn { self.near } else { self.far }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Rows read side by side, one line of each after the other, ask for every later line once and in time.
    #[test]
    fn lines_are_asked_for_once_and_in_the_order_of_use() {
        for (row_bytes, together) in [(16384, 1), (16384, 4), (2048, 4), (512, 2), (64, 1), (4160, 4)] {
            let distance = Distance::new(8192, row_bytes, row_bytes, together);
            let order = |group: usize| {
                (0..row_bytes / LINE).flat_map(move |block| {
                    (0..together).map(move |r| (group * together * row_bytes + r * row_bytes, block * LINE))
                })
            };
            let uses: Vec<(usize, usize)> = (0..300).flat_map(order).take(4096).collect();
            let asked: Vec<usize> = uses.iter().map(|(row, at)| row + at + distance.from(*at)).collect();
            assert_eq!(asked.iter().collect::<HashSet<_>>().len(), asked.len(), "{row_bytes} x {together}");
            for (now, line) in asked.iter().enumerate() {
                if let Some(used) = uses.iter().position(|(row, at)| row + at == *line) {
                    let bytes = (used - now) * LINE;
                    assert!((4096..=8192 + together * row_bytes).contains(&bytes), "{row_bytes} x {together}: {bytes}");
                }
            }
        }
    }
}
