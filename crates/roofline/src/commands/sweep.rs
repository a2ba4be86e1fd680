//! `roofline sweep`: a product of ranges, streamed in order, computed on all cores with flat memory.

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc::sync_channel,
    },
    thread,
};

use roofline_core::{
    Machine, Model, Plan,
    model::Lowering,
    plan::Assignment,
    predict::{Figures, Ratios, Tier, forecast},
    units::Bytes,
};
use serde::Serialize;

use super::{
    model::{lowerings, phase_name, tokens, workload},
    predict::Unavailable,
    range::range,
    setting::{Varies, cases},
    source,
};
use crate::{
    cli::{Phase, SweepArgs},
    failure::Failure,
    report::{Format, json, number, quoted, style},
};

/// Points that a thread computes before it hands them over.
const CHUNK: usize = 2048;

/// A row; the fields are those of `predict model`.
#[derive(Serialize)]
struct Row<'a> {
    model: &'a str,
    device: &'a str,
    precision: &'a str,
    plan: &'a Plan,
    tensor_parallel: u64,
    scale_bandwidth: f64,
    scale_compute: f64,
    phase: &'static str,
    batch: u64,
    context: u64,
    #[serde(flatten)]
    figures: Figures,
    #[serde(flatten)]
    ratios: Ratios,
    tokens_per_s: f64,
    weight_bytes: Bytes,
    kv_bytes: Bytes,
    memory_bytes: Bytes,
    fits: Option<bool>,
}

/// All rows as one value.
#[derive(Serialize)]
struct Points<'a> {
    points: Vec<Row<'a>>,
}

/// Everything of a point but its batch and context.
struct Line {
    model: usize,
    machine: Arc<Machine>,
    tier: Tier,
    label: String,
    precision: String,
    plan: Plan,
    assignment: Assignment,
    lowering: Lowering,
    phase: Phase,
    scale_bandwidth: f64,
    scale_compute: f64,
    /// The line of the first plan at the same place, which speed-ups are over; none where the device lacks that one.
    baseline: Option<usize>,
}

impl Line {
    /// Whether it differs from another in its plan alone.
    fn beside(&self, other: &Self) -> bool {
        (self.model, &self.label, self.lowering, self.phase) == (other.model, &other.label, other.lowering, other.phase)
            && (self.scale_bandwidth, self.scale_compute) == (other.scale_bandwidth, other.scale_compute)
    }
}

struct Sweep {
    models: Vec<Model>,
    lines: Vec<Line>,
    batches: Vec<u64>,
    contexts: Vec<u64>,
    /// Why points were left out, and how many.
    skipped: Mutex<(Vec<String>, usize)>,
}

pub(crate) fn sweep(args: &SweepArgs, form: Format) -> Result<(), Failure> {
    let sweep = Sweep::new(args)?;
    let mut out = BufWriter::with_capacity(1 << 16, anstream::AutoStream::auto(io::stdout().lock()));
    write!(out, "{}", header(form))?;
    sweep.stream(form, |text| out.write_all(text.as_bytes()))?;
    out.flush()?;
    Ok(())
}

/// Batches times contexts, for each of everything else.
pub(crate) fn points(args: &SweepArgs) -> Result<usize, Failure> {
    let points = range("batch", &args.batch)?.len().saturating_mul(range("context", &args.context)?.len());
    Ok(points.saturating_mul(scales(args).len()).saturating_mul(args.models.len()))
}

/// The rows that `--json` prints line by line, as one value.
pub(crate) fn answer(args: &SweepArgs) -> Result<String, Failure> {
    let sweep = Sweep::new(args)?;
    let rows: Vec<Row<'_>> = (0..sweep.len()).filter_map(|point| sweep.row(point).ok()).collect();
    if rows.is_empty() && sweep.len() > 0 {
        sweep.row(0)?;
    }
    Ok(json(&Points { points: rows })?)
}

