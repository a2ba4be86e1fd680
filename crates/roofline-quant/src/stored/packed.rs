//! Weights in GPTQ's and AWQ's packings.
//!
//! Their tensors have the same names, and what is the same in both - words of codes, zero points, scales - means something else
//! in each, so the configuration has to say which it is.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Located, StoredTensor,
    codes::{Codes, matching},
    has_more, sensible,
};
use crate::{
    Checkpoint, Dtype, Result,
    coding::{
        Coding, Matrix, awq,
        gptq::{self, Version},
    },
};

/// The weights in the packing that the configuration declares.
pub(super) fn weights<'a>(
    checkpoint: &Checkpoint,
    tensors: &BTreeMap<&str, Located<'a>>,
) -> Result<Vec<StoredTensor<'a>>> {
    let declared = &checkpoint.config["quantization_config"];
    let method = declared["quant_method"].as_str().unwrap_or_default();
    let mut all = Vec::new();
    if !matches!(method, "gptq" | "awq") {
        return Ok(all);
    }
    for module in tensors.keys().filter_map(|name| name.strip_suffix(".qweight")) {
        let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
        let found = if method == "gptq" { of_gptq(declared, find)? } else { of_awq(declared, find) };
        let Some((matrix, coding, scheme)) = found else { continue };
        let Some(parts) = matching(&*coding, matrix, find).filter(|parts| !has_more(module, tensors, parts)) else {
            continue;
        };
        let dtype = find("scales").map_or(Dtype::F16, |(_, scales)| scales.dtype);
        all.push(StoredTensor::coded(format!("{module}.weight"), dtype, scheme, Codes { matrix, coding, parts }));
    }
    Ok(all)
}

/// A matrix, what reads it, and how it is coded in words.
type Found = (Matrix, Box<dyn Coding>, String);

/// A weight of GPTQ's: the width follows from how many words hold the zero points of all rows.
fn of_gptq<'a>(declared: &Value, find: impl Fn(&str) -> Option<Located<'a>>) -> Result<Option<Found>> {
    let (Some((_, codes)), Some((_, zeros)), Some((_, scales))) = (find("qweight"), find("qzeros"), find("scales"))
    else {
        return Ok(None);
    };
    let ([words, rows], [groups, wide]) = (&codes.shape[..], &zeros.shape[..]) else { return Ok(None) };
    let (words, rows, groups, wide) = (*words, *rows, *groups, *wide);
    if ![words, rows, groups, wide].into_iter().all(sensible) {
        return Ok(None);
    }
    let format = ["checkpoint_format", "format"].iter().find_map(|key| declared[*key].as_str());
    let version = match format.map(str::to_lowercase).as_deref() {
        None | Some("gptq") => Version::First,
        Some("gptq_v2") => Version::Second,
        Some(_) => return Ok(None),
    };
    let Some(bits) = gptq::WIDTHS.into_iter().find(|bits| rows * usize::from(*bits) == wide * 32) else {
        return Ok(None);
    };
    let columns = words * 32 / usize::from(bits);
    let index = find("g_idx");
    // Without an index, channels in another order could not be told from those in their own.
    if !columns.is_multiple_of(groups) || index.is_none() && declared["desc_act"] == Value::Bool(true) {
        return Ok(None);
    }
    let group = if groups == 1 { Ok(None) } else { u32::try_from(columns / groups).map(Some) };
    let Ok(group) = group else { return Ok(None) };
    if let Some((shard, entry)) = index {
        if entry.dtype != Dtype::I32 || entry.shape != [columns] {
            return Ok(None);
        }
        let mut bytes = vec![0; columns * 4];
        shard.read(entry, 0, &mut bytes)?;
        if bytes.as_chunks::<4>().0.iter().any(|group| u32::from_le_bytes(*group) as usize >= groups) {
            return Ok(None);
        }
    }
    let scheme = gptq::Scheme { bits, group, zero: declared["sym"] == Value::Bool(false) };
    let coding = gptq::reading(scheme, version, scales.dtype, index.is_some());
    Ok(coding.map(|coding| (Matrix { rows, columns }, coding, scheme.to_string())))
}

/// A weight of AWQ's, in the order of its GEMM kernels.
fn of_awq<'a>(declared: &Value, find: impl Fn(&str) -> Option<Located<'a>>) -> Option<Found> {
    let version = ["version", "format"].iter().find_map(|key| declared[*key].as_str()).unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") || declared["bits"].as_u64().is_some_and(|bits| bits != 4) {
        return None;
    }
    let ((_, codes), (_, scales)) = (find("qweight")?, find("scales")?);
    let ([columns, words], [groups, _]) = (&codes.shape[..], &scales.shape[..]) else { return None };
    let (columns, words, groups) = (*columns, *words, *groups);
    if ![columns, words, groups].into_iter().all(sensible) || !columns.is_multiple_of(groups) {
        return None;
    }
    let scheme = awq::Scheme { group: u32::try_from(columns / groups).ok()? };
    let coding = awq::reading(scheme, scales.dtype)?;
    Some((Matrix { rows: words * 8, columns }, coding, scheme.to_string()))
}
