//! Families of models: what their modules are called where they run, and how their experts are stored.
//!
//! A checkpoint's names are those that its makers chose, years ago perhaps. transformers renames them as it loads, and it is
//! its own names that `ignore`, `targets` and torchao's metadata are held against. The facts are those of
//! `conversion_mapping.py` and `quantizers/base.py` of transformers 5.22, one row for every family that differs; each was
//! tried by `tools/oracle/heavy/family_matrix.py`.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use crate::{
    Dtype, Error, Result,
    coding::Matrix,
    rows::{Plain, Rows, Stacked, Transposed},
    site::Site,
    stored::{Coded, Kind, Located, StoredTensor},
};

/// What sets a family apart from those whose modules are called as in their checkpoints.
struct Row {
    /// `model_type` in `config.json`.
    types: &'static [&'static str],
    /// The first that fits the start of a name is replaced.
    starts: &'static [(&'static str, &'static str)],
    /// Replaced wherever they are.
    words: &'static [(&'static str, &'static str)],
    /// How its experts lie in stacks, and whether the loader of compressed-tensors takes them apart.
    stack: Option<Stack>,
    /// What class its products are of.
    products: Products,
}

/// The class of a family's products in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Products {
    /// `nn.Linear`.
    Linear,
    /// One of its own that reads and transposes `weight` as it multiplies: codes of another name are not found, and
    /// torchao's tensors cannot be transposed.
    Own,
    /// `Conv1D`: inputs first, so that what quantizes along rows would quantize the wrong way.
    Conv1d,
}

/// Most families.
const USUAL: Row = Row { types: &[], starts: &[], words: &[], stack: None, products: Products::Linear };

/// Experts of a layer in one tensor of three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// `[experts, inputs, outputs]`, gate and way up side by side: Llama 4. transformers makes modules of them wherever weights
    /// are quantized, so they are written apart.
    SideBySide,
    /// `[experts, inputs, outputs]`, gate and way up in turns, each with a bias: gpt-oss. Nothing takes them apart.
    InTurns,
}

