//! Blocks of GGUF files of 256 elements with a scale for each 16: `Q6_K`, `Q3_K`, `Q2_K`.

use roofline_isa::{Dot, Vector};

use super::{At, Form, spread};

/// An FP16 number of any alignment.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `from` has two bytes.
#[inline(always)]
unsafe fn half<V: Vector>(from: *const u8) -> f32 {
    unsafe {
        let mut four = [0.0; 4];
        V::four_fp16(u64::from(from.cast::<u16>().read_unaligned()), four.as_mut_ptr());
        four[0]
    }
}

/// Sixteen signed bytes in the order half, quarter, part, times `d`, in the order quarter, half, part. They never stop in
/// memory as bytes, where narrow stores would keep a wide load waiting.
///
/// # Safety
///
/// The processor has `V`'s instruction set.
#[inline(always)]
unsafe fn sixteen<V: Vector>([first, second]: [u64; 2], d: f32, to: &mut [f32; 16]) {
    // Pairs of bytes in turns: the first and the second of one, then of the other.
    let turns = |one: u64, other: u64| {
        one & 0xffff | (other & 0xffff) << 16 | (one >> 16 & 0xffff) << 32 | (other >> 16 & 0xffff) << 48
    };
    let (low, high) = (turns(first, second), turns(first >> 32, second >> 32));
    unsafe { V::sixteen_i8((low, d), (high, d), to.as_mut_ptr()) };
}

/// The same of bytes that are in a register.
///
/// # Safety
///
/// The processor has `V`'s instruction set.
#[inline(always)]
unsafe fn shuffled<V: Vector>(bytes: V::Bits, order: &[u8; 16], d: f32, to: &mut [f32; 16]) {
    unsafe {
        let mut stored = [0u8; 64];
        V::store_bits(V::shuffle(bytes, V::repeated16(order.as_ptr())), stored.as_mut_ptr());
        let mut index = 0;
        while index < 16 {
            V::load_i8(stored.as_ptr().add(index)).mul(V::splat(d)).store(to.as_mut_ptr().add(index));
            index += V::LANES;
        }
    }
}

/// The bytes of the scales in the order quarter, half, part, where they are stored in the order half, quarter, part.
const QUARTERS: [u8; 16] = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
/// As they are stored.
const STORED: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Sixteen bytes of any alignment.
///
/// # Safety
///
/// `from` has them.
#[inline(always)]
unsafe fn bytes16(from: *const u8) -> [u64; 2] {
    unsafe { from.cast::<[u64; 2]>().read_unaligned() }
}

/// 256 numbers of 6 bits less 32, four in nibbles and two elsewhere; a signed byte per 16 times an FP16 number.
///
/// Halves of the block are alike: 64 bytes of nibbles, 32 of upper bits. Nibbles of 32 bytes and a pair of bits of each upper
/// byte are 32 elements; a wide register takes those of both halves.
pub(super) struct Q6K;

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Sixteens {
    block: *const u8,
    /// Of each quarter, those of the first half and those of the second.
    scales: [f32; 16],
}

