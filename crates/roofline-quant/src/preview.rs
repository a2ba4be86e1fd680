//! What a run would do, with nothing written: the job as it would be done, and how long that takes here.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use roofline_core::Plan;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Checkpoint, QuantizeJob, Result, Workspace,
    job::{Item, Work},
    layout::{Left, left},
    quantize::{Request, bits_per_weight, fingerprint, memory, prepare, room},
    stream::{Crew, Files, Task},
    workspace::DiskSpace,
};

/// What would be written.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "QuantizePreview")]
pub struct Preview {
    /// What the model is called.
    pub model: String,
    /// The layout's name.
    pub layout: String,
    /// The plan.
    pub plan: Plan,
    /// The method's name.
    pub method: String,
    /// Where it would go.
    pub target: PathBuf,
    /// Files of weights with their bytes.
    pub files: Vec<(String, u64)>,
    /// Files beside them, with their bytes.
    pub companions: Vec<(String, u64)>,
    /// Bytes of the source's tensors.
    pub bytes_before: u64,
    /// Bytes of the files of weights.
    pub bytes_after: u64,
    /// Stored bits per quantized weight, scales and all.
    pub bits_per_weight: f64,
    /// Stored bits per parameter of the whole model.
    pub bits_per_parameter: f64,
    /// What is quantized, by role and scheme.
    pub quantized: Vec<Planned>,
    /// What stays as it is.
    pub left: Vec<Left>,
    /// About how many bytes of memory the run holds.
    pub memory_bytes: u64,
    /// How long it takes here.
    pub time: Time,
    /// Whether it has room.
    pub room: Room,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// Matrices of one role that become the same.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PlannedWeights")]
pub struct Planned {
    /// What they are for.
    pub role: &'static str,
    /// What they become.
    pub scheme: String,
    /// How many there are.
    pub matrices: usize,
    /// Numbers in all of them.
    pub parameters: u64,
    /// Bytes that all of them would take.
    pub bytes: u64,
}

/// An estimate of time, from a sample of this model, coded by this plan on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "QuantizeTime")]
pub struct Time {
    /// Seconds, without the disk that is written to: a run that writes nothing cannot know it.
    pub estimated_seconds: f64,
    /// Bytes per second that the source gave one reader; from memory, where it was read before.
    pub read_bytes_per_second: f64,
    /// Bytes of the source that were read and coded for it.
    pub sampled_bytes: u64,
}

/// Room on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "DiskRoom")]
pub struct Room {
    /// Bytes that the run takes: the result, and what a method that goes by data keeps of layers until then, without
    /// what an interrupted run left.
    pub needed: u64,
    /// Bytes that are free; none where the system does not tell.
    pub free: Option<u64>,
    /// Whether it fits, as far as is known.
    pub enough: bool,
}

/// How long each kind of work is tried.
const PATIENCE: Duration = Duration::from_millis(400);
/// Bytes of the source that are read for its speed, in pieces spread over it.
const PIECE: u64 = 4 << 20;
const PIECES: u64 = 16;

/// What `request` would do. Everything that a run refuses before it writes is refused here.
pub fn preview(checkpoint: &Checkpoint, request: &Request) -> Result<Preview> {
    let mut job = prepare(checkpoint, request)?;
    let fingerprint = fingerprint(checkpoint, request, &job)?;
    let single = request.layout.single_file(&job, &request.target).is_some();
    let DiskSpace { free, reused } = Workspace::check(&request.target, &fingerprint, single, request.manner)?;
    let needed = room(&job, request).saturating_sub(reused);
    if request.method.needs_data() {
        let note = "time is that of writing alone: how long the text takes on its way through the model is not known";
        job.notes.push(note.to_owned());
    }
    let parameters: u64 = job.items.iter().map(Item::weights).sum();
    let bytes_after: u64 = job.files.iter().map(|file| file.bytes).sum();
    Ok(Preview {
        model: checkpoint.name(),
        layout: request.layout.name().to_owned(),
        plan: request.plan.clone(),
        method: request.method.to_string(),
        target: request.target.clone(),
        files: job.files.iter().map(|file| (file.name.clone(), file.bytes)).collect(),
        companions: job.companions.iter().map(|(name, companion)| (name.clone(), companion.len())).collect(),
        bytes_before: checkpoint.bytes(),
        bytes_after,
        bits_per_weight: bits_per_weight(&job),
        bits_per_parameter: 8.0 * bytes_after as f64 / parameters.max(1) as f64,
        quantized: planned(&job),
        left: left(checkpoint, &request.plan, &job),
        memory_bytes: memory(&job, request),
        time: time(checkpoint, &job, request.threads)?,
        room: Room { needed, free, enough: free.is_none_or(|free| free >= needed) },
        notes: job.notes,
    })
}

fn planned(job: &QuantizeJob<'_>) -> Vec<Planned> {
    let mut all: Vec<Planned> = Vec::new();
    for item in &job.items {
        let Work::Code(code) = &item.work else { continue };
        if !code.lossy {
            continue;
        }
        let (role, parameters, bytes) = (item.site.role.name(), item.weights(), code.bytes());
        match all.iter_mut().find(|one| one.role == role && one.scheme == code.scheme) {
            Some(one) => {
                one.matrices += 1;
                one.parameters += parameters;
                one.bytes += bytes;
            }
            None => all.push(Planned { role, scheme: code.scheme.clone(), matrices: 1, parameters, bytes }),
        }
    }
    all
}

/// Tries a little of every kind of work that the job has, with nowhere to write.
fn time(checkpoint: &Checkpoint, job: &QuantizeJob<'_>, threads: usize) -> Result<Time> {
    let read_bytes_per_second = reading(checkpoint)?;
    let crew = Crew { job, files: &Files::NOWHERE, threads, watch: &|_: u64| {} };
    let mut kinds: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let (mut seconds, mut sampled) = (0.0, 0);
    for (item, one) in job.items.iter().enumerate() {
        match &one.work {
            Work::Code(code) => kinds.entry(&code.scheme).or_default().push(item),
            Work::Copy { entry, .. } => seconds += entry.bytes() as f64 / read_bytes_per_second,
            Work::Literal { .. } => {}
        }
    }
    for items in kinds.values() {
        let all: u64 = items.iter().map(|item| job.items[*item].input()).sum();
        let (bytes, took) = coding(&crew, items)?;
        sampled += bytes;
        if bytes > 0 {
            seconds += took * all as f64 / bytes as f64;
        }
    }
    Ok(Time { estimated_seconds: seconds, read_bytes_per_second, sampled_bytes: sampled })
}

/// Bytes per second of the source, from pieces spread over it.
fn reading(checkpoint: &Checkpoint) -> Result<f64> {
    let mut bytes = Vec::new();
    let all = checkpoint.bytes();
    let (mut read, mut passed, mut next) = (0, 0, 0);
    let start = Instant::now();
    for shard in &checkpoint.shards {
        for entry in &shard.header.tensors {
            passed += entry.bytes();
            // One piece of the tensor in which each sixteenth begins.
            if passed <= next || start.elapsed() > PATIENCE {
                continue;
            }
            next = passed.max(next) + all / PIECES;
            bytes.resize(entry.bytes().min(PIECE) as usize, 0);
            shard.read(entry, 0, &mut bytes)?;
            read += bytes.len() as u64;
        }
    }
    Ok((read as f64 / start.elapsed().as_secs_f64().max(1e-9)).max(1.0))
}

/// Codes rows of some of these items until there is enough to go by; returns the bytes and the seconds they took.
fn coding(crew: &Crew<'_>, items: &[usize]) -> Result<(u64, f64)> {
    let mut tasks = Vec::new();
    // The last first: what the speed of reading was tried on begins at the front.
    for item in items.iter().rev().take(crew.threads.max(8)) {
        crew.rows_of(*item, &mut tasks);
    }
    let of = |task: &Task| match task {
        Task::Rows(item, rows) => {
            let item = &crew.job.items[*item];
            let all = crew.code(task_item(task)).map_or(1, |code| code.matrix().rows.max(1));
            item.input() * rows.len() as u64 / all as u64
        }
        Task::Bytes(..) => 0,
    };
    let (start, mut bytes) = (Instant::now(), 0);
    for round in tasks.chunks(4 * crew.threads.max(1)) {
        let touched: Vec<usize> = round.iter().map(task_item).collect();
        let transposed = crew.transposed(&touched);
        crew.each(round, |task, buffers| {
            let Task::Rows(item, rows) = task else { return Ok(()) };
            // What shares a scale is read twice.
            let twice = crew.code(*item).is_some_and(|code| code.coding.needs_peak());
            let peak = if twice { crew.read(*item, rows.clone(), buffers)? } else { 0.0 };
            crew.code_rows(*item, rows.clone(), peak, &transposed, buffers).map(drop)
        })?;
        bytes += round.iter().map(of).sum::<u64>();
        if start.elapsed() > PATIENCE {
            break;
        }
    }
    Ok((bytes, start.elapsed().as_secs_f64()))
}

fn task_item(task: &Task) -> usize {
    match task {
        Task::Rows(item, _) | Task::Bytes(item, _) => *item,
    }
}