impl Sweep {
    fn new(args: &SweepArgs) -> Result<Self, Failure> {
        let models = args.models.iter().map(|name| source::model(name)).collect::<Result<Vec<Model>, Failure>>()?;
        let cases = cases(&args.setting, Varies::Product(None))?;
        let phases = args.phase.map_or_else(|| vec![Phase::Prefill, Phase::Decode], |phase| vec![phase]);
        let (batches, contexts) = (range("batch", &args.batch)?, range("context", &args.context)?);
        let mut lines: Vec<Line> = Vec::new();
        let mut first_error = None;
        for case in &cases {
            let label = case.machine.device.label();
            for (scale_bandwidth, scale_compute) in scales(args) {
                let machine = Arc::new(case.machine.scaled(scale_bandwidth, scale_compute)?);
                for (at, plan) in case.plans.iter().enumerate() {
                    for (index, model) in models.iter().enumerate() {
                        let assignment = match plan.on(&machine.device, Some(&model.anatomy)) {
                            Ok(assignment) => assignment,
                            Err(error) => {
                                let missing = Unavailable::new(&case.machine.device, plan, &error);
                                style::talk("warning", &missing.sentence());
                                first_error.get_or_insert(error);
                                continue;
                            }
                        };
                        for (lowering, phase) in lowerings(&args.lowering)?
                            .into_iter()
                            .flat_map(|lowering| phases.iter().map(move |phase| (lowering, *phase)))
                        {
                            let mut line = Line {
                                model: index,
                                machine: Arc::clone(&machine),
                                tier: case.tier,
                                label: label.clone(),
                                precision: plan.label(),
                                plan: plan.clone(),
                                assignment: assignment.clone(),
                                lowering,
                                phase,
                                scale_bandwidth,
                                scale_compute,
                                baseline: None,
                            };
                            let first = || lines.iter().position(|other| line.beside(other));
                            line.baseline = if at == 0 { Some(lines.len()) } else { first() };
                            lines.push(line);
                        }
                    }
                }
            }
        }
        match first_error {
            Some(error) if lines.is_empty() => Err(error.into()),
            _ => Ok(Self { models, lines, batches, contexts, skipped: Mutex::default() }),
        }
    }

    fn len(&self) -> usize {
        self.lines.len() * self.batches.len() * self.contexts.len()
    }

