//! Two weights to a byte, the lower half first: 128 of them to a step.
//!
//! A register of codes is two of bytes, its lower halves and its upper ones. A dword of either stands for the same eight
//! elements, so scales of any group of eight or more are one vector for both.

use std::marker::PhantomData;

use roofline_isa::{Dot, Vector, number::from_bf16};

use super::{At, Form, spread};

/// Elements of a step.
const STEP: usize = 128;

/// What four bits stand for.
pub(super) trait Code: Copy {
    const OFFSET: i32;
    const UNIT: f32;
    /// Changes a register of codes, both halves at once.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    unsafe fn flip<V: Vector>(codes: V::Bits) -> V::Bits;
    /// Bytes of which only the lower half is set, as weights.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set.
    unsafe fn value<V: Vector>(half: V::Bits) -> V::Bits;
}

/// Two's complement; flipping its top bit adds 8.
#[derive(Clone, Copy)]
pub(super) struct Flipped;

impl Code for Flipped {
    const OFFSET: i32 = 8;
    const UNIT: f32 = 1.0;
    #[inline(always)]
    unsafe fn flip<V: Vector>(codes: V::Bits) -> V::Bits {
        unsafe { V::xor(codes, V::splat8(0x88)) }
    }
    #[inline(always)]
    unsafe fn value<V: Vector>(half: V::Bits) -> V::Bits {
        half
    }
}

/// Unsigned, above a zero point.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Code for Plain {
    const OFFSET: i32 = 0;
    const UNIT: f32 = 1.0;
    #[inline(always)]
    unsafe fn flip<V: Vector>(codes: V::Bits) -> V::Bits {
        codes
    }
    #[inline(always)]
    unsafe fn value<V: Vector>(half: V::Bits) -> V::Bits {
        half
    }
}

/// E2M1, as twice its value plus 12.
#[derive(Clone, Copy)]
pub(super) struct Fp4;

const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

impl Code for Fp4 {
    const OFFSET: i32 = 12;
    const UNIT: f32 = 0.5;
    #[inline(always)]
    unsafe fn flip<V: Vector>(codes: V::Bits) -> V::Bits {
        codes
    }
    #[inline(always)]
    unsafe fn value<V: Vector>(half: V::Bits) -> V::Bits {
        unsafe { V::lookup(V::repeated16(FP4.as_ptr()), half) }
    }
}

/// The scales of a step.
pub(super) trait Scales: Copy {
    /// Elements that share one.
    const GROUP: usize;
    const BYTES: usize;
    const MINS: usize = 0;
    /// What they are too small by.
    const UNIT: f32 = 1.0;
    /// As FP32, and the minima.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and `at` is a whole step of a row of weights with such scales.
    unsafe fn read<V: Vector>(at: At) -> Scale;
}

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Scale {
    values: [f32; 8],
    mins: [f32; 16],
}

impl Scale {
    const NONE: Self = Self { values: [0.0; 8], mins: [0.0; 16] };
}

/// A word of any alignment.
///
/// # Safety
///
/// `from` has a word `index`.
#[inline(always)]
unsafe fn word(from: *const u8, index: usize) -> u16 {
    unsafe { from.cast::<u16>().add(index).read_unaligned() }
}

/// BF16 per `G`.
#[derive(Clone, Copy)]
pub(super) struct Bf16<const G: usize>;

impl<const G: usize> Scales for Bf16<G> {
    const GROUP: usize = G;
    const BYTES: usize = 2 * STEP / G;
    #[inline(always)]
    unsafe fn read<V: Vector>(at: At) -> Scale {
        unsafe {
            let mut scale = Scale::NONE;
            for index in 0..STEP / G {
                scale.values[index] = from_bf16(word(at.scales, index));
            }
            scale
        }
    }
}

/// BF16 per `G`, with a zero point: a code of four bits, or (`WIDE`) what the middle code stands for, in BF16.
#[derive(Clone, Copy)]
pub(super) struct Zeros<const G: usize, const WIDE: bool>;

impl<const G: usize, const WIDE: bool> Scales for Zeros<G, WIDE> {
    const GROUP: usize = G;
    const BYTES: usize = 2 * STEP / G;
    const MINS: usize = STEP / G;
    #[inline(always)]
    unsafe fn read<V: Vector>(at: At) -> Scale {
        unsafe {
            let mut scale = Scale::NONE;
            for index in 0..STEP / G {
                let group = at.step * (STEP / G) + index;
                let step = from_bf16(word(at.scales, index));
                scale.values[index] = step;
                scale.mins[index] = if group >= at.groups {
                    0.0
                } else if WIDE {
                    8.0 * step - from_bf16(word(at.zeros, group))
                } else {
                    step * f32::from(*at.zeros.add(group / 2) >> (4 * (group % 2)) & 15)
                };
            }
            scale
        }
    }
}

