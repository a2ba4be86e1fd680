//! Checkpoints in narrow formats that runtimes load, with the error of every weight.

#[cfg(feature = "hardware")]
mod by_data;
#[cfg(feature = "hardware")]
mod target;

use std::{
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use clap::Args;
#[cfg(feature = "hardware")]
use roofline_core::Model;
use roofline_core::{Plan, plan::Selector, precision::PrecisionSpec, units::FileSize};
use roofline_quant::{
    Checkpoint, Imatrix, Layout, Manner, Method, Part, Ranges, Request as Order, Runtime,
    data::Tuning,
    layout::{Listed, Shards},
    part::{PartReport, join, quantize_part},
    preview::{Preview, preview},
    quantize::{Report, admits, quantize as run},
    stream::Progress,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Result, Watcher, demo,
    request::list,
    text::{number, size},
};

/// Most threads of a run.
const THREADS: u16 = 1024;

/// A checkpoint, what it becomes and where it goes; or which plans there are.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[serde(default)]
#[schemars(rename = "QuantizeRequest")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct Request {
    /// The checkpoint: its folder, its file of weights (safetensors or PyTorch's) or its index
    #[arg(value_name = "MODEL", required_unless_present = "list")]
    #[schemars(extend("x-local" = true))]
    pub model: Option<PathBuf>,
    /// What the weights become: a plan, or a file with one
    #[arg(long, value_name = "PLAN|FILE", required_unless_present_any = ["list", "target_size", "target_bits"])]
    pub plan: Option<String>,
    /// Where the result goes: a folder, or a file for GGUF
    #[arg(long, value_name = "PATH", required_unless_present = "list")]
    #[schemars(extend("x-local" = true))]
    pub to: Option<PathBuf>,
    /// How it is written: compressed-tensors, safetensors, gguf, torchao, gptq, awq, fp8, bitsandbytes or mlx; from the plan and
    /// the path when left out
    #[arg(long = "as", value_name = "LAYOUT")]
    #[serde(rename = "as")]
    pub layout: Option<String>,
    /// How codes are chosen: rtn (as the ecosystem's own tools), mse, four-over-six or hqq; by data gptq, awq or smoothquant
    #[arg(long, value_name = "METHOD", default_value = "rtn")]
    pub method: String,
    /// An importance matrix of llama.cpp's, by which errors are weighed: GGUF's types do, and the method mse
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub imatrix: Option<PathBuf>,
    /// Instead of a plan, a size of all files: formats by role and layer that lose least within it, such as 5GB
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["plan", "target_bits"])]
    pub target_size: Option<FileSize>,
    /// Instead of a plan, bits that the tensors take for each weight, such as 4.3
    #[arg(long, value_name = "BITS", conflicts_with = "plan", allow_negative_numbers = true)]
    pub target_bits: Option<f64>,
    /// The text that a method by data, or a size to aim at, goes by, in UTF-8; the demo's own when left out
    #[arg(long, value_name = "FILE", help_heading = "Methods by data")]
    #[schemars(extend("x-local" = true))]
    pub data: Option<PathBuf>,
    /// Samples that are taken of it; 128 when left out, or as many as it has
    #[arg(long, value_name = "COUNT", help_heading = "Methods by data")]
    #[schemars(range(min = 1))]
    pub samples: Option<u32>,
    /// Tokens of a sample; 512 when left out, or as many as the model takes
    #[arg(long, value_name = "TOKENS", help_heading = "Methods by data")]
    #[schemars(range(min = 2))]
    pub length: Option<u32>,
    /// Which samples are taken: the same number takes the same
    #[arg(long, value_name = "NUMBER", default_value_t = 0, help_heading = "Methods by data")]
    pub seed: u64,
    /// Where samples wait between layers, instead of in memory: a folder, for what has no name and is gone afterwards
    #[arg(long, value_name = "FOLDER", help_heading = "Methods by data")]
    #[schemars(extend("x-local" = true))]
    pub offload: Option<PathBuf>,
    /// gptq: whether inputs that matter most are rounded first, which changes no file's layout; true when left out
    #[arg(long, value_name = "BOOL", help_heading = "Methods by data")]
    pub act_order: Option<bool>,
    /// gptq: what is added to the diagonal of the inputs' products, as a part of its mean; 0.01 when left out
    #[arg(long, value_name = "PART", help_heading = "Methods by data")]
    #[schemars(range(min = 0, max = 1))]
    pub damping: Option<f64>,
    /// smoothquant: how much of the range goes from inputs to weights, from 0 to 1; 0.5 when left out
    #[arg(long, value_name = "PART", help_heading = "Methods by data")]
    #[schemars(range(min = 0, max = 1))]
    pub alpha: Option<f64>,
    /// Who alone shall load it: transformers, vllm, llama.cpp or mlx-lm; every runtime of the layout when left out
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<String>,
    /// What data were seen to reach, as JSON: plans that store scales of activations or of the cache need it
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub ranges: Option<PathBuf>,
    /// Keep modules of this name as they are; `*` stands for anything
    #[arg(long, value_name = "GLOB")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub keep: Vec<String>,
    /// Merge an adapter of PEFT's on the way, times a scale; several are added up
    #[arg(long, value_name = "FOLDER[=SCALE]")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>", extend("x-local" = true))]
    pub lora: Vec<String>,
    /// Spread the weights over files of at most this size, such as 5GB; 0 for one file. As many as the source has when left out
    #[arg(long, value_name = "SIZE")]
    pub max_shard_size: Option<String>,
    /// Say what would be written, what stays as it is and how long it takes, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Read the result back before it gets its name: every weight must have the error that was reported
    #[arg(long)]
    pub verify: bool,
    /// Replace a checkpoint that is there
    #[arg(long)]
    pub force: bool,
    /// Go on with a run, or with a part, that was interrupted
    #[arg(long)]
    pub resume: bool,
    /// Quantize one of N shares, such as 1/4, and leave it beside the target until all are joined: on this machine or on one that
    /// sees the same files
    #[arg(long, value_name = "I/N", conflicts_with = "list")]
    pub part: Option<String>,
    /// Put the parts together, with the other arguments as they had them: the bytes and the report of one machine
    #[arg(long, conflicts_with_all = ["list", "part"])]
    pub join: bool,
    /// Threads; all cores when left out
    #[arg(long, value_name = "COUNT")]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u16>,
    /// List the plans of one name that every layout can store
    #[arg(long)]
    pub list: bool,
}

