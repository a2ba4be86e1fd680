//! What formats cost, seen in what a model predicts.

use roofline_engine::{
    Engine, Error as Refusal, Settings, Substitution,
    evaluation::{self, WindowScore, Windows},
};
use roofline_quant::observed::Replaced;

use crate::{
    Context, Error, Result,
    running::{Execution, Numbers, Opened},
};

/// A model that other numbers are put into.
pub(super) enum Measure<'a> {
    /// On a processor, which holds the model once and runs what differs.
    Processor(Box<Substitution<'a>>),
    /// On a GPU, which holds the model twice: one of them is loaded anew for every try.
    Gpu { opened: &'a Opened, settings: Box<Settings>, original: Box<Engine<'a>>, samples: Vec<Vec<u32>> },
}

impl<'a> Measure<'a> {
    /// Loads a model that is to predict samples of one length.
    pub(super) fn open(
        context: &Context,
        opened: &'a Opened,
        samples: Vec<Vec<u32>>,
        threads: Option<u16>,
    ) -> Result<Self> {
        let executor = Execution::default().executor(context)?;
        let numbers = Numbers { threads, ..Numbers::default() };
        let mut settings = numbers.settings(context, &opened.usual(), &executor)?;
        if !executor.is_gpu() {
            return Ok(Self::Processor(Box::new(Substitution::new(&opened.checkpoint, samples, &settings)?)));
        }
        let length = samples.first().map_or(1, Vec::len);
        settings.all_logits = true;
        settings.chunk = Some(evaluation::chunk(opened.model.vocabulary.get() as usize, length));
        let original = Box::new(opened.load(context, settings.clone())?);
        Ok(Self::Gpu { opened, settings: Box::new(settings), original, samples })
    }

    /// Bytes of memory that it holds on this machine, and those that a try takes beyond them, beside the numbers that are tried;
    /// none where a GPU holds them.
    pub(super) fn memory(&self) -> Option<(u64, u64)> {
        match self {
            Self::Processor(model) => Some((model.memory(), model.transient())),
            Self::Gpu { .. } => None,
        }
    }

    /// How far predictions are from the model's own, in nats for each token, with other numbers in the place of some weights.
    pub(super) fn divergence(&mut self, context: &Context, replaced: &Replaced) -> Result<f64> {
        let (opened, settings, original, samples) = match self {
            Self::Processor(model) => return Ok(model.divergence(replaced)?),
            Self::Gpu { .. } if replaced.is_empty() => return Ok(0.0),
            Self::Gpu { opened, settings, original, samples } => (opened, settings, original, samples),
        };
        let watcher = context.watcher();
        let mut stop = |_, _| if watcher.cancelled() { Err(Refusal::Stopped) } else { Ok(()) };
        let changed = Engine::load_replacing(&opened.checkpoint, (**settings).clone(), replaced, &mut stop)?;
        let (tokens, length) = (samples.concat(), samples.first().map_or(1, Vec::len));
        let windows = Windows::new(&tokens, length, length, None)
            .ok_or_else(|| Error::request("a sample has one token, which predicts none", "give a longer text"))?;
        let (mut divergence, mut count) = (0.0, 0);
        evaluation::evaluate(&changed, Some(original), &windows, 0..windows.count(), 0, &mut |score: WindowScore| {
            divergence += score.against.map_or(0.0, |against| against.kl);
            count += score.tokens;
            Ok::<(), Error>(())
        })?;
        Ok(divergence / count.max(1) as f64)
    }
}
