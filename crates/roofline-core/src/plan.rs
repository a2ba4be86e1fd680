//! Which precision at which place of a model.

use serde::Serialize;

use crate::{Device, Precision, Result, precision::PrecisionSpec};

/// A precision for the layers, and one for what stays wide: embeddings, norms, routers and the LM head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The layers' products and attention.
    pub layers: Precision,
    /// What is not quantized.
    pub wide: Precision,
}

impl Plan {
    /// The same everywhere.
    pub fn uniform(precision: Precision) -> Self {
        Self { layers: precision, wide: precision }
    }

    /// What a precision's name means for a whole model: the layers in it, the rest in the queries' format.
    pub fn model(spec: &PrecisionSpec, device: &Device) -> Result<Self> {
        let layers = spec.on(device)?;
        let (weights, activations) = (layers.query, layers.query);
        let math = layers.attention;
        Ok(Self { layers, wide: Precision { weights, activations, math, output: layers.query, ..layers } })
    }

    /// The precision of a node.
    pub fn at(&self, wide: bool) -> &Precision {
        if wide { &self.wide } else { &self.layers }
    }
}