    /// Chunks are taken by whoever is free and written in order; the channel holds the fast ones back.
    fn stream(&self, form: Format, mut write: impl FnMut(&str) -> io::Result<()>) -> Result<(), Failure> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let chunks = self.len().div_ceil(CHUNK);
        let next = AtomicUsize::new(0);
        let (sender, receiver) = sync_channel::<(usize, Result<String, roofline_core::Error>)>(threads);
        thread::scope(|scope| {
            for _ in 0..threads {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    loop {
                        let chunk = next.fetch_add(1, Ordering::Relaxed);
                        if chunk >= chunks || sender.send((chunk, self.chunk(chunk, form))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let mut waiting: BTreeMap<usize, String> = BTreeMap::new();
            let mut expected = 0;
            for (chunk, text) in receiver {
                waiting.insert(chunk, text?);
                while let Some(text) = waiting.remove(&expected) {
                    write(&text)?;
                    expected += 1;
                }
            }
            Ok(())
        })
    }

    fn chunk(&self, chunk: usize, form: Format) -> Result<String, roofline_core::Error> {
        let mut text = String::new();
        for point in chunk * CHUNK..((chunk + 1) * CHUNK).min(self.len()) {
            match self.row(point) {
                Ok(row) => text += &render(&row, form),
                Err(error) => self.skip(&error)?,
            }
        }
        Ok(text)
    }

    /// Says once why a point is left out; a sweep in which every point fails is an error.
    fn skip(&self, error: &roofline_core::Error) -> Result<(), roofline_core::Error> {
        let mut said = self.skipped.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        said.1 += 1;
        if said.1 == self.len() {
            return Err(error.clone());
        }
        let text = error.to_string();
        if said.0.len() < 10 && !said.0.contains(&text) {
            style::talk("warning", &format!("left out: {text}"));
            said.0.push(text);
        }
        Ok(())
    }

    /// Row `point`: contexts run fastest, then batches, then lines.
    fn row(&self, point: usize) -> Result<Row<'_>, roofline_core::Error> {
        let context = self.contexts[point % self.contexts.len()];
        let batch = self.batches[point / self.contexts.len() % self.batches.len()];
        let line = &self.lines[point / self.contexts.len() / self.batches.len()];
        let model = &self.models[line.model];
        let workload = workload(line.phase, batch, context)?;
        let graph = model.graph(workload, line.lowering)?;
        let told = forecast(&graph, &line.assignment, &line.machine)?;
        let baseline = match line.baseline.map(|at| &self.lines[at]) {
            Some(first) if first.plan == line.plan => Some(told.total),
            Some(first) => forecast(&graph, &first.assignment, &first.machine).ok().map(|first| first.total),
            None => None,
        };
        let (device, sizes) = (&line.machine.device, line.machine.sizes);
        let footprint = model.footprint_of(&graph, workload, line.lowering.ranks, &line.assignment, sizes);
        Ok(Row {
            model: &model.key,
            device: &line.label,
            precision: &line.precision,
            plan: &line.plan,
            tensor_parallel: line.lowering.ranks.get(),
            scale_bandwidth: line.scale_bandwidth,
            scale_compute: line.scale_compute,
            phase: phase_name(line.phase),
            batch,
            context,
            figures: Figures::of_forecast(&told, line.tier, &line.machine),
            ratios: Ratios::of(&told.total, baseline.as_ref(), line.tier),
            tokens_per_s: tokens(line.phase, batch, context) / told.total.time(line.tier).value(),
            weight_bytes: footprint.weights,
            kv_bytes: footprint.kv,
            memory_bytes: footprint.total(),
            fits: device.room().map(|room| footprint.total() <= room.for_models()),
        })
    }
}

fn scales(args: &SweepArgs) -> Vec<(f64, f64)> {
    let compute = |bandwidth: f64| args.scale_compute.iter().map(move |compute| (bandwidth, *compute));
    args.scale_bandwidth.iter().flat_map(|bandwidth| compute(*bandwidth)).collect()
}

fn header(form: Format) -> String {
    match form {
        Format::Json => String::new(),
        Format::Csv => "model,device,precision,plan,tensor_parallel,scale_bandwidth,scale_compute,phase,batch,context,\
                        tier,stack,basis,predicted_time_us,ideal_time_us,expected_time_us,lo_us,hi_us,tokens_per_s,\
                        bottleneck,flops,bytes,ai,critical_ai,speedup,ideal_speedup,weight_bytes,kv_bytes,memory_bytes,fits\n"
            .to_owned(),
        Format::Markdown => "| model | device | precision | tp | phase | batch | context | time us | tokens/s | bound | fits |\n\
                             | --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- | --- |\n"
            .to_owned(),
        Format::Text => style::bold(&format!(
            "{:<18} {:<20} {:<10} {:>3} {:<8} {:>6} {:>8} {:>12} {:>12} {:<8} fits",
            "model", "device", "precision", "tp", "phase", "batch", "context", "time us", "tokens/s", "bound"
        )) + "\n",
    }
}

fn render(row: &Row<'_>, form: Format) -> String {
    let fits = match row.fits {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "",
    };
    let scaled = if (row.scale_bandwidth, row.scale_compute) == (1.0, 1.0) {
        row.device.to_owned()
    } else {
        format!("{} x{}/x{}", row.device, row.scale_bandwidth, row.scale_compute)
    };
    let (time, speed) = (number(row.figures.predicted_time_us), number(row.tokens_per_s));
    match form {
        Format::Json => serde_json::to_string(row).unwrap_or_default() + "\n",
        Format::Csv => csv(row),
        Format::Markdown => format!(
            "| {} | {scaled} | {} | {} | {} | {} | {} | {time} | {speed} | {} | {fits} |\n",
            row.model, row.precision, row.tensor_parallel, row.phase, row.batch, row.context, row.figures.bottleneck
        ),
        Format::Text => format!(
            "{:<18} {scaled:<20} {:<10} {:>3} {:<8} {:>6} {:>8} {time:>12} {speed:>12} {:<8} {fits}\n",
            row.model, row.precision, row.tensor_parallel, row.phase, row.batch, row.context, row.figures.bottleneck
        ),
    }
}

fn csv(row: &Row<'_>) -> String {
    let Figures { tier, stack, basis, predicted_time_us, ideal_time_us, expected_time_us, lo_us, hi_us, .. } =
        row.figures;
    let optional = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    let cells: [String; 30] = [
        quoted(row.model),
        quoted(row.device),
        quoted(row.precision),
        quoted(&row.plan.to_string()),
        row.tensor_parallel.to_string(),
        row.scale_bandwidth.to_string(),
        row.scale_compute.to_string(),
        row.phase.to_owned(),
        row.batch.to_string(),
        row.context.to_string(),
        tier.to_string(),
        stack.to_owned(),
        basis.to_string(),
        predicted_time_us.to_string(),
        ideal_time_us.to_string(),
        expected_time_us.to_string(),
        lo_us.to_string(),
        hi_us.to_string(),
        row.tokens_per_s.to_string(),
        row.figures.bottleneck.clone(),
        row.figures.flops.value().to_string(),
        row.figures.bytes.value().to_string(),
        row.figures.ai.to_string(),
        row.figures.critical_ai.to_string(),
        optional(row.ratios.speedup),
        optional(row.ratios.ideal_speedup),
        row.weight_bytes.value().to_string(),
        row.kv_bytes.value().to_string(),
        row.memory_bytes.value().to_string(),
        row.fits.map_or_else(String::new, |fits| fits.to_string()),
    ];
    cells.join(",") + "\n"
}
