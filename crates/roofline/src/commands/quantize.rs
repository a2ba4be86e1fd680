//! `roofline quantize`: a checkpoint and a plan in, a checkpoint that runtimes load out.

mod previewed;

use std::{
    io::IsTerminal,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use roofline_core::{Plan, plan::Selector, precision::PrecisionSpec};
use roofline_quant::{
    Checkpoint, Layout, Manner, Method, Ranges, Request, Runtime,
    card::by_role,
    layout::{Listed, Shards},
    preview::preview,
    quantize::{Line, Report as Done, quantize as run},
};
use serde::Serialize;

use previewed::Previewed;

use super::inspect::size;
use crate::{
    cli::QuantizeArgs,
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, number, style},
};

/// Weights that are shown where nobody asked for all.
const SHOWN: usize = 12;

pub(crate) fn quantize(args: &QuantizeArgs, form: Format) -> Result<(), Failure> {
    if args.list {
        return Ok(emit(&Schemes::all(), form)?);
    }
    let (Some(model), Some(plan), Some(target)) = (&args.model, &args.plan, &args.to) else {
        return Err(Failure::usage("a model, a plan and a target are needed", "roofline quantize --help"));
    };
    let method: Method = args.method.parse::<Method>()?;
    let kept = |plan: Plan, pattern: &String| plan.with(Selector::Modules(pattern.clone()), PrecisionSpec::sixteen());
    let plan = args.keep.iter().fold(self::plan(plan)?, kept);
    let layout = layout(args.layout.as_deref(), &plan, target)?;
    let mut checkpoint = Checkpoint::open(model)?;
    for asked in &args.lora {
        let (folder, scale) = adapter(asked)?;
        checkpoint.merge(folder, scale)?;
    }
    let threads = args.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
    let manner = Manner { force: args.force, resume: args.resume };
    let runtime = args.runtime.as_deref().map(str::parse::<Runtime>).transpose()?;
    let ranges = args.ranges.as_deref().map(Ranges::read).transpose()?;
    let shards = args.max_shard_size.as_deref().map_or(Ok(Shards::AsSource), str::parse::<Shards>)?;
    let verify = args.verify;
    let target = target.clone();
    let request = Request { plan, layout, method, runtime, ranges, target, manner, shards, verify, threads };
    if args.dry_run {
        return Ok(emit(&Previewed { preview: preview(&checkpoint, &request)?, all: args.all }, form)?);
    }
    // What is verified is read twice.
    let bar = progress(checkpoint.bytes() * if verify { 2 } else { 1 });
    let start = Instant::now();
    let done = run(&checkpoint, &request, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let done = done?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = done.bytes_before as f64 / seconds / 1e9;
    style::talk("note", &format!("{} in {} s, {} GB/s", size(done.bytes_before), number(seconds), number(rate)));
    Ok(emit(&Quantized { done, all: args.all }, form)?)
}

/// A file, where the text names one; else the plan's text.
fn plan(text: &str) -> Result<Plan, Failure> {
    let path = Path::new(text);
    let file = path.extension().is_some_and(|extension| extension == "toml") || path.is_file();
    if file { Ok(roofline_quant::plan::read(path)?) } else { Ok(text.parse::<Plan>()?) }
}

/// An adapter's folder, and what it is multiplied with.
fn adapter(text: &str) -> Result<(&Path, f64), Failure> {
    let whole = (Path::new(text), 1.0);
    let Some((folder, scale)) = text.rsplit_once('=').filter(|_| !whole.0.exists()) else { return Ok(whole) };
    match scale.parse::<f64>() {
        Ok(scale) if scale.is_finite() => Ok((Path::new(folder), scale)),
        _ => {
            Err(Failure::usage(format!("`{scale}` is no scale of an adapter"), "write --lora FOLDER=0.5, for example"))
        }
    }
}

/// What was asked for; else what the target's name or the plan says.
fn layout(asked: Option<&str>, plan: &Plan, target: &Path) -> Result<Layout, Failure> {
    if let Some(name) = asked {
        return Ok(name.parse::<Layout>()?);
    }
    if target.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(Layout::Gguf);
    }
    Ok(Layout::of_plan(plan))
}

