//! Weights as MLX stores them, by the names that mlx-lm gives them. All experts of a layer lie in one tensor there; here
//! each has its own name again.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Coded, Kind, Located, StoredTensor,
    codes::{Codes, matching},
    has_more, sensible,
};
use crate::{
    Checkpoint, Dtype, Method,
    coding::{Coding, Matrix, Part, mlx},
    rows::{Band, Plain},
    safetensors::Entry,
};

/// What a checkpoint says of its own codes.
pub(super) struct Declared<'c>(Option<&'c Value>);

impl<'c> Declared<'c> {
    /// What the configuration says; mlx-lm writes it twice.
    pub(super) fn of(config: &'c Value) -> Self {
        let stated = |key: &str| config.get(key).filter(|stated| stated.get("group_size").is_some());
        let own = stated("quantization_config").filter(|stated| stated.get("quant_method").is_none());
        Self(stated("quantization").or(own))
    }

    /// The scheme of a module; by the types and shapes alone where a mode has no other.
    fn scheme(&self, module: &str, codes: &Entry, scales: &Entry) -> Option<mlx::Scheme> {
        let (words, groups) = (*codes.shape.last()?, *scales.shape.last()?);
        if scales.dtype == Dtype::U8 {
            return match words.checked_div(groups)? {
                4 => Some(mlx::Scheme::Mxfp4),
                8 => Some(mlx::Scheme::Mxfp8),
                2 => Some(mlx::Scheme::Nvfp4),
                _ => None,
            };
        }
        let terms = |stated: &Value| {
            let mode = stated.get("mode").and_then(Value::as_str).unwrap_or("affine");
            mlx::Scheme::of_terms(stated.get("group_size")?.as_u64()?, stated.get("bits")?.as_u64()?, mode)
        };
        let all = self.0?;
        all.get(module).filter(|own| own.is_object()).map_or_else(|| terms(all), terms)
    }
}

/// The weight of a module, or of all experts that are one module, if its tensors are those that the scheme would give.
pub(super) fn weights<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    declared: &Declared<'_>,
) -> Vec<StoredTensor<'a>> {
    believed(module, tensors, declared).unwrap_or_default()
}

fn believed<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    declared: &Declared<'_>,
) -> Option<Vec<StoredTensor<'a>>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let ((_, codes), (_, scales)) = (find("weight")?, find("scales")?);
    // One scale for each expert's whole, which no scheme here has.
    if codes.dtype != Dtype::U32 || find("global_scale").is_some() {
        return None;
    }
    let scheme = declared.scheme(module, codes, scales)?;
    let (group, ..) = scheme.terms();
    let columns = scales.shape.last()?.checked_mul(group as usize)?;
    let (experts, rows) = match codes.shape[..] {
        [rows, _] => (None, rows),
        [experts, rows, _] => (Some(experts), rows),
        _ => return None,
    };
    if !sensible(rows) || !sensible(columns) || experts.is_some_and(|experts| !sensible(experts)) {
        return None;
    }
    // Scales without a type of numbers say nothing of the model's.
    let dtype = if matches!(scales.dtype, Dtype::F16 | Dtype::F32) { scales.dtype } else { Dtype::Bf16 };
    let all = Matrix { rows: rows.checked_mul(experts.unwrap_or(1)).filter(|all| sensible(*all))?, columns };
    let codes = || {
        let coding = mlx::coding(scheme, dtype, Method::Rtn).ok()?;
        let flat = Matrix { rows, columns };
        let mut parts = matching_stack(&*coding, flat, experts, find)?;
        for ((part, _), own) in parts.iter_mut().zip(coding.parts(all).ok()?) {
            *part = own;
        }
        Some(Codes { matrix: all, coding, parts })
    };
    let first = codes()?;
    if has_more(module, tensors, &first.parts) {
        return None;
    }
    let Some(experts) = experts else {
        return Some(vec![StoredTensor::coded(format!("{module}.weight"), dtype, scheme.to_string(), first)]);
    };
    let name = Names::of(module)?;
    let of = |expert: usize| {
        let codes = codes()?;
        let parts = codes.parts.iter().map(|(_, located)| *located).collect();
        let rows_of = Box::new(Band::new(codes, expert * rows, rows));
        let kind = Kind::Coded(Coded { scheme: scheme.to_string(), rows: rows_of, parts });
        Some(StoredTensor { name: name.of_expert(expert), shape: vec![rows, columns], dtype, kind })
    };
    (0..experts).map(of).collect()
}

/// The parts of a matrix, each with the experts as its first dimension where there are any.
fn matching_stack<'a>(
    coding: &dyn Coding,
    matrix: Matrix,
    experts: Option<usize>,
    find: impl Fn(&str) -> Option<Located<'a>>,
) -> Option<Vec<(Part, Located<'a>)>> {
    let Some(experts) = experts else { return matching(coding, matrix, find) };
    let found = coding.parts(matrix).ok()?.into_iter().map(|part| {
        let (shard, entry) = find(part.name)?;
        let stacked = entry.shape.split_first().is_some_and(|(first, rest)| *first == experts && *rest == part.shape);
        (entry.dtype == part.dtype && stacked).then_some((part, (shard, entry)))
    });
    found.collect()
}

/// What the experts of a stack are called apart.
struct Names {
    start: String,
    projection: &'static str,
}

impl Names {
    /// From `M.switch_mlp.gate_proj`: Mixtral's have names of their own.
    fn of(module: &str) -> Option<Self> {
        let (start, last) = module.rsplit_once(".switch_mlp.")?;
        let projection = match (last, start.ends_with("block_sparse_moe")) {
            ("gate_proj", true) => "w1",
            ("down_proj", true) => "w2",
            ("up_proj", true) => "w3",
            ("gate_proj", false) => "gate_proj",
            ("down_proj", false) => "down_proj",
            ("up_proj", false) => "up_proj",
            _ => return None,
        };
        Some(Self { start: start.to_owned(), projection })
    }

    fn of_expert(&self, expert: usize) -> String {
        format!("{}.experts.{expert}.{}.weight", self.start, self.projection)
    }
}

/// Whether MLX wrote a checkpoint: its files say so, or its configuration.
pub(super) fn is_mlx(checkpoint: &Checkpoint, declared: &Declared<'_>) -> bool {
    let metadata = checkpoint.shards.iter().flat_map(|shard| &shard.header.metadata);
    declared.0.is_some() || metadata.into_iter().any(|(key, text)| key == "format" && text == "mlx")
}

/// The experts of a stack of plain numbers, if it is one.
pub(super) fn plain_experts((shard, entry): Located<'_>) -> Option<Vec<StoredTensor<'_>>> {
    let names = Names::of(entry.name.strip_suffix(".weight")?)?;
    let [experts, rows, columns] = entry.shape[..] else { return None };
    let matrix = Matrix { rows, columns };
    let of = |expert: usize| {
        let first = expert.checked_mul(rows.checked_mul(columns)?)?;
        let plain = Plain::within(shard, entry, matrix, first, columns, 1).ok()?;
        let kind = Kind::Within(plain, (shard, entry));
        Some(StoredTensor { name: names.of_expert(expert), shape: vec![rows, columns], dtype: entry.dtype, kind })
    };
    // A file without data can claim any number of experts.
    Some(experts).filter(|experts| *experts as u64 <= entry.bytes()).and_then(|experts| (0..experts).map(of).collect())
}