const HELP: &str = "\
The result appears whole or not at all: it is written beside the target and renamed. A run that was
killed goes on with --resume and ends with the same bytes. Many machines share the work by --part 1/N to
--part N/N; --join then ends with the same bytes, too.

gptq, awq and smoothquant run a text through the model, layer by layer, on this machine's processor; a
run that was killed goes on with the layer that it was at.

Examples:
  roofline quantize --list
  roofline quantize ./Llama-3.1-8B --plan w4a16 --to ./Llama-3.1-8B-W4A16
  roofline quantize ./Llama-3.1-8B --plan w4a16 --method mse --keep '*.down_proj' --to ./out
  roofline quantize ./Llama-3.1-8B --plan nvfp4a16 --method four-over-six --to ./Llama-3.1-8B-NVFP4A16
  roofline quantize ./Llama-3.1-8B --plan w4a16 --method gptq --data text.txt --samples 256 --to ./out
  roofline quantize ./Llama-3.1-8B --plan w4a16-asym --as awq --method awq --data text.txt --to ./out
  roofline quantize ./Llama-3.1-8B --plan int8 --method smoothquant --alpha 0.5 --data text.txt --to ./out
  roofline quantize ./Llama-3.1-8B --plan q4_k_m --to ./llama-3.1-8b-q4_k_m.gguf
  roofline quantize ./Llama-3.1-8B --plan iq3_m --imatrix imatrix.gguf --to ./llama-3.1-8b-iq3_m.gguf
  roofline quantize ./Llama-3.1-8B --target-size 4.5GB --data wiki.txt --to ./llama-3.1-8b.gguf
  roofline quantize ./Llama-3.1-8B --plan w8a16 --as torchao --to ./Llama-3.1-8B-int8
  roofline quantize ./Llama-3.1-8B --plan w4a16,down=w8a16,layers.0-1=bf16 --to ./out
  roofline quantize ./Llama-3.1-8B --plan q4_k_m,head=q8_0 --to ./llama-3.1-8b.gguf
  roofline quantize ./Llama-3.1-8B --plan plan.toml --to ./out --resume
  roofline quantize ./Llama-3.1-8B --lora ./my-adapter=0.8 --plan w4a16 --to ./out
  roofline quantize ./Llama-3.1-8B --plan w4a16 --to ./out --dry-run
  roofline quantize ./Llama-3.1-8B --plan fp8 --to ./out --max-shard-size 5GB --verify
  roofline quantize ./Llama-3.1-405B --plan fp8 --to ./out --part 1/4 --resume
  roofline quantize ./Llama-3.1-405B --plan fp8 --to ./out --join --verify

