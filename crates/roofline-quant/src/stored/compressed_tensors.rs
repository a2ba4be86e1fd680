//! Weights as compressed-tensors and HF's fine-grained FP8 store them.

use std::collections::BTreeMap;

use super::{
    Located, SCALE_INVERSE, StoredTensor,
    codes::{Codes, matching},
    has_more, sensible,
};
use crate::{
    Dtype, Method, Result,
    coding::{Matrix, compressed_tensors as ct},
};

/// The weight of a module as compressed-tensors stores it, if its tensors are those of a known scheme and no others.
pub(super) fn weight<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    declared: Option<u8>,
) -> Result<Option<StoredTensor<'a>>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let (packed, weight) = (find("weight_packed"), find("weight"));
    let Some((_, scale)) = find("weight_scale") else { return Ok(None) };
    let Some((_, codes)) = packed.or(weight) else { return Ok(None) };
    let [rows, stored] = codes.shape[..] else { return Ok(None) };
    let groups = match scale.shape[..] {
        [1] => 0,
        [_, groups] => groups,
        _ => return Ok(None),
    };
    let double = stored.saturating_mul(2);
    let (scheme, columns) = match (packed.is_some(), codes.dtype, scale.dtype) {
        (true, Dtype::I32, _) => {
            let Some(columns) = columns(find("weight_shape"), rows)? else { return Ok(None) };
            let Some((bits, group)) = packing(stored, columns, groups, declared) else { return Ok(None) };
            (ct::Scheme::Int { bits, group, zero: find("weight_zero_point").is_some() }, columns)
        }
        (true, Dtype::U8, Dtype::F8E4M3) => (ct::Scheme::Nvfp4, double),
        (true, Dtype::U8, Dtype::U8) => (ct::Scheme::Mxfp4, double),
        (false, Dtype::I8, _) if groups > 1 => {
            let group = stored.is_multiple_of(groups).then(|| u32::try_from(stored / groups).ok()).flatten();
            let Some(group) = group else { return Ok(None) };
            (ct::Scheme::Int4Bytes { group }, stored)
        }
        (false, Dtype::I8, _) => (ct::Scheme::Int8Channel, stored),
        (false, Dtype::F8E4M3, Dtype::Bf16 | Dtype::F16 | Dtype::F32) if groups == 0 => (ct::Scheme::Fp8Tensor, stored),
        (false, Dtype::F8E4M3, Dtype::U8) => (ct::Scheme::Mxfp8, stored),
        (false, Dtype::F8E4M3, _) if scale.shape == [rows, 1] => (ct::Scheme::Fp8Channel, stored),
        (false, Dtype::F8E4M3, _) => (ct::Scheme::Fp8Block, stored),
        _ => return Ok(None),
    };
    Ok(coded(module, tensors, scheme, Matrix { rows, columns }, scale.dtype, find))
}

/// The weight of a module in HF's fine-grained FP8: blocks of 128 x 128 as compressed-tensors has them, but for the
/// name of their scales and, most often, their type.
pub(super) fn fine_grained<'a>(module: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Option<StoredTensor<'a>> {
    let find = |part: &str| {
        let part = if part == "weight_scale" { SCALE_INVERSE } else { part };
        tensors.get(format!("{module}.{part}").as_str()).copied()
    };
    let ((_, codes), (_, scale)) = (find("weight")?, find("weight_scale")?);
    let [rows, columns] = codes.shape[..] else { return None };
    coded(module, tensors, ct::Scheme::Fp8Block, Matrix { rows, columns }, scale.dtype, find)
}

/// A weight of that scheme, if the tensors that `find` finds are all of it.
fn coded<'a>(
    module: &str,
    tensors: &BTreeMap<&str, Located<'a>>,
    scheme: ct::Scheme,
    matrix: Matrix,
    scale: Dtype,
    find: impl Fn(&str) -> Option<Located<'a>>,
) -> Option<StoredTensor<'a>> {
    if !sensible(matrix.rows) || !sensible(matrix.columns) {
        return None;
    }
    // Block scales have no type of the model's; what they decode to does not depend on it.
    let dtype = if matches!(scale, Dtype::F16 | Dtype::F32) { scale } else { Dtype::Bf16 };
    let coding = ct::coding(scheme, dtype, Method::Rtn).ok()?;
    let parts = matching(&*coding, matrix, find).filter(|parts| !has_more(module, tensors, parts))?;
    let codes = Codes { matrix, coding, parts };
    Some(StoredTensor::coded(format!("{module}.weight"), dtype, scheme.to_string(), codes))
}

/// The width of integers that a configuration declares, where it declares one for all.
pub(super) fn declared_bits(config: &serde_json::Value) -> Option<u8> {
    let groups = config.get("quantization_config")?.get("config_groups")?.as_object()?;
    let mut bits = groups.values().map(|group| group.get("weights")?.get("num_bits")?.as_u64());
    let first = bits.next()??;
    bits.all(|other| other == Some(first)).then(|| u8::try_from(first).ok()).flatten()
}

/// The width of packed integers and how many share a scale, from how many words and scales a row has. Widths other than
/// 4 and 8 are not known, and a row so short that it could be of either is what the configuration declares.
fn packing(words: usize, columns: usize, groups: usize, declared: Option<u8>) -> Option<(u8, Option<u32>)> {
    let bits = match (words == columns.div_ceil(8), words == columns.div_ceil(4)) {
        (true, false) => 4,
        (false, true) => 8,
        (true, true) => declared.filter(|bits| matches!(bits, 4 | 8))?,
        (false, false) => return None,
    };
    let group = (groups > 1).then_some(columns / groups.max(1));
    if group.is_some_and(|group| group * groups != columns) {
        return None;
    }
    Some((bits, group.map(u32::try_from).transpose().ok()?))
}

/// The second number of `weight_shape`, if the first is as expected: packed words do not say how many codes they hold.
fn columns(shape: Option<Located<'_>>, rows: usize) -> Result<Option<usize>> {
    let Some((shard, entry)) = shape.filter(|(_, entry)| entry.dtype == Dtype::I64 && entry.shape == [2]) else {
        return Ok(None);
    };
    let mut bytes = [0; 16];
    shard.read(entry, 0, &mut bytes)?;
    let [first, second] =
        [0, 8].map(|at| bytes[at..at + 8].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)));
    Ok(usize::try_from(second).ok().filter(|second| first == rows as u64 && sensible(*second)))
}
