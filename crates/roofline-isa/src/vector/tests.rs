mod bits;

use std::{any::type_name, cell::RefCell};

use roofline_core::format::{Element, Overflow};

use super::*;
use crate::number::{from_bf16, from_e4m3, from_fp16, to_bf16, to_e4m3, to_e5m2, to_fp16};

/// Numbers below it become dwords.
const DWORDS: f32 = 2_147_483_648.0;
/// Numbers up to it are made whole by an addition.
const WHOLE: f32 = 4_194_304.0;

/// Runs `kernel` with every width that this processor has, and with plain loops.
fn at_every_width<K: Kernel + Copy>(kernel: K) {
    for isa in Isa::restrictions() {
        launch(isa, kernel);
    }
    // SAFETY: plain Rust.
    unsafe { kernel.run::<portable::Plain>() };
}

/// The ends of the range and what lies beyond, values around every power of two with ties among them, and where whole
/// numbers end.
fn values() -> Vec<f32> {
    let mut values = vec![f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 0.0, 1.0];
    values.extend([f32::from_bits(1), f32::from_bits(0x007f_ffff), 3.0e38, 448.0, 449.0, 464.0, 57_344.0, 61_440.0]);
    values.extend([65_519.9, 65_520.0, 2f32.powi(-25), 2f32.powi(-25) * 1.001, 0.499_999_97, DWORDS, 2_147_483_520.0]);
    values.extend([127.49, 127.51, 128.49, 128.51, 32_767.49, 32_767.51, 32_768.49, 32_768.51, WHOLE - 0.5, WHOLE]);
    values.extend((0..320).map(|half| half as f32 / 2.0));
    values = values.into_iter().flat_map(|value| [value, -value]).collect();
    let mut state = 1u32;
    for power in -149..=127 {
        for _ in 0..40 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let size = 2f64.powi(power) * if state & 1 == 0 { 1.0 } else { -1.0 };
            values.push(((1.0 + f64::from(state >> 16) / 65_536.0) * size) as f32);
            values.push(((1.0 + f64::from(state >> 24) / 256.0) * size) as f32);
        }
    }
    values.resize(values.len().next_multiple_of(16), 0.5);
    values
}

