//! How well a model predicts a text, and what it lost against the one it was made of.

mod card;
mod figures;
mod models;
pub mod pictures;
mod plans;
mod state;
pub(crate) mod text;
mod weights;

use std::{path::PathBuf, time::Instant};

use clap::Args;
use roofline_core::Dim;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::figures::{Evaluated, LayerError, PositionError, TokenError, WeightError};
use self::{
    card::Card,
    models::{Models, Run},
    text::Source,
};
use crate::{
    Context, Error, Note, Result, demo,
    request::{BackendName, list},
    running::{Execution, Numbers},
};

/// A model, a text, and what it is held against.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[serde(default)]
#[schemars(rename = "EvaluateRequest")]
pub struct Request {
    /// The model: a checkpoint's folder, its file of weights, or a GGUF file; `demo` is the one that comes along
    #[arg(value_name = "MODEL")]
    #[schemars(extend("x-local" = true))]
    pub model: PathBuf,
    /// The model that it was made of: how far predictions, layers and weights are from its own
    #[arg(long, value_name = "MODEL", conflicts_with = "plan")]
    #[schemars(extend("x-local" = true))]
    pub against: Option<PathBuf>,
    /// The text, in UTF-8; the demo has one of its own
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub text: Option<PathBuf>,
    /// Quantize the model to each of these plans, evaluate that against it, and keep nothing: w4a16,q4_k_m,int3
    #[arg(long, value_name = "PLAN")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub plan: Vec<String>,
    /// How codes are chosen, each with every plan: rtn, mse, four-over-six or hqq; rtn when left out
    #[arg(long, value_name = "METHOD", value_delimiter = ',', requires = "plan")]
    #[serde(deserialize_with = "list::split")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub method: Vec<String>,
    /// Tokens that are seen together; 512, or what the model was made for, when left out
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    pub window: Option<Dim>,
    /// Tokens from one window to the next; half of a window when left out
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true)]
    pub stride: Option<Dim>,
    /// Tokens of the text at most; all when left out
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub tokens: Option<Dim>,
    /// Go on with an evaluation that was interrupted
    #[arg(long)]
    pub resume: bool,
    /// Where a page with pictures of what was lost goes
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub html: Option<PathBuf>,
    /// Write what was found into the checkpoint's model card, README.md
    #[arg(long, requires = "against")]
    pub card: bool,
    /// Replace a page that is there
    #[arg(long, requires = "html")]
    pub force: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub numbers: Numbers,
    #[command(flatten)]
    #[serde(flatten)]
    pub execution: Execution,
}

const HELP: &str = "\
Runs on the GPU where there is one, else on the processor (--backend says which). Every token of
the text counts once: in the first window that predicts it, which is all but the first token of the
first window, and the last STRIDE of the others. With a stride of half a window, the figure that
llama.cpp's `perplexity` gives is told beside. Intervals are of 95 %, with windows as what is drawn.

A run that was interrupted goes on with --resume, and ends with the same figures.

Examples:
  roofline evaluate ./Llama-3.2-1B --text wiki.test.raw
  roofline evaluate ./Llama-3.2-1B-W4A16 --against ./Llama-3.2-1B --text wiki.test.raw
  roofline evaluate llama-q4_k_m.gguf --against ./Llama-3.2-1B --text wiki.test.raw --html lost.html
  roofline evaluate ./Llama-3.2-1B-W4A16 --against ./Llama-3.2-1B --text wiki.test.raw --card
  roofline evaluate ./Llama-3.2-1B --text wiki.test.raw --plan w8a16,w4a16 --method rtn,mse
  roofline evaluate demo --plan int8,w4a16,q4_k_m,int3,int2 --json
  roofline evaluate ./Llama-W4A16 --against ./Llama-3.2-1B --text wiki.test.raw --backend cuda
  roofline evaluate ./model --text book.txt --window 2048 --stride 512 --tokens 100000 --resume";

