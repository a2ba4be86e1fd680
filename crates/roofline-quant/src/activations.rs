//! Inputs of products that a checkpoint wants rounded while the model runs: which, and how.
//!
//! The arithmetic is that of the library whose words the configuration is in. compressed-tensors computes scales and
//! quotients in the type of the inputs, rounding after each step as PyTorch does; kernels of FP8 compute in FP32.

mod declared;
mod pattern;
#[cfg(test)]
mod tests;

use std::{fmt, marker::PhantomData};

use roofline_core::Format;
use roofline_isa::widest;

use crate::{
    Dtype,
    coding::{
        element::{E2M1_MAX, E4M3_MAX, e4m3, from_e4m3},
        grid::{Asymmetric, E2m1, E4m3, Element, Symmetric},
        micro::{Eight, Four, exponent},
    },
    number,
    rounding::{Bf16, F16, F32, Rounding, clamp, nearest, power_of_two},
};

/// How the inputs of a product are rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// To what.
    pub number: Number,
    /// With which scales.
    pub scales: Scales,
    /// Whether scales and quotients are FP32, whatever the type of the inputs.
    single: bool,
}

/// What inputs are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Integers of so many bits, as far below zero as above.
    Int(u8),
    /// Integers of so many bits, with a zero point.
    IntZero(u8),
    /// FP8 E4M3.
    E4m3,
    /// FP4 E2M1.
    E2m1,
}

/// What inputs share a scale, and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scales {
    /// Those of a token, by the largest of them.
    Token,
    /// Those of a pass, by the largest of them.
    Pass,
    /// So many of a token, by the largest of them.
    Group(usize),
    /// 32 of a token: a power of two.
    Powers,
    /// So many of a token: E4M3 after it is multiplied by a number that is stored, and divided by it again.
    Local(usize, f32),
    /// All, by a scale that is stored.
    Stored(f32),
}

impl fmt::Display for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Number::Int(bits) => write!(f, "int{bits}")?,
            Number::IntZero(bits) => write!(f, "int{bits} with zero points")?,
            Number::E4m3 => write!(f, "fp8-e4m3")?,
            Number::E2m1 => write!(f, "fp4-e2m1")?,
        }
        match self.scales {
            Scales::Token => write!(f, " per token"),
            Scales::Pass => write!(f, " per pass"),
            Scales::Group(group) => write!(f, " per {group}"),
            Scales::Powers => write!(f, " per {POWERS} (powers of two)"),
            Scales::Local(group, _) => write!(f, " per {group} (e4m3 scales)"),
            Scales::Stored(_) => write!(f, " with a stored scale"),
        }
    }
}

/// Inputs that share a power of two.
const POWERS: usize = 32;
/// What an E4M3 scale of zero becomes.
const LEAST: f32 = 0.125;

impl Inputs {
    /// As compressed-tensors rounds them.
    pub fn new(number: Number, scales: Scales) -> Self {
        Self { number, scales, single: false }
    }

    /// The same with scales and quotients in FP32.
    #[must_use]
    pub fn in_single(self) -> Self {
        Self { single: true, ..self }
    }

    /// What is called so in predictions, with scales as if inputs reached 7 where such are stored; none for formats that are
    /// no codes, or that no checkpoint has for inputs.
    pub fn of(format: Format) -> Option<Self> {
        let known = [
            Self::new(Number::Int(8), Scales::Token),
            Self::new(Number::E4m3, Scales::Token),
            Self::new(Number::E4m3, Scales::Stored(7.0 / E4M3_MAX)),
            Self::new(Number::E4m3, Scales::Group(128)),
            Self::new(Number::E2m1, Scales::Local(16, E4M3_MAX * E2M1_MAX / 7.0)),
            Self::new(Number::E2m1, Scales::Powers),
            Self::new(Number::E4m3, Scales::Powers),
        ];
        known.into_iter().find(|inputs| inputs.format() == Some(format))
    }

    /// What predictions call it; none where they have no name for it.
    pub fn format(&self) -> Option<Format> {
        Some(match (self.number, self.scales) {
            (Number::Int(8), Scales::Token) => Format::INT8,
            (Number::E4m3, Scales::Token) => Format::FP8,
            (Number::E4m3, Scales::Stored(_) | Scales::Pass) => Format::FP8.in_tensors(),
            (Number::E4m3, Scales::Group(128)) => Format::FP8.in_groups(128),
            (Number::E2m1, Scales::Local(16, _)) => Format::NVFP4,
            (Number::E2m1, Scales::Powers) => Format::MXFP4,
            (Number::E4m3, Scales::Powers) => Format::MXFP8,
            _ => return None,
        })
    }

    /// How many inputs in a row of `columns` share a scale.
    fn span(&self, columns: usize) -> usize {
        match self.scales {
            Scales::Group(group) | Scales::Local(group, _) => group,
            Scales::Powers => POWERS,
            Scales::Token | Scales::Pass | Scales::Stored(_) => columns,
        }
    }

    /// Whether rows of so many inputs can be rounded: groups must be whole ones.
    pub fn fits(&self, columns: usize) -> bool {
        let span = self.span(columns);
        span > 0 && columns.is_multiple_of(span)
    }

