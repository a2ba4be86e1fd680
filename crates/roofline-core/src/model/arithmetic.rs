//! What a model computes beyond its dimensions: which function, which epsilon, which angles. Predictions do not need it,
//! whoever runs the model does.

use serde_json::Value;

/// Functions and constants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Arithmetic {
    /// The function of its feed-forward blocks.
    pub activation: Activation,
    /// What norms add to a mean square before they divide by its root.
    pub norm_epsilon: f64,
    /// Whether norms multiply by one plus their weight (Gemma).
    pub norm_plus_one: bool,
    /// What token vectors are multiplied by (Gemma: the root of the width).
    pub embedding_scale: f64,
    /// What scores are multiplied by; none where it is the root of a head's width.
    pub attention_scale: Option<f64>,
    /// Where scores of attention are bent: `cap tanh(score / cap)`.
    pub score_cap: Option<f64>,
    /// The same of logits.
    pub logit_cap: Option<f64>,
    /// How queries and keys are turned.
    pub rope: Rope,
    /// The same in sliding-window layers, where they differ.
    pub window_rope: Option<Rope>,
    /// How experts are weighed.
    pub routing: Routing,
    /// What of it is not described here, where something is not: such a model can be predicted, but not run.
    pub beyond: Option<&'static str>,
}

/// An activation function.
#[derive(Clone, Debug, PartialEq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// gpt-oss: both halves clamped to `limit`, `(up + 1) gate / (1 + e^(-1.702 gate))`.
    ClampedSwish {
        /// The largest gate, and the largest magnitude of the other half.
        limit: f64,
    },
    /// One that is not known, by its name.
    Unknown(String),
}

/// How the experts of a token are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// A softmax over the chosen.
    OfChosen,
    /// A softmax over all, of which the chosen keep their part.
    OfAll,
}

/// Rotary positions (Su et al., arXiv 2104.09864).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub base: f64,
    /// How they are stretched for longer contexts than the model was trained with.
    pub scaling: Scaling,
}

/// A way to stretch rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// All alike.
    Linear {
        /// By how much.
        factor: f64,
    },
    /// Llama 3.1: long waves alone.
    Llama3 {
        /// By how much.
        factor: f64,
        /// Waves longer than the context over this are stretched fully.
        low: f64,
        /// Waves shorter than the context over this are not.
        high: f64,
        /// The context it was trained with.
        context: f64,
    },
    /// YaRN (Peng et al., arXiv 2309.00071).
    Yarn {
        /// By how much.
        factor: f64,
        /// The context it was trained with.
        context: f64,
        /// Turns in that context above which a wave stays.
        fast: f64,
        /// Turns below which it is stretched fully.
        slow: f64,
        /// Whether the borders are whole frequencies.
        whole: bool,
        /// What queries and keys are multiplied by.
        attention: f64,
    },
    /// LongRoPE (Ding et al., arXiv 2402.13753): a factor for each frequency, one list for long contexts and one for short.
    Long {
        /// For contexts beyond the trained one.
        long: Vec<f64>,
        /// For all others.
        short: Vec<f64>,
        /// The context it was trained with.
        context: f64,
        /// What queries and keys are multiplied by.
        attention: f64,
    },
    /// One that is not known, by its name.
    Unknown(String),
}

impl Rope {
    /// What a configuration says: at the top, or in `rope_scaling` or `rope_parameters`.
    fn of(config: &Value, parameters: &Value, base: f64) -> Self {
        let number = |key: &str| parameters[key].as_f64();
        let base = number("rope_theta").or_else(|| config["rope_theta"].as_f64()).unwrap_or(base);
        let kind = parameters["rope_type"].as_str().or_else(|| parameters["type"].as_str()).unwrap_or("default");
        let most = config["max_position_embeddings"].as_f64();
        let context =
            number("original_max_position_embeddings").or_else(|| config["original_max_position_embeddings"].as_f64());
        let list = |key: &str| {
            parameters[key].as_array().map(|list| list.iter().filter_map(Value::as_f64).collect::<Vec<f64>>())
        };
        let scaling = match kind {
            "default" | "mrope" => Scaling::None,
            "linear" => number("factor")
                .map_or(Scaling::Unknown("linear without a factor".to_owned()), |factor| Scaling::Linear { factor }),
            "llama3" => Scaling::Llama3 {
                factor: number("factor").unwrap_or(8.0),
                low: number("low_freq_factor").unwrap_or(1.0),
                high: number("high_freq_factor").unwrap_or(4.0),
                context: context.unwrap_or(8192.0),
            },
            "yarn" => {
                let context = context.or(most).unwrap_or(4096.0);
                let factor = number("factor").or(most.map(|most| most / context)).unwrap_or(1.0);
                let spread = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
                let attention =
                    number("attention_factor").unwrap_or_else(|| match (number("mscale"), number("mscale_all_dim")) {
                        (Some(one), Some(all)) => spread(one) / spread(all),
                        _ => spread(1.0),
                    });
                Scaling::Yarn {
                    factor,
                    context,
                    fast: number("beta_fast").unwrap_or(32.0),
                    slow: number("beta_slow").unwrap_or(1.0),
                    whole: parameters["truncate"].as_bool().unwrap_or(true),
                    attention,
                }
            }
            "longrope" | "su" => match (list("long_factor"), list("short_factor"), context) {
                (Some(long), Some(short), Some(context)) => {
                    let factor = number("factor").or(most.map(|most| most / context)).unwrap_or(1.0);
                    let spread = if factor > 1.0 { (1.0 + factor.ln() / context.ln()).sqrt() } else { 1.0 };
                    Scaling::Long { long, short, context, attention: number("attention_factor").unwrap_or(spread) }
                }
                _ => Scaling::Unknown("longrope without its lists".to_owned()),
            },
            other => Scaling::Unknown(other.to_owned()),
        };
        Self { base, scaling }
    }

