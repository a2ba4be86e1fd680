//! Products of any number of rows: few by the packed kernels, many by cuBLASLt, and whatever fits neither by a plain one.
//! Which way is fastest is found on the model's own weights, those of all layers in turn so that none stays in the cache.

use std::collections::HashMap;

use super::{
    Kernels, Matrix, Memory,
    launch::{Grid, chained},
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
        gemm_packed::{self, Addresses, Tiled},
        gemv_packed::Stored,
        gpu::Recipe,
        replay::Replay,
    },
};

/// Rows up to which kernels of few rows may be faster, a few at a time.
const SLICED: usize = 64;
/// How much slower than the fastest a way may be alone that is tried in a pass, and how many are.
const NEAR: f64 = 1.2;
const MOST_WAYS: usize = 6;
/// Rows of chosen experts that one kernel takes.
const MOST_VISITS: usize = 32 << 10;

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

/// A norm of inputs that is still to be done: they were multiplied by its weights, and not divided by their root mean square.
#[derive(Clone, Copy, Debug)]
pub struct Unnormed {
    /// For each row, sums of squares of every 16 numbers.
    pub squares: u64,
    /// What is added to the mean square.
    pub epsilon: f32,
}

/// Where outputs are added to the stream. Rows are whole sixteens.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// The stream, in FP32.
    pub from: u64,
    /// Where it goes on, elsewhere: a product may be asked for twice.
    pub to: u64,
    /// Weights of the norm behind it, which outputs are multiplied by.
    pub norm: u64,
    /// Where the rest of that norm is left, as in [`Unnormed`].
    pub squares: u64,
}

/// A product `y = x W^T`, beside its weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linear {
    /// Rows of x.
    pub m: usize,
    /// 16-bit numbers.
    pub x: u64,
    /// 16-bit numbers too, unless `wide`.
    pub y: u64,
    /// Whether outputs are FP32.
    pub wide: bool,
    /// Whether the gate is applied within, where it [can be](Products::gates).
    pub gated: bool,
    /// What is left of a norm of x; products of [few rows](Products::fuses) only.
    pub unnormed: Option<Unnormed>,
    /// What outputs are added to; likewise.
    pub sum: Option<Sum>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    n: usize,
    k: usize,
    turns: bool,
    bytes: u64,
    shape: Shape,
    /// Whether rows are sorted by their experts.
    sorted: bool,
}

enum Plan<'g> {
    Thin(Way),
    /// Few rows at a time.
    Slices(Way),
    /// More rows at once.
    Tiled(gemm_packed::Product),
    Blas(Box<Product<'g>>, Algorithm),
    /// The same of 8-bit numbers.
    Narrow(Box<Product<'g>>, Algorithm),
    Plain,
}

/// Ways that are about as fast as each other where nothing but the product runs, the fastest first; and the one that is taken.
/// Within a pass kernels overlap with their neighbours, and another of them may be faster.
struct Ways<'g> {
    all: Vec<Plan<'g>>,
    taken: usize,
    /// Whether all were tried in a pass.
    tried: bool,
}

impl<'g> Ways<'g> {
    /// One, and no other.
    fn only(plan: Plan<'g>) -> Self {
        Self { all: vec![plan], taken: 0, tried: true }
    }

    /// The first of those that were timed, and whatever is not far behind it.
    fn near(ranked: Vec<(f64, Plan<'g>)>) -> Self {
        let least = ranked.first().map_or(0.0, |(took, _)| *took);
        let near = ranked.into_iter().take_while(|(took, _)| *took <= NEAR * least).take(MOST_WAYS);
        let all: Vec<Plan<'g>> = near.map(|(_, plan)| plan).collect();
        Self { tried: all.len() < 2, all, taken: 0 }
    }

    fn plan(&self) -> &Plan<'g> {
        &self.all[self.taken]
    }
}

/// A product that has several [ways](Products::open).
#[derive(Clone, Copy, Debug)]
pub struct Open {
    key: Key,
    /// How many ways there are.
    pub ways: usize,
}

