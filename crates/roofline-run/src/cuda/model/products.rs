//! Products of any number of rows: few by the packed kernels, many by cuBLASLt, and whatever fits neither by a plain one.
//! Which way is fastest is found on the model's own weights, those of all layers in turn so that none stays in the cache.

mod asked;
mod many_rows;
mod ways;

use std::collections::HashMap;

use self::ways::{Key, Plan, Ways, key, ranked};
pub(super) use self::ways::{best, fastest};
pub use self::{
    asked::{Choice, Linear, Sum, Unnormed},
    ways::Open,
};
use super::{
    Kernels, Matrix, Memory,
    matrix::{Tiles, unsupported},
    thin::{self, Shape},
};
use crate::{
    Result,
    cuda::{THIN_ROWS, compiler::Architecture, gemv_packed::Stored},
};

/// Most rows of products of more than few that apply a gate; of 16-bit weights, which cuBLASLt multiplies faster beyond.
const GATED_ROWS: usize = 64;
const GATED_SIXTEEN: usize = 32;

/// Rows of chosen experts that one kernel takes.
const MOST_VISITS: usize = 32 << 10;

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
    /// Sums that blocks leave for each other, those that say that they have come, and how many have.
    partial: Memory,
    marked: Memory,
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
            marked: none()?,
            counters: Memory::zeroed(kernels.gpu, 16)?,
            grew: false,
        })
    }

    /// Whether a gate is applied within the product.
    pub fn gates(&self, matrix: &Matrix, m: usize) -> bool {
        let few = matrix.packed.is_some() && m <= THIN_ROWS;
        let hopper = self.kernels.gpu.architecture == Architecture { major: 9, minor: 0 };
        let most = |own: &Tiles| if own.stored == Stored::Sixteen { GATED_SIXTEEN } else { GATED_ROWS };
        let more = m > THIN_ROWS && matrix.tiled.as_ref().is_some_and(|own| m <= most(own));
        let whole = hopper && matrix.experts == 1 && !matrix.narrows() && matrix.n.is_multiple_of(128);
        matrix.turns && (few || more && whole)
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
                Plan::Tiled(product) => self.run_tiled(product, matrix, (&linear, 0), starts),
                _ => Err(unsupported("another way of a product of experts".to_owned())),
            };
            let plan = best(ways, |way| fastest(self.kernels, peers.len(), &mut |at| ask(way, peers[at])))?;
            self.plans.insert(key, Ways::only(plan));
        }
        match self.plans[&key].plan() {
            Plan::Tiled(product) => self.run_tiled(product, matrix, (&linear, 0), starts),
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
        if matrix.narrows() {
            self.room_for_codes(matrix, asked.m)?;
        }
        let shape = Shape::of(asked, choice.map_or(0, |choice| choice.visits));
        let key = key(matrix, shape);
        if !self.plans.contains_key(&key) {
            let ways = self.plan(matrix, peers, asked, choice)?;
            self.plans.insert(key, ways);
        }
        self.enqueue(self.plans[&key].plan(), matrix, asked, choice)
    }

    /// A product by one of its ways, with a kernel in front that rounds its inputs where that is not done within.
    fn enqueue(&self, plan: &Plan<'g>, matrix: &Matrix, asked: &Linear, choice: Option<Choice>) -> Result<()> {
        let mut linear = *asked;
        let mut scales = [0, 0];
        let within = matches!(plan, Plan::Thin(way) if way.narrows);
        if matrix.narrows() && !within {
            self.narrow(matrix, linear.m, linear.x)?;
            linear.x = self.codes.address();
            scales = [self.scales[0].address(), self.scales[1].address()];
        }
        match plan {
            Plan::Thin(way) => thin::enqueue(&self.kernels, way, matrix, &linear, scales[0], choice),
            Plan::Slices(way) => self.run_slices(way, matrix, &linear),
            Plan::Tiled(product) => self.run_tiled(product, matrix, (&linear, scales[0]), 0),
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

    /// Ways that run on this GPU, by the time each takes on `peers`.
    fn ranked(
        &self,
        ways: Vec<Plan<'g>>,
        peers: &[&Matrix],
        linear: &Linear,
        choice: Option<Choice>,
    ) -> Result<Vec<(f64, Plan<'g>)>> {
        ranked(ways, |way| fastest(self.kernels, peers.len(), &mut |at| self.enqueue(way, peers[at], linear, choice)))
    }

    fn plan(
        &mut self,
        matrix: &Matrix,
        peers: &[&Matrix],
        linear: &Linear,
        choice: Option<Choice>,
    ) -> Result<Ways<'g>> {
        let shape = Shape::of(linear, choice.map_or(0, |choice| choice.visits));
        let same = |peer: &&&Matrix| key(peer, shape) == key(matrix, shape);
        let mut peers: Vec<&Matrix> = peers.iter().filter(same).copied().collect();
        if peers.is_empty() {
            peers.push(matrix);
        }
        if matrix.packed.is_some() && linear.m <= THIN_ROWS {
            let ways = thin::ways(&self.kernels, matrix, shape)?.into_iter().map(Plan::Thin).collect();
            return Ok(Ways::near(self.ranked(ways, &peers, linear, choice)?));
        }
        if linear.unnormed.is_some() || linear.sum.is_some() {
            return Err(unsupported("a norm within a product of many rows".to_owned()));
        }
        if linear.gated {
            return self.gated(matrix, &peers, linear);
        }
        if matrix.narrows() {
            return self.narrow_ways(matrix, &peers, linear);
        }
        if choice.is_some() || !matrix.k.is_multiple_of(8) {
            return Ok(Ways::only(Plan::Plain));
        }
        self.many(matrix, &peers, linear)
    }
}
