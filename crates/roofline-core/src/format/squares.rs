//! Tensors in squares that share a scale, as DeepSeek ships FP8: the elements in the order of the squares, so that those of
//! each are together.

use std::ops::Range;

use super::{Scaling, Span, codec::Encoded};

/// `count` in pieces of `side`, the last perhaps shorter.
fn cut(count: usize, side: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    (0..count).step_by(side).map(move |at| at..(at + side).min(count))
}

impl Encoded {
    fn side(&self) -> Option<usize> {
        match self.format.scaling {
            Scaling::Linear(Span::Tile(side), _) => Some(side as usize),
            _ => None,
        }
    }

    /// Where the elements of a tensor in squares come from: row by row within a square, square after square. None where
    /// blocks are contiguous as it is.
    pub(super) fn squares(&self) -> Option<Vec<usize>> {
        let (side, width) = (self.side()?, self.columns);
        let squares =
            cut(self.rows(), side).flat_map(|rows| cut(width, side).map(move |columns| (rows.clone(), columns)));
        let elements = squares.flat_map(|(rows, columns)| {
            rows.flat_map(move |row| columns.clone().map(move |column| row * width + column))
        });
        Some(elements.collect())
    }

    /// The squares in that order.
    pub(super) fn ranges_of_squares(&self) -> Option<Vec<Range<usize>>> {
        let side = self.side()?;
        let sizes = cut(self.rows(), side)
            .flat_map(|rows| cut(self.columns, side).map(move |columns| rows.len() * columns.len()));
        let ends = sizes.scan(0, |end, size| {
            let start = *end;
            *end += size;
            Some(start..*end)
        });
        Some(ends.collect())
    }
}

/// `ordered[i]` at `order[i]`.
pub(super) fn restored<T: Copy + Default>(order: &[usize], ordered: &[T]) -> Vec<T> {
    let mut all = vec![T::default(); ordered.len()];
    for (at, value) in order.iter().zip(ordered) {
        all[*at] = *value;
    }
    all
}
