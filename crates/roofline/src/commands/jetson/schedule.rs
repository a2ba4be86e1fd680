//! `roofline jetson schedule`: which power mode, plan and batch for a goal, by asking for the best plan on the device that
//! each mode leaves.

use roofline_core::{
    Model,
    device::PowerMode,
    energy::Energy,
    predict::Bound,
    recommend::{Demand, Goal, Limits, Need, recommend, recommend_operator},
    units::{Bytes, Joules, Seconds},
};
use serde::Serialize;

use super::{Board, InMode};
use crate::{
    cli::{GoalArg, ScheduleArgs},
    commands::source,
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// Batches that throughput of a product is looked for in.
const BATCHES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Side of the product that stands for a model where none is named.
const SIDE: u64 = 4096;
/// Predictions closer than this are the same.
const SAME: f64 = 1.01;

#[derive(Serialize)]
pub(super) struct Schedule {
    /// The device that the numbers are of.
    device: String,
    device_name: String,
    workload: String,
    power_mode_id: u32,
    power_mode_name: String,
    precision: String,
    method: String,
    batch_size: u64,
    target: &'static str,
    reason: String,
    /// The best of each mode.
    candidates: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    power_mode_name: String,
    power_budget_w: Option<f64>,
    precision: String,
    batch_size: u64,
    tier: &'static str,
    predicted_time_us: f64,
    tokens_per_s: f64,
    bottleneck: String,
    memory_bytes: Bytes,
    /// Budget times predicted time: an estimate, nothing was measured.
    estimated_energy_per_token_j: Option<f64>,
    chosen: bool,
}

/// One way to run.
#[derive(Clone)]
struct Candidate {
    mode: PowerMode,
    precision: String,
    method: String,
    batch: u64,
    /// Of a step of the whole batch.
    time: Seconds,
    /// Of one token, at the mode's whole budget.
    energy: Option<Joules>,
    memory: Bytes,
    bound: Bound,
}

impl Candidate {
    fn tokens_per_second(&self) -> f64 {
        self.batch as f64 / self.time.value()
    }

    /// What the goal wants least of.
    fn cost(&self, goal: GoalArg) -> Option<f64> {
        match goal {
            GoalArg::Latency => Some(self.time.value()),
            GoalArg::Throughput => Some(1.0 / self.tokens_per_second()),
            GoalArg::Power => self.energy.map(Joules::value),
        }
    }
}

/// The best way for a goal. Of those that predict the same, the one with the most compute, because the ideal leaves out
/// what a faster GPU also shortens; then the smallest batch.
fn select(candidates: &[Candidate], goal: GoalArg) -> Option<&Candidate> {
    let cost = |candidate: &Candidate| candidate.cost(goal).unwrap_or(f64::INFINITY);
    let least = candidates.iter().map(cost).fold(f64::INFINITY, f64::min);
    let best = candidates.iter().filter(|candidate| least.is_finite() && cost(candidate) <= least * SAME);
    best.min_by(|one, other| {
        let compute = other.mode.fp16.value().total_cmp(&one.mode.fp16.value());
        compute.then(one.batch.cmp(&other.batch))
    })
}

pub(super) fn schedule(board: &Board, args: &ScheduleArgs) -> Result<Schedule, Failure> {
    let model = args.model.as_deref().map(source::model).transpose()?;
    let limits =
        [args.memory_limit, board.device.memory.usable(), board.status.as_ref().and_then(|status| status.memory)];
    let limit = limits.into_iter().flatten().reduce(Bytes::min);
    let (mut all, mut missing) = (Vec::new(), None);
    for mode in &board.modes {
        match &model {
            Some(model) => match plan(mode, model, args, limit)? {
                Ok(candidate) => all.push(candidate),
                Err(reason) => missing = Some(reason),
            },
            None => all.extend(products(mode, args, limit)?),
        }
    }
    let nothing = || {
        let reason = missing.unwrap_or_else(|| "no mode has a budget to estimate energy by".to_owned());
        Failure::usage(reason, "take a smaller model, a shorter --context, a larger --memory-limit or another --goal")
    };
    let chosen = select(&all, args.goal).ok_or_else(nothing)?;
    let workload = model.as_ref().map_or_else(
        || format!("matrix-vector products of {SIDE} x {SIDE}"),
        |model| format!("{} decoding at {} tokens", model.name, args.context),
    );
    let of_mode = |mode: &InMode| -> Option<Candidate> {
        let own: Vec<Candidate> =
            all.iter().filter(|candidate| candidate.mode.name == mode.mode.name).cloned().collect();
        // A mode without a budget has no energy to be judged by; it is still worth a line.
        select(&own, args.goal).or_else(|| select(&own, GoalArg::Latency)).cloned()
    };
    let rivals: Vec<Candidate> = board.modes.iter().filter_map(of_mode).collect();
    Ok(Schedule {
        device: board.device.key.clone(),
        device_name: format!("{} (scaled {})", board.device.name, chosen.mode.name),
        workload,
        power_mode_id: chosen.mode.id,
        power_mode_name: chosen.mode.name.clone(),
        precision: chosen.precision.clone(),
        method: chosen.method.clone(),
        batch_size: chosen.batch,
        target: target(args.goal),
        reason: reason(chosen, &rivals, args.goal),
        candidates: rivals.iter().map(|rival| row(rival, chosen)).collect(),
    })
}

/// The best plan of a model in one mode, or why there is none.
fn plan(
    mode: &InMode,
    model: &Model,
    args: &ScheduleArgs,
    limit: Option<Bytes>,
) -> Result<Result<Candidate, String>, Failure> {
    let goal = match args.goal {
        GoalArg::Throughput => Goal::Throughput,
        // Within one mode, the least time is the least energy.
        GoalArg::Latency | GoalArg::Power => Goal::Latency,
    };
    let limits = Limits { memory: limit, ..Limits::default() };
    let demand = Demand::Decode { context: args.context };
    let device = &mode.device;
    let advice = recommend(&Need {
        model,
        device,
        calibration: None,
        batch: None,
        demand,
        goal,
        dollars_per_hour: None,
        limits: &limits,
    })?;
    let Some(best) = advice.choice() else { return Ok(Err(advice.reason)) };
    Ok(Ok(Candidate {
        mode: mode.mode.clone(),
        precision: best.candidate.name.clone(),
        method: best.candidate.algorithm.to_owned(),
        batch: best.batch,
        time: best.time,
        energy: best.energy_per_token.map(Energy::joules),
        memory: best.memory,
        bound: best.bound,
    }))
}

/// The best precision of a product in one mode, at each batch.
fn products(mode: &InMode, args: &ScheduleArgs, limit: Option<Bytes>) -> Result<Vec<Candidate>, Failure> {
    let batches = if args.goal == GoalArg::Throughput { &BATCHES[..] } else { &BATCHES[..1] };
    let mut all = Vec::new();
    for batch in batches {
        let advice = recommend_operator((*batch, SIDE, SIDE), &mode.device, None, limit)?;
        let Some(best) = advice.ranked.first() else { continue };
        all.push(Candidate {
            mode: mode.mode.clone(),
            precision: best.precision.clone(),
            method: best.method.to_owned(),
            batch: *batch,
            time: best.time,
            energy: mode.mode.power.map(|power| power * best.time / *batch as f64),
            memory: best.weights,
            bound: best.bound,
        });
    }
    Ok(all)
}

fn target(goal: GoalArg) -> &'static str {
    match goal {
        GoalArg::Latency => "latency",
        GoalArg::Throughput => "throughput",
        GoalArg::Power => "power",
    }
}

