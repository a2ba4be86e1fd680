//! A size to aim at: every portion of the model is tried in every format, what that costs is seen in what the model predicts, and the
//! formats that lose least within the size become a plan.

mod measure;
#[cfg(test)]
mod tests;

use roofline_core::{Dim, Plan, units::Bytes};
use roofline_quant::{
    Layout, Request as Order,
    allocation::{Fitted, Goal, Trial},
    layout::size as bytes_of,
    observed::Replaced,
};
use roofline_run::cpu::machine::Machine;

use self::measure::Measure;
use super::{Request, by_data::SAMPLES};
use crate::{Context, Error, Result, imatrix, observed::Samples, running::Opened, text::size};

/// Tokens that predictions are compared on, and of a window of them.
const TOKENS: usize = 2048;
const WINDOW: u64 = 256;

/// What is tried, and on which model.
struct Search<'a> {
    context: &'a Context,
    trial: Trial<'a>,
    measure: Measure<'a>,
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

    /// What was ordered, with the plan of the size that is aimed at, and what a user should know of it.
    pub(super) fn aimed(&self, context: &Context, opened: &Opened, order: Order) -> Result<(Order, Vec<String>)> {
        let goal = self.goal()?;
        let data = self.data.as_deref();
        let mut order = order;
        if order.imatrix.is_none() && order.layout == Layout::Gguf {
            // What is refused is refused before the text runs through the model.
            Trial::new(&opened.checkpoint, order.clone())?;
            let most = Dim::new("samples", SAMPLES.into())?;
            let (cut, samples) = imatrix::samples(context, opened, data, (Samples::Own, None), Some(most))?;
            order.imatrix =
                Some(imatrix::of_samples(context, &opened.checkpoint, (samples, &cut), order.threads, None)?);
        }
        let window = WINDOW.min(opened.model.max_context.map_or(WINDOW, Dim::get));
        let (cut, all) = imatrix::samples(context, opened, data, (Samples::Own, Some(window)), None)?;
        let count = TOKENS / window as usize;
        // Spread over the text, so that none of it is the whole measure.
        let samples: Vec<Vec<u32>> = all.iter().step_by(all.len().div_ceil(count).max(1)).cloned().collect();
        let tokens = samples.iter().map(Vec::len).sum::<usize>();
        let trial = Trial::new(&opened.checkpoint, order.clone())?;
        trial.reachable(goal)?;
        let measure = Measure::open(context, opened, samples, self.threads)?;
        let mut search = Search { context, trial, measure };
        let (plan, told) = search.run(goal)?;
        order.plan = plan;
        let name = &cut.facts.name;
        let mut notes = vec![format!("{told}, measured on {tokens} tokens of {name}")];
        if self.imatrix.is_none() && order.imatrix.is_some() {
            notes.push(format!(
                "errors are weighed by an importance matrix of {name}: `⟨roofline imatrix⟩` with `⟨samples {SAMPLES}⟩` writes \
                 the same for another run of this plan"
            ));
        }
        notes.extend(cut.warnings);
        Ok((order, notes))
    }
}

impl Search<'_> {
    /// The best plan, and what it costs in words.
    fn run(&mut self, goal: Goal) -> Result<(Plan, String)> {
        let together = self.admit()?;
        let portions = self.trial.portions().to_vec();
        let (mut offers, mut losses) = (Vec::new(), Vec::new());
        for (at, portion) in portions.iter().enumerate() {
            self.told(at, portions.len(), &format!("formats of {portion}"))?;
            let (mut own, mut lost) = (self.trial.offers(at)?, Vec::new());
            let mut tried = Vec::with_capacity(own.len());
            for offer in own.drain(..) {
                self.told(at, portions.len(), &format!("{portion} as {}", offer.format))?;
                if let Some(divergence) = self.tried(at, offer.format)? {
                    tried.push(offer);
                    lost.push(divergence);
                }
            }
            offers.push(tried);
            losses.push(lost);
        }
        let Fitted { chosen, plan, bytes, tensors } = self.trial.fitted(goal, &offers, &losses)?;
        let bits = 8.0 * tensors as f64 / self.trial.weights().max(1) as f64;
        let told = format!("{plan} takes {bytes} B, {bits:.3} bits for each weight");
        if !together {
            self.context.watcher().ends();
            let told =
                format!("{told}; what its parts cost was added up, because all of it at once has no room in memory");
            return Ok((plan, told));
        }
        let mut replaced = Replaced::new();
        for (at, (own, chosen)) in offers.iter().zip(chosen).enumerate() {
            replaced.extend(self.trial.replaced(at, own[chosen].format)?);
        }
        let divergence = self.measure.divergence(self.context, &replaced)?;
        self.context.watcher().ends();
        Ok((plan, format!("{told}, and its predictions diverge by {divergence:.5} nats")))
    }

    /// Says how much memory formats are tried in; refuses what this machine has no room for. Whether there is room for all that
    /// is chosen at once.
    fn admit(&self) -> Result<bool> {
        let Some((held, transient)) = self.measure.memory() else { return Ok(true) };
        // What is tried is there as numbers and as kernels read them, beside the model, which is there already: a portion at a
        // time, in the end all of it.
        let [one, all] = [self.trial.largest(), self.trial.open()].map(|weights| transient + 8 * weights);
        let available = Machine::detect().available;
        let fits = |bytes: u64| available.is_none_or(|available| available >= Bytes::new(bytes as f64));
        let needed = size(held + if fits(all) { all } else { one });
        self.context.note(format!("formats are tried with the model in memory, which takes about {needed} of it"));
        match available {
            Some(available) if !fits(one) => {
                let message = format!(
                    "{} of memory are needed beside the model to try a format, and {available} are available",
                    size(one)
                );
                Err(Error::request(
                    message,
                    "end what else takes memory, or say what becomes of the weights with `⟨plan⟩`",
                ))
            }
            _ => Ok(fits(all)),
        }
    }

    /// What a format costs a portion; none where it cannot hold its weights, or what they make of the text is no number.
    fn tried(&mut self, portion: usize, format: &str) -> Result<Option<f64>> {
        let replaced = match self.trial.replaced(portion, format) {
            Err(roofline_quant::Error::Weight { .. }) => return Ok(None),
            replaced => replaced?,
        };
        match self.measure.divergence(self.context, &replaced) {
            Err(Error::Engine(roofline_engine::Error::Logits { .. })) => Ok(None),
            divergence => divergence.map(|divergence| Some(divergence).filter(|divergence| divergence.is_finite())),
        }
    }

    fn told(&self, done: usize, all: usize, words: &str) -> Result<()> {
        let watcher = self.context.watcher();
        watcher.starts(done, all, words);
        if watcher.cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
