//! What a text brings to the products of a model: where methods that go by data get theirs.
//!
//! A text runs through a model layer by layer. What all samples hand from one layer to the next is kept, and the weights of
//! one layer are in memory at a time. Whoever observes hears the inputs of every product of a layer, may put other numbers
//! in the place of its weights, and lets the samples pass through what it made of them, so that the next layer sees inputs
//! with the errors of those before it.
//!
//! This crate says what it needs to hear; who runs models says it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{Result, rows::InMemory};

/// Numbers in the place of a checkpoint's, by the names of tensors.
pub type Replaced = BTreeMap<String, Arc<InMemory>>;

/// The inputs that a sample brings to a product.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'s> {
    /// The modules that multiply them, `model.layers.0.self_attn.q_proj` for one: several where products share an input.
    pub modules: &'s [String],
    /// Which expert of the layer they are, where they are experts.
    pub expert: Option<usize>,
    /// Which tokens of the sample these are: all of them, but for experts, which see those that are sent to them.
    pub tokens: &'s [usize],
    /// Input channels.
    pub columns: usize,
    /// A row for each token.
    pub values: &'s [f32],
}

/// What is done with a layer.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'p> {
    /// Which layer.
    pub layer: usize,
    /// What stands in the place of its weights.
    pub replaced: &'p Replaced,
    /// Whether its outputs become the inputs of the next.
    pub moves_on: bool,
}

/// A model that samples of a text run through. Every sample brings what it brings in the same order, and with the same bits
/// whatever the number of threads.
pub trait Observed {
    /// How many layers there are.
    fn layers(&self) -> usize;

    /// Tokens of each sample.
    fn samples(&self) -> Vec<usize>;

    /// Bytes of memory that it holds, at most, beside what observers keep.
    fn memory(&self) -> u64;

    /// Runs every sample through a layer that all samples have reached. `each` hears of the inputs of its products, sample
    /// after sample.
    fn run(&mut self, pass: Pass<'_>, each: &mut dyn FnMut(Seen<'_>) -> Result<()>) -> Result<()>;
}
