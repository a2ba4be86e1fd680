//! Eight lanes in plain Rust: two NEON registers, or whatever the target has.

use std::mem;

use super::Vector;
use crate::number::{from_bf16, from_fp16, to_bf16, to_fp16};

const LANES: usize = 8;

#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "x86_64", expect(unreachable_pub, reason = "only tests have it there"))]
/// Eight numbers, whatever the target has for them.
pub struct Plain([f32; LANES]);

/// Of each lane: a loop, because `map` of arrays may be called rather than inlined, and then has no registers.
#[inline(always)]
fn each<A: Copy, B: Copy + Default, const N: usize>(a: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    filled(|at| f(a[at]))
}

/// The same by place.
#[inline(always)]
fn filled<B: Copy + Default, const N: usize>(f: impl Fn(usize) -> B) -> [B; N] {
    let mut filled = [B::default(); N];
    for (at, lane) in filled.iter_mut().enumerate() {
        *lane = f(at);
    }
    filled
}

impl Plain {
    #[inline(always)]
    fn each(self, f: impl Fn(f32) -> f32) -> Self {
        Self(each(self.0, f))
    }

    #[inline(always)]
    fn both(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(filled(|lane| f(self.0[lane], other.0[lane])))
    }

    /// # Safety
    ///
    /// At `from` there are `LANES` words.
    #[inline(always)]
    unsafe fn words(from: *const u8) -> [u16; LANES] {
        unsafe { each(from.cast::<[u16; LANES]>().read_unaligned(), u16::from_le) }
    }

    /// # Safety
    ///
    /// At `from` there are `LANES` bytes.
    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> [u8; LANES] {
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }
    }
}

type Bytes = [u8; BYTES];
const BYTES: usize = 4 * LANES;

#[inline(always)]
fn words(a: Bytes) -> [u16; BYTES / 2] {
    // SAFETY: as many bytes, and any of them are a word.
    each(unsafe { mem::transmute::<Bytes, [u16; BYTES / 2]>(a) }, u16::from_le)
}

#[inline(always)]
fn of_words(a: [u16; BYTES / 2]) -> Bytes {
    // SAFETY: as many bytes.
    unsafe { mem::transmute::<[u16; BYTES / 2], Bytes>(each(a, u16::to_le)) }
}

#[inline(always)]
fn dwords(a: Bytes) -> [u32; LANES] {
    // SAFETY: as many bytes, and any of them are a dword.
    each(unsafe { mem::transmute::<Bytes, [u32; LANES]>(a) }, u32::from_le)
}

#[inline(always)]
fn of_dwords(a: [u32; LANES]) -> Bytes {
    // SAFETY: as many bytes.
    unsafe { mem::transmute::<[u32; LANES], Bytes>(each(a, u32::to_le)) }
}

/// What is done to each bit alone, on as many at once as a register of any processor has.
#[inline(always)]
fn bitwise(a: Bytes, b: Bytes, f: impl Fn(u64, u64) -> u64) -> Bytes {
    // SAFETY: as many bytes, and any of them are a number.
    unsafe {
        let (a, b) = (mem::transmute::<Bytes, [u64; BYTES / 8]>(a), mem::transmute::<Bytes, [u64; BYTES / 8]>(b));
        mem::transmute::<[u64; BYTES / 8], Bytes>(filled(|at| f(a[at], b[at])))
    }
}

