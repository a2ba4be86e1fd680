//! The plans as a picture: memory across, speed up, colour for the quality.

use roofline_core::recommend::Outcome;

use super::{ModelAdvice, words::work};
use crate::picture::{Pareto, Picture, Spotted};

/// Bounds of the classes of quality, as shares by which the perplexity may rise.
const CLASSES: [(f64, &str); 4] =
    [(0.01, "perplexity up to +1 %"), (0.05, "up to +5 %"), (0.15, "up to +15 %"), (f64::INFINITY, "more")];

fn class(outcome: &Outcome) -> usize {
    outcome.loss().map_or(CLASSES.len(), |loss| CLASSES.iter().position(|(most, _)| loss <= *most).unwrap_or(0))
}

/// The picture of an advice.
pub fn pareto(advised: &ModelAdvice) -> Picture {
    let advice = &advised.recommendation;
    let spotted = |(at, outcome): (usize, &Outcome)| Spotted {
        label: outcome.candidate.plan.to_string(),
        x: outcome.memory.model().value() / 1e9,
        y: outcome.tokens_per_s,
        class: class(outcome),
        front: outcome.pareto,
        chosen: at == 0 && outcome.refused.is_none(),
    };
    let classes = CLASSES.iter().map(|(_, name)| (*name).to_owned()).chain(["unknown".to_owned()]).collect();
    Picture::Pareto(Pareto {
        title: format!("{} on {}", advised.model, advised.device_name),
        subtitle: format!("{} plans for {}, {} tier", advice.outcomes.len(), work(advised.demand), advice.tier),
        x_label: "memory of a device, GB".to_owned(),
        y_label: "tokens/s".to_owned(),
        classes,
        plans: advice.outcomes.iter().enumerate().map(spotted).collect(),
        limit: advice.room.map(|room| room.for_models().value() / 1e9),
    })
}