/// E8M0 per 32: the byte is the exponent field of an FP32 number. Its code zero, 2^-127, becomes zero.
#[derive(Clone, Copy)]
pub(super) struct E8m0;

impl Scales for E8m0 {
    const GROUP: usize = 32;
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn read<V: Vector>(at: At) -> Scale {
        unsafe {
            let mut scale = Scale::NONE;
            for index in 0..4 {
                scale.values[index] = f32::from_bits(u32::from(*at.scales.add(index)) << 23);
            }
            scale
        }
    }
}

/// E4M3 per 16; the tensor's own scale is the row's.
#[derive(Clone, Copy)]
pub(super) struct E4m3;

impl Scales for E4m3 {
    const GROUP: usize = 16;
    const BYTES: usize = 8;
    const UNIT: f32 = 256.0;
    #[inline(always)]
    unsafe fn read<V: Vector>(at: At) -> Scale {
        unsafe {
            let mut scale = Scale::NONE;
            V::eight_e4m3(at.scales, scale.values.as_mut_ptr());
            scale
        }
    }
}

/// FP32 per 64.
#[derive(Clone, Copy)]
pub(super) struct Absmax;

impl Scales for Absmax {
    const GROUP: usize = 64;
    const BYTES: usize = 8;
    #[inline(always)]
    unsafe fn read<V: Vector>(at: At) -> Scale {
        unsafe {
            let mut scale = Scale::NONE;
            for index in 0..2 {
                scale.values[index] = at.scales.cast::<f32>().add(index).read_unaligned();
            }
            scale
        }
    }
}

/// Nibbles with scales.
pub(super) struct Nibble<C, S>(PhantomData<(C, S)>);

/// Where the codes are, and their scales.
#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) codes: *const u8,
    pub(super) scale: Scale,
}

/// Elements that share a vector of scales: a group, or the two registers of bytes that a register of codes is.
#[inline(always)]
pub(super) fn share<V: Vector>(group: usize) -> usize {
    group.max(2 * V::BYTES)
}

/// The element that a byte of one of two halves stands for.
#[inline(always)]
pub(super) fn element<V: Vector>(share: usize, group: usize, register: usize, byte: usize) -> usize {
    group * share + register / 2 * 2 * V::BYTES + 2 * byte + register % 2
}

/// A register of halves, as it is cut out of the codes.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `codes` is a step of weights that has the group and the register.
#[inline(always)]
pub(super) unsafe fn half<V: Vector, C: Code>(
    codes: *const u8,
    share: usize,
    group: usize,
    register: usize,
) -> V::Bits {
    unsafe {
        let codes = C::flip::<V>(V::bits(codes.add(group * share / 2 + register / 2 * V::BYTES)));
        let half = if register.is_multiple_of(2) { codes } else { V::shr16::<4>(codes) };
        V::and(half, V::splat8(15))
    }
}

/// The scales of a group, a dword standing for eight elements.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and a step has the group.
#[inline(always)]
pub(super) unsafe fn scales<V: Vector>(scale: &Scale, size: usize, share: usize, group: usize) -> V {
    unsafe { spread::<V>(scale.values.as_ptr().add(group * share / size), size / 8) }
}

impl<C: Code, S: Scales> Form for Nibble<C, S> {
    const STEP: usize = STEP;
    const CODES: usize = STEP / 2;
    const SCALES: usize = S::BYTES;
    const OFFSET: i32 = C::OFFSET;
    const UNIT: f32 = C::UNIT * S::UNIT;
    const MINS: usize = S::MINS;
    type Open = Open;

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        share::<V>(S::GROUP) / V::BYTES
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        element::<V>(share::<V>(S::GROUP), group, register, byte)
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Open {
        unsafe { Open { codes: at.codes, scale: S::read::<V>(at) } }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Open, group: usize, register: usize) -> D::Weights {
        unsafe { D::small(C::value::<V>(half::<V, C>(open.codes, share::<V>(S::GROUP), group, register))) }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Open, group: usize) -> V {
        unsafe { scales::<V>(&open.scale, S::GROUP, share::<V>(S::GROUP), group) }
    }
    #[inline(always)]
    unsafe fn mins(open: &Open) -> *const f32 {
        open.scale.mins.as_ptr()
    }
}