/// The same number, or neither is one.
fn same(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// The same number to its sign, or neither is one.
fn identical(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn scalar_conversions_are_the_cores() {
    for code in 0..=u16::MAX {
        for (element, ours) in [(Element::Bf16, from_bf16(code)), (Element::Fp16, from_fp16(code))] {
            let theirs = element.decode(code.into());
            assert!(identical(ours, theirs), "{element:?} {code:#x}: {ours} {theirs}");
        }
    }
    for value in values() {
        for (element, overflow, ours) in [
            (Element::Bf16, Overflow::Special, to_bf16(value).into()),
            (Element::Fp16, Overflow::Special, to_fp16(value).into()),
            (Element::Fp8E4M3, Overflow::Saturate, to_e4m3(value).into()),
            (Element::Fp8E5M2, Overflow::Saturate, to_e5m2(value).into()),
        ] {
            let theirs = element.encode(value, overflow);
            let neither = value.is_nan() && element.decode(ours).is_nan();
            assert!(ours == theirs || neither, "{element:?} {value}: {ours:#x} {theirs:#x}");
        }
    }
}

/// Stores and loads every value in every type, and applies what has a scalar twin.
struct Conversions<'a>(&'a [f32], &'a RefCell<usize>);

impl Kernel for Conversions<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let width = type_name::<V>();
            let mut bytes = [0u8; 64];
            let mut words = [0i16; 16];
            let mut floats = [0f32; 16];
            for part in self.0.chunks_exact(V::LANES) {
                let vector = V::load(part.as_ptr());
                *self.1.borrow_mut() += V::LANES;
                let word = |bytes: &[u8; 64], lane: usize| u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]]);
                vector.store_bf16(bytes.as_mut_ptr());
                V::load_bf16(bytes.as_ptr()).store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate() {
                    assert_eq!(word(&bytes, lane), to_bf16(*value), "{width} {value}");
                    assert!(identical(floats[lane], from_bf16(to_bf16(*value))), "{width} {value}");
                }
                // Which NaN it is, processors decide.
                vector.store_fp16(bytes.as_mut_ptr());
                V::load_fp16(bytes.as_ptr()).store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate() {
                    let (code, wanted) = (word(&bytes, lane), to_fp16(*value));
                    assert!(code == wanted || value.is_nan(), "{width} {value} {code:#x}");
                    assert!(identical(from_fp16(code), from_fp16(wanted)), "{width} {value} {code:#x}");
                    assert!(identical(floats[lane], from_fp16(wanted)), "{width} {value}");
                }
                vector.store_i8(bytes.as_mut_ptr());
                V::load_i8(bytes.as_ptr()).store(floats.as_mut_ptr());
                vector.store_i16(words.as_mut_ptr());
                for (lane, value) in part.iter().enumerate().filter(|(_, value)| **value < DWORDS) {
                    let whole = value.round_ties_even();
                    assert_eq!(floats[lane], whole.clamp(-128.0, 127.0), "{width} {value}");
                    assert_eq!(f32::from(words[lane]), whole.clamp(-32_768.0, 32_767.0), "{width} {value}");
                }
                vector.exp2().store(floats.as_mut_ptr());
                for (lane, value) in part.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
                    let exact = f64::from(value.clamp(-126.0, 127.0)).exp2();
                    assert!((f64::from(floats[lane]) / exact - 1.0).abs() < 3e-7, "{width} 2^{value} {}", floats[lane]);
                }
                let total: f64 = part.iter().map(|value| f64::from(*value)).sum();
                let size: f64 = part.iter().map(|value| f64::from(value.abs())).sum();
                V::sum4([vector, V::splat(1.0), V::zero(), vector], floats.as_mut_ptr());
                assert_eq!((floats[1], floats[2]), (V::LANES as f32, 0.0), "{width}");
                // What is no number stays that, and sums past the range depend on their order.
                for sum in [vector.sum(), floats[0], floats[3]].map(f64::from) {
                    let near = (sum - total).abs() <= 1e-6 * size;
                    let beyond = size.is_finite() && size > f64::from(f32::MAX);
                    assert!(
                        near || beyond || sum == total || (sum.is_nan() && total.is_nan()),
                        "{width} {part:?} {sum}"
                    );
                }
                if !total.is_nan() {
                    let largest = part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(vector.maximum(), largest, "{width} {part:?}");
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

/// Reads every code of every narrow type.
#[derive(Clone, Copy)]
struct Codes;

impl Kernel for Codes {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let width = type_name::<V>();
            let mut floats = [0f32; 16];
            for first in (0..=u16::MAX).step_by(16) {
                let codes: [u16; 16] = std::array::from_fn(|at| first + at as u16);
                let stored = codes.map(u16::to_le_bytes);
                for at in (0..16).step_by(V::LANES) {
                    V::load_fp16(stored[at..].as_ptr().cast()).store(floats.as_mut_ptr().add(at));
                }
                let mut fours = [0f32; 16];
                for at in (0..16).step_by(4) {
                    let four = (0..4).map(|lane| u64::from(codes[at + lane]) << (16 * lane)).sum();
                    V::four_fp16(four, fours.as_mut_ptr().add(at));
                }
                for (at, code) in codes.into_iter().enumerate() {
                    let value = from_fp16(code);
                    assert!(identical(floats[at], value), "{width} {code:#x}: {} {value}", floats[at]);
                    assert!(identical(fours[at], value), "{width} {code:#x}: {} {value}", fours[at]);
                }
            }
            for first in (0..=u8::MAX).step_by(16) {
                let codes: [u8; 16] = std::array::from_fn(|at| first + at as u8);
                let mut eights = [0f32; 16];
                let mut spread = [0f32; 16];
                let halves = codes.as_chunks::<8>().0;
                for at in [0, 8] {
                    V::eight_e4m3(codes.as_ptr().add(at), eights.as_mut_ptr().add(at));
                }
                let [low, high] = [halves[0], halves[1]].map(u64::from_le_bytes);
                V::sixteen_i8((low, 0.37), (high, -1e-3), spread.as_mut_ptr());
                for at in (0..16).step_by(V::LANES) {
                    V::load_e4m3(codes.as_ptr().add(at)).store(floats.as_mut_ptr().add(at));
                }
                for (at, code) in codes.into_iter().enumerate() {
                    let value = Element::Fp8E4M3.decode(code.into());
                    // Past 448 is a NaN, which is read as the next number.
                    let value = if value.is_nan() { 480f32.copysign(value) } else { value };
                    assert!(identical(floats[at] * 256.0, value), "{width} {code:#x}: {} {value}", floats[at]);
                    assert!(identical(eights[at] * 256.0, value), "{width} {code:#x}: {} {value}", eights[at]);
                    assert!(identical(from_e4m3(code), value), "{code:#x}");
                    let factor = if at < 8 { 0.37 } else { -1e-3 };
                    assert_eq!(spread[at], f32::from(code.cast_signed()) * factor, "{width} {code}");
                }
                for at in (0..16).step_by(V::LANES) {
                    V::load_e5m2(codes.as_ptr().add(at)).store(floats.as_mut_ptr().add(at));
                    V::load_i8(codes.as_ptr().add(at)).store(eights.as_mut_ptr().add(at));
                }
                for (at, code) in codes.into_iter().enumerate() {
                    let value = Element::Fp8E5M2.decode(code.into());
                    assert!(identical(floats[at], value), "{width} {code:#x}: {} {value}", floats[at]);
                    assert_eq!(eights[at], f32::from(code.cast_signed()), "{width}");
                }
            }
        }
    }
}

