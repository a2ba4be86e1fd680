//! The blocks of GGUF files, as ggml lays them out: scales stand between the codes.

use std::marker::PhantomData;

use roofline_isa::{Dot, Vector};

use super::{At, Form, spread};

/// The scales of the four blocks of a step of 128, `stride` bytes apart.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `from` has an FP16 number at each of four strides.
#[inline(always)]
unsafe fn four<V: Vector>(from: *const u8, stride: usize) -> [f32; 4] {
    unsafe {
        let word = |index: usize| u64::from(from.add(index * stride).cast::<u16>().read_unaligned());
        let mut scales = [0.0; 4];
        V::four_fp16(word(0) | word(1) << 16 | word(2) << 32 | word(3) << 48, scales.as_mut_ptr());
        scales
    }
}

/// FP16 scale, 32 signed bytes.
pub(super) struct Q8_0;

impl Form for Q8_0 {
    const STEP: usize = 128;
    const CODES: usize = 4 * 34;
    const SCALES: usize = 0;
    const OFFSET: i32 = 0;
    const SIGNED: bool = true;
    type Open = (*const u8, [f32; 4]);

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        if V::BYTES < 32 { 32 / V::BYTES } else { 1 }
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        (group * Self::registers::<V>() + register) * V::BYTES + byte
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Self::Open {
        unsafe { (at.codes, four::<V>(at.codes, 34)) }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Self::Open, group: usize, register: usize) -> D::Weights {
        unsafe {
            let block = group * V::BYTES.max(32) / 32;
            D::signed(V::pieces32(open.0.add(block * 34 + 2 + register * V::BYTES), 34))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Self::Open, group: usize) -> V {
        unsafe { spread::<V>(open.1.as_ptr().add(group * V::BYTES.max(32) / 32), 8) }
    }
}

/// Blocks of 32 nibbles, the lower halves of 16 bytes first: each 16-byte part of a register is a block.
trait Halves {
    const BYTES: usize;
    const OFFSET: i32;
    /// Bytes before the nibbles.
    const BEFORE: usize;
    /// The weights of the lower (`upper == false`) or the upper halves of blocks.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and from `block` on there is a block for each 16 bytes of a register.
    unsafe fn value<V: Vector>(block: *const u8, half: V::Bits, upper: bool) -> V::Bits;
}

/// FP16 scale, nibbles less 8.
pub(super) struct Q4_0;

impl Halves for Q4_0 {
    const BYTES: usize = 18;
    const OFFSET: i32 = 8;
    const BEFORE: usize = 2;
    #[inline(always)]
    unsafe fn value<V: Vector>(_: *const u8, half: V::Bits, _: bool) -> V::Bits {
        half
    }
}

/// FP16 scale, 32 fifth bits, nibbles; less 16.
pub(super) struct Q5_0;

/// Which byte of 32 bits has a byte's fifth bit, for the lower and for the upper halves; and which bit it is.
const FIFTH: [[u8; 16]; 2] =
    [[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]];
const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];

impl Halves for Q5_0 {
    const BYTES: usize = 22;
    const OFFSET: i32 = 16;
    const BEFORE: usize = 6;
    #[inline(always)]
    unsafe fn value<V: Vector>(block: *const u8, half: V::Bits, upper: bool) -> V::Bits {
        unsafe { with_fifths::<V>(block.add(2), Self::BYTES, half, upper) }
    }
}

/// Nibbles with their fifth bits, which lie `stride` bytes apart for each block.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `from` has four bytes at every stride, for each 16 bytes of a register.
#[inline(always)]
unsafe fn with_fifths<V: Vector>(from: *const u8, stride: usize, half: V::Bits, upper: bool) -> V::Bits {
    unsafe {
        let own = V::shuffle(V::dwords(from, stride), V::repeated16(FIFTH[usize::from(upper)].as_ptr()));
        V::or(half, V::and(V::has8(own, V::repeated16(BIT.as_ptr())), V::splat8(16)))
    }
}

/// FP16 scale, FP16 minimum, nibbles.
pub(super) struct Four;

impl Halves for Four {
    const BYTES: usize = 20;
    const OFFSET: i32 = 0;
    const BEFORE: usize = 4;
    #[inline(always)]
    unsafe fn value<V: Vector>(_: *const u8, half: V::Bits, _: bool) -> V::Bits {
        half
    }
}

/// FP16 scale, FP16 minimum, 32 fifth bits, nibbles.
pub(super) struct Five;

impl Halves for Five {
    const BYTES: usize = 24;
    const OFFSET: i32 = 0;
    const BEFORE: usize = 8;
    #[inline(always)]
    unsafe fn value<V: Vector>(block: *const u8, half: V::Bits, upper: bool) -> V::Bits {
        unsafe { with_fifths::<V>(block.add(4), Self::BYTES, half, upper) }
    }
}

