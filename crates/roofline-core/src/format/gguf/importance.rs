//! What the error of a weight counts where the importance of its input is known: `importance * sqrt(spread + x^2)`, so that large
//! weights count more than the small ones beside them, and none counts nothing.

/// The mean of `x^2`, summed in order.
#[inline(always)]
pub(super) fn mean_square(x: &[f32]) -> f32 {
    let mut sum = 0.0;
    for x in x {
        sum += x * x;
    }
    sum / x.len() as f32
}

/// What the errors of `x` count.
#[inline(always)]
pub(super) fn weigh(x: &[f32], importance: &[f32], spread: f32, weights: &mut [f32]) {
    for ((w, x), importance) in weights.iter_mut().zip(x).zip(importance) {
        *w = importance * (spread + x * x).sqrt();
    }
}

/// The sums of runs of `N` weights, each in order.
#[inline(always)]
pub(super) fn sums<const N: usize, const RUNS: usize>(weights: &[f32]) -> [f32; RUNS] {
    let mut sums = [0.0; RUNS];
    for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(N)) {
        for weight in weights {
            *sum += weight;
        }
    }
    sums
}
