//! The report as one HTML file that needs nothing else: the sentences and pictures first, in both themes, then the tables
//! and the environment, folded.

use super::trace;
use crate::{
    compare::Answer,
    report::{Section, html},
};

pub(super) fn page(compared: &Answer) -> String {
    let mut sections = trace::sections(compared, true).unwrap_or_else(|| compared.essence());
    if !compared.pairs.is_empty() {
        sections.extend(compared.details());
    }
    let environment = facts(&compared.environment);
    if !environment.is_empty() {
        sections.push(Section::Folded("Environment".to_owned(), vec![Section::Facts(environment)]));
    }
    sections.extend(compared.run.iter().map(|path| Section::Line(format!("The run is kept in {}.", path.display()))));
    html(&compared.heading(), &sections)
}

/// The leaves of a JSON value, by path.
fn facts(value: &serde_json::Value) -> Vec<(String, String)> {
    fn walk(path: &str, value: &serde_json::Value, facts: &mut Vec<(String, String)>) {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        match value {
            serde_json::Value::Null => {}
            serde_json::Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| walk(&below(name), value, facts));
            }
            serde_json::Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
                items.iter().enumerate().for_each(|(at, item)| walk(&below(&(at + 1).to_string()), item, facts));
            }
            serde_json::Value::Array(items) => {
                facts.push((path.to_owned(), items.iter().map(plain).collect::<Vec<_>>().join(" ")));
            }
            leaf => facts.push((path.to_owned(), plain(leaf))),
        }
    }
    let mut all = Vec::new();
    walk("", value, &mut all);
    all
}

fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