    /// Rounds rows of `columns` inputs of a type, in which the result is stored as well; where a pass shares a scale, they
    /// are those of a whole pass. `spare` is kept for the next call.
    ///
    /// # Panics
    ///
    /// Where the inputs are no whole rows, do not [fit](Self::fits), or are of a type other than BF16, F16 and F32.
    pub fn round(&self, dtype: Dtype, columns: usize, from: &[u8], to: &mut [u8], spare: &mut Vec<f32>) {
        assert_eq!(from.len(), to.len(), "what is rounded has another size");
        assert!(self.fits(columns), "{columns} inputs are no whole groups");
        let bytes = dtype.bytes();
        let row = if self.scales == Scales::Pass { (from.len() / bytes).max(1) } else { columns };
        spare.resize(row, 0.0);
        for (from, to) in from.chunks_exact(row * bytes).zip(to.chunks_exact_mut(row * bytes)) {
            number::read(dtype, from, spare);
            match dtype {
                Dtype::Bf16 => self.through::<Bf16>(spare),
                Dtype::F16 => self.through::<F16>(spare),
                Dtype::F32 => self.through::<F32>(spare),
                other => panic!("inputs of {other} are not rounded"),
            }
            match dtype {
                Dtype::Bf16 => store_bf16(spare, to),
                Dtype::F16 => store::<F16>(spare, to),
                _ => store::<F32>(spare, to),
            }
        }
    }

    /// One row, whose numbers are of the type `R`.
    fn through<R: Rounding>(&self, row: &mut [f32]) {
        for group in row.chunks_exact_mut(self.span(row.len())) {
            // What is not finite leaves no scale, and with it no number of the group.
            if !number::peak(group).is_finite() {
                group.fill(f32::NAN);
            } else if self.single {
                self.group::<F32, R>(group);
            } else {
                self.group::<R, R>(group);
            }
        }
    }

    /// Numbers that share a scale, in the arithmetic of `R`; those of the model are `M`'s.
    fn group<R: Rounding, M: Rounding>(&self, group: &mut [f32]) {
        let peak = number::peak(group);
        let scale = |largest: f32| match R::round(peak / largest) {
            0.0 => R::EPSILON,
            scale => scale,
        };
        let stored =
            |largest: f32| if let Scales::Stored(scale) = self.scales { R::round(scale) } else { scale(largest) };
        match (self.number, self.scales) {
            (Number::E2m1, Scales::Local(_, whole)) => {
                let local = from_e4m3(e4m3(clamp(whole * M::round(peak / E2M1_MAX), -E4M3_MAX, E4M3_MAX)));
                let scale = if local == 0.0 { LEAST } else { local } / whole;
                round(E2m1::<F32>(PhantomData), group, scale, 0.0);
            }
            (Number::E2m1, Scales::Powers) => {
                round(E2m1::<R>(PhantomData), group, R::round(power_of_two(exponent::<Four, R>(peak))), 0.0);
            }
            (Number::E4m3, Scales::Powers) => {
                round(E4m3::<R>(PhantomData), group, R::round(power_of_two(exponent::<Eight, R>(peak))), 0.0);
            }
            (Number::E2m1, _) => round(E2m1::<R>(PhantomData), group, stored(E2M1_MAX), 0.0),
            (Number::E4m3, _) => round(E4m3::<R>(PhantomData), group, stored(E4M3_MAX), 0.0),
            // From the lowest to the highest integer, half of it on each side.
            (Number::Int(bits), _) => round(Symmetric::<R>::new(bits), group, stored(steps(bits) / 2.0), 0.0),
            (Number::IntZero(bits), _) => {
                let (low, high) = group.iter().fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
                let scale = match R::round(R::round(high - low) / steps(bits)) {
                    0.0 => R::EPSILON,
                    scale => scale,
                };
                let lowest = -f32::midpoint(steps(bits), 1.0);
                let zero = R::round(lowest - R::round(low / scale));
                let zero = nearest(clamp(zero, lowest, steps(bits) + lowest));
                round(Asymmetric::<R>::new(bits), group, scale, zero);
            }
        }
    }
}

/// From the lowest integer of so many bits to the highest.
fn steps(bits: u8) -> f32 {
    ((1u32 << bits) - 1) as f32
}

widest! {
    /// Each number to its code and back.
    fn round<E: Element>(element: E, values: &mut [f32], scale: f32, zero: f32) {
        for value in values {
            let (code, _) = element.code(*value, scale, zero);
            *value = element.value(code, scale, zero);
        }
    }
}

widest! {
    fn store_bf16(values: &[f32], out: &mut [u8]) {
        for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
            // Whatever is not a number is that one.
            let bits = if value.is_nan() { 0x7fc0_0000 } else { Bf16::round(*value).to_bits() };
            *out = ((bits >> 16) as u16).to_le_bytes();
        }
    }
}

fn store<R: Rounding>(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.chunks_exact_mut(R::DTYPE.bytes())) {
        R::write(if value.is_nan() { f32::NAN } else { R::round(*value) }, out);
    }
}
