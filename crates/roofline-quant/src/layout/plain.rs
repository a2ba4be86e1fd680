//! Plain numbers: a change of type, and the way back from codes.

use std::sync::Arc;

use roofline_core::{Format, Plan, Role, precision::PrecisionSpec};
use serde_json::Value;

use super::{Decision, Layout, Scheme, Target, asked, folder, items, shard_of, sites};
use crate::{
    Checkpoint, Dtype, QuantizeJob, Result,
    coding::{Coding, Matrix, Numbers},
    family::{self, Family, Stack},
    number::is_number,
    site::Site,
    stored::{StoredTensor, declares_quantization},
};

const fn scheme(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    dtype: Dtype,
) -> Scheme {
    Scheme { name, aliases, summary, weights, activations: None, target: Target::Plain(dtype) }
}

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    scheme("bf16", &["bfloat16"], "BF16", Format::BF16, Dtype::Bf16),
    scheme("fp16", &["f16", "float16"], "FP16", Format::FP16, Dtype::F16),
    scheme("fp32", &["f32", "float32"], "FP32", Format::FP32, Dtype::F32),
];

/// What is stored for activations and caches that are quantized, beside the weights in codes.
const ACTIVATIONS: [&str; 10] = [
    ".input_scale",
    ".input_scale_ub",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".output_global_scale",
    ".output_zero_point",
    ".q_scale",
    ".k_scale",
    ".v_scale",
];

/// What writing the checkpoint takes: every number that is not kept becomes of the plan's type.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan) -> Result<QuantizeJob<'a>> {
    let mut all = sites(checkpoint)?;
    // Quantized checkpoints of the family have their experts apart, plain ones in stacks.
    if Family::of(&checkpoint.config).stack() == Some(Stack::SideBySide) {
        let together = family::together(all.into_iter().map(|(stored, _)| stored).collect())?;
        let placed = |stored: StoredTensor<'a>| {
            let site = Site::of(&stored.name, stored.shape.len());
            (stored, site)
        };
        all = together.into_iter().map(placed).collect();
    }
    let (asked, mut notes) = asked(plan, checkpoint, &all);
    notes.extend(checkpoint.left_out()?);
    let base = plan.precision().map_or(Ok(None), |precision| numbers(precision, None))?;
    let mut folder = folder::Folder::new(checkpoint.shards.len());
    let mut decisions = Vec::new();
    let coded = declares_quantization(&checkpoint.config) || all.iter().any(|(one, _)| one.is_coded());
    for (stored, site) in all {
        // What scales activations goes with the codes: plain weights read plain activations.
        if coded && ACTIVATIONS.iter().any(|part| stored.name.ends_with(part)) {
            continue;
        }
        // A type of numbers is that of everything, vectors and all, but for what a rule names.
        let scheme = match asked.rule(&site) {
            Some(rule) => numbers(&rule.precision, Some(site.role))?,
            None => base,
        };
        let shard = shard_of(checkpoint, &stored);
        let shape = &stored.shape;
        let number = is_number(stored.dtype);
        if !number && scheme.is_some() && site.role != Role::Vector {
            let reason = format!("is stored as {}, which is not a floating-point number", stored.dtype);
            return Err(stored.refuse(reason, Some("keep it with `⟨keep⟩`")));
        }
        let coded = scheme.filter(|_| number).and_then(|scheme| {
            let Target::Plain(dtype) = scheme.target else { return None };
            let same = !stored.is_coded() && stored.dtype == dtype;
            let columns = shape.last().copied().unwrap_or(1);
            let rows = shape.iter().product::<usize>() / columns.max(1);
            let coding: Arc<dyn Coding> = Arc::new(Numbers(dtype));
            let parts = coding.parts(Matrix { rows, columns }).ok()?;
            (!same).then_some((scheme, coding, parts))
        });
        if coded.is_none() && stored.is_coded() {
            return Err(stored.refuse("is in codes, which a plain checkpoint cannot keep", None));
        }
        let dtype = coded.as_ref().map_or(stored.dtype, |(_, _, parts)| parts[0].dtype);
        folder.add(shard, stored.name.clone(), dtype, shape);
        decisions.push(Decision { shard, stored, site, coded });
    }
    let laid_out = folder.lay_out(&[("format".to_owned(), "pt".to_owned())])?;
    let items = items(decisions, &laid_out.places, |source, _, _| source.to_owned())?;
    let config = configuration(&checkpoint.config, base);
    Ok(QuantizeJob {
        files: laid_out.files,
        items,
        companions: folder::companions(checkpoint, &config, laid_out.index)?,
        notes,
        nearest: Vec::new(),
    })
}

/// The scheme of a precision's weights; none where they are kept.
fn numbers(precision: &PrecisionSpec, role: Option<Role>) -> Result<Option<&'static Scheme>> {
    let formats = precision.formats();
    formats.weights.map(|weights| Layout::Plain.scheme_at(role, weights, formats.activations)).transpose()
}

/// The configuration of plain weights of that type, in whichever dialect it was.
fn configuration(config: &Value, scheme: Option<&Scheme>) -> Value {
    let mut config = config.clone();
    let dtype = match scheme.map(|scheme| scheme.target) {
        Some(Target::Plain(Dtype::F16)) => Some("float16"),
        Some(Target::Plain(Dtype::F32)) => Some("float32"),
        Some(_) => Some("bfloat16"),
        None => None,
    };
    if let Some(map) = config.as_object_mut() {
        for key in ["quantization_config", "compression_config", "quantization"] {
            map.shift_remove(key);
        }
        let key = if map.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        if let Some(dtype) = dtype {
            map.insert(key.to_owned(), dtype.into());
        }
    }
    config
}
