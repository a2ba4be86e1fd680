//! SmoothQuant: a few inputs are far larger than all others, and one scale for a token leaves those few codes. Divided by a
//! factor per channel they come closer, and the weights, which are easy to round, take the factors in their place (Xiao et
//! al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models", arXiv 2211.10438).
//!
//! `s_j = max|X_j|^alpha / max|W_j|^(1 - alpha)`, over all products that read the inputs.

use super::fold::{Fold, Tensors};
use crate::Result;

/// The least factor: a channel that is never used has none of its own.
const LEAST: f64 = 1e-5;

/// The factors of a place for them.
pub(super) fn factors(fold: &Fold<'_>, tensors: &Tensors<'_>, alpha: f64, threads: usize) -> Result<Option<Vec<f32>>> {
    let seen: Vec<_> = fold.readers.iter().filter_map(|reader| reader.moments).collect();
    let Some(first) = seen.first() else { return Ok(None) };
    let columns = first.columns;
    let mut inputs = vec![0f32; columns];
    for moments in &seen {
        inputs.iter_mut().zip(&moments.peaks).for_each(|(most, peak)| *most = most.max(*peak));
    }
    let mut weights = vec![0f32; columns];
    let pieces = fold.readers.iter().flat_map(|reader| tensors.pieces(&reader.module, reader.expert));
    for piece in pieces {
        let Some(numbers) = tensors.numbers(piece, threads)? else { continue };
        for row in numbers.chunks_exact(columns) {
            weights.iter_mut().zip(row).for_each(|(most, weight)| *most = most.max(weight.abs()));
        }
    }
    Ok(Some(inputs.iter().zip(&weights).map(|(input, weight)| factor(*input, *weight, alpha)).collect()))
}

/// The factor of a channel, by its largest input and its largest weight.
fn factor(input: f32, weight: f32, alpha: f64) -> f32 {
    let (input, weight) = (f64::from(input).max(LEAST), f64::from(weight).max(LEAST));
    (input.powf(alpha) / weight.powf(1.0 - alpha)).max(LEAST) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_factors() {
        // Half way, inputs of 64 and weights of 4 meet at 16.
        assert_eq!(factor(64.0, 4.0, 0.5), 4.0);
        assert_eq!((64.0 / factor(64.0, 4.0, 0.5), 4.0 * factor(64.0, 4.0, 0.5)), (16.0, 16.0));
        // All of the range goes to the weights, or none of it: one side then reaches one.
        assert_eq!(factor(64.0, 4.0, 1.0), 64.0);
        assert_eq!(factor(64.0, 4.0, 0.0), 0.25);
        // A channel that nothing comes through, or whose weights are zero, has a number all the same.
        assert!(factor(0.0, 4.0, 0.5) > 0.0 && factor(64.0, 0.0, 0.5).is_finite());
    }
}
