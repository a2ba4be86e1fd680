//! Integers, which are read and not written; plain loops do.

use super::Type;

/// As [`super::decode`].
pub(super) fn decode(ty: Type, bytes: &[u8], out: &mut [f32]) -> bool {
    let one: fn(&[u8], &mut [f32]) = match ty {
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
