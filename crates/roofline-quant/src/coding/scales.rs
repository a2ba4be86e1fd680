//! Which weights share a scale, and how scales are stored.

use super::{Part, Placing, Unsuited};
use crate::rounding::Rounding;

/// The weights of a row that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// So many neighbours.
    Group(usize),
    /// All of them.
    Row,
}

impl Span {
    pub(crate) fn new(group: Option<u32>) -> Self {
        group.map_or(Self::Row, |group| Self::Group(group as usize))
    }

    /// How many weights share a scale in rows of `columns`.
    pub(crate) fn length(self, columns: usize) -> usize {
        match self {
            Self::Group(group) => group,
            Self::Row => columns,
        }
    }

    /// How many scales a row of `columns` has.
    pub(crate) fn groups(self, columns: usize) -> Result<usize, Unsuited> {
        match self {
            _ if columns == 0 => Err("has no columns".to_owned()),
            Self::Group(group) if columns.is_multiple_of(group) => Ok(columns / group),
            Self::Group(group) => Err(format!("has {columns} columns, which is no multiple of the group of {group}")),
            Self::Row => Ok(1),
        }
    }

    /// The tensor of `groups` scales a row in the type of `R`.
    pub(crate) fn part<R: Rounding>(name: &'static str, rows: usize, groups: usize) -> Part {
        let placing = Placing::Rows { rows: 1, bytes: groups * R::DTYPE.bytes() };
        Part { name, dtype: R::DTYPE, shape: vec![rows, groups], placing }
    }
}

/// Stores numbers of the type `R`.
pub(crate) fn write_scales<R: Rounding>(scales: &[f32], out: &mut [u8]) {
    for (scale, out) in scales.iter().zip(out.chunks_exact_mut(R::DTYPE.bytes())) {
        R::write(*scale, out);
    }
}

/// Reads what [`write_scales`] stored.
pub(crate) fn read_scales<R: Rounding>(bytes: &[u8], scales: &mut [f32]) {
    for (scale, bytes) in scales.iter_mut().zip(bytes.chunks_exact(R::DTYPE.bytes())) {
        *scale = R::read(bytes);
    }
}
