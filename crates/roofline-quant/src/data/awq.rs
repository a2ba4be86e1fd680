//! AWQ: the few channels with large inputs get finer steps, because a group's steps are as wide as its largest weight and
//! these are made larger (Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv 2306.00978).
//!
//! A channel's factor is a power of the mean magnitude of its inputs. Of twenty powers the one is taken with which the
//! outputs of all products that read them lose least; then every group is clipped where that loses less. What outputs lose is
//! computed from `X^T X`, as exactly as from the inputs themselves: `sum |d x|^2 = d X^T X d^T` for a row of errors `d`.

use std::{
    ptr,
    sync::{Mutex, PoisonError},
};

use super::{
    chosen::Chosen,
    fold::{Fold, Reader, Tensors},
    moments::Moments,
    panels::{Panels, ROWS, WIDTH, add, turned},
    share::share,
};
use crate::{Result, coding::Grid};

/// Powers that are tried: 0 to 1 in twentieths.
const POWERS: usize = 20;
/// Rows of a product that powers are judged by, evenly spread.
const JUDGED: usize = 512;
/// Rows that a thread takes at once.
const BAND: usize = 8;

/// A product as powers are judged by it.
struct Judged<'m> {
    /// Some of its rows.
    weights: Vec<f32>,
    /// How many each of them stands for.
    each: f64,
    grid: Box<dyn Grid>,
    moments: &'m Moments,
    /// `X^T X`, all of it.
    products: &'m Panels<WIDTH>,
}

/// Bytes that judging a product takes: `X^T X`, twice while it is put in panels, and the rows that are judged by.
pub(super) fn bytes(columns: usize) -> u64 {
    let columns = columns as u64;
    4 * columns * (2 * columns + 2 * JUDGED as u64)
}

/// The factors of a place for them that lower the error of outputs most; none where no power lowers it.
pub(super) fn factors(fold: &Fold<'_>, tensors: &Tensors<'_>, threads: usize) -> Result<Option<Vec<f32>>> {
    let mut judged = Vec::new();
    for Reader { module, expert, moments } in &fold.readers {
        let Some(moments) = moments else { continue };
        let rounded = tensors.pieces(module, *expert).filter(|piece| tensors.grid(piece).is_some());
        judged.extend(rounded.map(|piece| (piece, *moments)));
    }
    let Some((_, first)) = judged.first() else { return Ok(None) };
    let columns = first.columns;
    let tokens: f64 = judged.iter().map(|(_, moments)| moments.tokens as f64).sum();
    let mut magnitudes = vec![0.0; columns];
    for (_, moments) in &judged {
        let part = moments.tokens as f64 / tokens;
        for (sum, magnitude) in magnitudes.iter_mut().zip(moments.mean_magnitudes()) {
            *sum += part * magnitude;
        }
    }
    let candidate = |power: usize| powers(&magnitudes, power as f64 / POWERS as f64);
    let candidates: Vec<Vec<f32>> = (0..POWERS).map(candidate).collect();
    let mut losses = [0.0; POWERS];
    // One product after the other, since those of many experts would not fit; neighbours read the same inputs.
    let mut seen: Option<(&Moments, Panels<WIDTH>)> = None;
    for (piece, moments) in judged {
        let (Some(grid), Some(all)) = (tensors.grid(piece), tensors.numbers(piece, threads)?) else { continue };
        let by = (piece.origin.rows.len() / JUDGED).max(1);
        let weights: Vec<f32> = all.chunks_exact(columns).step_by(by).flatten().copied().collect();
        let each = all.len() as f64 / weights.len().max(1) as f64;
        if seen.as_ref().is_none_or(|(own, _)| !ptr::eq(*own, moments)) {
            seen = None;
        }
        let (_, products) = seen.get_or_insert_with(|| (moments, moments.all_products()));
        let judged = Judged { weights, each, grid, moments, products };
        for (loss, candidate) in losses.iter_mut().zip(&candidates) {
            *loss += judged.lost(candidate, threads);
        }
    }
    let best = (1..POWERS).fold(0, |best, power| if losses[power] < losses[best] { power } else { best });
    Ok((best > 0).then(|| candidate(best)))
}

