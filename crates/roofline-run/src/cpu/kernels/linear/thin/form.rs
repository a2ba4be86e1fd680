//! How stored weights become bytes, and what those are multiplied by: one form for each layout.
//!
//! A form cuts a row into steps, a step into groups that share a vector of scales, a group into registers of bytes. Which
//! element a byte stands for is the form's choice; `x` follows it.

mod gguf;
mod nibble;
mod others;
mod sixteens;

use roofline_core::format::GgufBlock;
use roofline_isa::{Dot, Vector};

use super::{
    super::weights::{Code, Scale, Stored, Zero},
    At,
};

/// A layout of weights. Methods that return numbers are constants of a form and a vector.
pub(super) trait Form {
    /// Elements of a step.
    const STEP: usize;
    /// Bytes of codes of a step.
    const CODES: usize;
    /// Bytes of scales that lie elsewhere.
    const SCALES: usize;
    /// What codes are too high by.
    const OFFSET: i32;
    /// Whether bytes are signed rather than from 0 to 127.
    const SIGNED: bool = false;
    /// Whether there are scales within a row.
    const SCALED: bool = true;
    /// What an integer stands for.
    const UNIT: f32 = 1.0;
    /// Parts of a step with a minimum of their own.
    const MINS: usize = 0;

    /// What is known of a step once its scales have been read.
    type Open: Copy;

    /// Registers of bytes of a group.
    fn registers<V: Vector>() -> usize;

    /// The element of a step that byte `byte` of a register stands for.
    fn element<V: Vector>(group: usize, register: usize, byte: usize) -> usize;

    /// Reads the scales of a step.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and `at` is a whole step of a row of weights in this form.
    unsafe fn open<V: Vector>(at: At) -> Self::Open;

    /// A register of weights.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set and `D`'s; the step that was opened is still there, and has the group
    /// and the register.
    unsafe fn weights<V: Vector, D: Dot<V>>(open: &Self::Open, group: usize, register: usize) -> D::Weights;

    /// What each dword's sum is multiplied by.
    ///
    /// # Safety
    ///
    /// The processor has `V`'s instruction set, and the step has the group.
    unsafe fn scale<V: Vector>(open: &Self::Open, group: usize) -> V;

    /// The minima of a step, zeros after them: sixteen.
    ///
    /// # Safety
    ///
    /// The step that was opened is still there; what comes back lives as long as `open`.
    unsafe fn mins(open: &Self::Open) -> *const f32 {
        let _ = open;
        std::ptr::null()
    }
}

/// What is done with a form once it is known.
pub(super) trait Visitor {
    type Output;
    /// Bytes, several registers to a group.
    fn bytes<F: Form>(self) -> Self::Output;
    /// Bytes, one register to a group where registers are wide.
    fn short<F: Form>(self) -> Self::Output;
    /// Multiplied as words: weights of more than 8 bits, or not cut at bytes.
    fn words<F: Form>(self) -> Self::Output;
}

/// Calls `visitor` with the form of `stored`; none where its numbers are no small integers.
pub(super) fn visit<T: Visitor>(stored: &Stored, visitor: T) -> Option<T::Output> {
    use nibble::{Absmax, Bf16, E4m3, E8m0, Flipped, Fp4, Nibble, Plain, Zeros};
    Some(match (stored.code, stored.scale, stored.zero, stored.block) {
        (Code::Int8, Scale::Row, Zero::None, _) => visitor.bytes::<others::Int8>(),
        (Code::Nibble, Scale::Group, Zero::None, 32) => visitor.bytes::<Nibble<Flipped, Bf16<32>>>(),
        (Code::Nibble, Scale::Group, Zero::None, 64) => visitor.bytes::<Nibble<Flipped, Bf16<64>>>(),
        (Code::Nibble, Scale::Group, Zero::None, 128) => visitor.bytes::<Nibble<Flipped, Bf16<128>>>(),
        (Code::Nibble, Scale::Group, Zero::Integer, 32) => visitor.bytes::<Nibble<Plain, Zeros<32, false>>>(),
        (Code::Nibble, Scale::Group, Zero::Integer, 64) => visitor.bytes::<Nibble<Plain, Zeros<64, false>>>(),
        (Code::Nibble, Scale::Group, Zero::Integer, 128) => visitor.bytes::<Nibble<Plain, Zeros<128, false>>>(),
        (Code::Nibble, Scale::Group, Zero::Float, 32) => visitor.bytes::<Nibble<Plain, Zeros<32, true>>>(),
        (Code::Nibble, Scale::Group, Zero::Float, 64) => visitor.bytes::<Nibble<Plain, Zeros<64, true>>>(),
        (Code::Nibble, Scale::Group, Zero::Float, 128) => visitor.bytes::<Nibble<Plain, Zeros<128, true>>>(),
        (Code::Nibble, Scale::Micro, ..) => visitor.bytes::<Nibble<Fp4, E8m0>>(),
        (Code::Nibble, Scale::TwoLevel, ..) => visitor.bytes::<Nibble<Fp4, E4m3>>(),
        (Code::Nibble, Scale::Absmax, ..) => visitor.words::<others::Nf4<Absmax>>(),
        (Code::Int3, Scale::Group, Zero::None, 64) => visitor.words::<others::Int3>(),
        (Code::Int2, Scale::Group, Zero::None, 64) => visitor.bytes::<others::Int2>(),
        (Code::Gguf(GgufBlock::Q8_0), ..) => visitor.short::<gguf::Q8_0>(),
        (Code::Gguf(GgufBlock::Q5_0), ..) => visitor.bytes::<gguf::Q5_0>(),
        (Code::Gguf(GgufBlock::Q4_0), ..) => visitor.bytes::<gguf::Q4_0>(),
        (Code::Gguf(GgufBlock::Q4K), ..) => visitor.short::<gguf::Q45K<false>>(),
        (Code::Gguf(GgufBlock::Q5K), ..) => visitor.short::<gguf::Q45K<true>>(),
        (Code::Gguf(GgufBlock::Q6K), ..) => visitor.short::<sixteens::Q6K>(),
        (Code::Gguf(GgufBlock::Q5_1), ..) => visitor.bytes::<gguf::Q5_1>(),
        (Code::Gguf(GgufBlock::Q4_1), ..) => visitor.bytes::<gguf::Q4_1>(),
        (Code::Gguf(GgufBlock::Q3K), ..) => visitor.short::<sixteens::Q3K>(),
        (Code::Gguf(GgufBlock::Q2K), ..) => visitor.short::<sixteens::Q2K>(),
        _ => return None,
    })
}

/// `LANES / (group / per)` scales from `from` on, each to the dwords of its group: a dword's sum is of `per` elements.
///
/// # Safety
///
/// The processor has `V`'s instruction set, and `from` has a number for each `lanes` of a vector, at least one.
#[inline(always)]
unsafe fn spread<V: Vector>(from: *const f32, lanes: usize) -> V {
    unsafe {
        match lanes {
            1 => V::spread::<1>(from),
            2 => V::spread::<2>(from),
            4 => V::spread::<4>(from),
            8 => V::spread::<8>(from),
            _ => V::spread::<16>(from),
        }
    }
}
