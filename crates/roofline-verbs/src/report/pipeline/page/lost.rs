//! Where quality is lost: by layer, by weight, by position, and in which words.

use super::{
    bars::{Bar, Group, groups},
    section,
};
use crate::{
    pipeline::{Answer, Evaluation, TokenLoss, WeightLoss},
    report::html::escape,
    text::number,
};

/// Tokens that are shown.
const TOKENS: usize = 8;
/// Differences of decibels below which colours would tell more than there is.
const RANGE: f64 = 6.0;
/// Layers that a heat map has room for.
const LAYERS: usize = 48;

pub(super) fn lost(told: &Answer) -> String {
    let Some(found) = &told.found.evaluation else {
        let weights = told.found.quantized.as_ref().map(|made| heat(&made.weights)).unwrap_or_default();
        return section("Where quality is lost", "There was no text: only weights are compared.", &weights);
    };
    let lead = format!(
        "On {} tokens of {}, in {} windows of {}, {} apart. Signal to noise in decibel: 10 more are a tenth of the error.",
        found.tokens, found.text, found.windows, found.window, found.stride
    );
    let weights = told.found.quantized.as_ref().map(|made| heat(&made.weights)).unwrap_or_default();
    section("Where quality is lost", &lead, &(pictures(found) + &weights + &worst(&found.worst)))
}

/// What layers hand on, and how far predictions are apart along a window.
fn pictures(found: &Evaluation) -> String {
    let layer = |one: &crate::pipeline::LayerLoss| {
        let snr = one.snr_db?;
        Some(Bar {
            name: format!("after layer {}", one.layer),
            class: "after",
            value: snr,
            text: format!("{snr:.1} dB"),
        })
    };
    let position = |one: &crate::pipeline::PositionLoss| {
        let kl = one.kl_divergence?;
        let name = format!("{} to {}", one.from, one.to.saturating_sub(1));
        Some(Bar { name, class: "after", value: kl, text: number(kl) })
    };
    let all = [
        Group {
            title: "Outputs of layers".to_owned(),
            note: "signal to noise, more is better",
            bars: found.layers.iter().filter_map(layer).collect(),
        },
        Group {
            title: "Position in the window".to_owned(),
            note: "KL divergence, nats, less is better",
            bars: found.positions.iter().filter_map(position).collect(),
        },
    ];
    groups(&all)
}

/// Signal to noise of each weight: roles down, layers across, the noisiest the darkest.
fn heat(weights: &[WeightLoss]) -> String {
    let known = || weights.iter().filter_map(|one| Some((one.layer?, one.role.as_str(), one.snr_db?)));
    let mut roles: Vec<&str> = Vec::new();
    known().for_each(|(_, role, _)| {
        if !roles.contains(&role) {
            roles.push(role);
        }
    });
    let last = known().map(|(layer, ..)| layer).max();
    let (Some(last), false) = (last, roles.is_empty()) else { return String::new() };
    if last as usize >= LAYERS {
        return String::new();
    }
    let all: Vec<f64> = known().map(|(.., snr)| snr).collect();
    let (low, high) = all.iter().fold((f64::MAX, f64::MIN), |(low, high), snr| (low.min(*snr), high.max(*snr)));
    let cell = |role: &str, layer: u64| {
        let own: Vec<f64> = known().filter(|(l, r, _)| *l == layer && *r == role).map(|(.., snr)| snr).collect();
        // Of several matrices of one role, the noisiest.
        let Some(snr) = own.into_iter().reduce(f64::min) else { return "<td></td>".to_owned() };
        let heat = 60.0 * (high - snr) / (high - low).max(RANGE);
        format!("<td style=\"--h:{heat:.0}%\">{snr:.1}</td>")
    };
    let row = |role: &&str| {
        let cells: String = (0..=last).map(|layer| cell(role, layer)).collect();
        format!("<tr><th>{}</th>{cells}</tr>\n", escape(role))
    };
    let head: Vec<String> = (0..=last).map(|layer| format!("<th>{layer}</th>")).collect();
    let head = head.concat();
    let rows: String = roles.iter().map(row).collect();
    format!(
        "<h3>Weights by role and layer <small>signal to noise in decibel, the noisiest are marked</small></h3>\n\
         <div class=\"wide heat\"><table><thead><tr><th></th>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// The tokens that both predict most differently, in their places.
fn worst(tokens: &[TokenLoss]) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let row = |one: &TokenLoss| {
        format!(
            "<tr><td class=\"token\">{}<mark>{}</mark></td><td class=\"number\">{}</td><td class=\"number\">{:.1} %</td>\
             <td class=\"number\">{:.1} %</td><td class=\"token\">{}</td><td class=\"token\">{}</td></tr>\n",
            escape(&tail(&one.before)),
            escape(&one.token),
            number(one.kl_divergence),
            100.0 * one.original_probability,
            100.0 * one.probability,
            escape(&one.original_top),
            escape(&one.top)
        )
    };
    let rows: String = tokens.iter().take(TOKENS).map(row).collect();
    format!(
        "<h3>Words that it predicts most differently</h3>\n<div class=\"wide\"><table><thead><tr><th>text</th>\
         <th class=\"number\">KL, nats</th><th class=\"number\">before</th><th class=\"number\">after</th>\
         <th>first choice before</th><th>first choice after</th></tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// The end of a text.
fn tail(text: &str) -> String {
    const LONGEST: usize = 44;
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= LONGEST {
        text.to_owned()
    } else {
        "…".to_owned() + &letters[letters.len() - LONGEST..].iter().collect::<String>()
    }
}
