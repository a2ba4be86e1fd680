//! What a model on a GPU is made of: memory, weights in the order of their kernels, products of any number of rows, and the
//! small kernels between them. Kernels are asked for one after the other; [`Recording`] keeps a sequence of them, which then
//! starts as a whole.

mod attention;
mod launch;
mod matrix;
mod memory;
mod products;
mod recording;
mod small;
pub(crate) mod thin;

pub use attention::{Attending, Attentions, Cached};
pub(super) use launch::{Grid, chained, chains};
pub use matrix::{FEW_VISITS, Matrix, Orders, Source};
pub use memory::Memory;
pub use products::{Choice, Linear, Open, Products, Sum, Unnormed};
pub use recording::{Clock, Recording};
pub use small::{Activated, Added, Function, Norm, RopeWrite};

use super::gpu::{Gpu, Recipe};
use roofline_core::Format;

/// The kernels of a model whose numbers are of one 16-bit format.
#[derive(Clone, Copy)]
pub struct Kernels<'g> {
    pub(super) gpu: &'g Gpu,
    /// IEEE half rather than bfloat16.
    pub(super) half: bool,
}

impl<'g> Kernels<'g> {
    /// Kernels for numbers of `values`; none where they are not of 16 bit.
    pub fn new(gpu: &'g Gpu, values: Format) -> Option<Self> {
        matches!(values, Format::BF16 | Format::FP16).then_some(Self { gpu, half: values == Format::FP16 })
    }

    /// The GPU they run on.
    pub fn gpu(&self) -> &'g Gpu {
        self.gpu
    }

    pub(super) fn flags(&self) -> Vec<(&'static str, i64)> {
        vec![("HALF", i64::from(self.half)), ("CHAINED", i64::from(launch::chains(self.gpu)))]
    }
}

/// Programs that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    [small::sources(), attention::sources(), matrix::sources(), thin::sources()].concat()
}
