//! Kernels that see no rows: sums and activations.

#![allow(unsafe_code, clippy::inline_always, clippy::many_single_char_names)]

use roofline_isa::{Kernel, Vector, launch};

use super::{
    Activation, Elementwise, PIECE, Pointers, Target,
    activation::{ClampedSwish, Function, Gelu, GeluTanh, Silu},
    plain, split, target, wide,
};
use crate::cpu::{
    kernels::{
        convert::{narrow, widen},
        element::Kind,
    },
    pool::Pool,
    tensor::Tensor,
    unsupported::Unsupported,
};

/// How a row holds gates and what they gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// All gates, then all others.
    SideBySide,
    /// Each gate before what it gates.
    InTurns,
}

#[derive(Clone, Copy, PartialEq)]
enum Does {
    Add,
    Activate(Activation),
    Gate(Activation),
}

/// Where the second operand of an output is.
#[derive(Clone, Copy)]
enum Second {
    None,
    /// In a tensor of its own.
    Apart,
    /// In the same rows of twice this width.
    SideBySide(usize),
    /// After the first.
    InTurns,
}

impl Elementwise {
    /// `out = x + y`: a layer's output and the residual stream.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn residual(&self, pool: &mut Pool, x: Tensor<'_>, y: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        assert_eq!((y.rows, y.columns), (x.rows, x.columns), "the inputs have different shapes");
        let kinds = (plain("input", &x)?, plain("input", &y)?, target(&out, x.rows * x.columns)?);
        let codes = out.codes;
        let pointers = pointers(x.codes.as_ptr(), y.codes.as_ptr(), codes.as_mut_ptr());
        self.flat(pool, Does::Add, Second::Apart, kinds, pointers, x.rows * x.columns);
        Ok(())
    }

    /// `stream = stream + x`, whatever the two are stored in.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn residual_in_place(&self, pool: &mut Pool, stream: Target<'_>, x: Tensor<'_>) -> Result<(), Unsupported> {
        let (own, added) = (wide("residual stream", stream.format)?, plain("input", &x)?);
        let elements = x.rows * x.columns;
        assert_eq!(stream.codes.len(), elements * own.bytes(), "the residual stream has another size");
        let codes = stream.codes;
        let start = codes.as_mut_ptr();
        let pointers = pointers(start.cast_const(), x.codes.as_ptr(), start);
        self.flat(pool, Does::Add, Second::Apart, (own, added, own), pointers, elements);
        Ok(())
    }

    /// `out = function(x)`.
    pub fn activation(
        &self,
        pool: &mut Pool,
        function: Activation,
        x: Tensor<'_>,
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        let from = plain("input", &x)?;
        let kinds = (from, from, target(&out, x.rows * x.columns)?);
        let codes = out.codes;
        let pointers = pointers(x.codes.as_ptr(), std::ptr::null(), codes.as_mut_ptr());
        self.flat(pool, Does::Activate(function), Second::None, kinds, pointers, x.rows * x.columns);
        Ok(())
    }

    /// `out = function(gate) * up`.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn gated(
        &self,
        pool: &mut Pool,
        function: Activation,
        gate: Tensor<'_>,
        up: Tensor<'_>,
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        assert_eq!((up.rows, up.columns), (gate.rows, gate.columns), "the inputs have different shapes");
        let elements = gate.rows * gate.columns;
        let kinds = (plain("input", &gate)?, plain("input", &up)?, target(&out, elements)?);
        let codes = out.codes;
        let pointers = pointers(gate.codes.as_ptr(), up.codes.as_ptr(), codes.as_mut_ptr());
        self.flat(pool, Does::Gate(function), Second::Apart, kinds, pointers, elements);
        Ok(())
    }

    /// The same where one product has written both: rows of `x` hold as many gates as numbers that they gate.
    ///
    /// # Panics
    ///
    /// When shapes disagree.
    pub fn gated_pairs(
        &self,
        pool: &mut Pool,
        function: Activation,
        pairs: Pairs,
        x: Tensor<'_>,
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        assert!(x.columns.is_multiple_of(2), "rows of {} numbers are no pairs", x.columns);
        let (from, width) = (plain("input", &x)?, x.columns / 2);
        let kinds = (from, from, target(&out, x.rows * width)?);
        let codes = out.codes;
        let pointers = pointers(x.codes.as_ptr(), x.codes.as_ptr(), codes.as_mut_ptr());
        let second = match pairs {
            Pairs::SideBySide => Second::SideBySide(width),
            Pairs::InTurns => Second::InTurns,
        };
        self.flat(pool, Does::Gate(function), second, kinds, pointers, x.rows * width);
        Ok(())
    }

    fn flat(
        self,
        pool: &mut Pool,
        does: Does,
        second: Second,
        kinds: (Kind, Kind, Kind),
        pointers: Pointers,
        elements: usize,
    ) {
        let other = if matches!(second, Second::None) { 0 } else { kinds.1.bytes() };
        let bytes = elements * (kinds.0.bytes() + other + kinds.2.bytes());
        split(pool, elements, PIECE, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Flat { does, second, pointers: *pointers, kinds, part });
        });
    }
}

