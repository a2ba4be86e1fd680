//! Bytes, three bits, two bits, and NF4.

use std::marker::PhantomData;

use roofline_core::format::NF4;
use roofline_isa::{Dot, Vector, number::from_bf16};

use super::{
    At, Form,
    nibble::{self, Open, Plain, Scales},
    spread,
};

/// Signed bytes; a row has one scale.
pub(super) struct Int8;

impl Form for Int8 {
    const STEP: usize = 128;
    const CODES: usize = 128;
    const SCALES: usize = 0;
    const OFFSET: i32 = 0;
    const SIGNED: bool = true;
    const SCALED: bool = false;
    type Open = *const u8;

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        Self::STEP / V::BYTES
    }
    fn element<V: Vector>(_: usize, register: usize, byte: usize) -> usize {
        register * V::BYTES + byte
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> *const u8 {
        at.codes
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &*const u8, _: usize, register: usize) -> D::Weights {
        unsafe { D::signed(V::bits(open.add(register * V::BYTES))) }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(_: &*const u8, _: usize) -> V {
        unsafe { V::splat(1.0) }
    }
}

/// The 16 quantiles as words, `round(16383 * quantile)`: off by 2^-15 at most. Eight products of a dword's with numbers that
/// large fit 31 bits.
pub(super) struct Nf4<S>(PhantomData<S>);

const UNIT: f32 = 16_383.0;

/// The lower and the upper bytes of those.
const QUANTILES: [[u8; 16]; 2] = {
    let mut bytes = [[0; 16]; 2];
    let mut code = 0;
    while code < 16 {
        let scaled = NF4[code] * UNIT;
        let whole = (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i16;
        bytes[0][code] = whole.to_le_bytes()[0];
        bytes[1][code] = whole.to_le_bytes()[1];
        code += 1;
    }
    bytes
};

impl<S: Scales> Form for Nf4<S> {
    const STEP: usize = 128;
    const CODES: usize = 64;
    const SCALES: usize = S::BYTES;
    const OFFSET: i32 = 0;
    const UNIT: f32 = 1.0 / UNIT;
    type Open = Open;

    /// One register of codes: more of them would not fit their sums.
    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        2
    }
    /// Words come from interleaving bytes, eight of each sixteen at a time.
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        let word = byte / 2;
        let byte = word / 8 * 16 + byte % 2 * 8 + word % 8;
        nibble::element::<V>(2 * V::BYTES, group, register, byte)
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Open {
        unsafe { Open { codes: at.codes, scale: S::read::<V>(at) } }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Open, group: usize, register: usize) -> D::Weights {
        unsafe {
            let half = nibble::half::<V, Plain>(open.codes, 2 * V::BYTES, group, register);
            let low = V::lookup(V::repeated16(QUANTILES[0].as_ptr()), half);
            let high = V::lookup(V::repeated16(QUANTILES[1].as_ptr()), half);
            D::words(V::zip_low(low, high), V::zip_high(low, high))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Open, group: usize) -> V {
        unsafe { nibble::scales::<V>(&open.scale, S::GROUP, 2 * V::BYTES, group) }
    }
}

/// Two's complement in three bits, BF16 per 64. Eight of them are three bytes: each word takes the two bytes that its bits
/// are in, is multiplied so that they come to its top, and shifted down with their sign.
pub(super) struct Int3;

/// Where a word of 16 bits finds its number.
#[derive(Clone, Copy)]
struct Source {
    /// The first of the two bytes that have it, counted from the first of the three bytes of eight numbers.
    byte: usize,
    /// What brings the number's three bits to the word's top.
    factor: u16,
}

/// Of eight numbers in a row.
const THREE: [Source; 8] = {
    let mut parts = [Source { byte: 0, factor: 0 }; 8];
    let mut index = 0;
    while index < 8 {
        // A pair of bytes that starts at the lower one has at least 9 bits above any start within it.
        let byte = 3 * index / 8;
        parts[index] = Source { byte, factor: 1 << (13 - (3 * index - 8 * byte)) };
        index += 1;
    }
    parts
};

/// The same for all words of a register.
#[derive(Clone, Copy)]
struct Sources {
    /// Which bytes the words take.
    bytes: [u8; 64],
    /// What they are multiplied by.
    factors: [u8; 64],
}

/// Of 16 bytes that start `skip` bytes before the register's own.
const fn three(skip: usize) -> Sources {
    let (mut bytes, mut factors) = ([0; 64], [0; 64]);
    let mut word = 0;
    while word < 32 {
        let Source { byte, factor } = THREE[word % 8];
        // Narrow registers have no words beyond the 16 bytes, and the byte after the last is not looked at: what would come
        // of it is shifted out.
        let at = skip + word / 8 * 3 + byte;
        bytes[2 * word] = at as u8 & 15;
        bytes[2 * word + 1] = (at + 1) as u8 & 15;
        factors[2 * word] = factor.to_le_bytes()[0];
        factors[2 * word + 1] = factor.to_le_bytes()[1];
        word += 1;
    }
    Sources { bytes, factors }
}

const THREES: [Sources; 14] = {
    let mut all = [Sources { bytes: [0; 64], factors: [0; 64] }; 14];
    let mut skip = 0;
    while skip < 14 {
        all[skip] = three(skip);
        skip += 1;
    }
    all
};

impl Form for Int3 {
    const STEP: usize = 128;
    const CODES: usize = 48;
    const SCALES: usize = 4;
    const OFFSET: i32 = 0;
    type Open = (*const u8, [f32; 2]);

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        64 / V::BYTES
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        group * 64 + register * V::BYTES + byte % 2 * (V::BYTES / 2) + byte / 2
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Self::Open {
        unsafe {
            let scale = |index: usize| from_bf16(at.scales.cast::<u16>().add(index).read_unaligned());
            (at.codes, [scale(0), scale(1)])
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Self::Open, group: usize, register: usize) -> D::Weights {
        unsafe {
            let mut words = [V::splat8(0); 2];
            for (half, words) in words.iter_mut().enumerate() {
                // 16 bytes that hold the register's, none of them after the step's last.
                let own = group * 24 + (2 * register + half) * 3 * V::BYTES / 16;
                let from = own.min(Self::CODES - 16);
                let Sources { bytes, factors } = &THREES[own - from];
                let pairs = V::shuffle(V::repeated16(open.0.add(from)), V::bits(bytes.as_ptr()));
                *words = V::sar16::<13>(V::mul16(pairs, V::bits(factors.as_ptr())));
            }
            D::words(words[0], words[1])
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Self::Open, group: usize) -> V {
        unsafe { V::splat(open.1[group]) }
    }
}

/// Two's complement in two bits, BF16 per 64; flipping its top bit adds 2.
pub(super) struct Int2;

impl Form for Int2 {
    const STEP: usize = 256;
    const CODES: usize = 64;
    const SCALES: usize = 8;
    const OFFSET: i32 = 2;
    type Open = (*const u8, [f32; 4]);

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        4
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        (group * V::BYTES + byte) * 4 + register
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Self::Open {
        unsafe {
            let mut scales = [0.0; 4];
            for (index, scale) in scales.iter_mut().enumerate() {
                *scale = from_bf16(at.scales.cast::<u16>().add(index).read_unaligned());
            }
            (at.codes, scales)
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Self::Open, group: usize, register: usize) -> D::Weights {
        unsafe {
            let codes = V::xor(V::bits(open.0.add(group * V::BYTES)), V::splat8(0xaa));
            let codes = match register {
                0 => codes,
                1 => V::shr16::<2>(codes),
                2 => V::shr16::<4>(codes),
                _ => V::shr16::<6>(codes),
            };
            D::small(V::and(codes, V::splat8(3)))
        }
    }
    /// A dword stands for sixteen elements.
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Self::Open, group: usize) -> V {
        unsafe { spread::<V>(open.1.as_ptr().add(group * V::BYTES / 16), 4) }
    }
}