impl Vector for Plain {
    const LANES: usize = LANES;
    const TILED: bool = false;
    type Bits = Bytes;
    type Sums = [i32; LANES];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(from.cast::<[f32; LANES]>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        unsafe { Self(each(Self::words(from), from_bf16)) }
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        unsafe { Self(each(Self::words(from), from_fp16)) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        unsafe { Self(each(Self::bytes(from), |code| f32::from(code.cast_signed()))) }
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        unsafe {
            Self(each(Self::bytes(from), |code| {
                from_fp16((i16::from(code.cast_signed()) << 7).cast_unsigned() & 0xbfff)
            }))
        }
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        unsafe { Self(each(Self::bytes(from), |code| from_fp16(u16::from(code) << 8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            to.cast::<[f32; LANES]>().write_unaligned(self.0);
        }
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        unsafe {
            self.store(to);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        unsafe {
            to.cast::<[u16; LANES]>().write_unaligned(each(self.0, |value| to_bf16(value).to_le()));
        }
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        unsafe {
            to.cast::<[u16; LANES]>().write_unaligned(each(self.0, |value| to_fp16(value).to_le()));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        unsafe {
            to.cast::<[i8; LANES]>().write_unaligned(each(self.0, |value| value.round_ties_even() as i8));
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.both(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.both(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.both(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.both(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.both(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.both(other, |a, b| if a < b { a } else { b })
    }
    /// Rounded once only where the target has the instruction: calling a library for each lane would cost more than the
    /// bit is worth.
    #[inline(always)]
    unsafe fn fma(self, factor: Self, addend: Self) -> Self {
        let fused = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
        Self(filled(|lane| {
            let (a, b, c) = (self.0[lane], factor.0[lane], addend.0[lane]);
            if fused { a.mul_add(b, c) } else { a * b + c }
        }))
    }
    /// Adding and taking away 3 * 2^22 leaves no place for a fraction.
    #[inline(always)]
    unsafe fn round(self) -> Self {
        self.each(|value| (value + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    unsafe fn scale2(self, power: Self) -> Self {
        self.both(power, |value, power| value * f32::from_bits((((power as i32) + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let v = self.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn maximum(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn sum4(vectors: [Self; 4], to: *mut f32) {
        unsafe {
            to.cast::<[f32; 4]>().write_unaligned(each(vectors, |vector| vector.sum()));
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8) -> Bytes {
        unsafe { from.cast::<Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn pieces16(from: *const u8, stride: usize) -> Bytes {
        unsafe { filled(|at| *from.add(at / 16 * stride + at % 16)) }
    }
    #[inline(always)]
    unsafe fn pieces32(from: *const u8, _: usize) -> Bytes {
        unsafe { from.cast::<Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn dwords(from: *const u8, stride: usize) -> Bytes {
        unsafe { filled(|at| *from.add(at / 16 * stride + at % 4)) }
    }
    #[inline(always)]
    unsafe fn repeated16(from: *const u8) -> Bytes {
        unsafe { filled(|at| *from.add(at % 16)) }
    }
    #[inline(always)]
    unsafe fn store_bits(bits: Bytes, to: *mut u8) {
        unsafe {
            to.cast::<Bytes>().write_unaligned(bits);
        }
    }
    #[inline(always)]
    unsafe fn splat8(value: u8) -> Bytes {
        [value; BYTES]
    }
    #[inline(always)]
    unsafe fn splat16(value: u16) -> Bytes {
        of_words([value; BYTES / 2])
    }
    #[inline(always)]
    unsafe fn splat32(value: u32) -> Bytes {
        of_dwords([value; LANES])
    }
    #[inline(always)]
    unsafe fn and(a: Bytes, b: Bytes) -> Bytes {
        bitwise(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: Bytes, b: Bytes) -> Bytes {
        bitwise(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(a: Bytes, b: Bytes) -> Bytes {
        bitwise(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: Bytes) -> Bytes {
        of_words(each(words(a), |word| word << N))
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: Bytes) -> Bytes {
        of_words(each(words(a), |word| word >> N))
    }
    #[inline(always)]
    unsafe fn sar16<const N: i32>(a: Bytes) -> Bytes {
        of_words(each(words(a), |word| (word.cast_signed() >> N).cast_unsigned()))
    }
    #[inline(always)]
    unsafe fn shl32<const N: i32>(a: Bytes) -> Bytes {
        of_dwords(each(dwords(a), |dword| dword << N))
    }
    #[inline(always)]
    unsafe fn mul16(a: Bytes, b: Bytes) -> Bytes {
        let (a, b) = (words(a), words(b));
        of_words(filled(|at| a[at].wrapping_mul(b[at])))
    }
    #[inline(always)]
    unsafe fn has8(a: Bytes, mask: Bytes) -> Bytes {
        filled(|at| if a[at] & mask[at] == mask[at] { 0xff } else { 0 })
    }
    #[inline(always)]
    unsafe fn lookup(table: Bytes, index: Bytes) -> Bytes {
        filled(|at| table[at / 16 * 16 + usize::from(index[at] & 15)])
    }
    #[inline(always)]
    unsafe fn shuffle(a: Bytes, index: Bytes) -> Bytes {
        filled(|at| if index[at] > 127 { 0 } else { a[at / 16 * 16 + usize::from(index[at] & 15)] })
    }
    #[inline(always)]
    unsafe fn zip_low(a: Bytes, b: Bytes) -> Bytes {
        filled(|at| if at % 2 == 0 { a[at / 16 * 16 + at % 16 / 2] } else { b[at / 16 * 16 + at % 16 / 2] })
    }
    #[inline(always)]
    unsafe fn zip_high(a: Bytes, b: Bytes) -> Bytes {
        filled(|at| if at % 2 == 0 { a[at / 16 * 16 + 8 + at % 16 / 2] } else { b[at / 16 * 16 + 8 + at % 16 / 2] })
    }
    #[inline(always)]
    unsafe fn as_floats(a: Bytes) -> Self {
        Self(each(dwords(a), f32::from_bits))
    }
    #[inline(always)]
    unsafe fn floats(a: Bytes) -> Self {
        Self(each(dwords(a), |dword| dword.cast_signed() as f32))
    }
    #[inline(always)]
    unsafe fn add32(a: Bytes, b: Bytes) -> Bytes {
        let (a, b) = (dwords(a), dwords(b));
        of_dwords(filled(|at| a[at].wrapping_add(b[at])))
    }
    #[inline(always)]
    unsafe fn sums(from: *const i32) -> [i32; LANES] {
        unsafe { from.cast::<[i32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn no_sums() -> [i32; LANES] {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn multiply16(mut sums: [i32; LANES], a: Bytes, b: Bytes) -> [i32; LANES] {
        let (a, b) = (each(words(a), u16::cast_signed), each(words(b), u16::cast_signed));
        for (at, sum) in sums.iter_mut().enumerate() {
            let (low, high) =
                (i32::from(a[2 * at]) * i32::from(b[2 * at]), i32::from(a[2 * at + 1]) * i32::from(b[2 * at + 1]));
            *sum = sum.wrapping_add(low).wrapping_add(high);
        }
        sums
    }
    #[inline(always)]
    unsafe fn totals(sums: [i32; LANES]) -> Bytes {
        of_dwords(each(sums, i32::cast_unsigned))
    }
    #[inline(always)]
    unsafe fn spread<const SPAN: usize>(from: *const f32) -> Self {
        unsafe { Self(filled(|lane| *from.add(lane / SPAN))) }
    }
    #[inline(always)]
    unsafe fn four_fp16(codes: u64, to: *mut f32) {
        unsafe {
            for lane in 0..4 {
                to.add(lane).write(from_fp16((codes >> (16 * lane)) as u16));
            }
        }
    }
    #[inline(always)]
    unsafe fn eight_e4m3(from: *const u8, to: *mut f32) {
        unsafe {
            Self::load_e4m3(from).store(to);
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        unsafe {
            to.cast::<[i16; LANES]>().write_unaligned(each(self.0, |value| value.round_ties_even() as i16));
        }
    }
    #[inline(always)]
    unsafe fn sar32<const N: i32>(a: Bytes) -> Bytes {
        of_dwords(each(dwords(a), |dword| (dword.cast_signed() >> N).cast_unsigned()))
    }
    #[inline(always)]
    unsafe fn sixteen_i8(low: (u64, f32), high: (u64, f32), to: *mut f32) {
        unsafe {
            for (half, (bytes, factor)) in [low, high].into_iter().enumerate() {
                Self(each(bytes.to_le_bytes(), |byte| f32::from(byte.cast_signed()) * factor)).store(to.add(8 * half));
            }
        }
    }
}
