//! Which power mode, plan and batch for a goal, by asking for the best plan on the device that each mode leaves.

use clap::{Args, ValueEnum};
use roofline_core::{
    Dim, Graph, Model,
    device::PowerMode,
    energy::Energy,
    format::{Shape, Sizes},
    machine::Stack,
    plan::Assignment,
    precision::advisable,
    predict::{Bound, Prediction, Tier, forecast},
    recommend::{Demand, Goal, Limits, Need, recommend},
    units::{Bytes, Joules, Seconds, Watts},
};
use roofline_run::jetson::Root;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Board, InMode, Place, SIDE,
    set_mode::{SetMode, ShellStep, set_mode},
};
use crate::{Context, Error, Note, Result, machine, request::ModelName, text::number};

/// The largest batch of a product that is looked at, whatever fits: far beyond every ridge.
const MOST: u64 = 1 << 20;
/// Predictions closer than this are the same.
const SAME: f64 = 1.01;

/// What is to run, and what matters.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
pub struct Schedule {
    /// What matters most
    #[arg(long, value_enum, default_value = "latency")]
    #[serde(default)]
    pub goal: ScheduleGoal,
    /// A model, decoding; a 4096 x 4096 matrix-vector product when left out
    #[arg(long, value_name = "MODEL")]
    pub model: Option<ModelName>,
    /// Tokens in the cache of each sequence
    #[arg(long, default_value = "1024", allow_negative_numbers = true)]
    #[serde(default = "context")]
    pub context: Dim,
    /// Memory that weights, cache and activations may take; what the board has when left out
    #[arg(long, value_name = "SIZE")]
    #[schemars(with = "Option<String>")]
    pub memory_limit: Option<Bytes>,
    /// Put the board into the mode that was chosen, as `set-mode --apply` does
    #[arg(long)]
    #[serde(default)]
    #[schemars(extend("x-local" = true))]
    pub apply: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub board: Place,
}

fn context() -> Dim {
    Dim::new("context", 1024).unwrap_or(Dim::ONE)
}

/// What a schedule is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleGoal {
    /// The shortest time for a token of one sequence
    #[default]
    Latency,
    /// The most tokens per second of all sequences together
    Throughput,
    /// The least energy for a token, by the modes' budgets
    Power,
}

impl ScheduleGoal {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Power => "power",
        }
    }
}