A plan is a name (--list has them), rules with commas between, or both; the last rule that fits wins, and
what nothing names stays at 16 bit:
  w4a16,head=w8a16            by role: query, key, value, output, gate, up, down, router, experts, head,
                              embedding; attention and ffn are groups, * is all
  w4a16,layers.0-1=bf16       by layer, -1 being the last; layers.-1.down for a role of it
  w4a16,*.self_attn.*=keep    by name of module
The same text is what `roofline predict --precision` takes and `roofline recommend` prints. A file holds it as
plan = \"w4a16,head=w8a16\", or as a list of its parts.";

impl Default for Request {
    fn default() -> Self {
        Self {
            model: None,
            plan: None,
            to: None,
            layout: None,
            method: Method::Rtn.to_string(),
            data: None,
            samples: None,
            length: None,
            offload: None,
            seed: 0,
            act_order: None,
            damping: None,
            alpha: None,
            runtime: None,
            imatrix: None,
            target_size: None,
            target_bits: None,
            ranges: None,
            keep: Vec::new(),
            lora: Vec::new(),
            max_shard_size: None,
            dry_run: false,
            verify: false,
            force: false,
            resume: false,
            part: None,
            join: false,
            threads: None,
            list: false,
        }
    }
}

/// What is told.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "QuantizeAnswer")]
pub enum Answer {
    /// What was written.
    Written(Box<Report>),
    /// What was made of a part.
    Part(Box<PartReport>),
    /// What would be.
    Previewed(Box<Preview>),
    /// What can be.
    Schemes(Schemes),
}

/// The plans of one name that can be written.
#[derive(Serialize, JsonSchema)]
pub struct Schemes {
    pub schemes: Vec<Listed>,
}

/// A checkpoint, what is to become of it, and what to know of that.
type Aim = (Checkpoint, Order, Vec<String>);

/// Writes a checkpoint, or says what would be written, or which plans there are.
pub fn quantize(context: &Context, request: &Request) -> Result<Answer> {
    if request.list {
        return request.schemes();
    }
    let (checkpoint, mut order, notes) = request.order(context)?;
    #[cfg(feature = "hardware")]
    let by_data = order.method.needs_data();
    if request.dry_run {
        #[cfg(feature = "hardware")]
        let begun = by_data.then(|| by_data::begin(context, request, &checkpoint, &mut order)).transpose()?;
        let mut told = preview(&checkpoint, &order)?;
        #[cfg(feature = "hardware")]
        if let Some(by_data::Begun { memory, warnings, .. }) = begun {
            told.memory_bytes = memory;
            told.notes.extend(warnings);
        }
        told.notes.extend(notes);
        return Ok(Answer::Previewed(Box::new(told)));
    }
    let part = request.part.as_deref().map(str::parse::<Part>).transpose()?;
    let watched = Watched(context.watcher());
    let start = Instant::now();
    let done = match part {
        Some(part) => {
            let done = quantize_part(&checkpoint, &order, part, &watched);
            done.map(|done| Answer::Part(Box::new(done))).map_err(Error::from)
        }
        None if request.join => join(&checkpoint, &order, &watched).map(written).map_err(Error::from),
        #[cfg(feature = "hardware")]
        None if by_data => by_data::run(context, request, &checkpoint, &mut order, &watched).map(written),
        None => run(&checkpoint, &order, &watched).map(written).map_err(Error::from),
    };
    context.watcher().ends();
    let mut done = done?;
    if let Answer::Written(report) = &mut done {
        report.notes.extend(notes);
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = match &done {
        Answer::Part(done) => done.bytes_before,
        _ => checkpoint.bytes(),
    };
    let verb = if request.join { "joined " } else { "" };
    let rate = bytes as f64 / seconds / 1e9;
    context.note(format!("{verb}{} in {} s, {} GB/s", size(bytes), number(seconds), number(rate)));
    Ok(done)
}

fn written(report: Report) -> Answer {
    Answer::Written(Box::new(report))
}

/// Whoever watches a verb, as the quantizer knows it.
pub(crate) struct Watched<'a>(pub(crate) &'a dyn Watcher);

