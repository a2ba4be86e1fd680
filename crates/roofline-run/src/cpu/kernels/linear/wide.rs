//! Wide numbers: what activations and outputs are stored in, and what FP32 becomes in them.

use roofline_core::Format;
use roofline_isa::number::{to_bf16, to_fp16};

use crate::cpu::kernels::element::Kind;

/// A format whose code is its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {
    Fp32,
    Fp16,
    Bf16,
}

impl Wide {
    pub(super) fn of(format: Format) -> Option<Self> {
        match format {
            Format::FP32 => Some(Self::Fp32),
            Format::FP16 => Some(Self::Fp16),
            Format::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
        }
    }

    /// The element type that vectors load.
    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::Fp32 => Kind::Fp32,
            Self::Fp16 => Kind::Fp16,
            Self::Bf16 => Kind::Bf16,
        }
    }

    /// The nearest codes of `values`, ties to even.
    #[inline(always)]
    pub(super) fn encode(self, values: &[f32], out: &mut [u8]) {
        match self {
            Self::Fp32 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                    *out = value.to_le_bytes();
                }
            }
            Self::Fp16 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                    *out = to_fp16(*value).to_le_bytes();
                }
            }
            Self::Bf16 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                    *out = to_bf16(*value).to_le_bytes();
                }
            }
        }
    }
}