fn pointers(a: *const u8, b: *const u8, out: *mut u8) -> Pointers {
    Pointers { a, b, out, scales: std::ptr::null_mut() }
}

struct Flat {
    does: Does,
    second: Second,
    pointers: Pointers,
    kinds: (Kind, Kind, Kind),
    part: std::ops::Range<usize>,
}

impl Kernel for Flat {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let out_kind = self.kinds.2;
            let (mut a, mut b) = ([0f32; PIECE], [0f32; PIECE]);
            let mut start = self.part.start;
            while start < self.part.end {
                let n = self.take::<V>(start, &mut a, &mut b);
                match self.does {
                    Does::Add => {
                        let mut at = 0;
                        // The last vector may run past `n`, but not past the piece.
                        while at < n {
                            let to = a.as_mut_ptr().add(at);
                            V::load(to).add(V::load(b.as_ptr().add(at))).store(to);
                            at += V::LANES;
                        }
                    }
                    Does::Activate(function) => match function {
                        Activation::Silu => each::<V, _, false>(Silu, &mut a, &b, n),
                        Activation::GeluTanh => each::<V, _, false>(GeluTanh, &mut a, &b, n),
                        Activation::Gelu => each::<V, _, false>(Gelu, &mut a, &b, n),
                        Activation::ClampedSwish { limit, alpha } => {
                            each::<V, _, false>(ClampedSwish { limit, alpha }, &mut a, &b, n);
                        }
                    },
                    Does::Gate(function) => match function {
                        Activation::Silu => each::<V, _, true>(Silu, &mut a, &b, n),
                        Activation::GeluTanh => each::<V, _, true>(GeluTanh, &mut a, &b, n),
                        Activation::Gelu => each::<V, _, true>(Gelu, &mut a, &b, n),
                        Activation::ClampedSwish { limit, alpha } => {
                            each::<V, _, true>(ClampedSwish { limit, alpha }, &mut a, &b, n);
                        }
                    },
                }
                narrow::<V>(out_kind, a.as_ptr(), n, self.pointers.out.add(start * out_kind.bytes()));
                start += n;
            }
        }
    }
}

impl Flat {
    /// Widens what the outputs from `start` on are made of, and says for how many of them.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and there is an output `start` in this part.
    #[inline(always)]
    unsafe fn take<V: Vector>(&self, start: usize, a: &mut [f32; PIECE], b: &mut [f32; PIECE]) -> usize {
        unsafe {
            let (a_kind, b_kind, _) = self.kinds;
            let n = PIECE.min(self.part.end - start);
            let (n, first, second) = match self.second {
                Second::None | Second::Apart => (n, start, start),
                Second::SideBySide(width) => {
                    let (row, column) = (start / width, start % width);
                    let first = row * 2 * width + column;
                    (n.min(width - column), first, first + width)
                }
                Second::InTurns => (n, 2 * start, 2 * start),
            };
            if matches!(self.second, Second::InTurns) {
                let mut both = [0f32; 2 * PIECE];
                widen::<V>(a_kind, self.pointers.a.add(first * a_kind.bytes()), 2 * n, both.as_mut_ptr());
                for ((a, b), pair) in a.iter_mut().zip(b).zip(&both.as_chunks::<2>().0[..n]) {
                    [*a, *b] = *pair;
                }
                return n;
            }
            widen::<V>(a_kind, self.pointers.a.add(first * a_kind.bytes()), n, a.as_mut_ptr());
            if !matches!(self.second, Second::None) {
                widen::<V>(b_kind, self.pointers.b.add(second * b_kind.bytes()), n, b.as_mut_ptr());
            }
            n
        }
    }
}

/// The function of the first `n` of `a`, times those of `b` where they are gated.
///
/// # Safety
///
/// The processor has `V`'s instruction set.
#[inline(always)]
unsafe fn each<V: Vector, F: Function, const GATED: bool>(
    function: F,
    a: &mut [f32; PIECE],
    b: &[f32; PIECE],
    n: usize,
) {
    unsafe {
        let mut at = 0;
        // The last vector may run past `n`, but not past the piece.
        while at < n {
            let to = a.as_mut_ptr().add(at);
            let mut result = function.of(V::load(to));
            if GATED {
                result = result.mul(function.gated(V::load(b.as_ptr().add(at))));
            }
            result.store(to);
            at += V::LANES;
        }
    }
}
