//! Small floating-point encodings, all by one rule: sign, exponent, mantissa, round to nearest even.
//!
//! Codes of positive values are ordered like the values, so rounding is done on the *index* of a value:
//! `index = round(|x| / quantum) + (e - e_min) * 2^m` with `quantum = 2^(e - m)` and `e = max(floor(log2 |x|), e_min)`.
//! A carry out of the mantissa then lands in the next binade by itself, and subnormals need no case of their own.
//!
//! Sources: IEEE 754-2019 (FP16, FP32); OCP 8-bit Floating Point Specification 1.0 (E4M3, E5M2); OCP Microscaling
//! Formats 1.0 (E3M2, E2M3, E2M1).

/// What the codes past the largest finite value mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Specials {
    /// The largest exponent is infinity and NaN, as in IEEE 754.
    Ieee,
    /// Only the all-ones code is NaN (the `fn` formats).
    NanOnly,
    /// Every code is finite.
    None,
}

/// What to do with a value past the largest finite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// Take the largest finite value: what quantizers do, and what the MX specification asks for.
    Saturate,
    /// Infinity or NaN, where the format has them: what a plain cast does.
    Special,
}

/// A sign-exponent-mantissa encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Minifloat {
    pub(crate) exponent_bits: u32,
    pub(crate) mantissa_bits: u32,
    pub(crate) specials: Specials,
}

impl Minifloat {
    pub(crate) const FP32: Self = Self::new(8, 23, Specials::Ieee);
    pub(crate) const FP16: Self = Self::new(5, 10, Specials::Ieee);
    pub(crate) const BF16: Self = Self::new(8, 7, Specials::Ieee);
    pub(crate) const TF32: Self = Self::new(8, 10, Specials::Ieee);
    pub(crate) const E4M3: Self = Self::new(4, 3, Specials::NanOnly);
    pub(crate) const E5M2: Self = Self::new(5, 2, Specials::Ieee);
    pub(crate) const E3M2: Self = Self::new(3, 2, Specials::None);
    pub(crate) const E2M3: Self = Self::new(2, 3, Specials::None);
    pub(crate) const E2M1: Self = Self::new(2, 1, Specials::None);

    const fn new(exponent_bits: u32, mantissa_bits: u32, specials: Specials) -> Self {
        Self { exponent_bits, mantissa_bits, specials }
    }

    const fn sign_bit(self) -> u32 {
        1 << (self.exponent_bits + self.mantissa_bits)
    }

    /// Exponent of the smallest normal number: `1 - bias` with `bias = 2^(e-1) - 1`.
    const fn min_exponent(self) -> i32 {
        2 - (1 << (self.exponent_bits - 1))
    }

    /// Index of the largest finite value.
    const fn max_index(self) -> u32 {
        let all_ones = self.sign_bit() - 1;
        match self.specials {
            Specials::Ieee => all_ones - (1 << self.mantissa_bits),
            Specials::NanOnly => all_ones - 1,
            Specials::None => all_ones,
        }
    }

    pub(crate) fn max(self) -> f64 {
        self.magnitude(self.max_index())
    }

    /// The value of an unsigned index, finite or not.
    fn magnitude(self, index: u32) -> f64 {
        let mantissa = f64::from(index & ((1 << self.mantissa_bits) - 1));
        let exponent = (index >> self.mantissa_bits) as i32;
        let one = f64::from(1u32 << self.mantissa_bits);
        let quantum = |binade: i32| exp2(self.min_exponent() + binade - self.mantissa_bits as i32);
        if exponent == 0 { mantissa * quantum(0) } else { (one + mantissa) * quantum(exponent - 1) }
    }

    pub(crate) fn decode(self, code: u32) -> f32 {
        let index = code & (self.sign_bit() - 1);
        let infinity = self.max_index() + 1;
        let magnitude = match self.specials {
            _ if index <= self.max_index() => self.magnitude(index),
            Specials::Ieee if index == infinity => f64::INFINITY,
            _ => f64::NAN,
        };
        let signed = if code & self.sign_bit() != 0 { -magnitude } else { magnitude };
        signed as f32
    }

