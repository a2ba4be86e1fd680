//! Models, opened and held to be comparable, and one run over a text.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use roofline_core::{Plan, recommend::Measured, units::Bytes};
use roofline_engine::{
    Backend, Engine, Tokenizer,
    evaluation::{self, Differing, WindowScore, Windows},
};
use roofline_quant::Method;
use serde_json::json;

use super::{Evaluated, Request, TextFacts, TokenError, figures::Totals, state::State, text::Source, weights};
use crate::{
    Context, Error, Result, quality,
    running::{Executor, Numbers, Opened, format, within},
};

/// Tokens that are seen together, where nobody says.
const WINDOW: usize = 512;
/// Of every so manieth token, what layers hand on is compared.
const SAMPLE: usize = 16;
/// Tokens of text that are shown before one that is predicted differently.
const BEFORE: usize = 12;

/// A model, and what it was made of.
pub(super) struct Models {
    pub(super) model: Opened,
    pub(super) original: Option<Opened>,
    pub(super) tokenizer: Tokenizer,
}

/// A text in tokens, and how it is gone through.
pub(super) struct Subject {
    tokens: Vec<u32>,
    pub(super) bos: Option<u32>,
    pub(super) facts: TextFacts,
    pub(super) window: usize,
    pub(super) stride: usize,
}

/// What a run found.
pub(super) struct Run {
    pub(super) own: Evaluated,
    pub(super) original: Option<Evaluated>,
    pub(super) state: Option<State>,
}

impl Models {
    /// Opens them; both must speak of the same tokens.
    pub(super) fn open(context: &Context, model: &Path, original: Option<&Path>) -> Result<Self> {
        let model = Opened::open(context, model)?;
        let original = original.map(|path| Opened::open(context, path)).transpose()?;
        let own = model.tokenizer(&model.files()?)?;
        let others = match &original {
            Some(original) => original.tokenizer(&original.files()?)?,
            None => None,
        };
        if let Some(original) = &original {
            alike(&model, original, own.as_ref(), others.as_ref())?;
        }
        // Of models that are alike, one tokenizer is as good as the other.
        let Some(tokenizer) = own.or(others) else {
            let message = format!("{} has no tokenizer: there is no tokenizer.json", model.model.name);
            return Err(Error::request(message, "put the model's tokenizer.json beside its weights"));
        };
        Ok(Self { model, original, tokenizer })
    }

    /// The text in tokens, and windows that models and text have room for.
    pub(super) fn subject(&self, request: &Request, source: &Source) -> Result<Subject> {
        let size = |dim: Option<roofline_core::Dim>| dim.map(|dim| dim.get() as usize);
        let all = [Some(&self.model), self.original.as_ref()];
        let longest = all.into_iter().flatten().filter_map(|one| one.model.max_context).map(|most| most.get() as usize);
        let window = size(request.window).unwrap_or_else(|| longest.min().unwrap_or(WINDOW).min(WINDOW));
        for one in all.into_iter().flatten() {
            within(&one.model, window)?;
        }
        let stride = size(request.stride).unwrap_or((window / 2).max(1));
        if window < 2 {
            let hint = "a window has a token to predict and one before it: `⟨window⟩` is 2 at least";
            return Err(Error::request("a window of 1 token predicts nothing", hint));
        }
        if stride > window {
            let message = format!("a stride of {stride} leaves gaps between windows of {window}");
            return Err(Error::request(message, format!("`⟨stride⟩` is from 1 to {window}")));
        }
        let bos = self.tokenizer.beginning()?;
        let (tokens, facts) = source.read(&self.tokenizer, bos, size(request.tokens))?;
        if tokens.len() < window {
            let (name, have) = (&facts.name, tokens.len());
            let message = format!("{name} has {have} tokens, and a window {window}");
            let hint = match have {
                0 | 1 => "give a longer text".to_owned(),
                _ => format!("give a longer text, or say `⟨window {}⟩`", 1 << have.ilog2()),
            };
            return Err(Error::request(message, hint));
        }
        Ok(Subject { tokens, bos, facts, window, stride })
    }

    /// Goes through the text with the model and what it was made of.
    pub(super) fn run(
        &self,
        context: &Context,
        request: &Request,
        executor: &Executor,
        subject: &Subject,
    ) -> Result<Run> {
        subject.run(context, request, executor, (&self.model, self.original.as_ref()), &self.tokenizer, None)
    }
}

