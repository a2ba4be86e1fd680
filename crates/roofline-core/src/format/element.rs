//! One stored number, before any scale.

use super::minifloat::{Minifloat, Overflow, round_even};

/// How a single number is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE double precision.
    Fp64,
    /// IEEE single precision.
    Fp32,
    /// FP32 rounded to 10 mantissa bits; still 32 bits in memory.
    Tf32,
    /// IEEE half precision.
    Fp16,
    /// bfloat16.
    Bf16,
    /// 8 bits, largest 448, no infinity.
    Fp8E4M3,
    /// 8 bits, largest 57344.
    Fp8E5M2,
    /// 6 bits, largest 28.
    Fp6E3M2,
    /// 6 bits, largest 7.5.
    Fp6E2M3,
    /// 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
    Fp4E2M1,
    /// Two's complement, 32 bits: what integer products accumulate in.
    Int32,
    /// Two's complement, 8 bits.
    Int8,
    /// Two's complement, 6 bits.
    Int6,
    /// Two's complement, 5 bits.
    Int5,
    /// Two's complement, 4 bits.
    Int4,
    /// Two's complement, 3 bits.
    Int3,
    /// Two's complement, 2 bits.
    Int2,
    /// 8-bit two's complement with an implied factor of 2^-6 (OCP MX).
    FixedInt8,
    /// 16 quantiles of a normal distribution, from -1 to 1.
    Nf4,
    /// bitsandbytes' FP4: a sign and eight magnitudes from 0 to 1, in an order of their own.
    BnbFp4,
}

/// The NF4 code book (Dettmers et al., "QLoRA", arXiv 2305.14314, appendix E), as bitsandbytes stores it.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The FP4 code book of bitsandbytes (`get_4bit_type`, 0.50): twelfths of 0, 1/16, 8, 12, 4, 6, 2 and 3, then their
/// negatives.
pub const BNB_FP4: [f32; 16] = {
    let twelfths = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut codes = [0.0; 16];
    let mut at = 0;
    while at < 8 {
        codes[at] = twelfths[at] / 12.0;
        codes[at + 8] = if at == 0 { 0.0 } else { -codes[at] };
        at += 1;
    }
    codes
};

/// The codes of [`BNB_FP4`] by what they stand for, as bitsandbytes sorts them: zero is there twice.
pub const BNB_FP4_ASCENDING: [u8; 16] = [11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3];