/// The mode, plan and batch that were chosen.
#[derive(Serialize, JsonSchema)]
pub struct Scheduled {
    /// The device that the numbers are of.
    pub device: String,
    pub device_name: String,
    pub workload: String,
    pub power_mode_id: u32,
    pub power_mode_name: String,
    pub precision: String,
    pub method: String,
    pub batch_size: u64,
    pub target: ScheduleGoal,
    pub reason: String,
    /// The best of each mode.
    pub candidates: Vec<ScheduleCandidate>,
    /// What puts the board into the mode.
    pub apply: ScheduleApply,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// How the decision is carried out, and whether it was.
#[derive(Serialize, JsonSchema)]
pub struct ScheduleApply {
    pub command: String,
    /// What the command runs; empty until it did.
    pub steps: Vec<ShellStep>,
    pub applied: bool,
    pub notes: Vec<Note>,
}

/// The best that a mode can do.
#[derive(Serialize, JsonSchema)]
pub struct ScheduleCandidate {
    pub power_mode_name: String,
    pub power_budget_w: Option<f64>,
    pub precision: String,
    pub batch_size: u64,
    pub tier: Tier,
    pub predicted_time_us: f64,
    pub tokens_per_s: f64,
    pub bottleneck: String,
    pub memory_bytes: Bytes,
    /// Budget times predicted time: an estimate, nothing was measured.
    pub estimated_energy_per_token_j: Option<f64>,
    pub chosen: bool,
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
    fn cost(&self, goal: ScheduleGoal) -> Option<f64> {
        match goal {
            ScheduleGoal::Latency => Some(self.time.value()),
            ScheduleGoal::Throughput => Some(1.0 / self.tokens_per_second()),
            ScheduleGoal::Power => self.energy.map(Joules::value),
        }
    }
}

/// The best way for a goal. Of those that predict the same, the one with the most compute, because the prediction leaves out
/// what a faster GPU also shortens; then the smallest batch; then the widest weights, which lose least.
fn select(candidates: &[Candidate], goal: ScheduleGoal) -> Option<&Candidate> {
    let cost = |candidate: &Candidate| candidate.cost(goal).unwrap_or(f64::INFINITY);
    let least = candidates.iter().map(cost).fold(f64::INFINITY, f64::min);
    let best = candidates.iter().filter(|candidate| least.is_finite() && cost(candidate) <= least * SAME);
    best.min_by(|one, other| {
        let compute = other.mode.fp16.value().total_cmp(&one.mode.fp16.value());
        compute.then(one.batch.cmp(&other.batch)).then(other.bits.cmp(&one.bits))
    })
}

pub(super) fn schedule(context: &Context, root: &Root, asked: &Schedule) -> Result<Scheduled> {
    if asked.apply && asked.board.on.is_some() {
        let hint = "leave out ⟨on⟩ on the board itself, or leave out ⟨apply⟩ to see the command";
        return Err(Error::request("a board of the registry has no mode to change", hint));
    }
    let board = &Board::open(context, root, &asked.board)?;
    let model = asked.model.as_ref().map(|name| context.model(name)).transpose()?;
    let limits =
        [asked.memory_limit, board.device.memory.usable(), board.status.as_ref().and_then(|status| status.memory)];
    let limit = limits.into_iter().flatten().reduce(Bytes::min);
    let (mut all, mut missing) = (Vec::new(), None);
    for mode in &board.modes {
        match &model {
            Some(model) => match plan(context, mode, model, asked, limit)? {
                Ok(candidate) => all.push(candidate),
                Err(reason) => missing = Some(reason),
            },
            None => all.extend(products(context, mode, asked, limit)?),
        }
    }
    let nothing = || {
        let reason = missing.unwrap_or_else(|| "no mode has a budget to estimate energy by".to_owned());
        Error::request(reason, "take a smaller model, a shorter ⟨context⟩, a larger ⟨memory_limit⟩ or another ⟨goal⟩")
    };
    let chosen = select(&all, asked.goal).ok_or_else(nothing)?;
    let workload = model.as_ref().map_or_else(
        || format!("matrix-vector products of {SIDE} x {SIDE}"),
        |model| format!("{} decoding at {} tokens", model.name, asked.context),
    );
    let of_mode = |mode: &InMode| -> Option<Candidate> {
        let own: Vec<Candidate> =
            all.iter().filter(|candidate| candidate.mode.name == mode.mode.name).cloned().collect();
        // A mode without a budget has no energy to be judged by; it is still worth a line.
        select(&own, asked.goal).or_else(|| select(&own, ScheduleGoal::Latency)).cloned()
    };
    let apply = apply(context, root, &chosen.mode.name, asked.apply)?;
    let rivals: Vec<Candidate> = board.modes.iter().filter_map(of_mode).collect();
    Ok(Scheduled {
        device: board.device.key.clone(),
        device_name: format!("{} (scaled {})", board.device.name, chosen.mode.name),
        workload,
        power_mode_id: chosen.mode.id,
        power_mode_name: chosen.mode.name.clone(),
        precision: chosen.precision.clone(),
        method: chosen.method.clone(),
        batch_size: chosen.batch,
        target: asked.goal,
        reason: reason(chosen, &rivals, asked.goal),
        candidates: rivals.iter().map(|rival| row(rival, chosen)).collect(),
        apply,
        notes: context.notes(),
    })
}

/// The command for the mode, run where that was asked for: the same that `set-mode` does.
fn apply(context: &Context, root: &Root, mode: &str, now: bool) -> Result<ScheduleApply> {
    let command = format!("roofline jetson set-mode {mode} --apply");
    if !now {
        return Ok(ScheduleApply { command, steps: Vec::new(), applied: false, notes: Vec::new() });
    }
    let done = set_mode(context, root, &SetMode { name: mode.to_owned(), clocks: false, apply: true })?;
    Ok(ScheduleApply { command, steps: done.steps, applied: done.applied, notes: done.notes })
}

/// The best plan of a model in one mode, or why there is none.
fn plan(
    context: &Context,
    mode: &InMode,
    model: &Model,
    asked: &Schedule,
    limit: Option<Bytes>,
) -> Result<Result<Candidate, String>> {
    let goal = match asked.goal {
        ScheduleGoal::Throughput => Goal::Throughput,
        // Within one mode, the least time is the least energy.
        ScheduleGoal::Latency | ScheduleGoal::Power => Goal::Latency,
    };
    let limits = Limits { memory: limit, ..Limits::default() };
    let demand = Demand::Decode { context: asked.context.get() };
    let machine = machine::machine(context, mode.device.clone(), Stack::Roofline);
    let advice = recommend(&Need { devices: Some(1), demand, goal, limits: &limits, ..Need::new(model, &machine) })?;
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
fn products(context: &Context, mode: &InMode, asked: &Schedule, limit: Option<Bytes>) -> Result<Vec<Candidate>> {
    let machine = machine::machine(context, mode.device.clone(), Stack::Roofline);
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
            if asked.goal != ScheduleGoal::Throughput {
                break;
            }
            batch *= 2;
        }
    }
    Ok(all)
}

fn reason(chosen: &Candidate, rivals: &[Candidate], goal: ScheduleGoal) -> String {
    let first = match goal {
        ScheduleGoal::Latency => format!("{} per token is the shortest time predicted", chosen.time),
        ScheduleGoal::Throughput => format!("{} tokens/s is the most predicted", number(chosen.tokens_per_second())),
        ScheduleGoal::Power => {
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
    if goal == ScheduleGoal::Power && !unlimited.is_empty() {
        sentences.push(format!("{} has no budget to estimate by", unlimited.join(", ")));
    }
    if chosen.method != "none" {
        sentences.push("what the narrower numbers cost in accuracy is for `⟨roofline recommend⟩` to say".to_owned());
    }
    sentences.join("; ")
}

fn row(rival: &Candidate, chosen: &Candidate) -> ScheduleCandidate {
    ScheduleCandidate {
        power_mode_name: rival.mode.name.clone(),
        power_budget_w: rival.mode.power.map(Watts::value),
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

#[cfg(test)]
mod tests;
