//! A product of packed weights, ready to be asked for by whoever has its operands on the GPU.

use cudarc::driver::{CudaFunction, DeviceRepr, sys};

use super::{Tiled, division::Division};
use crate::{
    Result,
    cuda::{
        backend::{Argument, Launch, launch, launch_early},
        gpu::{Gpu, Recipe, failed},
    },
};

/// Where x is and how a stage takes it, as the copy engine of compute capability 9.0 and later wants to know it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in crate::cuda) struct Map([u64; 16]);

// SAFETY: plain numbers, as large and as aligned as the kernels declare them.
#[allow(unsafe_code)]
unsafe impl DeviceRepr for Map {}

impl Map {
    /// Of rows of `units` times 128 bytes at `at`, taken `rows` times `steps` units at once.
    fn new(gpu: &Gpu, at: u64, [m, units]: [usize; 2], [rows, steps]: [usize; 2]) -> Result<Self> {
        let mut map = Self([0; 16]);
        if gpu.architecture.major < 9 {
            return Ok(map);
        }
        // Of 16-bit words, whatever they stand for: 64 of a unit, then rows, then units.
        let (sizes, strides) = ([64, m as u64, units as u64], [units as u64 * 128, 128]);
        let (taken, every) = ([64, rows as u32, steps as u32], [1u32; 3]);
        // SAFETY: three sizes and two strides for three dimensions, and a place for the result.
        #[allow(unsafe_code)]
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                3,
                at as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                taken.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        code.result().map_err(failed)?;
        Ok(map)
    }
}

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
    /// [`Product::counter_bytes`], zeros; so they are again after every product, and may be shared as well.
    pub(in crate::cuda) counters: u64,
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
    /// One for every division that is worth trying; none where the GPU has too little shared memory.
    pub(in crate::cuda) fn candidates(gpu: &Gpu, tiled: Tiled, factors: [f32; 2]) -> Result<Vec<Self>> {
        let shared = gpu.block_shared()?;
        let divisions = tiled.divisions(gpu.architecture, gpu.multiprocessors, shared);
        let recipes: Vec<Recipe> = divisions.iter().map(|division| tiled.recipe(*division, shared)).collect();
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

    pub(in crate::cuda) fn partial_bytes(&self) -> usize {
        self.tiled.partial_bytes(self.division)
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
        let arguments = [
            Argument::Address(at.weights),
            Argument::Address(at.scales),
            Argument::Map(map),
            Argument::Address(at.x),
            Argument::Address(at.x_scales),
            Argument::Address(at.y),
            Argument::Address(at.partial),
            Argument::Address(at.counters),
            integer(tiled.n),
            integer(tiled.units()),
            integer(tiled.x_units()),
            integer(tiled.m),
            integer(division.argument()),
            Argument::Real(self.factors[0]),
            Argument::Real(self.factors[1]),
        ];
        let ask = if division.waits() { launch_early } else { launch };
        ask(gpu, &self.function, self.geometry, &arguments)
    }
}
