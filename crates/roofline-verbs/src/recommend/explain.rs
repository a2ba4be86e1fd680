//! The reasons, step by step, for whoever wants to learn how such advice comes about.

use roofline_core::{
    Dim, Plan, Role,
    model::Lowering,
    predict::{Bound, Forecast, Tier, predict},
    recommend::{Demand, Need, Quality, Recommendation},
};

use super::words::{energy_source, kinds, loss_with_source, work};
use crate::Result;

/// Operators that are named.
const NAMED: usize = 3;

/// A paragraph for each step.
pub(crate) fn steps(need: &Need<'_>, advice: &Recommendation) -> Result<Vec<String>> {
    let (device, model, tier) = (&need.machine.device, need.model, need.tier);
    let best = advice.choice();
    let machine = need.machine;
    let wide: Plan = device.sixteen_bit().to_string().parse()?;
    let ranks = Dim::new("devices", best.map_or(need.devices.unwrap_or(1), |best| best.tp))?;
    let workload = need.demand.typical(best.map_or(need.batch.unwrap_or(1), |best| best.batch))?;
    let graph = model.graph(workload, Lowering { ranks, ..Lowering::default() })?;
    let before = predict(&graph, &wide, machine)?;
    let (total, math) = (before.total.ideal, wide.on(device, Some(&model.anatomy))?.at(Role::Query).math);
    let rate = |math| device.peaks.of(math).map_or_else(|| "an unknown rate".to_owned(), |peak| peak.to_string());
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
            rate(math),
            total.critical.value(),
            balance(total.bound(), total.intensity().value(), total.critical.value())
        ),
        format!("Where the time goes at 16 bit: {}.", shares(&before, tier)),
    ];
    steps.push(match advice.room {
        Some(room) => {
            let refused = advice.outcomes.iter().filter(|outcome| outcome.memory.missing().is_some()).count();
            format!(
                "What fits. There are {}, of which {} are kept free and {} are the system's: {} for the model. {} of {} plans \
                 need more.",
                room.capacity,
                room.reserve,
                room.system,
                room.for_models(),
                refused,
                advice.outcomes.len()
            )
        }
        None => "What fits. Nothing is known of the memory, so everything is assumed to fit.".to_owned(),
    });
    let Some(best) = best else { return Ok(steps) };
    let after = predict(&graph, &best.candidate.plan, machine)?;
    steps.push(format!(
        "The choice moves {} and multiplies on units with {}: {} by the ideal roofline instead of {}. Mostly {}.",
        after.total.ideal.work.bytes(),
        rate(best.candidate.assignment().at(Role::Query).math),
        after.total.ideal.time(),
        total.time(),
        shares(&after, tier)
    ));
    if tier == Tier::Expected {
        let most = match best.bound {
            Bound::Launch => "most of it is starting kernels, which no format shortens",
            Bound::Memory => "most of it is memory",
            Bound::Network => "most of it is the link",
            _ => "most of it is widening and multiplying",
        };
        let gain = best.gain.map_or_else(String::new, |gain| format!(", {gain:.2}x as fast as 16 bit"));
        steps.push(format!(
            "What to expect. Kernels start, fill and drain, and reach a share of each rate; by what is known of {}'s kernels \
             here ({}) the demand takes {}{gain}, and {most}.",
            best.figures.stack, best.figures.basis, best.time
        ));
    }
    let estimate = format!(
        " Every format rounds; the estimate takes the error t of the format on Gaussian weights and {} to {} times t squared, \
         which is what published models lost, or what other formats were measured to cost these very weights.",
        roofline_core::quality::ROBUST,
        roofline_core::quality::SENSITIVE
    );
    let losses = &best.candidate.losses;
    let how = match losses.quality {
        Quality::Estimated(_) => estimate,
        Quality::Measured { .. } => {
            " It was measured on these weights; what is reckoned with is the upper end of its interval.".to_owned()
        }
        _ => String::new(),
    };
    let kinds = kinds(&advice.outcomes);
    steps.push(format!("What it costs. Perplexity: {}.{how} {kinds}.", loss_with_source(losses)));
    steps.push(format!("Energy: {}.", energy_source(device)));
    let rivals: Vec<String> = advice
        .outcomes
        .iter()
        .skip(1)
        .filter(|outcome| outcome.refused.is_none())
        .take(NAMED)
        .filter_map(|outcome| Some(format!("{}: {}", outcome.candidate.plan, outcome.lost.as_ref()?)))
        .collect();
    if !rivals.is_empty() {
        steps.push(format!("Why not another. {}.", rivals.join("; ")));
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
fn shares(forecast: &Forecast, tier: Tier) -> String {
    let mut sites: Vec<(&str, f64)> = Vec::new();
    for kernel in &forecast.kernels {
        let share = kernel.prediction.share(&forecast.total, tier);
        match sites.iter_mut().find(|(site, _)| *site == kernel.node.site) {
            Some((_, sum)) => *sum += share,
            None => sites.push((kernel.node.site, share)),
        }
    }
    sites.sort_by(|a, b| b.1.total_cmp(&a.1));
    let share = |(site, share): &(&str, f64)| format!("{site} {:.0} %", 100.0 * share);
    sites.iter().take(NAMED).map(share).collect::<Vec<_>>().join(", ")
}