/// Models that see through a tower beside a language model, which once was a model with a head of its own.
const LANGUAGE_MODEL_INSIDE: &[(&str, &str)] = &[
    ("language_model.lm_head", "lm_head"),
    ("language_model.model.", "model.language_model."),
    ("language_model.", "model.language_model."),
    ("vision_tower.", "model.vision_tower."),
    ("vision_model.", "model.vision_model."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
];

const ROWS: &[Row] = &[
    Row {
        types: &[
            "llava",
            "llava_next",
            "llava_next_video",
            "llava_onevision",
            "vipllava",
            "gemma3",
            "paligemma",
            "aya_vision",
            "got_ocr2",
            "internvl",
            "mistral3",
            "aria",
            "mllama",
        ],
        starts: LANGUAGE_MODEL_INSIDE,
        ..USUAL
    },
    Row {
        types: &["qwen2_vl", "qwen2_5_vl"],
        starts: &[
            ("model.language_model.", "model.language_model."),
            ("model.visual.", "model.visual."),
            ("visual.", "model.visual."),
            ("model.", "model.language_model."),
        ],
        ..USUAL
    },
    Row { types: &["mixtral", "minimax", "minimax_m2", "phimoe"], words: &[(".block_sparse_moe.", ".mlp.")], ..USUAL },
    Row { types: &["gpt_neox"], starts: &[("embed_out", "lm_head")], ..USUAL },
    Row { types: &["falcon"], products: Products::Own, ..USUAL },
    Row {
        types: &["gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp"],
        products: Products::Conv1d,
        ..USUAL
    },
    Row { types: &["llama4", "llama4_text"], stack: Some(Stack::SideBySide), ..USUAL },
    Row { types: &["gpt_oss"], stack: Some(Stack::InTurns), ..USUAL },
];

/// The family of a model.
#[derive(Clone, Copy)]
pub(crate) struct Family(Option<&'static Row>);

impl Family {
    /// By what a configuration says.
    pub(crate) fn of(config: &Value) -> Self {
        let kind = config["model_type"].as_str();
        Self(kind.and_then(|kind| ROWS.iter().find(|row| row.types.contains(&kind))))
    }

    /// What transformers calls a module, or a weight, that its checkpoint calls `name`.
    pub(crate) fn module(self, name: &str) -> Cow<'_, str> {
        let Some(row) = self.0 else { return Cow::Owned(name.to_owned()) };
        let start = row.starts.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        let renamed = start.unwrap_or_else(|| name.to_owned());
        Cow::Owned(row.words.iter().fold(renamed, |name, (from, to)| name.replace(from, to)))
    }

    /// The checkpoint's name, and that of the module where it is another.
    pub(crate) fn names(self, name: &str) -> Vec<String> {
        let module = self.module(name).into_owned();
        if module == name { vec![module] } else { vec![name.to_owned(), module] }
    }

    /// What class its products are of.
    pub(crate) fn products(self) -> Products {
        self.0.unwrap_or(&USUAL).products
    }

    /// How its experts lie in stacks.
    pub(crate) fn stack(self) -> Option<Stack> {
        self.0.and_then(|row| row.stack)
    }
}

/// Experts in stacks of which every half holds gates or ways up, one by one.
pub(crate) fn apart<'a>(stored: &StoredTensor<'a>, site: &Site) -> Result<Vec<StoredTensor<'a>>> {
    let refuse = |stored: &StoredTensor<'_>| Err(stored.refuse(format!("has the shape {:?}", stored.shape), None));
    let Kind::Plain(located) = &stored.kind else {
        return Err(stored.refuse("is a stack of experts in codes, which is not taken apart", None));
    };
    let [experts, inputs, outputs] = stored.shape[..] else { return refuse(stored) };
    let Some((before, last)) = site.module.rsplit_once('.') else { return refuse(stored) };
    let parts: &[&str] = if last == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &[last] };
    if !outputs.is_multiple_of(parts.len()) {
        return refuse(stored);
    }
    let rows = outputs / parts.len();
    let matrix = Matrix { rows, columns: inputs };
    let mut all = Vec::with_capacity(experts * parts.len());
    for expert in 0..experts {
        for (at, part) in parts.iter().enumerate() {
            let first = expert * inputs * outputs + at * rows;
            let plain = Plain::within(located.0, located.1, matrix, first, 1, outputs)?;
            all.push(StoredTensor {
                name: format!("{before}.{expert}.{part}.weight"),
                shape: vec![rows, inputs],
                dtype: stored.dtype,
                kind: Kind::Within(plain, *located),
            });
        }
    }
    Ok(all)
}

/// The same the other way round: experts that lie one by one, in the stacks that a plain checkpoint of the family has.
/// What is no expert stays as it is; a stack with a hole is refused.
pub(crate) fn together(all: Vec<StoredTensor<'_>>) -> Result<Vec<StoredTensor<'_>>> {
    let mut rest = Vec::new();
    let mut layers: BTreeMap<String, BTreeMap<usize, BTreeMap<&'static str, StoredTensor<'_>>>> = BTreeMap::new();
    for stored in all {
        match numbered(&stored.name) {
            Some((before, expert, part)) => {
                layers.entry(before).or_default().entry(expert).or_default().insert(part, stored);
            }
            None => rest.push(stored),
        }
    }
    for (before, experts) in layers {
        let (mut both, mut down) = (Vec::new(), Vec::new());
        for (at, (expert, mut parts)) in experts.into_iter().enumerate() {
            let mut take = |part| {
                let reason = || "is not there, and the experts of its layer go into one stack".to_owned();
                let name = || format!("{before}.{at}.{part}.weight");
                parts.remove(part).filter(|_| at == expert).ok_or_else(|| Error::Weight {
                    name: name(),
                    reason: reason(),
                    hint: None,
                })
            };
            both.push((take("gate_proj")?, take("up_proj")?));
            down.push(take("down_proj")?);
        }
        rest.push(stack(format!("{before}.gate_up_proj"), both, |(gate, up)| {
            let parts = [gate.first(), up.first()];
            let dtype = gate.dtype;
            Ok((dtype, parts.to_vec(), Box::new(Transposed(Stacked::of(vec![gate.into_rows()?, up.into_rows()?])))))
        })?);
        rest.push(stack(format!("{before}.down_proj"), down, |down| {
            Ok((down.dtype, vec![down.first()], Box::new(Transposed(down.into_rows()?))))
        })?);
    }
    rest.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rest)
}

