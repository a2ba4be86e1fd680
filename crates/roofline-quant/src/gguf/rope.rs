//! How positions rotate the heads: what `config.json` says in either of its dialects, and llama.cpp's words for it.
//!
//! transformers 4 has `rope_theta` and, for stretched contexts, `rope_scaling`; transformers 5 has both in
//! `rope_parameters`, once for each kind of layer where there are two. Older files say `type` for `rope_type`.

use std::f64::consts::TAU;

use serde_json::Value as Json;

use super::{Array, Value};

/// How positions rotate the heads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    /// The base of the frequencies.
    base: Option<f64>,
    /// That of layers which see a window alone, where it is another.
    local: Option<f64>,
    /// How much of a head is rotated.
    share: Option<f64>,
    /// How many frequencies go by time, height and width.
    sections: Option<Vec<i32>>,
    scaling: Scaling,
    /// Everything that is said.
    parameters: Json,
}

/// How a context is stretched beyond the one that was trained.
#[derive(Clone, Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn { factor: f64, context: u64, extra: Vec<(&'static str, f64)> },
    Llama3 { factor: f64, low: f64, high: f64, context: f64 },
    Long { long: Vec<f32>, short: Vec<f32>, attention: f64 },
}

/// More frequencies than a head has.
const MOST_FREQUENCIES: usize = 1 << 16;

impl Rope {
    /// What the configuration says.
    pub(super) fn new(config: &Json) -> Result<Self, String> {
        let parameters = ["rope_parameters", "rope_scaling"].iter().map(|key| &config[*key]).find(|of| of.is_object());
        let all = parameters.unwrap_or(&Json::Null);
        let (full, local) = (&all["full_attention"], &all["sliding_attention"]);
        let parameters = if full.is_object() { full } else { all };
        let number = |key: &str| parameters[key].as_f64();
        let said = |keys: &[&str]| keys.iter().find_map(|key| config[*key].as_f64());
        let base = number("rope_theta").or_else(|| said(&["rope_theta", "rotary_emb_base"]));
        let local = local["rope_theta"].as_f64().or_else(|| said(&["rope_local_base_freq"]));
        let share = number("partial_rotary_factor").or_else(|| said(&["partial_rotary_factor", "rotary_pct"]));
        let kind = parameters["rope_type"].as_str().or_else(|| parameters["type"].as_str()).unwrap_or("default");
        let factor = || number("factor").ok_or_else(|| format!("has the rope type `{kind}` without a factor"));
        let context = parameters["original_max_position_embeddings"]
            .as_u64()
            .or_else(|| config["original_max_position_embeddings"].as_u64());
        let scaling = match kind {
            // A section for each of three positions is no stretching.
            "default" | "mrope" => Scaling::None,
            "longrope" | "su" => {
                let context =
                    context.ok_or("has the rope type `longrope` without `original_max_position_embeddings`")?;
                let scale = config["max_position_embeddings"].as_f64().unwrap_or(0.0) / context as f64;
                let attention = if scale > 1.0 { (1.0 + scale.ln() / (context as f64).ln()).sqrt() } else { 1.0 };
                let list = |key: &str| {
                    let list = parameters[key].as_array().filter(|list| list.len() <= MOST_FREQUENCIES);
                    let numbers = list.and_then(|list| list.iter().map(|one| Some(one.as_f64()? as f32)).collect());
                    numbers.ok_or_else(|| format!("has the rope type `{kind}` without a list `{key}`"))
                };
                Scaling::Long { long: list("long_factor")?, short: list("short_factor")?, attention }
            }
            "linear" => Scaling::Linear { factor: factor()? },
            "yarn" => Scaling::Yarn {
                factor: factor()?,
                context: context.ok_or("has the rope type `yarn` without `original_max_position_embeddings`")?,
                extra: [
                    ("yarn_ext_factor", number("extrapolation_factor")),
                    ("yarn_attn_factor", number("attention_factor").or_else(|| number("attn_factor"))),
                    ("yarn_beta_fast", number("beta_fast")),
                    ("yarn_beta_slow", number("beta_slow")),
                ]
                .into_iter()
                .filter_map(|(key, value)| value.map(|value| (key, value)))
                .collect(),
            },
            "llama3" => Scaling::Llama3 {
                factor: number("factor").unwrap_or(8.0),
                low: number("low_freq_factor").unwrap_or(1.0),
                high: number("high_freq_factor").unwrap_or(4.0),
                context: context.unwrap_or(8192) as f64,
            },
            other => return Err(format!("has the rope type `{other}`, which is not known")),
        };
        let sections = parameters["mrope_section"].as_array().filter(|list| list.len() <= 4);
        let sections = sections.map(|list| {
            let mut sections: Vec<i32> = list.iter().map(|one| one.as_i64().unwrap_or(0) as i32).collect();
            // Time, height, width, and one more that is free.
            sections.resize(4, 0);
            sections
        });
        Ok(Self { base, local, share, sections, scaling, parameters: parameters.clone() })
    }

    /// The base of the frequencies.
    pub(super) fn base(&self) -> Option<f64> {
        self.base
    }

    /// How much of a head is rotated, where that is said.
    pub(super) fn share(&self) -> Option<f64> {
        self.share.filter(|share| (0.0..=1.0).contains(share))
    }

    /// A number that is said of rotary positions.
    pub(super) fn number(&self, key: &str) -> Option<f64> {
        self.parameters[key].as_f64()
    }

