//! Rotary positions: feature `i` and feature `i + d/2` of a head turn by `position * base^(-2i/d)` (Su et al., arXiv
//! 2104.09864, in the half-split order of Llama checkpoints).

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::{Kernel, Vector, launch};

use super::{Elementwise, PIECE, Pointers, Target, plain, split, target};
use crate::cpu::{
    kernels::{
        convert::{narrow, widen},
        element::Kind,
    },
    pool::Pool,
    tensor::Tensor,
    unsupported::Unsupported,
};

/// Cosines and sines of every position, computed once.
pub struct Rotations {
    half: usize,
    /// Per position: `half` cosines, then `half` sines.
    table: Vec<f32>,
}

impl Rotations {
    /// Features of the widest head that is turned: both halves of it are pieces.
    pub const WIDEST: usize = 2 * PIECE;

    /// For heads of `width` features, which must be even, and positions below `positions`.
    ///
    /// # Panics
    ///
    /// When `width` is odd or beyond [`Self::WIDEST`].
    pub fn new(width: usize, base: f64, positions: usize) -> Self {
        assert!(width.is_multiple_of(2) && width <= Self::WIDEST, "no kernel turns heads of {width} features");
        let half = width / 2;
        let mut table = Vec::with_capacity(positions * width);
        for position in 0..positions {
            let angle = |at: usize| position as f64 * base.powf(-2.0 * at as f64 / width as f64);
            table.extend((0..half).map(|at| angle(at).cos() as f32));
            table.extend((0..half).map(|at| angle(at).sin() as f32));
        }
        Self { half, table }
    }

    /// Positions there are.
    pub fn positions(&self) -> usize {
        self.table.len().checked_div(2 * self.half).unwrap_or(0)
    }
}

impl Elementwise {
    /// Turns `x`, whose rows are `vectors` heads of each token, to the tokens' `positions`.
    ///
    /// # Panics
    ///
    /// When shapes disagree or a position has no rotation.
    pub fn rope(
        &self,
        pool: &mut Pool,
        x: Tensor<'_>,
        vectors: usize,
        rotations: &Rotations,
        positions: &[usize],
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        assert_eq!(x.columns, 2 * rotations.half, "the rotations are for heads of another width");
        assert_eq!(x.rows, positions.len() * vectors, "there is not one position per token");
        let known = rotations.positions();
        assert!(positions.iter().all(|position| *position < known), "a position has no rotation");
        let from = plain("input", &x)?;
        let to = target(&out, x.rows * x.columns)?;
        let codes = out.codes;
        let (a, out) = (x.codes.as_ptr(), codes.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        let bytes = x.rows * x.columns * (from.bytes() + to.bytes());
        split(pool, x.rows, 1, bytes, |part| {
            let pointers = &pointers;
            let kinds = (from, to);
            launch(self.isa, Turn { pointers: *pointers, kinds, vectors, rotations, positions, part });
        });
        Ok(())
    }
}

struct Turn<'a> {
    pointers: Pointers,
    kinds: (Kind, Kind),
    vectors: usize,
    rotations: &'a Rotations,
    positions: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for Turn<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let half = self.rotations.half;
            let (mut low, mut high) = ([0f32; PIECE], [0f32; PIECE]);
            for row in self.part {
                let from = self.pointers.a.add(row * 2 * half * self.kinds.0.bytes());
                widen::<V>(self.kinds.0, from, half, low.as_mut_ptr());
                widen::<V>(self.kinds.0, from.add(half * self.kinds.0.bytes()), half, high.as_mut_ptr());
                let start = self.positions[row / self.vectors] * 2 * half;
                let (cos, sin) = self.rotations.table[start..start + 2 * half].split_at(half);
                let mut at = 0;
                while at + V::LANES <= half {
                    let (x, y) = (V::load(low.as_ptr().add(at)), V::load(high.as_ptr().add(at)));
                    let (c, s) = (V::load(cos.as_ptr().add(at)), V::load(sin.as_ptr().add(at)));
                    x.mul(c).sub(y.mul(s)).store(low.as_mut_ptr().add(at));
                    y.mul(c).add(x.mul(s)).store(high.as_mut_ptr().add(at));
                    at += V::LANES;
                }
                for at in at..half {
                    let (x, y) = (low[at], high[at]);
                    low[at] = x * cos[at] - y * sin[at];
                    high[at] = y * cos[at] + x * sin[at];
                }
                let to = self.pointers.out.add(row * 2 * half * self.kinds.1.bytes());
                narrow::<V>(self.kinds.1, low.as_ptr(), half, to);
                narrow::<V>(self.kinds.1, high.as_ptr(), half, to.add(half * self.kinds.1.bytes()));
            }
        }
    }
}
