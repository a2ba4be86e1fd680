//! Kernels that need a whole row before they can write any of it: norm and softmax. A row is read twice, the second time
//! from the cache.

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

#[derive(Clone, Copy)]
enum Does<'a> {
    Norm { weight: &'a [f32], epsilon: f32 },
    Softmax,
}

impl Elementwise {
    /// RMSNorm: `out = x / sqrt(mean(x^2) + epsilon) * weight`, row by row.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn norm(
        &self,
        pool: &mut Pool,
        x: Tensor<'_>,
        weight: &[f32],
        epsilon: f32,
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        assert_eq!(weight.len(), x.columns, "the weight has another length than a row");
        self.rows(pool, Does::Norm { weight, epsilon }, x, out)
    }

    /// `out = e^(x - max) / sum`, row by row.
    pub fn softmax(&self, pool: &mut Pool, x: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        self.rows(pool, Does::Softmax, x, out)
    }

    fn rows(self, pool: &mut Pool, does: Does<'_>, x: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        let from = plain("input", &x)?;
        let to = target(&out, x.rows * x.columns)?;
        let codes = out.codes;
        let (a, out) = (x.codes.as_ptr(), codes.as_mut_ptr());
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        let bytes = x.rows * x.columns * (from.bytes() + to.bytes());
        split(pool, x.rows, 1, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Rows { does, pointers: *pointers, kinds: (from, to), width: x.columns, part });
        });
        Ok(())
    }
}

struct Rows<'a> {
    does: Does<'a>,
    pointers: Pointers,
    kinds: (Kind, Kind),
    width: usize,
    part: std::ops::Range<usize>,
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut piece = [0f32; PIECE];
            for row in self.part.clone() {
                match self.does {
                    Does::Norm { weight, epsilon } => {
                        let mut squares = V::zero();
                        let mut start = 0;
                        while start < self.width {
                            let n = self.take::<V>(row, start, 0.0, &mut piece);
                            let mut at = 0;
                            while at < n {
                                let x = V::load(piece.as_ptr().add(at));
                                squares = x.fma(x, squares);
                                at += V::LANES;
                            }
                            start += n;
                        }
                        let mean = squares.sum() / self.width as f32;
                        let factor = V::splat(1.0 / (mean + epsilon).sqrt());
                        self.scale::<V>(row, &mut piece, |x| x.mul(factor), Some(weight));
                    }
                    Does::Softmax => {
                        let log2e = V::splat(std::f32::consts::LOG2_E);
                        let (mut largest, mut total) = (f32::NEG_INFINITY, 0f32);
                        let mut start = 0;
                        while start < self.width {
                            let n = self.take::<V>(row, start, f32::MIN, &mut piece);
                            let mut top = V::splat(f32::MIN);
                            let mut at = 0;
                            while at < n {
                                top = top.max(V::load(piece.as_ptr().add(at)));
                                at += V::LANES;
                            }
                            let now = largest.max(top.maximum());
                            total *= ((largest - now) * std::f32::consts::LOG2_E).exp2();
                            largest = now;
                            let base = V::splat(now);
                            let mut sum = V::zero();
                            let mut at = 0;
                            while at < n {
                                sum = sum.add(V::load(piece.as_ptr().add(at)).sub(base).mul(log2e).exp2());
                                at += V::LANES;
                            }
                            total += sum.sum();
                            start += n;
                        }
                        let (base, factor) = (V::splat(largest), V::splat(1.0 / total));
                        self.scale::<V>(row, &mut piece, |x| x.sub(base).mul(log2e).exp2().mul(factor), None);
                    }
                }
            }
        }
    }
}

impl Rows<'_> {
    /// Widens a piece of a row, filled up with `pad` to whole vectors, and says how long it is.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and `a` has a row `row`, of which `start` is no further than the end.
    #[inline(always)]
    unsafe fn take<V: Vector>(&self, row: usize, start: usize, pad: f32, piece: &mut [f32; PIECE]) -> usize {
        unsafe {
            let n = PIECE.min(self.width - start);
            let from = self.pointers.a.add((row * self.width + start) * self.kinds.0.bytes());
            widen::<V>(self.kinds.0, from, n, piece.as_mut_ptr());
            piece[n..n.next_multiple_of(V::LANES)].fill(pad);
            n
        }
    }

    /// Writes the row through `f`, times `weight` where there is one.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `a` has a row `row`, `out` room for it, and no other thread writes
    /// that.
    #[inline(always)]
    unsafe fn scale<V: Vector>(
        &self,
        row: usize,
        piece: &mut [f32; PIECE],
        f: impl Fn(V) -> V,
        weight: Option<&[f32]>,
    ) {
        unsafe {
            let mut start = 0;
            while start < self.width {
                let n = self.take::<V>(row, start, 0.0, piece);
                let mut at = 0;
                while at < n {
                    let to = piece.as_mut_ptr().add(at);
                    f(V::load(to)).store(to);
                    at += V::LANES;
                }
                if let Some(weight) = weight {
                    for (value, weight) in piece[..n].iter_mut().zip(&weight[start..start + n]) {
                        *value *= weight;
                    }
                }
                let to = self.pointers.out.add((row * self.width + start) * self.kinds.1.bytes());
                narrow::<V>(self.kinds.1, piece.as_ptr(), n, to);
                start += n;
            }
        }
    }
}
