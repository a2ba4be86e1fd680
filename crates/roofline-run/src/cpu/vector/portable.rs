//! Eight lanes in plain Rust: two NEON registers, or whatever the target has.

use super::{
    Vector,
    half::{from_bf16, from_fp16, to_bf16, to_fp16},
};

const LANES: usize = 8;

#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn each(self, f: impl Fn(f32) -> f32) -> Self {
        Self(self.0.map(f))
    }

    #[inline(always)]
    fn both(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    unsafe fn words(from: *const u8) -> [u16; LANES] {
        from.cast::<[u16; LANES]>().read_unaligned().map(u16::from_le)
    }

    #[inline(always)]
    unsafe fn bytes(from: *const u8) -> [u8; LANES] {
        from.cast::<[u8; LANES]>().read_unaligned()
    }
}

impl Vector for Plain {
    const LANES: usize = LANES;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(from.cast::<[f32; LANES]>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        Self(Self::words(from).map(from_bf16))
    }
    #[inline(always)]
    unsafe fn load_fp16(from: *const u8) -> Self {
        Self(Self::words(from).map(from_fp16))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        Self(Self::bytes(from).map(|code| f32::from(code.cast_signed())))
    }
    #[inline(always)]
    unsafe fn load_e4m3(from: *const u8) -> Self {
        Self(Self::bytes(from).map(|code| from_fp16((i16::from(code.cast_signed()) << 7).cast_unsigned() & 0xbfff)))
    }
    #[inline(always)]
    unsafe fn load_e5m2(from: *const u8) -> Self {
        Self(Self::bytes(from).map(|code| from_fp16(u16::from(code) << 8)))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        to.cast::<[f32; LANES]>().write_unaligned(self.0);
    }
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        self.store(to);
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u8) {
        to.cast::<[u16; LANES]>().write_unaligned(self.0.map(|value| to_bf16(value).to_le()));
    }
    #[inline(always)]
    unsafe fn store_fp16(self, to: *mut u8) {
        to.cast::<[u16; LANES]>().write_unaligned(self.0.map(|value| to_fp16(value).to_le()));
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut u8) {
        to.cast::<[i8; LANES]>().write_unaligned(self.0.map(|value| value.round_ties_even() as i8));
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
        Self(std::array::from_fn(|lane| {
            let (a, b, c) = (self.0[lane], factor.0[lane], addend.0[lane]);
            if fused { a.mul_add(b, c) } else { a * b + c }
        }))
    }
    /// Adding and taking away 3 * 2^22 leaves no place for a fraction; exact for what `exp2` asks.
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
        to.cast::<[f32; 4]>().write_unaligned(vectors.map(|vector| vector.sum()));
    }
}
