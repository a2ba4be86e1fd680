//! A text on its way through a model, for verbs that observe one: methods that go by data, importance matrices, sizes to aim at.

use std::{path::Path, sync::Arc};

use roofline_core::{Dim, Model, units::Bytes};
use roofline_engine::{Error as Refusal, Layerwise, Settings};
use roofline_quant::{Checkpoint, Error as FileError, observed::Observed};
use roofline_run::cpu::machine::Machine;

use crate::{
    Context, Error, Result, demo,
    evaluate::{
        TextFacts,
        text::{Source, stranger},
    },
    running::{files_of, tokenizer_of},
    text::size,
};

/// Tokens of a sample, where nobody says and the model has room for them: llama.cpp's.
const LENGTH: u64 = 512;

/// A text as tokens, and how many of them a sample has.
pub(crate) struct Cut {
    pub(crate) tokens: Vec<u32>,
    pub(crate) facts: TextFacts,
    /// The token that begins a text.
    pub(crate) first: Option<u32>,
    pub(crate) length: usize,
    pub(crate) samples: Samples,
    /// What is wrong with it, which was said; whoever answers says it again.
    pub(crate) warnings: Vec<String>,
}

/// Whether whoever asks may say how many samples there are, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Samples {
    Asked,
    Own,
}

/// Where the token that begins a text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Before the text.
    OfText,
    /// Nowhere: samples get it.
    OfSamples,
}

impl Cut {
    /// A text that is named, or the demo's own, in the tokens of a model, `length` of them a sample.
    pub(crate) fn of(
        context: &Context,
        (checkpoint, model): (&Checkpoint, &Model),
        data: Option<&Path>,
        (samples, length): (Samples, Option<u64>),
        beginning: Beginning,
    ) -> Result<Self> {
        let mut warnings = Vec::new();
        let text = data.map_or_else(|| Source::Own(demo::text()), |path| Source::File(path.to_owned()));
        if data.is_none() {
            warnings.push(format!(
                "what is observed is the demo's own text, {} of English: `⟨data FILE⟩` names one of what the model is for",
                size(demo::text().len() as u64)
            ));
        }
        let Some(tokenizer) = tokenizer_of(model, &files_of(checkpoint)?)? else {
            let message = format!("{} has no tokenizer: there is no tokenizer.json", model.name);
            return Err(Error::request(message, "put the model's tokenizer.json beside its weights"));
        };
        let longest = model.max_context.map_or(u64::MAX, Dim::get);
        let length = length.unwrap_or_else(|| LENGTH.min(longest));
        if length < 2 {
            let message = format!("samples of {length} token begin a text and say nothing of it");
            return Err(Error::request(message, "`⟨length⟩` is 2 at least"));
        }
        if length > longest {
            let message =
                format!("samples of {length} tokens are longer than the {longest} that {} was made for", model.name);
            return Err(Error::request(message, format!("`⟨length⟩` is {longest} at most")));
        }
        let first = tokenizer.beginning()?;
        let (tokens, facts) = text.read(&tokenizer, first.filter(|_| beginning == Beginning::OfText), None)?;
        warnings.extend(stranger(&tokens, &facts));
        for warning in &warnings {
            context.warn(warning.clone());
        }
        Ok(Self { tokens, facts, first, length: length as usize, samples, warnings })
    }

    /// Samples of it; refused where it has tokens for none.
    pub(crate) fn some(&self, samples: Vec<Vec<u32>>) -> Result<Vec<Vec<u32>>> {
        if !samples.is_empty() {
            return Ok(samples);
        }
        let message = format!("{} has {} tokens, and a sample {}", self.facts.name, self.tokens.len(), self.length);
        Err(Error::request(
            message,
            match self.samples {
                Samples::Asked => "give a longer text with `⟨data⟩`, or shorter samples with `⟨length⟩`",
                Samples::Own => "give a longer text with `⟨data⟩`",
            },
        ))
    }
}

/// Samples on their way through a model, which wait in `offload` between layers where that is named.
pub(crate) fn layerwise<'a>(
    context: &Context,
    checkpoint: &'a Checkpoint,
    samples: Vec<Vec<u32>>,
    threads: usize,
    offload: Option<&Path>,
) -> Result<Layerwise<'a>> {
    let watcher = context.shared_watcher();
    let settings = Settings {
        threads,
        stop: Arc::new(move || if watcher.cancelled() { Err(Refusal::Stopped) } else { Ok(()) }),
        ..Settings::for_checkpoint(checkpoint)
    };
    let observed = Layerwise::new(checkpoint, samples, &settings)?;
    let Some(folder) = offload else { return Ok(observed) };
    if !folder.is_dir() {
        let message = format!("{} is no folder", folder.display());
        return Err(Error::request(message, "name one that is there with `⟨offload FOLDER⟩`"));
    }
    observed.offloaded(folder).map_err(|error| match Error::from(error) {
        Error::Quant(FileError::Space { free, needed, .. }) => {
            let message = format!(
                "samples hand on {} from layer to layer, and {} has {}",
                size(needed),
                folder.display(),
                size(free)
            );
            Error::request(message, "name a folder on another disk with `⟨offload FOLDER⟩`, or take fewer samples")
        }
        error => error,
    })
}

/// Says how much memory a text takes on its way through the model; refuses what this machine has no room for. `beside` is what
/// whoever observes holds.
pub(crate) fn admit(
    context: &Context,
    observed: &Layerwise<'_>,
    (text, samples): (&str, Samples),
    beside: u64,
    offload: Option<&Path>,
) -> Result<()> {
    let (all, needed, handed_on) = (observed.samples(), observed.memory() + beside, size(observed.handed_on()));
    let waiting = offload.map_or_else(String::new, |folder| format!(" and {handed_on} in {}", folder.display()));
    context.note(format!(
        "{text} in {} samples of {} tokens takes about {} of memory{waiting} on its way through the model, layer by layer",
        all.len(),
        all.first().copied().unwrap_or_default(),
        size(needed)
    ));
    let available = Machine::detect().available.filter(|available| *available < Bytes::new(needed as f64));
    let Some(available) = available else { return Ok(()) };
    let message = format!("{} of memory are needed, and {available} are available", size(needed));
    let fewer = "take fewer or shorter samples with `⟨samples⟩` and `⟨length⟩`";
    let hint = match (samples, offload) {
        (Samples::Own, _) => "end what else takes memory, or take a machine with more".to_owned(),
        (Samples::Asked, Some(_)) => fewer.to_owned(),
        (Samples::Asked, None) => format!(
            "{fewer}, or let what they hand from layer to layer, {handed_on}, wait on disk with `⟨offload FOLDER⟩`"
        ),
    };
    Err(Error::request(message, hint))
}
