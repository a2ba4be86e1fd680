//! Products of more rows with packed weights, on operands of their own.

use cudarc::driver::CudaSlice;
use roofline_core::measurement::{Check, Kernel, Residency};

use super::{
    super::{
        compiler::Architecture,
        gemm_packed::{Addresses, Product, Tiled},
        gemv_packed::{Stored, Thin},
        gpu::Gpu,
        operand::{Copies, Part, address},
    },
    Work, candidate,
    linear::{Checked, poison},
    unsupported,
};
use crate::Result;

/// Rows from which these kernels may be faster on Hopper than those of few rows.
pub(crate) const CONTESTED_ROWS: usize = 9;

/// The product that may be faster than a kernel of few rows, where nothing follows it.
pub(super) fn instead_of(thin: Thin, architecture: Architecture) -> Option<Tiled> {
    let Thin { stored, half, m, n, k, .. } = thin;
    let hopper = (architecture.major, architecture.minor) == (9, 0);
    let packed = !stored.bytes() && stored != Stored::Sixteen;
    (hopper && packed && m >= CONTESTED_ROWS).then_some(Tiled { stored, half, m, n, k, matrices: 1 })
}

pub(super) struct TiledWork {
    kernel: Kernel,
    copies: Copies,
    x: Copies,
    /// BF16 scales per row of W and of x, where there are such.
    scales: [CudaSlice<u8>; 2],
    y: CudaSlice<u8>,
    /// Sums that blocks leave for each other, those that say that they have come, and how many have.
    partial: CudaSlice<u8>,
    marked: CudaSlice<u8>,
    counters: CudaSlice<u8>,
    product: Product,
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
    let (weights, inputs) = (&checked.weights, &checked.inputs);
    let products = Product::candidates(gpu, tiled, tiled.factors(weights), false)?;
    let first = products.first().ok_or_else(|| unsupported("this GPU has too little shared memory".to_owned()))?;
    let copies = Copies::new(gpu, &[tiled.pack(weights)], residency)?;
    let units = tiled.x_units();
    let x = Part { pattern: inputs.plain(units * tiled.unit()), bytes: tiled.m * units * 128 };
    let x = Copies::new(gpu, &[x], Residency::Warm)?;
    let none = || vec![0; 16];
    let w_scales = if tiled.stored.group() == 0 { weights.row_scales() } else { none() };
    let x_scales = if tiled.stored.bytes() { inputs.row_scales() } else { none() };
    let most = |bytes: fn(&Product) -> usize| products.iter().map(bytes).max().unwrap_or(16);
    let mut work = TiledWork {
        scales: [gpu.upload(&w_scales)?, gpu.upload(&x_scales)?],
        y: gpu.memory(tiled.m * tiled.n * 2)?,
        partial: gpu.memory(most(Product::partial_bytes))?,
        marked: gpu.memory(most(Product::marked_bytes))?,
        counters: gpu.upload(&vec![0; most(Product::counter_bytes)])?,
        product: first.clone(),
        kernel,
        copies,
        x,
        checked,
    };
    poison(gpu, &mut work.marked)?;
    let mut best = (f64::INFINITY, work.product.clone());
    for product in products {
        work.product = product;
        let fastest = candidate(gpu, &work)?;
        if fastest < best.0 {
            best = (fastest, work.product.clone());
        }
    }
    if best.0.is_infinite() {
        return Err(unsupported("no division of this kernel runs on this GPU".to_owned()));
    }
    work.product = best.1;
    work.kernel.name += &work.product.words();
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
        let at = |memory: &CudaSlice<u8>| address(gpu, memory);
        let addresses = Addresses {
            weights: self.copies.at(gpu, copy, 0),
            scales: at(&self.scales[0]),
            x: self.x.at(gpu, 0, 0),
            x_scales: at(&self.scales[1]),
            y: at(&self.y),
            partial: at(&self.partial),
            marked: at(&self.marked),
            counters: at(&self.counters),
            starts: 0,
        };
        self.product.enqueue(gpu, &addresses)
    }

    fn poison(&mut self, gpu: &Gpu) -> Result<()> {
        poison(gpu, &mut self.partial)?;
        poison(gpu, &mut self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<std::result::Result<Check, String>> {
        self.checked.compare(gpu, &self.y)
    }
}
