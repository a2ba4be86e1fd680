//! The recipes below three bits, which have rules of their own: embedding, values, what joins the heads and the first ways down are
//! wider, and nothing else is. None of them can be made without an importance matrix.
//!
//! llama.cpp counts ways down where the other recipes go by layers. That is the same but in models with an expert that all tokens share:
//! their layers have two of them, and half as many layers have wider ones there as here.

use super::Mix;
use crate::{Format, Role, model::Anatomy};

impl Mix {
    /// Whether it is one of these.
    pub(super) const fn is_narrow(self) -> bool {
        let two = matches!(self, Self::Iq2Medium | Self::Iq2Small | Self::Iq2ExtraSmall | Self::Iq2ExtraExtraSmall);
        two || matches!(self, Self::Iq1Medium | Self::Iq1Small)
    }

    /// What is sensitive is in this type.
    const fn wider(self) -> Format {
        match self {
            Self::Iq2Medium | Self::Iq2Small => Format::IQ3_S,
            _ => Format::Q2_K,
        }
    }

    /// The type of a matrix that is not the output.
    pub(super) fn narrow(self, role: Role, layer: usize, model: &Anatomy) -> Format {
        match role {
            Role::Value if model.sharing >= 4 || model.experts >= 4 => Format::Q4_K,
            Role::Embedding | Role::Value => self.wider(),
            Role::Key if model.experts == 8 => Format::Q4_K,
            Role::Down | Role::ExpertDown if layer < model.order.len() / 8 => self.wider(),
            Role::Output if model.experts == 8 => Format::Q5_K,
            Role::Output if matches!(self, Self::Iq2Medium | Self::Iq2Small) => Format::IQ3_S,
            Role::Output if matches!(self, Self::Iq1Medium | Self::Iq1Small) => Format::IQ2_XXS,
            _ => self.base(),
        }
    }
}
