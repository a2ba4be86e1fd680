//! A size to aim at: every portion of the model is tried in every format, what that costs is seen in what the model predicts, and the
//! formats that lose least within the size become a plan.

use std::path::PathBuf;

use roofline_core::{Dim, Plan};
use roofline_engine::{
    Engine, Error as Refusal, Settings,
    evaluation::{self, WindowScore, Windows},
};
use roofline_quant::{
    Imatrix, Layout,
    allocation::{Choice, Portion, Trial, best, least, plan},
    layout::size as bytes_of,
    observed::Replaced,
};

use super::Request;
use crate::{
    Context, Error, Result, imatrix,
    running::{Execution, Numbers, Opened},
    text::size,
};

/// Tokens that predictions are compared on, and of a window of them.
const TOKENS: usize = 2048;
const WINDOW: u64 = 256;
/// How often a size is aimed at anew, where headers take more than was left for them.
const TRIES: usize = 8;

/// How large the result may be.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// Bytes of all files.
    Bytes(u64),
    /// Bits of the tensors for each weight.
    Bits(f64),
}

/// What was found.
pub(super) struct Aimed {
    pub(super) plan: Plan,
    pub(super) imatrix: Option<Imatrix>,
    /// What a user should know.
    pub(super) notes: Vec<String>,
}

/// Choices, and the plan that they are.
struct Fitted {
    chosen: Vec<usize>,
    plan: Plan,
    /// Bytes of all files, and of the tensors alone.
    bytes: u64,
    tensors: u64,
}

/// What is tried on which model.
struct Search<'a> {
    context: &'a Context,
    trial: Trial<'a>,
    settings: Settings,
    original: Engine<'a>,
    windows: Windows<'a>,
}

impl Request {
    fn goal(&self) -> Result<Goal> {
        match (&self.target_size, self.target_bits) {
            (Some(_), Some(_)) => {
                let hint = "leave one of the two out";
                Err(Error::request("`⟨target_size⟩` and `⟨target_bits⟩` are two sizes to aim at", hint))
            }
            (Some(text), None) => {
                let hint = "a size with its unit, such as 5GB, 500MB or 4GiB";
                Ok(Goal::Bytes(bytes_of(text, "size to aim at", hint)?))
            }
            (None, Some(bits)) if bits.is_finite() && bits > 0.0 && bits <= 32.0 => Ok(Goal::Bits(bits)),
            (None, bits) => {
                let message = format!("{} bits for each weight are not possible", bits.unwrap_or_default());
                Err(Error::request(message, "`⟨target_bits⟩` is a number such as 4.3"))
            }
        }
    }

    /// The plan of the size that is aimed at.
    pub(super) fn aimed(&self, context: &Context, opened: &Opened, layout: Layout, to: PathBuf) -> Result<Aimed> {
        let goal = self.goal()?;
        let threads = self.threads()?;
        let model = self.model.as_deref().unwrap_or(&opened.checkpoint.folder);
        let text = imatrix::text_of(model, self.data.as_deref())?;
        let mut found = self.imatrix.as_deref().map(Imatrix::read).transpose()?;
        if found.is_none() && layout == Layout::Gguf {
            let (facts, samples) = imatrix::samples(opened, &text, None, None)?;
            found = Some(imatrix::of_samples(context, &opened.checkpoint, samples, &facts.name, threads)?);
        }
        let window = Dim::new("window", WINDOW.min(opened.model.max_context.map_or(WINDOW, Dim::get)))?;
        let (facts, samples) = imatrix::samples(opened, &text, Some(window), None)?;
        let count = TOKENS / window.get() as usize;
        // Spread over the text, so that none of it is the whole measure.
        let tokens: Vec<u32> =
            samples.iter().step_by(samples.len().div_ceil(count).max(1)).flatten().copied().collect();
        let bos = tokens.first().copied().filter(|first| samples.iter().all(|sample| sample[0] == *first));
        let length = window.get() as usize;
        let windows = Windows::new(&tokens, length, length, bos.filter(|_| samples.len() > 1))
            .ok_or_else(|| Error::request("there is no window", "give a longer text with `⟨data⟩`"))?;
        let executor = Execution::default().executor(context)?;
        let numbers = Numbers { threads: self.threads, ..Numbers::default() };
        let mut settings = numbers.settings(context, &opened.usual(), &executor)?;
        settings.all_logits = true;
        settings.chunk = Some(evaluation::chunk(opened.model.vocabulary.get() as usize, length));
        let original = opened.load(context, settings.clone())?;
        let trial = Trial {
            checkpoint: &opened.checkpoint,
            layout,
            method: self.method.parse()?,
            runtime: self.runtime.as_deref().map(str::parse).transpose()?,
            imatrix: found,
            target: to,
        };
        let search = Search { context, trial, settings, original, windows };
        let (plan, told) = search.run(goal)?;
        let tokens = tokens.len();
        let mut notes = vec![format!("{told}, measured on {tokens} tokens of {}", facts.name)];
        if self.imatrix.is_none() && search.trial.imatrix.is_some() {
            notes.push(format!(
                "errors are weighed by an importance matrix of {}: `⟨roofline imatrix⟩` writes the same for another run of \
                 this plan",
                facts.name
            ));
        }
        Ok(Aimed { plan, imatrix: search.trial.imatrix, notes })
    }
}

