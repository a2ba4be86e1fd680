//! The model card: what was done to a checkpoint and what it cost, for whoever finds the folder later.

use std::{collections::BTreeMap, fmt::Write};

use crate::quantize::{Line, Report};

/// The text of a quantized checkpoint's `README.md`. The same run writes the same text.
pub(crate) fn card(report: &Report) -> String {
    let mut text = format!(
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
        error = report.mean_squared_error.sqrt(),
    );
    if let Some(change) = report.perplexity_change {
        let _ = writeln!(
            text,
            "| perplexity, estimated from the weights alone | +{:.2} % to +{:.2} % |",
            100.0 * change.low,
            100.0 * change.high
        );
    }
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
    text += "\nThe estimate of the perplexity holds between models as robust as Llama-2-7B and as sensitive as Llama-3-8B; \
             measure yours before you rely on it.\n";
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
