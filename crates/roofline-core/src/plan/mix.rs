//! llama.cpp's recipes: which tensor of a GGUF file has which type, head and embedding included.
//!
//! Source: `llama_tensor_get_type_impl` and `tensor_type_fallback` of llama.cpp (`src/llama-quant.cpp` as llama-cpp-python
//! 0.3.36 has it, 2026). A few tensors have another type where there is an importance matrix.

mod narrow;

use crate::{Format, Role, model::Anatomy};

/// A recipe of types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mix {
    /// INT8 in blocks of 32 throughout.
    Q8_0,
    /// INT6 throughout.
    Q6K,
    /// INT5 above a minimum in blocks of 32, the output in `Q6_K`.
    Q5_1,
    /// `Q5_K`, half of the sensitive tensors in `Q6_K`.
    Q5KMedium,
    /// `Q5_K`, the output in `Q6_K`.
    Q5KSmall,
    /// INT5 in blocks of 32, the output in `Q6_K`.
    Q5_0,
    /// INT4 above a minimum in blocks of 32, the output in `Q6_K`.
    Q4_1,
    /// `Q4_K`, half of the sensitive tensors in `Q6_K`.
    Q4KMedium,
    /// `Q4_K`, a few tensors in `Q5_K`.
    Q4KSmall,
    /// INT4 in blocks of 32, the output in `Q6_K`.
    Q4_0,
    /// Uneven values in blocks of 32, a few tensors in `Q5_K`.
    Iq4Nl,
    /// Uneven values with 6-bit scales, a few tensors in `Q5_K`.
    Iq4Xs,
    /// Points of 512 in three bits, the sensitive tensors in `Q4_K`.
    Iq3Medium,
    /// Points of 512 in three bits, the output in `Q6_K`.
    Iq3Small,
    /// Points of 512 in three bits, queries, keys and most of the ways up of 256.
    Iq3ExtraSmall,
    /// `Q3_K`, the sensitive tensors in `Q5_K`.
    Q3KLarge,
    /// `Q3_K`, the sensitive tensors in `Q4_K` and a few in `Q5_K`.
    Q3KMedium,
    /// `Q3_K`, the output in `Q6_K`.
    Q3KSmall,
    /// Points of 256 in three bits, queries and keys of 1024 in two.
    Iq3ExtraExtraSmall,
    /// `Q2_K`, the sensitive tensors in `Q3_K` or `Q4_K`.
    Q2K,
    /// Points of 1024 in two bits, the sensitive tensors in `IQ3_S`.
    Iq2Medium,
    /// Points of 512 in two bits, the sensitive tensors in `IQ3_S`.
    Iq2Small,
    /// Points of 512 in two bits, the sensitive tensors in `Q2_K`.
    Iq2ExtraSmall,
    /// Points of 256 in two bits, the sensitive tensors in `Q2_K`.
    Iq2ExtraExtraSmall,
    /// Points of 2048 in 1.75 bits, the sensitive tensors in `IQ2_XXS` and `Q2_K`.
    Iq1Medium,
    /// Points of 2048 in 1.56 bits, the sensitive tensors in `IQ2_XXS` and `Q2_K`.
    Iq1Small,
}

use Mix as M;

/// Whether a layer is one of those that llama.cpp gives more bits: the first and the last eighth, and every third.
fn favoured(layer: usize, layers: usize) -> bool {
    layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
}

impl Mix {
    /// Every recipe, wide to narrow.
    pub const ALL: [Self; 26] = [
        M::Q8_0,
        M::Q6K,
        M::Q5_1,
        M::Q5KMedium,
        M::Q5KSmall,
        M::Q5_0,
        M::Q4_1,
        M::Q4KMedium,
        M::Q4KSmall,
        M::Q4_0,
        M::Iq4Nl,
        M::Iq4Xs,
        M::Q3KLarge,
        M::Q3KMedium,
        M::Iq3Medium,
        M::Q3KSmall,
        M::Iq3Small,
        M::Iq3ExtraSmall,
        M::Iq3ExtraExtraSmall,
        M::Q2K,
        M::Iq2Medium,
        M::Iq2Small,
        M::Iq2ExtraSmall,
        M::Iq2ExtraExtraSmall,
        M::Iq1Medium,
        M::Iq1Small,
    ];

