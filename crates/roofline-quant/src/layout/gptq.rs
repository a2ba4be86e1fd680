//! GPTQ's packing: what GPTQModel writes, and transformers, vLLM and SGLang load.
//!
//! Which products are quantized is told in two ways: transformers goes by the ends of their names within the layers
//! (`modules_in_block_to_quantize`), the others by patterns of those that are not (`dynamic`).

use std::{collections::BTreeSet, sync::Arc};

use roofline_core::{Format, Plan, Role};
use serde_json::{Value, json};

use super::{Decision, Layout, Scheme, Target, decide, folder, kept_stacks, packed::one_scheme, torn_families};
use crate::{
    Checkpoint, Error, Method, QuantizeJob, Result,
    coding::gptq::{self as coded, Scheme as Coded, Version},
    family::{Family, Products},
    job::Companion,
    site::Site,
};

const fn scheme(name: &'static str, summary: &'static str, bits: u8, group: u32, zero: bool) -> Scheme {
    let weights = match bits {
        2 => Format::INT2_G64,
        3 => Format::INT3_G64,
        4 => Format::INT4_G128,
        _ => Format::INT8,
    };
    let (weights, group) = if group == 0 { (weights.in_rows(), None) } else { (weights.in_groups(group), Some(group)) };
    let weights = if zero { weights.with_zeros() } else { weights };
    let target = Target::Gptq(Coded { bits, group, zero });
    Scheme { name, aliases: &[], summary, weights, activations: None, target }
}

/// The eight schemes of a width: their names, in groups of 32, 64 and 128 and per channel, without zero points and with.
macro_rules! width {
    ($bits:literal: $g32:literal $g64:literal $g128:literal $channel:literal) => {
        [
            scheme($g32, concat!("INT", $bits, " in groups of 32, symmetric"), $bits, 32, false),
            scheme($g64, concat!("INT", $bits, " in groups of 64, symmetric"), $bits, 64, false),
            scheme($g128, concat!("INT", $bits, " in groups of 128, symmetric"), $bits, 128, false),
            scheme($channel, concat!("INT", $bits, " with a scale per channel, symmetric"), $bits, 0, false),
            scheme(
                concat!("int", $bits, "-g32-zp"),
                concat!("INT", $bits, " in groups of 32 with zero points"),
                $bits,
                32,
                true,
            ),
            scheme(
                concat!("int", $bits, "-g64-zp"),
                concat!("INT", $bits, " in groups of 64 with zero points"),
                $bits,
                64,
                true,
            ),
            scheme(
                concat!("int", $bits, "-g128-zp"),
                concat!("INT", $bits, " in groups of 128 with zero points"),
                $bits,
                128,
                true,
            ),
            scheme(
                concat!("int", $bits, "-channel-zp"),
                concat!("INT", $bits, " with a scale per channel and zero points"),
                $bits,
                0,
                true,
            ),
        ]
    };
}

const FOUR: [Scheme; 8] = width!(4: "int4-g32" "int4-g64" "w4a16" "int4-channel");
const EIGHT: [Scheme; 8] = width!(8: "int8-g32" "int8-g64" "int8-g128" "w8a16");
const THREE: [Scheme; 8] = width!(3: "int3-g32" "int3" "int3-g128" "int3-channel");
const TWO: [Scheme; 8] = width!(2: "int2-g32" "int2" "int2-g128" "int2-channel");

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = {
    const ALL: [Scheme; 32] = {
        let mut all = [FOUR[2]; 32];
        let mut at = 0;
        while at < 8 {
            all[at] = FOUR[(at + 2) % 8];
            all[8 + at] = EIGHT[at];
            all[16 + at] = THREE[at];
            all[24 + at] = TWO[at];
            at += 1;
        }
        all
    };
    &ALL
};

/// The names that optimum, by which transformers loads GPTQ, knows the stack of layers by, in the order it looks for them.
const BLOCKS: [&str; 5] =
    ["transformer.h", "model.decoder.layers", "gpt_neox.layers", "model.layers", "model.language_model.layers"];

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<QuantizeJob<'a>> {
    let (decisions, mut notes) = decide(checkpoint, plan, Layout::Gptq, |scheme, _| {
        let Target::Gptq(coding) = scheme.target else { unreachable!("a scheme of this layout") };
        coded::coding(coding, method).map(Arc::from)
    })?;
    if Family::of(&checkpoint.config).products() == Products::Own {
        return Err(Error::unsupported(
            "transformers has a class of its own for the products of this family, and does not find GPTQ's codes for it",
            "use `⟨as compressed-tensors⟩` with `fp8` or `int8`, which it loads",
        ));
    }
    let scheme = one_scheme("GPTQ", checkpoint, &decisions)?;
    for Decision { stored, site, .. } in decisions.iter().filter(|decision| decision.coded.is_some()) {
        if within_block(site).is_none() {
            let reason = format!("lies in no stack of layers that optimum knows: {}", BLOCKS.join(", "));
            return Err(stored.refuse(reason, Some("use `⟨as compressed-tensors⟩`, or keep it with `⟨keep⟩`")));
        }
    }
    notes.extend(torn_families(&decisions));
    notes.extend(kept_stacks(&decisions));
    notes.extend(checkpoint.left_out()?);
    let quantization = configuration(scheme, &decisions);
    let own = ("quantize_config.json".to_owned(), Companion::Bytes(folder::pretty(&quantization)));
    let config = folder::with_quantization(&checkpoint.config, quantization);
    let mut job = folder::job(checkpoint, decisions, Vec::new(), &config, notes)?;
    job.companions.push(own);
    Ok(job)
}

/// The name of a module within its layer.
fn within_block(site: &Site) -> Option<&str> {
    let rest = BLOCKS.iter().find_map(|block| site.module.strip_prefix(block)?.strip_prefix('.'))?;
    rest.split_once('.').map(|(_, name)| name)
}

/// The `quantization_config`, which is also the content of `quantize_config.json`.
fn configuration(scheme: &Scheme, decisions: &[Decision<'_>]) -> Value {
    let Target::Gptq(coded) = scheme.target else { unreachable!("a scheme of this layout") };
    let mut config = json!({
        "quant_method": "gptq",
        "bits": coded.bits,
        "group_size": coded.group.map_or(-1, i64::from),
        "desc_act": false,
        "sym": !coded.zero,
        "checkpoint_format": if coded.version() == Version::First { "gptq" } else { "gptq_v2" },
        "lm_head": false,
        "pack_dtype": "int32",
    });
    let kept: Vec<&Site> = decisions
        .iter()
        .filter(|decision| {
            decision.coded.is_none() && decision.site.role != Role::Vector && within_block(&decision.site).is_some()
        })
        .map(|decision| &decision.site)
        .collect();
    if kept.is_empty() {
        return config;
    }
    let coded: Vec<&Site> =
        decisions.iter().filter(|decision| decision.coded.is_some()).map(|decision| &decision.site).collect();
    let ends: BTreeSet<&str> = coded.iter().filter_map(|site| within_block(site)).collect();
    // Where one layer is kept and another not, only whole names tell them apart.
    let told = !kept.iter().any(|site| ends.iter().any(|end| site.module.ends_with(end)));
    let names: Vec<&str> =
        if told { ends.into_iter().collect() } else { coded.iter().map(|site| site.module.as_str()).collect() };
    config["modules_in_block_to_quantize"] = json!([names]);
    let left: serde_json::Map<String, Value> =
        kept.iter().map(|site| (format!("-:^{}$", site.module.replace('.', "\\.")), json!({}))).collect();
    config["dynamic"] = left.into();
    config
}