    /// The nearest code, ties to even. A NaN stays one where the format has one, and is zero where it has none.
    pub(crate) fn encode(self, value: f32, overflow: Overflow) -> u32 {
        let sign = if value.is_sign_negative() { self.sign_bit() } else { 0 };
        if value.is_nan() {
            let quiet = match self.specials {
                Specials::Ieee => self.max_index() + 1 + (1 << (self.mantissa_bits - 1)),
                Specials::NanOnly => self.max_index() + 1,
                Specials::None => 0,
            };
            return sign | quiet;
        }
        let magnitude = f64::from(value.abs()).min(2.0 * f64::from(f32::MAX));
        let exponent = floor_log2(magnitude).max(self.min_exponent());
        let quantum = exp2(exponent - self.mantissa_bits as i32);
        let steps = round_even(magnitude / quantum);
        let index = steps + f64::from(exponent - self.min_exponent()) * f64::from(1u32 << self.mantissa_bits);
        let max = self.max_index();
        if index <= f64::from(max) {
            return sign | index as u32;
        }
        match (overflow, self.specials) {
            (Overflow::Saturate, _) | (_, Specials::None) => sign | max,
            (Overflow::Special, _) => sign | (max + 1),
        }
    }

    /// The nearest representable value, saturating.
    pub(crate) fn round(self, value: f32) -> f32 {
        self.decode(self.encode(value, Overflow::Saturate))
    }
}

/// `value` rounded to a whole number, ties to even, for magnitudes below 2^51: adding 1.5 * 2^52 leaves no bits for a
/// fraction. The instruction for it is missing from the oldest x86-64, where the library call costs more than all the rest.
pub(crate) fn round_even(value: f64) -> f64 {
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    (value + SHIFT) - SHIFT
}

/// 2^`exponent`, exactly, for exponents of normal `f64` numbers.
pub(crate) fn exp2(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// floor(log2 `value`) of a positive `f64` that came from an `f32` (so it is normal); -1023 for zero.
pub(crate) fn floor_log2(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_extremes() {
        // OCP FP8 table 2, OCP MX table 1, IEEE 754.
        assert_eq!(Minifloat::E4M3.max(), 448.0);
        assert_eq!(Minifloat::E5M2.max(), 57_344.0);
        assert_eq!(Minifloat::E3M2.max(), 28.0);
        assert_eq!(Minifloat::E2M3.max(), 7.5);
        assert_eq!(Minifloat::E2M1.max(), 6.0);
        assert_eq!(Minifloat::FP16.max(), 65_504.0);
        assert_eq!(Minifloat::FP32.max(), f64::from(f32::MAX));
    }

    #[test]
    fn rounding_is_that_of_the_library() {
        for value in [0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.499_999_999_999_999_94, 1e15 + 0.5, -1e15 - 1.5, 16_777_215.5] {
            assert_eq!(round_even(value), f64::round_ties_even(value), "{value}");
        }
    }

    #[test]
    fn fp32_is_the_identity() {
        for bits in [0u32, 1, 0x007f_ffff, 0x0080_0000, 0x3f80_0001, 0x7f7f_ffff, 0x8000_0001, 0xff80_0000] {
            assert_eq!(Minifloat::FP32.encode(f32::from_bits(bits), Overflow::Special), bits);
            assert_eq!(Minifloat::FP32.decode(bits).to_bits(), bits);
        }
    }

    #[test]
    fn overflow_saturates_or_becomes_special() {
        assert_eq!(Minifloat::E4M3.encode(1e9, Overflow::Saturate), 0x7e);
        assert_eq!(Minifloat::E4M3.encode(-1e9, Overflow::Special), 0xff);
        assert_eq!(Minifloat::E5M2.encode(f32::INFINITY, Overflow::Special), 0x7c);
        assert_eq!(Minifloat::E5M2.encode(f32::INFINITY, Overflow::Saturate), 0x7b);
        assert_eq!(Minifloat::E2M1.encode(f32::INFINITY, Overflow::Special), 7);
        // 464 is the tie between 448 and the unrepresentable 480: to even is down for index 126.
        assert_eq!(Minifloat::E4M3.encode(464.0, Overflow::Special), 0x7e);
        assert_eq!(Minifloat::E4M3.encode(465.0, Overflow::Special), 0x7f);
    }
}
