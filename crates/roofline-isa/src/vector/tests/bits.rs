//! Bytes of a register.

use std::{any::type_name, cell::RefCell};

use super::{super::*, at_every_width};

/// Operations on bits stay within 16 bytes, so that any width gives the same bytes: those of plain loops.
struct Bits<'a>(&'a [u8; 128], &'a RefCell<Vec<Vec<u8>>>);

impl Kernel for Bits<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        unsafe {
            let mut results = vec![Vec::new(); 19];
            let floats = |vector: V| {
                let mut floats = [0f32; 16];
                vector.store(floats.as_mut_ptr());
                V::bits(floats.as_ptr().cast())
            };
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
                    V::xor(floats(V::floats(a)), floats(V::as_floats(b))),
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

fn bytes(mut state: u32) -> [u8; 128] {
    std::array::from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
}

#[test]
fn bits_are_the_same_at_every_width() {
    for seed in 0..256 {
        let bytes = bytes(seed);
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
            assert_eq!(of(isa), plain, "{isa} {seed}");
        }
    }
}

/// Where a byte of a register comes from, when there are so many between pieces.
type Place = fn(usize, usize) -> usize;

/// What is gathered for the parts of a register, of `stride` bytes between them.
#[derive(Clone, Copy)]
struct Pieces<'a>(&'a [u8; 128], usize);

impl Kernel for Pieces<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(bytes, stride) = self;
        // SAFETY: four pieces of 16 bytes, or two of 32, end before the last byte.
        unsafe {
            let from = bytes.as_ptr().add(1);
            let gathered: [(V::Bits, Place); 4] = [
                (V::pieces16(from, stride), |at, stride| at / 16 * stride + at % 16),
                (V::pieces32(from, stride), |at, stride| at / 32 * stride + at % 32),
                (V::dwords(from, stride), |at, stride| at / 16 * stride + at % 4),
                (V::repeated16(from), |at, _| at % 16),
            ];
            for (index, (bits, place)) in gathered.into_iter().enumerate() {
                let mut found = [0; 64];
                V::store_bits(bits, found.as_mut_ptr());
                let wanted: Vec<u8> = (0..V::BYTES).map(|at| bytes[1 + place(at, stride)]).collect();
                assert_eq!(found[..V::BYTES], wanted, "{} {index} {stride}", type_name::<V>());
            }
        }
    }
}

#[test]
fn pieces_are_gathered_at_every_width() {
    for stride in 0..36 {
        at_every_width(Pieces(&bytes(7), stride));
    }
}
