//! Types that are read and not written, because there is a better one of their size; plain loops do.

use roofline_core::format::gguf::half;

use super::Type;

/// The sixteen values of `IQ4_NL` and `IQ4_XS`, denser around zero.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// As [`super::decode`].
pub(super) fn decode(ty: Type, bytes: &[u8], out: &mut [f32]) -> bool {
    let one: fn(&[u8], &mut [f32]) = match ty {
        Type::Iq4Nl => iq4nl,
        Type::Iq4Xs => iq4xs,
        Type::I8 => |bytes, out| out[0] = f32::from(bytes[0] as i8),
        Type::I16 => |bytes, out| out[0] = f32::from(i16::from_le_bytes([bytes[0], bytes[1]])),
        Type::I32 => |bytes, out| out[0] = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as f32,
        _ => return false,
    };
    for (block, out) in bytes.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block())) {
        one(block, out);
    }
    true
}

/// The code of weight `at` of 32 in 16 bytes of two.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    (bytes[at % 16] >> (at / 16 * 4)) & 15
}

/// `f16 d | u8 q[16]`.
fn iq4nl(block: &[u8], out: &mut [f32]) {
    let d = half::read(block);
    for (at, x) in out.iter_mut().enumerate() {
        *x = d * f32::from(UNEVEN[usize::from(nibble(&block[2..], at))]);
    }
}

/// `f16 d | u16 high | u8 low[4] | u8 q[128]`: `d (s - 32)` with six bits of `s` to each 32 weights.
fn iq4xs(block: &[u8], out: &mut [f32]) {
    let d = half::read(block);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let low = (block[4 + sub / 2] >> (sub % 2 * 4)) & 15;
        let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * sub) & 3) as u8;
        let d = d * f32::from((low | high << 4) as i8 - 32);
        for (at, x) in out.iter_mut().enumerate() {
            *x = d * f32::from(UNEVEN[usize::from(nibble(&block[8 + 16 * sub..], at))]);
        }
    }
}
