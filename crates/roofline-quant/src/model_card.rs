//! The model card: what was done to a checkpoint and what it cost, for whoever finds the folder later.

use std::{collections::BTreeMap, fmt::Write, fs};

use crate::{
    Checkpoint,
    checkpoint::read_bounded,
    lora::Merge,
    quantize::{Line, Report},
};

/// The longest card of a source that is read.
const LONGEST: u64 = 4 << 20;
/// What of a source's front matter is true of what is made from it.
const CARRIED: [&str; 5] = ["license", "license_name", "license_link", "library_name", "pipeline_tag"];

/// What a card says of where a checkpoint comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The source, as a hub knows it where that is told; else by its folder's name.
    base_model: String,
    /// Lines of the source's front matter.
    carried: Vec<(&'static str, String)>,
}

impl Origin {
    /// From what lies beside the weights. A card that cannot be read says nothing.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Self {
        let card = checkpoint.own("README.md").and_then(|path| read_bounded(&path, LONGEST, "model card").ok());
        let card = card.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let carried = CARRIED.into_iter().filter_map(|key| Some((key, scalar(&card, key)?))).collect();
        Self { base_model: base_model(checkpoint), carried }
    }
}

/// The name a hub knows the source by: that of its cache's folder `models--OWNER--NAME`, or the one its configuration has.
fn base_model(checkpoint: &Checkpoint) -> String {
    let folder = fs::canonicalize(&checkpoint.folder).unwrap_or_else(|_| checkpoint.folder.clone());
    let cached = folder.ancestors().skip(2).find_map(|folder| {
        let name = folder.file_name()?.to_str()?.strip_prefix("models--")?;
        Some(name.replacen("--", "/", 1))
    });
    let named = checkpoint.config["_name_or_path"].as_str().filter(|name| {
        let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(is_of_name);
        name.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name))
    });
    cached.or_else(|| named.map(str::to_owned)).unwrap_or_else(|| checkpoint.name())
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

/// The text of a key on the first level of a card's front matter, if it is one of one line.
fn scalar(card: &str, key: &str) -> Option<String> {
    let mut lines = card.lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    let matter: Vec<&str> = lines.take_while(|line| line.trim_end() != "---").collect();
    let value = matter.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim();
    let value = value.trim_matches(['"', '\'']);
    let plain = !value.is_empty() && value.len() <= 200 && !value.starts_with(['[', '{', '|', '>', '&', '*', '#']);
    (plain && !value.chars().any(char::is_control)).then(|| value.to_owned())
}

