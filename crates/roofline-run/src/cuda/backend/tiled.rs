//! Products of more rows with packed weights, on operands of their own.

use cudarc::driver::{CudaFunction, CudaSlice, DeviceRepr, sys};
use roofline_core::measurement::{Check, Kernel, Residency};

use super::{
    super::{
        gemm_packed::{Division, Tiled},
        gpu::{Gpu, Recipe, failed},
        operand::{Copies, Part, address},
    },
    Argument, Launch, Work, candidate, launch,
    linear::{Checked, poison},
    unsupported,
};
use crate::Result;

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
        if gpu.architecture.major < 9 {
            return Ok(Self([0; 16]));
        }
        // 64 words of a unit, then rows, then units.
        Self::encoded(at, [64, m as u64, units as u64], [units as u64 * 128, 128], [64, rows as u32, steps as u32])
    }

    /// Of `rows` of `width` words, taken 64 words of `taken` rows at once.
    pub(super) fn of_rows(at: u64, [rows, width]: [usize; 2], taken: usize) -> Result<Self> {
        Self::encoded(at, [width as u64, rows as u64], [2 * width as u64], [64, taken as u32])
    }

    /// Of tokens, `pitch` words apart, of several heads of `width` words each, taken 64 words of `taken` tokens and heads at
    /// once.
    pub(super) fn of_heads(
        at: u64,
        [tokens, heads, width]: [usize; 3],
        pitch: usize,
        taken: [usize; 2],
    ) -> Result<Self> {
        let [some_tokens, some_heads] = taken.map(|count| count as u32);
        let strides = [2 * width as u64, 2 * pitch as u64];
        Self::encoded(at, [width as u64, heads as u64, tokens as u64], strides, [64, some_heads, some_tokens])
    }

    /// Of 16-bit words, whatever they stand for. All dimensions but the first have a stride, in bytes.
    fn encoded<const N: usize, const M: usize>(
        at: u64,
        sizes: [u64; N],
        strides: [u64; M],
        taken: [u32; N],
    ) -> Result<Self> {
        const { assert!(N == M + 1, "a stride for all dimensions but the first") };
        let mut map = Self([0; 16]);
        let every = [1u32; N];
        // SAFETY: as many sizes as dimensions and one stride fewer, and a place for the result.
        #[allow(unsafe_code)]
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                (&raw mut map).cast(),
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                N as u32,
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

/// A division with what it needs.
#[derive(Clone)]
struct Choice {
    division: Division,
    function: CudaFunction,
    geometry: Launch,
    map: Map,
}

pub(super) struct TiledWork {
    tiled: Tiled,
    kernel: Kernel,
    copies: Copies,
    x: Copies,
    /// BF16 scales per row of W and of x, where there are such.
    scales: [CudaSlice<u8>; 2],
    y: CudaSlice<u8>,
    /// Sums that blocks leave for each other, and how many have.
    partial: CudaSlice<u8>,
    counters: CudaSlice<u8>,
    factors: [f32; 2],
    choice: Choice,
    checked: Checked,
}

/// The fastest division, tried on its own operands.
pub(super) fn work(
    gpu: &Gpu,
    tiled: Tiled,
    kernel: Kernel,
    checked: Checked,
    residency: Residency,
) -> Result<TiledWork> {
    let shared = gpu.block_shared()?;
    let divisions = tiled.divisions(gpu.architecture, gpu.multiprocessors, shared);
    let recipes: Vec<Recipe> = divisions.iter().map(|division| tiled.recipe(*division, shared)).collect();
    let functions = gpu.functions(&recipes)?;
    let (weights, inputs) = (&checked.weights, &checked.inputs);
    let copies = Copies::new(gpu, &[tiled.pack(weights)], residency)?;
    let units = tiled.x_units();
    let x = Part { pattern: inputs.plain(units * tiled.unit()), bytes: tiled.m * units * 128 };
    let x = Copies::new(gpu, &[x], Residency::Warm)?;
    let none = || vec![0; 16];
    let w_scales = if tiled.stored.group() == 0 { weights.row_scales() } else { none() };
    let x_scales = if tiled.stored.bytes() { inputs.row_scales() } else { none() };
    let lift = tiled.lift(weights);
    let factors = [tiled.stored.tensor_scale(weights, tiled.half) / lift, lift];
    let choices = divisions
        .iter()
        .zip(functions)
        .zip(&recipes)
        .map(|((division, function), recipe)| {
            let map = Map::new(gpu, x.at(gpu, 0, 0), [tiled.m, units], [division.rows, division.steps])?;
            let geometry = Launch {
                blocks: (tiled.blocks(*division) * division.split) as u32,
                threads: division.threads(gpu.architecture) as u32,
                shared: recipe.shared,
            };
            Ok(Choice { division: *division, function, geometry, map })
        })
        .collect::<Result<Vec<Choice>>>()?;
    let first = choices.first().ok_or_else(|| unsupported("this GPU has too little shared memory".to_owned()))?;
    let most =
        |bytes: &dyn Fn(Division) -> usize| divisions.iter().map(|division| bytes(*division)).max().unwrap_or(16);
    let mut work = TiledWork {
        scales: [gpu.upload(&w_scales)?, gpu.upload(&x_scales)?],
        y: gpu.memory(tiled.m * tiled.n * 2)?,
        partial: gpu.memory(most(&|division| tiled.partial_bytes(division)))?,
        counters: gpu.upload(&vec![0; most(&|division| 4 * tiled.blocks(division))])?,
        choice: first.clone(),
        tiled,
        kernel,
        copies,
        x,
        factors,
        checked,
    };
    let mut best = (f64::INFINITY, work.choice.clone());
    for choice in choices {
        work.choice = choice;
        let fastest = candidate(gpu, &work)?;
        if fastest < best.0 {
            best = (fastest, work.choice.clone());
        }
    }
    if best.0.is_infinite() {
        return Err(unsupported("no division of this kernel runs on this GPU".to_owned()));
    }
    work.choice = best.1;
    work.kernel.name += &work.choice.division.words();
    Ok(work)
}

impl Work for TiledWork {
    fn kernel(&self) -> Kernel {
        self.kernel.clone()
    }

    fn copies(&self) -> usize {
        self.copies.rotation.copies
    }

    fn times_cache(&self) -> f64 {
        self.copies.rotation.times_cache
    }

    fn enqueue(&self, gpu: &Gpu, copy: usize) -> Result<()> {
        let Tiled { m, n, .. } = self.tiled;
        let at = |memory: &CudaSlice<u8>| Argument::Address(address(gpu, memory));
        let integer = |value: usize| Argument::Integer(value as i32);
        let arguments = [
            Argument::Address(self.copies.at(gpu, copy, 0)),
            at(&self.scales[0]),
            Argument::Map(self.choice.map),
            Argument::Address(self.x.at(gpu, 0, 0)),
            at(&self.scales[1]),
            at(&self.y),
            at(&self.partial),
            at(&self.counters),
            integer(n),
            integer(self.tiled.units()),
            integer(self.tiled.x_units()),
            integer(m),
            integer(self.choice.division.split),
            Argument::Real(self.factors[0]),
            Argument::Real(self.factors[1]),
        ];
        launch(gpu, &self.choice.function, self.choice.geometry, &arguments)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.partial)?;
        poison(gpu, &mut self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        self.checked.compare(gpu, &self.y)
    }
}
