//! Four-bit floats: `MXFP4`, 32 weights to a power of two, and `NVFP4`, 16 weights to an E4M3.
//!
//! A code is a sign and one of `0, .5, 1, 1.5, 2, 3, 4, 6`. ggml takes the nearest of all sixteen, the first where
//! several are as near: a tie goes to the smaller magnitude and zero is positive. That is how many of the midpoints lie
//! below the magnitude: seven comparisons in place of sixteen distances.

use roofline_core::format::gguf::{half, peak_bits};

use roofline_isa::widest;

/// Twice the magnitudes, so that they are whole.
const DOUBLED: [f32; 16] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];
/// What lies halfway between neighbours of [`DOUBLED`].
const MIDPOINTS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// The nearest codes of `x` in units of `half`, half a block's scale.
#[inline(always)]
fn nearest<const N: usize>(x: &[f32; N], half: f32, codes: &mut [u8; N]) {
    // Without a scale all sixteen are equally far, and the first is taken: nothing is above an infinite midpoint.
    let unit = if half == 0.0 { f32::INFINITY } else { half };
    let midpoints = MIDPOINTS.map(|midpoint| midpoint * unit);
    for (code, x) in codes.iter_mut().zip(x) {
        let magnitude = midpoints.iter().map(|midpoint| u32::from(x.abs() > *midpoint)).sum::<u32>();
        let sign = if *x < 0.0 && magnitude > 0 { 8 } else { 0 };
        *code = (magnitude | sign) as u8;
    }
}

/// The first of the sixteen at the least distance, as ggml writes it down. Far beyond the largest magnitude, where
/// distances are rounded until they are equal, the comparisons above choose differently.
#[inline(always)]
fn literal(x: f32, half: f32) -> u8 {
    let mut best = (0, x.abs());
    for (code, value) in DOUBLED.iter().enumerate() {
        let distance = (value * half - x).abs();
        if distance < best.1 {
            best = (code, distance);
        }
    }
    best.0 as u8
}

/// The biased exponent of an MXFP4 scale, `floor(log2 peak) - 2 + 127`, with the logarithm rounded to f32 as `log2f`
/// rounds it: just below a power of two it is the whole number already. The distance in last places at which that
/// happens is `ln 2` times the power of two at or below the logarithm's magnitude.
#[inline(always)]
fn exponent(peak: u32) -> u8 {
    let biased = (peak >> 23) as i32;
    let next = biased - 126;
    let magnitude = (if next > 0 { next - 1 } else { -next }).max(1) as u32;
    let close = 44 >> (6 - magnitude.ilog2());
    let up = i32::from((peak & 0x007f_ffff) + close > 0x007f_ffff);
    // Not above 252, where six times the power is still a number.
    (biased - 2 + up).clamp(0, 252) as u8
}

/// Half of the power of two that the byte stands for.
#[inline(always)]
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { u32::from(exponent - 1) << 23 })
}

widest! {
    /// `u8 e | u8 q[16]`, the weight `j` below the weight `j + 16`.
    pub(super) fn encode_mxfp4(values: &[f32], out: &mut [u8]) {
        for (block, out) in values.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<17>().0) {
            out[0] = exponent(peak_bits(block));
            let mut codes = [0; 32];
            nearest(block, half_power(out[0]), &mut codes);
            for (at, byte) in out[1..].iter_mut().enumerate() {
                *byte = codes[at] | codes[at + 16] << 4;
            }
        }
    }
}

/// A code's value, doubled, by arithmetic: the exponent's two bits shift the mantissa's one.
#[inline(always)]
fn doubled(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 1 & 3, code & 1);
    let magnitude = if exponent == 0 { mantissa } else { (2 | mantissa) << (exponent - 1) };
    let magnitude = f32::from(magnitude);
    if code & 8 == 0 { magnitude } else { -magnitude }
}

widest! {
    /// `2^(e - 127)` times the code's value.
    pub(super) fn decode_mxfp4(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<17>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            let unit = half_power(block[0]);
            let (low, high) = out.split_at_mut(16);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[1..]) {
                *low = doubled(byte & 15) * unit;
                *high = doubled(byte >> 4) * unit;
            }
        }
    }
}

/// The value of an E4M3 without a sign; ggml reads the NaN as zero.
#[inline(always)]
fn from_ue4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), code & 7);
    let normal = f32::from_bits((exponent + 120) << 23 | u32::from(mantissa) << 20);
    let subnormal = f32::from(mantissa) / 512.0;
    if code == 0x7f {
        0.0
    } else if exponent == 0 {
        subnormal
    } else {
        normal
    }
}

