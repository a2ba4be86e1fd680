//! What is compiled for every width of vectors: the block types of `roofline_core`, and the types of single numbers.

use roofline_core::format::gguf::{Codec, half};

use roofline_isa::widest;

widest! {
    /// Whole blocks, as ggml codes them.
    pub(super) fn encode<C: Codec>(values: &[f32], out: &mut [u8]) {
        C::encode(values, out);
    }
}

widest! {
    /// A row, as ggml codes it with an importance matrix.
    pub(super) fn encode_weighted<C: Codec>(row: &[f32], importance: &[f32], out: &mut [u8]) {
        C::encode_weighted(row, importance, out);
    }
}

widest! {
    /// What whole blocks stand for.
    pub(super) fn decode<C: Codec>(bytes: &[u8], out: &mut [f32]) {
        C::decode(bytes, out);
    }
}

widest! {
    /// The nearest f16s.
    pub(super) fn encode_f16(values: &[f32], out: &mut [u8]) {
        for (x, out) in values.iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&half::to_f16(*x).to_le_bytes());
        }
    }
}

widest! {
    /// The values of f16s.
    pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
        for (bytes, x) in bytes.chunks_exact(2).zip(out) {
            *x = half::read(bytes);
        }
    }
}

widest! {
    /// The nearest bf16s.
    pub(super) fn encode_bf16(values: &[f32], out: &mut [u8]) {
        for (x, out) in values.iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&half::to_bf16(*x).to_le_bytes());
        }
    }
}

widest! {
    /// The values of bf16s.
    pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
        for (bytes, x) in bytes.chunks_exact(2).zip(out) {
            *x = half::from_bf16(u16::from_le_bytes([bytes[0], bytes[1]]));
        }
    }
}

/// Bytes as they are.
pub(super) fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (x, out) in values.iter().zip(out.chunks_exact_mut(4)) {
        out.copy_from_slice(&x.to_le_bytes());
    }
}

/// Bytes as they are.
pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, x) in bytes.chunks_exact(4).zip(out) {
        *x = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}
