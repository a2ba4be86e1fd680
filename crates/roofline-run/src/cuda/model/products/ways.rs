//! Ways of a product, and the fastest of them.

use super::super::{
    Kernels, Matrix,
    matrix::unsupported,
    thin::{Shape, Way},
};
use crate::{
    Error, Result,
    cuda::{
        cublaslt::{Algorithm, Product},
        gemm_packed,
        replay::Replay,
    },
};

/// How much slower than the fastest a way may be alone that is tried in a pass, and how many are.
const NEAR: f64 = 1.2;
pub(super) const MOST_WAYS: usize = 6;
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) turns: bool,
    pub(super) bytes: u64,
    pub(super) shape: Shape,
    /// Whether rows are sorted by their experts.
    pub(super) sorted: bool,
}

pub(super) enum Plan<'g> {
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
pub(super) struct Ways<'g> {
    pub(super) all: Vec<Plan<'g>>,
    pub(super) taken: usize,
    /// Whether all were tried in a pass.
    pub(super) tried: bool,
}

impl<'g> Ways<'g> {
    /// One, and no other.
    pub(super) fn only(plan: Plan<'g>) -> Self {
        Self { all: vec![plan], taken: 0, tried: true }
    }

    /// The first of those that were timed, and whatever is not far behind it.
    pub(super) fn near(ranked: Vec<(f64, Plan<'g>)>) -> Self {
        let least = ranked.first().map_or(0.0, |(took, _)| *took);
        let near = ranked.into_iter().take_while(|(took, _)| *took <= NEAR * least).take(MOST_WAYS);
        let all: Vec<Plan<'g>> = near.map(|(_, plan)| plan).collect();
        Self { tried: all.len() < 2, all, taken: 0 }
    }

    pub(super) fn plan(&self) -> &Plan<'g> {
        &self.all[self.taken]
    }
}

/// A product that has several [ways](super::Products::open).
#[derive(Clone, Copy, Debug)]
pub struct Open {
    pub(super) key: Key,
    /// How many ways there are.
    pub ways: usize,
}

pub(super) fn key(matrix: &Matrix, shape: Shape) -> Key {
    let Matrix { n, k, turns, .. } = *matrix;
    Key { n, k, turns, bytes: matrix.bytes(), shape, sorted: false }
}

/// Seconds of one call, of three replays over `copies`; infinite where this GPU refuses it.
pub(in super::super) fn fastest(
    kernels: Kernels<'_>,
    copies: usize,
    ask: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<f64> {
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
pub(super) fn ranked<W>(ways: Vec<W>, time: impl Fn(&W) -> Result<f64>) -> Result<Vec<(f64, W)>> {
    let timed = ways.into_iter().map(|way| Ok((time(&way)?, way))).collect::<Result<Vec<(f64, W)>>>()?;
    let mut ran: Vec<(f64, W)> = timed.into_iter().filter(|(took, _)| took.is_finite()).collect();
    ran.sort_by(|one, other| one.0.total_cmp(&other.0));
    if ran.is_empty() {
        return Err(unsupported("no way of this product runs on this GPU".to_owned()));
    }
    Ok(ran)
}

pub(in super::super) fn best<W>(ways: Vec<W>, time: impl Fn(&W) -> Result<f64>) -> Result<W> {
    Ok(ranked(ways, time)?.swap_remove(0).1)
}
