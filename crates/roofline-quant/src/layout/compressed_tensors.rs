//! compressed-tensors: what llm-compressor writes and vLLM, SGLang and transformers load.
//!
//! The configuration is the minimal form: what the library's own defaults already say is left out, because older
//! versions refuse fields they do not know.

use std::sync::Arc;

use roofline_core::{Format, Plan, Role, format::Element};
use serde_json::{Value, json};

mod config;

use super::{Decision, Layout, Scheme, Target, decide, experts, folder, torn_families};
use crate::{
    Checkpoint, Dtype, Error, Job, Method, Request, Result, Runtime,
    coding::{
        compressed_tensors::{self as coded, Scheme as Coded, Seen},
        torchao,
    },
    family::Family,
    plan::{CACHE, is_tied},
    ranges::Wants,
    stored::Stored,
};

/// What products read beside the weights: quantized while the model runs. Where scales are known before, they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activations {
    /// As the model has them.
    Sixteen,
    /// INT8 with a scale per token.
    Int8Token,
    /// E4M3 with a scale per token.
    Fp8Token,
    /// E4M3 with one scale that is stored.
    Fp8Static,
    /// NVFP4: E2M1 with E4M3 scales per 16 inputs of a token, and one divisor that is stored.
    Nvfp4,
    /// E4M3 with a scale per 128 inputs of a token.
    Fp8Group,
    /// MXFP4: E2M1 with a power of two per 32 inputs of a token.
    Mxfp4,
    /// MXFP8: E4M3 with a power of two per 32 inputs of a token.
    Mxfp8,
}

const INT4: Format = Format::INT4_G128;

/// A scheme of weights alone.
const fn alone(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    stored: Coded,
) -> Scheme {
    let target = Target::Compressed(stored, Activations::Sixteen);
    Scheme { name, aliases, summary, weights, activations: None, target }
}

/// The same with activations that are rounded, too.
const fn with(activations: Format, read: Activations, scheme: Scheme) -> Scheme {
    let Target::Compressed(stored, _) = scheme.target else { return scheme };
    Scheme { activations: Some(activations), target: Target::Compressed(stored, read), ..scheme }
}