/// The numbers of an expert's rows, their type and where they lie.
type ExpertRows<'a> = (Dtype, Vec<Located<'a>>, Box<dyn Rows + 'a>);

/// Matrices of equal shape as one tensor of three dimensions.
fn stack<'a, T>(name: String, all: Vec<T>, rows: impl Fn(T) -> Result<ExpertRows<'a>>) -> Result<StoredTensor<'a>> {
    let count = all.len();
    let (mut dtype, mut parts, mut matrices) = (Dtype::Bf16, Vec::new(), Vec::new());
    for one in all {
        let (own, lying, matrix) = rows(one)?;
        dtype = own;
        parts.extend(lying);
        matrices.push(matrix);
    }
    let each = matrices.first().map_or(Matrix { rows: 0, columns: 0 }, Rows::matrix);
    if matrices.iter().any(|other| other.matrix() != each) {
        let reason = "cannot be one stack: the experts of the layer have different shapes".to_owned();
        return Err(Error::Weight { name, reason, hint: None });
    }
    let coded = Coded { scheme: "experts apart".to_owned(), rows: Stacked::of(matrices), parts };
    Ok(StoredTensor { name, shape: vec![count, each.rows, each.columns], dtype, kind: Kind::Coded(coded) })
}

/// The experts' name, the number and the part of an expert that lies by itself.
pub(crate) fn numbered(name: &str) -> Option<(String, usize, &'static str)> {
    let (before, rest) = name.split_once(".experts.")?;
    let (expert, part) = rest.strip_suffix(".weight")?.split_once('.')?;
    let part = ["gate_proj", "up_proj", "down_proj"].into_iter().find(|own| *own == part)?;
    Some((format!("{before}.experts"), expert.parse().ok()?, part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn modules_are_called_as_transformers_calls_them() {
        let module = |kind: &str, name: &str| Family::of(&json!({"model_type": kind})).module(name).into_owned();
        for (kind, name, expected) in [
            ("llama", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj"),
            ("gemma3", "language_model.model.layers.3.mlp.up_proj", "model.language_model.layers.3.mlp.up_proj"),
            // As transformers 4.52 and later save it, it is right already.
            ("gemma3", "model.language_model.layers.3.mlp.up_proj", "model.language_model.layers.3.mlp.up_proj"),
            (
                "gemma3",
                "vision_tower.vision_model.encoder.layers.0.mlp.fc1",
                "model.vision_tower.vision_model.encoder.layers.0.mlp.fc1",
            ),
            ("llava", "language_model.lm_head", "lm_head"),
            ("llava", "multi_modal_projector.linear_1", "model.multi_modal_projector.linear_1"),
            ("qwen2_5_vl", "model.layers.0.self_attn.q_proj", "model.language_model.layers.0.self_attn.q_proj"),
            ("qwen2_5_vl", "visual.blocks.0.attn.qkv", "model.visual.blocks.0.attn.qkv"),
            (
                "qwen2_5_vl",
                "model.language_model.layers.0.self_attn.q_proj",
                "model.language_model.layers.0.self_attn.q_proj",
            ),
            ("qwen2_5_vl", "lm_head", "lm_head"),
            ("mixtral", "model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate"),
            ("gpt_neox", "embed_out", "lm_head"),
            (
                "llama4",
                "language_model.model.layers.0.self_attn.q_proj",
                "language_model.model.layers.0.self_attn.q_proj",
            ),
        ] {
            assert_eq!(module(kind, name), expected, "{kind} {name}");
        }
        let gemma = Family::of(&json!({"model_type": "gemma3"}));
        assert_eq!(gemma.names("language_model.lm_head"), ["language_model.lm_head", "lm_head"]);
        assert_eq!(Family::of(&json!({})).names("lm_head"), ["lm_head"]);
    }
}
