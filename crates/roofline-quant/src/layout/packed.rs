//! What GPTQ's and AWQ's loaders have in common: transformers takes both to GPTQModel's kernels, one scheme for all products of
//! the layers of a language model, and nothing else.

use super::{Decision, Scheme};
use crate::{Checkpoint, Error, Result};

/// The one scheme of a checkpoint, or why its loader would not take it.
pub(super) fn one_scheme(layout: &str, checkpoint: &Checkpoint, decisions: &[Decision<'_>]) -> Result<&'static Scheme> {
    const SENSES: [&str; 4] = ["vision_config", "audio_config", "vision_tower", "visual"];
    if let Some(sense) = SENSES.iter().find(|sense| checkpoint.config.get(**sense).is_some()) {
        return Err(Error::unsupported(
            format!("config.json has a `{sense}`, and transformers loads {layout} into models of text alone"),
            "`⟨as compressed-tensors⟩` quantizes the language model of a model that sees",
        ));
    }
    let mut only: Option<&'static Scheme> = None;
    for Decision { stored, site, coded, .. } in decisions {
        let Some((scheme, ..)) = coded else { continue };
        let reason = if site.experts().is_some() {
            format!("is of an expert, and transformers keeps experts in stacks, which it has no {layout} for")
        } else if !site.is_layer_product() {
            format!("is no product inside a layer, and transformers loads {layout} there alone")
        } else {
            match only {
                Some(only) if only.name != scheme.name => {
                    let reason =
                        format!("would be {} beside {}, and {layout} has one scheme for all", scheme.name, only.name);
                    return Err(stored.refuse(reason, Some("keep it with `⟨keep⟩`, or use `⟨as compressed-tensors⟩`")));
                }
                _ => only = Some(scheme),
            }
            continue;
        };
        let hint = "keep it with a rule, such as `experts=keep` or `head=keep`, or use `⟨as compressed-tensors⟩`";
        return Err(stored.refuse(reason, Some(hint)));
    }
    // That something is coded was looked at before.
    only.ok_or_else(|| Error::unsupported("nothing is quantized".to_owned(), "name a plan"))
}
