//! Linear layers on the processor: `y[m,n] = x[m,k] * W[n,k]^T`, with `W` read at its stored size.
//!
//! [`Product::plan`] decides once how a product runs; [`Product::run`] runs it as often as wanted without allocating:
//!
//! ```text
//! few rows of x   ──▶ gemv: decode W in registers, multiply, sum along k; as fast as W can be read
//! many rows of x  ──▶ gemm: decode W into panels that fit the caches, multiply tiles; as fast as the units multiply
//! ```

// Code is inlined into functions that enable wider vectors; without that it would be compiled for the narrowest ones.
#![allow(clippy::inline_always)]
// Tensors and packed rows are bytes; vectors load them at any alignment.
#![allow(clippy::cast_ptr_alignment)]
// m, n, k, x, w and y are what everyone calls them.
#![allow(clippy::many_single_char_names)]

mod by_rows;
mod cast;
mod gemm;
mod output;
mod thin;
mod weights;
mod wide;

pub use self::{
    by_rows::{ByRows, Decode},
    gemm::Workshop,
};
use std::{fmt, sync::Arc};

use roofline_core::{Format, Math, Precision, measurement::Path, op::Linear};
use roofline_isa::Isa;

use self::{
    cast::CastFirst,
    gemm::Gemm,
    output::Output,
    thin::Thin,
    weights::{Code, Rows, Stored},
    wide::Wide,
};
use crate::cpu::{pool::Pool, tensor::Tensor, unsupported::Unsupported};

/// A product that is ready to run.
pub struct Product {
    m: usize,
    n: usize,
    k: usize,
    weights: Format,
    activations: Format,
    output: Wide,
    stored: Stored,
    threads: usize,
    kernel: Kernel,
    /// The instructions that the kernel's name ends with.
    unit: &'static str,
    math: Math,
}

enum Kernel {
    Thin(Box<Thin>),
    Gemm(Box<Gemm>),
    CastFirst(Box<CastFirst>),
}

/// Rows of `x` up to which decoding in registers beats packing.
pub(crate) const THIN_ROWS: usize = 16;

/// Whether kernels read weights in a format as they are stored, in rows of any usual length.
pub fn reads(format: Format) -> bool {
    // Whole blocks of every format there is.
    const ROW: usize = 4096;
    Stored::new(format, ROW).is_ok()
}

impl Product {
    /// Chooses the kernel for a shape and a precision, and takes the memory it needs, for at most `threads` threads.
    pub fn plan(isa: Isa, shape: Linear, precision: &Precision, threads: usize) -> Result<Self, Unsupported> {
        Self::plan_in(&Arc::default(), isa, shape, precision, threads)
    }

    /// The same with memory that it shares with others, which do not run at the same time.
    pub fn plan_in(
        workshop: &Arc<Workshop>,
        isa: Isa,
        shape: Linear,
        precision: &Precision,
        threads: usize,
    ) -> Result<Self, Unsupported> {
        let (m, n, k) = (shape.m.get() as usize, shape.n.get() as usize, shape.k.get() as usize);
        let Precision { weights, activations, output, .. } = *precision;
        let output = Wide::of(output)
            .ok_or_else(|| Unsupported(format!("no processor kernel writes outputs stored as {output}")))?;
        let stored = Stored::new(weights, k)?;
        let integers = activations == Format::INT8;
        if integers && stored.code != Code::Int8 {
            return Err(Unsupported(format!("no processor kernel multiplies {weights} weights with int8 activations")));
        }
        let wide = Wide::of(activations);
        if wide.is_none() && !integers {
            return Err(Unsupported(format!("no processor kernel reads activations stored as {activations}")));
        }
        // Integers are multiplied as they are unless a unit for 16-bit floats beats that by more than widening costs.
        let integer = wide.is_some() && !matches!(stored.code, Code::Fp32 | Code::Fp16 | Code::Bf16 | Code::Fp8);
        let (kernel, unit, math) = if m > THIN_ROWS && !(integer && !isa.has_tiles() && !isa.has_bf16()) {
            let math = if integers { Math::Int8 } else { precision.math };
            let gemm = Gemm::plan(isa, math, (m, n), Stored::new(activations, k)?, threads, workshop)?;
            let (unit, math) = (gemm.unit(), gemm.math());
            (Kernel::Gemm(Box::new(gemm)), unit, math)
        } else {
            let thin = Thin::plan(isa, m, wide, &stored)?;
            let (unit, math) = (thin.unit(), thin.math());
            (Kernel::Thin(Box::new(thin)), unit, math)
        };
        Ok(Self { m, n, k, weights, activations, output, stored, threads, kernel, unit, math })
    }

