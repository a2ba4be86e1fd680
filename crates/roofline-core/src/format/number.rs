//! Narrow floats by integer arithmetic, without branches, so that plain loops over them become vector code. One for
//! every kernel and every coding; they give what [`Element`](super::Element) gives, which shows its working.

#![allow(clippy::inline_always)]

/// 2^112: what moves an FP16 exponent, read in an FP32's place, to its own.
const UP: f32 = f32::from_bits((112 + 127) << 23);

/// The value of a BF16 number.
#[inline(always)]
pub fn from_bf16(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// Ties to even; a NaN stays one.
#[inline(always)]
pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    if value.is_nan() { 0x7fc0 } else { rounded as u16 }
}

/// The value of an FP16 number.
#[inline(always)]
pub fn from_fp16(code: u16) -> f32 {
    let sign = u32::from(code & 0x8000) << 16;
    let magnitude = f32::from_bits(u32::from(code & 0x7fff) << 13) * UP;
    let special = if code & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | sign)
}

/// Ties to even, past the range infinity.
#[inline(always)]
pub fn to_fp16(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let bits = value.to_bits() & 0x7fff_ffff;
    let magnitude = f32::from_bits(bits);
    // A subnormal: adding 1/2 aligns its last bit with FP32's, and the addition rounds.
    let small = (magnitude + 0.5).to_bits().wrapping_sub(0.5f32.to_bits()) as u16;
    let normal = (bits.wrapping_sub(112 << 23).wrapping_add(0xfff + ((bits >> 13) & 1)) >> 13) as u16;
    let code = if magnitude >= 65_520.0 {
        0x7c00
    } else if magnitude < 6.103_515_6e-5 {
        small
    } else {
        normal
    };
    sign | if value.is_nan() { 0x7e00 } else { code }
}

/// Ties to even, saturating at 448; a NaN stays one.
#[inline(always)]
pub fn to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.abs().min(448.0);
    let bits = magnitude.to_bits();
    // The smallest normal is 2^-6, the step below it 2^-9: adding 2^14 puts FP32's last bit there.
    let small = ((magnitude + 16_384.0).to_bits() - 16_384.0f32.to_bits()) as u8;
    let normal = (bits.wrapping_sub(120 << 23).wrapping_add(0x7_ffff + ((bits >> 20) & 1)) >> 20) as u8;
    let code = if magnitude < 0.015_625 { small } else { normal };
    sign | if value.is_nan() { 0x7f } else { code }
}

/// Ties to even, saturating at 57344; a NaN stays one.
#[inline(always)]
pub fn to_e5m2(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let magnitude = value.abs().min(57_344.0);
    let bits = magnitude.to_bits();
    // The smallest normal is 2^-14, the step below it 2^-16: adding 2^7 puts FP32's last bit there.
    let small = ((magnitude + 128.0).to_bits() - 128.0f32.to_bits()) as u8;
    let normal = (bits.wrapping_sub(112 << 23).wrapping_add(0xf_ffff + ((bits >> 21) & 1)) >> 21) as u8;
    let code = if magnitude < 6.103_515_6e-5 { small } else { normal };
    sign | if value.is_nan() { 0x7e } else { code }
}

/// E4M3 with its sign and fields moved to their FP16 places is an FP16 number of 2^-8 times the value (biases 15 and 7). A
/// NaN, the code past 448, comes out as 480.
#[inline(always)]
pub fn from_e4m3(code: u8) -> f32 {
    from_fp16(((i16::from(code.cast_signed()) << 7) & !0x4000).cast_unsigned()) * 256.0
}
