//! The 8-bit dynamic data type that double quantization stores block maxima in.
//!
//! Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861), section 1.3: a decade exponent
//! and a linear fraction share seven bits, so decade `10^-i` is cut into `2^(6-i)` steps between 0.1 and 1, and each
//! step is represented by its middle. With 0 and 1 that makes 256 values.

use std::sync::LazyLock;

/// The 256 values, ascending from almost -1 to 1, to the last bit those of bitsandbytes' `create_dynamic_map`: edges are
/// FP32 numbers, counted from the nearer end by PyTorch's `linspace`, and so are their middles.
static VALUES: LazyLock<[f32; 256]> = LazyLock::new(|| {
    let mut values = vec![0.0, 1.0];
    for decade in 0..7 {
        let steps = 1 << decade;
        let power = 10f64.powi(decade - 6) as f32;
        let step = (1.0 - 0.1f32) / steps as f32;
        let edge = |at: i32| {
            let from_start = f64::from(0.1f32) + f64::from(step) * f64::from(at);
            let from_end = 1.0 - f64::from(step) * f64::from(steps - at);
            (if at < (steps + 1) / 2 { from_start } else { from_end }) as f32
        };
        for at in 0..steps {
            let middle = power * f32::midpoint(edge(at), edge(at + 1));
            values.extend([middle, -middle]);
        }
    }
    values.sort_by(f32::total_cmp);
    std::array::from_fn(|at| values[at])
});

/// The 256 values of the dynamic type, ascending.
pub fn dynamic_values() -> &'static [f32; 256] {
    &VALUES
}

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
