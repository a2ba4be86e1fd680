//! A plan in a file.

use super::{LONGEST, Plan};
use crate::{Error, Result};

impl Plan {
    /// Reads a plan file: a TOML table with `plan`, a text or a list of its items.
    pub fn from_toml(text: &str) -> Result<Self> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            plan: Items,
        }
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Items {
            Text(String),
            List(Vec<String>),
        }
        let refuse = |reason: String, hint: String| Error::Plan { reason, hint };
        let form = || "write `plan = \"w4a16,head=q8_0\"`, or a list of its parts".to_owned();
        let most = 4 * LONGEST;
        if text.len() > most {
            let hint = "one rule by role or pattern says what many rules by name say: `*.down_proj=w8a16`";
            return Err(refuse(
                format!("the file has {} bytes, more than the {most} of any plan", text.len()),
                hint.to_owned(),
            ));
        }
        if let Some(new) = toml::from_str::<Former>(text).ok().and_then(|former| former.text()) {
            return Err(refuse(
                "the file has `scheme` and `[[rule]]`, as plans once had".to_owned(),
                format!("the same is now `plan = \"{new}\"`"),
            ));
        }
        // A fault is told in one line, whatever its reason quotes.
        let fault = |error: toml::de::Error| {
            let at = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let words: Vec<&str> = error.message().split_whitespace().collect();
            refuse(format!("line {at} of the file: {}", words.join(" ")), form())
        };
        let file: File = toml::from_str(text).map_err(fault)?;
        match file.plan {
            Items::Text(text) => text.parse(),
            Items::List(items) => items.join(",").parse(),
        }
    }
}

/// What plan files were before there was one text for every verb.
#[derive(serde::Deserialize)]
struct Former {
    scheme: String,
    #[serde(default)]
    rule: Vec<FormerRule>,
}

#[derive(serde::Deserialize)]
struct FormerRule {
    weights: Option<String>,
    role: Option<String>,
    #[serde(default)]
    layers: Vec<i64>,
    scheme: String,
}

impl Former {
    /// The text that says the same, where there is one: a rule by name and layer at once has none.
    fn text(&self) -> Option<String> {
        let mut items = vec![self.scheme.clone()];
        for FormerRule { weights, role, layers, scheme } in &self.rule {
            let selectors: Vec<String> = match (weights, role, &layers[..]) {
                (Some(weights), None, []) => vec![weights.clone()],
                (None, Some(role), []) => vec![role.clone()],
                (None, Some(role), layers) => layers.iter().map(|layer| format!("layers.{layer}.{role}")).collect(),
                (None, None, layers) => layers.iter().map(|layer| format!("layers.{layer}")).collect(),
                (Some(_), ..) => return None,
            };
            items.extend(selectors.iter().map(|selector| format!("{selector}={scheme}")));
        }
        Some(items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_hold_the_same_text() {
        let plan: Plan = "w4a16,head=q8_0".parse().unwrap();
        assert_eq!(Plan::from_toml("plan = \"w4a16,head=q8_0\"").unwrap(), plan);
        assert_eq!(Plan::from_toml("plan = [\"w4a16\", \"head=q8_0\"]").unwrap(), plan);
        let refused = Plan::from_toml("plans = \"w4a16\"").unwrap_err();
        assert!(refused.to_string().contains("unknown field `plans`"), "{refused}");
        assert!(refused.hint().unwrap().contains("plan = \"w4a16,head=q8_0\""));
        let refused = Plan::from_toml("\nplan = [\"w4a16\"").unwrap_err().to_string();
        assert!(refused.starts_with("plan: line 2 of the file: "), "{refused}");
        // A bound is named where it is passed.
        let refused = Plan::from_toml(&format!("plan = \"{}\"", "w4a16,".repeat(3000))).unwrap_err().to_string();
        assert_eq!(refused, "plan: the file has 18009 bytes, more than the 16384 of any plan");
        let refused = "w4a16,".repeat(700).parse::<Plan>().unwrap_err().to_string();
        assert_eq!(refused, "plan: it has 4200 letters, more than the 4096 of any plan");
        let refused = format!("w4a16{}", ",head=fp8".repeat(65)).parse::<Plan>().unwrap_err();
        assert_eq!(refused.to_string(), "plan: it has 65 rules, more than the 64 of any plan");
        assert!(refused.hint().unwrap().contains("by pattern"));
    }

    /// A plan over several lines is shown in one, whoever shows it.
    #[test]
    fn a_plan_of_several_lines_is_quoted_in_one() {
        let refused = "w4a16,\n  head".parse::<Plan>().unwrap_err().to_string();
        assert_eq!(refused, "unknown plan `w4a16, head`");
        assert!("w4a16,\n  head=fp8".parse::<Plan>().is_ok());
    }

    /// A file of the form before is told how to become one of this.
    #[test]
    fn a_former_file_is_told_the_new_text() {
        let former = "scheme = \"w4a16\"\n[[rule]]\nrole = \"down\"\nscheme = \"w8a16\"\n\
                      [[rule]]\nlayers = [0, -1]\nscheme = \"keep\"\n[[rule]]\nweights = \"*.q_proj\"\nscheme = \"keep\"";
        let hint = Plan::from_toml(former).unwrap_err().hint().unwrap();
        let new = "w4a16,down=w8a16,layers.0=keep,layers.-1=keep,*.q_proj=keep";
        assert_eq!(hint, format!("the same is now `plan = \"{new}\"`"));
        assert!(new.parse::<Plan>().is_ok());
    }
}
