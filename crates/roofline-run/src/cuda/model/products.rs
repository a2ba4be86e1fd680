//! Products of any number of rows: few by the packed kernels, many by cuBLASLt, and whatever fits neither by a plain one.
//! Which way is fastest is found on the model's own weights, those of all layers in turn so that none stays in the cache.

use std::collections::HashMap;

use super::{
    Kernels, Matrix, Memory,
    launch::{Grid, chained, chains},
    matrix::unsupported,
    small::PARTS,
    thin::{self, Shape, Way},
};
use crate::{
    Error, Result,
    cuda::{
        THIN_ROWS,
        backend::Argument,
        cublaslt::{self, Algorithm, Compute, Product, Scales, Type},
        gpu::Recipe,
        replay::Replay,
    },
};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    n: usize,
    k: usize,
    turns: bool,
    bytes: u64,
    shape: Shape,
}

enum Plan<'g> {
    Thin(Way),
    Blas(Box<Product<'g>>, Algorithm),
    Plain,
}

/// The products of a model.
pub struct Products<'g> {
    kernels: Kernels<'g>,
    plans: HashMap<Key, Plan<'g>>,
    /// Room for one matrix as rows of 16-bit numbers.
    scratch: Memory,
}

impl<'g> Products<'g> {
    /// With room to widen matrices of up to `widest` bytes.
    pub fn new(kernels: Kernels<'g>, widest: usize) -> Result<Self> {
        Ok(Self { kernels, plans: HashMap::new(), scratch: Memory::new(kernels.gpu, widest)? })
    }

    /// Whether a gate is applied within the product.
    pub fn gates(matrix: &Matrix, m: usize) -> bool {
        matrix.turns && matrix.packed.is_some() && m <= THIN_ROWS
    }

    /// `y = x W^T` for `m` rows of x: FP32 where `wide`, and with the gate applied where it [can be](Self::gates) and is
    /// wanted. `peers` are matrices of the same shape, itself among them, to find the fastest way on.
    pub fn run(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        m: usize,
        (x, y): (u64, u64),
        (wide, gated): (bool, bool),
    ) -> Result<()> {
        let shape = Shape { m, wide, gated, visits: 0 };
        self.planned(matrix, peers, shape, (x, y), None)
    }

    /// The same for one expert of many.
    pub fn run_expert(&mut self, matrix: &Matrix, expert: usize, m: usize, x: u64, y: u64) -> Result<()> {
        let shape = Shape { m, wide: false, gated: false, visits: 0 };
        let w = matrix.rows(&self.kernels, expert, &self.scratch)?;
        if !matrix.k.is_multiple_of(8) {
            return self.plain(w, matrix, shape, (x, y), None);
        }
        let key = key(matrix, shape);
        if !self.plans.contains_key(&key) {
            let plan = self.blas(w, matrix, shape, (x, y))?;
            self.plans.insert(key, plan);
        }
        match &self.plans[&key] {
            Plan::Blas(product, algorithm) => product.enqueue(self.kernels.gpu, algorithm, w, x, y),
            _ => self.plain(w, matrix, shape, (x, y), None),
        }
    }

    /// Rows of outputs of chosen experts, one by one.
    pub fn run_chosen(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        choice: Choice,
        (x, y): (u64, u64),
        gated: bool,
    ) -> Result<()> {
        let shape = Shape { m: 1, wide: false, gated, visits: choice.visits };
        self.planned(matrix, peers, shape, (x, y), Some(choice))
    }

    fn planned(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        shape: Shape,
        (x, y): (u64, u64),
        choice: Option<Choice>,
    ) -> Result<()> {
        let key = key(matrix, shape);
        if !self.plans.contains_key(&key) {
            let plan = self.plan(matrix, peers, shape, (x, y), choice)?;
            self.plans.insert(key, plan);
        }
        match &self.plans[&key] {
            Plan::Thin(way) => thin::enqueue(&self.kernels, way, matrix, shape, (x, y), choice),
            Plan::Blas(product, algorithm) => {
                let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
                product.enqueue(self.kernels.gpu, algorithm, w, x, y)
            }
            Plan::Plain => {
                let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
                self.plain(w, matrix, shape, (x, y), choice)
            }
        }
    }