impl Element {
    /// Stored bits.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Fp64 => 64,
            Self::Fp32 | Self::Tf32 | Self::Int32 => 32,
            Self::Fp16 | Self::Bf16 => 16,
            Self::Fp8E4M3 | Self::Fp8E5M2 | Self::Int8 | Self::FixedInt8 => 8,
            Self::Fp6E3M2 | Self::Fp6E2M3 | Self::Int6 => 6,
            Self::Int5 => 5,
            Self::Fp4E2M1 | Self::Int4 | Self::Nf4 | Self::BnbFp4 => 4,
            Self::Int3 => 3,
            Self::Int2 => 2,
        }
    }

    /// Exponent and mantissa bits of a floating-point element.
    pub const fn exponent_mantissa(self) -> Option<(u32, u32)> {
        match self {
            Self::Fp64 => Some((11, 52)),
            _ => match self.minifloat() {
                Some(float) => Some((float.exponent_bits, float.mantissa_bits)),
                None => None,
            },
        }
    }

    pub(crate) const fn minifloat(self) -> Option<Minifloat> {
        match self {
            Self::Fp32 => Some(Minifloat::FP32),
            Self::Tf32 => Some(Minifloat::TF32),
            Self::Fp16 => Some(Minifloat::FP16),
            Self::Bf16 => Some(Minifloat::BF16),
            Self::Fp8E4M3 => Some(Minifloat::E4M3),
            Self::Fp8E5M2 => Some(Minifloat::E5M2),
            Self::Fp6E3M2 => Some(Minifloat::E3M2),
            Self::Fp6E2M3 => Some(Minifloat::E2M3),
            Self::Fp4E2M1 => Some(Minifloat::E2M1),
            Self::Fp64
            | Self::Int32
            | Self::Int8
            | Self::Int6
            | Self::Int5
            | Self::Int4
            | Self::Int3
            | Self::Int2
            | Self::FixedInt8
            | Self::Nf4
            | Self::BnbFp4 => None,
        }
    }

    /// Whether this is an integer that weights are quantized to, with a linear scale.
    pub(crate) const fn is_integer(self) -> bool {
        matches!(self, Self::Int8 | Self::Int6 | Self::Int5 | Self::Int4 | Self::Int3 | Self::Int2)
    }

    /// The largest value an element can hold.
    pub fn max(self) -> f64 {
        match self {
            Self::Fp64 => f64::MAX,
            Self::Int32 | Self::Int8 | Self::Int6 | Self::Int5 | Self::Int4 | Self::Int3 | Self::Int2 => {
                f64::from((1u32 << (self.bits() - 1)) - 1)
            }
            Self::FixedInt8 => 127.0 / 64.0,
            Self::Nf4 | Self::BnbFp4 => 1.0,
            _ => self.minifloat().map_or(1.0, Minifloat::max),
        }
    }

    /// The value of a code.
    pub fn decode(self, code: u64) -> f32 {
        let signed = |bits: u32| ((code << (64 - bits)) as i64 >> (64 - bits)) as f32;
        match self {
            Self::Fp64 => f64::from_bits(code) as f32,
            Self::Int32 | Self::Int8 | Self::Int6 | Self::Int5 | Self::Int4 | Self::Int3 | Self::Int2 => {
                signed(self.bits())
            }
            Self::FixedInt8 => signed(8) / 64.0,
            Self::Nf4 => NF4[(code & 15) as usize],
            Self::BnbFp4 => BNB_FP4[(code & 15) as usize],
            Self::Tf32 => f32::from_bits(code as u32),
            _ => self.minifloat().map_or(f32::NAN, |float| float.decode(code as u32)),
        }
    }

    /// The nearest code: ties to even, past the range saturating (or infinity and NaN, for floating-point elements
    /// that have them, when asked for). Ties between quantiles go to the lower one, as in bitsandbytes.
    pub fn encode(self, value: f32, overflow: Overflow) -> u64 {
        let integer = |value: f32, bits: u32| {
            let limit = f64::from(1u32 << (bits - 1));
            let code = round_even(f64::from(value).clamp(-limit, limit - 1.0)) as i64;
            (code as u64) & (u64::MAX >> (64 - bits))
        };
        match self {
            Self::Fp64 => f64::from(value).to_bits(),
            Self::Int32 | Self::Int8 | Self::Int6 | Self::Int5 | Self::Int4 | Self::Int3 | Self::Int2 => {
                integer(value, self.bits())
            }
            Self::FixedInt8 => integer((value * 64.0).clamp(-127.0, 127.0), 8),
            Self::Nf4 => NF4.windows(2).take_while(|pair| value > f32::midpoint(pair[0], pair[1])).count() as u64,
            Self::BnbFp4 => {
                let value_of = |code: u8| BNB_FP4[usize::from(code)];
                let below = |pair: &&[u8]| value > f32::midpoint(value_of(pair[0]), value_of(pair[1]));
                u64::from(BNB_FP4_ASCENDING[BNB_FP4_ASCENDING.windows(2).take_while(below).count()])
            }
            Self::Tf32 => Minifloat::TF32.decode(Minifloat::TF32.encode(value, overflow)).to_bits().into(),
            _ => self.minifloat().map_or(0, |float| float.encode(value, overflow).into()),
        }
    }

    /// The codes that stand for no number, with what they stand for, for elements of at most 8 bits.
    pub fn special_codes(self) -> Vec<(u64, &'static str)> {
        let codes = 0..if self.bits() > 8 { 0 } else { 1u64 << self.bits() };
        codes.filter_map(|code| Some((code, special(self.decode(code))?))).collect()
    }

    /// Every distinct finite value, ascending, for elements of at most 8 bits.
    pub fn codebook(self) -> Option<Vec<f32>> {
        if self.bits() > 8 {
            return None;
        }
        // Adding zero turns -0 into 0.
        let mut values: Vec<f32> =
            (0..1u64 << self.bits()).map(|code| self.decode(code) + 0.0).filter(|value| value.is_finite()).collect();
        values.sort_by(f32::total_cmp);
        values.dedup();
        Some(values)
    }
}

