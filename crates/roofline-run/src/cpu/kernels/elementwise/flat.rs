//! Kernels that see no rows: sums, activations and casts.

#![allow(unsafe_code, clippy::inline_always, clippy::many_single_char_names)]

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

#[derive(Clone, Copy, PartialEq)]
enum Does {
    Add,
    Silu,
    Gate,
}

impl Elementwise {
    /// `out = x + y`: a layer's output and the residual stream.
    pub fn residual(&self, pool: &mut Pool, x: Tensor<'_>, y: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        self.flat(pool, Does::Add, x, Some(y), out)
    }

    /// `out = silu(x)` with `silu(x) = x / (1 + e^-x)`.
    pub fn activation(&self, pool: &mut Pool, x: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        self.flat(pool, Does::Silu, x, None, out)
    }

    /// `out = silu(gate) * up`.
    pub fn gated(&self, pool: &mut Pool, gate: Tensor<'_>, up: Tensor<'_>, out: Target<'_>) -> Result<(), Unsupported> {
        self.flat(pool, Does::Gate, gate, Some(up), out)
    }

    fn flat(
        self,
        pool: &mut Pool,
        does: Does,
        x: Tensor<'_>,
        y: Option<Tensor<'_>>,
        out: Target<'_>,
    ) -> Result<(), Unsupported> {
        let elements = x.rows * x.columns;
        let a = plain("input", &x)?;
        let b = y.map_or(Ok(a), |y| {
            assert_eq!((y.rows, y.columns), (x.rows, x.columns), "the inputs have different shapes");
            plain("input", &y)
        })?;
        let to = target(&out, elements)?;
        let codes = out.codes;
        let pointers = Pointers {
            a: x.codes.as_ptr(),
            b: y.map_or(std::ptr::null(), |y| y.codes.as_ptr()),
            out: codes.as_mut_ptr(),
            scales: std::ptr::null_mut(),
        };
        let bytes = elements * (a.bytes() + y.map_or(0, |_| b.bytes()) + to.bytes());
        split(pool, elements, PIECE, bytes, |part| {
            let pointers = &pointers;
            launch(self.isa, Flat { does, pointers: *pointers, kinds: (a, b, to), part });
        });
        Ok(())
    }
}

struct Flat {
    does: Does,
    pointers: Pointers,
    kinds: (Kind, Kind, Kind),
    part: std::ops::Range<usize>,
}

impl Kernel for Flat {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let (a_kind, b_kind, out_kind) = self.kinds;
            let (mut a, mut b) = ([0f32; PIECE], [0f32; PIECE]);
            let mut start = self.part.start;
            while start < self.part.end {
                let n = PIECE.min(self.part.end - start);
                widen::<V>(a_kind, self.pointers.a.add(start * a_kind.bytes()), n, a.as_mut_ptr());
                if self.does != Does::Silu {
                    widen::<V>(b_kind, self.pointers.b.add(start * b_kind.bytes()), n, b.as_mut_ptr());
                }
                let mut at = 0;
                // The last vector may run past `n`, but not past the piece.
                while at < n {
                    let x = V::load(a.as_ptr().add(at));
                    let y = V::load(b.as_ptr().add(at));
                    let result = match self.does {
                        Does::Add => x.add(y),
                        Does::Silu => x.silu(),
                        Does::Gate => x.silu().mul(y),
                    };
                    result.store(a.as_mut_ptr().add(at));
                    at += V::LANES;
                }
                narrow::<V>(out_kind, a.as_ptr(), n, self.pointers.out.add(start * out_kind.bytes()));
                start += n;
            }
        }
    }
}
