//! What the layers of a family are made of, as far as its checkpoints' configurations do not say so.
//!
//! A `model_type` that is not here is an error: guessing that it is "like Llama" is how wrong parameter counts are made.

use super::Norms;

/// A family of models, by the `model_type` of its checkpoints.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a family has or has not")]
pub(super) struct Family {
    pub(super) name: &'static str,
    /// The norms of a layer.
    pub(super) norms: Norms,
    /// Biases of queries, keys and values.
    pub(super) input_bias: Bias,
    /// The bias of attention's output.
    pub(super) output_bias: Bias,
    /// Biases of the feed-forward block.
    pub(super) inner_bias: Bias,
    /// Whether that has a gate.
    pub(super) gated: bool,
    /// The bias of the head.
    pub(super) head_bias: bool,
    /// Whether the head is the embedding, where nothing is said.
    pub(super) tied: bool,
    /// Whether queries and keys are normed, where nothing is said.
    pub(super) query_key_norm: bool,
    /// A learned sink per head.
    pub(super) sinks: bool,
    /// The part of a head that is turned, where nothing is said.
    pub(super) rotary: f64,
    /// Its experts, where it has some.
    pub(super) experts: Option<Mixture>,
    /// What of its arithmetic is not described here: such a model is predicted, and not run.
    pub(super) beyond: Option<&'static str>,
}

/// Which products have a bias.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bias {
    Never,
    Always,
    /// As `attention_bias` or `mlp_bias` says, and this where it says nothing.
    Said(bool),
}

impl Bias {
    pub(super) fn is(self, said: Option<bool>) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Said(default) => said.unwrap_or(default),
        }
    }
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixture {
    /// Biases of the experts.
    pub(super) bias: bool,
    /// A bias of the router, or what is added to its scores to even them out.
    pub(super) router_bias: bool,
}

const TWO: Norms = Norms { per_layer: 2, bias: false };
const FOUR: Norms = Norms { per_layer: 4, bias: false };
/// One norm feeds attention and feed-forward, which run side by side.
const ONE: Norms = Norms { per_layer: 1, bias: false };

const EXPERTS: Option<Mixture> = Some(Mixture { bias: false, router_bias: false });
const EVENED_EXPERTS: Option<Mixture> = Some(Mixture { bias: false, router_bias: true });

/// Llama's layers, which most families have.
const LLAMA: Family = Family {
    name: "llama",
    norms: TWO,
    input_bias: Bias::Said(false),
    output_bias: Bias::Said(false),
    inner_bias: Bias::Said(false),
    gated: true,
    head_bias: false,
    tied: false,
    query_key_norm: false,
    sinks: false,
    rotary: 1.0,
    experts: None,
    beyond: None,
};

/// Layers of before Llama: norms and products with biases, and no gate.
const CLASSIC: Family = Family {
    norms: Norms { per_layer: 2, bias: true },
    input_bias: Bias::Always,
    output_bias: Bias::Always,
    inner_bias: Bias::Always,
    gated: false,
    ..LLAMA
};

const POSITIONS: Option<&str> = Some("its positions are vectors that it learned");
const MULTIPLIERS: Option<&str> = Some("it multiplies its stream and its scores by constants of its own");
const NORMED_AFTER: Option<&str> = Some("it norms what its layers add, not what they read");
const SIDE_BY_SIDE: Option<&str> = Some("its layers run attention and feed-forward side by side in a way of their own");
const TURNED_OTHERWISE: Option<&str> = Some("it turns queries and keys in a way of its own");
const ROUTED_OTHERWISE: Option<&str> = Some("it chooses experts in a way of its own");