    /// Those that advice is made of, wide to narrow. The uneven types take the room of `Q4_K`'s and `Q3_K`'s recipes, and without an
    /// importance matrix nothing that is known here tells them apart: who wants one names it.
    pub fn advised() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|mix| !mix.is_uneven())
    }

    const fn is_uneven(self) -> bool {
        let four = matches!(self, M::Iq4Nl | M::Iq4Xs);
        let three = matches!(self, M::Iq3Medium | M::Iq3Small | M::Iq3ExtraSmall | M::Iq3ExtraExtraSmall);
        four || three || self.is_narrow()
    }

    /// Its name, as llama.cpp writes it, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q6K => "q6_k",
            Self::Q5_1 => "q5_1",
            Self::Q5KMedium => "q5_k_m",
            Self::Q5KSmall => "q5_k_s",
            Self::Q5_0 => "q5_0",
            Self::Q4_1 => "q4_1",
            Self::Q4KMedium => "q4_k_m",
            Self::Q4KSmall => "q4_k_s",
            Self::Q4_0 => "q4_0",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Iq3Medium => "iq3_m",
            Self::Iq3Small => "iq3_s",
            Self::Iq3ExtraSmall => "iq3_xs",
            Self::Q3KLarge => "q3_k_l",
            Self::Q3KMedium => "q3_k_m",
            Self::Q3KSmall => "q3_k_s",
            Self::Iq3ExtraExtraSmall => "iq3_xxs",
            Self::Q2K => "q2_k",
            Self::Iq2Medium => "iq2_m",
            Self::Iq2Small => "iq2_s",
            Self::Iq2ExtraSmall => "iq2_xs",
            Self::Iq2ExtraExtraSmall => "iq2_xxs",
            Self::Iq1Medium => "iq1_m",
            Self::Iq1Small => "iq1_s",
        }
    }

    /// Other names of the recipe: `llama-quantize` takes a bare `Q4_K` for `Q4_K_M`.
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Q5KMedium => &["q5_k"],
            Self::Q4KMedium => &["q4_k"],
            Self::Q3KMedium => &["q3_k"],
            _ => &[],
        }
    }

    /// What it is, in a sentence.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Q8_0 => "INT8 in blocks of 32",
            Self::Q6K => "INT6 in blocks of 16 with 8-bit scales",
            Self::Q5_1 => "INT5 in blocks of 32 with minima; output in Q6_K",
            Self::Q5KMedium => "Q5_K, the sensitive half of values and ways down in Q6_K",
            Self::Q5KSmall => "INT5 in blocks of 32 with 6-bit scales and minima; output in Q6_K",
            Self::Q5_0 => "INT5 in blocks of 32; output in Q6_K",
            Self::Q4_1 => "INT4 in blocks of 32 with minima; output in Q6_K",
            Self::Q4KMedium => "Q4_K, the sensitive half of values and ways down in Q6_K",
            Self::Q4KSmall => "INT4 in blocks of 32 with 6-bit scales and minima, a few tensors in Q5_K",
            Self::Q4_0 => "INT4 in blocks of 32; output in Q6_K",
            Self::Iq4Nl => "INT4 for uneven values in blocks of 32; output in Q6_K, the first ways down in Q5_K",
            Self::Iq4Xs => "INT4 for uneven values with 6-bit scales; output in Q6_K, the first ways down in Q5_K",
            Self::Iq3Medium => "points of 512 in three bits; values and what joins the heads in Q4_K, output in Q6_K",
            Self::Iq3Small => "points of 512 in three bits; output in Q6_K",
            Self::Iq3ExtraSmall => "points of 512 in three bits; queries, keys and most ways up of 256, output in Q6_K",
            Self::Q3KLarge => "Q3_K; values, ways down and what joins the heads in Q5_K",
            Self::Q3KMedium => "Q3_K; values, ways down and what joins the heads in Q4_K, a few in Q5_K",
            Self::Q3KSmall => "INT3 in blocks of 16 with 6-bit scales; output in Q6_K",
            Self::Iq3ExtraExtraSmall => {
                "points of 256 in three bits; queries and keys of 1024 in two, embedding and what joins the heads in IQ3_S"
            }
            Self::Q2K => "INT2 in blocks of 16 with 4-bit scales and minima; sensitive tensors in Q3_K and Q4_K",
            Self::Iq2Medium => {
                "points of 1024 in two bits; embedding, values and what joins the heads in IQ3_S or Q4_K"
            }
            Self::Iq2Small => "points of 512 in two bits; embedding, values and what joins the heads in IQ3_S or Q4_K",
            Self::Iq2ExtraSmall => {
                "points of 512 in two bits; embedding, values and the first ways down in Q2_K or Q4_K"
            }
            Self::Iq2ExtraExtraSmall => {
                "points of 256 in two bits; embedding, values and the first ways down in Q2_K or Q4_K"
            }
            Self::Iq1Medium => "three levels in points of 2048, 1.75 bits; sensitive tensors in IQ2_XXS, Q2_K and Q4_K",
            Self::Iq1Small => "three levels in points of 2048, 1.56 bits; sensitive tensors in IQ2_XXS, Q2_K and Q4_K",
        }
    }

    /// The recipe of that name, in any case, with `-` or `_`.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase().replace('-', "_");
        Self::ALL.into_iter().find(|mix| mix.name() == name || mix.aliases().contains(&name.as_str()))
    }

    /// The type of most matrices.
    pub const fn base(self) -> Format {
        match self {
            Self::Q8_0 => Format::Q8_0,
            Self::Q6K => Format::Q6_K,
            Self::Q5_1 => Format::Q5_1,
            Self::Q5KMedium | Self::Q5KSmall => Format::Q5_K,
            Self::Q5_0 => Format::Q5_0,
            Self::Q4_1 => Format::Q4_1,
            Self::Q4KMedium | Self::Q4KSmall => Format::Q4_K,
            Self::Q4_0 => Format::Q4_0,
            Self::Iq4Nl => Format::IQ4_NL,
            Self::Iq4Xs => Format::IQ4_XS,
            Self::Iq3Medium | Self::Iq3Small | Self::Iq3ExtraSmall => Format::IQ3_S,
            Self::Q3KLarge | Self::Q3KMedium | Self::Q3KSmall => Format::Q3_K,
            Self::Iq3ExtraExtraSmall => Format::IQ3_XXS,
            Self::Q2K => Format::Q2_K,
            Self::Iq2Medium => Format::IQ2_S,
            Self::Iq2Small | Self::Iq2ExtraSmall => Format::IQ2_XS,
            Self::Iq2ExtraExtraSmall => Format::IQ2_XXS,
            Self::Iq1Medium => Format::IQ1_M,
            Self::Iq1Small => Format::IQ1_S,
        }
    }

    /// The type of a matrix of that many columns, in a layer where it is in one.
    pub fn type_of(self, role: Role, layer: Option<usize>, columns: u64, model: &Anatomy) -> Format {
        fallback(self.wanted(role, layer.unwrap_or(0), columns, model), columns)
    }

    /// The type in a file as it can be made: with an importance matrix where llama.cpp has none without.
    pub fn usual_type(self, role: Role, layer: Option<usize>, columns: u64, model: &Anatomy) -> Format {
        if self.is_narrow() || self == Self::Iq3ExtraExtraSmall {
            self.type_with_importance(role, layer, columns, model)
        } else {
            self.type_of(role, layer, columns, model)
        }
    }

    /// The same in a file that is made with an importance matrix. It spares the first ways down of the uneven types their `Q5_K`, all of
    /// `IQ3_XXS` and its values their wider types, and gives the first ways down of `Q4_0` and `Q5_0` a minimum.
    pub fn type_with_importance(self, role: Role, layer: Option<usize>, columns: u64, model: &Anatomy) -> Format {
        let first = layer.unwrap_or(0) < model.order.len() / 8;
        let down = matches!(role, Role::Down | Role::ExpertDown);
        let cheap = role == Role::Value && model.sharing < 4 && model.experts != 8;
        let wanted = match self {
            Self::Iq3ExtraExtraSmall if down || cheap => self.base(),
            Self::Iq4Nl | Self::Iq4Xs if down && first => self.base(),
            Self::Q4_0 if down && first => Format::Q4_1,
            Self::Q5_0 if down && first => Format::Q5_1,
            _ => return self.type_of(role, layer, columns, model),
        };
        fallback(wanted, columns)
    }

    fn wanted(self, role: Role, layer: usize, columns: u64, model: &Anatomy) -> Format {
        let base = self.base();
        let whole = base.block().is_none_or(|block| columns.is_multiple_of(block));
        // A tied embedding is the output.
        let output = role == Role::Head || role == Role::Embedding && model.tied;
        match role {
            // A router is too small to be worth a loss.
            Role::Router => Format::FP32,
            _ if output && (model.falcon || !whole) => Format::Q8_0,
            _ if output && (self.is_narrow() || self == Self::Iq3ExtraExtraSmall) => Format::Q5_K,
            _ if output && self != Self::Q8_0 => Format::Q6_K,
            _ if self.is_narrow() => self.narrow(role, layer, model),
            Role::Embedding if self == Self::Iq3ExtraExtraSmall => Format::IQ3_S,
            Role::Value | Role::Key if model.experts == 8 => Format::Q8_0,
            Role::Value => self.of_value(layer, model),
            Role::Down | Role::ExpertDown if model.falcon => self.of_falcon_down(layer, model.order.len()),
            Role::Down | Role::ExpertDown => self.of_down(layer, model.order.len(), model.experts == 8),
            Role::Output if model.falcon => {
                if self == Self::Q3KLarge {
                    Format::Q4_K
                } else {
                    base
                }
            }
            Role::Output => self.of_output(model.experts == 8),
            Role::Query | Role::Key if self == Self::Iq3ExtraSmall => Format::IQ3_XXS,
            Role::Query | Role::Key if self == Self::Iq3ExtraExtraSmall => Format::IQ2_S,
            Role::Gate | Role::Up | Role::ExpertGate | Role::ExpertUp if self == Self::Iq3ExtraSmall => {
                let layers = model.order.len();
                if (layers / 8..7 * layers / 8).contains(&layer) { Format::IQ3_XXS } else { base }
            }
            _ => base,
        }
    }

    fn of_value(self, layer: usize, model: &Anatomy) -> Format {
        let layers = model.order.len();
        let format = match self {
            Self::Q2K | Self::Iq3Small | Self::Iq3ExtraSmall | Self::Iq3ExtraExtraSmall if model.sharing >= 4 => {
                Format::Q4_K
            }
            Self::Iq3ExtraExtraSmall => Format::IQ3_S,
            Self::Q2K => Format::Q3_K,
            Self::Q3KMedium if layer >= 2 => Format::Q4_K,
            Self::Q3KMedium | Self::Q3KLarge => Format::Q5_K,
            Self::Q4KMedium | Self::Q5KMedium if favoured(layer, layers) => Format::Q6_K,
            Self::Q4KSmall if layer < 4 => Format::Q5_K,
            Self::Iq4Nl | Self::Iq4Xs if model.sharing >= 4 => Format::Q5_K,
            Self::Iq3Medium => Format::Q4_K,
            _ => self.base(),
        };
        // What llama.cpp takes for the 70B model: its values are shared by eight heads, and cheap.
        let cheap = layers == 80 && model.sharing > 1;
        if cheap && matches!(format, Format::Q3_K | Format::Q4_K) { Format::Q5_K } else { format }
    }

    fn of_down(self, layer: usize, layers: usize, eight_experts: bool) -> Format {
        match self {
            Self::Iq3ExtraExtraSmall if layer < layers / 8 => Format::Q4_K,
            Self::Q2K | Self::Iq3ExtraExtraSmall => Format::Q3_K,
            Self::Q3KMedium if layer >= layers / 16 => Format::Q4_K,
            Self::Q3KMedium | Self::Q3KLarge => Format::Q5_K,
            Self::Q4KMedium | Self::Q5KMedium if favoured(layer, layers) => Format::Q6_K,
            Self::Q4KSmall | Self::Iq4Nl | Self::Iq4Xs if layer < layers / 8 => Format::Q5_K,
            Self::Iq3Medium if layer < layers / 8 || eight_experts && favoured(layer, layers) => Format::Q4_K,
            _ => self.base(),
        }
    }

    fn of_falcon_down(self, layer: usize, layers: usize) -> Format {
        let favoured = favoured(layer, layers);
        match self {
            Self::Q3KMedium if layer < layers / 16 => Format::Q5_K,
            Self::Q3KMedium if favoured => Format::Q4_K,
            Self::Q3KMedium => Format::Q3_K,
            Self::Q4KMedium if layer < layers / 16 => Format::Q6_K,
            Self::Q4KMedium if favoured => Format::Q5_K,
            Self::Q3KLarge | Self::Q4KMedium | Self::Q4KSmall => Format::Q4_K,
            _ => self.of_down(layer, layers, false),
        }
    }

    fn of_output(self, eight_experts: bool) -> Format {
        match self {
            Self::Q2K
            | Self::Q3KSmall
            | Self::Q3KMedium
            | Self::Q4KSmall
            | Self::Q4KMedium
            | Self::Iq4Nl
            | Self::Iq4Xs
            | Self::Iq3Medium
            | Self::Iq3Small
            | Self::Iq3ExtraSmall
            | Self::Iq3ExtraExtraSmall
                if eight_experts =>
            {
                Format::Q5_K
            }
            Self::Q2K if !eight_experts => Format::Q3_K,
            Self::Iq3ExtraExtraSmall => Format::IQ3_S,
            Self::Q3KMedium | Self::Iq3Medium => Format::Q4_K,
            Self::Q3KLarge if !eight_experts => Format::Q5_K,
            _ => self.base(),
        }
    }
}

/// A type whose blocks divide the columns: of 32 for those of 256, and else FP16, as llama.cpp has it.
fn fallback(wanted: Format, columns: u64) -> Format {
    let whole = |format: Format| format.block().is_none_or(|block| columns.is_multiple_of(block));
    let smaller = match wanted {
        Format::IQ4_XS
        | Format::IQ3_S
        | Format::IQ3_XXS
        | Format::IQ2_S
        | Format::IQ2_XS
        | Format::IQ2_XXS
        | Format::IQ1_M
        | Format::IQ1_S => Format::IQ4_NL,
        Format::Q2_K | Format::Q3_K => Format::Q4_0,
        Format::Q4_K => Format::Q5_0,
        Format::Q5_K => Format::Q5_1,
        Format::Q6_K => Format::Q8_0,
        other => other,
    };
    [wanted, smaller].into_iter().find(|format| whole(*format)).unwrap_or(Format::FP16)
}

#[cfg(test)]
mod tests;
