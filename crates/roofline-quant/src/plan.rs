//! What a plan asks for at the weights of a checkpoint, and plans in files.

use std::path::Path;

use roofline_core::{
    Format, Plan, Role,
    plan::{Mix, Rule, Stored},
    precision::PrecisionSpec,
};
use serde_json::Value;

use crate::{Error, Result, checkpoint::read_bounded, site::Site};

/// How the note begins that a plan's word about the cache went unheard.
pub(crate) const CACHE: &str = "a checkpoint says nothing of the cache";

/// Plans longer than this are no plans.
const LONGEST: u64 = 1 << 20;

/// Reads a plan from a file: a TOML table with `plan`, a text or a list of its parts.
pub fn read(path: &Path) -> Result<Plan> {
    let text = String::from_utf8(read_bounded(path, LONGEST, "plan")?)
        .map_err(|error| Error::malformed(path, "plan", error.to_string()))?;
    Ok(Plan::from_toml(&text)?)
}

/// What is asked for at one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted<'p> {
    /// That it stays as it is; nothing in the plan speaks of it.
    Kept,
    /// This precision.
    As(&'p PrecisionSpec),
    /// What a recipe of llama.cpp says.
    Mixed(Mix),
}

/// A plan for a model.
pub(crate) struct Asked<'p> {
    pub(crate) plan: &'p Plan,
    layers: u64,
    /// Whether the embedding is the output head, too.
    pub(crate) tied: bool,
}

impl<'p> Asked<'p> {
    /// For a model of that configuration, with these weights.
    pub(crate) fn new<'s>(plan: &'p Plan, config: &Value, sites: impl Iterator<Item = &'s Site>) -> Self {
        let (mut layers, mut head) = (0, false);
        for site in sites {
            layers = site.layer.map_or(layers, |layer| layers.max(layer + 1));
            head |= site.role == Role::Head;
        }
        Self { plan, layers, tied: is_tied(config, head) }
    }

    /// The rule that decides. Rules speak of matrices: what is a vector stays. An embedding that is the head as well answers to
    /// both.
    pub(crate) fn rule(&self, site: &Site) -> Option<&'p Rule> {
        self.plan.rules().iter().rev().find(|rule| self.fits(rule, site))
    }

    fn fits(&self, rule: &Rule, site: &Site) -> bool {
        let fits = |role| rule.selector.fits(role, site.layer, self.layers, Some(&site.module));
        site.role != Role::Vector && (fits(site.role) || self.tied && site.role == Role::Embedding && fits(Role::Head))
    }

    /// What is asked for.
    pub(crate) fn at(&self, site: &Site) -> Wanted<'p> {
        if let Some(rule) = self.rule(site) {
            return Wanted::As(&rule.precision);
        }
        match self.plan.at(site.role, site.layer, self.layers, Some(&site.module)) {
            Stored::Mixed(mix) => Wanted::Mixed(mix),
            Stored::As(precision) if site.is_layer_product() => Wanted::As(precision),
            Stored::As(_) | Stored::Wide => Wanted::Kept,
        }
    }

    /// A word for every rule that fits none of `sites`, and for the cache, of which nothing is stored.
    pub(crate) fn notes(&self, sites: &[&Site]) -> Vec<String> {
        let idle = self.plan.rules().iter().filter(|rule| !sites.iter().any(|site| self.fits(rule, site)));
        let idle = idle.map(|rule| format!("the rule for `{}` fits no weight of this model", rule.selector));
        let kv = self.plan.kv().or_else(|| self.plan.precision().and_then(|precision| precision.formats().kv));
        let cache = kv
            .filter(|kv| kv.nominal_bits() < 16)
            .map(|kv| format!("{CACHE}: ask the runtime for {kv} keys and values when it starts"));
        idle.chain(cache).collect()
    }
}

/// Whether the embedding of a model is its output head: it says so, or has no `head` of its own.
pub(crate) fn is_tied(config: &Value, head: bool) -> bool {
    let stated = |config: &Value| config["tie_word_embeddings"] == Value::Bool(true);
    !head || stated(config) || stated(&config["text_config"])
}

