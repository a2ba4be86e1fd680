//! Element-wise kernels, one element at a time.

/// What RMSNorm adds to the mean square, where a kernel is timed alone.
pub(crate) const EPSILON: f32 = 1e-5;
/// The base of rotary angles in most models.
pub(crate) const BASE: f64 = 10_000.0;
/// Positions that are rotated to: tokens beyond it start over, so that the table stays in the cache as it does in use.
pub(crate) const POSITIONS: usize = 512;

/// RMSNorm of one row.
pub(crate) fn norm(row: &[f32], weight: &[f32], epsilon: f64) -> Vec<f64> {
    let mean = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / row.len() as f64;
    let factor = 1.0 / (mean + epsilon).sqrt();
    row.iter().zip(weight).map(|(value, weight)| f64::from(*value) * factor * f64::from(*weight)).collect()
}

/// LayerNorm of one row.
#[cfg(test)]
pub(crate) fn layer_norm(row: &[f32], weight: &[f32], bias: &[f32], epsilon: f64) -> Vec<f64> {
    let mean = row.iter().map(|value| f64::from(*value)).sum::<f64>() / row.len() as f64;
    let variance = row.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / row.len() as f64;
    let factor = 1.0 / (variance + epsilon).sqrt();
    let affine = weight.iter().zip(bias);
    let scaled = row.iter().zip(affine);
    scaled.map(|(value, (w, b))| (f64::from(*value) - mean) * factor * f64::from(*w) + f64::from(*b)).collect()
}

/// Softmax of one row.
pub(crate) fn softmax(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().fold(f64::NEG_INFINITY, |max, value| max.max(f64::from(*value)));
    let powers: Vec<f64> = row.iter().map(|value| (f64::from(*value) - largest).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

/// A head turned to `position`: feature `i` with feature `i + d/2`, by `position * base^(-2i/d)`.
pub(crate) fn rope(head: &[f32], base: f64, position: usize) -> Vec<f64> {
    let frequencies: Vec<f64> = (0..head.len() / 2).map(|at| base.powf(-2.0 * at as f64 / head.len() as f64)).collect();
    rope_with(head, &frequencies, 1.0, position)
}

/// The same by frequencies and a factor of one's choice; features past those that are turned stay.
pub(crate) fn rope_with(head: &[f32], frequencies: &[f64], factor: f64, position: usize) -> Vec<f64> {
    let half = frequencies.len();
    let turned = |at: usize| {
        let angle = position as f64 * frequencies[at % half];
        let (cos, sin) = (factor * angle.cos(), factor * angle.sin());
        let (low, high) = (f64::from(head[at % half]), f64::from(head[at % half + half]));
        if at < half { low * cos - high * sin } else { high * cos + low * sin }
    };
    (0..2 * half).map(turned).chain(head[2 * half..].iter().map(|value| f64::from(*value))).collect()
}

/// `x / (1 + e^-x)`.
pub(crate) fn silu(value: f32) -> f64 {
    let value = f64::from(value);
    value / (1.0 + (-value).exp())
}

/// `silu(gate) * up`.
pub(crate) fn gated(gate: f32, up: f32) -> f64 {
    silu(gate) * f64::from(up)
}

/// The sum of a layer's output and the residual stream.
pub(crate) fn residual(x: f32, y: f32) -> f64 {
    f64::from(x) + f64::from(y)
}
