//! Times that somebody measured, as rates: of prompts of several lengths, or of batches.

use roofline_core::{Dim, units::Flops};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    batches::scaling,
    charts::Paper,
    counted::NOTE,
    place::{Found, Place, one},
    roof::tera,
    run::{FIRST_TOKEN, seconds},
    speed::mean_and_spread,
};
use crate::{
    Context, Error, Note, Result,
    picture::{PanelRun, Panels},
};

/// Runs, each timed several times.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Benchmark {
    pub runs: Vec<Timed>,
    /// Whether a picture in four panels is made
    #[serde(default)]
    pub panels: bool,
    #[serde(flatten)]
    pub paper: Paper,
    #[serde(flatten)]
    pub place: Place,
}

/// A run that was timed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Timed {
    /// Tokens of each prompt
    pub prompt_len: Dim,
    /// Tokens that were generated for each
    pub gen_tokens: Dim,
    /// Requests side by side
    #[serde(default = "one")]
    pub batch_size: Dim,
    /// Seconds from start to end, of every repetition; none where it failed
    #[serde(default)]
    pub times: Vec<f64>,
    /// Memory in use before, after and at most, in bytes
    pub memory: Option<[f64; 3]>,
    /// Why there is no time
    pub error: Option<String>,
}

/// The runs as rates.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnalyzerBenchmarkAnswer")]
pub struct BenchmarkAnswer {
    pub model: String,
    pub model_name: String,
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub peak_tflops: f64,
    pub rows: Vec<Benchmarked>,
    pub svg: Option<String>,
    pub path: Option<String>,
    pub notes: Vec<Note>,
}

/// One run.
#[derive(Clone, Serialize, JsonSchema)]
pub struct Benchmarked {
    pub prompt_len: u64,
    pub gen_tokens: u64,
    pub batch_size: u64,
    /// Of all repetitions.
    pub avg_time: Option<f64>,
    /// Of a sample; zero where there is one repetition.
    pub std_time: Option<f64>,
    /// Generated tokens of all requests.
    pub total_tokens: u64,
    /// Those over the average time, the prompt's time included.
    pub tokens_per_sec: Option<f64>,
    pub achieved_tflops: Option<f64>,
    pub prefill_flops: Flops,
    pub decode_flops: Flops,
    pub total_flops: Flops,
    pub operational_intensity: f64,
    /// Tokens per second over those of the first run that has any.
    pub scaling: Option<f64>,
    /// Of what as many times the requests would ideally give, in percent.
    pub efficiency: Option<f64>,
    pub memory_before_gb: Option<f64>,
    pub memory_after_gb: Option<f64>,
    pub memory_peak_gb: Option<f64>,
    pub error: Option<String>,
}

const MOST: usize = 256;

impl Found {
    fn benchmarked(&self, timed: &Timed, first: Option<&Benchmarked>) -> Result<Benchmarked> {
        let (batch, prompt, generate) = (timed.batch_size.get(), timed.prompt_len.get(), timed.gen_tokens.get());
        let passes = self.passes(batch, prompt, generate)?;
        let timed_as = mean_and_spread(&timed.times)?;
        let (mean, spread) = (timed_as.map(|timed| timed.0), timed_as.map(|timed| timed.1));
        let tokens = batch * generate;
        let rate = mean.map(|mean| tokens as f64 / mean);
        let first = first.and_then(|first| Some((first.batch_size, first.tokens_per_sec?)));
        let scaled = rate.map(|rate| scaling((batch, rate), first));
        let gigabytes = |at: usize| timed.memory.and_then(|memory| Some(memory.get(at)? / 1e9));
        let achieved = mean.map(|mean| seconds(mean).map(|time| tera(passes.work.flops / time))).transpose()?;
        Ok(Benchmarked {
            prompt_len: prompt,
            gen_tokens: generate,
            batch_size: batch,
            avg_time: mean,
            std_time: spread,
            total_tokens: tokens,
            tokens_per_sec: rate,
            achieved_tflops: achieved,
            prefill_flops: passes.prefill,
            decode_flops: passes.decode,
            total_flops: passes.work.flops,
            operational_intensity: passes.work.intensity().value(),
            scaling: scaled.map(|scaled| scaled.0),
            efficiency: scaled.map(|scaled| scaled.1),
            memory_before_gb: gigabytes(0),
            memory_after_gb: gigabytes(1),
            memory_peak_gb: gigabytes(2),
            error: timed.error.clone(),
        })
    }
}

impl Benchmark {
    pub(super) fn answer(&self, context: &Context) -> Result<BenchmarkAnswer> {
        if !(1..=MOST).contains(&self.runs.len()) {
            return Err(Error::request(format!("{} runs are told", self.runs.len()), format!("from 1 to {MOST}")));
        }
        let found = self.place.find(context)?;
        let mut rows: Vec<Benchmarked> = Vec::new();
        for timed in &self.runs {
            let first = rows.iter().find(|row| row.tokens_per_sec.is_some());
            let row = found.benchmarked(timed, first)?;
            rows.push(row);
        }
        let peak = tera(found.ridge()? * found.device().memory.bandwidth);
        let (mut svg, mut path) = (None, None);
        if self.panels {
            let drawing = self.figure(&found, &rows, peak)?.drawing(self.paper.theme);
            path = self.paper.save(context, &drawing)?;
            svg = Some(drawing.svg());
        }
        context.note(FIRST_TOKEN);
        context.note(NOTE);
        Ok(BenchmarkAnswer {
            peak_tflops: peak,
            rows,
            svg,
            path,
            device: found.device().label(),
            device_name: found.device().name.clone(),
            model: found.model.key.clone(),
            model_name: found.model.name.clone(),
            precision: found.precision.clone(),
            notes: context.notes(),
        })
    }

    fn figure(&self, found: &Found, rows: &[Benchmarked], peak: f64) -> Result<Panels> {
        let batches = rows.windows(2).any(|pair| pair[0].batch_size != pair[1].batch_size);
        let run = |row: &Benchmarked| {
            let of = |flops: Flops| flops.value() / 1e12;
            let batch = if batches { format!(" x {}", row.batch_size) } else { String::new() };
            Some(PanelRun {
                label: format!("{}{batch}", row.prompt_len),
                tokens_per_sec: row.tokens_per_sec?,
                tflops: row.achieved_tflops?,
                seconds: row.avg_time?,
                spread: row.std_time?,
                prefill: of(row.prefill_flops),
                decode: of(row.decode_flops),
            })
        };
        Ok(Panels {
            title: format!("Benchmark: {} on {}", found.model.name, found.device().name),
            subtitle: format!("{}, peak {peak:.0} TFLOP/s ({})", found.precision, found.math.label()),
            peak,
            practical: self.paper.practical()?,
            runs: rows.iter().filter_map(run).collect(),
            aspect: self.paper.aspect()?,
        })
    }
}