impl Progress for Watched<'_> {
    fn size(&self, bytes: u64) {
        self.0.size(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn starts(&self, at: usize, count: usize) {
        self.0.starts(at, count, &format!("layer {at}"));
    }

    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

impl Request {
    fn schemes(&self) -> Result<Answer> {
        let Self { model, plan, to, dry_run, verify, .. } = self;
        if model.is_some() || plan.is_some() || to.is_some() || self.aims() || *dry_run || *verify {
            let hint = "leave it out, or everything else";
            return Err(Error::request("`⟨list⟩` says which plans there are, and makes nothing", hint));
        }
        Ok(Answer::Schemes(Schemes { schemes: Layout::ALL.into_iter().flat_map(Layout::listed).collect() }))
    }

    /// The checkpoint, opened, and what is to become of it.
    fn order(&self, context: &Context) -> Result<Aim> {
        let (Some(model), true, Some(target)) = (&self.model, self.plan.is_some() || self.aims(), &self.to) else {
            let hint = "say `⟨plan w4a16⟩` and `⟨to⟩` a folder, for example; `⟨list⟩` has the plans";
            return Err(Error::request("a model, a plan and a target are needed", hint));
        };
        if !context.is_local() {
            return Err(Error::Path { what: "model", name: model.display().to_string() });
        }
        self.agrees()?;
        let threads = self.threads()?;
        let method: Method = self.method.parse::<Method>()?;
        if self.aims() && method.needs_data() {
            let message = format!("a size is aimed at with formats alone, and the method `{method}` is more than that");
            return Err(Error::request(message, "leave `⟨method⟩` out, and use it with the plan that is found"));
        }
        let kept =
            |plan: Plan, pattern: &String| plan.with(Selector::Modules(pattern.clone()), PrecisionSpec::sixteen());
        let runtime = self.runtime.as_deref().map(str::parse::<Runtime>).transpose()?;
        let named = self.plan.as_deref().map(plan).transpose()?;
        // What is refused is refused before formats are tried, which takes its time.
        let manner = Manner { force: self.force, resume: self.resume };
        let tuning = self.tuning(method)?;
        let ranges = self.ranges.as_deref().map(Ranges::read).transpose()?;
        let shards = self.max_shard_size.as_deref().map_or(Ok(Shards::AsSource), str::parse::<Shards>)?;
        let layout = match (&self.layout, &named) {
            (Some(name), _) => name.parse::<Layout>()?,
            (None, _) if target.extension().is_some_and(|extension| extension == "gguf") => Layout::Gguf,
            (None, Some(plan)) => Layout::of_plan(plan),
            (None, None) if runtime == Some(Runtime::LlamaCpp) => Layout::Gguf,
            (None, None) if runtime == Some(Runtime::Mlx) => Layout::Mlx,
            (None, None) => Layout::CompressedTensors,
        };
        let mut checkpoint = Checkpoint::open(&demo::checkpoint(context, model)?)?;
        for asked in &self.lora {
            let (folder, scale) = adapter(asked)?;
            checkpoint.merge(folder, scale)?;
        }
        if self.aims() || method.needs_data() {
            admits(&checkpoint, target, layout, runtime, manner)?;
        }
        // What is kept is kept whatever else is chosen.
        let plan = self.keep.iter().fold(named.unwrap_or_else(Plan::sixteen), kept);
        let order = Order {
            method,
            runtime,
            imatrix: self.imatrix.as_deref().map(Imatrix::read).transpose()?,
            tuning,
            ranges,
            manner,
            shards,
            verify: self.verify,
            threads,
            ..Order::new(plan, layout, target.clone())
        };
        if self.aims() { self.aim(context, checkpoint, order) } else { Ok((checkpoint, order, Vec::new())) }
    }

    /// Whether a size is aimed at, rather than a plan followed.
    fn aims(&self) -> bool {
        self.target_size.is_some() || self.target_bits.is_some()
    }

    /// The same with the plan of the size that is aimed at, and what was seen on the way.
    #[cfg(feature = "hardware")]
    fn aim(&self, context: &Context, checkpoint: Checkpoint, order: Order) -> Result<Aim> {
        let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
        let opened = crate::running::Opened { checkpoint, model };
        let (order, notes) = self.aimed(context, &opened, order)?;
        Ok((opened.checkpoint, order, notes))
    }

    #[cfg(not(feature = "hardware"))]
    fn aim(&self, _: &Context, _: Checkpoint, _: Order) -> Result<Aim> {
        Err(Error::request("a size is aimed at by running the model, which this program cannot", "say `⟨plan⟩`"))
    }

    /// Whether what is asked for goes together.
    fn agrees(&self) -> Result<()> {
        if self.aims() && self.plan.is_some() {
            let hint = "leave one of the two out; `⟨keep⟩` names what a size is met beside";
            return Err(Error::request("a size to aim at makes a plan, and there is one", hint));
        }
        if self.aims() && (self.part.is_some() || self.join) {
            let hint = "aim once with `⟨dry_run⟩`, and share the work of the plan that it tells";
            return Err(Error::request("a size is aimed at on one machine", hint));
        }
        let (what, hint) = match (&self.part, self.join, self.dry_run) {
            (Some(part), true, _) => {
                (format!("`⟨join⟩` takes all parts, and `⟨part {part}⟩` is one"), "leave one of the two out")
            }
            (Some(part), _, true) => {
                let what =
                    format!("`⟨dry_run⟩` speaks of all that would be written, and `⟨part {part}⟩` is a share of it");
                (what, "leave one of the two out")
            }
            (None, true, true) => {
                ("`⟨join⟩` and `⟨dry_run⟩` do not go together".to_owned(), "leave one of the two out")
            }
            _ => return Ok(()),
        };
        Err(Error::request(what, hint))
    }

    /// How a method goes by data; an error where one is told of data that goes by none.
    fn tuning(&self, method: Method) -> Result<Tuning> {
        let Self { data, samples, length, seed, offload, act_order, damping, alpha, .. } = self;
        // A size to aim at goes by a text, too, whatever the method.
        let told =
            data.is_some() && !self.aims() || samples.is_some() || length.is_some() || *seed != 0 || offload.is_some();
        let own = |wanted: Method, told: bool, name: &str| {
            if !told || method == wanted {
                return Ok(());
            }
            let message = format!("`⟨{name}⟩` is {wanted}'s, and the method is `{method}`");
            Err(Error::request(message, format!("leave it out, or say `⟨method {wanted}⟩`")))
        };
        if told && self.aims() {
            let hint = "leave `⟨samples⟩`, `⟨length⟩`, `⟨seed⟩` and `⟨offload⟩` out; `⟨data⟩` names the text";
            return Err(Error::request("a size is aimed at with samples of its own", hint));
        }
        if told && !method.needs_data() {
            let hint = "leave `⟨data⟩`, `⟨samples⟩`, `⟨length⟩`, `⟨seed⟩` and `⟨offload⟩` out, or say `⟨method gptq⟩`";
            return Err(Error::request(format!("the method `{method}` goes by no data"), hint));
        }
        own(Method::Gptq, act_order.is_some(), "act_order")?;
        own(Method::Gptq, damping.is_some(), "damping")?;
        own(Method::SmoothQuant, alpha.is_some(), "alpha")?;
        let usual = Tuning::default();
        let tuning = Tuning {
            act_order: act_order.unwrap_or(usual.act_order),
            damping: damping.unwrap_or(usual.damping),
            alpha: alpha.unwrap_or(usual.alpha),
        };
        for (name, part) in [("damping", tuning.damping), ("alpha", tuning.alpha)] {
            if !(0.0..=1.0).contains(&part) {
                return Err(Error::request(format!("`⟨{name}⟩` is {part}"), "it is from 0 to 1"));
            }
        }
        if *samples == Some(0) {
            return Err(Error::request("`⟨samples⟩` is 0, and nothing is learned of none", "take one at least"));
        }
        if let Some(length) = length.filter(|length| *length < 2) {
            let message = format!("`⟨length⟩` is {length}, and a sample begins with a token that says nothing");
            return Err(Error::request(message, "it is 2 at least"));
        }
        Ok(tuning)
    }

    fn threads(&self) -> Result<usize> {
        match self.threads {
            None => Ok(thread::available_parallelism().map_or(1, usize::from)),
            Some(threads) if (1..=THREADS).contains(&threads) => Ok(threads.into()),
            Some(threads) => {
                let hint = format!("`⟨threads⟩` is from 1 to {THREADS}");
                Err(Error::request(format!("{threads} threads are not possible"), hint))
            }
        }
    }
}

/// A file, where the text names one; else the plan's text.
fn plan(text: &str) -> Result<Plan> {
    let path = Path::new(text);
    let file = path.extension().is_some_and(|extension| extension == "toml") || path.is_file();
    if file { Ok(roofline_quant::plan::read(path)?) } else { Ok(text.parse::<Plan>()?) }
}

/// An adapter's folder, and what it is multiplied with.
fn adapter(text: &str) -> Result<(&Path, f64)> {
    let whole = (Path::new(text), 1.0);
    let Some((folder, scale)) = text.rsplit_once('=').filter(|_| !whole.0.exists()) else { return Ok(whole) };
    match scale.parse::<f64>() {
        Ok(scale) if scale.is_finite() => Ok((Path::new(folder), scale)),
        _ => {
            let hint = "write `⟨lora FOLDER=0.5⟩`, for example";
            Err(Error::request(format!("`{scale}` is no scale of an adapter"), hint))
        }
    }
}

#[cfg(test)]
mod tests;
