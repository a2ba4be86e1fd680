//! Weights as bitsandbytes stores them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Located, StoredTensor,
    codes::{Codes, matching},
    has_more, sensible,
};
use crate::{
    Dtype, Result,
    coding::{
        Coding, Matrix,
        bitsandbytes::{Blocks, Int8, Quantiles, Scheme, State},
    },
};

/// The longest description of a weight.
const LONGEST_STATE: u64 = 4096;

/// The weight whose description has that name, if it is one and its tensors are those that it describes.
pub(super) fn four<'a>(name: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Result<Option<StoredTensor<'a>>> {
    let of = |quantiles: &Quantiles| Some((*quantiles, name.strip_suffix(quantiles.state())?.strip_suffix('.')?));
    let Some((quantiles, module)) = Quantiles::ALL.iter().find_map(of) else { return Ok(None) };
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let Some((shard, entry)) = find(quantiles.state()).filter(|(_, entry)| entry.bytes() <= LONGEST_STATE) else {
        return Ok(None);
    };
    let mut bytes = vec![0; entry.bytes() as usize];
    shard.read(entry, 0, &mut bytes)?;
    let state = serde_json::from_slice::<State>(&bytes).ok().filter(|state| state.is_known(quantiles));
    let (Some(state), Some((_, codes))) = (state, find("weight")) else { return Ok(None) };
    let [rows, columns] = state.shape[..] else { return Ok(None) };
    let storage = codes.dtype;
    if !sensible(rows) || !sensible(columns) || !matches!(storage, Dtype::U8 | Dtype::Bf16 | Dtype::F16 | Dtype::F32) {
        return Ok(None);
    }
    let dtype = named(&state.dtype);
    let scheme = Scheme::Four { quantiles, double: state.nested_blocksize.is_some() };
    let coding = Blocks::described(&state, quantiles, columns, storage, bytes.len(), dtype);
    Ok(believed(module, tensors, dtype, scheme, Matrix { rows, columns }, Box::new(coding)))
}

/// The weight of a module in LLM.int8().
pub(super) fn int8<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    config: &Value,
) -> Result<Option<StoredTensor<'a>>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let told = find("weight_format");
    if let Some((shard, entry)) = told {
        // Other ways to lay the codes out were for GPUs of old.
        let mut format = [1];
        if entry.bytes() == 1 {
            shard.read(entry, 0, &mut format)?;
        }
        if format != [0] {
            return Ok(None);
        }
    }
    let Some((_, codes)) = find("weight") else { return Ok(None) };
    let [rows, columns] = codes.shape[..] else { return Ok(None) };
    if !sensible(rows) || !sensible(columns) {
        return Ok(None);
    }
    let dtype =
        config.get("dtype").or_else(|| config.get("torch_dtype")).and_then(Value::as_str).map_or(Dtype::F16, named);
    let coding = Box::new(Int8 { told: told.is_some() });
    Ok(believed(module, tensors, dtype, Scheme::Int8, Matrix { rows, columns }, coding))
}

/// The weight, if its tensors are all that the coding would have written, and no others are there.
fn believed<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    dtype: Dtype,
    scheme: Scheme,
    matrix: Matrix,
    coding: Box<dyn Coding>,
) -> Option<StoredTensor<'a>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let parts = matching(&*coding, matrix, find).filter(|parts| !has_more(module, tensors, parts))?;
    let codes = Codes { matrix, coding, parts };
    Some(StoredTensor::coded(format!("{module}.weight"), dtype, scheme.to_string(), codes))
}

/// A type by PyTorch's name.
fn named(name: &str) -> Dtype {
    match name {
        "float16" => Dtype::F16,
        "float32" => Dtype::F32,
        _ => Dtype::Bf16,
    }
}
