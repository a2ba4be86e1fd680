//! Stored element types as kernels read them.

#![allow(unsafe_code, clippy::inline_always)]

use roofline_core::{Format, format::Element};

use roofline_isa::Vector;

/// An element type with a fast way to FP32.
pub(crate) trait Stored {
    const BYTES: usize;
    /// What a loaded value must be multiplied by.
    const FACTOR: f32 = 1.0;

    /// # Safety
    ///
    /// `from` points to `V::LANES` elements, and the processor has `V`'s instruction set.
    unsafe fn load<V: Vector>(from: *const u8) -> V;
}

macro_rules! stored {
    ($($name:ident, $bytes:literal, $factor:literal, $load:ident;)*) => {
        $(pub(crate) struct $name;

        impl Stored for $name {
            const BYTES: usize = $bytes;
            const FACTOR: f32 = $factor;

            #[inline(always)]
            unsafe fn load<V: Vector>(from: *const u8) -> V {
                unsafe { V::$load(from.cast()) }
            }
        })*
    };
}

stored! {
    Fp32, 4, 1.0, load;
    Bf16, 2, 1.0, load_bf16;
    Fp16, 2, 1.0, load_fp16;
    Int8, 1, 1.0, load_i8;
    E4m3, 1, 256.0, load_e4m3;
    E5m2, 1, 1.0, load_e5m2;
}

/// The element types above, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Fp32,
    Bf16,
    Fp16,
    /// With a BF16 scale per row.
    Int8,
    /// With a BF16 scale per row.
    E4m3,
    /// With a BF16 scale per row.
    E5m2,
}

impl Kind {
    /// The kind that stores `format` with a scale per row or none.
    pub(crate) fn of(format: Format) -> Option<Self> {
        let e5m2 = || "fp8-e5m2".parse::<Format>().ok();
        Some(match format {
            Format::FP32 => Self::Fp32,
            Format::BF16 => Self::Bf16,
            Format::FP16 => Self::Fp16,
            Format::INT8 => Self::Int8,
            Format::FP8 => Self::E4m3,
            other if other.element() == Element::Fp8E5M2 && Some(other) == e5m2() => Self::E5m2,
            _ => return None,
        })
    }

    /// The kind that stores `format` without scales.
    pub(crate) fn plain(format: Format) -> Option<Self> {
        Self::of(format).filter(|kind| !kind.scaled())
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Int8 | Self::E4m3 | Self::E5m2 => 1,
        }
    }

    /// Whether each row has a scale.
    pub(crate) fn scaled(self) -> bool {
        self.bytes() == 1
    }
}

/// Calls a function that is generic over [`Stored`] with the type of a [`Kind`].
macro_rules! with_kind {
    ($kind:expr, $type:ident => $call:expr) => {
        match $kind {
            $crate::cpu::kernels::element::Kind::Fp32 => {
                type $type = $crate::cpu::kernels::element::Fp32;
                $call
            }
            $crate::cpu::kernels::element::Kind::Bf16 => {
                type $type = $crate::cpu::kernels::element::Bf16;
                $call
            }
            $crate::cpu::kernels::element::Kind::Fp16 => {
                type $type = $crate::cpu::kernels::element::Fp16;
                $call
            }
            $crate::cpu::kernels::element::Kind::Int8 => {
                type $type = $crate::cpu::kernels::element::Int8;
                $call
            }
            $crate::cpu::kernels::element::Kind::E4m3 => {
                type $type = $crate::cpu::kernels::element::E4m3;
                $call
            }
            $crate::cpu::kernels::element::Kind::E5m2 => {
                type $type = $crate::cpu::kernels::element::E5m2;
                $call
            }
        }
    };
}
pub(crate) use with_kind;