    fn plan(
        &self,
        matrix: &Matrix,
        peers: &[&Matrix],
        shape: Shape,
        (x, y): (u64, u64),
        choice: Option<Choice>,
    ) -> Result<Plan<'g>> {
        if matrix.packed.is_some() && shape.m <= THIN_ROWS {
            let ways = thin::ways(&self.kernels, matrix, shape)?;
            let same = |peer: &&&Matrix| key(peer, shape) == key(matrix, shape);
            let peers: Vec<&Matrix> = peers.iter().filter(same).copied().collect();
            let time = |way: &Way| {
                fastest(self.kernels, peers.len(), &mut |at| {
                    thin::enqueue(&self.kernels, way, peers[at], shape, (x, y), choice)
                })
            };
            return best(ways, time).map(Plan::Thin);
        }
        if shape.gated {
            return Err(unsupported("a gate within a product of many rows".to_owned()));
        }
        if choice.is_some() || !matrix.k.is_multiple_of(8) {
            return Ok(Plan::Plain);
        }
        let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
        self.blas(w, matrix, shape, (x, y))
    }

    fn blas(&self, w: u64, matrix: &Matrix, shape: Shape, (x, y): (u64, u64)) -> Result<Plan<'g>> {
        let input = if self.kernels.half { Type::Fp16 } else { Type::Bf16 };
        let described = cublaslt::Shape {
            m: shape.m,
            n: matrix.n,
            k: matrix.k,
            width: matrix.k,
            input,
            output: if shape.wide { Type::Fp32 } else { input },
            compute: Compute::Fp32,
            scales: Scales::None,
        };
        let gpu = self.kernels.gpu;
        let product = gpu.blas()?.product(described, [0, 0])?;
        let time = |algorithm: &Algorithm| fastest(self.kernels, 1, &mut |_| product.enqueue(gpu, algorithm, w, x, y));
        let algorithm = best(product.candidates.clone(), time)?;
        Ok(Plan::Blas(Box::new(product), algorithm))
    }

    fn plain(&self, w: u64, matrix: &Matrix, shape: Shape, (x, y): (u64, u64), choice: Option<Choice>) -> Result<()> {
        let rows = if shape.visits > 0 { shape.visits } else { shape.m };
        let mut defines = self.kernels.flags();
        defines.push(("WIDE", i64::from(shape.wide)));
        let recipe = Recipe { source: PARTS, function: "plain_product", defines, shared: 0 };
        let function = self.kernels.gpu.function(&recipe)?;
        let integer = |value: usize| Argument::Integer(value as i32);
        let arguments = [
            Argument::Address(w),
            Argument::Address(x),
            Argument::Address(choice.map_or(0, |choice| choice.address)),
            Argument::Address(y),
            integer(rows),
            integer(matrix.n),
            integer(matrix.k),
            integer(choice.map_or(1, |choice| choice.active)),
        ];
        chained(self.kernels.gpu, &function, Grid::of((rows * matrix.n).div_ceil(8), 256), &arguments)
    }

    /// Whether what was asked for so far can be recorded: everything is planned when it is asked for first.
    pub fn chains(&self) -> bool {
        chains(self.kernels.gpu)
    }
}

fn key(matrix: &Matrix, shape: Shape) -> Key {
    let Matrix { n, k, turns, .. } = *matrix;
    Key { n, k, turns, bytes: matrix.bytes(), shape }
}

/// Seconds of one call, of three replays over `copies`; infinite where this GPU refuses it.
fn fastest(kernels: Kernels<'_>, copies: usize, ask: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
    let timed = Replay::new(kernels.gpu, copies.max(1), ask).and_then(|replay| {
        let mut least = f64::INFINITY;
        for _ in 0..3 {
            least = least.min(replay.sample(kernels.gpu)?.value());
        }
        Ok(least)
    });
    match timed {
        Err(Error::Gpu { .. }) => Ok(f64::INFINITY),
        other => other,
    }
}

fn best<W>(ways: Vec<W>, time: impl Fn(&W) -> Result<f64>) -> Result<W> {
    let mut found: Option<(f64, W)> = None;
    for way in ways {
        let took = time(&way)?;
        if took.is_finite() && found.as_ref().is_none_or(|(least, _)| took < *least) {
            found = Some((took, way));
        }
    }
    found.map(|(_, way)| way).ok_or_else(|| unsupported("no way of this product runs on this GPU".to_owned()))
}