#[test]
fn every_code_is_read_at_every_width() {
    at_every_width(Codes);
}

/// What is done to one of a lane's two numbers, or to both.
type Scalar = fn(f32, f32) -> f32;

/// What is done to each lane, beside the same done to one number.
#[derive(Clone, Copy)]
struct Lanes<'a>(&'a [f32], &'a [f32]);

/// Room for a vector, aligned to all of it.
#[repr(align(64))]
struct Aligned([f32; 16]);

impl Aligned {
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    #[inline(always)]
    unsafe fn stream<V: Vector>(&mut self, vector: V) -> &[f32] {
        unsafe {
            vector.stream(self.0.as_mut_ptr());
            #[cfg(target_arch = "x86_64")]
            std::arch::x86_64::_mm_sfence();
        }
        &self.0[..V::LANES]
    }

    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and there are `LANES` numbers.
    #[inline(always)]
    unsafe fn spread<V: Vector, const SPAN: usize>(&mut self, from: &[f32]) {
        let lanes = unsafe { self.stream(V::spread::<SPAN>(from.as_ptr())) };
        for (lane, value) in lanes.iter().enumerate() {
            assert!(identical(*value, from[lane / SPAN]), "{} {SPAN} {lane}", type_name::<V>());
        }
    }
}

impl Kernel for Lanes<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut room = Aligned([0.0; 16]);
            for (a, b) in self.0.chunks_exact(V::LANES).zip(self.1.chunks_exact(V::LANES)) {
                let (x, y) = (V::load(a.as_ptr()), V::load(b.as_ptr()));
                let power = y.max(V::splat(-126.0)).min(V::splat(127.0)).round();
                let results: [(V, Scalar); 10] = [
                    (x, |a, _| a),
                    (x.add(y), |a, b| a + b),
                    (x.sub(y), |a, b| a - b),
                    (x.mul(y), |a, b| a * b),
                    (x.div(y), |a, b| a / b),
                    (x.max(y), f32::max),
                    (x.min(y), f32::min),
                    (x.abs(), |a, _| a.abs()),
                    (x.max(V::splat(-WHOLE)).min(V::splat(WHOLE)).round(), |a, _| {
                        a.clamp(-WHOLE, WHOLE).round_ties_even()
                    }),
                    (V::splat(1.5).scale2(power), |_, b| {
                        1.5 * 2f32.powi(b.clamp(-126.0, 127.0).round_ties_even() as i32)
                    }),
                ];
                let numbers = || a.iter().zip(b).enumerate().filter(|(_, (a, b))| !a.is_nan() && !b.is_nan());
                for (index, (vector, scalar)) in results.into_iter().enumerate() {
                    let lanes = room.stream(vector);
                    for (lane, (a, b)) in numbers() {
                        let (found, wanted) = (lanes[lane], scalar(*a, *b));
                        assert!(same(found, wanted), "{} {index} of {a}, {b}: {found} {wanted}", type_name::<V>());
                    }
                }
                let lanes = room.stream(x.fma(y, V::splat(0.1)));
                for (lane, (a, b)) in numbers() {
                    let (once, twice) = (a.mul_add(*b, 0.1), a * b + 0.1);
                    assert!([once, twice].into_iter().any(|wanted| same(lanes[lane], wanted)), "{a} * {b}");
                }
                // Neither it nor its inverse is subnormal.
                let lanes = room.stream(x.reciprocal());
                for (lane, (a, _)) in
                    numbers().filter(|(_, (a, _))| (2f32.powi(-126)..2f32.powi(125)).contains(&a.abs()))
                {
                    assert!((lanes[lane] * a - 1.0).abs() < 2.5e-7, "1 / {a} is {}", lanes[lane]);
                }
                room.spread::<V, 1>(a);
                room.spread::<V, 2>(a);
                room.spread::<V, 4>(a);
                room.spread::<V, 8>(a);
                room.spread::<V, 16>(a);
            }
        }
    }
}

#[test]
fn lanes_are_numbers_at_every_width() {
    let values = values();
    // Beside numbers of about their size, and of any other.
    for distance in [83, 12_345] {
        let mut others = values.clone();
        others.rotate_left(distance);
        at_every_width(Lanes(&values, &others));
    }
}
