//! Products of more rows than the packed kernels take at once, each way by itself.

use super::{
    super::{
        Matrix, Memory,
        launch::{Grid, chained},
        matrix::{Narrow, unsupported},
        small::PARTS,
        thin::{self, Shape, Way},
    },
    Choice, Linear, Products,
    ways::{MOST_WAYS, Plan, Ways, best, fastest},
};
use crate::{
    Error, Result,
    cuda::{
        THIN_ROWS,
        backend::{Argument, PACKED_BYTES_ROWS},
        cublaslt::{self, Algorithm, Compute, Product, Scales, Type},
        gemm_packed::{self, Addresses, Tiled},
        gemv_packed::Stored,
        gpu::Recipe,
    },
};

/// Rows up to which kernels of few rows may be faster, a few at a time.
const SLICED: usize = 64;
impl<'g> Products<'g> {
    /// Room for the inputs of a product of 8-bit numbers.
    pub(super) fn room_for_codes(&mut self, matrix: &Matrix, m: usize) -> Result<()> {
        let gpu = self.kernels.gpu;
        // Few rows of FP8 are of 16 bit.
        let codes = (m * matrix.k).max(2 * m.min(THIN_ROWS) * matrix.k);
        if self.codes.bytes() < codes || self.scales[0].bytes() < 2 * m {
            gpu.wait()?;
            self.grew = true;
            self.codes = Memory::new(gpu, codes.max(self.codes.bytes()))?;
            let rows = m.max(self.scales[0].bytes() / 2);
            self.scales = [Memory::new(gpu, 2 * rows)?, Memory::new(gpu, 4 * rows)?];
        }
        Ok(())
    }

    /// Inputs of a product of 8-bit numbers, as its kernel takes them.
    pub(super) fn narrow(&self, matrix: &Matrix, m: usize, x: u64, thin: bool) -> Result<()> {
        let gpu = self.kernels.gpu;
        let kind = match &matrix.narrow {
            Some(own) if own.fp8 && thin => 3,
            Some(own) if own.fp8 => 2,
            _ => 1,
        };
        let recipe = Recipe { source: PARTS, function: "narrowed", defines: self.kernels.flags(), shared: 0 };
        let function = gpu.function(&recipe)?;
        let arguments = [
            Argument::Address(x),
            Argument::Address(self.codes.address()),
            Argument::Address(self.scales[0].address()),
            Argument::Address(self.scales[1].address()),
            Argument::Integer(matrix.k as i32),
            Argument::Integer(kind),
        ];
        chained(gpu, &function, Grid::of(m, 256), &arguments)
    }

    pub(super) fn run_narrow(
        &self,
        product: &Product<'g>,
        algorithm: &Algorithm,
        matrix: &Matrix,
        linear: &Linear,
    ) -> Result<()> {
        let gpu = self.kernels.gpu;
        let Some(Narrow { fp8, rows, scales }) = &matrix.narrow else {
            return Err(unsupported("a matrix without 8-bit rows".to_owned()));
        };
        let codes = self.codes.address();
        if *fp8 {
            product.rescale([scales.address(), self.scales[1].address()])?;
            return product.enqueue(gpu, algorithm, rows.address(), codes, linear.y);
        }
        product.enqueue(gpu, algorithm, rows.address(), codes, self.sums.address())?;
        let mut defines = self.kernels.flags();
        defines.push(("WIDE", i64::from(linear.wide)));
        let function = gpu.function(&Recipe { source: PARTS, function: "scaled", defines, shared: 0 })?;
        let integer = |value: usize| Argument::Integer(value as i32);
        let places = [self.sums.address(), scales.address(), self.scales[1].address(), linear.y].map(Argument::Address);
        let arguments = [&places[..], &[integer(linear.m), integer(matrix.n)]].concat();
        chained(gpu, &function, Grid::of(gpu.multiprocessors as usize * 8, 256), &arguments)
    }

