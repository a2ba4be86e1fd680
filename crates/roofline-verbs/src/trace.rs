//! What a profiler recorded, under the roof: kernels by operator, what each reached, and what to do first.
//!
//! A trace of `torch.profiler` says which kernels ran for which operator and, where shapes were recorded, over what; the
//! core's formulas say what that had to cost. A table of `ncu --csv` has kernels and what they moved, but no operators.

mod advice;
mod attribution;
mod events;
mod ncu;
mod operator;
pub(crate) mod source;

use std::path::{Path, PathBuf};

use clap::Args;
use roofline_core::{
    Device, Machine, Plan,
    compare::Observation,
    machine::{Basis, Stack},
    measurement::quantile,
    predict::{Bound, Prediction},
    units::{Bytes, Seconds},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{
    attribution::{Row, occupations, rows},
    events::Events,
    ncu::Counted,
    operator::Lowered,
    source::Source,
};
use crate::{Context, Error, Note, Result, machine};

/// A profiler's file, and the device it was made on.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TraceRequest")]
pub struct Request {
    /// A trace of torch.profiler (.json, .json.gz), or an export of `ncu --csv`
    #[schemars(extend("x-local" = true))]
    pub trace: PathBuf,
    /// The device it was made on; by the name in the trace when left out
    #[arg(long, value_name = "DEVICE")]
    pub on: Option<String>,
}

/// Who recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "TraceSource")]
pub enum Profiler {
    /// `torch.profiler`, of kernels on a GPU.
    Torch,
    /// `torch.profiler`, of operators on a processor.
    Processor,
    /// Nsight Compute.
    Ncu,
}

/// What took the time of a trace, and how far from the roof.
#[derive(Clone, Serialize, JsonSchema)]
#[schemars(rename = "TraceAnswer")]
pub struct Answer {
    pub subject: String,
    pub source: Profiler,
    pub device: String,
    pub device_name: String,
    pub stack: &'static str,
    /// All kernels, or on a processor all operators without those within them.
    pub time_us: f64,
    pub operators: Vec<TracedOperator>,
    pub unattributed: Unattributed,
    /// The part of the time whose work is known, and so has a roof.
    pub known_share: f64,
    /// When each GPU worked.
    pub occupations: Vec<Occupied>,
    /// What to do first, by the time it could save.
    pub first: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(skip)]
    pub observations: Vec<Observation>,
    #[serde(skip)]
    pub machine: Machine,
}

/// All calls of an operator, or of a kernel that belongs to none that is known.
#[derive(Clone, Default, Serialize, JsonSchema)]
pub struct TracedOperator {
    pub operator: String,
    /// Whether the name is an operator's; a kernel's own otherwise.
    pub attributed: bool,
    pub calls: u64,
    pub kernels: u64,
    pub time_us: f64,
    pub share: f64,
    /// The time of calls whose work is known.
    pub known_time_us: f64,
    pub ideal_time_us: Option<f64>,
    pub expected_time_us: Option<f64>,
    pub basis: Option<Basis>,
    pub tflops: Option<f64>,
    pub gb_s: Option<f64>,
    /// Ideal over measured time, of calls whose work is known.
    pub of_roof: Option<f64>,
    /// Bytes per second over the bandwidth.
    pub of_bandwidth: Option<f64>,
    pub bound: Option<Bound>,
    /// Measured time beyond the ideal, of calls whose work is known.
    pub beyond_roof_us: Option<f64>,
    /// The kernels that took most of it.
    pub kernel_names: Vec<String>,
    pub shapes: Vec<TracedShape>,
}

/// Calls of an operator over operands of one shape.
#[derive(Clone, Serialize, JsonSchema)]
pub struct TracedShape {
    pub shape: String,
    pub precision: String,
    pub calls: u64,
    pub time_us: f64,
    pub median_us: f64,
    /// Of one call.
    pub ideal_time_us: f64,
    /// Of one call.
    pub expected_time_us: f64,
    pub tflops: f64,
    pub gb_s: f64,
    pub of_roof: f64,
    pub bound: Bound,
}

/// Kernels that belong to no operator that is known.
#[derive(Clone, Serialize, JsonSchema)]
pub struct Unattributed {
    pub kernels: u64,
    pub time_us: f64,
    pub share: f64,
    /// Those that took longest.
    pub names: Vec<String>,
}

/// When a GPU worked, from its first kernel to its last.
#[derive(Clone, Copy, Serialize, JsonSchema)]
pub struct Occupied {
    pub gpu: u64,
    pub span_us: f64,
    pub busy_us: f64,
    pub idle_us: f64,
    pub idle_share: f64,
    pub gaps: u64,
    pub longest_gap_us: f64,
}

/// Most bytes of a trace that somebody sends, unpacked: what a profiler writes packs to a fifteenth or less.
#[cfg(feature = "hardware")]
const LONGEST_SENT: u64 = 1 << 30;
/// Names of kernels without an operator that are told.
const MOST_NAMES: usize = 5;

