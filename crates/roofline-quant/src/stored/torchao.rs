//! Weights as torchao flattens them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Located, StoredTensor,
    codes::{Codes, matching},
    has_more, sensible,
};
use crate::{
    Checkpoint, Dtype, Method,
    coding::{Matrix, torchao as ao},
    family::Family,
};

/// The weights that torchao flattened, by what the metadata says of them. Every shard says the same of all.
pub(super) fn weights<'a>(checkpoint: &Checkpoint, tensors: &BTreeMap<&str, Located<'a>>) -> Vec<StoredTensor<'a>> {
    let described: BTreeMap<&str, &str> = checkpoint
        .shards
        .iter()
        .flat_map(|shard| &shard.header.metadata)
        .filter_map(|(name, text)| Some((name.strip_suffix(".weight")?, text.as_str())))
        .collect();
    let family = Family::of(&checkpoint.config);
    let mut all = Vec::new();
    for (name, (_, codes)) in tensors {
        // What is said of a tensor goes by the name of its module.
        let Some(module) = name.strip_suffix("._weight_qdata") else { continue };
        let text = described.get(module).or_else(|| described.get(&*family.module(module)));
        let Some(Ok(described)) = text.map(|text| serde_json::from_str::<Described>(text)) else { continue };
        let find = |part: &str| tensors.get(format!("{module}._weight_{part}").as_str()).copied();
        let [rows, stored] = codes.shape[..] else { continue };
        let group = described.data.block_size.map(|[_, group]| group);
        let (scheme, columns) = match described.kind.as_str() {
            "Int8Tensor" => (ao::Scheme::Int8 { group: group.filter(|group| *group as usize != stored) }, stored),
            "Float8Tensor" => (ao::Scheme::Float8, stored),
            "IntxUnpackedToInt8Tensor" => {
                let group = group.filter(|group| *group as usize != stored);
                // Whether zero points are zero changes nothing about how they are read.
                (ao::Scheme::Intx { bits: described.data.bits(), group, zero: true }, stored)
            }
            "Int4Tensor" => (ao::Scheme::Int4 { group: group.unwrap_or(0) }, stored.saturating_mul(2)),
            _ => continue,
        };
        if !sensible(rows) || !sensible(columns) {
            continue;
        }
        let dtype = match described.data.dtype.map(|dtype| dtype.data).as_deref() {
            Some("float16") => Dtype::F16,
            Some("float32") => Dtype::F32,
            _ => Dtype::Bf16,
        };
        // Plain INT4 names the type of the activations; its scales have the model's own.
        let scale = find("scale").map(|(_, scale)| scale.dtype);
        let dtype = scale.filter(|_| matches!(scheme, ao::Scheme::Int4 { .. })).unwrap_or(dtype);
        let Ok(coding) = ao::coding(scheme, dtype, Method::Rtn) else { continue };
        let matrix = Matrix { rows, columns };
        let Some(parts) = matching(&*coding, matrix, find) else { continue };
        if !has_more(module, tensors, &parts) {
            let codes = Codes { matrix, coding, parts };
            all.push(StoredTensor::coded(format!("{module}.weight"), dtype, scheme.to_string(), codes));
        }
    }
    all
}

/// What torchao's metadata says of a weight.
#[derive(Deserialize)]
struct Described {
    #[serde(rename = "_type")]
    kind: String,
    #[serde(rename = "_data", default)]
    data: Attributes,
}

#[derive(Default, Deserialize)]
struct Attributes {
    block_size: Option<[u32; 2]>,
    #[serde(alias = "activation_dtype")]
    dtype: Option<Named>,
    target_dtype: Option<Named>,
}

impl Attributes {
    /// The width of `torch.int4` and its like.
    fn bits(&self) -> u8 {
        let name = self.target_dtype.as_ref().and_then(|dtype| dtype.data.strip_prefix("int"));
        name.and_then(|bits| bits.parse().ok()).unwrap_or(8)
    }
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "_data")]
    data: String,
}