/// The plain numbers that a precision stores weights in, where it names such: 16 bit of either kind, or 32.
pub(crate) fn plain(precision: &PrecisionSpec) -> Option<Format> {
    precision.formats().weights.filter(|format| matches!(*format, Format::BF16 | Format::FP16 | Format::FP32))
}

/// The weights and the activations of a precision, where it stores weights in anything but 16 bit. What the activations are
/// where they have 16 bit or more is the model's business.
pub(crate) fn narrow(precision: &PrecisionSpec) -> Option<(Format, Option<Format>)> {
    let formats = precision.formats();
    let weights = formats.weights.filter(|format| !matches!(*format, Format::BF16 | Format::FP16))?;
    Some((weights, formats.activations.filter(|format| format.nominal_bits() < 16)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(plan: &str, name: &str, layers: u64) -> String {
        let plan: Plan = plan.parse().unwrap();
        let asked = Asked { plan: &plan, layers, tied: false };
        let dimensions = if name.contains("norm") { 1 } else { 2 };
        match asked.at(&Site::of(name, dimensions)) {
            Wanted::As(precision) => precision.canonical().to_owned(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn layers_are_quantized_and_the_rest_is_kept() {
        assert_eq!(at("w4a16", "model.layers.0.mlp.up_proj.weight", 2), "w4a16");
        let kept = ["model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight", "a.norm.weight"];
        for kept in kept.iter().chain(&["model.mtp.q_proj.weight"]) {
            assert_eq!(at("w4a16", kept, 2), "Kept", "{kept}");
        }
        // Stacked experts are products of their layer like any other.
        let stack = Site::of("model.layers.0.feed_forward.experts.down_proj", 3);
        let plan: Plan = "w4a16".parse().unwrap();
        assert!(matches!(Asked { plan: &plan, layers: 2, tied: false }.at(&stack), Wanted::As(_)));
    }

    #[test]
    fn later_rules_win() {
        let plan = "w4a16,down=w8a16,*.mlp.*=int4-g32,layers.0=keep,layers.-1.ffn=keep,head=w8a16";
        let at = |name: &str| at(plan, name, 4);
        assert_eq!(at("model.layers.1.mlp.down_proj.weight"), "int4-g32");
        assert_eq!(at("model.layers.0.mlp.down_proj.weight"), "16bit");
        assert_eq!(at("model.layers.3.mlp.up_proj.weight"), "16bit");
        assert_eq!(at("model.layers.3.self_attn.q_proj.weight"), "w4a16");
        assert_eq!(at("lm_head.weight"), "w8a16");
        // A rule by name leaves the vectors of a module alone.
        assert_eq!(at("model.layers.1.mlp.norm.weight"), "Kept");
    }

    #[test]
    fn idle_rules_and_the_cache_are_told() {
        let plan: Plan = "w4a16,layers.9=keep,*.up_proj=keep,kv=fp8".parse().unwrap();
        let site = Site::of("model.layers.0.mlp.up_proj.weight", 2);
        let notes = Asked::new(&plan, &Value::Null, [&site].into_iter()).notes(&[&site]);
        assert_eq!(notes[0], "the rule for `layers.9` fits no weight of this model");
        assert!(notes[1].contains("fp8-e4m3 keys and values") && notes.len() == 2, "{notes:?}");
    }

    /// Where the embedding is the head, a rule for the head is one for the embedding.
    #[test]
    fn a_tied_head_is_the_embedding() {
        let plan: Plan = "q4_0,head=q8_0".parse().unwrap();
        let (table, head) = (Site::of("model.embed_tokens.weight", 2), Site::of("lm_head.weight", 2));
        let of =
            |config: Value, sites: &[&Site]| Asked::new(&plan, &config, sites.iter().copied()).rule(&table).is_some();
        assert!(of(json!({}), &[&table]));
        assert!(of(json!({"tie_word_embeddings": true}), &[&table, &head]));
        assert!(!of(json!({"tie_word_embeddings": false}), &[&table, &head]));
    }
}