fn reason(chosen: &Candidate, rivals: &[Candidate], goal: GoalArg) -> String {
    let first = match goal {
        GoalArg::Latency => format!("{} per token is the shortest time predicted", chosen.time),
        GoalArg::Throughput => format!("{} tokens/s is the most predicted", number(chosen.tokens_per_second())),
        GoalArg::Power => {
            let energy = chosen.energy.map_or_else(String::new, |energy| energy.to_string());
            format!(
                "{energy} per token is the least for one sequence, estimated as the mode's whole budget times the predicted time"
            )
        }
    };
    let mut sentences = vec![first, format!("it is bound by {}", chosen.bound)];
    let same = |rival: &&Candidate| {
        rival.mode.name != chosen.mode.name
            && rival.cost(goal).zip(chosen.cost(goal)).is_some_and(|(rival, best)| rival <= best * SAME)
    };
    let names: Vec<&str> = rivals.iter().filter(same).map(|rival| rival.mode.name.as_str()).collect();
    if !names.is_empty() {
        sentences.push(format!(
            "{} predicts the same, because it keeps what this is bound by; the mode with more compute is taken for what theory \
             leaves out",
            names.join(", ")
        ));
    }
    let unlimited: Vec<&str> =
        rivals.iter().filter(|rival| rival.energy.is_none()).map(|rival| rival.mode.name.as_str()).collect();
    if goal == GoalArg::Power && !unlimited.is_empty() {
        sentences.push(format!("{} has no budget to estimate by", unlimited.join(", ")));
    }
    if chosen.method != "none" {
        sentences.push("what the narrower numbers cost in accuracy is for `roofline recommend` to say".to_owned());
    }
    sentences.join("; ")
}

