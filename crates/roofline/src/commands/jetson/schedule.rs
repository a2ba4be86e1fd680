//! `roofline jetson schedule`: which power mode, precision and batch for a goal, by predicting every combination on the
//! device that the mode leaves.

use roofline_core::{
    Device, Graph, Model, Plan,
    device::PowerMode,
    format::Sizes,
    model::{Lowering, Workload},
    precision::PrecisionSpec,
    predict::{Bound, predict},
    units::{Bytes, Joules, Seconds},
};
use serde::Serialize;

use super::{Board, InMode, status::gibi};
use crate::{
    cli::{GoalArg, ScheduleArgs},
    commands::source,
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// Precisions to choose from, widest first, with the method that makes a checkpoint of them.
const PRECISIONS: &[(&str, &str)] = &[
    ("fp16", "none"),
    ("w8a16", "PTQ"),
    ("int8", "PTQ"),
    ("fp8", "native_fp8"),
    ("w4a16", "AWQ"),
    ("nvfp4", "native_fp4"),
];
/// Batches that throughput is looked for in.
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
    precision: &'static str,
    method: &'static str,
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
    precision: &'static str,
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
    /// Where its precision stands among [`PRECISIONS`].
    precision: usize,
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
/// what a faster GPU also shortens; then the smallest batch, then the widest numbers.
fn select(candidates: &[Candidate], goal: GoalArg) -> Option<&Candidate> {
    let cost = |candidate: &Candidate| candidate.cost(goal).unwrap_or(f64::INFINITY);
    let least = candidates.iter().map(cost).fold(f64::INFINITY, f64::min);
    let best = candidates.iter().filter(|candidate| least.is_finite() && cost(candidate) <= least * SAME);
    best.min_by(|one, other| {
        let compute = other.mode.fp16.value().total_cmp(&one.mode.fp16.value());
        compute.then((one.batch, one.precision).cmp(&(other.batch, other.precision)))
    })
}

pub(super) fn schedule(board: &Board, args: &ScheduleArgs) -> Result<Schedule, Failure> {
    let model = args.model.as_deref().map(source::model).transpose()?;
    let limits =
        [args.memory_limit, board.device.memory.usable(), board.status.as_ref().and_then(|status| status.memory)];
    let limit = limits.into_iter().flatten().reduce(Bytes::min);
    let mut all = Vec::new();
    for mode in &board.modes {
        all.extend(candidates(mode, model.as_ref(), args, limit)?);
    }
    let nothing = || {
        let room = limit.map_or_else(String::new, |limit| format!(" in {}", gibi(limit)));
        Failure::usage(
            format!("nothing fits{room}"),
            "take a smaller model, a shorter --context or a larger --memory-limit",
        )
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
    let (precision, method) = PRECISIONS[chosen.precision];
    Ok(Schedule {
        device: board.device.key.clone(),
        device_name: format!("{} (scaled {})", board.device.name, chosen.mode.name),
        workload,
        power_mode_id: chosen.mode.id,
        power_mode_name: chosen.mode.name.clone(),
        precision,
        method,
        batch_size: chosen.batch,
        target: target(args.goal),
        reason: reason(chosen, &rivals, args.goal),
        candidates: rivals.iter().map(|rival| row(rival, chosen)).collect(),
    })
}

/// Every precision and batch of one mode that fits.
fn candidates(
    mode: &InMode,
    model: Option<&Model>,
    args: &ScheduleArgs,
    limit: Option<Bytes>,
) -> Result<Vec<Candidate>, Failure> {
    let batches = if args.goal == GoalArg::Throughput { &BATCHES[..] } else { &BATCHES[..1] };
    let mut all = Vec::new();
    for (precision, (name, _)) in PRECISIONS.iter().enumerate() {
        let spec: PrecisionSpec = name.parse()?;
        // What its units cannot multiply is no candidate.
        let Ok(plan) = Plan::model(&spec, &mode.device) else { continue };
        for batch in batches {
            let (graph, memory) = case(model, args.context, *batch, &plan, &mode.device)?;
            if limit.is_some_and(|limit| memory > limit) {
                continue;
            }
            let total = predict(&graph, &plan, Sizes::Exact, &mode.device)?.total;
            let energy = mode.mode.power.map(|power| power * total.time() / *batch as f64);
            let (mode, batch, time, bound) = (mode.mode.clone(), *batch, total.time(), total.bound());
            all.push(Candidate { mode, precision, batch, time, energy, memory, bound });
        }
    }
    Ok(all)
}

/// The kernels of a step, and the memory it takes.
fn case(
    model: Option<&Model>,
    context: u64,
    batch: u64,
    plan: &Plan,
    device: &Device,
) -> Result<(Graph, Bytes), Failure> {
    let Some(model) = model else {
        let graph = Graph::gemm(batch, SIDE, SIDE)?;
        let work = predict(&graph, plan, Sizes::Exact, device)?.total.work;
        return Ok((graph, work.read));
    };
    let (workload, lowering) = (Workload::decode(batch, context)?, Lowering::default());
    let graph = model.graph(workload, lowering)?;
    let memory = model.footprint_of(&graph, workload, lowering.ranks, plan, Sizes::Exact).total();
    Ok((graph, memory))
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
            format!("{energy} per token is the least, estimated as the mode's whole budget times the predicted time")
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
    if PRECISIONS[chosen.precision].1 != "none" {
        sentences.push("what the narrower numbers cost in accuracy is for `roofline quantize` to say".to_owned());
    }
    sentences.join("; ")
}

fn row(rival: &Candidate, chosen: &Candidate) -> Row {
    Row {
        power_mode_name: rival.mode.name.clone(),
        power_budget_w: rival.mode.power.map(roofline_core::units::Watts::value),
        precision: PRECISIONS[rival.precision].0,
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
                row.precision.into(),
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
                ("method".to_owned(), self.method.to_owned()),
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
        Candidate { mode, precision: 0, batch, time, energy, memory: Bytes::ZERO, bound: Bound::Memory }
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
