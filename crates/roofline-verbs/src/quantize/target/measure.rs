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

/// Where a model is going to run, before it is loaded.
pub(super) struct Ground {
    settings: Settings,
    on_gpu: bool,
}

/// Bytes of this machine's memory.
pub(super) struct Needs {
    /// What is held all the time.
    pub(super) held: u64,
    /// What a try takes beside it, and beside the numbers that are tried.
    pub(super) transient: u64,
    /// What each number that is tried takes.
    pub(super) each: u64,
}

impl Ground {
    pub(super) fn of(context: &Context, opened: &Opened, threads: Option<u16>) -> Result<Self> {
        let executor = Execution::default().executor(context)?;
        let numbers = Numbers { threads, ..Numbers::default() };
        Ok(Self { settings: numbers.settings(context, &opened.usual(), &executor)?, on_gpu: executor.is_gpu() })
    }

    /// What samples take.
    pub(super) fn needs(&self, opened: &Opened, samples: &[Vec<u32>]) -> Needs {
        if self.on_gpu {
            return Needs { held: 0, transient: 0, each: 4 };
        }
        let (held, transient) = Substitution::needs(&opened.checkpoint, &opened.model, samples, self.settings.threads);
        // As a number, and as a kernel reads it.
        Needs { held, transient, each: 8 }
    }
}

impl<'a> Measure<'a> {
    /// Loads a model that is to predict samples of one length.
    pub(super) fn open(context: &Context, opened: &'a Opened, samples: Vec<Vec<u32>>, ground: Ground) -> Result<Self> {
        let Ground { mut settings, on_gpu } = ground;
        if !on_gpu {
            return Ok(Self::Processor(Box::new(Substitution::new(&opened.checkpoint, samples, &settings)?)));
        }
        let length = samples.first().map_or(1, Vec::len);
        settings.all_logits = true;
        settings.chunk = Some(evaluation::chunk(opened.model.vocabulary.get() as usize, length));
        let original = Box::new(opened.load(context, settings.clone())?);
        Ok(Self::Gpu { opened, settings: Box::new(settings), original, samples })
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
