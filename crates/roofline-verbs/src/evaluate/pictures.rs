//! Pictures of where quality is lost.

use std::collections::BTreeMap;

use super::{Answer, Evaluated};
use crate::picture::{Lines, Picture, Series};

/// What there is to show of a model: by position in a window, by layer, and by weight. None where it was held against
/// nothing.
pub fn pictures(told: &Evaluated) -> Vec<Picture> {
    [positions(told), layers(told), weights(told)].into_iter().flatten().map(Picture::Lines).collect()
}

/// What plans cost, and how many bytes they take.
pub fn plans(told: &Answer) -> Option<Picture> {
    let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for one in &told.plans {
        let Some(kl) = one.kl_divergence else { continue };
        let name = one.plan.as_deref().unwrap_or_default();
        series.entry(name).or_default().push((one.weights_bytes.value() / 1e6, kl));
    }
    (!series.is_empty()).then(|| {
        Picture::Lines(Lines {
            title: "What plans lose".to_owned(),
            subtitle: "divergence from the model's own predictions, and what the weights take; a point for each method"
                .to_owned(),
            x_label: "weights, MB".to_owned(),
            y_label: "KL divergence, nats per token".to_owned(),
            log_x: false,
            log_y: true,
            series: series.into_iter().map(|(label, points)| Series { label: label.to_owned(), points }).collect(),
        })
    })
}

/// The divergence by position in a window.
fn positions(told: &Evaluated) -> Option<Lines> {
    // Where windows overlap, the first positions are those of the first window alone, and say little.
    let most = told.positions.iter().map(|one| one.tokens).max()?;
    let known = told.positions.iter().filter(|one| 4 * one.tokens >= most);
    let points: Option<Vec<(f64, f64)>> =
        known.map(|one| Some(((one.from + one.to - 1) as f64 / 2.0, one.kl_divergence?))).collect();
    let points = points.filter(|points| points.iter().any(|(_, kl)| *kl > 0.0))?;
    Some(Lines {
        title: "Where in a window".to_owned(),
        subtitle: "mean divergence from the original's predictions, by position".to_owned(),
        x_label: "position in the window".to_owned(),
        y_label: "KL divergence, nats per token".to_owned(),
        series: vec![Series { label: "KL divergence".to_owned(), points }],
        ..Lines::default()
    })
}

/// The error of what each layer hands on.
fn layers(told: &Evaluated) -> Option<Lines> {
    let points: Vec<(f64, f64)> = told.layers.iter().filter_map(|one| Some((one.layer as f64, one.snr_db?))).collect();
    (!points.is_empty()).then(|| Lines {
        title: "Layer by layer".to_owned(),
        subtitle: "signal to noise of what each layer hands on: less is worse, and 10 dB are a factor of ten in power"
            .to_owned(),
        x_label: "layer".to_owned(),
        y_label: "SNR, dB".to_owned(),
        series: vec![Series { label: "output".to_owned(), points }],
        ..Lines::default()
    })
}

/// The error of each weight, a line for each role.
fn weights(told: &Evaluated) -> Option<Lines> {
    let mut roles: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for one in &told.weights {
        let (Some(layer), Some(snr)) = (one.layer, one.snr_db) else { continue };
        let point = (layer as f64, snr);
        match roles.iter_mut().find(|(role, _)| *role == one.role) {
            Some((_, points)) => points.push(point),
            None => roles.push((one.role, vec![point])),
        }
    }
    for (_, points) in &mut roles {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    (!roles.is_empty()).then(|| Lines {
        title: "Weight by weight".to_owned(),
        subtitle: "signal to noise of each matrix as it is stored".to_owned(),
        x_label: "layer".to_owned(),
        y_label: "SNR, dB".to_owned(),
        series: roles.into_iter().map(|(role, points)| Series { label: role.to_owned(), points }).collect(),
        ..Lines::default()
    })
}
