//! What a model has to do, and what matters most.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{Result, model::Workload};

/// What the model has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schemars(rename = "ModelDemand")]
pub enum Demand {
    /// One more token for every sequence, at this context.
    Decode {
        /// Tokens of each sequence so far.
        context: u64,
    },
    /// Prompts of this length.
    Prefill {
        /// Tokens of each prompt.
        prompt: u64,
    },
    /// A prompt, then tokens one by one.
    Request {
        /// Tokens of each prompt.
        prompt: u64,
        /// Tokens to generate.
        generate: u64,
    },
}

impl Default for Demand {
    /// The next token of a sequence of 4096.
    fn default() -> Self {
        Self::Decode { context: 4096 }
    }
}

impl Demand {
    /// The pass that stands for the demand: of a request the step at its mean context, since time is linear in the context.
    pub fn typical(self, batch: u64) -> Result<Workload> {
        match self {
            Self::Decode { context } => Workload::decode(batch, context),
            Self::Prefill { prompt } => Workload::prefill(batch, prompt),
            Self::Request { prompt, generate } => Workload::decode(batch, prompt.saturating_add(generate.div_ceil(2))),
        }
    }

    /// Tokens in the cache at the end.
    pub fn context(self) -> u64 {
        match self {
            Self::Decode { context } => context,
            Self::Prefill { prompt } => prompt,
            Self::Request { prompt, generate } => prompt.saturating_add(generate),
        }
    }

    /// Tokens of the prompt, or of what stands for one.
    pub(super) fn prompt(self) -> u64 {
        match self {
            Self::Decode { context } => context,
            Self::Prefill { prompt } | Self::Request { prompt, .. } => prompt,
        }
    }
}

/// What matters most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "RecommendationGoal")]
pub enum Goal {
    /// The shortest time of the demand.
    #[default]
    Latency,
    /// The most tokens per second, with as many sequences as fit.
    Throughput,
    /// The least memory.
    Memory,
    /// The least energy for each token.
    Energy,
    /// The least money for each token, with as many sequences as fit.
    Cost,
}
