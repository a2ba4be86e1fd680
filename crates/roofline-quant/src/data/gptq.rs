//! GPTQ: weights are rounded one input channel after another, and what each loses is made up for in the channels that are
//! still to come, as far as inputs go together in a text (Frantar et al., "GPTQ: Accurate Post-Training Quantization for
//! Generative Pre-trained Transformers", arXiv 2210.17323).
//!
//! With `H = X^T X` and `U^T U = H^-1`, rounding channel `i` of a row by `w_i - q_i` changes every later channel `j` by
//! `-(w_i - q_i) / U_ii * U_ij`. Rows do not depend on each other, so threads take some each. Within a block of channels
//! changes are made at once; channels after it get those of the whole block together.
//!
//! By default channels go by descending `H_ii`: those that matter most are rounded first, when there is most left to make up
//! for them in. Groups stay those of neighbours, with scales chosen before the first is rounded ("static groups"), so that
//! nothing of the order is stored.

use super::{
    chosen::Chosen,
    factor::inverse_factor,
    lines::{STRIP, add},
    moments::Moments,
    share::share,
};
use crate::coding::Grid;

/// Channels that are rounded before those after them are changed.
const BLOCK: usize = 128;
/// Rows that a thread takes at once.
const BAND: usize = 16;
/// How often damping is raised tenfold where a factorization fails.
const TRIES: i32 = 3;

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
    factor: Vec<f32>,
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
            let damping = damping * 10f64.powi(step);
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
        // The triangle and its inverse in FP64, and `U`.
        (8 + 4 + 4) * (columns as u64).pow(2)
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
        // In the order in which they are rounded.
        let mut left: Vec<f32> =
            weights.chunks_exact(columns).flat_map(|row| self.order.iter().map(|channel| row[*channel])).collect();
        let fixed = self.static_groups || grid.by_rows();
        if fixed {
            let rows = scales.chunks_exact_mut(groups).zip(zeros.chunks_exact_mut(groups));
            for (weights, (scales, zeros)) in weights.chunks_exact(columns).zip(rows) {
                grid.choose(weights, &self.importance, scales, zeros);
            }
        }
        // A group whose scale is chosen on the way lies in one block, or starts with one.
        let block = if BLOCK.is_multiple_of(group) || group.is_multiple_of(BLOCK) { BLOCK } else { group };
        let mut owing = vec![0.0; rows * block];
        for from in (0..columns).step_by(block) {
            let until = (from + block).min(columns);
            for at in from..until {
                let (channel, changes) = (self.order[at], &self.factor[at * columns..][..until]);
                for row in 0..rows {
                    let left = &mut left[row * columns..][..until.max((at + group).min(columns))];
                    let own = row * groups + channel / group;
                    if !fixed && at.is_multiple_of(group) {
                        let (scale, zero) = (&mut scales[own..=own], &mut zeros[own..=own]);
                        grid.choose(&left[at..at + group], &self.importance[at..at + group], scale, zero);
                    }
                    let weight = left[at];
                    let (code, value) = grid.round(weight, scales[own], zeros[own]);
                    codes[row * columns + channel] = code;
                    let owed = (value - weight) / changes[at];
                    owing[row * block + at - from] = owed;
                    for (left, change) in left[at + 1..until].iter_mut().zip(&changes[at + 1..]) {
                        *left += owed * change;
                    }
                }
            }
            let factor = &self.factor[from * columns..];
            for strip in (until..columns).step_by(STRIP) {
                let width = STRIP.min(columns - strip);
                for row in 0..rows {
                    let left = &mut left[row * columns + strip..][..width];
                    add(left, &owing[row * block..][..until - from], &factor[strip..], columns);
                }
            }
        }
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
