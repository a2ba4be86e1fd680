//! Which scheme at which weight: a name for the layers' products, and rules for what differs.
//!
//! ```toml
//! scheme = "w4a16"            # every product inside the layers; all else is kept as it is
//!
//! [[rule]]                    # later rules win
//! role = "down"               # by role ...
//! scheme = "w8a16"
//!
//! [[rule]]
//! weights = "*.self_attn.*"   # ... or by name, `*` standing for anything ...
//! layers = [0, 1, -1]         # ... in these layers; -1 is the last
//! scheme = "keep"
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    checkpoint::read_bounded,
    site::{Role, Site},
};

/// The word for "leave it as it is".
pub const KEEP: &str = "keep";
/// Plans longer than this are no plans.
const LONGEST: u64 = 1 << 20;

/// What becomes of every weight. Names of schemes belong to the layout that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What the products inside the layers become.
    pub scheme: String,
    /// Exceptions, the last that fits winning.
    #[serde(default, rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// An exception. Everything given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Names of modules, `*` standing for any run of characters and `?` for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// A role, `attention` or `feed-forward`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Layers, counted from the end where negative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<i64>>,
    /// What becomes of it.
    pub scheme: String,
}

impl Plan {
    /// One scheme, no exceptions.
    pub fn uniform(scheme: impl Into<String>) -> Self {
        Self { scheme: scheme.into(), rules: Vec::new() }
    }

    /// Reads a plan from a file.
    pub fn read(path: &Path) -> Result<Self> {
        let refuse = |reason: String| Error::malformed(path, "plan", reason);
        let text =
            String::from_utf8(read_bounded(path, LONGEST, "plan")?).map_err(|error| refuse(error.to_string()))?;
        Self::parse(&text).map_err(refuse)
    }