/// What a value is that is no number.
fn special(value: f32) -> Option<&'static str> {
    match value {
        value if value.is_nan() => Some("NaN"),
        f32::INFINITY => Some("+infinity"),
        f32::NEG_INFINITY => Some("-infinity"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_levels() {
        // Codes above zero: every code but zero, NaN and infinity of the positive half.
        let levels = |element: Element| element.codebook().unwrap().iter().filter(|value| **value > 0.0).count();
        assert_eq!(levels(Element::Fp4E2M1), 7);
        assert_eq!(levels(Element::Fp6E2M3), 31);
        assert_eq!(levels(Element::Fp6E3M2), 31);
        assert_eq!(levels(Element::Fp8E4M3), 126);
        assert_eq!(levels(Element::Fp8E5M2), 123);
        assert_eq!(levels(Element::Int8), 127);
        assert_eq!(levels(Element::Int4), 7);
        assert_eq!(levels(Element::Nf4), 8);
    }

    #[test]
    fn codebooks_are_the_published_ones() {
        let fp4 = [-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        assert_eq!(Element::Fp4E2M1.codebook().unwrap(), fp4);
        assert_eq!(Element::Int4.codebook().unwrap(), (-8..8).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(Element::Int2.codebook().unwrap(), [-2.0, -1.0, 0.0, 1.0]);
        assert!(Element::Fp6E2M3.codebook().unwrap().contains(&3.25)); // 1.625 * 2
    }

    /// OCP 8-bit Floating Point Specification 1.0, table 1: E4M3 has NaN at S.1111.111 and no infinity, E5M2 has infinity at
    /// S.11111.00 and NaN above it. With them, and with two codes for zero, every code is accounted for.
    #[test]
    fn codes_that_are_no_numbers() {
        assert_eq!(Element::Fp8E4M3.special_codes(), [(0x7f, "NaN"), (0xff, "NaN")]);
        let [inf, nan] = ["+infinity", "NaN"];
        let positive = [(0x7c, inf), (0x7d, nan), (0x7e, nan), (0x7f, nan)];
        let negative = [(0xfc, "-infinity"), (0xfd, nan), (0xfe, nan), (0xff, nan)];
        assert_eq!(Element::Fp8E5M2.special_codes(), [positive, negative].concat());
        for element in [Element::Fp8E4M3, Element::Fp8E5M2] {
            assert_eq!(element.codebook().unwrap().len() + element.special_codes().len() + 1, 256);
        }
        assert!(Element::Int8.special_codes().is_empty() && Element::Fp32.special_codes().is_empty());
        assert_eq!(Element::Int8.codebook().unwrap(), (-128..128).map(|i| i as f32).collect::<Vec<_>>());
    }

    #[test]
    fn every_finite_code_survives_a_round_trip() {
        for element in [
            Element::Fp8E4M3,
            Element::Fp8E5M2,
            Element::Fp6E3M2,
            Element::Fp6E2M3,
            Element::Fp4E2M1,
            Element::Int8,
            Element::Int6,
            Element::Int5,
            Element::Int4,
            Element::Int3,
            Element::Int2,
            Element::Nf4,
        ] {
            for code in 0..1u64 << element.bits() {
                let value = element.decode(code);
                if value.is_finite() {
                    assert_eq!(element.encode(value, Overflow::Special), code, "{element:?} {code}");
                }
            }
        }
    }
}
