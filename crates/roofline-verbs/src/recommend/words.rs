//! Parts of an advice in words.

use roofline_core::{
    Device,
    energy::{Energy, EnergyModel},
    recommend::{Demand, Losses, Quality},
};

/// The work in words.
pub fn work(demand: Demand) -> String {
    match demand {
        Demand::Decode { context } => format!("one more token at a context of {context}"),
        Demand::Prefill { prompt } => format!("a prompt of {prompt} tokens"),
        Demand::Request { prompt, generate } => format!("a prompt of {prompt} tokens and {generate} more"),
    }
}

/// A share as percents, with more digits where it would else be nothing.
fn percent(share: f64) -> String {
    match 100.0 * share {
        ..0.005 => "0".to_owned(),
        little @ ..0.05 => format!("{little:.2}"),
        more => format!("{more:.1}"),
    }
}

fn quality(quality: &Quality) -> String {
    match quality {
        Quality::Exact => "as 16 bit".to_owned(),
        Quality::Released => "as released".to_owned(),
        Quality::Published { change, .. } => format!("+{} % published", percent(*change)),
        Quality::Elsewhere { change, .. } => format!("+{} % published of others", percent(*change)),
        Quality::Estimated(change) => format!("+{} to {} % estimated", percent(change.low), percent(change.high)),
        Quality::Unknown => "unknown".to_owned(),
    }
}

/// What a plan loses, in a few words.
pub fn loss(losses: &Losses) -> String {
    let cache = losses.cache_quality.as_ref();
    let cache = cache.map_or_else(String::new, |cache| format!(", cache {}", quality(cache)));
    quality(&losses.quality) + &cache
}

/// The same with who says so.
pub fn loss_with_source(losses: &Losses) -> String {
    let source = |known: &Quality| match known {
        Quality::Published { source, method, .. } => format!(" with {method} ({source})"),
        Quality::Elsewhere { source, .. } => format!(" ({source})"),
        Quality::Estimated(_) => " from the formats' errors on Gaussian numbers".to_owned(),
        Quality::Exact | Quality::Released | Quality::Unknown => String::new(),
    };
    let told = |known: &Quality| quality(known) + &source(known);
    let cache = losses.cache_quality.as_ref();
    told(&losses.quality) + &cache.map_or_else(String::new, |cache| format!("; the cache: {}", told(cache)))
}

pub fn energy(energy: Option<Energy>) -> String {
    energy.map_or_else(String::new, |energy| energy.joules().to_string())
}

/// Where the energies of a device come from.
pub fn energy_source(device: &Device) -> String {
    match EnergyModel::builtin(device) {
        Some(model) => format!(
            "{} W while anything runs, {} pJ per byte, {} pJ per widened weight, and per operation {}; {:.1} % mean error on \
             kernels they were not fitted to ({})",
            model.static_w,
            model.pj_per_byte,
            model.pj_per_widened_weight,
            model
                .pj_per_operation
                .iter()
                .map(|(math, picojoules)| format!("{picojoules} pJ in {}", math.label()))
                .collect::<Vec<_>>()
                .join(", "),
            100.0 * model.held_out_mean_error,
            model.provenance
        ),
        None => "nobody measured this device here: its whole power limit for the predicted time".to_owned(),
    }
}
