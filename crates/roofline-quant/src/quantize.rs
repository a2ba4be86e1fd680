//! The verb: a checkpoint and a plan in, a checkpoint that runtimes load and the error of every weight out.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use roofline_core::{Model, Plan, hash::fnv1a, quality::PerplexityChange};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use crate::{
    Checkpoint, Error, ErrorStats, Imatrix, Layout, Manner, Method, QuantizeJob, Ranges, Result, Runtime, Workspace,
    data::{self, Sequence, Text, Tuning},
    job::{Companion, Item, Work},
    layout::Shards,
    lora::Merge,
    model_card,
    observed::Observed,
    part::Share,
    stream::{self, Progress},
    verify,
};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// What becomes of every weight.
    pub plan: Plan,
    /// How the result is written.
    pub layout: Layout,
    /// How codes are chosen.
    pub method: Method,
    /// The text that a method goes by, where it goes by one.
    pub data: Option<Text>,
    /// How it does.
    pub tuning: Tuning,
    /// Who alone shall load it; none for every runtime that the layout is for.
    pub runtime: Option<Runtime>,
    /// What data were seen to reach, where that is known.
    pub ranges: Option<Ranges>,
    /// How much the inputs of matrices matter, where that is known.
    pub imatrix: Option<Imatrix>,
    /// Where it goes.
    pub target: PathBuf,
    /// What may be done about things in the way.
    pub manner: Manner,
    /// How many files the weights go into.
    pub shards: Shards,
    /// Whether the result is read back before it gets its name.
    pub verify: bool,
    /// How many threads work.
    pub threads: usize,
}

impl Request {
    /// A plan, a layout and a target, and for all else what most people want.
    pub fn new(plan: Plan, layout: Layout, target: PathBuf) -> Self {
        Self {
            plan,
            layout,
            method: Method::Rtn,
            data: None,
            tuning: Tuning::default(),
            runtime: None,
            ranges: None,
            imatrix: None,
            target,
            manner: Manner::default(),
            shards: Shards::AsSource,
            verify: false,
            threads: 1,
        }
    }
}

/// What was done.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "QuantizeReport")]
pub struct Report {
    /// What the model is called.
    pub model: String,
    /// The layout's name.
    pub layout: String,
    /// The plan.
    pub plan: Plan,
    /// The method's name.
    pub method: String,
    /// The text that it went by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Text>,
    /// How it did, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuning: Option<String>,
    /// The importance matrix that errors were weighed by, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imatrix: Option<String>,
    /// Where it is.
    pub target: PathBuf,
    /// Bytes of the source's tensors.
    pub bytes_before: u64,
    /// Bytes of the written files.
    pub bytes_after: u64,
    /// Stored bits per quantized weight, scales and all.
    pub bits_per_weight: f64,
    /// Squared relative error, averaged over the products of the layers by their size; kept ones count as exact.
    pub relative_squared_error: f64,
    /// What that costs in perplexity: an estimate from the weights alone; none of a method that goes by data.
    pub perplexity_change: Option<PerplexityChange>,
    /// The adapters that were merged on the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<Merge>,
    /// The quantized weights.
    pub weights: Vec<Line>,
    /// Whether all of it was read back and found to be what was reported.
    pub verified: bool,
    /// Matrices that a method that goes by data has left to rounding to nearest, because the text says too little of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nearest: Vec<String>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// What became of one weight.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "QuantizedWeight")]
pub struct Line {
    /// Its name in the source.
    pub name: String,
    /// What it is for.
    pub role: &'static str,
    /// Which layer it is in.
    pub layer: Option<u64>,
    /// What it became.
    pub scheme: String,
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// `||W - Q(W)|| / ||W||`.
    pub relative_error: f64,
    /// Signal to noise in decibel; none without noise.
    pub snr_db: Option<f64>,
    /// The largest error of a weight.
    pub largest_error: f32,
    /// The largest weight.
    pub largest_weight: f32,
    /// Share of weights beyond the format's range.
    pub clipped_share: f64,
}

/// Everything that will be written, or why nothing is.
pub(crate) fn prepare<'a>(checkpoint: &'a Checkpoint, request: &Request) -> Result<QuantizeJob<'a>> {
    apart(checkpoint, &request.target)?;
    let mut job = request.layout.job(checkpoint, request)?;
    request.shards.spread(request.layout, &mut job)?;
    data::check(checkpoint, &mut job, request.method, request.layout)?;
    Ok(job)
}

/// Refuses what no plan could make, before there is one: a target that is there or cannot be, a runtime that reads no such files.
pub fn admits(
    checkpoint: &Checkpoint,
    target: &Path,
    layout: Layout,
    runtime: Option<Runtime>,
    manner: Manner,
) -> Result<()> {
    apart(checkpoint, target)?;
    layout.wanted_by(runtime)?;
    manner.admits(target)
}

/// Refuses a method that goes by data where there are none.
pub(crate) fn without_data(request: &Request) -> Result<()> {
    if request.method.needs_data() {
        return Err(Error::unsupported(
            format!("the method `{}` goes by a text, from the first layer to the last", request.method),
            "`⟨roofline quantize⟩` runs one through the model, on one machine and without `⟨part⟩`",
        ));
    }
    Ok(())
}

