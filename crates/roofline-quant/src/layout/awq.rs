//! AWQ's packing: what AutoAWQ wrote, and transformers, vLLM, SGLang and MLX load.

use std::sync::Arc;

use roofline_core::{Format, Plan, Role};
use serde_json::{Value, json};

use super::{Decision, Layout, Scheme, Target, decide, folder, kept_stacks, packed::one_scheme, torn_families};
use crate::{
    Checkpoint, Error, Method, QuantizeJob, Result,
    coding::awq::{self as coded, Scheme as Coded},
};

const fn scheme(name: &'static str, aliases: &'static [&'static str], summary: &'static str, group: u32) -> Scheme {
    let weights = Format::INT4_G128.in_groups(group).with_zeros();
    Scheme { name, aliases, summary, weights, activations: None, target: Target::Awq(Coded { group }) }
}

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    scheme("int4-g128-zp", &["w4a16-asym", "w4a16-asym-g128"], "INT4 in groups of 128 with zero points", 128),
    scheme("int4-g64-zp", &["w4a16-asym-g64"], "INT4 in groups of 64 with zero points", 64),
    scheme("int4-g32-zp", &["w4a16-asym-g32"], "INT4 in groups of 32 with zero points", 32),
];

/// Models in which transformers looks for scales of an activation beside AWQ's codes (`AWQ_SCALES_MAPPINGS`), which only AWQ's own
/// search stores.
const SCALED: [&str; 8] =
    ["starcoder2", "RefinedWebModel", "falcon", "mpt", "gptj", "gpt_neox", "gpt_bigcode", "bloom"];

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<QuantizeJob<'a>> {
    let (decisions, mut notes) = decide(checkpoint, plan, Layout::Awq, |scheme, _| {
        let Target::Awq(coding) = scheme.target else { unreachable!("a scheme of this layout") };
        coded::coding(coding, method).map(Arc::from)
    })?;
    let scheme = one_scheme("AWQ", checkpoint, &decisions)?;
    let family = checkpoint.config["model_type"].as_str().unwrap_or_default();
    if SCALED.contains(&family) {
        return Err(Error::unsupported(
            format!(
                "transformers' AWQ wants scales of an activation in a model of type `{family}`, which AWQ's search makes"
            ),
            "use `⟨as gptq⟩` or `⟨as compressed-tensors⟩`",
        ));
    }
    notes.extend(torn_families(&decisions));
    notes.extend(kept_stacks(&decisions));
    notes.extend(checkpoint.left_out()?);
    let quantization = configuration(scheme, &decisions);
    let config = folder::with_quantization(&checkpoint.config, quantization);
    folder::job(checkpoint, decisions, Vec::new(), &config, notes)
}

/// The `quantization_config`. transformers keeps the head whatever is said.
fn configuration(scheme: &Scheme, decisions: &[Decision<'_>]) -> Value {
    let Target::Awq(coded) = scheme.target else { unreachable!("a scheme of this layout") };
    let kept = decisions
        .iter()
        .filter(|decision| decision.coded.is_none() && !matches!(decision.site.role, Role::Vector | Role::Embedding));
    let mut kept: Vec<&str> = kept.map(|decision| decision.site.module.as_str()).chain(["lm_head"]).collect();
    kept.sort_unstable();
    kept.dedup();
    json!({
        "quant_method": "awq",
        "bits": 4,
        "group_size": coded.group,
        "zero_point": true,
        "version": "gemm",
        "modules_to_not_convert": kept,
    })
}
