//! Text from a model: the tokens it goes on with, as they come, and how fast.

mod prompt;

use std::{path::PathBuf, time::Instant};

use clap::Args;
use roofline_core::{
    Dim, Model,
    measurement::Summary,
    units::{Bytes, Seconds},
};
use roofline_engine::{Engine, Error as Refusal, Sampler, Sampling, Session, Tokenizer, Wanted, tokenizer::Stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::prompt::Prompt;
pub use crate::running::{CacheFormat, Execution, ModelBackend, Numbers, ValueFormat};
use crate::{
    Context, Error, Note, Result, Watcher,
    request::{BackendName, list},
    running::{Executor, Opened, format, within},
};

/// Tokens that are generated where nobody says how many.
const TOKENS: usize = 128;

/// A model, what it goes on from, and how it chooses.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "GenerateRequest")]
pub struct Request {
    /// The model: a checkpoint's folder, its file of weights, or a GGUF file
    #[arg(value_name = "MODEL")]
    #[schemars(extend("x-local" = true))]
    pub model: PathBuf,
    /// What it goes on from
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["prompt_file", "tokens"])]
    pub prompt: Option<String>,
    /// The same from a file; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    #[schemars(extend("x-local" = true))]
    pub prompt_file: Option<PathBuf>,
    /// The same as numbers of tokens, for a model without a tokenizer: 1,15043,29892
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    #[serde(default, deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<u32>")]
    pub tokens: Vec<u32>,
    /// Put the prompt into the model's chat template, as a user's message
    #[arg(long, conflicts_with = "tokens")]
    #[serde(default)]
    pub chat: bool,
    /// The system's message before it
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Tokens at most; 128 when left out, or as many as the context has room for
    #[arg(short = 'n', long, value_name = "COUNT", allow_negative_numbers = true)]
    pub max_tokens: Option<Dim>,
    /// How freely tokens are chosen: 0 always takes the most probable one
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0, allow_negative_numbers = true)]
    #[serde(default)]
    pub temperature: f32,
    /// Choose among the most probable tokens that have this much probability together
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, allow_negative_numbers = true)]
    #[serde(default = "all")]
    pub top_p: f32,
    /// Where the random numbers start; the same seed gives the same text
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    #[serde(default)]
    pub seed: u64,
    /// Go on after the token that ends a text
    #[arg(long)]
    #[serde(default)]
    pub ignore_end: bool,
    /// Room for prompt and answer together; what they need when left out
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    pub context: Option<Dim>,
    #[command(flatten)]
    #[serde(flatten)]
    pub numbers: Numbers,
    #[command(flatten)]
    #[serde(flatten)]
    pub execution: Execution,
}

fn all() -> f32 {
    1.0
}

const HELP: &str = "\
Runs on the GPU where there is one, else on the processor (--backend says which), with the weights
multiplied as they are stored. The text streams to standard output, what is said of it to standard
error; --json prints the answer alone, once it is whole. Ctrl-C ends the text where it is, and
keeps it (exit code 130).

Examples:
  roofline generate ./Llama-3.2-1B --prompt 'The capital of France is'
  roofline generate model-q4_k_m.gguf --chat --prompt 'Why is the sky blue?' --max-tokens 300
  roofline generate ./Qwen3-0.6B --chat --system 'In one word.' --prompt 'Largest planet?' --json
  roofline generate ./model --prompt-file story.txt --temperature 0.8 --top-p 0.95 --seed 7
  roofline generate ./model --tokens 1,450,7483 --max-tokens 16 --ignore-end
  roofline generate ./Llama-3.2-1B --prompt 'Once' --backend cuda --kv fp8
  roofline generate ./Llama-3.2-1B --prompt 'Once' --backend cpu --threads 4";

