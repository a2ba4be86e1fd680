//! What torchao makes of a precision: it stores weights of linear layers as INT4 in groups or as INT8 per channel.

use roofline_core::{Format, precision::PrecisionSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A precision by any of its names.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Torchao {
    /// INT4, NF4, FP8_E4M3, w8a16, ...
    pub precision: String,
}

/// What torchao has for it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TorchaoAnswer {
    pub precision: String,
    /// "INT4" or "INT8": the weight-only format of as many bits; none where there is none, or no need of one.
    pub mapped: Option<&'static str>,
    /// Bits of a stored weight, scales not counted; none of a name that is no precision.
    pub bits: Option<u32>,
}

/// What torchao has for a precision, and the bits of its weights. What is no precision has no weights to store; whoever
/// applies one goes on without.
pub(super) fn mapped(precision: &str) -> (Option<&'static str>, Option<u32>) {
    let weights = precision.trim().to_lowercase().parse::<PrecisionSpec>().ok().map(|spec| spec.formats().weights);
    let bits = weights.map(|format| format.map_or(16, Format::nominal_bits));
    let mapped = match bits {
        Some(4) => Some("INT4"),
        Some(8) => Some("INT8"),
        _ => None,
    };
    (mapped, bits)
}

impl Torchao {
    pub(super) fn answer(&self) -> TorchaoAnswer {
        let (mapped, bits) = mapped(&self.precision);
        TorchaoAnswer { precision: self.precision.trim().to_owned(), mapped, bits }
    }
}