    /// The keys of the metadata, without the architecture's name.
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        let mut keys = Vec::new();
        let mut push = |key: &str, value: Value| keys.push((format!("rope.{key}"), value));
        match &self.scaling {
            Scaling::None | Scaling::Llama3 { .. } | Scaling::Long { .. } => {}
            Scaling::Linear { factor } => {
                push("scaling.type", "linear".into());
                push("scaling.factor", Value::F32(*factor as f32));
            }
            Scaling::Yarn { factor, context, extra } => {
                push("scaling.type", "yarn".into());
                push("scaling.factor", Value::F32(*factor as f32));
                push("scaling.original_context_length", Value::U32(*context as u32));
                for (key, value) in extra {
                    push(&format!("scaling.{key}"), Value::F32(*value as f32));
                }
            }
        }
        if let Scaling::Long { attention, .. } = &self.scaling {
            push("scaling.attn_factor", Value::F32(*attention as f32));
        }
        if let Some(sections) = &self.sections {
            push("dimension_sections", Value::Array(Array::I32(sections.clone())));
        }
        if let Some(base) = self.base {
            push("freq_base", Value::F32(base as f32));
        }
        if let Some(base) = self.local {
            push("freq_base_swa", Value::F32(base as f32));
        }
        keys
    }

    /// What each frequency is divided by, which llama.cpp stores as tensors, by name. Phi's are lists, for long texts and
    /// short ones. Llama 3's are one where the wave is short, `factor` where it is longer than the trained context, and in
    /// between `1 / ((1 - s) / factor + s)`, `s` falling from one to zero.
    pub(super) fn factors(&self, head_dim: usize) -> Vec<(&'static str, Vec<f32>)> {
        let (factor, low, high, context) = match &self.scaling {
            Scaling::Llama3 { factor, low, high, context } => (*factor, *low, *high, *context),
            Scaling::Long { long, short, .. } => {
                return vec![("rope_factors_long.weight", long.clone()), ("rope_factors_short.weight", short.clone())];
            }
            _ => return Vec::new(),
        };
        let base = self.base.unwrap_or(10000.0) as f32;
        let factors = (0..head_dim).step_by(2).map(|at| {
            let frequency = 1.0 / base.powf(at as f32 / head_dim as f32);
            let wave = TAU as f32 / frequency;
            if wave < (context / high) as f32 {
                1.0
            } else if wave > (context / low) as f32 {
                factor as f32
            } else {
                let smooth = (context as f32 / wave - low as f32) / (high - low) as f32;
                1.0 / ((1.0 - smooth) / factor as f32 + smooth)
            }
        });
        vec![("rope_freqs.weight", factors.collect())]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_dialects_say_the_same() {
        let four = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}});
        let five = json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}});
        assert_eq!(Rope::new(&four).unwrap().metadata(), Rope::new(&five).unwrap().metadata());
        let expected = [
            ("rope.scaling.type".to_owned(), "linear".into()),
            ("rope.scaling.factor".to_owned(), Value::F32(2.0)),
            ("rope.freq_base".to_owned(), Value::F32(5e5)),
        ];
        assert_eq!(Rope::new(&five).unwrap().metadata(), expected);
        let plain = json!({"rope_theta": 1e4, "rope_scaling": null});
        let five = json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}});
        assert_eq!(Rope::new(&plain).unwrap().metadata(), Rope::new(&five).unwrap().metadata());
        // Gemma's two kinds of layers.
        let two = json!({"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}});
        let old = json!({"rope_theta": 1e6, "rope_local_base_freq": 1e4});
        assert_eq!(Rope::new(&two).unwrap().metadata(), Rope::new(&old).unwrap().metadata());
        assert_eq!(Rope::new(&two).unwrap().metadata().len(), 2);
    }

    /// Phi-3 with a context of 128k from 4k: sqrt(1 + ln 32 / ln 4096) = 1.1902.
    #[test]
    fn long_contexts_have_two_lists() {
        let config = json!({"max_position_embeddings": 131_072, "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.5]}});
        let rope = Rope::new(&config).unwrap();
        let [(key, Value::F32(attention))] = &rope.metadata()[..] else { panic!() };
        assert_eq!(key, "rope.scaling.attn_factor");
        assert!((attention - 1.1902).abs() < 1e-4, "{attention}");
        let lists = [("rope_factors_long.weight", vec![1.0, 2.0]), ("rope_factors_short.weight", vec![1.0, 1.5])];
        assert_eq!(rope.factors(4), lists);
    }

    #[test]
    fn llama3_stretches_long_waves_only() {
        let rope = Rope::new(&json!({"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}))
        .unwrap();
        let factors = rope.factors(128).remove(0).1;
        assert_eq!(factors.len(), 64);
        // Waves: 2 pi 500000^(i / 64). At i = 28 it is 1956 < 8192 / 4; at i = 29, 2401: s = (8192 / 2401 - 1) / 3 =
        // 0.8041, so 1 / ((1 - s) / 8 + s) = 1.207; at i = 34, 6692: s = 0.0747, 5.25; at i = 35, 8215 > 8192.
        assert_eq!((factors[0], factors[28]), (1.0, 1.0));
        assert!((factors[29] - 1.207).abs() < 0.002, "{}", factors[29]);
        assert!((factors[34] - 5.25).abs() < 0.02, "{}", factors[34]);
        assert_eq!((factors[35], factors[63]), (8.0, 8.0));
        assert_eq!(rope.metadata(), [("rope.freq_base".to_owned(), Value::F32(500_000.0))]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for config in [
            json!({"rope_scaling": {"rope_type": "longrope"}}),
            json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}, "original_max_position_embeddings": 8}),
            json!({"rope_scaling": {"rope_type": "linear"}}),
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ] {
            assert!(Rope::new(&config).is_err(), "{config}");
        }
    }
}