/// Every family whose layers are known.
const FAMILIES: &[Family] = &[
    LLAMA,
    Family { name: "mistral", ..LLAMA },
    Family { name: "mixtral", experts: EXPERTS, ..LLAMA },
    Family { name: "qwen2", input_bias: Bias::Always, output_bias: Bias::Never, ..LLAMA },
    // Its shared expert has a gate of one row, which is not counted.
    Family {
        name: "qwen2_moe",
        input_bias: Bias::Always,
        output_bias: Bias::Never,
        experts: EXPERTS,
        beyond: ROUTED_OTHERWISE,
        ..LLAMA
    },
    Family { name: "qwen3", query_key_norm: true, ..LLAMA },
    Family { name: "qwen3_moe", query_key_norm: true, experts: EXPERTS, ..LLAMA },
    Family { name: "gemma", tied: true, ..LLAMA },
    Family { name: "gemma2", norms: FOUR, tied: true, ..LLAMA },
    Family { name: "gemma3", norms: FOUR, tied: true, query_key_norm: true, ..LLAMA },
    Family { name: "gemma3_text", norms: FOUR, tied: true, query_key_norm: true, ..LLAMA },
    Family { name: "phi", norms: Norms { per_layer: 1, bias: true }, head_bias: true, rotary: 0.5, ..CLASSIC },
    Family { name: "phi3", ..LLAMA },
    Family {
        name: "phimoe",
        norms: Norms { per_layer: 2, bias: true },
        head_bias: true,
        experts: EXPERTS,
        beyond: ROUTED_OTHERWISE,
        ..LLAMA
    },
    Family { name: "deepseek_v2", experts: EXPERTS, ..LLAMA },
    Family { name: "deepseek_v3", experts: EVENED_EXPERTS, ..LLAMA },
    Family { name: "kimi_k2", experts: EVENED_EXPERTS, ..LLAMA },
    Family {
        name: "gpt_oss",
        input_bias: Bias::Said(true),
        output_bias: Bias::Said(true),
        sinks: true,
        experts: Some(Mixture { bias: true, router_bias: true }),
        ..LLAMA
    },
    // Queries and keys are normed without weights, and every fourth layer turns nothing.
    Family { name: "llama4_text", experts: EXPERTS, beyond: TURNED_OTHERWISE, ..LLAMA },
    Family { name: "glm", output_bias: Bias::Never, rotary: 0.5, beyond: TURNED_OTHERWISE, ..LLAMA },
    Family { name: "glm4", norms: FOUR, output_bias: Bias::Never, rotary: 0.5, beyond: TURNED_OTHERWISE, ..LLAMA },
    Family {
        name: "glm4_moe",
        output_bias: Bias::Never,
        rotary: 0.5,
        experts: EVENED_EXPERTS,
        beyond: ROUTED_OTHERWISE,
        ..LLAMA
    },
    Family { name: "cohere", norms: ONE, tied: true, beyond: SIDE_BY_SIDE, ..LLAMA },
    Family { name: "cohere2", norms: ONE, tied: true, beyond: SIDE_BY_SIDE, ..LLAMA },
    Family { name: "granite", beyond: MULTIPLIERS, ..LLAMA },
    Family { name: "minicpm", tied: true, beyond: MULTIPLIERS, ..LLAMA },
    // Norms of all heads together: a few thousand weights more than those of each head.
    Family { name: "olmo2", query_key_norm: true, beyond: NORMED_AFTER, ..LLAMA },
    // Every fourth layer turns nothing.
    Family { name: "smollm3", tied: true, beyond: TURNED_OTHERWISE, ..LLAMA },
    Family {
        name: "internlm2",
        beyond: Some("its checkpoints join queries, keys and values in an order of their own"),
        ..LLAMA
    },
    Family { name: "baichuan", beyond: Some("its head is normed"), ..LLAMA },
    Family { name: "dbrx", experts: EXPERTS, beyond: ROUTED_OTHERWISE, ..LLAMA },
    Family { name: "starcoder2", tied: true, beyond: Some("its layers have biases of their own"), ..CLASSIC },
    Family {
        name: "falcon",
        norms: Norms { per_layer: 1, bias: true },
        input_bias: Bias::Never,
        output_bias: Bias::Never,
        inner_bias: Bias::Never,
        tied: true,
        beyond: SIDE_BY_SIDE,
        ..CLASSIC
    },
    Family {
        name: "gptj",
        norms: Norms { per_layer: 1, bias: true },
        input_bias: Bias::Never,
        output_bias: Bias::Never,
        head_bias: true,
        beyond: SIDE_BY_SIDE,
        ..CLASSIC
    },
    Family { name: "opt", tied: true, beyond: POSITIONS, ..CLASSIC },
    Family { name: "gpt2", tied: true, beyond: POSITIONS, ..CLASSIC },
];

impl Family {
    /// The family called `name`.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// The names of all.
    pub(super) fn names() -> impl Iterator<Item = &'static str> + Clone {
        FAMILIES.iter().map(|family| family.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Model,
        model::{AttentionLayer, FeedForward, Layer},
    };

    fn layers(model: &str) -> Vec<Layer> {
        Model::find(model).unwrap().layers
    }

    fn window(layer: &Layer) -> Option<u64> {
        match layer.attention {
            AttentionLayer::Grouped { window, .. } => window.map(crate::Dim::get),
            AttentionLayer::Latent { .. } => None,
        }
    }

    #[test]
    fn names_are_unique() {
        for (at, family) in FAMILIES.iter().enumerate() {
            assert_eq!(FAMILIES.iter().position(|other| other.name == family.name), Some(at), "{}", family.name);
        }
    }

    /// 48 layers: 36 see a chunk of 8192 tokens and 12 all of them; in Maverick every other layer has experts.
    #[test]
    fn llama_4_cuts_its_context_and_mixes_layers() {
        let scout = layers("llama-4-scout");
        let seen: Vec<_> = scout.iter().map(|layer| (layer.count, window(layer))).collect();
        assert_eq!(seen, [(36, Some(8192)), (12, None)]);
        let dense = |layer: &&Layer| matches!(layer.feed_forward, FeedForward::Dense { .. });
        assert_eq!(scout.iter().filter(dense).count(), 0);
        let maverick = layers("llama-4-maverick");
        assert_eq!(maverick.iter().filter(dense).map(|layer| layer.count).sum::<u64>(), 24);
        for layer in &maverick {
            match layer.feed_forward {
                FeedForward::Dense { inner, .. } => assert_eq!(inner.get(), 16_384),
                FeedForward::Experts { inner, shared, active, .. } => {
                    assert_eq!((inner.get(), shared.map(crate::Dim::get), active.get()), (8192, Some(8192), 1));
                }
            }
        }
    }

    /// Command R7B has a full layer after three with windows; Command R runs attention and feed-forward side by side.
    #[test]
    fn cohere_has_one_norm_and_two_kinds_of_layer() {
        let seen: Vec<_> = layers("command-r7b").iter().map(|layer| (layer.count, window(layer))).collect();
        assert_eq!(seen, [(24, Some(4096)), (8, None)]);
        assert_eq!(Model::find("command-r").unwrap().norms, ONE);
    }

    /// What is only predicted says why it does not run.
    #[test]
    fn what_is_not_described_is_said() {
        assert_eq!(Model::find("llama-3-8b").unwrap().arithmetic.beyond, None);
        for model in ["granite-3.1-8b", "olmo-2-7b", "opt-13b", "falcon-7b", "command-r", "llama-4-scout", "dbrx"] {
            assert!(Model::find(model).unwrap().arithmetic.beyond.is_some_and(|why| why.len() > 8), "{model}");
        }
    }
}
