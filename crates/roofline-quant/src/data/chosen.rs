//! Codes, scales and zero points that a method has chosen for a matrix, in place of a coding's own.

use crate::coding::grid::Grid;

/// What was chosen for a whole matrix: codes of every weight, and a scale and a zero point for every group of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    /// Codes, row after row.
    pub codes: Vec<u8>,
    /// Scales, row after row.
    pub scales: Vec<f32>,
    /// Zero points, row after row.
    pub zeros: Vec<f32>,
}

/// The same of some rows.
#[derive(Clone, Copy, Debug)]
pub struct ChosenRows<'a> {
    /// Codes, row after row.
    pub codes: &'a [u8],
    /// Scales, row after row.
    pub scales: &'a [f32],
    /// Zero points, row after row.
    pub zeros: &'a [f32],
}

impl Chosen {
    /// Room for a matrix of that many rows.
    pub(crate) fn room(rows: usize, columns: usize, group: usize) -> Self {
        let groups = rows * (columns / group);
        Self { codes: vec![0; rows * columns], scales: vec![0.0; groups], zeros: vec![0.0; groups] }
    }

    /// All of its rows.
    pub(crate) fn rows(&self) -> ChosenRows<'_> {
        ChosenRows { codes: &self.codes, scales: &self.scales, zeros: &self.zeros }
    }

    /// What it stands for.
    pub(crate) fn values(&self, grid: &dyn Grid, columns: usize) -> Vec<f32> {
        let group = grid.group(columns);
        let mut values = vec![0.0; self.codes.len()];
        let parameters = self.scales.iter().zip(&self.zeros);
        let groups = values.chunks_exact_mut(group).zip(self.codes.chunks_exact(group)).zip(parameters);
        for ((values, codes), (scale, zero)) in groups {
            grid.values(codes, *scale, *zero, values);
        }
        values
    }
}

impl ChosenRows<'_> {
    /// What was chosen for row `at` of these.
    pub(crate) fn row(&self, at: usize, columns: usize, groups: usize) -> Self {
        Self {
            codes: &self.codes[at * columns..][..columns],
            scales: &self.scales[at * groups..][..groups],
            zeros: &self.zeros[at * groups..][..groups],
        }
    }
}