fn row(rival: &Candidate, chosen: &Candidate) -> Row {
    Row {
        power_mode_name: rival.mode.name.clone(),
        power_budget_w: rival.mode.power.map(roofline_core::units::Watts::value),
        precision: rival.precision.clone(),
        batch_size: rival.batch,
        tier: "ideal",
        predicted_time_us: rival.time.micros(),
        tokens_per_s: rival.tokens_per_second(),
        bottleneck: rival.bound.to_string(),
        memory_bytes: rival.memory,
        estimated_energy_per_token_j: rival.energy.map(Joules::value),
        chosen: rival.mode.name == chosen.mode.name,
    }
}

impl Report for Schedule {
    const ROWS: &'static str = "candidates";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("batch", Align::Right, 0)
            .column("step", Align::Right, 0)
            .column("tokens/s", Align::Right, 0)
            .column("energy per token", Align::Right, 1)
            .column("bound by", Align::Left, 2);
        for row in &self.candidates {
            let energy = row.estimated_energy_per_token_j.map(|energy| Joules::new(energy).to_string());
            table.row([
                format!("{}{}", row.power_mode_name, if row.chosen { " <" } else { "" }).into(),
                row.precision.as_str().into(),
                row.batch_size.to_string().into(),
                Seconds::from_micros(row.predicted_time_us).to_string().into(),
                number(row.tokens_per_s).into(),
                energy.unwrap_or_default().into(),
                row.bottleneck.as_str().into(),
            ]);
        }
        vec![
            Section::Heading(format!(
                "{}: {} in {}, batch {}, for {}",
                self.device_name, self.precision, self.power_mode_name, self.batch_size, self.target
            )),
            Section::Facts(vec![
                ("workload".to_owned(), self.workload.clone()),
                ("method".to_owned(), self.method.clone()),
                ("reason".to_owned(), self.reason.clone()),
            ]),
            Section::Heading(
                "The best of each mode, by the ideal roofline; energy is the budget times the time, an estimate"
                    .to_owned(),
            ),
            Section::Table(table.without_empty_columns()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, fp16: f64, time: f64, power: Option<f64>, batch: u64) -> Candidate {
        let registry = roofline_core::Registry::builtin();
        let nano = registry.find("jetson_orin_nano_8gb").unwrap();
        let mode = PowerMode {
            name: name.to_owned(),
            power: power.map(roofline_core::units::Watts::new),
            fp16: roofline_core::units::FlopRate::new(fp16),
            ..nano.power_modes[0].clone()
        };
        let time = Seconds::new(time);
        let energy = mode.power.map(|power| power * time / batch as f64);
        let (precision, method) = ("w4a16".to_owned(), "mse".to_owned());
        Candidate { mode, precision, method, batch, time, energy, memory: Bytes::ZERO, bound: Bound::Memory }
    }

    #[test]
    fn goals_choose() {
        let all = [
            candidate("15W", 10e12, 1e-3, Some(15.0), 1),
            candidate("7W", 3e12, 1e-3, Some(7.0), 1),
            candidate("MAXN", 12e12, 0.8e-3, None, 1),
            candidate("15W", 10e12, 1.5e-3, Some(15.0), 4),
        ];
        let name = |goal| select(&all, goal).map(|chosen| (chosen.mode.name.clone(), chosen.batch)).unwrap();
        assert_eq!(name(GoalArg::Latency), ("MAXN".to_owned(), 1));
        assert_eq!(name(GoalArg::Throughput), ("15W".to_owned(), 4));
        // 15 W x 1.5 ms over 4 tokens is 5.6 mJ; 7 W x 1 ms is 7 mJ; without a budget there is nothing to compare.
        assert_eq!(name(GoalArg::Power), ("15W".to_owned(), 4));
        // The same time: the one with more compute.
        assert_eq!(select(&all[..2], GoalArg::Latency).unwrap().mode.name, "15W");
        assert_eq!(select(&all[..2], GoalArg::Power).unwrap().mode.name, "7W");
        assert!(select(&[], GoalArg::Power).is_none());
        assert!(select(&all[2..3], GoalArg::Power).is_none());
    }
}
