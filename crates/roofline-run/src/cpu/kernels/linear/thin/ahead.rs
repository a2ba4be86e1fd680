//! Asking for weights before they are needed.

/// A cache line.
pub(super) const LINE: usize = 64;

/// How far ahead to ask for lines of `W` that are read from rows side by side, in the order of use: memory answers after
/// hundreds of cycles, and the hardware looks ahead by itself no further than the end of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Bytes of a part after which what is due lies in the next rows.
    turn: usize,
    near: usize,
    far: usize,
}

impl Ahead {
    /// Bytes that one thread asks for ahead: of those tried on an Emerald Rapids server, from 1 to 64 KiB, the middle did
    /// best.
    const BYTES: usize = 8192;

    /// For `together` rows that are read side by side, `length` bytes of each, `row_bytes` from one to the next.
    pub(super) fn new(length: usize, row_bytes: usize, together: usize) -> Self {
        let near = (Self::BYTES / together).next_multiple_of(LINE);
        if length > near {
            let turn = length - near;
            Self { turn, near, far: together * row_bytes - turn }
        } else {
            let groups = Self::BYTES.next_multiple_of(together * row_bytes.max(1));
            Self { turn: 0, near: groups, far: groups }
        }
    }

    /// Bytes of a part after which [`Self::far`] is the distance.
    pub(super) fn turn(self) -> usize {
        self.turn
    }

    /// From what is used to what is due, before the turn.
    pub(super) fn near(self) -> usize {
        self.near
    }

    /// The same after it: what is due lies in the next rows.
    pub(super) fn far(self) -> usize {
        self.far
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
            let ahead = Ahead::new(row_bytes, row_bytes, together);
            let order = |group: usize| {
                (0..row_bytes / LINE).flat_map(move |block| {
                    (0..together).map(move |r| (group * together * row_bytes + r * row_bytes, block * LINE))
                })
            };
            let uses: Vec<(usize, usize)> = (0..300).flat_map(order).take(4096).collect();
            let asked: Vec<usize> = uses
                .iter()
                .map(|(row, at)| row + at + if *at < ahead.turn() { ahead.near() } else { ahead.far() })
                .collect();
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