    /// The fastest ways of a product of 8-bit numbers on both sides: cuBLASLt's, and up to some rows those of a kernel of its own.
    pub(super) fn narrow_ways(&mut self, matrix: &Matrix, peers: &[&Matrix], linear: &Linear) -> Result<Ways<'g>> {
        // What is tried is tried on numbers.
        self.narrow(matrix, linear.m, linear.x, false)?;
        let mut ways = vec![self.narrow_blas(matrix, linear)?];
        if !linear.wide && linear.m <= PACKED_BYTES_ROWS {
            ways.extend(self.tiled(matrix, Shape::of(linear, 0))?);
        }
        self.nearest(ways, peers, linear)
    }

    /// The fastest of several ways of many rows, and those that are near it where it matters what lies between kernels.
    fn nearest(&self, ways: Vec<Plan<'g>>, peers: &[&Matrix], linear: &Linear) -> Result<Ways<'g>> {
        let mut ways = ways;
        if ways.len() == 1 {
            return Ok(Ways::only(ways.remove(0)));
        }
        let mut ranked = self.ranked(ways, peers, linear, None)?;
        ranked.truncate(if linear.m <= SLICED { MOST_WAYS } else { 1 });
        Ok(Ways::near(ranked))
    }

    /// 8-bit numbers on both sides, by cuBLASLt.
    fn narrow_blas(&mut self, matrix: &Matrix, linear: &Linear) -> Result<Plan<'g>> {
        let gpu = self.kernels.gpu;
        let fp8 = matrix.narrow.as_ref().is_some_and(|own| own.fp8);
        let sixteen = if self.kernels.half { Type::Fp16 } else { Type::Bf16 };
        let output = if linear.wide { Type::Fp32 } else { sixteen };
        let described = cublaslt::Shape {
            m: linear.m,
            n: matrix.n,
            k: matrix.k,
            width: matrix.k,
            input: if fp8 { Type::Fp8 } else { Type::Int8 },
            output: if fp8 { output } else { Type::Int32 },
            compute: if fp8 { Compute::Fp32 } else { Compute::Int32 },
            scales: if fp8 { Scales::Rows } else { Scales::None },
        };
        if !fp8 && self.sums.bytes() < 4 * linear.m * matrix.n {
            gpu.wait()?;
            self.grew = true;
            self.sums = Memory::new(gpu, 4 * linear.m * matrix.n)?;
        }
        let scales = matrix.narrow.as_ref().map_or(0, |own| own.scales.address());
        let product = gpu.blas().map_err(Error::of_model)?.product(described, [scales, self.scales[1].address()])?;
        let time = |algorithm: &Algorithm| {
            fastest(self.kernels, 1, &mut |_| self.run_narrow(&product, algorithm, matrix, linear))
        };
        let algorithm = best(product.candidates.clone(), time)?;
        Ok(Plan::Narrow(Box::new(product), algorithm))
    }

    /// The fastest ways of a gate and what it multiplies.
    pub(super) fn gated(&mut self, matrix: &Matrix, peers: &[&Matrix], linear: &Linear) -> Result<Ways<'g>> {
        let products = self.tiled(matrix, Shape::of(linear, 0))?;
        Ok(Ways::near(self.ranked(products, peers, linear, None)?))
    }

    /// The fastest of all ways of a product of many rows.
    pub(super) fn many(&mut self, matrix: &Matrix, peers: &[&Matrix], linear: &Linear) -> Result<Ways<'g>> {
        let shape = Shape::of(linear, 0);
        let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
        let mut ways = vec![self.blas(w, matrix, linear)?];
        // Rows of a gate and of what it multiplies take turns in the order of few rows.
        if matrix.packed.is_some() && !matrix.turns && linear.m <= SLICED {
            let slice = Shape { m: THIN_ROWS, ..shape };
            ways.extend(thin::ways(&self.kernels, matrix, slice)?.into_iter().map(Plan::Slices));
        }
        // Of 16-bit numbers cuBLASLt is the faster one beyond.
        let sixteen = matrix.tiled.as_ref().is_some_and(|own| own.stored == Stored::Sixteen);
        if !(linear.wide || sixteen && linear.m > SLICED) {
            ways.extend(self.tiled(matrix, shape)?);
        }
        self.nearest(ways, peers, linear)
    }

    pub(super) fn run_slices(&self, way: &Way, matrix: &Matrix, linear: &Linear) -> Result<()> {
        let size = if linear.wide { 4 } else { 2 };
        for first in (0..linear.m).step_by(THIN_ROWS) {
            let (x, y) = (linear.x + (2 * first * matrix.k) as u64, linear.y + (size * first * matrix.n) as u64);
            let slice = Linear { m: THIN_ROWS.min(linear.m - first), x, y, ..*linear };
            thin::enqueue(&self.kernels, way, matrix, &slice, 0, None)?;
        }
        Ok(())
    }

    /// The ways of `kernels/gemm_wgmma.cu` and its like.
    pub(super) fn tiled(&mut self, matrix: &Matrix, shape: Shape) -> Result<Vec<Plan<'g>>> {
        let gpu = self.kernels.gpu;
        let Some(own) = &matrix.tiled else { return Ok(Vec::new()) };
        let Matrix { n, k, experts, .. } = *matrix;
        let tiled = Tiled { stored: own.stored, half: self.kernels.half, m: shape.m, n, k, matrices: experts };
        let Ok(products) = gemm_packed::Product::candidates(gpu, tiled, [own.tensor, 1.0], shape.gated) else {
            return Ok(Vec::new());
        };
        let most = |bytes: fn(&gemm_packed::Product) -> usize| products.iter().map(bytes).max().unwrap_or(0);
        let partial = most(gemm_packed::Product::partial_bytes);
        let (marked, counters) = (most(gemm_packed::Product::marked_bytes), most(gemm_packed::Product::counter_bytes));
        if self.partial.bytes() < partial || self.marked.bytes() < marked || self.counters.bytes() < counters {
            gpu.wait()?;
            self.grew = true;
            self.partial = Memory::new(gpu, partial.max(self.partial.bytes()))?;
            self.marked = Memory::filled(gpu, marked.max(self.marked.bytes()))?;
            self.counters = Memory::zeroed(gpu, counters.max(self.counters.bytes()))?;
        }
        Ok(products.into_iter().map(Plan::Tiled).collect())
    }

    pub(super) fn run_tiled(
        &self,
        product: &gemm_packed::Product,
        matrix: &Matrix,
        (linear, x_scales): (&Linear, u64),
        starts: u64,
    ) -> Result<()> {
        let Some(own) = &matrix.tiled else {
            return Err(unsupported("a matrix without tiles".to_owned()));
        };
        let [weights, scales, partial, marked, counters] =
            [&own.weights, &own.scales, &self.partial, &self.marked, &self.counters].map(Memory::address);
        let (x, y) = (linear.x, linear.y);
        let addresses = Addresses { weights, scales, x, x_scales, y, partial, marked, counters, starts };
        product.enqueue(self.kernels.gpu, &addresses)
    }

    fn blas(&self, w: u64, matrix: &Matrix, linear: &Linear) -> Result<Plan<'g>> {
        let gpu = self.kernels.gpu;
        let input = if self.kernels.half { Type::Fp16 } else { Type::Bf16 };
        let described = cublaslt::Shape {
            m: linear.m,
            n: matrix.n,
            k: matrix.k,
            width: matrix.k,
            input,
            output: if linear.wide { Type::Fp32 } else { input },
            compute: Compute::Fp32,
            scales: Scales::None,
        };
        let product = gpu.blas().map_err(Error::of_model)?.product(described, [0, 0])?;
        let time = |algorithm: &Algorithm| {
            fastest(self.kernels, 1, &mut |_| product.enqueue(gpu, algorithm, w, linear.x, linear.y))
        };
        let algorithm = best(product.candidates.clone(), time)?;
        Ok(Plan::Blas(Box::new(product), algorithm))
    }

    pub(super) fn plain(&self, w: u64, matrix: &Matrix, linear: &Linear, choice: Option<Choice>) -> Result<()> {
        let rows = choice.map_or(linear.m, |choice| choice.visits);
        let mut defines = self.kernels.flags();
        defines.push(("WIDE", i64::from(linear.wide)));
        let recipe = Recipe { source: PARTS, function: "plain_product", defines, shared: 0 };
        let function = self.kernels.gpu.function(&recipe)?;
        let integer = |value: usize| Argument::Integer(value as i32);
        let arguments = [
            Argument::Address(w),
            Argument::Address(linear.x),
            Argument::Address(choice.map_or(0, |choice| choice.address)),
            Argument::Address(linear.y),
            integer(rows),
            integer(matrix.n),
            integer(matrix.k),
            integer(choice.map_or(1, |choice| choice.active)),
        ];
        chained(self.kernels.gpu, &function, Grid::of((rows * matrix.n).div_ceil(8), 256), &arguments)
    }
}
