//! How positions turn the heads: what `config.json` says in either of its dialects, and llama.cpp's words for it.
//!
//! transformers 4 has `rope_theta` and, for stretched contexts, `rope_scaling`; transformers 5 has both in
//! `rope_parameters`. Older files say `type` for `rope_type`.

use std::f64::consts::TAU;

use serde_json::Value as Json;

use super::Value;

/// How positions turn the heads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    /// The base of the frequencies.
    base: Option<f64>,
    scaling: Scaling,
}

/// How a context is stretched beyond the one that was trained.
#[derive(Clone, Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn { factor: f64, context: u64, extra: Vec<(&'static str, f64)> },
    Llama3 { factor: f64, low: f64, high: f64, context: f64 },
}

impl Rope {
    /// What the configuration says.
    pub(super) fn new(config: &Json) -> Result<Self, String> {
        let parameters = ["rope_parameters", "rope_scaling"].iter().map(|key| &config[*key]).find(|of| of.is_object());
        let parameters = parameters.unwrap_or(&Json::Null);
        let number = |key: &str| parameters[key].as_f64();
        let base = number("rope_theta").or_else(|| config["rope_theta"].as_f64());
        let kind = parameters["rope_type"].as_str().or_else(|| parameters["type"].as_str()).unwrap_or("default");
        let factor = || number("factor").ok_or_else(|| format!("has the rope type `{kind}` without a factor"));
        let context = parameters["original_max_position_embeddings"]
            .as_u64()
            .or_else(|| config["original_max_position_embeddings"].as_u64());
        let scaling = match kind {
            "default" => Scaling::None,
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
        Ok(Self { base, scaling })
    }

    /// The keys of the metadata, without the architecture's name.
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        let mut keys = Vec::new();
        let mut push = |key: &str, value: Value| keys.push((format!("rope.{key}"), value));
        match &self.scaling {
            Scaling::None | Scaling::Llama3 { .. } => {}
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
        if let Some(base) = self.base {
            push("freq_base", Value::F32(base as f32));
        }
        keys
    }

    /// What each frequency is divided by, for Llama 3's way of stretching, which llama.cpp stores as a tensor: one
    /// where the wave is short, `factor` where it is longer than the trained context, and in between
    /// `1 / ((1 - s) / factor + s)`, `s` falling from one to zero.
    pub(super) fn factors(&self, head_dim: usize) -> Option<Vec<f32>> {
        let Scaling::Llama3 { factor, low, high, context } = self.scaling else { return None };
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
        Some(factors.collect())
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
        assert_eq!(Rope::new(&four), Rope::new(&five));
        let expected = [
            ("rope.scaling.type".to_owned(), "linear".into()),
            ("rope.scaling.factor".to_owned(), Value::F32(2.0)),
            ("rope.freq_base".to_owned(), Value::F32(5e5)),
        ];
        assert_eq!(Rope::new(&five).unwrap().metadata(), expected);
        let plain = json!({"rope_theta": 1e4, "rope_scaling": null});
        assert_eq!(
            Rope::new(&plain),
            Rope::new(&json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}))
        );
    }

    #[test]
    fn llama3_stretches_long_waves_only() {
        let rope = Rope::new(&json!({"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}))
        .unwrap();
        let factors = rope.factors(128).unwrap();
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
            json!({"rope_scaling": {"rope_type": "linear"}}),
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ] {
            assert!(Rope::new(&config).is_err(), "{config}");
        }
    }
}
