//! compressed-tensors: what llm-compressor writes and vLLM, SGLang and transformers load.
//!
//! The configuration is the minimal form: what the library's own defaults already say is left out, because older
//! versions refuse fields they do not know.

use std::{collections::BTreeMap, sync::Arc};

use roofline_core::{Format, Plan, Role};
use serde_json::{Value, json};

use super::{Decision, Layout, Scheme, Target, decide, folder, items, torn_families};
use crate::{
    Checkpoint, Dtype, Error, Job, Method, Result,
    coding::{
        compressed_tensors::{self as coded, Scheme as Coded},
        torchao,
    },
    plan::is_tied,
    site::Site,
};

/// What products read beside the weights: quantized while the model runs, so nothing of it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activations {
    /// As the model has them.
    Sixteen,
    /// INT8 with a scale per token.
    Int8Token,
    /// E4M3 with a scale per token.
    Fp8Token,
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
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<Job<'a>> {
    let (decisions, mut notes) = decide(checkpoint, plan, Layout::CompressedTensors, |scheme, entry| {
        let Target::Compressed(stored, _) = scheme.target else { unreachable!("a scheme of this layout") };
        coded::coding(stored, entry.dtype, method).map(Arc::from)
    })?;
    check_embedding(&checkpoint.config, &decisions)?;
    notes.extend(torn_families(&decisions));
    notes.extend(kept_stacks(&decisions));
    notes.extend(checkpoint.left_out()?);
    let half = |decision: &Decision<'_>| decision.stored.first().1.dtype == Dtype::F16;
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
    let mut folder = folder::Folder::new(checkpoint.shards.len());
    for Decision { shard, stored, site, coded } in &decisions {
        let (_, entry) = stored.first();
        match coded {
            None => folder.add(*shard, entry.name.clone(), entry.dtype, &entry.shape),
            Some((_, _, parts)) => {
                for part in parts {
                    folder.add(*shard, format!("{}.{}", site.module, part.name), part.dtype, &part.shape);
                }
            }
        }
    }
    let laid_out = folder.lay_out(&[("format".to_owned(), "pt".to_owned())])?;
    let config = folder::with_quantization(&checkpoint.config, configuration(&decisions));
    let items = items(decisions, &laid_out.places, |_, site, part| format!("{}.{}", site.module, part.name))?;
    let companions = folder::companions(checkpoint, &config, laid_out.index)?;
    Ok(Job { files: laid_out.files, items, companions, notes })
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
        return Err(Error::Weight { name: stored.name().to_owned(), reason: reason.to_owned(), hint: Some(hint) });
    }
    Ok(())
}

/// A word about stacked experts that stay as they are.
pub(super) fn kept_stacks(decisions: &[Decision<'_>]) -> Option<String> {
    let stacks = decisions.iter().filter(|decision| decision.coded.is_none() && decision.site.is_stack());
    let sizes: Vec<u64> = stacks.map(|decision| decision.stored.first().1.elements()).collect();
    let all: u64 = decisions.iter().map(|decision| decision.stored.first().1.elements()).sum();
    let kept: u64 = sizes.iter().sum();
    let share = 100.0 * kept as f64 / all as f64;
    let count = sizes.len();
    (count > 0).then(|| {
        format!("{count} tensors hold experts in stacks and are kept: {share:.0} % of the parameters stay unquantized")
    })
}

/// The `quantization_config` of the minimal form.
fn configuration(decisions: &[Decision<'_>]) -> Value {
    let mut groups: BTreeMap<&str, (&Scheme, Vec<&Site>)> = BTreeMap::new();
    for decision in decisions {
        if let Some((scheme, ..)) = &decision.coded {
            groups.entry(scheme.name).or_insert((scheme, Vec::new())).1.push(&decision.site);
        }
    }
    let quantized =
        |module: &str| decisions.iter().any(|decision| decision.site.module == module && decision.coded.is_some());
    // The head is a product even where it has no tensor of its own.
    let head = Some("lm_head").filter(|head| !quantized(head));
    let kept = decisions
        .iter()
        .filter(|decision| decision.coded.is_none() && !matches!(decision.site.role, Role::Vector | Role::Embedding));
    let mut ignore: Vec<String> =
        head.map(str::to_owned).into_iter().chain(kept.map(|decision| ignored(&decision.site))).collect();
    ignore.sort_unstable();
    ignore.dedup();
    let single = groups.len() == 1;
    let mut formats: Vec<&str> = groups.values().map(|(scheme, _)| terms(scheme).0).collect();
    formats.dedup();
    let format = if let [format] = formats[..] { format } else { "mixed-precision" };
    let config_groups: serde_json::Map<String, Value> = groups
        .values()
        .enumerate()
        .map(|(at, (scheme, sites))| {
            let (format, weights, inputs) = terms(scheme);
            // Products go by their class; what may be of another is named.
            let named = sites.iter().filter(|site| !single || site.role == Role::Other);
            let class = Some("Linear").filter(|_| single);
            let targets: Vec<&str> = class.into_iter().chain(named.map(|site| site.module.as_str())).collect();
            let mut group = json!({ "targets": targets, "weights": weights });
            if let Some(inputs) = inputs {
                group["input_activations"] = inputs;
            }
            if !single {
                group["format"] = format.into();
            }
            (format!("group_{at}"), group)
        })
        .collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ignore,
        "config_groups": config_groups,
    })
}

/// How a module that is kept is named among the ignored. Stacked experts are no modules; runtimes look for the ones that
/// they would be if they were not stacked.
fn ignored(site: &Site) -> String {
    match site.module.rsplit_once('.').filter(|_| site.is_stack()) {
        Some((experts, _)) => format!("re:{}\\..*", experts.replace('.', "\\.")),
        None => site.module.clone(),
    }
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
        Coded::Int8Channel => {
            ("int-quantized", json!({ "num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel" }))
        }
        Coded::Fp8Channel => {
            ("float-quantized", json!({ "num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel" }))
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