/// Magnitudes to a power, about one: the geometric mean of the largest and the least is one.
fn powers(magnitudes: &[f64], power: f64) -> Vec<f32> {
    let raised: Vec<f64> = magnitudes.iter().map(|magnitude| magnitude.powf(power).max(1e-4)).collect();
    let largest = raised.iter().copied().fold(0.0, f64::max);
    let least = raised.iter().copied().fold(f64::INFINITY, f64::min);
    let middle = (largest * least).sqrt();
    raised.iter().map(|own| (own / middle) as f32).collect()
}

impl Judged<'_> {
    /// What outputs lose with these factors: a sum of squares over tokens.
    fn lost(&self, factors: &[f32], threads: usize) -> f64 {
        let columns = self.moments.columns;
        let importance = scaled_back(self.moments.importance_for_scales(), factors);
        let bands: Vec<(usize, &[f32])> = self.weights.chunks(BAND * columns).enumerate().collect();
        // Added in the order of rows, whoever computed them.
        let sums = Mutex::new(vec![0.0; bands.len()]);
        share(threads, bands, |(band, rows)| {
            let lost = |rows: &[f32]| self.lost_in_rows(rows, factors, &importance);
            let sum: f64 = rows.chunks(ROWS * columns).map(lost).sum();
            sums.lock().unwrap_or_else(PoisonError::into_inner)[band] = sum;
        });
        let sum: f64 = sums.into_inner().unwrap_or_else(PoisonError::into_inner).iter().sum();
        self.each * self.moments.tokens as f64 * sum
    }

    /// The sum of `d X^T X d^T` for the errors `d` of a tile's rows; `importance` is that of their inputs over the factors.
    fn lost_in_rows(&self, rows: &[f32], factors: &[f32], importance: &[f32]) -> f64 {
        let columns = self.moments.columns;
        let errors = rows.chunks_exact(columns).flat_map(|row| self.errors(row, factors, importance));
        let errors: Vec<f32> = errors.collect();
        let left = turned(&errors, columns);
        let mut sum = 0.0;
        for (panel, own) in left.chunks(WIDTH).enumerate() {
            let mut tile = [[0.0; WIDTH]; ROWS];
            add(&mut tile, &left, self.products.panel(panel));
            for (column, errors) in own.iter().enumerate() {
                sum += errors.iter().zip(&tile).map(|(error, sums)| f64::from(sums[column] * error)).sum::<f64>();
            }
        }
        sum
    }

    /// What the weights of a row lose by being rounded times factors.
    fn errors(&self, row: &[f32], factors: &[f32], importance: &[f32]) -> Vec<f32> {
        let (columns, group) = (row.len(), self.grid.group(row.len()));
        let weights: Vec<f32> = row.iter().zip(factors).map(|(weight, factor)| weight * factor).collect();
        let (mut scales, mut zeros) = (vec![0.0; columns / group], vec![0.0; columns / group]);
        self.grid.reach(&weights, importance, &mut scales, &mut zeros);
        let mut errors = vec![0.0; columns];
        for (at, (weights, errors)) in weights.chunks_exact(group).zip(errors.chunks_exact_mut(group)).enumerate() {
            for ((error, weight), factor) in errors.iter_mut().zip(weights).zip(&factors[at * group..]) {
                *error = (weight - self.grid.round(*weight, scales[at], zeros[at]).1) / factor;
            }
        }
        errors
    }
}

/// The importance of inputs that weights times factors are given: what is multiplied there is divided here.
pub(super) fn scaled_back(mut importance: Vec<f32>, factors: &[f32]) -> Vec<f32> {
    for (own, factor) in importance.iter_mut().zip(factors) {
        *own /= factor * factor;
    }
    importance
}