/// What a profiler recorded, under the roof of its device.
pub fn trace(context: &Context, request: &Request) -> Result<Answer> {
    let answer = read(context, &request.trace, request.on.as_deref())?;
    Ok(Answer { notes: context.notes(), ..answer })
}

/// The same, with what is said beside it left to whoever asked.
pub(crate) fn read(context: &Context, path: &Path, on: Option<&str>) -> Result<Answer> {
    analyse(context, path.display().to_string(), Source::open(path)?, on)
}

/// The same of bytes that somebody sent under this name.
#[cfg(feature = "hardware")]
pub(crate) fn read_sent(
    context: &Context,
    name: &str,
    bytes: impl std::io::Read + 'static,
    on: Option<&str>,
) -> Result<Answer> {
    let source = Source::new(bytes, LONGEST_SENT).map_err(Error::file(name))?;
    analyse(context, name.to_owned(), source, on)
}

fn analyse(context: &Context, subject: String, mut source: Source, on: Option<&str>) -> Result<Answer> {
    let refuse = |reason: String| {
        let hint = "a trace is what `export_chrome_trace` writes (.json, .json.gz), or an export of `ncu --csv`";
        Error::request(format!("{subject}: {reason}"), hint)
    };
    let first = source.first().map_err(|error| refuse(error.to_string()))?;
    match first {
        None => Err(refuse("it is empty".to_owned())),
        Some(b'{' | b'[') => {
            let mut events = Events::read(source).map_err(refuse)?;
            let machine = machine::machine(context, device(context, on, &events.devices)?, Stack::Torch);
            let source = if events.kernels.is_empty() { Profiler::Processor } else { Profiler::Torch };
            let rows = rows(&mut events);
            if rows.is_empty() {
                return Err(refuse("no operator and no kernel is in it".to_owned()));
            }
            Ok(Answer::of_trace(subject, source, machine, &rows, &events))
        }
        Some(_) => {
            let kernels = ncu::read(source).map_err(refuse)?;
            let machine = machine::machine(context, device(context, on, &[])?, Stack::Torch);
            Ok(Answer::of_counts(subject, machine, kernels))
        }
    }
}

/// The device that was named, else the one that the trace names.
fn device(context: &Context, on: Option<&str>, named: &[String]) -> Result<Device> {
    if let Some(on) = on {
        return context.device(on);
    }
    let Some(name) = named.first() else {
        return Err(Error::request("nobody said which device was measured", "name it by ⟨on⟩"));
    };
    let plain = name.trim_start_matches("NVIDIA ");
    let found = context.device(plain).or_else(|_| context.device(name));
    let found = found.map_err(|_| {
        Error::request(format!("the trace was made on `{name}`, which is not known"), "name the device by ⟨on⟩")
    })?;
    context.note(format!("the trace says that it was made on {name}"));
    Ok(found)
}

impl Answer {
    fn new(subject: String, source: Profiler, machine: Machine, operators: Vec<TracedOperator>) -> Self {
        let time_us: f64 = operators.iter().map(|row| row.time_us).sum();
        let share = |part: f64| if time_us > 0.0 { part / time_us } else { 0.0 };
        let alone: Vec<&TracedOperator> = operators.iter().filter(|row| !row.attributed).collect();
        // The sum of nothing is a negative nought.
        let alone_us = alone.iter().map(|row| row.time_us).sum::<f64>() + 0.0;
        Self {
            subject,
            source,
            device: machine.device.label(),
            device_name: machine.device.name.clone(),
            stack: machine.stack.name(),
            time_us,
            unattributed: Unattributed {
                kernels: alone.iter().map(|row| row.kernels).sum(),
                time_us: alone_us,
                share: share(alone_us),
                names: alone.iter().take(MOST_NAMES).map(|row| row.operator.clone()).collect(),
            },
            known_share: share(operators.iter().map(|row| row.known_time_us).sum::<f64>() + 0.0),
            operators: operators.into_iter().map(|row| TracedOperator { share: share(row.time_us), ..row }).collect(),
            occupations: Vec::new(),
            first: Vec::new(),
            notes: Vec::new(),
            observations: Vec::new(),
            machine,
        }
    }

    fn of_trace(subject: String, source: Profiler, machine: Machine, rows: &[Row], events: &Events) -> Self {
        let mut observations = Vec::new();
        let operators = rows.iter().map(|row| traced(row, &events.shapes, &machine, &mut observations)).collect();
        let mut answer = Self::new(subject, source, machine, operators);
        answer.observations = observations;
        answer.occupations = occupations(&events.kernels)
            .into_iter()
            .map(|found| {
                let idle = (found.span - found.busy).max(0.0);
                Occupied {
                    gpu: found.device,
                    span_us: found.span,
                    busy_us: found.busy,
                    idle_us: idle,
                    idle_share: if found.span > 0.0 { idle / found.span } else { 0.0 },
                    gaps: found.gaps,
                    longest_gap_us: found.longest,
                }
            })
            .collect();
        answer.first = advice::first(&answer);
        answer
    }