    /// How far each pair of `width` rotated features turns per position, and what queries and keys are multiplied by, in a
    /// context of up to `context` tokens; none where the scaling is not known or has lists of another length.
    pub fn frequencies(&self, width: usize, context: usize) -> Option<(Vec<f64>, f64)> {
        let pairs = width / 2;
        let exponent = |at: usize| 2.0 * at as f64 / width as f64;
        let plain: Vec<f64> = (0..pairs).map(|at| self.base.powf(-exponent(at))).collect();
        Some(match &self.scaling {
            Scaling::None => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|one| one / factor).collect(), 1.0),
            Scaling::Llama3 { factor, low, high, context } => {
                let stretched = |one: &f64| {
                    let wave = std::f64::consts::TAU / one;
                    if wave < context / high {
                        *one
                    } else if wave > context / low {
                        one / factor
                    } else {
                        let smooth = (context / wave - low) / (high - low);
                        (1.0 - smooth) * one / factor + smooth * one
                    }
                };
                (plain.iter().map(stretched).collect(), 1.0)
            }
            Scaling::Yarn { factor, context, fast, slow, whole, attention } => {
                let border = |turns: f64| {
                    let ratio = context / (turns * std::f64::consts::TAU);
                    width as f64 * ratio.ln() / (2.0 * self.base.ln())
                };
                let (mut low, mut high) = (border(*fast), border(*slow));
                if *whole {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(width as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let stretched = |(at, one): (usize, &f64)| {
                    let ramp = ((at as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    one / factor * ramp + one * (1.0 - ramp)
                };
                (plain.iter().enumerate().map(stretched).collect(), *attention)
            }
            Scaling::Long { long, short, context: trained, attention } => {
                let factors = if context as f64 > *trained { long } else { short };
                if factors.len() != pairs || factors.iter().any(|factor| *factor <= 0.0) {
                    return None;
                }
                (plain.iter().zip(factors).map(|(one, factor)| one / factor).collect(), *attention)
            }
            Scaling::Unknown(_) => return None,
        })
    }
}

impl Arithmetic {
    /// What a configuration of that family says, and what its configuration class fills in (transformers 5).
    pub(super) fn of(config: &Value, family: &str, hidden: u64) -> Self {
        let number = |key: &str| config[key].as_f64();
        let gemma = family.starts_with("gemma");
        let name = config["hidden_activation"]
            .as_str()
            .or_else(|| config["hidden_act"].as_str().filter(|_| family != "gemma"));
        let usual = match family {
            "phi" => "gelu_new",
            _ if gemma => "gelu_pytorch_tanh",
            _ => "silu",
        };
        let activation = match name.unwrap_or(usual) {
            _ if family == "gpt_oss" => Activation::ClampedSwish { limit: number("swiglu_limit").unwrap_or(7.0) },
            "silu" | "swish" => Activation::Silu,
            "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Activation::GeluTanh,
            "gelu" => Activation::Gelu,
            other => Activation::Unknown(other.to_owned()),
        };
        let epsilon = match family {
            "phi" | "phi3" | "gpt_oss" | "mixtral" => 1e-5,
            _ => 1e-6,
        };
        let base = match family {
            "gpt_oss" => 150_000.0,
            "gemma3" | "gemma3_text" | "mixtral" => 1e6,
            _ => 1e4,
        };
        let parameters = ["rope_parameters", "rope_scaling"].map(|key| &config[key]);
        let parameters = parameters.into_iter().find(|found| found.is_object()).unwrap_or(&Value::Null);
        let two = parameters["full_attention"].is_object();
        let full = if two { &parameters["full_attention"] } else { parameters };
        let window_rope = match family {
            _ if two => Some(Rope::of(&Value::Null, &parameters["sliding_attention"], 1e4)),
            "gemma3" | "gemma3_text" => {
                Some(Rope { base: number("rope_local_base_freq").unwrap_or(1e4), scaling: Scaling::None })
            }
            _ => None,
        };
        let of_all = family == "qwen3_moe" && config["norm_topk_prob"] != true;
        Self {
            activation,
            norm_epsilon: number("rms_norm_eps").or_else(|| number("layer_norm_eps")).unwrap_or(epsilon),
            norm_plus_one: gemma,
            embedding_scale: if gemma { (hidden as f64).sqrt() } else { 1.0 },
            attention_scale: number("query_pre_attn_scalar")
                .filter(|_| gemma && family != "gemma")
                .map(|one| one.powf(-0.5)),
            score_cap: number("attn_logit_softcapping").filter(|_| family == "gemma2"),
            logit_cap: number("final_logit_softcapping").filter(|_| gemma),
            rope: Rope::of(config, full, base),
            window_rope,
            routing: if of_all { Routing::OfAll } else { Routing::OfChosen },
            beyond: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn llama3_stretches_long_waves_only() {
        let config = json!({"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}});
        let rope = Arithmetic::of(&config, "llama", 4096).rope;
        let (scaled, factor) = rope.frequencies(128, 100).unwrap();
        let plain = |at: i32| 500_000f64.powf(-f64::from(at) / 64.0);
        // Waves of 2 pi 500000^(i / 64): at 28 it is 1956, below 8192 / 4; at 35 it is 8215, above 8192.
        assert_eq!((scaled[28], scaled[35], factor), (plain(28), plain(35) / 8.0, 1.0));
        // In between, at 29: 2401, so s = (8192 / 2401 - 1) / 3 = 0.804.
        assert!((scaled[29] / plain(29) - (0.1959 / 8.0 + 0.8041)).abs() < 1e-3);
    }

    /// gpt-oss: 32 times 4096, borders that are no whole numbers; 0.1 ln 32 + 1 = 1.3466.
    #[test]
    fn yarn_keeps_fast_waves_and_stretches_slow_ones() {
        let config = json!({"rope_theta": 150_000.0, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}});
        let rope = Arithmetic::of(&config, "gpt_oss", 2880).rope;
        let (scaled, factor) = rope.frequencies(64, 100).unwrap();
        let plain = |at: i32| 150_000f64.powf(-f64::from(at) / 32.0);
        assert_eq!((scaled[0], scaled[8]), (1.0, plain(8)));
        assert!((scaled[31] * 32.0 / plain(31) - 1.0).abs() < 1e-12);
        assert!((factor - 1.3466).abs() < 1e-4);
        // Borders at 64 ln(4096 / (2 pi b)) / (2 ln 150000): 8.09 and 17.40.
        assert!(scaled[9] < plain(9) && scaled[17] > plain(17) / 32.0);
    }

    /// Phi-3 with a context of 128k from 4k: sqrt(1 + ln 32 / ln 4096) = 1.1902.
    #[test]
    fn long_contexts_have_two_lists() {
        let config = json!({"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.5]}});
        let rope = Arithmetic::of(&config, "phi3", 64).rope;
        let (short, factor) = rope.frequencies(4, 4096).unwrap();
        let (long, _) = rope.frequencies(4, 4097).unwrap();
        assert_eq!((short[1], long[1]), (0.01 / 1.5, 0.01 / 2.0));
        assert!((factor - 1.1902).abs() < 1e-4);
        // Lists of another length than the head has pairs.
        assert!(rope.frequencies(8, 1).is_none());
    }

    #[test]
    fn families_have_their_own_constants() {
        let gemma = Arithmetic::of(
            &json!({"query_pre_attn_scalar": 144, "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0}),
            "gemma2",
            2304,
        );
        assert_eq!(
            (gemma.activation, gemma.embedding_scale, gemma.attention_scale),
            (Activation::GeluTanh, 48.0, Some(1.0 / 12.0))
        );
        assert_eq!((gemma.score_cap, gemma.logit_cap, gemma.norm_plus_one), (Some(50.0), Some(30.0), true));
        let three = Arithmetic::of(
            &json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
            "gemma3_text",
            1152,
        );
        assert_eq!(three.rope.scaling, Scaling::Linear { factor: 8.0 });
        assert_eq!(three.window_rope, Some(Rope { base: 1e4, scaling: Scaling::None }));
        let unknown = Arithmetic::of(&json!({"hidden_act": "relu2", "rope_scaling": {"type": "dynamic"}}), "llama", 64);
        assert_eq!(unknown.activation, Activation::Unknown("relu2".to_owned()));
        assert_eq!(unknown.rope.frequencies(64, 1), None);
    }
}
