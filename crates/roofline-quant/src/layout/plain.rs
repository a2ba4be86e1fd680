//! Plain numbers: a change of type, and the way back from codes.

use std::sync::Arc;

use serde_json::Value;

use super::{Decision, Layout, Scheme, Target, folder, idle, items, shard_of, sites};
use crate::{
    Checkpoint, Dtype, Job, Plan, Result,
    coding::{Coding, Matrix, Numbers},
    number::is_number,
    plan::KEEP,
    stored::Stored,
};

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    Scheme { name: "bf16", aliases: &["bfloat16"], summary: "BF16", target: Target::Plain(Dtype::Bf16) },
    Scheme { name: "f16", aliases: &["fp16", "float16"], summary: "FP16", target: Target::Plain(Dtype::F16) },
    Scheme { name: "f32", aliases: &["fp32", "float32"], summary: "FP32", target: Target::Plain(Dtype::F32) },
];

/// What writing the checkpoint takes: every number that is not kept becomes of the plan's type.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan) -> Result<Job<'a>> {
    let (all, layers) = sites(checkpoint)?;
    let notes = idle(plan, &all, layers);
    let scheme = Layout::Plain.scheme(&plan.scheme)?;
    let mut folder = folder::Folder::new(checkpoint.shards.len());
    let mut decisions = Vec::new();
    for (stored, site) in all {
        let ruled = plan.rule(&site, layers);
        let scheme = match ruled {
            Some(KEEP) => None,
            Some(name) => Some(Layout::Plain.scheme(name)?),
            None => Some(scheme),
        };
        let shard = shard_of(checkpoint, &stored);
        let shape = stored.shape();
        let (_, entry) = stored.first();
        let number = matches!(stored, Stored::Coded(_)) || is_number(entry.dtype);
        let coded = scheme.filter(|_| number).and_then(|scheme| {
            let Target::Plain(dtype) = scheme.target else { return None };
            let same = matches!(stored, Stored::Plain((_, entry)) if entry.dtype == dtype);
            let columns = shape.last().copied().unwrap_or(1);
            let rows = shape.iter().product::<usize>() / columns.max(1);
            let coding: Arc<dyn Coding> = Arc::new(Numbers(dtype));
            let parts = coding.parts(Matrix { rows, columns }).ok()?;
            (!same).then_some((scheme, coding, parts))
        });
        match (&coded, &stored) {
            (Some((_, _, parts)), _) => folder.add(shard, stored.name().to_owned(), parts[0].dtype, &shape),
            (None, Stored::Plain((_, entry))) => folder.add(shard, entry.name.clone(), entry.dtype, &shape),
            (None, Stored::Coded(coded)) => {
                return Err(coded.refuse("is in codes, which a plain checkpoint cannot keep"));
            }
        }
        decisions.push(Decision { shard, stored, site, coded });
    }
    let laid_out = folder.lay_out(&[("format".to_owned(), "pt".to_owned())])?;
    let name = |decision: &Decision<'_>| decision.stored.name().to_owned();
    let names: std::collections::HashMap<String, String> =
        decisions.iter().map(|decision| (decision.site.module.clone(), name(decision))).collect();
    let items = items(decisions, &laid_out.places, |site, _| names.get(&site.module).cloned().unwrap_or_default())?;
    let config = configuration(&checkpoint.config, scheme);
    Ok(Job {
        files: laid_out.files,
        items,
        companions: folder::companions(checkpoint, &config, laid_out.index)?,
        notes,
    })
}

/// The configuration of plain weights of that type, in whichever dialect it was.
fn configuration(config: &Value, scheme: &Scheme) -> Value {
    let mut config = config.clone();
    let dtype = match scheme.target {
        Target::Plain(Dtype::F16) => "float16",
        Target::Plain(Dtype::F32) => "float32",
        _ => "bfloat16",
    };
    if let Some(map) = config.as_object_mut() {
        map.shift_remove("quantization_config");
        let key = if map.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        map.insert(key.to_owned(), dtype.into());
    }
    config
}
