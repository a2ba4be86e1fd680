//! GPTQ: weights are rounded one input channel after another, and what each loses is made up for in the channels that are
//! still to come, as far as inputs go together in a text (Frantar et al., "GPTQ: Accurate Post-Training Quantization for
//! Generative Pre-trained Transformers", arXiv 2210.17323).
//!
//! With `H = X^T X` and `U^T U = H^-1`, rounding channel `i` of a row by `w_i - q_i` changes every later channel `j` by
//! `-(w_i - q_i) / U_ii * U_ij`. Rows do not depend on each other, so threads take some each. Channels of one panel of `U`
//! are changed at once; a panel gets the changes of all channels before it together, when it comes.
//!
//! By default channels go by descending `H_ii`: those that matter most are rounded first, when there is most left to make up
//! for them in. Groups stay those of neighbours, with scales chosen before the first is rounded ("static groups"), so that
//! nothing of the order is stored.

use std::ops::Range;

use super::{
    chosen::Chosen,
    factor::{UpperFactor, inverse_factor},
    moments::Moments,
    panels::{ROWS, WIDTH, add},
    share::share,
};
use crate::coding::Grid;

/// Rows that a thread takes at once, which read `U` together.
const BAND: usize = 32;
/// How often a factorization that fails is tried with damping raised tenfold, and from what at least.
const TRIES: i32 = 3;
const LEAST: f64 = 1e-3;

/// In which order channels are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Those with the largest inputs first; scales of groups are chosen beforehand.
    Activations,
    /// As they lie; the scales of a group are chosen when its first channel comes.
    Natural,
}

/// How errors are made up for: what all products of one input share.
pub(crate) struct Compensation {
    columns: usize,
    /// Which channel comes when.
    order: Vec<usize>,
    static_groups: bool,
    /// `U`, in that order.
    factor: UpperFactor,
    /// How much an error in each channel matters for scales.
    pub(crate) importance: Vec<f32>,
    /// Channels that were zero in every token.
    pub(crate) dead: usize,
    /// What was added to the diagonal, as a part of its mean.
    pub(crate) damping: f64,
}

impl Compensation {
    /// From what was seen; none where no damping makes it regular.
    pub(crate) fn new(moments: &Moments, order: Order, damping: f64, threads: usize) -> Option<Self> {
        let columns = moments.columns;
        let importance = moments.importance();
        let mean = importance.iter().map(|own| f64::from(*own)).sum::<f64>() / columns.max(1) as f64;
        if !(mean.is_finite() && mean > 0.0) {
            return None;
        }
        let mut channels: Vec<usize> = (0..columns).collect();
        if order == Order::Activations {
            // Of equals the first: the order is the same everywhere.
            channels.sort_by(|a, b| importance[*b].total_cmp(&importance[*a]));
        }
        let dead = importance.iter().filter(|own| **own == 0.0).count();
        (0..TRIES).find_map(|step| {
            let damping = if step == 0 { damping } else { damping.max(LEAST) * 10f64.powi(step) };
            let at = |i: usize, j: usize| {
                let (own, other) = (channels[i], channels[j]);
                let on = if i == j { damping * mean } else { 0.0 };
                // A channel that nothing came through takes part in nothing: its weights are rounded to nearest.
                let dead = if i == j && importance[own] == 0.0 { mean } else { 0.0 };
                moments.product(own, other) + on + dead
            };
            let factor = inverse_factor(columns, at, threads)?;
            let static_groups = order == Order::Activations;
            let (order, importance) = (channels.clone(), moments.importance_for_scales());
            Some(Self { columns, order, static_groups, factor, importance, dead, damping })
        })
    }

    /// Bytes that it takes, and what making it takes beside.
    pub(crate) fn bytes(columns: usize) -> u64 {
        // The triangle and its inverse in FP64.
        (8 + 4) * (columns as u64).pow(2) + UpperFactor::bytes(columns as u64)
    }

    /// The codes of a matrix.
    pub(crate) fn round(&self, weights: &[f32], grid: &dyn Grid, threads: usize) -> Chosen {
        let (columns, group) = (self.columns, grid.group(self.columns));
        let groups = columns / group;
        let mut chosen = Chosen::room(weights.len() / columns, columns, group);
        let bands = chosen
            .codes
            .chunks_mut(BAND * columns)
            .zip(chosen.scales.chunks_mut(BAND * groups))
            .zip(chosen.zeros.chunks_mut(BAND * groups))
            .zip(weights.chunks(BAND * columns));
        let bands = bands.map(|(((codes, scales), zeros), weights)| Band { codes, scales, zeros, weights }).collect();
        share(threads, bands, |band| self.round_band(band, grid));
        chosen
    }

