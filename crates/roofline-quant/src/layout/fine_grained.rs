//! Hugging Face's fine-grained FP8: as DeepSeek-V3 and Qwen's FP8 models are released, and transformers, vLLM and SGLang load.

use std::{collections::BTreeSet, sync::Arc};

use roofline_core::{Format, Plan, Role};
use serde_json::{Value, json};

use super::{
    Decision, Layout, Scheme, Target, compressed_tensors::check_embedding, decide, folder, kept_stacks, torn_families,
};
use crate::{Checkpoint, Method, QuantizeJob, Result, coding::fine_grained as coded, stored::StoredTensor};

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[Scheme {
    name: "fp8-block",
    aliases: &[],
    summary: "E4M3 with a scale per 128 x 128; E4M3 activations with a scale per 128 of a token",
    weights: Format::FP8.in_squares(128),
    activations: Some(Format::FP8.in_groups(128)),
    target: Target::FineGrained,
}];

/// Rows and columns of a block.
const SIDE: usize = 128;

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<QuantizeJob<'a>> {
    let (decisions, mut notes) = decide(checkpoint, plan, Layout::FineGrained, |_, stored| {
        check_shape(stored)?;
        coded::coding(method).map(Arc::from)
    })?;
    check_embedding(&checkpoint.config, &decisions)?;
    let kept = kept(&decisions);
    let torn = |decision: &&Decision<'_>| {
        decision.coded.is_some() && decision.site.experts().is_some_and(|parent| kept.contains(parent))
    };
    if let Some(Decision { stored, .. }) = decisions.iter().find(torn) {
        let reason = "is of experts of which others are kept, and transformers takes those of a layer as one";
        return Err(stored.refuse(reason, Some("keep all experts of a layer, or none")));
    }
    let uneven = decisions.iter().filter(|decision| decision.coded.is_some() && decision.stored.shape[0] % SIDE != 0);
    if let Some(first) = uneven.map(|decision| &decision.stored).find(|stored| stored.shape[0] > SIDE) {
        notes.push(format!(
            "`{}` has {} rows, no multiple of {SIDE}: transformers runs it on a GPU, and without one refuses to decode it",
            first.name, first.shape[0]
        ));
    }
    notes.extend(torn_families(&decisions));
    notes.extend(kept_stacks(&decisions));
    notes.extend(checkpoint.left_out()?);
    let quantization = json!({
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [SIDE, SIDE],
        "modules_to_not_convert": kept.iter().copied().collect::<Value>(),
    });
    let config = folder::with_quantization(&checkpoint.config, quantization);
    folder::job(checkpoint, decisions, Vec::new(), &config, notes)
}

/// Refuses shapes that transformers' products fail with, or that it takes for others. Inputs share a scale by 128, so columns are whole
/// blocks. Without a GPU it decodes, and takes rows to be shared evenly by as many scales as there are: 192 rows of two
/// scales would be 96 each. Experts are joined before they are multiplied, so their rows are whole blocks, too.
fn check_shape(stored: &StoredTensor<'_>) -> Result<()> {
    let [rows, columns] = stored.shape[..] else { return Ok(()) };
    let hint = Some("keep it with `⟨keep⟩`, or choose a scheme with one scale per channel");
    if !columns.is_multiple_of(SIDE) {
        let reason = format!("has {columns} columns, and its inputs share a scale by {SIDE} while the model runs");
        return Err(stored.refuse(reason, hint));
    }
    let blocks = rows.div_ceil(SIDE);
    let even = blocks > 1 && rows.is_multiple_of(blocks) || stored.name.contains(".experts.");
    if !rows.is_multiple_of(SIDE) && even {
        let reason =
            format!("has {rows} rows, no multiple of {SIDE}: transformers would take its blocks for smaller ones");
        return Err(stored.refuse(reason, hint));
    }
    Ok(())
}

/// What is kept, in names of modules. The head is a product even where it has no tensor of its own, and transformers turns all experts
/// of a layer into codes or none.
fn kept<'d>(decisions: &'d [Decision<'_>]) -> BTreeSet<&'d str> {
    let products = decisions
        .iter()
        .filter(|decision| decision.coded.is_none() && !matches!(decision.site.role, Role::Vector | Role::Embedding));
    let head = decisions.iter().any(|decision| decision.coded.is_some() && decision.site.module == "lm_head");
    let names = products.map(|decision| decision.site.experts().unwrap_or(&decision.site.module));
    names.chain(Some("lm_head").filter(|_| !head)).collect()
}
