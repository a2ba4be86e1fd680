use std::cell::RefCell;

use roofline_core::format::{Element, Overflow};

use super::*;
use crate::number::{from_bf16, from_fp16, to_bf16, to_e4m3, to_e5m2, to_fp16};

/// Values around every power of two of the range, ties among them.
fn values() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, 1.0, -1.0, 3.0e38, 65_519.9, 65_520.0, 448.0, 449.0, 57_344.0];
    let mut state = 1u32;
    for power in -40..40 {
        for _ in 0..40 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let sign = if state & 1 == 0 { 1.0 } else { -1.0 };
            values.push(sign * (1.0 + f32::from((state >> 16) as u16) / 65_536.0) * 2f32.powi(power));
            values.push(sign * (1.0 + f32::from((state >> 24) as u8) / 256.0) * 2f32.powi(power));
        }
    }
    values.resize(values.len().next_multiple_of(16), 0.5);
    values
}

#[test]
fn scalar_conversions_are_the_cores() {
    for code in 0..=u16::MAX {
        for (element, ours) in [(Element::Bf16, from_bf16(code)), (Element::Fp16, from_fp16(code))] {
            let theirs = element.decode(code.into());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{element:?} {code:#x}: {ours} {theirs}");
        }
    }
    for value in values() {
        assert_eq!(u64::from(to_bf16(value)), Element::Bf16.encode(value, Overflow::Special), "{value}");
        assert_eq!(u64::from(to_fp16(value)), Element::Fp16.encode(value, Overflow::Special), "{value}");
        assert_eq!(u64::from(to_e4m3(value)), Element::Fp8E4M3.encode(value, Overflow::Saturate), "{value}");
        assert_eq!(u64::from(to_e5m2(value)), Element::Fp8E5M2.encode(value, Overflow::Saturate), "{value}");
    }
}

/// Stores and loads every value in every type, and applies what has a scalar twin.
struct Conversions<'a>(&'a [f32], &'a RefCell<usize>);

impl Kernel for Conversions<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut bytes = [0u8; 64];
            let mut floats = [0f32; 16];
            for part in self.0.chunks_exact(V::LANES) {
                let vector = V::load(part.as_ptr());
                *self.1.borrow_mut() += V::LANES;
                let word = |bytes: &[u8; 64], lane: usize| u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]);
                vector.store_bf16(bytes.as_mut_ptr());
                V::load_bf16(bytes.as_ptr()).store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate() {
                    assert_eq!(word(&bytes, lane), to_bf16(*value));
                    assert_eq!(floats[lane], from_bf16(to_bf16(*value)));
                }
                vector.store_fp16(bytes.as_mut_ptr());
                V::load_fp16(bytes.as_ptr()).store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate() {
                    assert_eq!(word(&bytes, lane), to_fp16(*value), "{value}");
                    assert_eq!(floats[lane], from_fp16(to_fp16(*value)));
                }
                vector.max(V::splat(-1e6)).min(V::splat(1e6)).store_i8(bytes.as_mut_ptr());
                V::load_i8(bytes.as_ptr()).store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate() {
                    assert_eq!(floats[lane], value.round_ties_even().clamp(-128.0, 127.0), "{value}");
                }
                vector.exp2().store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate() {
                    let exact = f64::from(value.clamp(-126.0, 127.0)).exp2();
                    assert!((f64::from(floats[lane]) / exact - 1.0).abs() < 3e-7, "2^{value} is {}", floats[lane]);
                }
                let total: f64 = part.iter().map(|value| f64::from(*value)).sum();
                let size: f64 = part.iter().map(|value| f64::from(value.abs())).sum();
                V::sum4([vector, V::splat(1.0), V::zero(), vector], floats.as_mut_ptr());
                for sum in [vector.sum(), floats[0], floats[3]] {
                    assert!((f64::from(sum) - total).abs() <= 1e-6 * size);
                }
                assert_eq!((floats[1], floats[2]), (V::LANES as f32, 0.0));
                assert_eq!(vector.maximum(), part.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            }
            for code in (0..=255u8).step_by(V::LANES) {
                for (lane, byte) in bytes.iter_mut().enumerate().take(V::LANES) {
                    *byte = code + lane as u8;
                }
                V::load_e4m3(bytes.as_ptr()).mul(V::splat(256.0)).store(floats.as_mut_ptr());
                for lane in 0..V::LANES {
                    let value = Element::Fp8E4M3.decode(bytes[lane].into());
                    assert!(value.is_nan() || floats[lane] == value, "{} {value}", floats[lane]);
                }
                V::load_e5m2(bytes.as_ptr()).store(floats.as_mut_ptr());
                for lane in 0..V::LANES {
                    let value = Element::Fp8E5M2.decode(bytes[lane].into());
                    assert!(value.is_nan() || floats[lane] == value, "{} {value}", floats[lane]);
                }
            }
        }
    }
}

#[test]
fn every_width_agrees_with_the_scalars() {
    let values = values();
    for isa in Isa::restrictions() {
        let count = RefCell::new(0);
        launch(isa, Conversions(&values, &count));
        assert_eq!(count.into_inner(), values.len(), "{isa:?}");
    }
    // SAFETY: plain Rust.
    unsafe { Conversions(&values, &RefCell::new(0)).run::<portable::Plain>() };
}

/// Operations on bits stay within 16 bytes, so that any width gives the same bytes: those of plain loops.
struct Bits<'a>(&'a [u8; 128], &'a RefCell<Vec<Vec<u8>>>);

impl Kernel for Bits<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut results = vec![Vec::new(); 18];
            for at in (0..64).step_by(V::BYTES) {
                let (a, b) = (V::bits(self.0.as_ptr().add(at)), V::bits(self.0.as_ptr().add(64 + at)));
                let index = V::and(b, V::splat8(15));
                let signs = V::and(b, V::splat8(0x8f));
                let all = [
                    V::and(a, b),
                    V::or(a, b),
                    V::xor(a, b),
                    V::shl16::<3>(a),
                    V::shr16::<5>(a),
                    V::sar16::<4>(a),
                    V::shl32::<7>(a),
                    V::sar32::<9>(a),
                    V::mul16(a, b),
                    V::has8(a, V::splat8(0x21)),
                    V::lookup(a, index),
                    V::shuffle(a, signs),
                    V::zip_low(a, b),
                    V::zip_high(a, b),
                    V::add32(a, b),
                    V::totals(V::multiply16(V::no_sums(), a, b)),
                    V::totals(V::multiply16(V::sums(self.0.as_ptr().add(at).cast()), V::splat16(3), b)),
                    V::xor(V::splat16(0x1234), V::splat32(0x5678_9abc)),
                ];
                for (result, bits) in results.iter_mut().zip(all) {
                    let mut bytes = [0; 64];
                    V::store_bits(bits, bytes.as_mut_ptr());
                    result.extend_from_slice(&bytes[..V::BYTES]);
                }
            }
            *self.1.borrow_mut() = results;
        }
    }
}

#[test]
fn bits_are_the_same_at_every_width() {
    let mut state = 7u32;
    let bytes: [u8; 128] = std::array::from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let of = |isa| {
        let results = RefCell::new(Vec::new());
        launch(isa, Bits(&bytes, &results));
        results.into_inner()
    };
    let plain = RefCell::new(Vec::new());
    // SAFETY: plain Rust.
    unsafe { Bits(&bytes, &plain).run::<portable::Plain>() };
    let plain = plain.into_inner();
    assert_eq!(plain[0][0], bytes[0] & bytes[64]);
    for isa in Isa::restrictions() {
        assert_eq!(of(isa), plain, "{isa}");
    }
}