/// The nearest E4M3, ties to even, held at 448.
#[inline(always)]
fn to_ue4m3(x: f32) -> u8 {
    let bits = x.to_bits().min(448f32.to_bits());
    let normal = ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20).wrapping_sub(120 << 3);
    // A last place of 2^14 is 2^-9, that of the subnormals.
    let subnormal = (f32::from_bits(bits) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    (if x < 1.0 / 64.0 { subnormal } else { normal }) as u8
}

/// ggml's own E4M3: halves go up, the largest subnormal is not left by rounding, and from 256 on all is 448.
#[inline(always)]
fn to_ue4m3_ggml(x: f32) -> u8 {
    if x < 1.0 / 64.0 {
        ((x * 512.0 + 0.5) as u8).min(7)
    } else {
        let code = ((x.min(448.0).to_bits() + (1 << 19)) >> 20) - (120 << 3);
        if code < 0x78 { code as u8 } else { 0x7e }
    }
}

/// The order of a sub-block's 16 codes in its 8 bytes: the weight `j` below the weight `j + 8`.
#[inline(always)]
fn pack(codes: &[u8; 16], bytes: &mut [u8; 8]) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = codes[at] | codes[at + 8] << 4;
    }
}

widest! {
    /// `u8 d[4] | u8 q[32]` as ggml itself would write it, without a scale of the tensor: `d = max|x| / 6`, which for
    /// weights of a usual size is among the few subnormals of E4M3. What is written for a model is [`encode_scaled`].
    pub(super) fn encode_nvfp4(values: &[f32], out: &mut [u8]) {
        for (block, out) in values.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<36>().0) {
            let (scales, packed) = out.split_at_mut(4);
            for ((x, scale), packed) in block.as_chunks::<16>().0.iter().zip(scales).zip(packed.as_chunks_mut::<8>().0) {
                let peak = f32::from_bits(peak_bits(x));
                *scale = to_ue4m3_ggml(peak / 6.0);
                let half = from_ue4m3(*scale) / 2.0;
                let mut codes = [0; 16];
                if peak > 16.0 * half {
                    for (code, x) in codes.iter_mut().zip(x) {
                        *code = literal(*x, half);
                    }
                } else {
                    nearest(x, half, &mut codes);
                }
                pack(&codes, packed);
            }
        }
    }
}

/// The largest magnitude that survives the roundings of a [`divisor`] and its inverse.
pub(super) const LARGEST: f32 = 1e38;

/// The divisor `G` of a tensor whose largest magnitude is `peak`: it takes the largest scale to E4M3's largest, 448, as
/// `2688 / peak` in bf16, which is how compressed-tensors computes it. One where that is not a number to divide by.
pub fn divisor(peak: f32) -> f32 {
    let bf16 = |x: f32| f32::from_bits(u32::from(half::to_bf16(x)) << 16);
    let divisor = bf16(bf16(1.0 / peak.min(LARGEST)) * 2688.0);
    if peak > 0.0 && (1.0 / peak).is_finite() && divisor > 0.0 { divisor } else { 1.0 }
}

widest! {
    /// `u8 d[4] | u8 q[32]` of `x G`: the codes that compressed-tensors gives, `d = e4m3(bf16(max|x| / 6) G)` and
    /// `q = e2m1(x / (d / G))` with ties to even, in ggml's order. The tensor's scale, `1 / G`, is stored beside it.
    pub(super) fn encode_scaled(values: &[f32], divisor: f32, out: &mut [u8]) {
        for (block, out) in values.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<36>().0) {
            let (scales, packed) = out.split_at_mut(4);
            for ((x, scale), packed) in block.as_chunks::<16>().0.iter().zip(scales).zip(packed.as_chunks_mut::<8>().0) {
                let peak = half::from_bf16(half::to_bf16(f32::from_bits(peak_bits(x))));
                let wanted = half::from_bf16(half::to_bf16(peak / 6.0)) * divisor;
                let code = to_ue4m3(wanted);
                // What rounds to zero takes an eighth, as in compressed-tensors, so that nothing is divided by zero.
                *scale = if code == 0 { 0x20 } else { code };
                let unit = from_ue4m3(*scale) / divisor;
                let mut codes = [0; 16];
                for (code, x) in codes.iter_mut().zip(x) {
                    let quotient = x / unit;
                    let y = quotient.abs();
                    let magnitude = u32::from(y > 0.25)
                        + u32::from(y >= 0.75)
                        + u32::from(y > 1.25)
                        + u32::from(y >= 1.75)
                        + u32::from(y > 2.5)
                        + u32::from(y >= 3.5)
                        + u32::from(y > 5.0);
                    *code = (magnitude | if quotient < 0.0 { 8 } else { 0 }) as u8;
                }
                pack(&codes, packed);
            }
        }
    }
}

