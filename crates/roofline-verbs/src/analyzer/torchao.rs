//! What torchao makes of a precision: it stores weights of linear layers as INT4 in groups or as INT8 per channel.

use roofline_core::precision::PrecisionSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Result;

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

impl Torchao {
    #[expect(clippy::unnecessary_wraps, reason = "every subject answers alike")]
    pub(super) fn answer(&self) -> Result<TorchaoAnswer> {
        let name = self.precision.trim();
        // What is no precision has no weights to store; whoever applies one goes on without.
        let weights = name.to_lowercase().parse::<PrecisionSpec>().ok().map(|spec| spec.formats().weights);
        let bits = weights.map(|format| format.map_or(16, |format| format.nominal_bits()));
        let mapped = match bits {
            Some(4) => Some("INT4"),
            Some(8) => Some("INT8"),
            _ => None,
        };
        Ok(TorchaoAnswer { precision: name.to_owned(), mapped, bits })
    }
}