fn progress(bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(bytes);
    let template = "{bar:32} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// What was done, as a report.
#[derive(Serialize)]
struct Quantized {
    #[serde(flatten)]
    done: Done,
    #[serde(skip)]
    all: bool,
}

fn percent(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{} %", number(100.0 * share)) }
}

impl Report for Quantized {
    const ROWS: &'static str = "weights";

    fn warnings(&self) -> Vec<String> {
        self.done.notes.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let done = &self.done;
        let ratio = 100.0 * done.bytes_after as f64 / done.bytes_before as f64;
        let sizes = format!("{} before, {} after ({ratio:.1} %)", size(done.bytes_before), size(done.bytes_after));
        let mut facts = vec![("size".to_owned(), sizes)];
        for merge in &done.adapters {
            let held = size(merge.bytes_held);
            let what = format!("{} times {}: {}; {held} held", merge.adapter.display(), merge.scale, merge.words());
            facts.push(("adapter".to_owned(), what));
        }
        if done.verified {
            facts.push((
                "verified".to_owned(),
                "read back before it got its name: every weight has the error told here, every copy the source's bytes"
                    .to_owned(),
            ));
        }
        if !done.weights.is_empty() {
            facts.extend(self.errors());
        }
        let mut sections = vec![
            Section::Heading(format!("{} as {} {}, by {}", done.model, done.layout, done.plan, done.method)),
            Section::Facts(facts),
        ];
        if !done.weights.is_empty() {
            sections.push(Section::Table(roles(&done.weights)));
            sections.push(Section::Table(weights(&done.weights, if self.all { usize::MAX } else { SHOWN })));
        }
        if !self.all && done.weights.len() > SHOWN {
            sections.push(Section::Paragraph(format!(
                "The {SHOWN} weights with the largest error of {}; --all shows the others, as do --json and --csv.",
                done.weights.len()
            )));
        }
        sections.extend(done.notes.iter().map(|note| Section::Paragraph(format!("Note: {note}."))));
        sections.push(Section::Line(format!("Written to {}", done.target.display())));
        sections
    }
}

impl Quantized {
    /// How much was lost.
    fn errors(&self) -> Vec<(String, String)> {
        let done = &self.done;
        let perplexity = match done.perplexity_change {
            Some(change) => format!(
                "+{} to +{}: an estimate from the weights alone, between models as robust as Llama-2-7B and as sensitive as \
                 Llama-3-8B",
                percent(change.low),
                percent(change.high)
            ),
            None => "no estimate: beyond a relative error of 0.25 models collapse".to_owned(),
        };
        vec![
            (
                "bits per weight".to_owned(),
                format!("{:.3} of what was quantized, scales and all", done.bits_per_weight),
            ),
            (
                "relative error".to_owned(),
                format!("{:.5}, root mean square over the model's products", done.relative_squared_error.sqrt()),
            ),
            ("perplexity".to_owned(), perplexity),
        ]
    }
}

fn roles(lines: &[Line]) -> Table {
    let mut table = Table::default()
        .column("role", Align::Left, 0)
        .column("scheme", Align::Left, 0)
        .column("matrices", Align::Right, 2)
        .column("relative error", Align::Right, 0)
        .column("SNR", Align::Right, 1)
        .column("clipped", Align::Right, 1);
    for ((role, scheme), lines) in by_role(lines) {
        let size = |line: &Line| (line.rows * line.columns) as f64;
        let total: f64 = lines.iter().map(|line| size(line)).sum();
        let squared = lines.iter().map(|line| line.relative_error.powi(2) * size(line)).sum::<f64>() / total;
        let clipped = lines.iter().map(|line| line.clipped_share * size(line)).sum::<f64>() / total;
        table.row([
            role.into(),
            scheme.into(),
            lines.len().to_string().into(),
            format!("{:.5}", squared.sqrt()).into(),
            if squared > 0.0 { format!("{:.1} dB", -10.0 * squared.log10()) } else { String::new() }.into(),
            percent(clipped).into(),
        ]);
    }
    table
}

/// The `count` weights with the largest relative error; all of them in their own order.
fn weights(lines: &[Line], count: usize) -> Table {
    let mut table = Table::default()
        .column("weight", Align::Left, 0)
        .column("scheme", Align::Left, 3)
        .column("shape", Align::Right, 2)
        .column("relative error", Align::Right, 0)
        .column("SNR", Align::Right, 1)
        .column("largest error", Align::Right, 1)
        .column("of largest weight", Align::Right, 3)
        .column("clipped", Align::Right, 1);
    let mut shown: Vec<&Line> = lines.iter().collect();
    if count < shown.len() {
        shown.sort_by(|a, b| b.relative_error.total_cmp(&a.relative_error));
        shown.truncate(count);
    }
    for line in shown {
        table.row([
            line.name.as_str().into(),
            line.scheme.as_str().into(),
            format!("{} x {}", line.rows, line.columns).into(),
            format!("{:.5}", line.relative_error).into(),
            line.snr_db.map_or_else(String::new, |snr| format!("{snr:.1} dB")).into(),
            number(f64::from(line.largest_error)).into(),
            number(f64::from(line.largest_weight)).into(),
            percent(line.clipped_share).into(),
        ]);
    }
    table
}

/// The plans of one name that can be written.
#[derive(Serialize)]
struct Schemes {
    schemes: Vec<Named>,
}

#[derive(Serialize)]
struct Named {
    layout: &'static str,
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
}

impl Schemes {
    fn all() -> Self {
        let named = |layout: Layout| {
            let listed = layout.listed().into_iter();
            listed.map(move |Listed { name, aliases, summary }| Named { layout: layout.name(), name, aliases, summary })
        };
        Self { schemes: Layout::ALL.into_iter().flat_map(named).collect() }
    }
}

impl Report for Schemes {
    const ROWS: &'static str = "schemes";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("layout", Align::Left, 0)
            .column("plan", Align::Left, 0)
            .column("also", Align::Left, 2)
            .column("what it is", Align::Left, 1);
        for scheme in &self.schemes {
            table.row([
                scheme.layout.into(),
                scheme.name.into(),
                scheme.aliases.join(", ").into(),
                scheme.summary.into(),
            ]);
        }
        vec![Section::Table(table)]
    }
}