/// About how many bytes of memory a run holds, beside a model that a text runs through.
pub(crate) fn memory(job: &QuantizeJob<'_>, request: &Request) -> u64 {
    let method = if request.method.needs_data() { data::memory(job, request.method) } else { 0 };
    method.max(stream::memory(job, request.threads))
}

/// Bytes of disk that a run takes at most: what it writes, and what a method that goes by data keeps of layers until then.
pub(crate) fn room(job: &QuantizeJob<'_>, request: &Request) -> u64 {
    job.bytes() + if request.method.needs_data() { data::kept(job, request.method) } else { 0 }
}

/// The same of what is asked for, from headers alone.
pub fn memory_of(checkpoint: &Checkpoint, request: &Request) -> Result<u64> {
    Ok(memory(&prepare(checkpoint, request)?, request))
}

/// Quantizes; `watch` hears of input bytes that are done, twice of each where the result is verified. A run that fails leaves
/// nothing behind, except what an interrupted run before it had finished, and layers of a method that goes by data where a disk
/// failed; one that is stopped leaves what it takes to go on.
pub fn quantize(checkpoint: &Checkpoint, request: &Request, watch: &dyn Progress) -> Result<Report> {
    without_data(request)?;
    write(checkpoint, request, None, watch)
}

/// The same by a method that goes by what is observed of a text. An interrupted run goes on with the layer that it was at.
pub fn quantize_observed(
    checkpoint: &Checkpoint,
    request: &Request,
    observed: &mut dyn Observed,
    watch: &dyn Progress,
) -> Result<Report> {
    write(checkpoint, request, Some(observed), watch)
}

fn write(
    checkpoint: &Checkpoint,
    request: &Request,
    observed: Option<&mut dyn Observed>,
    watch: &dyn Progress,
) -> Result<Report> {
    let mut job = prepare(checkpoint, request)?;
    let fingerprint = fingerprint(checkpoint, request, &job)?;
    let files: Vec<(&str, u64)> = job.files.iter().map(|file| (file.name.as_str(), file.bytes)).collect();
    let single = request.layout.single_file(&job, &request.target).is_some();
    let needed = room(&job, request);
    let space = Workspace::open(&request.target, None, &fingerprint, &files, single, needed, request.manner)?;
    let chosen = observed.map_or(Ok(()), |observed| {
        let Request { method, tuning, threads, .. } = request.clone();
        let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
        // GGUF's norms hold all that they multiply by.
        let plus_one = model.arithmetic.norm_plus_one && request.layout != Layout::Gguf;
        Sequence { method, tuning, plus_one, folder: space.layers(), threads, watch }.run(&mut job, observed)
    });
    let made = chosen
        .and_then(|()| {
            watch.size(checkpoint.bytes() * if request.verify { 2 } else { 1 });
            stream::run(&job, &Share::whole(&job), &space, request.threads, watch)
        })
        .and_then(|outcome| conclude(checkpoint, request, &job, &outcome, &space, watch));
    match made {
        Ok(report) => {
            space.finish(request.layout.single_file(&job, &request.target))?;
            Ok(report)
        }
        Err(error) => Err(space.fail(error)),
    }
}

/// Writes what goes beside the weights, and reads all of it back where that is asked for.
pub(crate) fn conclude(
    checkpoint: &Checkpoint,
    request: &Request,
    job: &QuantizeJob<'_>,
    outcome: &[Option<ErrorStats>],
    space: &Workspace,
    watch: &dyn Progress,
) -> Result<Report> {
    let mut report = report(checkpoint, request, job, outcome);
    for (name, companion) in &job.companions {
        let path = space.out().join(name);
        match companion {
            Companion::Bytes(bytes) => keep(&path, bytes)?,
            Companion::Copy(source) => {
                fs::copy(source, &path).map_err(Error::file("copy", source))?;
                File::open(&path).and_then(|file| file.sync_all()).map_err(Error::file("write", &path))?;
            }
        }
    }
    if request.layout.single_file(job, &request.target).is_none() {
        let origin = model_card::Origin::of(checkpoint);
        keep(&space.out().join("README.md"), model_card::model_card(&report, &origin).as_bytes())?;
    }
    if request.verify {
        verify::verify(job, outcome, &space.out(), request.threads, watch)?;
        report.verified = true;
    }
    Ok(report)
}