/// What came out, and how fast.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "GenerateAnswer")]
pub struct Answer {
    pub model: String,
    /// Who ran it.
    pub backend: BackendName,
    /// How most of the weights are stored.
    pub format: String,
    /// The numbers between kernels, and those of the cache.
    pub values: String,
    pub kv: String,
    pub threads: usize,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
    /// What was generated; none without a tokenizer.
    pub text: Option<String>,
    /// The tokens of it.
    pub tokens: Vec<u32>,
    pub end: End,
    /// Reading the weights.
    pub load_s: f64,
    /// From the prompt to the first token; none where it was stopped before.
    pub ttft_us: Option<f64>,
    /// Each further token, the median and what 5 % of them went above; none where there is only one.
    pub tpot_us: Option<f64>,
    pub tpot_p95_us: Option<f64>,
    /// Further tokens over their time.
    pub tokens_per_s: Option<f64>,
    /// Tokens of the prompt over the time to the first token.
    pub prefill_tokens_per_s: Option<f64>,
    /// The most memory that the program held, or what it took of the GPU's, where the system says.
    pub peak_memory_bytes: Option<Bytes>,
    pub weights_bytes: Bytes,
    pub cache_bytes: Bytes,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// Why a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It has as many tokens as were asked for.
    Length,
    /// The model ended it.
    EndOfText,
    /// Whoever asked has enough.
    Stopped,
}

/// Generates text; whoever follows sees it as it comes.
pub fn generate(context: &Context, request: &Request) -> Result<Answer> {
    let sampling = Sampling { temperature: request.temperature, top_p: request.top_p, seed: request.seed };
    let sampler = Sampler::new(sampling)?;
    if !context.is_local() {
        return Err(Error::Path { what: "model", name: request.model.display().to_string() });
    }
    let text = request.text()?;
    let opened = Opened::open(context, &request.model)?;
    let prompt = Prompt::of(request, text, &opened)?;
    let (most, room) = request.lengths(prompt.tokens.len(), &opened.model)?;
    let executor = request.execution.executor(context)?;
    executor.takes(&request.numbers)?;
    let settings = request.numbers.settings(context, &opened.usual(), &executor)?;
    opened.fits(1, room, &settings, &executor)?;
    context.watcher().heeds();
    let refused = |error| executor.refused(error);
    let engine = opened.load(context, settings).map_err(refused)?;
    let format = format(context, &engine);
    let mut session = engine.session(1, room).map_err(|error| refused(error.into()))?;
    let ends = if request.ignore_end { &[][..] } else { &prompt.ends };
    let mut speech = Speech::new(context.watcher(), prompt.tokenizer.as_ref(), &prompt.tokens);
    let told = follow(&mut session, sampler, &prompt.tokens, ends, most, &mut speech);
    let (end, pace) = told.map_err(refused)?;
    let (tokens, text) = speech.finish()?;
    Ok(Answer {
        notes: context.notes(),
        ..answer(format, &engine, &session, &pace, &executor).with(prompt.tokens.len(), tokens, text, end)
    })
}

/// When tokens came.
#[derive(Default)]
struct Pace {
    first: Option<Seconds>,
    others: Vec<Seconds>,
}

/// Feeds the prompt, then each token that was chosen, until there are enough.
fn follow(
    session: &mut Session<'_, '_>,
    mut sampler: Sampler,
    prompt: &[u32],
    ends: &[u32],
    most: usize,
    speech: &mut Speech<'_>,
) -> Result<(End, Pace)> {
    let mut pace = Pace::default();
    let mut fed = prompt.to_vec();
    for at in 0..most {
        let start = Instant::now();
        let logits = match session.feed(0..1, &[fed], Wanted::Last) {
            Ok(logits) => logits,
            Err(Refusal::Stopped) => return Ok((End::Stopped, pace)),
            Err(error) => return Err(error.into()),
        };
        session.take_ran();
        let token = sampler.sample(&logits)?;
        let time = Seconds::new(start.elapsed().as_secs_f64());
        if at == 0 {
            pace.first = Some(time);
        } else {
            pace.others.push(time);
        }
        let last = ends.contains(&token);
        speech.push(token, last)?;
        if last {
            return Ok((End::EndOfText, pace));
        }
        fed = vec![token];
    }
    Ok((End::Length, pace))
}