    fn round_band(&self, band: Band<'_>, grid: &dyn Grid) {
        let (columns, group) = (self.columns, grid.group(self.columns));
        let groups = columns / group;
        let Band { codes, scales, zeros, weights } = band;
        let rows = weights.len() / columns;
        let mut left = Left::new(weights, &self.order);
        let fixed = self.static_groups || grid.by_rows();
        if fixed {
            let rows = scales.chunks_exact_mut(groups).zip(zeros.chunks_exact_mut(groups));
            for (weights, (scales, zeros)) in weights.chunks_exact(columns).zip(rows) {
                grid.choose(weights, &self.importance, scales, zeros);
            }
        }
        for (at, channel) in self.order.iter().copied().enumerate() {
            let (panel, place) = (at / WIDTH, at % WIDTH);
            left.settle(panel, at, &self.factor);
            if !fixed && at.is_multiple_of(group) {
                (panel + 1..(at + group).div_ceil(WIDTH)).for_each(|panel| left.settle(panel, at, &self.factor));
                for row in 0..rows {
                    let own = row * groups + at / group;
                    let (scale, zero) = (&mut scales[own..=own], &mut zeros[own..=own]);
                    grid.choose(&left.row(row, at..at + group), &self.importance[at..at + group], scale, zero);
                }
            }
            let changes = &self.factor.panel(panel)[at];
            for row in 0..rows {
                let own = row * groups + channel / group;
                let weights = &mut left.weights[panel * rows + row];
                let weight = weights[place];
                let (code, value) = grid.round(weight, scales[own], zeros[own]);
                codes[row * columns + channel] = code;
                let owed = (value - weight) / changes[place];
                left.owed[row / ROWS * columns + at][row % ROWS] = owed;
                weights.iter_mut().zip(changes).for_each(|(left, change)| *left += owed * change);
            }
            left.settled[panel] = at + 1;
        }
    }
}

/// What is left of some rows, in the order in which channels are rounded.
struct Left {
    rows: usize,
    columns: usize,
    /// The weights of a panel's channels, row after row.
    weights: Vec<[f32; WIDTH]>,
    /// What every channel that was rounded owes to those after it, four rows together.
    owed: Vec<[f32; ROWS]>,
    /// The channels whose changes the weights of each panel have.
    settled: Vec<usize>,
}

impl Left {
    fn new(weights: &[f32], order: &[usize]) -> Self {
        let columns = order.len();
        let (rows, panels) = (weights.len() / columns, columns.div_ceil(WIDTH));
        let mut own = vec![[0.0; WIDTH]; panels * rows];
        for (row, weights) in weights.chunks_exact(columns).enumerate() {
            for (at, channel) in order.iter().enumerate() {
                own[at / WIDTH * rows + row][at % WIDTH] = weights[*channel];
            }
        }
        let owed = vec![[0.0; ROWS]; rows.div_ceil(ROWS) * columns];
        Self { rows, columns, weights: own, owed, settled: vec![0; panels] }
    }

    /// Changes the weights of a panel by what all channels before `until` owe.
    fn settle(&mut self, panel: usize, until: usize, factor: &UpperFactor) {
        let since = std::mem::replace(&mut self.settled[panel], until);
        if since >= until {
            return;
        }
        let changes = &factor.panel(panel)[since..until];
        let weights = &mut self.weights[panel * self.rows..][..self.rows];
        for (weights, owed) in weights.chunks_mut(ROWS).zip(self.owed.chunks(self.columns)) {
            let mut sums = [[0.0; WIDTH]; ROWS];
            sums[..weights.len()].copy_from_slice(weights);
            add(&mut sums, &owed[since..until], changes);
            weights.copy_from_slice(&sums[..weights.len()]);
        }
    }

    /// Some channels of a row.
    fn row(&self, row: usize, channels: Range<usize>) -> Vec<f32> {
        channels.map(|at| self.weights[at / WIDTH * self.rows + row][at % WIDTH]).collect()
    }
}

/// Rows that one thread rounds.
struct Band<'b> {
    codes: &'b mut [u8],
    scales: &'b mut [f32],
    zeros: &'b mut [f32],
    weights: &'b [f32],
}

#[cfg(test)]
mod tests;
