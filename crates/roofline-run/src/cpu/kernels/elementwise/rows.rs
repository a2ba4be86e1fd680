//! Kernels that need a whole row before they can write any of it: norms and softmax. A row is read two or three times, all
//! but the first time from the cache.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::{Kernel, Vector, launch};

use super::{Elementwise, Heads, PIECE, Pointers, Target, split};
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
    LayerNorm { weight: &'a [f32], bias: Option<&'a [f32]>, epsilon: f32 },
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

    /// RMSNorm of every head by itself, in place: queries and keys of models that normalise them.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn norm_in_place(
        &self,
        pool: &mut Pool,
        x: Target<'_>,
        heads: Heads,
        weight: &[f32],
        epsilon: f32,
    ) -> Result<(), Unsupported> {
        assert_eq!(weight.len(), heads.width, "the weight has another length than a head");
        let row = heads.pitch * x.format.nominal_bits() as usize / 8;
        let tokens = x.codes.len().checked_div(row).unwrap_or(0);
        let kind = heads.output(&x, tokens)?;
        let codes = x.codes;
        let start = codes.as_mut_ptr();
        let does = Does::Norm { weight, epsilon };
        self.walk(pool, does, (kind, kind), heads, tokens * heads.count, (start.cast_const(), start));
        Ok(())
    }

    /// LayerNorm: `out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias`, row by row.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn layer_norm(
        &self,
        pool: &mut Pool,
        x: Tensor<'_>,
        (weight, bias): (&[f32], Option<&[f32]>),
        epsilon: f32,
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        assert_eq!(weight.len(), x.columns, "the weight has another length than a row");
        assert!(bias.is_none_or(|bias| bias.len() == x.columns), "the bias has another length than a row");
        self.rows(pool, Does::LayerNorm { weight, bias, epsilon }, x, out)
    }

    /// `out = e^(x - max) / sum`, row by row.
    pub fn softmax(&self, pool: &mut Pool, x: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        self.rows(pool, Does::Softmax, x, out)
    }

    fn rows(self, pool: &mut Pool, does: Does<'_>, x: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        let heads = Heads::dense(1, x.columns);
        let kinds = (heads.input(&x)?, heads.output(&out, x.rows)?);
        let codes = out.codes;
        self.walk(pool, does, kinds, heads, x.rows, (x.codes.as_ptr(), codes.as_mut_ptr()));
        Ok(())
    }

    fn walk(
        self,
        pool: &mut Pool,
        does: Does<'_>,
        kinds: (Kind, Kind),
        heads: Heads,
        rows: usize,
        (a, out): (*const u8, *mut u8),
    ) {
        let pointers = Pointers { a, b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        let bytes = rows * heads.width * (kinds.0.bytes() + kinds.1.bytes());
        split(pool, rows, 1, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Rows { does, pointers: *pointers, kinds, heads, part });
        });
    }
}

struct Rows<'a> {
    does: Does<'a>,
    pointers: Pointers,
    kinds: (Kind, Kind),
    heads: Heads,
    part: std::ops::Range<usize>,
}

impl Kernel for Rows<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut piece = [0f32; PIECE];
            for row in self.part.clone() {
                let row = self.heads.at(row);
                match self.does {
                    Does::Norm { weight, epsilon } => {
                        let mut squares = V::zero();
                        let mut start = 0;
                        while start < self.heads.width {
                            let n = self.take::<V>(row, start, 0.0, &mut piece);
                            let mut at = 0;
                            while at < n {
                                let x = V::load(piece.as_ptr().add(at));
                                squares = x.fma(x, squares);
                                at += V::LANES;
                            }
                            start += n;
                        }
                        let mean = squares.sum() / self.heads.width as f32;
                        let factor = V::splat(1.0 / (mean + epsilon).sqrt());
                        self.scale::<V>(row, &mut piece, |x| x.mul(factor), (Some(weight), None));
                    }
                    Does::LayerNorm { weight, bias, epsilon } => {
                        let mut sum = V::zero();
                        let mut start = 0;
                        while start < self.heads.width {
                            let n = self.take::<V>(row, start, 0.0, &mut piece);
                            let mut at = 0;
                            while at < n {
                                sum = sum.add(V::load(piece.as_ptr().add(at)));
                                at += V::LANES;
                            }
                            start += n;
                        }
                        let mean = sum.sum() / self.heads.width as f32;
                        let middle = V::splat(mean);
                        let mut squares = V::zero();
                        let mut start = 0;
                        while start < self.heads.width {
                            // Filled up with the mean, which is no distance from itself.
                            let n = self.take::<V>(row, start, mean, &mut piece);
                            let mut at = 0;
                            while at < n {
                                let x = V::load(piece.as_ptr().add(at)).sub(middle);
                                squares = x.fma(x, squares);
                                at += V::LANES;
                            }
                            start += n;
                        }
                        let variance = squares.sum() / self.heads.width as f32;
                        let factor = V::splat(1.0 / (variance + epsilon).sqrt());
                        self.scale::<V>(row, &mut piece, |x| x.sub(middle).mul(factor), (Some(weight), bias));
                    }
                    Does::Softmax => {
                        let log2e = V::splat(std::f32::consts::LOG2_E);
                        let (mut largest, mut total) = (f32::NEG_INFINITY, 0f32);
                        let mut start = 0;
                        while start < self.heads.width {
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
                        self.scale::<V>(row, &mut piece, |x| x.sub(base).mul(log2e).exp2().mul(factor), (None, None));
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
    /// The processor has `V`'s instruction set, and `a` has a row from element `row` on, of which `start` is no
    /// further than the end.
    #[inline(always)]
    unsafe fn take<V: Vector>(&self, row: usize, start: usize, pad: f32, piece: &mut [f32; PIECE]) -> usize {
        unsafe {
            let n = PIECE.min(self.heads.width - start);
            let from = self.pointers.a.add((row + start) * self.kinds.0.bytes());
            widen::<V>(self.kinds.0, from, n, piece.as_mut_ptr());
            piece[n..n.next_multiple_of(V::LANES)].fill(pad);
            n
        }
    }

    /// Writes the row through `f`, times `weight` and plus `bias` where there are any.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set; `a` has a row from element `row` on, `out` room for it, and no other
    /// thread writes that.
    #[inline(always)]
    unsafe fn scale<V: Vector>(
        &self,
        row: usize,
        piece: &mut [f32; PIECE],
        f: impl Fn(V) -> V,
        (weight, bias): (Option<&[f32]>, Option<&[f32]>),
    ) {
        unsafe {
            let mut start = 0;
            while start < self.heads.width {
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
                if let Some(bias) = bias {
                    for (value, bias) in piece[..n].iter_mut().zip(&bias[start..start + n]) {
                        *value += bias;
                    }
                }
                let to = self.pointers.out.add((row + start) * self.kinds.1.bytes());
                narrow::<V>(self.kinds.1, piece.as_ptr(), n, to);
                start += n;
            }
        }
    }
}
