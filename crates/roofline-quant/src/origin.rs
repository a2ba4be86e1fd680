//! Where the rows of a tensor come from that is written: which matrix of the source they are of, and which of its rows.
//!
//! A layout writes rows in another order than the source has them, or those of many matrices as one tensor. Methods that go by
//! data know matrices by the source's names, and put what they made of them back in its order.

use std::ops::Range;

use crate::rows::Pairs;

/// The matrix that some rows of a tensor come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The source's tensor. Experts in one tensor lie one below the other, outputs first.
    pub tensor: String,
    /// Which expert they are of, where the source has all of them in one tensor.
    pub expert: Option<usize>,
    /// Which rows of what is written.
    pub rows: Range<usize>,
    /// Which rows of the source's tensor these are.
    pub order: Order,
}

/// In which order rows are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// From `first` on, each `by` further than the one before.
    Every {
        /// The first.
        first: usize,
        /// How far the next is.
        by: usize,
    },
    /// The rotary halves of each head of so many rows as neighbours.
    Heads(usize),
    /// Blocks of so many rows, in that order.
    Blocks(usize, Vec<usize>),
}

impl Order {
    /// As they lie.
    pub const SAME: Self = Self::Every { first: 0, by: 1 };

    /// The row of the source that comes at `row`.
    pub fn source(&self, row: usize) -> usize {
        match self {
            Self::Every { first, by } => first + row * by,
            Self::Heads(head) => Pairs::Joined.source(*head, row),
            Self::Blocks(block, order) => order[row / block] * block + row % block,
        }
    }
}

impl Origin {
    /// All rows of a tensor, as they lie.
    pub fn whole(tensor: &str, rows: usize) -> Self {
        Self { tensor: tensor.to_owned(), expert: None, rows: 0..rows, order: Order::SAME }
    }

    /// The module that the tensor is the weight of; of a stack, the tensor itself.
    pub fn module(&self) -> &str {
        self.tensor.strip_suffix(".weight").unwrap_or(&self.tensor)
    }

    /// The same of rows that come so many later.
    pub(crate) fn below(mut self, rows: usize) -> Self {
        self.rows = self.rows.start + rows..self.rows.end + rows;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_from_where_they_lie() {
        let sources = |order: &Order, count: usize| (0..count).map(|row| order.source(row)).collect::<Vec<_>>();
        assert_eq!(sources(&Order::SAME, 3), [0, 1, 2]);
        // Every second of the second expert of four outputs.
        assert_eq!(sources(&Order::Every { first: 5, by: 2 }, 2), [5, 7]);
        assert_eq!(sources(&Order::Heads(4), 8), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(sources(&Order::Blocks(2, vec![2, 0, 1]), 6), [4, 5, 0, 1, 2, 3]);
        let origin = Origin::whole("a.q_proj.weight", 4).below(8);
        assert_eq!((origin.module(), origin.rows.clone()), ("a.q_proj", 8..12));
    }
}
