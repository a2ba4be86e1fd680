//! Methods that go by data: a text, cut into samples, runs through the model while it is quantized.

use roofline_core::{Model, hash::Fnv1a};
use roofline_engine::{Layerwise, samples};
use roofline_quant::{
    Checkpoint, Request as Order,
    data::Text,
    observed::Observed,
    quantize::{Report, memory_of, quantize_observed},
    stream::Progress,
};

use super::Request;
use crate::{
    Context, Result,
    observed::{Beginning, Cut, Samples, admit, layerwise},
};

/// Samples that are taken, where nobody says.
pub(super) const SAMPLES: u32 = 128;

/// Samples of a text, before they run through the model.
pub(super) struct Begun<'a> {
    observed: Layerwise<'a>,
    /// Bytes of memory that the run takes at most.
    pub(super) memory: u64,
    /// What is wrong with the text.
    pub(super) warnings: Vec<String>,
}

/// Takes samples of a text, and tells the order of them: everything that is refused of them is refused here.
pub(super) fn begin<'a>(
    context: &Context,
    request: &Request,
    checkpoint: &'a Checkpoint,
    order: &mut Order,
) -> Result<Begun<'a>> {
    let Taken { text, pieces, warnings } = Taken::of(context, request, checkpoint)?;
    let offload = request.offload.as_deref();
    let observed = layerwise(context, checkpoint, pieces, order.threads, offload)?;
    let name = text.name.clone();
    order.data = Some(text);
    let beside = memory_of(checkpoint, order)?;
    admit(context, &observed, (&name, Samples::Asked), beside, offload)?;
    let memory = observed.memory() + beside;
    Ok(Begun { observed, memory, warnings })
}

/// Quantizes by a method that goes by data.
pub(super) fn run(
    context: &Context,
    request: &Request,
    checkpoint: &Checkpoint,
    order: &mut Order,
    watch: &dyn Progress,
) -> Result<Report> {
    let Begun { mut observed, warnings, .. } = begin(context, request, checkpoint, order)?;
    let mut report = quantize_observed(checkpoint, order, &mut observed, watch)?;
    report.notes.extend(warnings);
    Ok(report)
}

/// A text, cut into samples of tokens.
struct Taken {
    text: Text,
    pieces: Vec<Vec<u32>>,
    warnings: Vec<String>,
}

impl Taken {
    fn of(context: &Context, request: &Request, checkpoint: &Checkpoint) -> Result<Self> {
        let model = Model::from_config(&checkpoint.config.to_string(), &checkpoint.name())?;
        let length = (Samples::Asked, request.length.map(u64::from));
        let data = request.data.as_deref();
        let cut = Cut::of(context, (checkpoint, &model), data, length, Beginning::OfSamples)?;
        let wanted = request.samples.unwrap_or(SAMPLES) as usize;
        let pieces = cut.some(samples(&cut.tokens, cut.first, wanted, cut.length, request.seed))?;
        let Cut { facts, length, mut warnings, .. } = cut;
        if request.samples.is_some() && pieces.len() < wanted {
            let few = format!("{} has tokens for {} samples of the {wanted} asked for", facts.name, pieces.len());
            context.warn(few.clone());
            warnings.push(few);
        }
        let mut tokens = Fnv1a::default();
        pieces.iter().flatten().for_each(|token| tokens.add(&token.to_le_bytes()));
        let tokens = format!("{:016x}", tokens.value());
        let (name, hash, seed) = (facts.name, facts.hash, request.seed);
        let text = Text { name, hash, tokens, samples: pieces.len(), length, seed };
        Ok(Self { text, pieces, warnings })
    }
}
