//! Methods that go by data: a text, cut into samples, runs through the model while it is quantized.

use std::sync::Arc;

use roofline_core::{Model, units::Bytes};
use roofline_engine::{Error as Refusal, Layerwise, NamedFile, Settings, Tokenizer, samples};
use roofline_quant::{
    Checkpoint, Request as Order,
    data::Text,
    observed::Observed,
    quantize::{Report, memory_of, quantize_observed},
    stream::Progress,
};
use roofline_run::cpu::machine::Machine;

use super::Request;
use crate::{
    Context, Error, Result, demo,
    evaluate::text::{Source, stranger},
    text::size,
};

/// Samples that are taken, where nobody says.
const SAMPLES: u32 = 128;
/// Tokens of a sample, where nobody says and the model has room for them.
const LENGTH: u32 = 512;

/// Quantizes by a method that goes by data.
pub(super) fn run(
    context: &Context,
    request: &Request,
    checkpoint: &Checkpoint,
    order: &mut Order,
    watch: &dyn Progress,
) -> Result<Report> {
    let (text, pieces) = text(context, request, checkpoint)?;
    let watcher = context.shared_watcher();
    let settings = Settings {
        threads: order.threads,
        stop: Arc::new(move || if watcher.cancelled() { Err(Refusal::Stopped) } else { Ok(()) }),
        ..Settings::for_checkpoint(checkpoint)
    };
    let mut observed = Layerwise::new(checkpoint, pieces, &settings)?;
    let mut waiting = String::new();
    if let Some(folder) = &request.offload {
        if !folder.is_dir() {
            let message = format!("{} is no folder", folder.display());
            return Err(Error::request(message, "name one that is there with `⟨offload FOLDER⟩`"));
        }
        waiting = format!(" and {} in {}", size(observed.handed_on()), folder.display());
        observed = observed.offloaded(folder)?;
    }
    order.data = Some(text.clone());
    let needed = observed.memory() + memory_of(checkpoint, order)?;
    let Text { name, samples, length, .. } = &text;
    context.note(format!(
        "{} runs through the model in {samples} samples of {length} tokens, layer by layer, with about {} of memory{waiting}",
        name,
        size(needed)
    ));
    if let Some(available) = Machine::detect().available.filter(|available| *available < Bytes::new(needed as f64)) {
        let message = format!("{} of memory are needed, and {available} are available", size(needed));
        let fewer = "take fewer or shorter samples with `⟨samples⟩` and `⟨length⟩`";
        let hint = match &request.offload {
            Some(_) => fewer.to_owned(),
            None => format!(
                "{fewer}, or let what they hand from layer to layer, {}, wait on disk with `⟨offload FOLDER⟩`",
                size(observed.handed_on())
            ),
        };
        return Err(Error::request(message, hint));
    }
    Ok(quantize_observed(checkpoint, order, &mut observed, watch)?)
}

/// The text, cut into samples of tokens.
fn text(context: &Context, request: &Request, checkpoint: &Checkpoint) -> Result<(Text, Vec<Vec<u32>>)> {
    let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
    let mut files: Vec<NamedFile> = checkpoint.tokenizer_files()?;
    files.push(("config.json".to_owned(), checkpoint.config.to_string().into_bytes()));
    let vocabulary = model.vocabulary.get() as usize;
    let Some(tokenizer) = Tokenizer::from_files(&files)?.map(|own| own.for_vocabulary(vocabulary)).transpose()? else {
        let message = format!("{} has no tokenizer: there is no tokenizer.json", model.name);
        return Err(Error::request(message, "put the model's tokenizer.json beside its weights"));
    };
    let source = if let Some(path) = &request.data {
        Source::File(path.clone())
    } else {
        context.warn(format!(
            "the method `{}` goes by the demo's own text, {} of English: `⟨data FILE⟩` names one of what the model is for",
            request.method,
            size(demo::text().len() as u64)
        ));
        Source::Own(demo::text())
    };
    let longest = model.max_context.map_or(u64::MAX, roofline_core::Dim::get);
    let length = request.length.unwrap_or_else(|| u64::from(LENGTH).min(longest) as u32) as usize;
    if length as u64 > longest {
        let message =
            format!("samples of {length} tokens are longer than the {longest} that {} was made for", model.name);
        return Err(Error::request(message, format!("`⟨length⟩` is {longest} at most")));
    }
    let (tokens, facts) = source.read(&tokenizer, None, None)?;
    if let Some(why) = stranger(&tokens, &facts) {
        context.warn(why);
    }
    let wanted = request.samples.unwrap_or(SAMPLES) as usize;
    let pieces = samples(&tokens, tokenizer.beginning()?, wanted, length, request.seed);
    if pieces.is_empty() {
        let message = format!("{} has {} tokens, and a sample {length}", facts.name, tokens.len());
        let hint = "give a longer text with `⟨data⟩`, or shorter samples with `⟨length⟩`";
        return Err(Error::request(message, hint));
    }
    if request.samples.is_some() && pieces.len() < wanted {
        context.warn(format!("{} has tokens for {} samples of the {wanted} asked for", facts.name, pieces.len()));
    }
    let text = Text { name: facts.name, hash: facts.hash, samples: pieces.len(), length, seed: request.seed };
    Ok((text, pieces))
}
