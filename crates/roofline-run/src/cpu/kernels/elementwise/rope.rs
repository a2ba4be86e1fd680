//! Rotary positions: feature `i` and feature `i + d/2` of a head turn by `position * base^(-2i/d)` (Su et al., arXiv
//! 2104.09864, in the half-split order of Llama checkpoints). Models that stretch their context bring frequencies of their
//! own; models that turn only the first features of a head leave the others as they are.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::{Kernel, Vector, launch};

use super::{Elementwise, Heads, PIECE, Pointers, Target, cache::cast, split};
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
    /// Radians from a position to the next, of each pair of features.
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by.
    factor: f64,
    /// Per position: as many cosines as pairs, then as many sines.
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
        assert!(width.is_multiple_of(2), "no kernel turns heads of {width} features");
        let frequencies: Vec<f64> = (0..width / 2).map(|at| base.powf(-2.0 * at as f64 / width as f64)).collect();
        Self::with_frequencies(&frequencies, 1.0, positions)
    }

    /// For frequencies of one's own: one for each pair of features that is turned, in radians per position. Cosines and
    /// sines are multiplied by `factor`, as YaRN (arXiv 2309.00071) and LongRoPE (arXiv 2402.13753) ask.
    ///
    /// # Panics
    ///
    /// When more than [`Self::WIDEST`] features are turned.
    pub fn with_frequencies(frequencies: &[f64], factor: f32, positions: usize) -> Self {
        let turned = 2 * frequencies.len();
        assert!(turned <= Self::WIDEST, "no kernel turns {turned} features of a head");
        let mut rotations = Self { frequencies: frequencies.to_vec(), factor: f64::from(factor), table: Vec::new() };
        rotations.grow(positions);
        rotations
    }

    /// Adds positions until there are `positions` of them: a context that is never reached takes no memory.
    pub fn grow(&mut self, positions: usize) {
        for position in self.positions()..positions {
            let angles = self.frequencies.iter().map(|frequency| position as f64 * frequency);
            self.table.extend(angles.clone().map(|angle| (angle.cos() * self.factor) as f32));
            self.table.extend(angles.map(|angle| (angle.sin() * self.factor) as f32));
        }
    }

    /// Positions there are.
    pub fn positions(&self) -> usize {
        self.table.len().checked_div(self.turned()).unwrap_or(0)
    }

    /// Features of a head that are turned.
    pub fn turned(&self) -> usize {
        2 * self.frequencies.len()
    }
}

impl Elementwise {
    /// Turns `x`, whose rows are `vectors` heads of each token, to the tokens' `positions`. Features of a head past those
    /// that are turned are copied.
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
        assert_eq!(x.rows, positions.len() * vectors, "there is not one position per token");
        let heads = Heads::dense(vectors, x.columns);
        let x = Tensor { rows: positions.len(), columns: heads.pitch, ..x };
        self.rope_heads(pool, (x, heads), rotations, positions, (out, heads))
    }

    /// The same for heads inside of wider rows, from where they lie to where they are wanted.
    ///
    /// # Panics
    ///
    /// When shapes disagree or a position has no rotation.
    pub fn rope_heads(
        &self,
        pool: &mut Pool,
        (x, from): (Tensor<'_>, Heads),
        rotations: &Rotations,
        positions: &[usize],
        (out, to): (Target<'_>, Heads),
    ) -> Result<(), Unsupported> {
        assert_eq!(x.rows, positions.len(), "there is not one position per token");
        assert_eq!((from.count, from.width), (to.count, to.width), "the heads have different shapes");
        let kinds = (from.input(&x)?, to.output(&out, x.rows)?);
        self.turn(pool, kinds, (x.codes.as_ptr(), from), rotations, positions, (out.codes.as_mut_ptr(), to));
        Ok(())
    }

    /// The same in place: what is not turned is not touched.
    ///
    /// # Panics
    ///
    /// When shapes disagree or a position has no rotation.
    pub fn rope_in_place(
        &self,
        pool: &mut Pool,
        x: Target<'_>,
        heads: Heads,
        rotations: &Rotations,
        positions: &[usize],
    ) -> Result<(), Unsupported> {
        let kind = heads.output(&x, positions.len())?;
        let codes = x.codes;
        let start = codes.as_mut_ptr();
        self.turn(pool, (kind, kind), (start.cast_const(), heads), rotations, positions, (start, heads));
        Ok(())
    }

    fn turn(
        self,
        pool: &mut Pool,
        kinds: (Kind, Kind),
        (a, from): (*const u8, Heads),
        rotations: &Rotations,
        positions: &[usize],
        (out, to): (*mut u8, Heads),
    ) {
        assert!(rotations.turned() <= from.width, "the rotations are for heads of another width");
        let known = rotations.positions();
        assert!(positions.iter().all(|position| *position < known), "a position has no rotation");
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        let rows = positions.len() * from.count;
        let bytes = rows * from.width * (kinds.0.bytes() + kinds.1.bytes());
        split(pool, rows, 1, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Turn { pointers: *pointers, kinds, from, to, rotations, positions, part });
        });
    }
}

struct Turn<'a> {
    pointers: Pointers,
    kinds: (Kind, Kind),
    from: Heads,
    to: Heads,
    rotations: &'a Rotations,
    positions: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for Turn<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let half = self.rotations.frequencies.len();
            let (mut low, mut high) = ([0f32; PIECE], [0f32; PIECE]);
            for row in self.part {
                let (token, head) = (row / self.from.count, row % self.from.count);
                let from = self.pointers.a.add(self.from.place(token, head) * self.kinds.0.bytes());
                widen::<V>(self.kinds.0, from, half, low.as_mut_ptr());
                widen::<V>(self.kinds.0, from.add(half * self.kinds.0.bytes()), half, high.as_mut_ptr());
                let start = self.positions[token] * 2 * half;
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
                let to = self.pointers.out.add(self.to.place(token, head) * self.kinds.1.bytes());
                narrow::<V>(self.kinds.1, low.as_ptr(), half, to);
                narrow::<V>(self.kinds.1, high.as_ptr(), half, to.add(half * self.kinds.1.bytes()));
                let rest = self.from.width - 2 * half;
                if rest > 0 && !std::ptr::eq(from, to) {
                    let from = from.add(2 * half * self.kinds.0.bytes());
                    cast::<V>(self.kinds, from, rest, to.add(2 * half * self.kinds.1.bytes()));
                }
            }
        }
    }
}
