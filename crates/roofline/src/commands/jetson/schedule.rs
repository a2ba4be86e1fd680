//! `roofline jetson schedule`: which power mode, plan and batch for a goal, by asking for the best plan on the device that
//! each mode leaves.

use roofline_core::{
    Dim, Graph, Model,
    device::PowerMode,
    energy::Energy,
    format::{Shape, Sizes},
    plan::Assignment,
    precision::advisable,
    predict::{Bound, Prediction, Tier, forecast},
    recommend::{Demand, Goal, Limits, Need, recommend},
    units::{Bytes, Joules, Seconds},
};
use roofline_run::jetson::Root;
use serde::Serialize;

use super::{
    Board, InMode,
    set_mode::{Step, set_mode},
};
use crate::{
    cli::{GoalArg, ScheduleArgs, SetModeArgs},
    commands::{known, source},
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// The largest batch of a product that is looked at, whatever fits: far beyond every ridge.
const MOST: u64 = 1 << 20;
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
    /// What puts the board into the mode.
    apply: Apply,
}

/// How the decision is carried out, and whether it was.
#[derive(Serialize)]
struct Apply {
    command: String,
    /// What the command runs; empty until it did.
    steps: Vec<Step>,
    applied: bool,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    power_mode_name: String,
    power_budget_w: Option<f64>,
    precision: String,
    batch_size: u64,
    tier: Tier,
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
    /// Of a stored weight.
    bits: u32,
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

/// The best way for a goal. Of those that predict the same, the one with the most compute, because the prediction leaves out
/// what a faster GPU also shortens; then the smallest batch; then the widest weights, which lose least.
fn select(candidates: &[Candidate], goal: GoalArg) -> Option<&Candidate> {
    let cost = |candidate: &Candidate| candidate.cost(goal).unwrap_or(f64::INFINITY);
    let least = candidates.iter().map(cost).fold(f64::INFINITY, f64::min);
    let best = candidates.iter().filter(|candidate| least.is_finite() && cost(candidate) <= least * SAME);
    best.min_by(|one, other| {
        let compute = other.mode.fp16.value().total_cmp(&one.mode.fp16.value());
        compute.then(one.batch.cmp(&other.batch)).then(other.bits.cmp(&one.bits))
    })
}

pub(super) fn schedule(root: &Root, args: &ScheduleArgs) -> Result<Schedule, Failure> {
    if args.apply && args.board.on.is_some() {
        let hint = "leave out --on on the board itself, or leave out --apply to see the command";
        return Err(Failure::usage("a board of the registry has no mode to change", hint));
    }
    let board = &Board::open(root, &args.board)?;
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
    let apply = apply(root, &chosen.mode.name, args.apply)?;
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
        apply,
    })
}

/// The command for the mode, run where that was asked for: the same that `set-mode` does.
fn apply(root: &Root, mode: &str, now: bool) -> Result<Apply, Failure> {
    let command = format!("roofline jetson set-mode {mode} --apply");
    if !now {
        return Ok(Apply { command, steps: Vec::new(), applied: false, notes: Vec::new() });
    }
    let done = set_mode(root, &SetModeArgs { name: mode.to_owned(), clocks: false, apply: true })?;
    Ok(Apply { command, steps: done.steps, applied: done.applied, notes: done.notes })
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
    let machine = known(mode.device.clone());
    let advice = recommend(&Need {
        model,
        machine: &machine,
        tier: Tier::Expected,
        batch: None,
        devices: Some(1),
        demand,
        goal,
        dollars_per_hour: None,
        limits: &limits,
    })?;
    let Some(best) = advice.choice() else { return Ok(Err(advice.reason)) };
    Ok(Ok(Candidate {
        mode: mode.mode.clone(),
        precision: best.candidate.plan.to_string(),
        method: best.candidate.algorithm.to_owned(),
        batch: best.batch,
        bits: best.candidate.plan.layers(&mode.device)?.weights.nominal_bits(),
        time: best.time,
        energy: best.energy_per_token.map(Energy::joules),
        memory: best.memory.total,
        bound: best.bound,
    }))
}

/// Every precision that the mode's device multiplies, at one row, or for throughput at every doubling of the batch whose
/// operands fit. A product is a kernel: no runtime has to know its format.
fn products(mode: &InMode, args: &ScheduleArgs, limit: Option<Bytes>) -> Result<Vec<Candidate>, Failure> {
    let machine = known(mode.device.clone());
    let shape = Shape::matrix(Dim::new("n", SIDE)?, Dim::new("k", SIDE)?);
    let mut all = Vec::new();
    for named in advisable() {
        let Ok(formats) = named.precision().on(&mode.device) else { continue };
        let plan = Assignment::uniform(formats);
        let mut batch = 1;
        while batch <= MOST {
            let Prediction { ideal, expected } = forecast(&Graph::gemm(batch, SIDE, SIDE)?, &plan, &machine)?.total;
            if limit.is_some_and(|limit| ideal.work.bytes() > limit) {
                break;
            }
            let bits = formats.weights.nominal_bits();
            all.push(Candidate {
                mode: mode.mode.clone(),
                precision: named.name.to_owned(),
                method: if bits < 16 { "rtn" } else { "none" }.to_owned(),
                batch,
                bits,
                time: expected.time.seconds(),
                energy: mode.mode.power.map(|power| power * expected.time.seconds() / batch as f64),
                memory: formats.weights.bytes(shape, Sizes::Exact),
                bound: expected.bound(),
            });
            if args.goal != GoalArg::Throughput {
                break;
            }
            batch *= 2;
        }
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
        tier: Tier::Expected,
        predicted_time_us: rival.time.micros(),
        tokens_per_s: rival.tokens_per_second(),
        bottleneck: rival.bound.to_string(),
        memory_bytes: rival.memory,
        estimated_energy_per_token_j: rival.energy.map(Joules::value),
        chosen: rival.mode.name == chosen.mode.name,
    }
}

impl Apply {
    fn sentence(&self) -> String {
        if !self.applied {
            return format!(
                "Nothing was changed; `{}` puts the board into the mode, and so does --apply.",
                self.command
            );
        }
        let steps: Vec<&str> = self.steps.iter().map(|step| step.command.as_str()).collect();
        let mut sentences = vec![format!("Done: {}.", steps.join(", "))];
        sentences.extend(self.notes.iter().map(|note| format!("Note: {note}.")));
        sentences.join(" ")
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
                "The best of each mode, by the time to expect; energy is the budget times that time, an estimate"
                    .to_owned(),
            ),
            Section::Table(table.without_empty_columns()),
            Section::Paragraph(self.apply.sentence()),
        ]
    }
}

#[cfg(test)]
mod tests;
