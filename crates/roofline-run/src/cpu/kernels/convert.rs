//! Rows of stored numbers to FP32 and back, of any length.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_isa::{
    Vector,
    number::{to_bf16, to_fp16},
};

use super::element::{Kind, Stored, with_kind};

/// Reads `n` elements as FP32, before any scale.
///
/// # Safety
///
/// `from` points to `n` stored elements, `to` to room for as many floats; the processor has `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn widen<V: Vector>(kind: Kind, from: *const u8, n: usize, to: *mut f32) {
    unsafe {
        with_kind!(kind, F => widen_as::<V, F>(from, n, to));
    }
}

/// The same for one type of elements.
///
/// # Safety
///
/// As for [`widen`], with elements of `F`.
#[inline(always)]
unsafe fn widen_as<V: Vector, F: Stored>(from: *const u8, n: usize, to: *mut f32) {
    unsafe {
        let factor = V::splat(F::FACTOR);
        let mut at = 0;
        while at + V::LANES <= n {
            F::load::<V>(from.add(at * F::BYTES)).mul(factor).store(to.add(at));
            at += V::LANES;
        }
        if at < n {
            // The rest by way of a vector's worth of zeros: reading past the end may leave the buffer.
            let (mut codes, mut values) = ([0u8; 64], [0f32; 16]);
            std::ptr::copy_nonoverlapping(from.add(at * F::BYTES), codes.as_mut_ptr(), (n - at) * F::BYTES);
            F::load::<V>(codes.as_ptr()).mul(factor).store(values.as_mut_ptr());
            std::ptr::copy_nonoverlapping(values.as_ptr(), to.add(at), n - at);
        }
    }
}

/// Writes `n` floats in a format without scales.
///
/// # Safety
///
/// `from` points to `n` floats, `to` to room for as many elements; the processor has `V`'s instruction set.
#[inline(always)]
pub(crate) unsafe fn narrow<V: Vector>(kind: Kind, from: *const f32, n: usize, to: *mut u8) {
    unsafe {
        let mut at = 0;
        match kind {
            Kind::Bf16 => {
                while at + V::LANES <= n {
                    V::load(from.add(at)).store_bf16(to.add(2 * at));
                    at += V::LANES;
                }
                for at in at..n {
                    to.add(2 * at).cast::<[u8; 2]>().write(to_bf16(*from.add(at)).to_le_bytes());
                }
            }
            Kind::Fp16 => {
                while at + V::LANES <= n {
                    V::load(from.add(at)).store_fp16(to.add(2 * at));
                    at += V::LANES;
                }
                for at in at..n {
                    to.add(2 * at).cast::<[u8; 2]>().write(to_fp16(*from.add(at)).to_le_bytes());
                }
            }
            _ => std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, 4 * n),
        }
    }
}

/// One element without a scale.
#[cfg(test)]
pub(crate) fn scalar(kind: Kind, codes: &[u8], index: usize) -> f32 {
    use roofline_isa::number::{from_bf16, from_fp16};
    let word = || u16::from_le_bytes([codes[2 * index], codes[2 * index + 1]]);
    match kind {
        Kind::Bf16 => from_bf16(word()),
        Kind::Fp16 => from_fp16(word()),
        _ => {
            let at = 4 * index;
            f32::from_le_bytes([codes[at], codes[at + 1], codes[at + 2], codes[at + 3]])
        }
    }
}