/// A text in YAML: bare where that is safe, else as JSON has it, which YAML understands.
fn quoted(text: &str) -> String {
    let bare = text.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && text.chars().all(|letter| is_of_name(letter) || letter == '/')
        && !matches!(text.to_lowercase().as_str(), "true" | "false" | "yes" | "no" | "null" | "on" | "off" | "y" | "n");
    if bare { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// What hubs read: where it comes from, under which licence, and what it is.
fn front_matter(report: &Report, origin: &Origin) -> String {
    let mut text = format!("---\nbase_model: {}\n", quoted(&origin.base_model));
    if !report.weights.is_empty() {
        text += "base_model_relation: quantized\n";
    }
    for (key, value) in &origin.carried {
        let _ = writeln!(text, "{key}: {}", quoted(value));
    }
    text += "tags:\n";
    let mut schemes: Vec<&str> = report.weights.iter().map(|line| line.scheme.as_str()).collect();
    schemes.sort_unstable();
    schemes.dedup();
    for tag in [report.layout.as_str()].into_iter().chain(schemes) {
        let _ = writeln!(text, "- {}", quoted(tag));
    }
    text + "---\n\n"
}

/// The text of a quantized checkpoint's `README.md`. The same run writes the same text.
pub(crate) fn model_card(report: &Report, origin: &Origin) -> String {
    let mut text = front_matter(report, origin);
    let _ = write!(
        text,
        "# {model}, quantized\n\n\
         Made by `roofline quantize` {version} from `{model}`: plan `{plan}`, method `{method}`, written as {layout}.\n\n\
         | | |\n|---|---|\n\
         | weights before | {before} bytes |\n\
         | files after | {after} bytes ({ratio:.1} % of it) |\n\
         | stored bits per quantized weight | {bits:.3} |\n\
         | relative error of the layers' products, root mean square | {error:.5} |\n",
        model = report.model.replace('`', ""),
        version = env!("CARGO_PKG_VERSION"),
        plan = report.plan.to_string().replace('`', ""),
        method = report.method,
        layout = report.layout,
        before = report.bytes_before,
        after = report.bytes_after,
        ratio = 100.0 * report.bytes_after as f64 / report.bytes_before as f64,
        bits = report.bits_per_weight,
        error = report.relative_squared_error.sqrt(),
    );
    let cell = |text: String| text.replace(['`', '|', '\n'], "");
    if let Some(data) = &report.data {
        let _ = writeln!(text, "| data | {} |", cell(data.to_string()));
    }
    if let Some(tuning) = &report.tuning {
        let _ = writeln!(text, "| {} | {tuning} |", report.method);
    }
    if let Some(imatrix) = &report.imatrix {
        let _ = writeln!(text, "| errors weighed by | {} |", cell(imatrix.clone()));
    }
    if !report.nearest.is_empty() {
        let _ = writeln!(text, "| rounded to nearest, for want of data | {} matrices |", report.nearest.len());
    }
    if let Some(change) = report.perplexity_change {
        let _ = writeln!(
            text,
            "| perplexity, estimated from the weights alone | +{:.2} % to +{:.2} % |",
            100.0 * change.low,
            100.0 * change.high
        );
    }
    text += &adapters(&report.adapters);
    text += "\n## Errors\n\n\
             `||W - Q(W)|| / ||W||` over all layers, the largest of one weight, and the share of weights beyond the range.\n\n\
             | role | scheme | matrices | relative error | worst | clipped |\n|---|---|--:|--:|--:|--:|\n";
    for ((role, scheme), lines) in by_role(&report.weights) {
        let worst = lines.iter().map(|line| line.relative_error).fold(0.0, f64::max);
        let weights: f64 = lines.iter().map(|line| (line.rows * line.columns) as f64).sum();
        let mean = |value: fn(&Line) -> f64| {
            lines.iter().map(|line| value(line) * (line.rows * line.columns) as f64).sum::<f64>() / weights
        };
        let error = mean(|line| line.relative_error.powi(2)).sqrt();
        let clipped = 100.0 * mean(|line| line.clipped_share);
        let _ = writeln!(text, "| {role} | {scheme} | {} | {error:.5} | {worst:.5} | {clipped:.3} % |", lines.len());
    }
    text += if report.perplexity_change.is_some() {
        "\nThe estimate of the perplexity holds between models as robust as Llama-2-7B and as sensitive as Llama-3-8B; \
         measure yours before you rely on it.\n"
    } else {
        "\nWhat the model loses is not estimated from its weights: `roofline evaluate --against ORIGINAL --card` measures it \
         and writes it here.\n"
    };
    if !report.nearest.is_empty() {
        let names: Vec<String> = report.nearest.iter().map(|name| name.replace('`', "")).collect();
        let _ = writeln!(text, "\n## Rounded to nearest\n\nThe text says too little of these: {}.", names.join(", "));
    }
    text
}

/// What was merged into the model before it was quantized.
fn adapters(all: &[Merge]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = "\n## Adapters\n\nMerged into the weights before they were coded:\n\n".to_owned();
    for merge in all {
        let name = merge.adapter.file_name().unwrap_or_default().to_string_lossy().replace('`', "");
        let _ = writeln!(text, "- `{name}`, times {}: {}", merge.scale, merge.words());
        let names: Vec<String> = merge.weights.iter().chain(&merge.replaced).map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "  ({})", names.join(", "));
    }
    text
}

/// Lines by role and scheme, in the order of a layer.
pub fn by_role(lines: &[Line]) -> Vec<((&str, &str), Vec<&Line>)> {
    let mut order: Vec<(&str, &str)> = Vec::new();
    let mut groups: BTreeMap<(&str, &str), Vec<&Line>> = BTreeMap::new();
    for line in lines {
        let key = (line.role, line.scheme.as_str());
        if !order.contains(&key) {
            order.push(key);
        }
        groups.entry(key).or_default().push(line);
    }
    order.into_iter().filter_map(|key| groups.remove(&key).map(|lines| (key, lines))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_read_from_front_matter_alone() {
        let card =
            "---\nlicense: llama3.1\nlicense_name: 'Llama 3.1: community'\ntags:\n- license: no\n---\nlicense_link: x";
        assert_eq!(scalar(card, "license").as_deref(), Some("llama3.1"));
        assert_eq!(scalar(card, "license_name").as_deref(), Some("Llama 3.1: community"));
        assert_eq!(scalar(card, "license_link"), None, "it stands in the text");
        for other in
            ["license: mit", "---\nlicense:\n- mit\n---", "---\nlicense: [mit]\n---", "---\n license: mit\n---"]
        {
            assert_eq!(scalar(other, "license"), None, "{other}");
        }
    }

    #[test]
    fn what_yaml_would_misread_is_quoted() {
        assert_eq!(quoted("meta-llama/Llama-3.1-8B"), "meta-llama/Llama-3.1-8B");
        assert_eq!(quoted("no"), "\"no\"");
        assert_eq!(quoted("a: b"), "\"a: b\"");
        assert_eq!(quoted("3.1"), "\"3.1\"");
    }
}