    /// Reads a plan; says in words what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (at, rule) in plan.rules.iter().enumerate() {
            rule.check().map_err(|reason| format!("rule {}: {reason}", at + 1))?;
        }
        Ok(plan)
    }

    /// Adds a rule that keeps modules of that name.
    pub fn keep(&mut self, weights: &str) {
        self.rules.push(Rule { weights: Some(weights.to_owned()), scheme: KEEP.to_owned(), ..Rule::default() });
    }

    /// The scheme for a weight of a model with that many layers; none where it is kept.
    pub fn at(&self, site: &Site, layers: u64) -> Option<&str> {
        let plain = if site.is_layer_product() && !site.is_stack() { self.scheme.as_str() } else { KEEP };
        Some(self.rule(site, layers).unwrap_or(plain)).filter(|scheme| *scheme != KEEP)
    }

    /// What the last rule that fits says.
    pub(crate) fn rule(&self, site: &Site, layers: u64) -> Option<&str> {
        self.rules.iter().rev().find(|rule| rule.fits(site, layers)).map(|rule| rule.scheme.as_str())
    }

    /// Rules that fit none of `sites`: most likely misspelt.
    pub fn idle(&self, sites: &[&Site], layers: u64) -> Vec<&Rule> {
        self.rules.iter().filter(|rule| !sites.iter().any(|site| rule.fits(site, layers))).collect()
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        if self.weights.is_none() && self.role.is_none() && self.layers.is_none() {
            return Err("it says nothing of where it applies: give `weights`, `role` or `layers`".to_owned());
        }
        match self.role.as_deref() {
            None | Some("attention" | "feed-forward") => Ok(()),
            Some(role) => role.parse::<Role>().map(drop).map_err(|error| error.to_string()),
        }
    }

    fn fits(&self, site: &Site, layers: u64) -> bool {
        // A rule speaks of matrices: what is a vector stays.
        site.role != Role::Vector
            && self.weights.as_deref().is_none_or(|pattern| matches(pattern, &site.module))
            && self.role.as_deref().is_none_or(|role| match role {
                "attention" => site.role.is_attention(),
                "feed-forward" => site.role.is_feed_forward(),
                role => site.role.name() == role,
            })
            && self.layers.as_ref().is_none_or(|list| {
                site.layer.is_some_and(|layer| {
                    list.iter().any(|at| if *at < 0 { layers as i64 + at } else { *at } == layer as i64)
                })
            })
    }

    /// The rule, as a person would name it.
    pub fn text(&self) -> String {
        let parts = [
            self.weights.as_ref().map(|weights| format!("weights `{weights}`")),
            self.role.as_ref().map(|role| format!("role `{role}`")),
            self.layers.as_ref().map(|layers| format!("layers {layers:?}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// Whether `text` is what `pattern` describes. Linear in the text for every star, so a hostile pattern costs little.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => match retry {
                // The star takes one character more.
                Some((after, from)) => {
                    (p, t) = (after, from + 1);
                    retry = Some((after, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> Site {
        Site::of(name, 2)
    }

    #[test]
    fn layers_are_quantized_and_the_rest_is_kept() {
        let plan = Plan::uniform("w4a16");
        assert_eq!(plan.at(&site("model.layers.0.mlp.up_proj.weight"), 2), Some("w4a16"));
        for kept in ["model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight"] {
            assert_eq!(plan.at(&site(kept), 2), None, "{kept}");
        }
        assert_eq!(plan.at(&Site::of("model.layers.0.input_layernorm.weight", 1), 2), None);
        // Stacked experts are kept unless they are named.
        let stack = Site::of("model.layers.0.feed_forward.experts.down_proj", 3);
        assert_eq!(plan.at(&stack, 2), None);
        let rule = Rule { role: Some("down".to_owned()), scheme: "w8a16".to_owned(), ..Rule::default() };
        assert_eq!(Plan { rules: vec![rule], ..plan }.at(&stack, 2), Some("w8a16"));
    }

    #[test]
    fn later_rules_win() {
        let plan = Plan::parse(
            r#"
            scheme = "w4a16"
            [[rule]]
            role = "down"
            scheme = "w8a16"
            [[rule]]
            weights = "*.mlp.*"
            layers = [0, -1]
            scheme = "keep"
            [[rule]]
            role = "head"
            scheme = "w8a16"
            "#,
        )
        .unwrap();
        let at = |name: &str| plan.at(&site(name), 4);
        assert_eq!(at("model.layers.1.mlp.down_proj.weight"), Some("w8a16"));
        assert_eq!(at("model.layers.1.mlp.up_proj.weight"), Some("w4a16"));
        assert_eq!(at("model.layers.0.mlp.down_proj.weight"), None);
        assert_eq!(at("model.layers.3.mlp.up_proj.weight"), None);
        assert_eq!(at("model.layers.3.self_attn.q_proj.weight"), Some("w4a16"));
        assert_eq!(at("lm_head.weight"), Some("w8a16"));
    }

    #[test]
    fn plans_that_make_no_sense_are_refused() {
        let why = |text: &str| Plan::parse(text).unwrap_err();
        assert!(
            why("scheme = \"a\"\n[[rule]]\nscheme = \"b\"").contains("rule 1: it says nothing of where it applies")
        );
        assert!(why("scheme = \"a\"\n[[rule]]\nrole = \"dwon\"\nscheme = \"b\"").contains("did you mean `down`?"));
        assert!(why("schema = \"a\"").contains("unknown field `schema`"));
    }

    #[test]
    fn idle_rules_are_found() {
        let mut plan = Plan::uniform("w4a16");
        plan.keep("model.layers.9.*");
        plan.keep("*.up_proj");
        let sites = [site("model.layers.0.mlp.up_proj.weight")];
        let idle: Vec<String> =
            plan.idle(&sites.iter().collect::<Vec<_>>(), 1).iter().map(|rule| rule.text()).collect();
        assert_eq!(idle, ["weights `model.layers.9.*`"]);
    }

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*.mlp.*", "model.layers.0.mlp.up_proj", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("**a**", "bab", true),
            ("lm_head", "lm_head", true),
            ("lm_head", "lm_head2", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
        // Patterns of this kind take exponential time in a careless matcher.
        assert!(!matches(&"*a".repeat(40), &"a".repeat(39)));
    }
}