/// The text so far, told as it comes.
struct Speech<'a> {
    watcher: &'a dyn Watcher,
    stream: Option<Stream<'a>>,
    text: String,
    tokens: Vec<u32>,
}

impl<'a> Speech<'a> {
    fn new(watcher: &'a dyn Watcher, tokenizer: Option<&'a Tokenizer>, prompt: &[u32]) -> Self {
        let stream = tokenizer.map(|tokenizer| tokenizer.stream(prompt));
        Self { watcher, stream, text: String::new(), tokens: Vec::new() }
    }

    /// One more token; the one that ends a text has none itself.
    fn push(&mut self, token: u32, last: bool) -> Result<()> {
        let piece = match &mut self.stream {
            Some(_) if last => String::new(),
            Some(stream) => stream.push(token)?,
            None if self.tokens.is_empty() => token.to_string(),
            None => format!(" {token}"),
        };
        self.tokens.push(token);
        self.say(&piece);
        Ok(())
    }

    fn say(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.watcher.piece(piece);
            self.text.push_str(piece);
        }
    }

    /// All tokens and all text; none without a tokenizer.
    fn finish(mut self) -> Result<(Vec<u32>, Option<String>)> {
        let Some(stream) = self.stream.take() else { return Ok((self.tokens, None)) };
        let rest = stream.finish()?;
        self.say(&rest);
        Ok((self.tokens, Some(self.text)))
    }
}

/// What is known but for the text.
fn answer(format: String, engine: &Engine<'_>, session: &Session<'_, '_>, pace: &Pace, executor: &Executor) -> Answer {
    let others = Summary::of(&pace.others);
    let total: f64 = pace.others.iter().map(|time| time.value()).sum();
    Answer {
        model: engine.model.name.clone(),
        backend: executor.name,
        format,
        values: engine.settings.values.to_string(),
        kv: engine.settings.kv.to_string(),
        threads: engine.settings.threads,
        prompt_tokens: 0,
        generated_tokens: 0,
        text: None,
        tokens: Vec::new(),
        end: End::Length,
        load_s: engine.loading.value(),
        ttft_us: pace.first.map(Seconds::micros),
        tpot_us: others.as_ref().map(|times| times.median.micros()),
        tpot_p95_us: others.as_ref().map(|times| times.p95.micros()),
        tokens_per_s: others.map(|times| times.samples as f64 / total),
        prefill_tokens_per_s: None,
        peak_memory_bytes: executor.memory_used(),
        weights_bytes: Bytes::new(engine.bytes() as f64),
        cache_bytes: Bytes::new(session.cache_bytes() as f64),
        notes: Vec::new(),
    }
}

impl Answer {
    fn with(self, prompt_tokens: usize, tokens: Vec<u32>, text: Option<String>, end: End) -> Self {
        let prefill_tokens_per_s = self.ttft_us.map(|time| prompt_tokens as f64 / time * 1e6);
        Self { prompt_tokens, generated_tokens: tokens.len(), tokens, text, end, prefill_tokens_per_s, ..self }
    }
}

impl Request {
    /// Tokens to generate at most, and tokens that there is room for, after a prompt.
    fn lengths(&self, prompt: usize, model: &Model) -> Result<(usize, usize)> {
        let context = self.context.map(|context| context.get() as usize);
        if let Some(context) = context {
            within(model, context)?;
        }
        let limit = context.or(model.max_context.map(|most| most.get() as usize));
        // At least one token is wanted, so that a prompt that leaves no room for any is refused.
        let fits = limit.map_or(TOKENS, |limit| limit.saturating_sub(prompt).clamp(1, TOKENS));
        let most = self.max_tokens.map_or(fits, |most| most.get() as usize);
        match context {
            Some(context) if prompt + most > context => {
                let limit = format!("the context of {context}: {prompt} of the prompt and {most} to come");
                Err(Refusal::Context { asked: prompt + most, limit }.into())
            }
            Some(context) => Ok((most, context)),
            None => within(model, prompt + most).map(|()| (most, prompt + most)),
        }
    }
}

#[cfg(test)]
mod tests;