/// Codes of a matrix of which every group is clipped where that lowers the error of outputs, by the importance of inputs.
pub(super) fn clipped(weights: &[f32], importance: &[f32], grid: &dyn Grid, threads: usize) -> Chosen {
    let columns = importance.len();
    let group = grid.group(columns);
    let groups = columns / group;
    let mut chosen = Chosen::room(weights.len() / columns, columns, group);
    let rows = chosen
        .codes
        .chunks_mut(columns)
        .zip(chosen.scales.chunks_mut(groups))
        .zip(chosen.zeros.chunks_mut(groups))
        .zip(weights.chunks(columns));
    share(threads, rows.collect(), |(((codes, scales), zeros), weights)| {
        grid.choose(weights, importance, scales, zeros);
        for (at, (codes, weights)) in codes.chunks_exact_mut(group).zip(weights.chunks_exact(group)).enumerate() {
            for (code, weight) in codes.iter_mut().zip(weights) {
                *code = grid.round(*weight, scales[at], zeros[at]).0;
            }
        }
    });
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Dtype, Method,
        coding::compressed_tensors::{Scheme, coding},
        data::moments::tests::moments,
    };

    fn grid() -> Box<dyn Grid> {
        let scheme = Scheme::Int { bits: 4, group: Some(32), zero: false };
        coding(scheme, Dtype::F32, Method::Rtn).unwrap().grid().unwrap()
    }

    #[test]
    fn powers_are_about_one() {
        let found = powers(&[1.0, 4.0, 16.0], 0.5);
        assert!(found.iter().zip([0.5, 1.0, 2.0]).all(|(found, want)| (found - want).abs() < 1e-6), "{found:?}");
        assert_eq!(powers(&[3.0, 5.0], 0.0), [1.0, 1.0]);
    }

    /// One input a hundred times as large as the others, with weights a tenth of theirs: made ten times larger these get ten
    /// times finer steps, and no others wider ones. Errors by `X^T X` are those of the outputs themselves.
    #[test]
    fn channels_with_large_inputs_get_finer_steps() {
        let (columns, tokens) = (64, 50);
        let number =
            |at: usize| ((at * 7919 % 1009) as f32 / 504.5 - 1.0) * if at % columns == 9 { 100.0 } else { 1.0 };
        let x: Vec<f32> = (0..columns * tokens).map(number).collect();
        let weight =
            |at: usize| ((at * 104_729 % 997) as f32 / 498.5 - 1.0) * if at % columns == 9 { 0.1 } else { 1.0 };
        let weights: Vec<f32> = (0..columns * 6).map(weight).collect();
        let moments = moments(columns, &x);
        let products = moments.all_products();
        let judged =
            Judged { weights: weights.clone(), each: 1.0, grid: grid(), moments: &moments, products: &products };
        let ones = vec![1.0; columns];
        let plain = judged.lost(&ones, 1);
        let mut direct = 0.0;
        for row in weights.chunks_exact(columns) {
            let rounded: Vec<f32> = row
                .chunks_exact(32)
                .flat_map(|group| {
                    let grid = grid();
                    let (mut scale, mut zero) = ([0.0], [0.0]);
                    grid.reach(group, group, &mut scale, &mut zero);
                    group.iter().map(|weight| grid.round(*weight, scale[0], zero[0]).1).collect::<Vec<_>>()
                })
                .collect();
            for x in x.chunks_exact(columns) {
                let error: f64 = row.iter().zip(&rounded).zip(x).map(|((w, q), x)| f64::from((w - q) * x)).sum();
                direct += error * error;
            }
        }
        assert!((plain / direct - 1.0).abs() < 1e-3, "{plain} {direct}");
        let finer = powers(&moments.mean_magnitudes(), 0.5);
        let less = judged.lost(&finer, 1) / plain;
        assert!(less < 0.1, "{less}");
        assert_eq!(judged.lost(&finer, 3), judged.lost(&finer, 1));
    }
}