    fn of_counts(subject: String, machine: Machine, kernels: Vec<Counted>) -> Self {
        let bandwidth = machine.device.memory.bandwidth.value();
        let row = |Counted { name, calls, seconds, bytes }: Counted| {
            let rate = bytes.filter(|_| seconds > 0.0).map(|bytes| bytes / seconds);
            TracedOperator {
                calls,
                kernels: calls,
                time_us: seconds * 1e6,
                gb_s: rate.map(|rate| rate / 1e9),
                of_bandwidth: rate.map(|rate| rate / bandwidth),
                ..TracedOperator::named(name, false)
            }
        };
        let mut answer = Self::new(subject, Profiler::Ncu, machine, kernels.into_iter().map(row).collect());
        answer.first = advice::first(&answer);
        answer
    }
}

impl TracedOperator {
    fn named(operator: String, attributed: bool) -> Self {
        Self { operator, attributed, ..Self::default() }
    }
}

/// A row with the roof of those of its calls whose work is known.
fn traced(row: &Row, shapes: &[Lowered], machine: &Machine, observed: &mut Vec<Observation>) -> TracedOperator {
    let mut told = TracedOperator {
        calls: row.calls,
        kernels: row.kernels,
        time_us: row.time,
        kernel_names: row.kernel_names.clone(),
        ..TracedOperator::named(row.name.clone(), row.by_operator)
    };
    let mut whole: Option<Prediction> = None;
    for calls in &row.shapes {
        let Some(lowered) = shapes.get(calls.place as usize) else { continue };
        let time: f64 = calls.times.iter().sum();
        // A device without that unit has no roof for it, and a clock that saw nothing no rate.
        let Some((observation, prediction, basis)) = roofed(row, calls, *lowered, machine).filter(|_| time > 0.0)
        else {
            continue;
        };
        let (seconds, count) = (Seconds::from_micros(time), calls.times.len() as u64);
        let all = prediction.times(count);
        told.shapes.push(TracedShape {
            shape: lowered.op.words(&row.name),
            precision: observation.precision.clone(),
            calls: count,
            time_us: time,
            median_us: observation.time.micros(),
            ideal_time_us: prediction.ideal.time().seconds().micros(),
            expected_time_us: prediction.expected.time.seconds().micros(),
            tflops: (all.ideal.work.flops / seconds).value() / 1e12,
            gb_s: (all.ideal.work.bytes() / seconds).value() / 1e9,
            of_roof: all.ideal.time().seconds() / seconds,
            bound: prediction.ideal.bound(),
        });
        told.known_time_us += time;
        told.basis = Some(told.basis.map_or(basis, |so_far| so_far.max(basis)));
        whole = Some(whole.map_or(all, |so_far| so_far.then(all)));
        observed.push(observation);
    }
    told.shapes.sort_by(|a, b| b.time_us.total_cmp(&a.time_us));
    if let Some(Prediction { ideal, expected }) = whole {
        let (time, floor) = (Seconds::from_micros(told.known_time_us), ideal.time().seconds());
        let rate = ideal.work.bytes() / time;
        told.ideal_time_us = Some(floor.micros());
        told.expected_time_us = Some(expected.time.seconds().micros());
        told.tflops = Some((ideal.work.flops / time).value() / 1e12);
        told.gb_s = Some(rate.value() / 1e9);
        told.of_roof = Some(floor / time);
        told.of_bandwidth = Some(rate / machine.device.memory.bandwidth);
        told.bound = Some(ideal.bound());
        told.beyond_roof_us = Some((told.known_time_us - floor.micros()).max(0.0));
    }
    told
}

/// Calls of one shape beside what they had to take.
fn roofed(
    row: &Row,
    calls: &attribution::Shape,
    lowered: Lowered,
    machine: &Machine,
) -> Option<(Observation, Prediction, Basis)> {
    let name = if calls.rounded && lowered.precision == "fp32" { "tf32" } else { lowered.precision };
    let plan: Plan = name.parse().ok()?;
    let formats = plan.layers(&machine.device).ok()?;
    let (prediction, basis) = machine.prediction(&lowered.op, &formats).ok()?;
    let mut times = calls.times.clone();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| Seconds::from_micros(quantile(&times, share));
    let observation = Observation {
        site: row.name.clone(),
        phase: None,
        precision: plan.to_string(),
        op: lowered.op,
        formats,
        count: times.len() as u64,
        time: at(0.5),
        samples: times.len(),
        range: Some((at(0.05), at(0.95))),
        residency: None,
        path: None,
        kernel: row.kernel_names.first().cloned(),
        detour: Bytes::ZERO,
        warnings: Vec::new(),
    };
    Some((observation, prediction, basis)).filter(|(observation, ..)| observation.time > Seconds::ZERO)
}

#[cfg(test)]
mod tests;
