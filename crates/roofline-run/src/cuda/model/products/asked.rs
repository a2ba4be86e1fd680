//! What is asked of products.

/// Which expert each row of outputs is of, by memory on the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// An integer for each row of outputs.
    pub address: u64,
    /// Rows of outputs.
    pub visits: usize,
    /// Rows of outputs that share a row of inputs.
    pub active: usize,
}

/// A norm of inputs that is still to be done: they were multiplied by its weights, and not divided by their root mean square.
#[derive(Clone, Copy, Debug)]
pub struct Unnormed {
    /// For each row, sums of squares of every 16 numbers.
    pub squares: u64,
    /// What is added to the mean square.
    pub epsilon: f32,
}

/// Where outputs are added to the stream. Rows are whole sixteens.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// The stream, in FP32.
    pub from: u64,
    /// Where it goes on, elsewhere: a product may be asked for twice.
    pub to: u64,
    /// Weights of the norm behind it, which outputs are multiplied by.
    pub norm: u64,
    /// Where the rest of that norm is left, as in [`Unnormed`].
    pub squares: u64,
}

/// A product `y = x W^T`, beside its weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linear {
    /// Rows of x.
    pub m: usize,
    /// 16-bit numbers.
    pub x: u64,
    /// 16-bit numbers too, unless `wide`.
    pub y: u64,
    /// Whether outputs are FP32.
    pub wide: bool,
    /// Whether the gate is applied within, where it [can be](super::Products::gates).
    pub gated: bool,
    /// What is left of a norm of x; products of [few rows](super::Products::fuses) only.
    pub unnormed: Option<Unnormed>,
    /// What outputs are added to; likewise.
    pub sum: Option<Sum>,
}
