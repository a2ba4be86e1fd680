//! Which type each tensor gets: llama.cpp's recipes, so that a file is what `llama-quantize` would have made.

use super::llama::{Model, Role, Target};
use crate::ggml::Type;

/// A recipe of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Every matrix alike, output and embeddings too: `llama-quantize --pure`, and how unquantized files are.
    Pure(Type),
    /// One type as llama.cpp mixes it, with a better one for the output. Four-bit floats leave output and embeddings
    /// alone: `MXFP4` in `Q8_0`, `NVFP4` in `BF16`, because llama.cpp has no scale for embeddings.
    Usual(Type),
    /// `Q4_K_S`: a few tensors in `Q5_K`.
    Q4KSmall,
    /// `Q4_K_M`: half of the sensitive tensors in `Q6_K`.
    Q4KMedium,
    /// `Q5_K_M`: half of the sensitive tensors in `Q6_K`.
    Q5KMedium,
}

/// Whether a layer is one of those that llama.cpp gives more bits: the first and the last eighth, and every third.
fn favoured(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

impl Mix {
    /// The recipe of that name, in any case: `q4_k_m`, `q8_0`, `bf16`, `nvfp4`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "q4_k_m" => Self::Q4KMedium,
            "q5_k_m" => Self::Q5KMedium,
            "q4_k" | "q4_k_s" => Self::Q4KSmall,
            "q5_k" | "q5_k_s" => Self::Usual(Type::Q5K),
            name => match Type::named(name).filter(|ty| ty.is_written())? {
                ty @ (Type::F32 | Type::F16 | Type::Bf16) => Self::Pure(ty),
                ty => Self::Usual(ty),
            },
        })
    }

    /// The type of most matrices.
    pub fn base(self) -> Type {
        match self {
            Self::Pure(ty) | Self::Usual(ty) => ty,
            Self::Q4KSmall | Self::Q4KMedium => Type::Q4K,
            Self::Q5KMedium => Type::Q5K,
        }
    }

    /// `general.file_type`: a hint for people, which loaders do not need.
    pub fn file_type(self) -> u32 {
        match self {
            Self::Q4KMedium => 15,
            Self::Q5KMedium => 17,
            _ => match self.base() {
                Type::F16 => 1,
                Type::Q4_0 => 2,
                Type::Q8_0 => 7,
                Type::Q5_0 => 8,
                Type::Q5_1 => 9,
                Type::Q4K => 14,
                Type::Q5K => 16,
                Type::Q6K => 18,
                Type::Bf16 => 32,
                Type::Mxfp4 => 38,
                Type::Nvfp4 => 39,
                _ => 0,
            },
        }
    }

    /// The type of a tensor of that many columns.
    pub fn type_of(self, target: &Target, model: &Model, columns: usize) -> Type {
        if !target.role.is_matrix() {
            return Type::F32;
        }
        let base = self.base();
        if base.block() == 1 {
            return base;
        }
        let wanted = match self {
            Self::Pure(Type::Nvfp4) if target.role == Role::Embeddings => Type::Bf16,
            Self::Pure(ty) => ty,
            _ => self.wanted(target, model, columns),
        };
        fallback(wanted, columns)
    }

    fn wanted(self, target: &Target, model: &Model, columns: usize) -> Type {
        let base = self.base();
        let (layer, layers) = (target.layer.unwrap_or(0), model.layers());
        let eight_experts = model.experts() == 8;
        let more = matches!(self, Self::Q4KMedium | Self::Q5KMedium) && favoured(layer, layers);
        let small = self == Self::Q4KSmall;
        match target.role {
            Role::Output | Role::Embeddings if base == Type::Nvfp4 => Type::Bf16,
            Role::Output | Role::Embeddings if base == Type::Mxfp4 => Type::Q8_0,
            Role::Output if !columns.is_multiple_of(base.block()) => Type::Q8_0,
            Role::Embeddings if model.tied() && !columns.is_multiple_of(base.block()) => Type::Q8_0,
            Role::Output if base != Type::Q8_0 => Type::Q6K,
            Role::Embeddings if model.tied() && base != Type::Q8_0 => Type::Q6K,
            Role::Value | Role::Key if eight_experts => Type::Q8_0,
            Role::Value | Role::Down if more => Type::Q6K,
            Role::Value if small && layer < 4 => Type::Q5K,
            // What llama.cpp takes for the 70B model: its values are shared by eight heads, and cheap.
            Role::Value if base == Type::Q4K && layers == 80 && model.heads() != model.kv_heads() => Type::Q5K,
            Role::Down if small && layer < layers / 8 => Type::Q5K,
            Role::AttentionOutput if base == Type::Q4K && eight_experts => Type::Q5K,
            _ => base,
        }
    }
}

/// A type whose blocks divide the columns: of 32 for those of 256, and else f16, as llama.cpp has it.
fn fallback(wanted: Type, columns: usize) -> Type {
    if columns.is_multiple_of(wanted.block()) {
        return wanted;
    }
    let smaller = match wanted {
        Type::Q4K => Type::Q5_0,
        Type::Q5K => Type::Q5_1,
        Type::Q6K => Type::Q8_0,
        other => other,
    };
    if columns.is_multiple_of(smaller.block()) { smaller } else { Type::F16 }
}
