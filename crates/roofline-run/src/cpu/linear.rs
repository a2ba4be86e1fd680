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

mod cast;
mod gemm;
mod gemv;
mod number;
mod output;
mod stored;

use std::fmt;

use roofline_core::{Format, Math, Precision, measurement::Path, op::Linear};

use self::{
    cast::CastFirst,
    gemm::Gemm,
    gemv::{Gemv, integer::IntegerGemv},
    number::Wide,
    output::Output,
    stored::{Code, Stored},
};
use super::{
    pool::Pool,
    simd::{Level, Simd},
    tensor::Tensor,
    unsupported::Unsupported,
};

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
    Gemv(Gemv, Wide),
    IntegerGemv(IntegerGemv),
    #[cfg(target_arch = "x86_64")]
    FixedGemv(Box<gemv::fixed::FixedGemv>),
    Gemm(Box<Gemm>),
    CastFirst(Box<CastFirst>, Wide),
}

/// Rows of `x` up to which decoding in registers beats packing.
pub const THIN_ROWS: u64 = 16;
const THIN: usize = THIN_ROWS as usize;

impl Product {
    /// Chooses the kernel for a shape and a precision, and takes the memory it needs, for at most `threads` threads.
    pub fn plan(simd: Simd, shape: Linear, precision: &Precision, threads: usize) -> Result<Self, Unsupported> {
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
        let (kernel, unit, math) = match wide {
            _ if m > THIN && (integers || wide.is_some()) => {
                let math = if integers { Math::Int8 } else { precision.math };
                let gemm = Gemm::plan(simd, math, (m, n), Stored::new(activations, k)?, threads)?;
                let (unit, math) = (gemm.unit(), gemm.math());
                (Kernel::Gemm(Box::new(gemm)), unit, math)
            }
            None if integers => {
                let unit = if simd.vnni { "avx512-vnni" } else { level_name(simd.level) };
                (Kernel::IntegerGemv(IntegerGemv::plan(simd, m, k)?), unit, Math::Int8)
            }
            None => {
                return Err(Unsupported(format!("no processor kernel reads activations stored as {activations}")));
            }
            #[cfg(target_arch = "x86_64")]
            Some(wide)
                if simd.vnni
                    && m <= 2
                    && let Some(fixed) = gemv::fixed::FixedGemv::plan(m, wide, &stored) =>
            {
                (Kernel::FixedGemv(Box::new(fixed?)), "avx512-vnni", Math::Int8)
            }
            Some(wide) => (Kernel::Gemv(Gemv::plan(simd, m, &stored)?, wide), level_name(simd.level), Math::Fp32),
        };
        Ok(Self { m, n, k, weights, activations, output, stored, threads, kernel, unit, math })
    }

    /// The same product the naive way: the weights are cast to BF16 in memory and multiplied from there. It is here to show
    /// what that costs, and takes at most a few rows of `x`.
    pub fn cast_first(simd: Simd, shape: Linear, precision: &Precision, threads: usize) -> Result<Self, Unsupported> {
        let planned = Self::plan(simd, shape, precision, threads)?;
        let Some(wide) = Wide::of(planned.activations).filter(|_| planned.m <= THIN) else {
            return Err(Unsupported(format!("casting first is for up to {THIN} rows of wide activations")));
        };
        let cast = CastFirst::plan(simd, (planned.m, planned.n, planned.k))?;
        let (kernel, unit) = (Kernel::CastFirst(Box::new(cast), wide), level_name(simd.level));
        Ok(Self { kernel, unit, math: Math::Fp32, ..planned })
    }

    /// What runs: the shape's kind, the stored weights and the instructions, such as `gemv int4-g128 avx512`.
    pub fn kernel_name(&self) -> String {
        let kind = match self.kernel {
            Kernel::Gemv(..) | Kernel::IntegerGemv(_) => "gemv",
            #[cfg(target_arch = "x86_64")]
            Kernel::FixedGemv(..) => "gemv",
            Kernel::Gemm(_) => "gemm",
            Kernel::CastFirst(..) => "cast, then gemv",
        };
        let weights = if self.activations == Format::INT8 { "w8a8".to_owned() } else { self.weights.to_string() };
        format!("{kind} {weights} {}", self.unit)
    }

    /// How the stored weights reach the unit that multiplies.
    pub fn path(&self) -> Path {
        let native = match &self.kernel {
            Kernel::Gemv(..) => self.stored.code == Code::Fp32,
            Kernel::IntegerGemv(_) => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::FixedGemv(..) => false,
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
        if let Kernel::CastFirst(cast, _) = &self.kernel { cast.bytes() } else { 0 }
    }

    /// Computes `y`, row-major in the output format of the precision.
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
        assert_eq!((x.rows, x.columns, x.format), (self.m, self.k, self.activations), "x is not what was planned for");
        assert_eq!((w.rows, w.columns, w.format), (self.n, self.k, self.weights), "w is not what was planned for");
        assert_eq!(y.len(), self.m * self.n * self.output.bytes(), "y is not what was planned for");
        assert!(pool.threads() <= self.threads, "the pool has more threads than were planned for");
        let rows = self.stored.rows(&w);
        let y = Output::new(y, self.n, self.output);
        match &mut self.kernel {
            Kernel::Gemv(gemv, wide) => gemv.run(pool, (&x, *wide), rows, y),
            Kernel::IntegerGemv(gemv) => gemv.run(pool, &x, rows, y),
            #[cfg(target_arch = "x86_64")]
            Kernel::FixedGemv(gemv) => gemv.run(pool, &x, rows, y),
            Kernel::Gemm(gemm) => gemm.run(pool, &x, rows, y),
            Kernel::CastFirst(cast, wide) => cast.run(pool, (&x, *wide), rows, between, y),
        }
    }
}

impl fmt::Debug for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}x{}x{}", self.kernel_name(), self.m, self.n, self.k)
    }
}

/// Memory that a plan could not have.
fn no_memory() -> Unsupported {
    Unsupported("there is no memory for what the kernel keeps beside its operands".to_owned())
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Portable => "portable",
        Level::Avx2 => "avx2",
        Level::Avx512 => "avx512",
        Level::Neon => "neon",
    }
}

#[cfg(test)]
mod tests;
