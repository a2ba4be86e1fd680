//! Names that are allowed or denied, and what they mean for a plan.

use super::{Candidate, Need};
use crate::{Device, Error, Format, Plan, Result, format::Element, plan::Mix};

/// Something that a plan is made of.
struct Part {
    name: String,
    format: Option<Format>,
}

impl Part {
    fn answers_to(&self, name: &str) -> bool {
        let stored = self.format.filter(|format| format.nominal_bits() < 16);
        self.name == name
            || self.name.split('/').next() == Some(name)
            || stored.is_some_and(|format| format.to_string() == name)
            // Whoever says INT4 means every group size.
            || name == "int4" && stored.is_some_and(|format| format.element() == Element::Int4)
    }
}

/// The parts of a plan's weights that are narrow.
fn parts(plan: &Plan, narrow_base: bool) -> Vec<Part> {
    let base = plan.mix().map_or_else(
        || plan.precision().and_then(|precision| precision.formats().weights),
        |mix: Mix| Some(mix.base()),
    );
    let name = plan.precision().map_or_else(|| plan.base().to_owned(), |precision| precision.canonical().to_owned());
    let base = narrow_base.then_some(Part { name, format: base });
    let rules = plan
        .rules()
        .iter()
        .map(|rule| Part { name: rule.precision.canonical().to_owned(), format: rule.precision.formats().weights });
    base.into_iter().chain(rules).collect()
}

impl Candidate {
    fn weights(&self) -> Vec<Part> {
        let narrow = self.plan.mix().is_some()
            || self
                .plan
                .precision()
                .and_then(|precision| precision.formats().weights)
                .is_none_or(|format| format.nominal_bits() < 16);
        parts(&self.plan, narrow)
    }

    /// The same and its cache.
    fn named_parts(&self) -> Vec<Part> {
        let kv = self.plan.kv().map(|kv| Part { name: kv.to_string(), format: Some(kv) });
        self.weights().into_iter().chain(kv).collect()
    }

    /// Whether a name stands for it or for a part of it: a precision, a recipe, a format of weights or of the cache, or the
    /// whole text.
    pub(super) fn has(&self, name: &str) -> bool {
        let whole = self.plan.to_string() == name || self.plan.base() == name;
        whole || self.named_parts().iter().any(|part| part.answers_to(name))
    }

    /// A part that none of the names stands for; 16 bit needs none.
    fn beyond(&self, names: &[String]) -> Option<String> {
        if names.contains(&self.plan.to_string()) {
            return None;
        }
        let allowed = |part: &Part| names.iter().any(|name| part.answers_to(name));
        self.named_parts().into_iter().find(|part| !allowed(part)).map(|part| part.name)
    }

    /// Why names and units forbid it.
    pub(super) fn refusal(&self, need: &Need<'_>) -> Option<String> {
        let limits = need.limits;
        let unread = |format: &Format| need.reads.is_some_and(|reads| !reads(*format));
        if let Some(format) = self.weights().iter().filter_map(|part| part.format).find(unread) {
            return Some(format!("has weights in {format}, which no kernel here reads as they are stored"));
        }
        if let Some(denied) = limits.deny.iter().find(|name| self.has(name)) {
            return Some(format!("has {denied}, which is denied"));
        }
        if let Some(missing) = self.beyond(&limits.allow).filter(|_| !limits.allow.is_empty()) {
            return Some(format!("has {missing}, which is not allowed"));
        }
        (limits.native_only && self.weight_only())
            .then(|| "has weights that no unit multiplies as they are stored".to_owned())
    }
}

/// Refuses names that no plan of the device has: a limit that does nothing is a slip.
pub(super) fn known(names: &[String], all: &[Candidate], device: &Device) -> Result<()> {
    let Some(unknown) = names.iter().find(|name| !all.iter().any(|candidate| candidate.has(name))) else {
        return Ok(());
    };
    let uniform = all.iter().filter(|candidate| candidate.plan.is_uniform());
    let there: Vec<String> = uniform.map(|candidate| candidate.plan.to_string()).collect();
    Err(Error::Shape(format!("no plan for {} has `{unknown}`: there are {}", device.name, there.join(", "))))
}