impl<H: Halves> Form for H {
    const STEP: usize = 128;
    const CODES: usize = 4 * H::BYTES;
    const SCALES: usize = 0;
    const OFFSET: i32 = <H as Halves>::OFFSET;
    type Open = (*const u8, [f32; 4]);

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        2
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        (group * V::BYTES / 16 + byte / 16) * 32 + register * 16 + byte % 16
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Self::Open {
        unsafe { (at.codes, four::<V>(at.codes, H::BYTES)) }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Self::Open, group: usize, register: usize) -> D::Weights {
        unsafe {
            let block = open.0.add(group * V::BYTES / 16 * H::BYTES);
            let codes = V::pieces16(block.add(H::BEFORE), H::BYTES);
            let half = V::and(if register == 0 { codes } else { V::shr16::<4>(codes) }, V::splat8(15));
            D::small(H::value::<V>(block, half, register == 1))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Self::Open, group: usize) -> V {
        unsafe { spread::<V>(open.1.as_ptr().add(group * V::BYTES / 16), 4) }
    }
}

/// The same above a minimum, which is the second FP16 number of a block.
pub(super) struct Above<H>(PhantomData<H>);

pub(super) type Q4_1 = Above<Four>;
pub(super) type Q5_1 = Above<Five>;

impl<H: Halves> Form for Above<H> {
    const STEP: usize = H::STEP;
    const CODES: usize = H::CODES;
    const SCALES: usize = 0;
    const OFFSET: i32 = 0;
    const MINS: usize = 4;
    /// Blocks and scales; minima, which are taken off and therefore negated, and zeros.
    type Open = (<H as Form>::Open, [f32; 16]);

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        H::registers::<V>()
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        H::element::<V>(group, register, byte)
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Self::Open {
        unsafe {
            let least = four::<V>(at.codes.add(2), H::BYTES);
            let mut mins = [0.0; 16];
            for (min, least) in mins.iter_mut().zip(least) {
                *min = -least;
            }
            (H::open::<V>(at), mins)
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Self::Open, group: usize, register: usize) -> D::Weights {
        unsafe { H::weights::<V, D>(&open.0, group, register) }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Self::Open, group: usize) -> V {
        unsafe { H::scale::<V>(&open.0, group) }
    }
    #[inline(always)]
    unsafe fn mins(open: &Self::Open) -> *const f32 {
        open.1.as_ptr()
    }
}

/// 256 nibbles (`FIVE`: with a fifth bit each) in eight parts of 32, each with a scale and a minimum of 6 bits, times an FP16
/// number for all scales and one for all minima. 32 bytes hold two parts, one in their lower and one in their upper halves.
pub(super) struct Q45K<const FIVE: bool>;

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Parts {
    /// Scales in the order of groups: of two pairs of 32 bytes the lower halves, then their upper halves. Then minima, as
    /// they are stored, and zeros.
    values: [f32; 24],
    block: *const u8,
}

/// The part that stands at `place` of that order.
const fn part(place: usize) -> usize {
    place / 4 * 4 + place % 4 / 2 + place % 2 * 2
}

/// The bit of the eight fifths that belongs to each part, where 64 bytes of codes are two pairs of 32.
const PART: [[u8; 64]; 4] = {
    let mut masks = [[0; 64]; 4];
    let mut at = 0;
    while at < 256 {
        masks[at / 64][at % 64] = 1 << part(at / 32);
        at += 1;
    }
    masks
};

impl<const FIVE: bool> Q45K<FIVE> {
    const BYTES: usize = if FIVE { 176 } else { 144 };
    const NIBBLES: usize = if FIVE { 48 } else { 16 };
}

impl<const FIVE: bool> Form for Q45K<FIVE> {
    const STEP: usize = 256;
    const CODES: usize = Self::BYTES;
    const SCALES: usize = 0;
    const OFFSET: i32 = 0;
    const MINS: usize = 8;
    type Open = Parts;

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        if V::BYTES < 32 { 32 / V::BYTES } else { 1 }
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        let at = (group * Self::registers::<V>() + register) * V::BYTES + byte;
        part(at / 32) * 32 + at % 32
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Parts {
        unsafe {
            let block = at.codes;
            let mut factors = [0.0; 4];
            V::four_fp16(u64::from(block.cast::<u32>().read_unaligned()), factors.as_mut_ptr());
            let word = |index: usize| block.add(4 + 4 * index).cast::<u32>().read_unaligned();
            let (a, b, c) = (word(0), word(1), word(2));
            // The first four of each in 6 bits of a byte; of the others four bits in the third dword, two above the first ones.
            let (low, high) = (0x0f0f_0f0f, 0x3030_3030);
            let swapped = |four: u32| four & 0xff00_00ff | (four & 0xff00) << 8 | four >> 8 & 0xff00;
            let pair = |first: u32, second: u32| u64::from(first) | u64::from(second) << 32;
            let scales = pair(swapped(a & 0x3f3f_3f3f), swapped(c & low | a >> 2 & high));
            let mins = pair(b & 0x3f3f_3f3f, c >> 4 & low | b >> 2 & high);
            let mut parts = Parts { values: [0.0; 24], block };
            V::sixteen_i8((scales, factors[0]), (mins, factors[1]), parts.values.as_mut_ptr());
            parts
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Parts, group: usize, register: usize) -> D::Weights {
        unsafe {
            let at = (group * Self::registers::<V>() + register) * V::BYTES;
            // 64 bytes are 128 elements: two registers' worth of places for each half.
            let (pair, upper, within) = (at / 128, at / 64 % 2, at % 64);
            let codes = V::bits(open.block.add(Self::NIBBLES + pair * 64 + within));
            let half = V::and(if upper == 0 { codes } else { V::shr16::<4>(codes) }, V::splat8(15));
            if !FIVE {
                return D::small(half);
            }
            let fifths = V::pieces32(open.block.add(16 + at % 32), 0);
            let own = V::has8(fifths, V::bits(PART[at / 64].as_ptr().add(within)));
            D::small(V::or(half, V::and(own, V::splat8(16))))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Parts, group: usize) -> V {
        unsafe { spread::<V>(open.values.as_ptr().add(group * V::BYTES.max(32) / 32), 8) }
    }
    #[inline(always)]
    unsafe fn mins(open: &Parts) -> *const f32 {
        unsafe { open.values.as_ptr().add(8) }
    }
}