/// The products of a model.
pub struct Products<'g> {
    kernels: Kernels<'g>,
    plans: HashMap<Key, Ways<'g>>,
    /// Room for one matrix as rows of 16-bit numbers.
    scratch: Memory,
    /// Inputs as codes, their scales in BF16 and in FP32, and sums that are not scaled yet.
    codes: Memory,
    scales: [Memory; 2],
    sums: Memory,
    /// Sums that blocks leave for each other, and how many have.
    partial: Memory,
    counters: Memory,
    /// Whether any of these was replaced by a larger one.
    grew: bool,
}

impl<'g> Products<'g> {
    /// With room to widen matrices of up to `widest` bytes.
    pub fn new(kernels: Kernels<'g>, widest: usize) -> Result<Self> {
        let none = || Memory::new(kernels.gpu, 0);
        let (plans, scratch) = (HashMap::new(), Memory::new(kernels.gpu, widest)?);
        let (scales, partial) = ([none()?, none()?], none()?);
        Ok(Self {
            kernels,
            plans,
            scratch,
            codes: none()?,
            scales,
            sums: none()?,
            partial,
            counters: Memory::zeroed(kernels.gpu, 16)?,
            grew: false,
        })
    }

    /// Inputs of a product of 8-bit numbers.
    fn narrow(&mut self, matrix: &Matrix, m: usize, x: u64) -> Result<()> {
        let gpu = self.kernels.gpu;
        if self.codes.bytes() < m * matrix.k || self.scales[0].bytes() < 2 * m {
            gpu.wait()?;
            self.codes = Memory::new(gpu, (m * matrix.k).max(self.codes.bytes()))?;
            let rows = m.max(self.scales[0].bytes() / 2);
            self.scales = [Memory::new(gpu, 2 * rows)?, Memory::new(gpu, 4 * rows)?];
            self.grew = true;
        }
        let kind = matrix.packed.as_ref().map_or(0, |packed| if packed.stored == Stored::BothInt8 { 1 } else { 2 });
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

    /// Whether a gate is applied within the product.
    pub fn gates(matrix: &Matrix, m: usize) -> bool {
        matrix.turns && matrix.packed.is_some() && m <= THIN_ROWS
    }

    /// Whether a product may do a part of the norms before and behind it.
    pub fn fuses(&self, matrix: &Matrix, m: usize) -> bool {
        // Rows that are not normed yet may be past what a half holds.
        let whole = matrix.k.is_multiple_of(64) && matrix.n.is_multiple_of(16);
        whole && matrix.packed.is_some() && m <= THIN_ROWS && !self.kernels.half
    }

    /// Products of `m` rows with several ways that were not tried in a pass yet.
    pub fn open(&self, m: usize) -> Vec<Open> {
        let open = |(key, ways): (&Key, &Ways<'g>)| {
            (!ways.tried && key.shape.m == m).then_some(Open { key: *key, ways: ways.all.len() })
        };
        let mut all: Vec<Open> = self.plans.iter().filter_map(open).collect();
        // The largest first, and always in the same order.
        all.sort_by_key(|open| std::cmp::Reverse((open.key.bytes, open.key.n, open.key.shape.visits)));
        all
    }

    /// Whether memory that recorded passes use has been replaced since this was last asked: they must not run again.
    pub fn take_grew(&mut self) -> bool {
        std::mem::take(&mut self.grew)
    }

    /// Takes one of the ways, from here on.
    pub fn choose(&mut self, open: Open, way: usize) {
        if let Some(ways) = self.plans.get_mut(&open.key) {
            (ways.taken, ways.tried) = (way.min(ways.all.len() - 1), true);
        }
    }

    /// A product. `peers` are matrices of the same shape, itself among them, to find the fastest way on.
    pub fn run(&mut self, matrix: &Matrix, peers: &[&Matrix], linear: &Linear) -> Result<()> {
        self.planned(matrix, peers, linear, None)
    }

    /// The same for rows that are sorted by their experts: `starts` says which row is the first of each.
    pub fn run_sorted(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        starts: u64,
        (m, x, y): (usize, u64, u64),
    ) -> Result<()> {
        let linear = Linear { m, x, y, ..Linear::default() };
        let key = Key { sorted: true, ..key(matrix, Shape::of(&linear, 0)) };
        if !self.plans.contains_key(&key) {
            let same = |peer: &&&Matrix| self::key(peer, key.shape) == self::key(matrix, key.shape);
            let peers: Vec<&Matrix> = peers.iter().filter(same).copied().collect();
            let ways = self.tiled(matrix, key.shape)?;
            let ask = |way: &Plan<'g>, matrix: &Matrix| match way {
                Plan::Tiled(product) => self.run_tiled(product, matrix, &linear, starts),
                _ => Err(unsupported("another way of a product of experts".to_owned())),
            };
            let plan = best(ways, |way| fastest(self.kernels, peers.len(), &mut |at| ask(way, peers[at])))?;
            self.plans.insert(key, Ways::only(plan));
        }
        match self.plans[&key].plan() {
            Plan::Tiled(product) => self.run_tiled(product, matrix, &linear, starts),
            _ => Err(unsupported("another way of a product of experts".to_owned())),
        }
    }

