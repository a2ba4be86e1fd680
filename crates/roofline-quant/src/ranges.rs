//! How large the numbers get that a model computes with: what no weight tells, and only data can.
//!
//! A file of them is JSON:
//!
//! ```json
//! {
//!   "inputs": { "model.layers.0.self_attn.q_proj": 11.5 },
//!   "keys": { "model.layers.0.self_attn": 9.25 },
//!   "values": { "model.layers.0.self_attn": 2.5 }
//! }
//! ```
//!
//! Each number is the largest magnitude that was seen: of the inputs of a product, by its module; of the keys and the values that
//! go to the cache, by the module of attention. What is missing altogether may be left out.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};

use crate::{Error, Result, checkpoint::read_json};

/// The largest magnitudes that data brought, by module.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Ranges {
    /// Of the inputs of products.
    #[serde(default)]
    pub inputs: BTreeMap<String, f32>,
    /// Of keys in the cache.
    #[serde(default)]
    pub keys: BTreeMap<String, f32>,
    /// Of values in the cache.
    #[serde(default)]
    pub values: BTreeMap<String, f32>,
}

impl Ranges {
    /// Reads a file of them.
    pub fn read(path: &Path) -> Result<Self> {
        let ranges: Self = read_json(path, "file of ranges")?;
        for (what, all) in [("inputs", &ranges.inputs), ("keys", &ranges.keys), ("values", &ranges.values)] {
            if let Some((module, range)) = all.iter().find(|(_, range)| !range.is_finite() || **range < 0.0) {
                let reason =
                    format!("the range of the {what} of `{module}` is {range}: a magnitude is finite and not negative");
                return Err(Error::malformed(path, "file of ranges", reason));
            }
        }
        Ok(ranges)
    }
}

/// Ranges that are looked up, and which of them were missing.
pub(crate) struct Wants<'r> {
    given: Option<&'r Ranges>,
    missing: Vec<String>,
}

impl<'r> Wants<'r> {
    pub(crate) fn of(given: Option<&'r Ranges>) -> Self {
        Self { given, missing: Vec::new() }
    }

    /// The range of `module` among those that `which` chooses, in which it is the `what`.
    pub(crate) fn want(&mut self, what: &str, module: &str, which: impl Fn(&Ranges) -> &BTreeMap<String, f32>) -> f32 {
        let found = self.given.and_then(|ranges| which(ranges).get(module).copied());
        if found.is_none() {
            self.missing.push(format!("the {what} of `{module}`"));
        }
        found.unwrap_or_default()
    }

    /// An error if anything was missing.
    pub(crate) fn check(&self, plan: &roofline_core::Plan) -> Result<()> {
        let [first, more @ ..] = &self.missing[..] else { return Ok(()) };
        let more = if more.is_empty() { String::new() } else { format!(", nor for {} others", more.len()) };
        if self.given.is_some() {
            let what = format!("the file of ranges has none for {first}{more}");
            return Err(Error::unsupported(
                what,
                "every product and cache that is scaled before data are seen needs one",
            ));
        }
        Err(Error::unsupported(
            format!("the plan `{plan}` stores scales for {first}, which only data can tell"),
            "give what data were seen to reach with `⟨ranges FILE⟩`, or take a plan that scales while it runs, such as \
             `fp8` or `nvfp4a16`",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn ranges_are_magnitudes() {
        let scratch = Scratch::new("ranges");
        let path = scratch.path().join("ranges.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Ranges::read(&path).map_err(|error| error.to_string())
        };
        let ranges = read(r#"{"inputs": {"a": 1.5}, "keys": {"b": 0}}"#).unwrap();
        assert_eq!((ranges.inputs["a"], ranges.keys["b"], ranges.values.len()), (1.5, 0.0, 0));
        for (text, word) in [
            (r#"{"inputs": {"a": -1}}"#, "`a` is -1"),
            (r#"{"values": {"a": 1e60}}"#, "out of range"),
            (r#"{"outputs": {}}"#, "outputs"),
            ("[1]", "ranges"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn what_is_missing_is_counted() {
        let plan = "nvfp4".parse().unwrap();
        let ranges = Ranges { inputs: [("a".to_owned(), 2.0)].into(), ..Ranges::default() };
        let mut wants = Wants::of(Some(&ranges));
        assert_eq!(wants.want("input", "a", |ranges| &ranges.inputs), 2.0);
        assert!(wants.check(&plan).is_ok());
        wants.want("input", "b", |ranges| &ranges.inputs);
        wants.want("input", "c", |ranges| &ranges.inputs);
        let said = wants.check(&plan).unwrap_err().to_string();
        assert_eq!(said, "the file of ranges has none for the input of `b`, nor for 1 others");
        let mut none = Wants::of(None);
        none.want("input", "a", |ranges| &ranges.inputs);
        let error = none.check(&plan).unwrap_err();
        assert!(error.to_string().contains("`nvfp4`") && error.hint().unwrap().contains("⟨ranges FILE⟩"), "{error}");
    }
}