widest! {
    /// `d` times the code's value, times the scale of the tensor.
    pub(super) fn decode_nvfp4(bytes: &[u8], scale: f32, out: &mut [f32]) {
        for (block, out) in bytes.as_chunks::<36>().0.iter().zip(out.as_chunks_mut::<64>().0) {
            for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let unit = from_ue4m3(block[sub]) / 2.0;
                let (low, high) = out.split_at_mut(8);
                for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[4 + 8 * sub..][..8]) {
                    *low = doubled(byte & 15) * unit * scale;
                    *high = doubled(byte >> 4) * unit * scale;
                }
            }
        }
    }
}

/// Codes of which the first half lies below the second, each with its neighbour.
#[inline(always)]
fn neighbours<const N: usize>(halves: &[u8; N], out: &mut [u8; N]) {
    for (at, out) in out.iter_mut().enumerate() {
        let (first, shift) = (2 * at % N, if 2 * at < N { 0 } else { 4 });
        *out = (halves[first] >> shift & 15) | (halves[first + 1] >> shift & 15) << 4;
    }
}

widest! {
    /// The scale `2^(e - 127)` is E8M0's own.
    pub(super) fn mxfp4_apart(bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        let blocks = bytes.as_chunks::<17>().0.iter().zip(codes.as_chunks_mut::<16>().0);
        for (([exponent, halves @ ..], codes), scale) in blocks.zip(scales) {
            *scale = *exponent;
            neighbours(halves, codes);
        }
    }
}

widest! {
    /// Scales lose what [`from_ue4m3`] does not read.
    pub(super) fn nvfp4_apart(bytes: &[u8], codes: &mut [u8], scales: &mut [u8]) {
        let blocks = bytes.as_chunks::<36>().0.iter().zip(codes.as_chunks_mut::<32>().0);
        for (([a, b, c, d, halves @ ..], codes), scales) in blocks.zip(scales.as_chunks_mut::<4>().0) {
            *scales = [*a, *b, *c, *d].map(|code| if code & 0x7f == 0x7f { 0 } else { code & 0x7f });
            for (halves, codes) in halves.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
                neighbours(halves, codes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_choose_what_the_distances_choose() {
        // Every scale of NVFP4, powers of two down to the subnormal ones, and around each midpoint its neighbours.
        let units = (0..=255).map(half_power).chain((0..0x7f).map(|code| from_ue4m3(code) / 2.0));
        for unit in units.filter(|unit| unit * 16.01 <= f32::MAX) {
            for eighths in 0..=128u8 {
                let near = unit * (f32::from(eighths) / 8.0);
                for bits in near.to_bits().saturating_sub(2)..=near.to_bits() + 2 {
                    for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
                        let mut code = [0; 1];
                        nearest(&[x], unit, &mut code);
                        assert_eq!(code[0], literal(x, unit), "{x:e} in {unit:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_exponent_is_that_of_the_rounded_logarithm() {
        for biased in 1..255u32 {
            for below in 0..100u32 {
                let peak = f32::from_bits((biased << 23 | 0x007f_ffff) - below);
                // In f64 first: `log2` of an f32 is exact to far more than the f32 it is then rounded to.
                let floor = (f64::from(peak).log2() as f32).floor();
                assert_eq!(exponent(peak.to_bits()), (floor + 125.0).clamp(0.0, 252.0) as u8, "{peak:e}");
            }
        }
        assert_eq!((exponent(1f32.to_bits()), exponent(0), exponent(6f32.to_bits())), (125, 0, 127));
    }

    #[test]
    fn doubled_values_are_those_of_the_table() {
        for (code, value) in DOUBLED.iter().enumerate() {
            assert_eq!(doubled(code as u8), *value);
        }
    }

    #[test]
    fn e4m3_rounds_to_the_nearest() {
        for code in 0..0x7e_u8 {
            let (low, high) = (from_ue4m3(code), from_ue4m3(code + 1));
            assert_eq!(to_ue4m3(low), code);
            let middle = f32::midpoint(low, high);
            assert_eq!(to_ue4m3(middle), code + (code & 1), "tie to even at {middle}");
            assert_eq!(to_ue4m3(middle * 1.001), code + 1);
        }
        assert_eq!((to_ue4m3(449.0), to_ue4m3(f32::INFINITY), from_ue4m3(0x7e)), (0x7e, 0x7e, 448.0));
    }

    #[test]
    fn a_tensor_of_zeros_has_a_divisor_of_one() {
        assert_eq!((divisor(0.0), divisor(1e-40), divisor(2688.0)), (1.0, 1.0, 1.0));
        assert!(divisor(f32::MAX) > 0.0);
    }
}