    /// Rows of outputs of chosen experts, one by one: fast where they are few.
    pub fn run_chosen(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        choice: Choice,
        (x, y): (u64, u64),
        gated: bool,
    ) -> Result<()> {
        let width = if gated { matrix.n / 2 } else { matrix.n };
        // A grid has so many blocks in its second dimension.
        let most = MOST_VISITS / choice.active * choice.active;
        for first in (0..choice.visits).step_by(most) {
            let (x, y) = (x + (2 * first / choice.active * matrix.k) as u64, y + (2 * first * width) as u64);
            let linear = Linear { m: 1, x, y, gated, ..Linear::default() };
            let visits = most.min(choice.visits - first);
            let choice = Choice { address: choice.address + 4 * first as u64, visits, ..choice };
            self.planned(matrix, peers, &linear, Some(choice))?;
        }
        Ok(())
    }

    fn planned(&mut self, matrix: &Matrix, peers: &[&Matrix], asked: &Linear, choice: Option<Choice>) -> Result<()> {
        let mut linear = *asked;
        let mut scales = 0;
        if matrix.narrows() {
            self.narrow(matrix, linear.m, linear.x)?;
            (linear.x, scales) = (self.codes.address(), self.scales[0].address());
        }
        let shape = Shape::of(&linear, choice.map_or(0, |choice| choice.visits));
        let key = key(matrix, shape);
        if !self.plans.contains_key(&key) {
            let ways = self.plan(matrix, peers, (&linear, scales), choice)?;
            self.plans.insert(key, ways);
        }
        match self.plans[&key].plan() {
            Plan::Thin(way) => thin::enqueue(&self.kernels, way, matrix, &linear, scales, choice),
            Plan::Slices(way) => self.run_slices(way, matrix, &linear),
            Plan::Tiled(product) => self.run_tiled(product, matrix, &linear, 0),
            Plan::Narrow(product, algorithm) => self.run_narrow(product, algorithm, matrix, &linear),
            Plan::Blas(product, algorithm) => {
                let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
                product.enqueue(self.kernels.gpu, algorithm, w, linear.x, linear.y)
            }
            Plan::Plain => {
                let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
                self.plain(w, matrix, &linear, choice)
            }
        }
    }

    fn run_narrow(&self, product: &Product<'g>, algorithm: &Algorithm, matrix: &Matrix, linear: &Linear) -> Result<()> {
        let gpu = self.kernels.gpu;
        let (Some([weights, scales]), Some(packed)) = (&matrix.narrow, &matrix.packed) else {
            return Err(unsupported("a matrix without 8-bit rows".to_owned()));
        };
        let codes = self.codes.address();
        if packed.stored == Stored::BothFp8 {
            product.rescale([scales.address(), self.scales[1].address()])?;
            return product.enqueue(gpu, algorithm, weights.address(), codes, linear.y);
        }
        product.enqueue(gpu, algorithm, weights.address(), codes, self.sums.address())?;
        let mut defines = self.kernels.flags();
        defines.push(("WIDE", i64::from(linear.wide)));
        let function = gpu.function(&Recipe { source: PARTS, function: "scaled", defines, shared: 0 })?;
        let integer = |value: usize| Argument::Integer(value as i32);
        let places = [self.sums.address(), scales.address(), self.scales[1].address(), linear.y].map(Argument::Address);
        let arguments = [&places[..], &[integer(linear.m), integer(matrix.n)]].concat();
        chained(gpu, &function, Grid::of(gpu.multiprocessors as usize * 8, 256), &arguments)
    }

