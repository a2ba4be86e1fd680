//! `IntxUnpackedToInt8Tensor`: integers of few bits, each in a byte of its own, with scales in the model's type `R` and
//! zero points of eight bits.
//!
//! `s = amax / ((2^b - 1) / 2)` or `(max - min) / (2^b - 1)`, at least the smallest normal number, and
//! `q = clamp(rint(w * (1 / s)) + z)`, rounded to `R` at every step: also the reciprocal.

use std::marker::PhantomData;

use super::super::{
    Block, Coding, Matrix, Part, Unsuited,
    grid::{Asymmetric, Element, Elements, Grid},
    row::{code, expand, peaks, ranges},
    scales::{Span, read_scales, write_scales},
};
use super::byte_parts;
use crate::{
    Dtype,
    kernel_form::{CodesMut, KernelForm, int4, narrow, repeat},
    rounding::{Rounding, clamp, nearest},
};

/// Bytes that hold fewer bits.
pub(super) struct Intx<R> {
    bits: u8,
    span: Span,
    zero: bool,
    rounding: PhantomData<R>,
}

/// Rounded before the zero point is added.
#[derive(Clone, Copy)]
struct Unpacked<R>(u8, PhantomData<R>);

impl<R: Rounding> Element for Unpacked<R> {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool) {
        // A tiny scale makes far more steps than `nearest` takes; more than a byte's are clamped anyway.
        let steps = clamp(R::round(weight * R::round(1.0 / scale)), -1024.0, 1024.0);
        let x = R::round(nearest(steps) + zero);
        let last = f32::from((1u8 << (self.0 - 1)) - 1);
        let outside = steps + zero > last + 0.5 || steps + zero < -last - 1.5;
        (clamp(x, -last - 1.0, last) as i32 as u8, outside)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, zero: f32) -> f32 {
        Asymmetric::<R>::new(self.0).value(code, scale, zero)
    }
}

/// Steps between the first code and the last.
fn steps(bits: u8) -> f32 {
    f32::from(((1u16 << bits) - 1) as u8)
}

/// The scale of weights up to `peak` in magnitude.
fn symmetric<R: Rounding>(peak: f32, steps: f32) -> f32 {
    R::round(peak / (steps / 2.0)).max(R::TINY)
}

/// The scale and the zero point of weights between `low <= 0` and `high >= 0`.
fn shifted<R: Rounding>(low: f32, high: f32, steps: f32) -> (f32, f32) {
    let first = -steps.midpoint(1.0);
    let scale = R::round(R::round(high - low) / steps).max(R::TINY);
    (scale, clamp(R::round(first - nearest(R::round(low / scale))), first, first + steps))
}

impl<R: Rounding> Intx<R> {
    pub(super) fn new(bits: u8, group: Option<u32>, zero: bool) -> Self {
        Self { bits, span: Span::new(group), zero, rounding: PhantomData }
    }

    fn element(&self) -> Unpacked<R> {
        Unpacked(self.bits, PhantomData)
    }

    fn choose(&self, row: &[f32], group: usize, scales: &mut [f32], zeros: &mut [f32]) {
        let steps = steps(self.bits);
        if !self.zero {
            peaks(row, group, scales);
            for scale in scales {
                *scale = symmetric::<R>(*scale, steps);
            }
            return;
        }
        ranges(row, group, zeros, scales);
        for (scale, zero) in scales.iter_mut().zip(zeros) {
            (*scale, *zero) = shifted::<R>(*zero, *scale, steps);
        }
    }
}

impl<R: Rounding> Coding for Intx<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        byte_parts::<R>(self.span, matrix)
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [codes, stored, shifts] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let group = self.span.length(columns);
        let groups = columns / group;
        let (mut scales, mut zeros) = (vec![0.0; groups], vec![0.0; groups]);
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = stored.chunks_exact_mut(groups * R::DTYPE.bytes()).zip(shifts.chunks_exact_mut(groups));
        let mut outside = 0;
        let all = rows.zip(codes.chunks_exact_mut(columns)).zip(stored).enumerate();
        for (at, (((row, decoded), codes), (stored, shifts))) in all {
            let taken = block.chosen.map(|rows| rows.row(at, columns, groups));
            match taken {
                Some(taken) => {
                    scales.copy_from_slice(taken.scales);
                    zeros.copy_from_slice(taken.zeros);
                }
                None => self.choose(row, group, &mut scales, &mut zeros),
            }
            write_scales::<R>(&scales, stored);
            for (shift, zero) in shifts.iter_mut().zip(&zeros) {
                *shift = *zero as i8 as u8;
            }
            outside += code(self.element(), row, group, &scales, &zeros, codes);
            if let Some(taken) = taken {
                codes.copy_from_slice(taken.codes);
            }
            expand(self.element(), codes, group, &scales, &zeros, decoded);
        }
        outside
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        let (steps, zero) = (steps(self.bits), self.zero);
        let reach = move |low: f32, high: f32| {
            if zero { shifted::<R>(low, high, steps) } else { (symmetric::<R>(high.max(-low), steps), 0.0) }
        };
        Some(Box::new(Elements { element: self.element(), span: self.span, reach }))
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let group = self.span.length(columns);
        let groups = columns / group;
        let (mut scales, mut zeros) = (vec![0.0; groups], vec![0.0; groups]);
        let stored = parts[1].chunks_exact(groups * R::DTYPE.bytes()).zip(parts[2].chunks_exact(groups));
        let codes = parts[0].chunks_exact(columns);
        for (decoded, (codes, (stored, shifts))) in decoded.chunks_exact_mut(columns).zip(codes.zip(stored)) {
            read_scales::<R>(stored, &mut scales);
            for (zero, shift) in zeros.iter_mut().zip(shifts) {
                *zero = f32::from(*shift as i8);
            }
            expand(self.element(), codes, group, &scales, &zeros, decoded);
        }
    }

    /// Up to four bits: what is there in eight has zero points, which kernels of eight bits do not.
    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        let narrow = R::DTYPE == Dtype::Bf16;
        let format = int4(self.span, "-zp").filter(|_| self.bits <= 4 && (narrow || self.span == Span::Row))?;
        KernelForm::new(format, matrix, !narrow)
    }

    fn arrange(&self, columns: usize, parts: &[&[u8]], mut into: CodesMut<'_>) -> Result<(), Unsuited> {
        let stored = columns / self.span.length(columns);
        let groups = into.scales.len() / 2 / into.rows.max(1);
        let rows = into.codes.chunks_exact_mut(columns.div_ceil(2)).zip(parts[0].chunks_exact(columns));
        rows.into_iter().try_for_each(|(codes, wide)| narrow(wide, 0x88, codes))?;
        into.scale(R::DTYPE, parts[1]);
        let mut spread = vec![0; groups];
        for (out, zeros) in into.zeros.chunks_exact_mut(groups.div_ceil(2)).zip(parts[2].chunks_exact(stored)) {
            repeat(zeros, &mut spread);
            narrow(&spread, 0x88, out)?;
        }
        Ok(())
    }
}
