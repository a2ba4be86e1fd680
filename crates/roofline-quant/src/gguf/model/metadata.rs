//! The keys of a file: what llama.cpp is told of a model.

use super::{
    super::{
        Value,
        family::{From, Key, Lengths},
    },
    Model,
};

/// The version of ggml's block layouts that a quantized file declares.
pub const QUANTIZATION_VERSION: u32 = 2;
/// What the base of rotary positions is where nothing is said.
const USUAL_BASE: f64 = 10000.0;

impl Model {
    /// All the keys, in the order of llama.cpp's converter. `file_type` is its number for most of the types, `size` a word for
    /// the number of weights, [`size_label`].
    pub fn metadata(&self, file_type: u32, size: &str) -> Vec<(String, Value)> {
        let mut keys: Vec<(String, Value)> = vec![
            ("general.architecture".to_owned(), self.family.arch.into()),
            ("general.type".to_owned(), "model".into()),
            ("general.name".to_owned(), self.name.as_str().into()),
            ("general.size_label".to_owned(), size.into()),
        ];
        for key in self.family.keys.iter().flat_map(|group| group.iter()) {
            for (name, value) in self.value(key, file_type) {
                let whole = name.starts_with("general.");
                let name = if whole { name } else { format!("{}.{name}", self.family.arch) };
                // What is said later is right.
                match keys.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = value,
                    None => keys.push((name, value)),
                }
            }
        }
        keys.push(("general.quantization_version".to_owned(), Value::U32(QUANTIZATION_VERSION)));
        keys.extend(self.tokenizer.metadata().iter().cloned());
        keys
    }

    /// What a key of the table says of this model, by name.
    fn value(&self, key: &Key, file_type: u32) -> Vec<(String, Value)> {
        let config = &self.config;
        let whole = |name: &str| config[name].as_u64().and_then(|number| u32::try_from(number).ok());
        let length = Value::U32(self.shape.head_dim as u32);
        let one = match key.from {
            From::Layers => Some(Value::U32(self.names.layers as u32)),
            From::KvHeads if self.shape.latent.is_some() => Some(Value::U32(1)),
            From::KvHeads => Some(Value::U32(self.shape.kv_heads as u32)),
            From::Rotary => Some(Value::U32(self.rotary as u32)),
            From::Vocabulary => Some(Value::U32(self.tokenizer.tokens() as u32)),
            From::Rope => return self.rope.metadata(),
            From::Base => self.rope.base().filter(|base| *base != USUAL_BASE).map(|base| Value::F32(base as f32)),
            From::Lengths => {
                let given = config["head_dim"].is_u64();
                return match self.family.lengths {
                    Lengths::Given if !given => Vec::new(),
                    Lengths::Never => Vec::new(),
                    _ => {
                        ["key_length", "value_length"].map(|name| (format!("attention.{name}"), length.clone())).into()
                    }
                };
            }
            From::FileType => Some(Value::U32(file_type)),
            From::Whole(["ffn_hidden_size"]) => {
                whole("ffn_hidden_size").or_else(|| Some(whole("hidden_size")?.saturating_mul(4))).map(Value::U32)
            }
            From::Whole(names) => names.iter().find_map(|name| whole(name)).map(Value::U32),
            From::WholeOr(name, other) => Some(Value::U32(whole(name).unwrap_or(other))),
            From::Sum(a, b) => whole(a).zip(whole(b)).map(|(a, b)| Value::U32(a.saturating_add(b))),
            From::Real(names) => {
                names.iter().find_map(|name| config[*name].as_f64()).map(|number| Value::F32(number as f32))
            }
            From::RopeTenth(name) => self.rope.number(name).map(|number| Value::F32((0.1 * number) as f32)),
            From::Flag(name) => config[name].as_bool().map(Value::Bool),
            From::Yes(name) => config[name].as_bool().filter(|yes| *yes).map(Value::Bool),
            From::Scoring => match config["scoring_func"].as_str() {
                Some("softmax") => Some(Value::U32(1)),
                Some("sigmoid") => Some(Value::U32(2)),
                _ => None,
            },
            From::Text(text) => Some(text.into()),
            From::Number(number) => Some(Value::U32(number)),
        };
        one.map(|value| (key.gguf.to_owned(), value)).into_iter().collect()
    }
}

/// A word for a number of weights, `8.0B` or `8x7.2B`: all that are not experts', those of one expert, and how many
/// experts there are.
pub fn size_label(shared: u64, expert: u64, experts: usize) -> String {
    let weights = (shared + expert) as f64;
    let (scaled, unit) = match weights {
        w if w > 1e12 => (w * 1e-12, 'T'),
        w if w > 1e9 => (w * 1e-9, 'B'),
        w if w > 1e6 => (w * 1e-6, 'M'),
        w => (w * 1e-3, 'K'),
    };
    // Two digits at least.
    let decimals = if scaled.round_ties_even() >= 10.0 { 0 } else { 1 + usize::from(scaled.round_ties_even() == 0.0) };
    let size = format!("{scaled:.decimals$}{unit}");
    if experts > 0 { format!("{experts}x{size}") } else { size }
}
