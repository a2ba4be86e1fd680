//! A plan with what it promises.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Candidate, Goal, rank};
use crate::{
    device::Room,
    energy::Energy,
    model::Footprint,
    predict::{Bound, Figures, Ratios},
    units::{Bytes, Seconds},
};

/// A plan with what it promises. The figures are those that `predict` gives for the typical pass of the demand.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PlanOutcome")]
pub struct Outcome {
    /// The plan.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Sequences side by side.
    pub batch: u64,
    /// Devices that share each layer.
    pub tp: u64,
    /// The typical pass, on each of the devices.
    #[serde(flatten)]
    pub figures: Figures,
    /// That pass beside 16 bit at the same batch on as many devices, by the same kernels.
    #[serde(flatten)]
    pub ratios: Ratios,
    /// What takes longest in the longest pass.
    #[serde(skip)]
    pub bound: Bound,
    /// The time of the demand.
    pub time: Seconds,
    /// The time to the first token, where a prompt is read: that of one prompt alone, whatever the batch.
    pub first_token: Option<Seconds>,
    /// Tokens per second of all sequences: generated ones, or those of a prompt.
    pub tokens_per_s: f64,
    /// How many times the tokens per second of 16 bit, at the same batch on as many devices, by the same kernels.
    pub gain: Option<f64>,
    /// Energy for each token of all sequences; none where nothing is known of the device's power.
    pub energy_per_token: Option<Energy>,
    /// Money for a million tokens, where a price was given.
    pub dollars_per_million_tokens: Option<f64>,
    /// Memory on each device.
    pub memory: Occupancy,
    /// Weights that stay in the host's memory.
    pub offload: Option<Offload>,
    /// What it costs to take it though better plans do not fit; none where it is no last resort.
    pub last_resort: Option<String>,
    /// Why it may not be chosen; none where it may.
    pub refused: Option<String>,
    /// Why it was not chosen though it may be; none for the choice.
    pub lost: Option<String>,
    /// Whether no other is at least as fast, as small and as good.
    pub pareto: bool,
}

impl Outcome {
    /// What the goal wants least of; infinite where it is not known.
    pub fn score(&self, goal: Goal) -> f64 {
        rank::score(self, goal)
    }

    /// The largest rise of the perplexity that has to be reckoned with; none where it is unknown.
    pub fn loss(&self) -> Option<f64> {
        self.candidate.losses.worst
    }
}

/// What of a device's memory goes where.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MemoryOccupancy")]
pub struct Occupancy {
    /// Weights.
    pub weights: Bytes,
    /// Keys and values.
    pub cache: Bytes,
    /// Tensors in flight.
    pub in_flight: Bytes,
    /// What the system takes, where it shares the memory.
    pub system: Bytes,
    /// What is kept free.
    pub kept_free: Bytes,
    /// Sum of the parts.
    pub total: Bytes,
    /// What there is, or may be used; none where nobody said how much.
    pub capacity: Option<Bytes>,
}

impl Occupancy {
    pub(super) fn new(footprint: &Footprint, room: Option<Room>) -> Self {
        let (system, kept_free) = room.map_or((Bytes::ZERO, Bytes::ZERO), |room| (room.system, room.reserve));
        let Footprint { weights, kv: cache, activations: in_flight } = *footprint;
        let total = footprint.total() + system + kept_free;
        Self { weights, cache, in_flight, system, kept_free, total, capacity: room.map(|room| room.capacity) }
    }

    /// What the model itself takes.
    pub fn model(&self) -> Bytes {
        self.weights + self.cache + self.in_flight
    }

    /// What is missing; none where it fits.
    pub fn missing(&self) -> Option<Bytes> {
        let capacity = self.capacity?;
        (self.total > capacity).then(|| self.total - capacity)
    }
}

/// Layers whose weights stay in the host's memory and cross its link in every pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Offload {
    /// Layers whose weights stay in the host's memory.
    pub layers: u64,
    /// Layers of the model.
    pub of: u64,
    /// What the host has to hold.
    pub host_memory: Bytes,
    /// How long the link takes for one typical pass.
    pub link_time: Seconds,
}

/// What a plan does to prompts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PrefillOutcome")]
pub struct Prefill {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// The time of the prompt.
    pub time: Seconds,
    /// How many times as fast as 16 bit, in the tier of the answer; none where the device has no 16 bit.
    pub speedup: Option<f64>,
    /// The same as a sentence.
    pub sentence: String,
}
