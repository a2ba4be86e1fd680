//! Parts of an advice in words.

use roofline_core::{
    Device,
    energy::{Energy, EnergyModel},
    recommend::{Demand, Losses, Outcome, Quality},
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

/// The same with its sign: what was measured may have fallen.
fn signed(share: f64) -> String {
    let sign = if share < 0.0 { '-' } else { '+' };
    format!("{sign}{}", percent(share.abs()))
}

fn quality(quality: &Quality) -> String {
    match quality {
        Quality::Exact => "as 16 bit".to_owned(),
        Quality::Released => "as released".to_owned(),
        Quality::Measured { change, low, high, .. } => {
            format!("{} % measured ({} to {} %)", signed(*change), signed(*low), signed(*high))
        }
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
        Quality::Measured { .. } => evaluation(known),
        Quality::Published { source, method, .. } => format!(" with {method} ({source})"),
        Quality::Elsewhere { source, .. } => format!(" ({source})"),
        Quality::Estimated(_) => " from the formats' errors on Gaussian numbers".to_owned(),
        Quality::Exact | Quality::Released | Quality::Unknown => String::new(),
    };
    let told = |known: &Quality| quality(known) + &source(known);
    let cache = losses.cache_quality.as_ref();
    told(&losses.quality) + &cache.map_or_else(String::new, |cache| format!("; the cache: {}", told(cache)))
}

/// What an evaluation found besides, and on what.
fn evaluation(found: &Quality) -> String {
    let Quality::Measured { kl_divergence, top1_agreement, tokens, text, method, date, cache, .. } = found else {
        return String::new();
    };
    let method = method.as_ref().map_or_else(String::new, |method| format!(" with {method}"));
    let cache = cache.map_or_else(String::new, |cache| format!(", the cache in {cache} counted in"));
    let kl = kl_divergence.map_or_else(String::new, |nats| format!("; KL {nats:.4} nats"));
    let top1 =
        top1_agreement.map_or_else(String::new, |share| format!("; {:.1} % the same first token", 100.0 * share));
    format!("{method}{cache}{kl}{top1}; {tokens} tokens of {text}, {date}")
}

/// How many plans have a loss of which kind, in a sentence.
pub fn kinds(outcomes: &[Outcome]) -> String {
    let count =
        |fits: fn(&Quality) -> bool| outcomes.iter().filter(|outcome| fits(&outcome.candidate.losses.quality)).count();
    let parts = [
        (count(|quality| matches!(quality, Quality::Measured { .. })), "measured on these weights"),
        (count(|quality| matches!(quality, Quality::Published { .. })), "published for this model"),
        (count(|quality| matches!(quality, Quality::Estimated(_))), "estimated from the formats"),
        (count(|quality| matches!(quality, Quality::Unknown)), "unknown"),
    ];
    let told: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    format!("Of {} plans, losses are: {}", outcomes.len(), told.join(", "))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(change: f64, low: f64, high: f64) -> Quality {
        Quality::Measured {
            change,
            low,
            high,
            kl_divergence: Some(0.01234),
            top1_agreement: Some(0.953),
            tokens: 1000,
            text: "book.txt".to_owned(),
            method: Some("mse".to_owned()),
            date: "2026-01-31".to_owned(),
            cache: None,
        }
    }

    #[test]
    fn what_was_measured_says_so_and_how() {
        let losses = Losses { quality: measured(0.028, 0.021, 0.035), cache_quality: None, worst: Some(0.035) };
        assert_eq!(loss(&losses), "+2.8 % measured (+2.1 to +3.5 %)");
        assert_eq!(
            loss_with_source(&losses),
            "+2.8 % measured (+2.1 to +3.5 %) with mse; KL 0.0123 nats; 95.3 % the same first token; 1000 tokens of \
             book.txt, 2026-01-31"
        );
        // By chance a model may seem to have won.
        let won = Losses { quality: measured(-0.001, -0.003, 0.001), cache_quality: None, worst: Some(0.001) };
        assert_eq!(loss(&won), "-0.1 % measured (-0.3 to +0.1 %)");
    }
}
