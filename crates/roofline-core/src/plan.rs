//! Which precision at which place of a model.

use serde::Serialize;

use crate::{Device, Format, Precision, Result, graph::Place, precision::PrecisionSpec};

/// A precision for the layers, and one for what stays wide: norms, routers and, unless said otherwise, the LM head and the
/// embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The layers' products and attention.
    pub layers: Precision,
    /// The feed-forward part of the layers, where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feed_forward: Option<Precision>,
    /// The LM head and the embeddings, where they are quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Precision>,
    /// What is not quantized.
    pub wide: Precision,
}

impl Plan {
    /// The same everywhere.
    pub fn uniform(precision: Precision) -> Self {
        Self { layers: precision, feed_forward: None, head: None, wide: precision }
    }

    /// What a precision's name means for a whole model: the layers in it, the rest in the queries' format.
    pub fn model(spec: &PrecisionSpec, device: &Device) -> Result<Self> {
        let layers = spec.on(device)?;
        let (weights, activations) = (layers.query, layers.query);
        let math = layers.attention;
        Ok(Self {
            layers,
            feed_forward: None,
            head: None,
            wide: Precision { weights, activations, math, output: layers.query, ..layers },
        })
    }

    /// The same with another precision for the feed-forward part. Cache and queries stay those of the layers.
    #[must_use]
    pub fn with_feed_forward(self, precision: Precision) -> Self {
        let Precision { kv, query, attention, .. } = self.layers;
        Self { feed_forward: Some(Precision { kv, query, attention, ..precision }), ..self }
    }

    /// The same with the LM head and the embeddings stored in another format, and multiplied as before.
    #[must_use]
    pub fn with_head(self, weights: Format) -> Self {
        Self { head: Some(Precision { weights, ..self.wide }), ..self }
    }

    /// The same with another format of the cache.
    #[must_use]
    pub fn with_kv(self, kv: Format) -> Self {
        let with = |precision: Precision| Precision { kv, ..precision };
        Self {
            layers: with(self.layers),
            feed_forward: self.feed_forward.map(with),
            head: self.head.map(with),
            wide: with(self.wide),
        }
    }

    /// The precision of a part of the model.
    pub fn at(&self, place: Place) -> &Precision {
        match place {
            Place::Layer => &self.layers,
            Place::FeedForward => self.feed_forward.as_ref().unwrap_or(&self.layers),
            Place::Head => self.head.as_ref().unwrap_or(&self.wide),
            Place::Wide => &self.wide,
        }
    }
}
