//! compressed-tensors: what llm-compressor writes and vLLM, SGLang and transformers load.
//!
//! The configuration is the minimal form: what the library's own defaults already say is left out, because older
//! versions refuse fields they do not know.

use std::sync::Arc;

use roofline_core::{Plan, Role, format::Element};
use serde_json::{Value, json};

mod config;
mod schemes;

use super::{Decision, Layout, Target, decide, experts, folder, torn_families};
use crate::{
    Checkpoint, Dtype, Error, Method, QuantizeJob, Request, Result, Runtime,
    coding::{
        compressed_tensors::{self as coded, Scheme as Coded, Seen},
        torchao,
    },
    family::{Family, Products},
    plan::{CACHE, is_tied},
    ranges::Wants,
    stored::StoredTensor,
};

pub(crate) use schemes::Activations;
pub(super) use schemes::SCHEMES;

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, request: &Request, runtimes: &[Runtime]) -> Result<QuantizeJob<'a>> {
    let Request { plan, ranges, .. } = request;
    let (method, ranges) = (request.method.without_data(), ranges.as_ref());
    let (decisions, mut notes) = decide(checkpoint, plan, Layout::CompressedTensors, |scheme, stored| {
        let Target::Compressed(coding, activations) = scheme.target else { unreachable!("a scheme of this layout") };
        check_inputs(stored, activations)?;
        coded::coding(coding, stored.dtype, method).map(Arc::from)
    })?;
    check_embedding(&checkpoint.config, &decisions)?;
    let family = Family::of(&checkpoint.config);
    experts::check(&decisions, family, runtimes)?;
    check_products(&decisions, family, runtimes)?;
    notes.extend(torn_families(&decisions));
    notes.extend(kept_stacks(&decisions));
    notes.extend(checkpoint.left_out()?);
    let half = |decision: &Decision<'_>| decision.stored.dtype == Dtype::F16;
    let nvfp4 = |decision: &Decision<'_>| {
        let target = decision.coded.as_ref().map(|(scheme, ..)| scheme.target);
        matches!(target, Some(Target::Compressed(Coded::Nvfp4, _)))
    };
    if method == Method::Rtn && decisions.iter().any(|decision| half(decision) && nvfp4(decision)) {
        notes.push(
            "the library computes NVFP4's tensor scale in the weights' type, and in FP16 it overflows where no weight \
             exceeds 0.041: `⟨method mse⟩` or a BF16 checkpoint avoids it"
                .to_owned(),
        );
    }
    let mut wants = Wants::of(ranges);
    let mut literals = seen_inputs(&decisions, &mut wants);
    let mut quantization = config::configuration(&decisions, family);
    if let Some(kv) = stored_cache(plan).filter(|_| ranges.is_some()) {
        literals.extend(seen_cache(&decisions, &mut wants)?);
        quantization["kv_cache_scheme"] = kv;
        notes.retain(|note| !note.starts_with(CACHE));
    }
    wants.check(plan)?;
    if ranges.is_some() && literals.is_empty() {
        notes.push(format!("nothing in the plan `{plan}` needs the ranges that were given"));
    }
    let mut config = folder::with_quantization(&checkpoint.config, quantization);
    notes.extend(config::in_bfloat16(&mut config, &decisions));
    folder::job(checkpoint, decisions, literals, &config, notes)
}

/// Refuses what would be written and then fail when it runs: inputs that share a scale by 128 are whole groups.
fn check_inputs(stored: &StoredTensor<'_>, activations: Activations) -> Result<()> {
    match stored.shape[..] {
        [_, columns] if activations == Activations::Fp8Group && !columns.is_multiple_of(128) => {
            let reason = format!("has {columns} columns, and its inputs share a scale by 128 while the model runs");
            Err(stored.refuse(reason, Some("keep it with `⟨keep⟩`, or take `fp8`, with one scale per channel")))
        }
        _ => Ok(()),
    }
}

/// The scales of inputs that are stored.
fn seen_inputs(decisions: &[Decision<'_>], wants: &mut Wants<'_>) -> Vec<folder::Literal> {
    let mut literals = Vec::new();
    for Decision { shard, stored, site, coded } in decisions {
        let Some(Target::Compressed(_, activations)) = coded.as_ref().map(|(scheme, ..)| scheme.target) else {
            continue;
        };
        let (seen, part) = match activations {
            Activations::Fp8Static => (Seen::Fp8, "input_scale"),
            Activations::Nvfp4 => (Seen::Nvfp4, "input_global_scale"),
            _ => continue,
        };
        let peak = wants.want("input", &site.module, |ranges| &ranges.inputs);
        literals.push(literal(*shard, &site.module, part, seen.stored(peak, stored.dtype)));
    }
    literals
}

fn literal(shard: usize, module: &str, part: &str, (dtype, bytes): (Dtype, Vec<u8>)) -> folder::Literal {
    folder::Literal { shard, name: format!("{module}.{part}"), dtype, shape: vec![1], bytes }
}

/// What a plan says of the cache in the library's words, where scales of it can be stored: E4M3.
fn stored_cache(plan: &Plan) -> Option<Value> {
    let kv = plan.kv().or_else(|| plan.precision().and_then(|precision| precision.formats().kv))?;
    let scaled = kv.element() == Element::Fp8E4M3 && kv.block().is_none();
    scaled.then(|| json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "tensor", "dynamic": false }))
}

