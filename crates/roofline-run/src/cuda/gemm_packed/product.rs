//! A product of packed weights, ready to be asked for by whoever has its operands on the GPU.

use cudarc::driver::CudaFunction;

use super::{Tiled, division::Division};
use crate::{
    Result,
    cuda::{
        backend::{Argument, Launch, launch, launch_early},
        gpu::{Gpu, Recipe},
        map::Map,
    },
};

/// Where a product's operands are on the GPU. Nothing of it is freed before the product has run.
#[derive(Clone, Copy, Debug)]
pub(in crate::cuda) struct Addresses {
    /// As [`Tiled::pack`] lays them out. No kernel that is still under way may write them: they are read before it ends.
    pub(in crate::cuda) weights: u64,
    /// BF16 per row of W, where weights have no groups; any address otherwise.
    pub(in crate::cuda) scales: u64,
    /// Rows of whole units ([`Tiled::x_units`]), one behind the other.
    pub(in crate::cuda) x: u64,
    /// BF16 per row of x, where x is 8 bit; any address otherwise.
    pub(in crate::cuda) x_scales: u64,
    /// `m` rows of `n` 16-bit numbers.
    pub(in crate::cuda) y: u64,
    /// [`Product::partial_bytes`], of any value; products that run one after the other may share them.
    pub(in crate::cuda) partial: u64,
    /// [`Product::marked_bytes`], all bits set; so they are again after every product, and may be shared as well.
    pub(in crate::cuda) marked: u64,
    /// [`Product::counter_bytes`], zeros; so they are again after every product, and may be shared as well.
    pub(in crate::cuda) counters: u64,
    /// Of several matrices, the first row of x of each, and behind them the end of the last; any address otherwise.
    pub(in crate::cuda) starts: u64,
}

/// A product with its kernel: everything but operands.
#[derive(Clone)]
pub(in crate::cuda) struct Product {
    tiled: Tiled,
    division: Division,
    function: CudaFunction,
    geometry: Launch,
    /// What sums are multiplied with at last, and what scales are raised by: [`Tiled::factors`].
    factors: [f32; 2],
}

impl Product {
    /// One for every division that is worth trying; none where the GPU has too little shared memory. `gated`: the first half of
    /// W's rows is a gate of the second.
    pub(in crate::cuda) fn candidates(gpu: &Gpu, tiled: Tiled, factors: [f32; 2], gated: bool) -> Result<Vec<Self>> {
        let shared = gpu.block_shared()?;
        let mut divisions = tiled.divisions(gpu.architecture, gpu.multiprocessors, shared);
        divisions.retain(|division| !gated || division.gates());
        let recipe = |division: &Division| {
            let mut recipe = tiled.recipe(*division, shared);
            recipe.defines.push(("GATED", i64::from(gated)));
            recipe
        };
        let recipes: Vec<Recipe> = divisions.iter().map(recipe).collect();
        let product = |((division, function), recipe): ((&Division, CudaFunction), &Recipe)| {
            let geometry = Launch {
                blocks: tiled.blocks(*division) as u32,
                threads: division.threads(gpu.architecture) as u32,
                shared: recipe.shared,
            };
            Self { tiled, division: *division, function, geometry, factors }
        };
        Ok(divisions.iter().zip(gpu.functions(&recipes)?).zip(&recipes).map(product).collect())
    }

    /// For a kernel's name.
    pub(in crate::cuda) fn words(&self) -> String {
        self.division.words()
    }

    /// Bytes of the sums that blocks leave for each other.
    pub(in crate::cuda) fn partial_bytes(&self) -> usize {
        if self.division.marks() { 16 } else { self.tiled.left_bytes(self.division) }
    }

    /// The same of sums that say by themselves that they have come.
    pub(in crate::cuda) fn marked_bytes(&self) -> usize {
        if self.division.marks() { self.tiled.left_bytes(self.division) } else { 16 }
    }

    pub(in crate::cuda) fn counter_bytes(&self) -> usize {
        self.tiled.counter_bytes(self.division)
    }

    /// Asks for the product. On Hopper it starts while the kernel before it ends, and waits for that before it reads x or
    /// writes anything.
    pub(in crate::cuda) fn enqueue(&self, gpu: &Gpu, at: &Addresses) -> Result<()> {
        let Self { tiled, division, .. } = self;
        let map = Map::new(gpu, at.x, [tiled.m, tiled.x_units()], division.copied())?;
        let integer = |value: usize| Argument::Integer(value as i32);
        let mut arguments = vec![
            Argument::Address(at.weights),
            Argument::Address(at.scales),
            Argument::Map(map),
            Argument::Address(at.x),
            Argument::Address(at.x_scales),
            Argument::Address(at.y),
            Argument::Address(if division.marks() { at.marked } else { at.partial }),
            Argument::Address(at.counters),
            integer(tiled.n),
            integer(tiled.units()),
            integer(tiled.x_units()),
            integer(tiled.m),
            integer(division.argument()),
            Argument::Real(self.factors[0]),
            Argument::Real(self.factors[1]),
        ];
        if tiled.matrices > 1 {
            let bytes = Argument::Count(tiled.matrix_bytes() as u64);
            arguments.extend([Argument::Address(at.starts), integer(tiled.matrices), bytes]);
        }
        let ask = if division.waits() { launch_early } else { launch };
        ask(gpu, &self.function, self.geometry, &arguments)
    }
}
