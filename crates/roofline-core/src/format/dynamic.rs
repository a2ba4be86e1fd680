//! The 8-bit dynamic data type that double quantization stores block maxima in.
//!
//! Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861), section 1.3: a decade exponent
//! and a linear fraction share seven bits, so decade `10^-i` is cut into `2^(6-i)` steps between 0.1 and 1, and each
//! step is represented by its middle. With 0 and 1 that makes 256 values.

use std::sync::LazyLock;

/// The 256 values, ascending from almost -1 to 1.
static VALUES: LazyLock<Vec<f32>> = LazyLock::new(|| {
    let mut values = vec![0.0, 1.0];
    for decade in 0..7 {
        let steps = 1 << decade;
        let power = 10f64.powi(decade - 6);
        for step in 0..steps {
            let edge = |i: i32| 0.1 + 0.9 * f64::from(i) / f64::from(steps);
            let middle = power * f64::midpoint(edge(step), edge(step + 1));
            values.extend([middle as f32, -middle as f32]);
        }
    }
    values.sort_by(f32::total_cmp);
    values
});

/// Index of the nearest value; ties go down.
pub(super) fn encode(value: f32) -> u8 {
    let above = VALUES.partition_point(|known| *known < value).min(255);
    let down = above > 0 && value - VALUES[above - 1] <= VALUES[above] - value;
    (above - usize::from(down)) as u8
}

/// The value of an index.
pub(super) fn decode(code: u8) -> f32 {
    VALUES[code as usize]
}