    /// The same product the naive way: the weights are cast to BF16 in memory and multiplied from there. It is here to show
    /// what that costs, and takes at most a few rows of `x`.
    pub fn cast_first(isa: Isa, shape: Linear, precision: &Precision, threads: usize) -> Result<Self, Unsupported> {
        let planned = Self::plan(isa, shape, precision, threads)?;
        let Some(wide) = Wide::of(planned.activations).filter(|_| planned.m <= THIN_ROWS) else {
            return Err(Unsupported(format!("casting first is for up to {THIN_ROWS} rows of wide activations")));
        };
        let cast = CastFirst::plan(isa, (planned.m, planned.n, planned.k), wide)?;
        let (kernel, unit) = (Kernel::CastFirst(Box::new(cast)), isa.level().name());
        Ok(Self { kernel, unit, math: Math::Fp32, ..planned })
    }

    /// What runs: the shape's kind, the stored weights and the instructions, such as `gemv int4-g128 avx512`.
    pub fn kernel_name(&self) -> String {
        let kind = match self.kernel {
            Kernel::Thin(_) => "gemv",
            Kernel::Gemm(_) => "gemm",
            Kernel::CastFirst(..) => "cast, then gemv",
        };
        let weights = if self.activations == Format::INT8 { "w8a8".to_owned() } else { self.weights.to_string() };
        format!("{kind} {weights} {}", self.unit)
    }

    /// How the stored weights reach the unit that multiplies.
    pub fn path(&self) -> Path {
        let native = match &self.kernel {
            Kernel::Thin(_) => self.stored.code == Code::Fp32 || self.math == Math::Int8,
            Kernel::Gemm(gemm) => gemm.is_native(self.stored.code),
            Kernel::CastFirst(..) => return Path::CastEmulated,
        };
        if native { Path::Native } else { Path::FusedDequant }
    }

    /// The unit that really multiplies.
    pub fn math(&self) -> Math {
        self.math
    }

    /// Bytes that a run writes to memory before it reads them again.
    pub fn between(&self) -> usize {
        if let Kernel::CastFirst(cast) = &self.kernel { cast.bytes() } else { 0 }
    }

    /// Computes `y`, row-major in the output format of the precision. There may be fewer rows of `x` than were planned for.
    ///
    /// # Panics
    ///
    /// When an operand is not what was planned for, or the pool has more threads.
    pub fn run(&mut self, pool: &mut Pool, x: Tensor<'_>, w: Tensor<'_>, y: &mut [u8]) {
        self.run_through(pool, x, w, &mut vec![0; self.between()], y);
    }

    /// The same by way of `between`: whoever times it says what memory that is, so that it can be as cold as the weights.
    ///
    /// # Panics
    ///
    /// As [`Self::run`] does, or where `between` has not [`Self::between`] bytes.
    pub fn run_through(&mut self, pool: &mut Pool, x: Tensor<'_>, w: Tensor<'_>, between: &mut [u8], y: &mut [u8]) {
        self.check_input(&x);
        assert_eq!((w.rows, w.columns, w.format), (self.n, self.k, self.weights), "w is not what was planned for");
        assert_eq!(y.len(), x.rows * self.n * self.output.bytes(), "y is not what was planned for");
        assert!(pool.threads() <= self.threads, "the pool has more threads than were planned for");
        let stored = self.stored;
        let rows = stored.rows(&w);
        self.multiply(pool, &x, rows, between, Output::new(y, self.n, self.output));
    }

    /// Refuses rows that were not planned for.
    fn check_input(&self, x: &Tensor<'_>) {
        assert_eq!((x.columns, x.format), (self.k, self.activations), "x is not what was planned for");
        assert!(x.rows <= self.m, "x has {} rows, and {} were planned for", x.rows, self.m);
    }

    /// The same for operands that were looked at; there may be fewer rows of `w`, too.
    fn multiply(&mut self, pool: &mut Pool, x: &Tensor<'_>, w: Rows<'_>, between: &mut [u8], y: Output) {
        match &mut self.kernel {
            Kernel::Thin(thin) => thin.run(pool, x, w, y),
            Kernel::Gemm(gemm) => gemm.run(pool, x, w, y),
            Kernel::CastFirst(cast) => cast.run(pool, x, w, between, y),
        }
    }
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}x{}x{}", self.kernel_name(), self.m, self.n, self.k)
    }
}

/// The rows of a stored tensor, decoded one at a time: what an embedding looks up.
pub(super) struct Decoder<'a> {
    stored: Stored,
    tensor: Tensor<'a>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(tensor: Tensor<'a>) -> Result<Self, Unsupported> {
        Ok(Self { stored: Stored::new(tensor.format, tensor.columns)?, tensor })
    }

    /// The values of `row` from element `start` on, which is a multiple of 128.
    pub(super) fn decode(&self, row: usize, start: usize, out: &mut [f32]) {
        self.stored.rows(&self.tensor).decode(row, start, out);
    }
}

/// Memory that a plan could not have.
fn no_memory() -> Unsupported {
    Unsupported("there is no memory for what the kernel keeps beside its operands".to_owned())
}

#[cfg(test)]
mod tests;