/// The scales of keys and values, for every module of attention.
fn seen_cache(decisions: &[Decision<'_>], wants: &mut Wants<'_>) -> Result<Vec<folder::Literal>> {
    let mut literals = Vec::new();
    for Decision { shard, stored, site, .. } in decisions.iter().filter(|decision| decision.site.layer.is_some()) {
        if site.role == Role::Vector {
            continue;
        }
        let (attention, last) = site.module.rsplit_once('.').unwrap_or_default();
        match last {
            "k_proj" | "qkv_proj" | "query_key_value" => {}
            "kv_a_proj_with_mqa" => {
                let reason = "makes a latent vector, and the library has scales for keys and values";
                return Err(stored.refuse(reason, Some("leave `kv=` out of the plan")));
            }
            _ => continue,
        }
        let keys = wants.want("keys", attention, |ranges| &ranges.keys);
        let values = wants.want("values", attention, |ranges| &ranges.values);
        for (part, peak) in [("k_scale", keys), ("v_scale", values)] {
            literals.push(literal(*shard, attention, part, Seen::Fp8.stored(peak, stored.dtype)));
        }
    }
    Ok(literals)
}

/// Refuses a quantized embedding where nothing runs one: transformers with compressed-tensors loads the codes and then
/// looks for a plain table, torchao has no lookup for INT4, and a table that is the output head as well would have to be
/// codes for the one and numbers for the other.
pub(super) fn check_embedding(config: &Value, decisions: &[Decision<'_>]) -> Result<()> {
    let tied = is_tied(config, decisions.iter().any(|decision| decision.site.role == Role::Head));
    for Decision { stored, site, coded, .. } in decisions {
        let Some((scheme, ..)) = coded.as_ref().filter(|_| site.role == Role::Embedding) else { continue };
        let reason = match scheme.target {
            _ if tied => "is the output head, too, and can be quantized as neither",
            Target::Torchao(torchao::Scheme::Int4 { .. }) => "is a table, and torchao cannot look tokens up in INT4",
            Target::Torchao(_) => continue,
            _ => "is a table, and what loads compressed-tensors quantizes products alone",
        };
        let hint = "keep it, or write GGUF, which quantizes every table".to_owned();
        return Err(Error::Weight { name: stored.name.clone(), reason: reason.to_owned(), hint: Some(hint) });
    }
    Ok(())
}

/// Refuses packed codes of a family whose products look for `weight`.
fn check_products(decisions: &[Decision<'_>], family: Family, runtimes: &[Runtime]) -> Result<()> {
    let packed = |decision: &Decision<'_>| {
        let target = decision.coded.as_ref().map(|(scheme, ..)| scheme.target);
        matches!(target, Some(Target::Compressed(Coded::Int { .. } | Coded::Nvfp4 | Coded::Mxfp4, _)))
    };
    if family.products() != Products::Own || !runtimes.contains(&Runtime::Transformers) || !decisions.iter().any(packed)
    {
        return Ok(());
    }
    Err(Error::unsupported(
        "transformers has a class of its own for the products of this family, which does not find packed codes",
        "it loads `fp8` and `int8`; vLLM loads packed ones: `⟨runtime vllm⟩` writes them for that alone",
    ))
}

/// A word about stacked experts that stay as they are.
pub(super) fn kept_stacks(decisions: &[Decision<'_>]) -> Option<String> {
    let stacks = decisions.iter().filter(|decision| decision.coded.is_none() && decision.site.is_stack());
    let sizes: Vec<u64> = stacks.map(|decision| decision.stored.elements()).collect();
    let all: u64 = decisions.iter().map(|decision| decision.stored.elements()).sum();
    let kept: u64 = sizes.iter().sum();
    let share = 100.0 * kept as f64 / all as f64;
    let count = sizes.len();
    (count > 0).then(|| {
        format!("{count} tensors hold experts in stacks and are kept: {share:.0} % of the parameters stay unquantized")
    })
}