impl Subject {
    pub(super) fn windows(&self) -> Result<Windows<'_>> {
        Windows::new(&self.tokens, self.window, self.stride, self.bos)
            .ok_or_else(|| Error::request("there is no window", "give a longer text"))
    }

    /// Evaluates one model, and another beside it.
    pub(super) fn run(
        &self,
        context: &Context,
        request: &Request,
        executor: &Executor,
        (model, original): (&Opened, Option<&Opened>),
        tokenizer: &Tokenizer,
        plan: Option<(&Plan, Method)>,
    ) -> Result<Run> {
        let start = Instant::now();
        let load = |opened: &'_ Opened, numbers: &Numbers| -> Result<_> {
            let mut settings = numbers.settings(context, &opened.usual(), executor)?;
            settings.all_logits = true;
            let vocabulary = opened.model.vocabulary.get() as usize;
            settings.chunk = settings.chunk.or(Some(evaluation::chunk(vocabulary, self.window)));
            opened.fits(1, self.window, &settings, executor)?;
            Ok(settings)
        };
        // A narrow cache is a part of what is judged: the original keeps its own.
        let others = Numbers { kv: None, ..request.numbers.clone() };
        let settings = (load(model, &request.numbers)?, original.map(|one| load(one, &others)).transpose()?);
        // Both are in a GPU's memory at once; a processor may read weights from their files as it goes.
        if let (Some(original), Some(others), true) = (original, &settings.1, executor.is_gpu()) {
            let need = model.need(1, self.window, &settings.0, executor)?;
            executor.has_room(&need.beside(&original.need(1, self.window, others, executor)?))?;
        }
        let engine = model.load(context, settings.0)?;
        let other = match (original, settings.1) {
            (Some(original), Some(settings)) => Some(original.load(context, settings)?),
            _ => None,
        };
        // What was quantized for this evaluation is known by what it was made of.
        let models = match plan {
            Some((plan, method)) => json!([original.map(identity).transpose()?, plan.label(), method.name()]),
            None => json!([identity(model)?, original.map(identity).transpose()?]),
        };
        let identity = self.identity(&models, &engine, other.as_ref());
        let (totals, state) = self.scores(context, request, &engine, other.as_ref(), &identity.to_string())?;
        let mut own = totals.own(self.window, facts(context, model, &engine));
        // What both see alike is no difference.
        let differing = totals.worst.iter().filter(|one| one.kl > 0.0);
        own.worst = differing.map(|one| self.shown(tokenizer, one)).collect::<Result<_>>()?;
        let original_told =
            original.zip(other.as_ref()).map(|(opened, other)| totals.original(facts(context, opened, other)));
        if let Some(original) = original {
            let (weights, lacking) =
                weights::errors(context, &model.checkpoint, &original.checkpoint, engine.settings.threads)?;
            own.weights = weights;
            if lacking > 0 {
                let name = &original.model.name;
                context.note(format!("{lacking} matrices of {} are not in {name} by their names", model.model.name));
            }
        }
        own.seconds = start.elapsed().as_secs_f64();
        (own.plan, own.method) = plan.map(|(plan, method)| (plan.label(), method.name().to_owned())).unzip();
        let run = Run { own, original: original_told, state };
        if let Some(original) = original {
            remember(context, &self.facts, model, original, &run)?;
        }
        Ok(run)
    }

    /// Everything that figures depend on.
    fn identity(
        &self,
        models: &serde_json::Value,
        model: &Engine<'_>,
        original: Option<&Engine<'_>>,
    ) -> serde_json::Value {
        let numbers = |engine: &Engine<'_>| {
            let settings = &engine.settings;
            let on = if settings.backend == Backend::Cpu { "cpu" } else { "cuda" };
            json!([settings.values.to_string(), settings.kv.to_string(), settings.threads, engine.chunk, on])
        };
        json!({ "version": env!("CARGO_PKG_VERSION"), "models": models, "text": self.facts.hash, "bos": self.bos,
            "tokens": self.tokens.len(), "window": self.window, "stride": self.stride, "numbers": numbers(model),
            "original": original.map(numbers) })
    }

    /// Scores every window that was not scored before.
    fn scores(
        &self,
        context: &Context,
        request: &Request,
        model: &Engine<'_>,
        original: Option<&Engine<'_>>,
        identity: &str,
    ) -> Result<(Totals, Option<State>)> {
        let windows = self.windows()?;
        let count = windows.count();
        let mut totals = Totals::default();
        let mut state = None;
        if let Some((kept, done)) = State::begin(context, identity, request.resume)? {
            done.into_iter().take(count).for_each(|score| totals.add(score));
            state = Some(kept);
        }
        let (start, before) = (Instant::now(), totals.count());
        let words = |done: usize| {
            let name = &model.model.name;
            let each = start.elapsed().checked_div((done - before) as u32);
            let left = each.map_or_else(String::new, |each| format!(", {} left", span(each * (count - done) as u32)));
            format!("{name} on {}{left}", self.facts.name)
        };
        context.watcher().starts(before, count, &words(before));
        let told = evaluation::evaluate(model, original, &windows, before..count, SAMPLE, &mut |score: WindowScore| {
            if let Some(state) = &mut state {
                state.add(&score)?;
            }
            totals.add(score);
            context.watcher().starts(totals.count(), count, &words(totals.count()));
            Ok::<(), Error>(())
        });
        context.watcher().ends();
        if told.is_err() && state.is_some() && totals.count() > 0 {
            let done = totals.count();
            context.note(format!("{done} of {count} windows are kept: the same with `⟨resume⟩` goes on from there"));
        }
        told.map(|()| (totals, state))
    }

    /// A token that is predicted differently, in words.
    fn shown(&self, tokenizer: &Tokenizer, one: &Differing) -> Result<TokenError> {
        let before = &self.tokens[one.position.saturating_sub(BEFORE)..one.position];
        let text = tokenizer.decode(before)?;
        let after = |token: u32| -> Result<String> {
            let whole = tokenizer.decode(&[before, &[token]].concat())?;
            Ok(whole.strip_prefix(&text).unwrap_or(&whole).to_owned())
        };
        Ok(TokenError {
            position: one.position,
            token: after(self.tokens[one.position])?,
            kl_divergence: one.kl,
            probability: one.probability,
            original_probability: one.original_probability,
            top: after(one.top)?,
            original_top: after(one.original_top)?,
            before: text,
        })
    }
}

