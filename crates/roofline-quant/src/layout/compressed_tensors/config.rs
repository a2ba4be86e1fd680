//! What `config.json` says of the quantization: which modules, and in which codes.
//!
//! Modules go by the names that a runtime gives them, and where those are not the checkpoint's, both are written: vLLM
//! has its own way with each. What sees or hears is left out by patterns, since its inside is renamed as well.

use std::collections::{BTreeMap, BTreeSet};

use roofline_core::Role;
use serde_json::{Value, json};

use super::{
    super::{Decision, Scheme, Target, experts},
    Activations, Coded,
};
use crate::{Dtype, family::Family};

/// The pattern of all experts.
const EXPERTS: &str = r"re:.*\.experts\.\d+\..*";

/// The `quantization_config` of the minimal form.
pub(super) fn configuration(decisions: &[Decision<'_>], family: Family) -> Value {
    let mut groups: BTreeMap<&str, (&Scheme, Vec<&Decision<'_>>)> = BTreeMap::new();
    for decision in decisions {
        if let Some((scheme, ..)) = &decision.coded {
            groups.entry(scheme.name).or_insert((scheme, Vec::new())).1.push(decision);
        }
    }
    let mut groups: Vec<(&Scheme, Vec<&Decision<'_>>)> = groups.into_values().collect();
    // transformers reads plain experts by the first group's scheme, which must be one that leaves room for them.
    groups.sort_by_key(|(scheme, _)| !experts::leaves_room(scheme));
    let single = groups.len() == 1;
    let mut formats: Vec<&str> = groups.iter().map(|(scheme, _)| terms(scheme).0).collect();
    formats.dedup();
    let format = if let [format] = formats[..] { format } else { "mixed-precision" };
    let config_groups: serde_json::Map<String, Value> = groups
        .iter()
        .enumerate()
        .map(|(at, (scheme, members))| {
            let (format, weights, inputs) = terms(scheme);
            let targets = if single { of_one(members, family) } else { of_several(members, decisions, family) };
            let mut group = json!({ "targets": targets, "weights": weights });
            if let Some(inputs) = inputs {
                group["input_activations"] = inputs;
            }
            // From its activations the library would take packed integers for bytes.
            let packed = format == "pack-quantized" && group.get("input_activations").is_some();
            if !single || packed {
                group["format"] = format.into();
            }
            (format!("group_{at}"), group)
        })
        .collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ignored(decisions, family),
        "config_groups": config_groups,
    })
}

/// Products go by their class; what may be of another is named.
fn of_one(members: &[&Decision<'_>], family: Family) -> Vec<String> {
    let named = members.iter().filter(|member| member.site.role == Role::Other);
    let named = named.flat_map(|member| family.names(&member.site.module));
    std::iter::once("Linear".to_owned()).chain(named).collect()
}

/// Every module by its name, and experts by a pattern: all of them, or all of a layer.
fn of_several(members: &[&Decision<'_>], decisions: &[Decision<'_>], family: Family) -> Vec<String> {
    let same = |decision: &Decision<'_>| {
        let scheme = |decision: &Decision<'_>| decision.coded.as_ref().map(|(scheme, ..)| scheme.name);
        members.first().is_some_and(|first| scheme(first) == scheme(decision))
    };
    let whole = decisions.iter().filter(|decision| decision.site.is_expert()).all(same);
    let mut targets = BTreeSet::new();
    for member in members {
        match member.site.experts().filter(|_| member.site.is_expert()) {
            Some(_) if whole => drop(targets.insert(EXPERTS.to_owned())),
            Some(prefix) => targets.extend(family.names(prefix).iter().map(|prefix| below(prefix))),
            None => targets.extend(family.names(&member.site.module)),
        }
    }
    targets.into_iter().collect()
}

/// Products that are kept, so that nobody looks for their codes.
fn ignored(decisions: &[Decision<'_>], family: Family) -> Vec<String> {
    let quantized = |head: &Decision<'_>| head.site.role == Role::Head && head.coded.is_some();
    // The head is a product even where it has no tensor of its own.
    let head = (!decisions.iter().any(quantized)).then(|| "lm_head".to_owned());
    let mut ignore: BTreeSet<String> = head.into_iter().collect();
    // Experts are left out layer by layer, unless some of the layer are in codes.
    let coded: BTreeSet<&str> = decisions
        .iter()
        .filter(|decision| decision.coded.is_some())
        .filter_map(|decision| decision.site.experts())
        .collect();
    for decision in decisions.iter().filter(|decision| decision.coded.is_none()) {
        let site = &decision.site;
        match site.tower() {
            _ if matches!(site.role, Role::Vector | Role::Embedding) => {}
            Some(tower) if clear(tower, decisions) => drop(ignore.insert(format!(r"re:(.*\.)?{tower}\..*"))),
            _ => match site.experts().filter(|prefix| !coded.contains(prefix)) {
                Some(prefix) => ignore.extend(family.names(prefix).iter().map(|prefix| below(prefix))),
                None => ignore.extend(family.names(&site.module)),
            },
        }
    }
    ignore.into_iter().collect()
}

/// Whether nothing below a tower of that name is in codes.
fn clear(tower: &str, decisions: &[Decision<'_>]) -> bool {
    !decisions.iter().any(|decision| decision.coded.is_some() && decision.site.tower() == Some(tower))
}

/// The pattern of everything below a module. Stacked experts are no modules; runtimes look for the ones that they would be.
fn below(module: &str) -> String {
    format!(r"re:{}\..*", module.replace('.', r"\."))
}

/// A word about four-bit floats of a model that is not in BF16: what loads them computes their weights in that, so the
/// configuration names it for all.
pub(super) fn in_bfloat16(config: &mut Value, decisions: &[Decision<'_>]) -> Option<String> {
    let four = |decision: &&Decision<'_>| {
        let target = decision.coded.as_ref().map(|(scheme, ..)| scheme.target);
        matches!(target, Some(Target::Compressed(Coded::Nvfp4 | Coded::Mxfp4, _)))
    };
    let stored =
        decisions.iter().filter(four).map(|decision| decision.stored.dtype).find(|dtype| *dtype != Dtype::Bf16)?;
    let parts = ["", "text_config", "vision_config"];
    for part in parts {
        let config = if part.is_empty() { Some(&mut *config) } else { config.get_mut(part) };
        let Some(map) = config.and_then(Value::as_object_mut) else { continue };
        let stated = ["dtype", "torch_dtype"].into_iter().find(|key| map.contains_key(*key));
        if let Some(key) = stated.or(part.is_empty().then_some("dtype")) {
            map.insert(key.to_owned(), "bfloat16".into());
        }
    }
    let what = "what loads four-bit floats computes their weights in BF16";
    Some(format!("{what}: config.json says so, and what stays in {stored} is rounded to it when it is loaded"))
}

/// A scheme in the library's words: the format, the weights and the input activations.
fn terms(scheme: &Scheme) -> (&'static str, Value, Option<Value>) {
    let Target::Compressed(stored, activations) = scheme.target else { unreachable!("a scheme of this layout") };
    let (format, weights) = match stored {
        Coded::Int { bits, group: Some(group), zero } => (
            "pack-quantized",
            json!({ "num_bits": bits, "type": "int", "symmetric": !zero, "strategy": "group", "group_size": group }),
        ),
        Coded::Int { bits, group: None, zero } => {
            ("pack-quantized", json!({ "num_bits": bits, "type": "int", "symmetric": !zero, "strategy": "channel" }))
        }
        Coded::Int4Bytes { group } => (
            "int-quantized",
            json!({ "num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": group }),
        ),
        Coded::Int8Channel => {
            ("int-quantized", json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel" }))
        }
        Coded::Fp8Channel => {
            ("float-quantized", json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel" }))
        }
        Coded::Fp8Tensor => {
            ("float-quantized", json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor" }))
        }
        Coded::Fp8Block => (
            "float-quantized",
            json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "block", "block_structure": [128, 128] }),
        ),
        Coded::Nvfp4 => (
            "nvfp4-pack-quantized",
            json!({ "num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group", "group_size": 16 }),
        ),
        Coded::Mxfp4 => (
            "mxfp4-pack-quantized",
            json!({ "num_bits": 4, "type": "float", "symmetric": true, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8" }),
        ),
        Coded::Mxfp8 => (
            "mxfp8-quantized",
            json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8" }),
        ),
    };
    let inputs = match activations {
        Activations::Sixteen => None,
        Activations::Int8Token => {
            Some(json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true }))
        }
        Activations::Fp8Token => {
            Some(json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "token", "dynamic": true }))
        }
        Activations::Fp8Static => {
            Some(json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "dynamic": false }))
        }
        Activations::Nvfp4 => Some(
            json!({ "num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group", "group_size": 16, "dynamic": "local" }),
        ),
        Activations::Fp8Group => Some(
            json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "group", "group_size": 128, "dynamic": true }),
        ),
        Activations::Mxfp4 => Some(micro(4)),
        Activations::Mxfp8 => Some(micro(8)),
    };
    (format, weights, inputs)
}

/// Activations in blocks of 32 with powers of two, as the library's presets have them.
fn micro(bits: u8) -> Value {
    json!({ "num_bits": bits, "type": "float", "symmetric": true, "strategy": "group", "group_size": 32,
            "scale_dtype": "torch.uint8", "dynamic": true })
}
