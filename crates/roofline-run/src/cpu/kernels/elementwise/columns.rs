//! Kernels that change rows where they lie: a factor and a bias per column, caps, and rows that are added to others.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_core::Format;
use roofline_isa::{Kernel, Vector, launch};

use super::{Elementwise, PIECE, Pointers, Target, plain, split, wide};
use crate::cpu::{
    kernels::{
        cap::capped,
        convert::{narrow, widen},
        element::Kind,
    },
    pool::Pool,
    tensor::Tensor,
    unsupported::Unsupported,
};

#[derive(Clone, Copy)]
enum Does<'a> {
    Affine { factor: Option<&'a [f32]>, bias: Option<&'a [f32]> },
    Scale(f32),
    Cap(f32),
}

impl Elementwise {
    /// `x = x * factor + bias` in place, row by row of `columns` numbers, with either left out.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn affine(
        &self,
        pool: &mut Pool,
        x: Target<'_>,
        columns: usize,
        factor: Option<&[f32]>,
        bias: Option<&[f32]>,
    ) -> Result<(), Unsupported> {
        let fits = |vector: Option<&[f32]>| vector.is_none_or(|vector| vector.len() == columns);
        assert!(fits(factor), "the factor has another length than a row");
        assert!(fits(bias), "the bias has another length than a row");
        self.change(pool, Does::Affine { factor, bias }, x, columns)
    }

    /// Adds `bias` to every row, in place.
    ///
    /// # Panics
    ///
    /// When rows are not as long as the bias.
    pub fn bias(&self, pool: &mut Pool, x: Target<'_>, bias: &[f32]) -> Result<(), Unsupported> {
        self.affine(pool, x, bias.len(), None, Some(bias))
    }

    /// `x = x * factor` in place.
    pub fn scale(&self, pool: &mut Pool, x: Target<'_>, factor: f32) -> Result<(), Unsupported> {
        self.change(pool, Does::Scale(factor), x, 1)
    }

    /// `x = cap * tanh(x / cap)` in place: logits of models that bound them.
    pub fn soft_cap(&self, pool: &mut Pool, x: Target<'_>, cap: f32) -> Result<(), Unsupported> {
        self.change(pool, Does::Cap(cap), x, 1)
    }

    /// Adds row `i` of `x`, times `weights[i]`, to row `rows[i]` of `sums`, which are FP32: what experts make of their
    /// tokens.
    ///
    /// # Panics
    ///
    /// When shapes disagree or a row is outside of the sums.
    pub fn add_scaled(
        &self,
        pool: &mut Pool,
        sums: Target<'_>,
        x: Tensor<'_>,
        weights: &[f32],
        rows: &[usize],
    ) -> Result<(), Unsupported> {
        let kind = plain("input", &x)?;
        if sums.format != Format::FP32 {
            return Err(Unsupported(format!("sums in {} have no element-wise CPU kernel: use fp32", sums.format)));
        }
        assert_eq!((weights.len(), rows.len()), (x.rows, x.rows), "there is not one weight and one place per row");
        let count = sums.codes.len().checked_div(4 * x.columns).unwrap_or(0);
        assert_eq!(sums.codes.len(), count * 4 * x.columns, "the sums have no whole rows");
        assert!(rows.iter().all(|row| *row < count), "a row is outside of the sums");
        let codes = sums.codes;
        let pointers = Pointers {
            a: x.codes.as_ptr(),
            b: std::ptr::null(),
            out: codes.as_mut_ptr(),
            scales: std::ptr::null_mut(),
        };
        // Threads share columns: two rows may be added to the same one.
        split(pool, x.columns, 64, x.rows * x.columns * (kind.bytes() + 8), |part| {
            let pointers = &pointers;
            let scaled = AddScaled { pointers: *pointers, kind, width: x.columns, weights, rows, part };
            launch(self.isa, scaled);
        });
        Ok(())
    }

    fn change(self, pool: &mut Pool, does: Does<'_>, x: Target<'_>, columns: usize) -> Result<(), Unsupported> {
        let kind = wide("operand", x.format)?;
        let elements = x.codes.len() / kind.bytes();
        assert!(x.codes.len().is_multiple_of(kind.bytes()), "the operand has no whole numbers");
        assert!(columns > 0 && elements.is_multiple_of(columns), "the operand has no whole rows of {columns}");
        let codes = x.codes;
        let out = codes.as_mut_ptr();
        let pointers = Pointers { a: out.cast_const(), b: std::ptr::null(), out, scales: std::ptr::null_mut() };
        split(pool, elements, PIECE, 2 * elements * kind.bytes(), |part| {
            let pointers = &pointers;
            launch(self.isa, Change { does, pointers: *pointers, kind, columns, part });
        });
        Ok(())
    }
}

struct Change<'a> {
    does: Does<'a>,
    pointers: Pointers,
    kind: Kind,
    columns: usize,
    part: std::ops::Range<usize>,
}

impl Kernel for Change<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut piece = [0f32; PIECE];
            let mut start = self.part.start;
            while start < self.part.end {
                let n = PIECE.min(self.part.end - start);
                widen::<V>(self.kind, self.pointers.a.add(start * self.kind.bytes()), n, piece.as_mut_ptr());
                match self.does {
                    Does::Affine { factor, bias } => {
                        let mut at = 0;
                        while at < n {
                            let column = (start + at) % self.columns;
                            let length = (self.columns - column).min(n - at);
                            let values = &mut piece[at..at + length];
                            if let Some(factor) = factor {
                                values.iter_mut().zip(&factor[column..]).for_each(|(value, factor)| *value *= factor);
                            }
                            if let Some(bias) = bias {
                                values.iter_mut().zip(&bias[column..]).for_each(|(value, bias)| *value += bias);
                            }
                            at += length;
                        }
                    }
                    Does::Scale(factor) => piece[..n].iter_mut().for_each(|value| *value *= factor),
                    Does::Cap(cap) => {
                        let mut at = 0;
                        while at < n {
                            let to = piece.as_mut_ptr().add(at);
                            capped(V::load(to), cap).store(to);
                            at += V::LANES;
                        }
                    }
                }
                narrow::<V>(self.kind, piece.as_ptr(), n, self.pointers.out.add(start * self.kind.bytes()));
                start += n;
            }
        }
    }
}

struct AddScaled<'a> {
    pointers: Pointers,
    kind: Kind,
    width: usize,
    weights: &'a [f32],
    rows: &'a [usize],
    part: std::ops::Range<usize>,
}

impl Kernel for AddScaled<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut piece = [0f32; PIECE];
            for (at, (row, weight)) in self.rows.iter().zip(self.weights).enumerate() {
                let mut start = self.part.start;
                while start < self.part.end {
                    let n = PIECE.min(self.part.end - start);
                    let from = self.pointers.a.add((at * self.width + start) * self.kind.bytes());
                    widen::<V>(self.kind, from, n, piece.as_mut_ptr());
                    let sums = self.pointers.out.add((row * self.width + start) * 4);
                    let mut sum = [0f32; PIECE];
                    widen::<V>(Kind::Fp32, sums, n, sum.as_mut_ptr());
                    for (sum, value) in sum[..n].iter_mut().zip(&piece) {
                        *sum += weight * value;
                    }
                    narrow::<V>(Kind::Fp32, sum.as_ptr(), n, sums);
                    start += n;
                }
            }
        }
    }
}