impl Search<'_> {
    /// The best plan, and what it costs in words.
    fn run(&self, goal: Goal) -> Result<(Plan, String)> {
        let portions = self.trial.portions()?;
        let mut offers = Vec::new();
        for (at, portion) in portions.iter().enumerate() {
            self.told(at, portions.len(), &format!("formats of {portion}"))?;
            offers.push(self.trial.offers(portion)?);
        }
        let all: usize = offers.iter().map(Vec::len).sum();
        let mut choices = Vec::new();
        for (portion, offers) in portions.iter().zip(&offers) {
            let mut own = Vec::new();
            for (format, bytes) in offers {
                let done = choices.iter().map(Vec::len).sum::<usize>() + own.len();
                self.told(done, all, &format!("{portion} as {format}"))?;
                let loss = self.divergence(&self.trial.replaced(portion, format)?)?;
                own.push(Choice { bytes: *bytes, loss });
            }
            choices.push(own);
        }
        let Fitted { chosen, plan, bytes, tensors } = self.fitted(goal, &portions, &offers, &choices)?;
        let mut replaced = Replaced::new();
        for ((portion, own), at) in portions.iter().zip(&offers).zip(chosen) {
            replaced.extend(self.trial.replaced(portion, own[at].0)?);
        }
        let divergence = self.divergence(&replaced)?;
        self.context.watcher().ends();
        let bits = 8.0 * tensors as f64 / self.trial.weights()?.max(1) as f64;
        let told = format!(
            "{plan} takes {bytes} B, {bits:.3} bits for each weight, and its predictions diverge by {divergence:.5} nats"
        );
        Ok((plan, told))
    }

    /// The best choices that fit.
    fn fitted(
        &self,
        goal: Goal,
        portions: &[Portion],
        offers: &[Vec<(&'static str, u64)>],
        choices: &[Vec<Choice>],
    ) -> Result<Fitted> {
        let composed = |chosen: Vec<usize>| -> Result<Fitted> {
            let formats = portions.iter().zip(offers).zip(&chosen).map(|((portion, own), at)| (portion, own[*at].0));
            let plan = plan(&formats.collect::<Vec<_>>())?;
            let (bytes, tensors) = self.trial.bytes(&plan)?;
            Ok(Fitted { chosen, plan, bytes, tensors })
        };
        let weights = self.trial.weights()?;
        let limit = match goal {
            Goal::Bytes(bytes) => bytes,
            Goal::Bits(bits) => (bits * weights as f64 / 8.0).floor() as u64,
        };
        let counted = |made: &Fitted| if matches!(goal, Goal::Bytes(_)) { made.bytes } else { made.tensors };
        let smallest = best(choices, least(choices)).unwrap_or_default();
        let smallest = composed(smallest)?;
        if counted(&smallest) > limit {
            let least = counted(&smallest);
            let words = match goal {
                Goal::Bytes(_) => format!("{least} B ({})", size(least)),
                Goal::Bits(_) => format!("{:.3} bits for each weight", 8.0 * least as f64 / weights.max(1) as f64),
            };
            let message = format!("{} as {} takes {words} at least", self.original.model.name, self.trial.layout);
            return Err(Error::request(message, "aim at more, or take another layout"));
        }
        // What is not chosen: norms, headers, a tokenizer.
        let mut rest = counted(&smallest).saturating_sub(least(choices));
        for _ in 0..TRIES {
            let Some(chosen) = limit.checked_sub(rest).and_then(|budget| best(choices, budget)) else { break };
            let made = composed(chosen)?;
            let over = counted(&made).saturating_sub(limit);
            if over == 0 {
                return Ok(made);
            }
            rest += over;
        }
        Ok(smallest)
    }

    fn told(&self, done: usize, all: usize, words: &str) -> Result<()> {
        let watcher = self.context.watcher();
        watcher.starts(done, all, words);
        if watcher.cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// How far predictions are from the model's own, in nats for each token, with other numbers in the place of some weights.
    fn divergence(&self, replaced: &Replaced) -> Result<f64> {
        if replaced.is_empty() {
            return Ok(0.0);
        }
        let watcher = self.context.watcher();
        let mut stop = |_, _| if watcher.cancelled() { Err(Refusal::Stopped) } else { Ok(()) };
        let changed = Engine::load_replacing(self.trial.checkpoint, self.settings.clone(), replaced, &mut stop)?;
        let (mut divergence, mut tokens) = (0.0, 0);
        let todo = 0..self.windows.count();
        evaluation::evaluate(&changed, Some(&self.original), &self.windows, todo, 0, &mut |score: WindowScore| {
            divergence += score.against.map_or(0.0, |against| against.kl);
            tokens += score.tokens;
            Ok::<(), Error>(())
        })?;
        Ok(divergence / tokens.max(1) as f64)
    }
}