/// A time that is left, as people say it.
fn span(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds >= 3600 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        seconds if seconds >= 60 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{seconds} s"),
    }
}

/// What is known of a model before it runs.
fn facts(context: &Context, opened: &Opened, engine: &Engine<'_>) -> Evaluated {
    let checkpoint = &opened.checkpoint;
    let path = match (&checkpoint.gguf, &checkpoint.shards[..]) {
        (Some(_), [shard]) => shard.path.clone(),
        _ => checkpoint.folder.clone(),
    };
    Evaluated {
        model: engine.model.name.clone(),
        checkpoint: Some(path),
        format: format(context, engine),
        values: engine.settings.values.to_string(),
        kv: engine.settings.kv.to_string(),
        threads: engine.settings.threads,
        weights_bytes: Bytes::new(engine.bytes() as f64),
        ..Evaluated::default()
    }
}

/// Keeps what was found for whoever recommends a format. That it cannot be kept must not cost the answer.
fn remember(context: &Context, text: &TextFacts, model: &Opened, original: &Opened, run: &Run) -> Result<()> {
    let own = &run.own;
    let (Some(before), Some(low), Some(high)) = (&run.original, own.ratio_low, own.ratio_high) else { return Ok(()) };
    if context.home().folder("quality").is_none() {
        return Ok(());
    }
    let found = Measured {
        fingerprint: quality::fingerprint(&original.checkpoint)?,
        signature: quality::signature(&model.checkpoint, &model.model)?,
        plan: own.plan.clone(),
        method: own.method.clone(),
        // Both ran with the same.
        cache: None,
        before: before.perplexity,
        after: own.perplexity,
        low: low - 1.0,
        high: high - 1.0,
        kl_divergence: own.kl_divergence,
        top1_agreement: own.top1_agreement,
        tokens: own.tokens as u64,
        text: text.name.clone(),
        date: jiff::Zoned::now().date().to_string(),
    };
    if let Err(error) = quality::keep(context, &found) {
        context.warn(format!("`⟨roofline recommend⟩` will not know of this: {error}"));
    }
    Ok(())
}

/// Which files a model is of: where they are, how long, and when they were written.
fn identity(opened: &Opened) -> Result<serde_json::Value> {
    let mut all = Vec::new();
    for shard in &opened.checkpoint.shards {
        let path = std::fs::canonicalize(&shard.path).map_err(Error::file(&shard.path))?;
        let facts = std::fs::metadata(&path).map_err(Error::file(&path))?;
        let written = facts.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        all.push(json!([path, facts.len(), written.map(|time| time.as_nanos().to_string())]));
    }
    Ok(json!([all, opened.checkpoint.config]))
}

/// Refuses models that do not speak of the same tokens.
fn alike(model: &Opened, original: &Opened, own: Option<&Tokenizer>, others: Option<&Tokenizer>) -> Result<()> {
    let hint = "evaluate a model against the one that it was made of";
    let (name, other) = (&model.model.name, &original.model.name);
    let (size, others_size) = (model.model.vocabulary, original.model.vocabulary);
    if size != others_size {
        let message = format!("{name} knows {size} tokens, and {other} {others_size}: they cannot be compared");
        return Err(Error::request(message, hint));
    }
    if let Some((id, text, others_text)) = own.zip(others).and_then(|(own, others)| own.difference(others)) {
        let message = format!(
            "{name} and {other} have different tokenizers: token {id} is {text:?} in the one and {others_text:?} in the other"
        );
        return Err(Error::request(message, hint));
    }
    Ok(())
}
