//! Where quality is lost: layers, weights, positions, tokens.

use super::four;
use crate::{
    evaluate::{Evaluated, WeightError},
    report::{Align, Section, Table},
};

/// Weights that are shown where nobody asked for all.
const SHOWN: usize = 8;

/// Tables of what a model lost; none where it was held against nothing.
pub(super) fn sections(told: &Evaluated, all: bool) -> Vec<Section> {
    let mut sections = Vec::new();
    if !told.layers.is_empty() {
        sections.push(Section::Table(layers(told)));
    }
    if !told.weights.is_empty() {
        sections.push(Section::Table(weights(&told.weights, if all { usize::MAX } else { SHOWN })));
        if !all && told.weights.len() > SHOWN {
            sections.push(Section::Paragraph(format!(
                "The {SHOWN} weights with the largest error of {}; --all shows the others, as does --json.",
                told.weights.len()
            )));
        }
    }
    if all && !told.positions.is_empty() {
        sections.push(Section::Table(positions(told)));
    }
    if !told.worst.is_empty() {
        sections.push(Section::Table(tokens(told)));
    }
    sections
}

pub(super) fn decibel(snr: Option<f64>) -> String {
    snr.map_or_else(|| "exact".to_owned(), |snr| format!("{snr:.1} dB"))
}

fn layers(told: &Evaluated) -> Table {
    let mut table = Table::default().column("after layer", Align::Right, 0).column("SNR", Align::Right, 0);
    for one in &told.layers {
        table.row([one.layer.to_string().into(), decibel(one.snr_db).into()]);
    }
    table
}

/// The `count` weights with the largest error; all of them in their own order.
pub(super) fn weights(all: &[WeightError], count: usize) -> Table {
    let mut table = Table::default()
        .column("weight", Align::Left, 0)
        .column("stored as", Align::Left, 2)
        .column("bits", Align::Right, 1)
        .column("relative error", Align::Right, 0)
        .column("SNR", Align::Right, 1);
    let mut shown: Vec<&WeightError> = all.iter().collect();
    if count < shown.len() {
        shown.sort_by(|one, other| other.relative_error.total_cmp(&one.relative_error));
        shown.truncate(count);
    }
    for one in shown {
        table.row([
            one.name.as_str().into(),
            one.format.as_str().into(),
            format!("{:.2}", one.bits_per_weight).into(),
            format!("{:.5}", one.relative_error).into(),
            decibel(one.snr_db).into(),
        ]);
    }
    table
}

pub(super) fn positions(told: &Evaluated) -> Table {
    let mut table = Table::default()
        .column("positions", Align::Right, 0)
        .column("tokens", Align::Right, 1)
        .column("nats", Align::Right, 0)
        .column("KL", Align::Right, 0);
    for one in &told.positions {
        table.row([
            format!("{} to {}", one.from, one.to - 1).into(),
            one.tokens.to_string().into(),
            four(one.nll).into(),
            one.kl_divergence.map(four).unwrap_or_default().into(),
        ]);
    }
    table
}

pub(super) fn tokens(told: &Evaluated) -> Table {
    let mut table = Table::default()
        .column("before", Align::Left, 3)
        .column("token", Align::Left, 0)
        .column("KL", Align::Right, 0)
        .column("probability", Align::Right, 0)
        .column("original's", Align::Right, 0)
        .column("most probable", Align::Left, 1)
        .column("original's", Align::Left, 1);
    for one in &told.worst {
        table.row([
            tail(&one.before).into(),
            one.token.as_str().into(),
            four(one.kl_divergence).into(),
            format!("{:.3}", one.probability).into(),
            format!("{:.3}", one.original_probability).into(),
            one.top.as_str().into(),
            one.original_top.as_str().into(),
        ]);
    }
    table
}

/// The end of a text.
fn tail(text: &str) -> String {
    const LONGEST: usize = 32;
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= LONGEST {
        text.to_owned()
    } else {
        format!("…{}", letters[letters.len() - LONGEST..].iter().collect::<String>())
    }
}