/// How well it predicts.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "EvaluateAnswer")]
pub struct Answer {
    /// The model itself.
    #[serde(flatten)]
    pub evaluated: Evaluated,
    /// What it was held against.
    pub original: Option<Box<Evaluated>>,
    /// Who ran them.
    pub backend: BackendName,
    /// The text, and how it was gone through.
    pub text: TextFacts,
    /// Tokens that are seen together, from one such window to the next, and how many windows there are.
    pub window: usize,
    pub stride: usize,
    pub windows: usize,
    /// The token that every window starts with, where the tokenizer puts one before a text.
    pub bos: Option<u32>,
    /// What plans make of it, where some were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<Evaluated>,
    /// The page that is to be written.
    pub report: Option<PathBuf>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextFacts {
    /// Its file's name.
    pub name: String,
    pub bytes: u64,
    /// Tokens that were made of it, with the one that begins it.
    pub tokens: usize,
    /// Its 64-bit FNV-1a, so that figures can be told to be of one text.
    pub hash: String,
    /// Its letters, which say how well a tokenizer knows it.
    #[serde(skip)]
    #[schemars(skip)]
    pub letters: u64,
}

/// Evaluates a model. Where its page would go is in the answer; whoever shows it writes it.
pub fn evaluate(context: &Context, request: &Request) -> Result<Answer> {
    if !context.is_local() {
        return Err(Error::Path { what: "model", name: request.model.display().to_string() });
    }
    if let Some(path) = request.html.as_ref().filter(|path| path.exists() && !request.force) {
        return Err(Error::Taken {
            path: path.clone(), hint: "name another page by ⟨html⟩, or replace it by ⟨force⟩"
        });
    }
    if request.card && request.against.is_none() {
        let what = "a card says what a model has lost, and there is nothing that it is held against";
        return Err(Error::request(what, "name the model that it was made of by `⟨against⟩`"));
    }
    if request.card && demo::is_meant(&request.model) {
        let hint = "name a checkpoint that was made of it";
        return Err(Error::request("the demo comes with the program, and so does its card", hint));
    }
    let card = request.card.then(|| Card::open(&request.model)).transpose()?;
    let source = Source::of(request)?;
    let start = Instant::now();
    let model = demo::checkpoint(context, &request.model)?;
    let against = request.against.as_deref().map(|path| demo::checkpoint(context, path)).transpose()?;
    let models = Models::open(context, &model, against.as_deref())?;
    let subject = models.subject(request, &source)?;
    let pairs = plans::asked(request)?;
    let executor = request.execution.executor(context)?;
    context.watcher().heeds();
    let runs = if pairs.is_empty() {
        models.run(context, request, &executor, &subject).map(|run| vec![run])
    } else {
        plans::run(context, request, &executor, &models, &subject, &pairs)
    };
    let mut runs = runs.map_err(|error| executor.refused(error))?;
    // All of it is there: nothing is left to go on with.
    for state in runs.iter_mut().filter_map(|run| run.state.take()) {
        state.forget()?;
    }
    let windows = subject.windows()?.count();
    let mut answer = Answer {
        evaluated: Evaluated::default(),
        original: None,
        backend: executor.name,
        text: subject.facts,
        window: subject.window,
        stride: subject.stride,
        windows,
        bos: subject.bos,
        plans: Vec::new(),
        report: request.html.clone(),
        notes: context.notes(),
    };
    for run in runs {
        let Run { own, original, .. } = run;
        if pairs.is_empty() {
            (answer.evaluated, answer.original) = (own, original.map(Box::new));
        } else {
            answer.evaluated = original.unwrap_or_default();
            answer.plans.push(own);
        }
    }
    answer.evaluated.seconds = start.elapsed().as_secs_f64();
    if let Some(card) = card {
        context.note(format!("{} says what was found", card.tell(&answer)?.display()));
        answer.notes = context.notes();
    }
    Ok(answer)
}

#[cfg(test)]
mod tests;