impl Form for Q6K {
    const STEP: usize = 256;
    const CODES: usize = 210;
    const SCALES: usize = 0;
    const OFFSET: i32 = 32;
    type Open = Sixteens;

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        1
    }
    /// Places in the order quarter, half, element.
    fn element<V: Vector>(group: usize, _: usize, byte: usize) -> usize {
        let at = group * V::BYTES + byte;
        at / 32 % 2 * 128 + at / 64 * 32 + at % 32
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Sixteens {
        unsafe {
            let (block, d) = (at.codes, half::<V>(at.codes.add(208)));
            let mut open = Sixteens { block, scales: [0.0; 16] };
            sixteen::<V>(bytes16(block.add(192)), d, &mut open.scales);
            open
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Sixteens, group: usize, _: usize) -> D::Weights {
        unsafe {
            let at = group * V::BYTES;
            let (quarter, half, within) = (at / 64, at / 32 % 2, at % 32);
            let codes = V::pieces32(open.block.add(half * 64 + quarter % 2 * 32 + within), 64);
            let low = V::and(if quarter < 2 { codes } else { V::shr16::<4>(codes) }, V::splat8(15));
            let upper = V::pieces32(open.block.add(128 + half * 32 + within), 32);
            let high = match quarter {
                0 => V::shl16::<4>(upper),
                1 => V::shl16::<2>(upper),
                2 => upper,
                _ => V::shr16::<2>(upper),
            };
            D::small(V::or(low, V::and(high, V::splat8(0x30))))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Sixteens, group: usize) -> V {
        unsafe { spread::<V>(open.scales.as_ptr().add(group * V::BYTES / 16), 4) }
    }
}

/// The pairs of bits of a place: 32 bytes of each half hold its four quarters.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `from` has 32 bytes for each half of a block.
#[inline(always)]
unsafe fn pairs<V: Vector>(from: *const u8, quarter: usize) -> V::Bits {
    unsafe {
        let codes = V::pieces32(from, 32);
        let own = match quarter {
            0 => codes,
            1 => V::shr16::<2>(codes),
            2 => V::shr16::<4>(codes),
            _ => V::shr16::<6>(codes),
        };
        V::and(own, V::splat8(3))
    }
}

/// 256 numbers of 2 bits in parts of 16, each with a scale and a minimum of 4 bits, times an FP16 number for all scales and one
/// for all minima. Places are in the order of [`Q6K`].
pub(super) struct Q2K;

#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Sixteenths {
    block: *const u8,
    /// In the order of [`QUARTERS`].
    scales: [f32; 16],
    /// As they are stored.
    mins: [f32; 16],
}

impl Form for Q2K {
    const STEP: usize = 256;
    const CODES: usize = 84;
    const SCALES: usize = 0;
    const OFFSET: i32 = 0;
    const MINS: usize = 16;
    type Open = Sixteenths;

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        1
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        Q6K::element::<V>(group, register, byte)
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Sixteenths {
        unsafe {
            let block = at.codes;
            let (d, dmin) = (half::<V>(block.add(80)), half::<V>(block.add(82)));
            let mut open = Sixteenths { block, scales: [0.0; 16], mins: [0.0; 16] };
            let both = V::repeated16(block);
            shuffled::<V>(V::and(both, V::splat8(15)), &QUARTERS, d, &mut open.scales);
            shuffled::<V>(V::and(V::shr16::<4>(both), V::splat8(15)), &STORED, dmin, &mut open.mins);
            open
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Sixteenths, group: usize, _: usize) -> D::Weights {
        unsafe {
            let at = group * V::BYTES;
            let (quarter, half, within) = (at / 64, at / 32 % 2, at % 32);
            D::small(pairs::<V>(open.block.add(16 + half * 32 + within), quarter))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Sixteenths, group: usize) -> V {
        unsafe { spread::<V>(open.scales.as_ptr().add(group * V::BYTES / 16), 4) }
    }
    #[inline(always)]
    unsafe fn mins(open: &Sixteenths) -> *const f32 {
        open.mins.as_ptr()
    }
}

/// 256 numbers of 3 bits less 4, two in pairs and one elsewhere; 6 bits less 32 per 16 times an FP16 number. Places are in the
/// order of [`Q6K`].
pub(super) struct Q3K;

/// The bit that is the third of a place, by quarter, for both halves.
const THIRD: [[u8; 64]; 4] = {
    let mut masks = [[0; 64]; 4];
    let mut at = 0;
    while at < 256 {
        masks[at / 64][at % 64] = 1 << (at / 64 + at % 64 / 32 * 4);
        at += 1;
    }
    masks
};

impl Form for Q3K {
    const STEP: usize = 256;
    const CODES: usize = 110;
    const SCALES: usize = 0;
    const OFFSET: i32 = 4;
    type Open = Sixteens;

    #[inline(always)]
    fn registers<V: Vector>() -> usize {
        1
    }
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize {
        Q6K::element::<V>(group, register, byte)
    }
    #[inline(always)]
    unsafe fn open<V: Vector>(at: At) -> Sixteens {
        unsafe {
            let (block, d) = (at.codes, half::<V>(at.codes.add(108)));
            let mut open = Sixteens { block, scales: [0.0; 16] };
            let word = |index: usize| block.add(96 + 4 * index).cast::<u32>().read_unaligned();
            let (a, b, c) = (word(0), word(1), word(2));
            // Four bits of each in the first two dwords, and two in the third.
            let (low, high) = (0x0f0f_0f0f, 0x3030_3030);
            let bytes = [
                a & low | c << 4 & high,
                b & low | c << 2 & high,
                a >> 4 & low | c & high,
                b >> 4 & low | c >> 2 & high,
            ];
            // Less 32, byte by byte: with the highest bit set there is nothing to borrow.
            let bytes = bytes.map(|four| ((four | 0x8080_8080) - 0x2020_2020) ^ 0x8080_8080);
            shuffled::<V>(V::repeated16(bytes.as_ptr().cast()), &QUARTERS, d, &mut open.scales);
            open
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Sixteens, group: usize, _: usize) -> D::Weights {
        unsafe {
            let at = group * V::BYTES;
            let (quarter, half, within) = (at / 64, at / 32 % 2, at % 32);
            let low = pairs::<V>(open.block.add(32 + half * 32 + within), quarter);
            let thirds = V::pieces32(open.block.add(within), 0);
            let own = V::has8(thirds, V::bits(THIRD[quarter].as_ptr().add(half * 32 + within)));
            D::small(V::or(low, V::and(own, V::splat8(4))))
        }
    }
    #[inline(always)]
    unsafe fn scale<V: Vector>(open: &Sixteens, group: usize) -> V {
        unsafe { spread::<V>(open.scales.as_ptr().add(group * V::BYTES / 16), 4) }
    }
}
