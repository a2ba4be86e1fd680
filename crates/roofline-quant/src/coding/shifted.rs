//! Integers from zero up with an integer zero point, as GPTQModel rounds to nearest.
//!
//! `s = (max - min) / (2^b - 1)` and `z = rint(-min / s)` in FP32, zero always between min and max; symmetric: `min = -max`
//! and `z = 2^(b-1)`. A code is `rint(w / s) + z`: the zero point is added after rounding. Weights that are all zero
//! count as reaching from -1 to 1. Two differences: GPTQModel leaves `min` at zero where no weight of a symmetric group is
//! negative, and so cuts its upper half off; here such a group is symmetric as any other. And where FP16, in which scales are
//! stored, has no normal number for one, it rounds a second time as it packs; here codes stay those of the scale in FP32.

use super::{
    grid::{Element, Elements, Grid},
    packing::{pack_nibbles, unpack_nibbles},
    row::{code, ranges},
    scales::Span,
};
use crate::{
    data::ChosenRows,
    rounding::{Rounding, clamp, nearest, nearest_byte},
};

/// Quotients beyond this are beyond every code, whatever the zero point.
const BEYOND: f32 = 1024.0;

/// An integer of 0 to `most`: `(code - zero) * scale`.
#[derive(Clone, Copy)]
pub(crate) struct Shifted {
    most: f32,
}

impl Shifted {
    pub(crate) fn new(bits: u8) -> Self {
        Self { most: f32::from(((1u16 << bits) - 1) as u8) }
    }

    /// The scales and zero points of a row.
    pub(crate) fn choose(self, row: &[f32], group: usize, symmetric: bool, scales: &mut [f32], zeros: &mut [f32]) {
        ranges(row, group, zeros, scales);
        for (scale, zero) in scales.iter_mut().zip(zeros) {
            (*scale, *zero) = self.reach(*zero, *scale, symmetric, |scale| scale);
        }
    }

    /// The scale, rounded as it is stored, and the zero point of weights between `low <= 0` and `high >= 0`.
    fn reach(self, mut low: f32, mut high: f32, symmetric: bool, round: impl Fn(f32) -> f32) -> (f32, f32) {
        if symmetric {
            high = high.max(-low);
            low = -high;
        }
        if high == low {
            (low, high) = (-1.0, 1.0);
        }
        let scale = round(((high - low) / self.most).max(f32::MIN_POSITIVE));
        let zero = if symmetric { self.most.midpoint(1.0) } else { nearest(clamp(-low / scale, 0.0, self.most)) };
        (scale, zero)
    }

    /// The grid of groups with scales of `S`.
    pub(crate) fn grid<S: Rounding>(self, span: Span, symmetric: bool) -> Box<dyn Grid> {
        // A scale that the type has no number for becomes the least that it has.
        let round = |scale: f32| if S::round(scale) == 0.0 { S::TINY } else { S::round(scale) };
        let reach = move |low: f32, high: f32| self.reach(low, high, symmetric, round);
        Box::new(Elements { element: self, span, reach })
    }

    /// Takes what was chosen for a row. Returns how many of its weights lie outside.
    pub(crate) fn take(
        self,
        row: &[f32],
        taken: ChosenRows<'_>,
        group: usize,
        into: (&mut [f32], &mut [f32], &mut [u8]),
    ) -> u64 {
        let (scales, zeros, codes) = into;
        scales.copy_from_slice(taken.scales);
        zeros.copy_from_slice(taken.zeros);
        let outside = code(self, row, group, scales, zeros, codes);
        codes.copy_from_slice(taken.codes);
        outside
    }
}

impl Element for Shifted {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool) {
        let x = clamp(weight / scale, -BEYOND, BEYOND);
        // The largest weight of a symmetric group lies half a step beyond the last code, as far as FP32 can tell.
        let outside = x + zero > self.most + 0.501 || x + zero < -0.501;
        (nearest_byte(clamp(nearest(x) + zero, 0.0, self.most)), outside)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, zero: f32) -> f32 {
        (f32::from(code) - zero) * scale
    }
}

/// Codes of 2, 3, 4 or 8 bits one after another, from the low bits of the first byte up. Eight of them fill whole bytes.
pub(crate) fn pack(codes: &[u8], bits: u8, out: &mut [u8]) {
    match bits {
        8 => out.copy_from_slice(codes),
        4 => pack_nibbles(codes, 0, out),
        _ => {
            for (codes, out) in codes.chunks_exact(8).zip(out.chunks_exact_mut(usize::from(bits))) {
                let word = codes.iter().rev().fold(0u32, |word, code| word << bits | u32::from(*code));
                out.copy_from_slice(&word.to_le_bytes()[..out.len()]);
            }
        }
    }
}

/// The codes of [`pack`].
pub(crate) fn unpack(packed: &[u8], bits: u8, codes: &mut [u8]) {
    match bits {
        8 => codes.copy_from_slice(packed),
        4 => unpack_nibbles(packed, 0, codes),
        _ => {
            for (codes, packed) in codes.chunks_exact_mut(8).zip(packed.chunks_exact(usize::from(bits))) {
                let word = packed.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
                for (at, code) in codes.iter_mut().enumerate() {
                    *code = (word >> (at * usize::from(bits))) as u8 & ((1 << bits) - 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zero_point_is_added_after_rounding() {
        // 0.5 rounds to 0, and is then moved by 3; rounding 3.5 would give 4.
        assert_eq!(Shifted::new(4).code(0.5, 1.0, 3.0), (3, false));
        assert_eq!(Shifted::new(4).code(1.5, 1.0, 3.0), (5, false));
        assert_eq!(Shifted::new(4).code(20.0, 1.0, 3.0), (15, true));
        assert_eq!(Shifted::new(2).code(f32::MAX, f32::MIN_POSITIVE, 0.0), (3, true));
    }

    #[test]
    fn groups_of_zeros_and_of_one_sign() {
        let row = [0.0, 0.0, 0.5, 1.5, -3.0, -1.0];
        let (mut scales, mut zeros) = ([0.0; 3], [0.0; 3]);
        Shifted::new(4).choose(&row, 2, false, &mut scales, &mut zeros);
        // Zeros reach from -1 to 1, and 2 / 15 in FP32 goes a little less than 7.5 times into one.
        assert_eq!((scales, zeros), ([2.0 / 15.0, 0.1, 0.2], [7.0, 0.0, 15.0]));
        Shifted::new(4).choose(&row, 2, true, &mut scales, &mut zeros);
        assert_eq!((scales, zeros), ([2.0 / 15.0, 0.2, 0.4], [8.0; 3]));
    }

    #[test]
    fn codes_lie_one_after_another() {
        let codes: Vec<u8> = (0..32).map(|at| at * 5 % 8).collect();
        for bits in [2, 3, 4, 8] {
            let codes: Vec<u8> = codes.iter().map(|code| code & ((1u16 << bits) - 1) as u8).collect();
            let mut packed = vec![0; 4 * bits as usize];
            pack(&codes, bits, &mut packed);
            for (at, code) in codes.iter().enumerate() {
                let bit = at * bits as usize;
                let found = (0..bits as usize).map(|one| (packed[(bit + one) / 8] >> ((bit + one) % 8) & 1) << one);
                assert_eq!(found.sum::<u8>(), *code, "{bits} bits, code {at}");
            }
            let mut back = vec![0; 32];
            unpack(&packed, bits, &mut back);
            assert_eq!(back, codes);
        }
    }
}