/// Writes a small file so that it survives a power cut.
fn keep(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let mut file = File::create(path).map_err(Error::file("create", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::file("write", path))
}

/// The source is never touched: the target lies neither in it nor around it.
fn apart(checkpoint: &Checkpoint, target: &Path) -> Result<()> {
    // A GGUF file is all there is of its model; what lies beside it is something else.
    let source = checkpoint.shards.first().filter(|_| checkpoint.gguf.is_some());
    let source = source.map_or(&checkpoint.folder, |shard| &shard.path);
    let source = fs::canonicalize(source).map_err(Error::file("open", source))?;
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A parent that is not there is refused with its own words later.
    let Ok(parent) = fs::canonicalize(parent) else { return Ok(()) };
    let target = target.file_name().map_or_else(|| parent.clone(), |name| parent.join(name));
    let target = fs::canonicalize(&target).unwrap_or(target);
    if target.starts_with(&source) || source.starts_with(&target) {
        let what = format!("`{}` would be written into the checkpoint that is read", target.display());
        return Err(Error::unsupported(what, "choose a place outside it with `⟨to⟩`"));
    }
    Ok(())
}

/// What is made from what: two runs with equal fingerprints write equal bytes. The heads of the files stand for everything
/// that places depend on, a tokenizer in a GGUF file among it; their hashes notice a change, and withstand no attack.
pub(crate) fn fingerprint(
    checkpoint: &Checkpoint,
    request: &Request,
    job: &QuantizeJob<'_>,
) -> Result<serde_json::Value> {
    let sources = checkpoint.shards.iter().map(|shard| {
        let metadata = fs::metadata(&shard.path).map_err(Error::file("read", &shard.path))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = changed.map(|time| time.as_nanos().to_string());
        let path = fs::canonicalize(&shard.path).unwrap_or_else(|_| shard.path.clone());
        Ok(json!([path.to_string_lossy(), metadata.len(), changed]))
    });
    let files =
        job.files.iter().map(|file| json!([file.name, file.bytes, format!("{:016x}", fnv1a(&file.head.bytes()))]));
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "source": sources.collect::<Result<Vec<_>>>()?,
        "configuration": checkpoint.config,
        "adapters": checkpoint.merged.iter().map(|merge| &merge.identity).collect::<Vec<_>>(),
        "plan": request.plan,
        "layout": request.layout.name(),
        "method": request.method.to_string(),
        "data": request.data,
        "tuning": request.tuning,
        "ranges": request.ranges,
        "imatrix": request.imatrix.as_ref().map(|imatrix| (format!("{:016x}", imatrix.hash()), imatrix.words())),
        "head of a file": files.collect::<Vec<_>>(),
    }))
}

fn report(checkpoint: &Checkpoint, request: &Request, job: &QuantizeJob<'_>, outcome: &[Option<ErrorStats>]) -> Report {
    let (mut error, mut all) = (0.0, 0.0);
    for (item, stats) in job.items.iter().zip(outcome) {
        let weights = item.weights() as f64;
        if item.site.is_layer_product() {
            all += weights;
        }
        if let (Work::Code(code), Some(stats)) = (&item.work, stats)
            && code.lossy
            && item.site.is_layer_product()
        {
            error += stats.relative_error().powi(2) * weights;
        }
    }
    let relative_squared_error = if all > 0.0 { error / all } else { 0.0 };
    Report {
        model: checkpoint.name(),
        layout: request.layout.name().to_owned(),
        plan: request.plan.clone(),
        method: request.method.to_string(),
        data: request.data.clone(),
        tuning: request.data.as_ref().and_then(|_| request.tuning.words(request.method)),
        imatrix: request.imatrix.as_ref().map(|imatrix| match &request.data {
            Some(_) => format!("{}, where the text tells nothing", imatrix.words()),
            None => imatrix.words(),
        }),
        target: request.target.clone(),
        bytes_before: checkpoint.bytes(),
        bytes_after: job.files.iter().map(|file| file.bytes).sum(),
        bits_per_weight: bits_per_weight(job),
        relative_squared_error,
        // A method that goes by data lets weights lose more, so that outputs lose less.
        perplexity_change: PerplexityChange::of(relative_squared_error).filter(|_| !request.method.needs_data()),
        adapters: checkpoint.merged.clone(),
        weights: lines(job, outcome),
        verified: false,
        nearest: job.nearest.clone(),
        notes: job.notes.clone(),
    }
}

/// The quantized weights of which something became.
pub(crate) fn lines(job: &QuantizeJob<'_>, outcome: &[Option<ErrorStats>]) -> Vec<Line> {
    job.items.iter().zip(outcome).filter_map(|(item, stats)| line(item, (*stats)?)).collect()
}

/// Stored bits per quantized weight, scales and all.
pub(crate) fn bits_per_weight(job: &QuantizeJob<'_>) -> f64 {
    let (mut stored, mut quantized) = (0, 0);
    for item in &job.items {
        if let Work::Code(code) = &item.work
            && code.lossy
        {
            stored += code.bytes();
            quantized += item.weights();
        }
    }
    8.0 * stored as f64 / quantized.max(1) as f64
}

fn line(item: &Item<'_>, stats: ErrorStats) -> Option<Line> {
    let Work::Code(code) = &item.work else { return None };
    let matrix = code.matrix();
    code.lossy.then(|| Line {
        name: item.name.clone(),
        role: item.site.role.name(),
        layer: item.site.layer,
        scheme: code.scheme.clone(),
        rows: matrix.rows,
        columns: matrix.columns,
        relative_error: stats.relative_error(),
        snr_db: stats.snr(),
        largest_error: stats.largest_error,
        largest_weight: stats.largest_weight,
        clipped_share: stats.clipped_share(),
    })
}
