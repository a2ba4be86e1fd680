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
        let refuse =
            |reason: String, hint: String| Error::Unknown { what: "plan file", name: reason, nearest: None, hint };
        let form = || "write `plan = \"w4a16,head=q8_0\"`, or a list of its parts".to_owned();
        if text.len() > LONGEST * 4 {
            return Err(refuse(format!("of {} bytes", text.len()), form()));
        }
        if let Some(new) = toml::from_str::<Former>(text).ok().and_then(|former| former.text()) {
            return Err(refuse("of `scheme` and `[[rule]]`".to_owned(), format!("the same is now `plan = \"{new}\"`")));
        }
        let file: File = toml::from_str(text).map_err(|error| refuse(error.message().to_owned(), form()))?;
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
