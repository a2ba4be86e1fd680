//! The reasons, step by step, for whoever wants to learn how such advice comes about.

use roofline_core::{
    Plan,
    format::Sizes,
    model::Lowering,
    precision::PrecisionSpec,
    predict::{Bound, Forecast, predict},
    recommend::{Demand, Need, Quality, Recommendation},
    units::Seconds,
};

use super::model::{energy_source, quality, work};
use crate::failure::Failure;

/// Operators that are named.
const NAMED: usize = 3;

/// A paragraph for each step.
pub(super) fn steps(need: &Need<'_>, advice: &Recommendation) -> Result<Vec<String>, Failure> {
    let (device, model) = (need.device, need.model);
    let sixteen = device.sixteen_bit();
    let wide = Plan::model(&sixteen.to_string().parse::<PrecisionSpec>()?, device)?;
    let batch = advice.choice().map_or(need.batch.unwrap_or(1), |best| best.batch);
    let workload = need.demand.typical(batch)?;
    let graph = model.graph(workload, Lowering::default())?;
    let before = predict(&graph, &wide, Sizes::Exact, device)?;
    let total = &before.total;
    let mut steps = vec![
        format!(
            "The work. {} has to do {} and to move {} for {}{} at 16 bit: {:.1} operations for each byte.",
            model.name,
            total.work.flops,
            total.work.bytes(),
            if matches!(need.demand, Demand::Request { .. }) { "a middle token of " } else { "" },
            work(need.demand),
            total.intensity().value()
        ),
        format!(
            "The machine. {} moves {} and multiplies {} at 16 bit, so that it balances at {:.0} operations per byte. {}",
            device.name,
            device.memory.bandwidth,
            device.peaks.of(wide.layers.math).map_or_else(|| "at an unknown rate".to_owned(), |peak| peak.to_string()),
            total.critical.value(),
            balance(total.bound(), total.intensity().value(), total.critical.value())
        ),
        format!("Where the time goes at 16 bit: {}.", shares(&before)),
    ];
    steps.push(match advice.capacity {
        Some(capacity) => {
            let refused = advice.outcomes.iter().filter(|outcome| outcome.memory > capacity).count();
            format!(
                "What fits. There are {capacity}, of which a tenth is kept for the runtime. {} of {} plans need more.",
                refused,
                advice.outcomes.len()
            )
        }
        None => "What fits. Nothing is known of the memory, so everything is assumed to fit.".to_owned(),
    });
    if let Some(best) = advice.choice() {
        let after = predict(&graph, &best.candidate.plan, Sizes::Exact, device)?;
        steps.push(format!(
            "The choice moves {} and multiplies on units with {}: {} by the ideal roofline instead of {}. Mostly {}.",
            after.total.work.bytes(),
            device
                .peaks
                .of(best.candidate.plan.layers.math)
                .map_or_else(|| "an unknown rate".to_owned(), |peak| peak.to_string()),
            after.total.time(),
            total.time(),
            shares(&after)
        ));
        if advice.tier == "expected" {
            let most = match best.bound {
                Bound::Launch => "most of it is starting kernels, which no format shortens",
                Bound::Memory => "most of it is memory",
                _ => "most of it is widening and multiplying",
            };
            steps.push(format!(
                "What this device really does. Kernels start, fill and drain, and reach a share of each rate; by its calibration \
                 the demand takes {}, {:.2}x as fast as 16 bit, and {most}.",
                best.time, best.speedup
            ));
        }
        let estimate = format!(
            " Every format rounds; the estimate takes the error t of the format on Gaussian weights and {} to {} times t squared, \
             which is what published models lost.",
            roofline_core::quality::ROBUST,
            roofline_core::quality::SENSITIVE
        );
        let estimate = if matches!(best.quality, Quality::Estimated(_)) { estimate } else { String::new() };
        steps.push(format!("What it costs. Perplexity: {}.{estimate}", quality(&best.quality)));
        steps.push(format!("Energy: {}.", energy_source(device)));
        let rivals: Vec<String> = advice
            .outcomes
            .iter()
            .skip(1)
            .filter(|outcome| outcome.refused.is_none())
            .take(NAMED)
            .filter_map(|outcome| Some(format!("{}: {}", outcome.candidate.name, outcome.lost.as_ref()?)))
            .collect();
        if !rivals.is_empty() {
            steps.push(format!("Why not another. {}.", rivals.join("; ")));
        }
    }
    Ok(steps)
}

fn balance(bound: Bound, intensity: f64, critical: f64) -> String {
    match bound {
        Bound::Memory => format!(
            "The work has {:.0} times fewer, so multipliers wait for memory, and fewer bytes mean less time.",
            critical / intensity
        ),
        _ => "The work has more, so memory waits for the multipliers, and only faster units mean less time.".to_owned(),
    }
}

/// The operators that take longest, with their shares.
fn shares(forecast: &Forecast) -> String {
    let mut sites: Vec<(&str, Seconds)> = Vec::new();
    for (node, estimate) in &forecast.nodes {
        match sites.iter_mut().find(|(site, _)| *site == node.site) {
            Some((_, time)) => *time += estimate.time(),
            None => sites.push((node.site, estimate.time())),
        }
    }
    sites.sort_by(|a, b| b.1.value().total_cmp(&a.1.value()));
    let share = |(site, time): &(&str, Seconds)| format!("{site} {:.0} %", 100.0 * (*time / forecast.total.time()));
    sites.iter().take(NAMED).map(share).collect::<Vec<_>>().join(", ")
}