const fn int(bits: u8, group: Option<u32>, zero: bool) -> Coded {
    Coded::Int { bits, group, zero }
}

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    alone(
        "w4a16",
        &["int4", "int4-g128", "w4a16-g128"],
        "INT4 in groups of 128, symmetric; 16-bit activations",
        INT4,
        int(4, Some(128), false),
    ),
    alone(
        "int4-g64",
        &["w4a16-g64"],
        "INT4 in groups of 64, symmetric; 16-bit activations",
        INT4.in_groups(64),
        int(4, Some(64), false),
    ),
    alone(
        "int4-g32",
        &["w4a16-g32"],
        "INT4 in groups of 32, symmetric; 16-bit activations",
        INT4.in_groups(32),
        int(4, Some(32), false),
    ),
    alone(
        "int4-g128-zp",
        &["w4a16-asym", "w4a16-asym-g128"],
        "INT4 in groups of 128 with zero points; 16-bit activations",
        INT4.with_zeros(),
        int(4, Some(128), true),
    ),
    alone(
        "int4-g64-zp",
        &["w4a16-asym-g64"],
        "INT4 in groups of 64 with zero points; 16-bit activations",
        INT4.in_groups(64).with_zeros(),
        int(4, Some(64), true),
    ),
    alone(
        "int4-g32-zp",
        &["w4a16-asym-g32"],
        "INT4 in groups of 32 with zero points; 16-bit activations",
        INT4.in_groups(32).with_zeros(),
        int(4, Some(32), true),
    ),
    alone(
        "int4-channel",
        &["w4a16-channel"],
        "INT4 with a scale per channel; 16-bit activations",
        INT4.in_rows(),
        int(4, None, false),
    ),
    alone(
        "w8a16",
        &["w8a16-channel"],
        "INT8 with a scale per channel; 16-bit activations",
        Format::INT8,
        int(8, None, false),
    ),
    alone(
        "int8-g128",
        &["w8a16-g128"],
        "INT8 in groups of 128, symmetric; 16-bit activations (llm-compressor's W8A16)",
        Format::INT8.in_groups(128),
        int(8, Some(128), false),
    ),
    with(
        Format::FP8,
        Activations::Fp8Token,
        alone(
            "w4a8",
            &["w4afp8"],
            "INT4 in groups of 128, symmetric; E4M3 activations with a scale per token (llm-compressor's W4AFP8)",
            INT4,
            int(4, Some(128), false),
        ),
    ),
    with(
        Format::INT8,
        Activations::Int8Token,
        alone(
            "w4a8-int8",
            &[],
            "INT4 in groups of 128, symmetric, a byte each; INT8 activations with a scale per token (llm-compressor's W4A8)",
            INT4,
            Coded::Int4Bytes { group: 128 },
        ),
    ),
    with(
        Format::INT8,
        Activations::Int8Token,
        alone(
            "int8",
            &["w8a8", "w8a8-int8"],
            "INT8 with a scale per channel; INT8 activations with a scale per token",
            Format::INT8,
            Coded::Int8Channel,
        ),
    ),
    with(
        Format::FP8,
        Activations::Fp8Token,
        alone(
            "fp8",
            &["fp8-dynamic"],
            "E4M3 with a scale per channel; E4M3 activations with a scale per token",
            Format::FP8,
            Coded::Fp8Channel,
        ),
    ),
    with(
        Format::FP8.in_tensors(),
        Activations::Fp8Static,
        alone(
            "fp8-static",
            &[],
            "E4M3 with one scale; E4M3 activations with one scale, from `--ranges`",
            Format::FP8.in_tensors(),
            Coded::Fp8Tensor,
        ),
    ),
    with(
        Format::FP8.in_groups(128),
        Activations::Fp8Group,
        alone(
            "fp8-block",
            &[],
            "E4M3 with a scale per 128 x 128; E4M3 activations with a scale per 128 of a token",
            Format::FP8.in_squares(128),
            Coded::Fp8Block,
        ),
    ),
    alone(
        "nvfp4a16",
        &[],
        "E2M1 in blocks of 16 with E4M3 scales and one per tensor; 16-bit activations",
        Format::NVFP4,
        Coded::Nvfp4,
    ),
    with(
        Format::NVFP4,
        Activations::Nvfp4,
        alone(
            "nvfp4",
            &["w4a4"],
            "E2M1 in blocks of 16 with E4M3 scales and one per tensor; activations in the same, from `--ranges`",
            Format::NVFP4,
            Coded::Nvfp4,
        ),
    ),
    alone("mxfp4a16", &[], "E2M1 in blocks of 32 with powers of two; 16-bit activations", Format::MXFP4, Coded::Mxfp4),
    with(
        Format::MXFP4,
        Activations::Mxfp4,
        alone(
            "mxfp4",
            &[],
            "E2M1 in blocks of 32 with powers of two; activations in the same",
            Format::MXFP4,
            Coded::Mxfp4,
        ),
    ),
    with(
        Format::MXFP8,
        Activations::Mxfp8,
        alone(
            "mxfp8",
            &[],
            "E4M3 in blocks of 32 with powers of two; activations in the same",
            Format::MXFP8,
            Coded::Mxfp8,
        ),
    ),
];

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, request: &Request, runtimes: &[Runtime]) -> Result<Job<'a>> {
    let Request { plan, method, ranges, .. } = request;
    let (method, ranges) = (*method, ranges.as_ref());
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
             exceeds 0.041: `--method mse` or a BF16 checkpoint avoids it"
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
fn check_inputs(stored: &Stored<'_>, activations: Activations) -> Result<()> {
    match stored.shape[..] {
        [_, columns] if activations == Activations::Fp8Group && !columns.is_multiple_of(128) => {
            let reason = format!("has {columns} columns, and its inputs share a scale by 128 while the model runs");
            Err(stored.refuse(reason, Some("keep it with `--keep`, or take `fp8`, with one scale per channel")))
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
    if !family.has_own_products() || !runtimes.contains(&Runtime::Transformers) || !decisions.iter().any(packed) {
        return Ok(());
    }
    Err(Error::unsupported(
        "transformers has a class of its own for the products of this family, which does not find packed codes",
        "it loads `fp8` and `int8`; vLLM loads packed ones: `--runtime vllm` writes them for that alone",
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