    /// 8-bit numbers on both sides, by cuBLASLt.
    fn narrow_blas(&mut self, matrix: &Matrix, linear: &Linear) -> Result<Plan<'g>> {
        let gpu = self.kernels.gpu;
        let fp8 = matrix.packed.as_ref().is_some_and(|packed| packed.stored == Stored::BothFp8);
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
            self.sums = Memory::new(gpu, 4 * linear.m * matrix.n)?;
            self.grew = true;
        }
        let scales = matrix.narrow.as_ref().map_or(0, |[_, scales]| scales.address());
        let product = gpu.blas()?.product(described, [scales, self.scales[1].address()])?;
        let time = |algorithm: &Algorithm| {
            fastest(self.kernels, 1, &mut |_| self.run_narrow(&product, algorithm, matrix, linear))
        };
        let algorithm = best(product.candidates.clone(), time)?;
        Ok(Plan::Narrow(Box::new(product), algorithm))
    }

    fn plan(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        (linear, scales): (&Linear, u64),
        choice: Option<Choice>,
    ) -> Result<Ways<'g>> {
        let shape = Shape::of(linear, choice.map_or(0, |choice| choice.visits));
        let same = |peer: &&&Matrix| key(peer, shape) == key(matrix, shape);
        let mut peers: Vec<&Matrix> = peers.iter().filter(same).copied().collect();
        if peers.is_empty() {
            peers.push(matrix);
        }
        if matrix.packed.is_some() && linear.m <= THIN_ROWS {
            let ways = thin::ways(&self.kernels, matrix, shape)?;
            let time = |way: &Way| {
                fastest(self.kernels, peers.len(), &mut |at| {
                    thin::enqueue(&self.kernels, way, peers[at], linear, scales, choice)
                })
            };
            let ranked = ranked(ways, time)?;
            return Ok(Ways::near(ranked.into_iter().map(|(took, way)| (took, Plan::Thin(way))).collect()));
        }
        if linear.gated || linear.unnormed.is_some() || linear.sum.is_some() {
            return Err(unsupported("a gate or a norm within a product of many rows".to_owned()));
        }
        if matrix.narrows() {
            return self.narrow_blas(matrix, linear).map(Ways::only);
        }
        if choice.is_some() || !matrix.k.is_multiple_of(8) {
            return Ok(Ways::only(Plan::Plain));
        }
        self.many(matrix, &peers, linear)
    }

    /// The fastest of all ways of a product of many rows.
    fn many(&mut self, matrix: &Matrix, peers: &[&Matrix], linear: &Linear) -> Result<Ways<'g>> {
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
        if ways.len() == 1 {
            return Ok(Ways::only(ways.remove(0)));
        }
        let ask = |way: &Plan<'g>, matrix: &Matrix| match way {
            Plan::Slices(way) => self.run_slices(way, matrix, linear),
            Plan::Tiled(product) => self.run_tiled(product, matrix, linear, 0),
            Plan::Blas(product, algorithm) => {
                let w = matrix.rows(&self.kernels, 0, &self.scratch)?;
                product.enqueue(self.kernels.gpu, algorithm, w, linear.x, linear.y)
            }
            _ => Err(unsupported("another way of a product of many rows".to_owned())),
        };
        let mut ranked = ranked(ways, |way| fastest(self.kernels, peers.len(), &mut |at| ask(way, peers[at])))?;
        // What lies between long kernels does not matter.
        ranked.truncate(if linear.m <= SLICED { MOST_WAYS } else { 1 });
        Ok(Ways::near(ranked))
    }

    fn run_slices(&self, way: &Way, matrix: &Matrix, linear: &Linear) -> Result<()> {
        let size = if linear.wide { 4 } else { 2 };
        for first in (0..linear.m).step_by(THIN_ROWS) {
            let (x, y) = (linear.x + (2 * first * matrix.k) as u64, linear.y + (size * first * matrix.n) as u64);
            let slice = Linear { m: THIN_ROWS.min(linear.m - first), x, y, ..*linear };
            thin::enqueue(&self.kernels, way, matrix, &slice, 0, None)?;
        }
        Ok(())
    }

    /// The ways of `kernels/gemm_wgmma.cu` and its like.
    fn tiled(&mut self, matrix: &Matrix, shape: Shape) -> Result<Vec<Plan<'g>>> {
        let gpu = self.kernels.gpu;
        let Some(own) = &matrix.tiled else { return Ok(Vec::new()) };
        let Matrix { n, k, experts, .. } = *matrix;
        let tiled = Tiled { stored: own.stored, half: self.kernels.half, m: shape.m, n, k, matrices: experts };
        let Ok(products) = gemm_packed::Product::candidates(gpu, tiled, [own.tensor, 1.0]) else {
            return Ok(Vec::new());
        };
        let most = |bytes: fn(&gemm_packed::Product) -> usize| products.iter().map(bytes).max().unwrap_or(0);
        let (partial, counters) =
            (most(gemm_packed::Product::partial_bytes), most(gemm_packed::Product::counter_bytes));
        if self.partial.bytes() < partial || self.counters.bytes() < counters {
            gpu.wait()?;
            self.partial = Memory::new(gpu, partial.max(self.partial.bytes()))?;
            self.counters = Memory::zeroed(gpu, counters.max(self.counters.bytes()))?;
            self.grew = true;
        }
        Ok(products.into_iter().map(Plan::Tiled).collect())
    }

    fn run_tiled(&self, product: &gemm_packed::Product, matrix: &Matrix, linear: &Linear, starts: u64) -> Result<()> {
        let Some(own) = &matrix.tiled else {
            return Err(unsupported("a matrix without tiles".to_owned()));
        };
        let [weights, scales, partial, counters] =
            [&own.weights, &own.scales, &self.partial, &self.counters].map(Memory::address);
        let (x, y) = (linear.x, linear.y);
        product.enqueue(self.kernels.gpu, &Addresses { weights, scales, x, x_scales: 0, y, partial, counters, starts })
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
        let product = gpu.blas()?.product(described, [0, 0])?;
        let time = |algorithm: &Algorithm| {
            fastest(self.kernels, 1, &mut |_| product.enqueue(gpu, algorithm, w, linear.x, linear.y))
        };
        let algorithm = best(product.candidates.clone(), time)?;
        Ok(Plan::Blas(Box::new(product), algorithm))
    }

    fn plain(&self, w: u64, matrix: &Matrix, linear: &Linear, choice: Option<Choice>) -> Result<()> {
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

fn key(matrix: &Matrix, shape: Shape) -> Key {
    let Matrix { n, k, turns, .. } = *matrix;
    Key { n, k, turns, bytes: matrix.bytes(), shape, sorted: false }
}

/// Seconds of one call, of three replays over `copies`; infinite where this GPU refuses it.
pub(super) fn fastest(kernels: Kernels<'_>, copies: usize, ask: &mut dyn FnMut(usize) -> Result<()>) -> Result<f64> {
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

/// What runs on this GPU, by the time it takes.
fn ranked<W>(ways: Vec<W>, time: impl Fn(&W) -> Result<f64>) -> Result<Vec<(f64, W)>> {
    let timed = ways.into_iter().map(|way| Ok((time(&way)?, way))).collect::<Result<Vec<(f64, W)>>>()?;
    let mut ran: Vec<(f64, W)> = timed.into_iter().filter(|(took, _)| took.is_finite()).collect();
    ran.sort_by(|one, other| one.0.total_cmp(&other.0));
    if ran.is_empty() {
        return Err(unsupported("no way of this product runs on this GPU".to_owned()));
    }
    Ok(ran)
}

pub(super) fn best<W>(ways: Vec<W>, time: impl Fn(&W) -> Result<f64>) -> Result<W> {
    Ok(ranked(ways, time)?.swap_remove(0).1)
}
