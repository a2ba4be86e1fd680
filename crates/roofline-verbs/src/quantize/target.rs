//! A size to aim at: every portion of the model is tried in every format, what that costs is seen in what the model predicts, and the
//! formats that lose least within the size become a plan.

mod measure;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use roofline_core::{Dim, Plan};
use roofline_quant::{
    Imatrix, Layout, Request as Order,
    allocation::{Fitted, Goal, Trial},
    layout::size as bytes_of,
    observed::Replaced,
};

use self::measure::Measure;
use super::{Request, by_data::SAMPLES};
use crate::{Context, Error, Result, imatrix, observed::Samples, running::Opened, text::size};

/// Tokens that predictions are compared on, and of a window of them.
const TOKENS: usize = 2048;
const WINDOW: u64 = 256;

/// What was found.
pub(super) struct Aimed {
    pub(super) plan: Plan,
    pub(super) imatrix: Option<Imatrix>,
    /// What a user should know.
    pub(super) notes: Vec<String>,
}

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

    /// The plan of the size that is aimed at.
    pub(super) fn aimed(&self, context: &Context, opened: &Opened, layout: Layout, to: PathBuf) -> Result<Aimed> {
        let goal = self.goal()?;
        let threads = self.threads()?;
        let data = self.data.as_deref();
        let mut found = self.imatrix.as_deref().map(Imatrix::read).transpose()?;
        if found.is_none() && layout == Layout::Gguf {
            let most = Dim::new("samples", SAMPLES.into())?;
            let (cut, samples) = imatrix::samples(context, opened, data, (Samples::Own, None), Some(most))?;
            found = Some(imatrix::of_samples(context, &opened.checkpoint, (samples, &cut), threads, None)?);
        }
        let window = WINDOW.min(opened.model.max_context.map_or(WINDOW, Dim::get));
        let (cut, all) = imatrix::samples(context, opened, data, (Samples::Own, Some(window)), None)?;
        let count = TOKENS / window as usize;
        // Spread over the text, so that none of it is the whole measure.
        let samples: Vec<Vec<u32>> = all.iter().step_by(all.len().div_ceil(count).max(1)).cloned().collect();
        let tokens = samples.iter().map(Vec::len).sum::<usize>();
        let order = Order {
            method: self.method.parse()?,
            runtime: self.runtime.as_deref().map(str::parse).transpose()?,
            imatrix: found.clone(),
            threads,
            // What is tried replaces it.
            ..Order::new(Plan::sixteen(), layout, to)
        };
        let trial = Trial::new(&opened.checkpoint, order)?;
        trial.reachable(goal)?;
        let measure = Measure::open(context, opened, samples, self.threads)?;
        let mut search = Search { context, trial, measure };
        let (plan, told) = search.run(goal)?;
        let name = &cut.facts.name;
        let mut notes = vec![format!("{told}, measured on {tokens} tokens of {name}")];
        if self.imatrix.is_none() && found.is_some() {
            notes.push(format!(
                "errors are weighed by an importance matrix of {name}: `⟨roofline imatrix⟩` with `⟨samples {SAMPLES}⟩` writes \
                 the same for another run of this plan"
            ));
        }
        notes.extend(cut.warnings);
        Ok(Aimed { plan, imatrix: found, notes })
    }
}

impl Search<'_> {
    /// The best plan, and what it costs in words.
    fn run(&mut self, goal: Goal) -> Result<(Plan, String)> {
        if let Some(memory) = self.measure.memory() {
            // In the end all that was chosen is in place, as numbers and as kernels read them, beside what it was made of.
            let memory = size(memory + 8 * self.trial.weights());
            self.context.note(format!("formats are tried with the model in memory, which takes about {memory} of it"));
        }
        let portions = self.trial.portions().to_vec();
        let (mut offers, mut losses) = (Vec::new(), Vec::new());
        for (at, portion) in portions.iter().enumerate() {
            self.told(at, portions.len(), &format!("formats of {portion}"))?;
            let own = self.trial.offers(at)?;
            let mut lost = Vec::with_capacity(own.len());
            for offer in &own {
                self.told(at, portions.len(), &format!("{portion} as {}", offer.format))?;
                let replaced = self.trial.replaced(at, offer.format)?;
                lost.push(self.measure.divergence(self.context, &replaced)?);
            }
            offers.push(own);
            losses.push(lost);
        }
        let Fitted { chosen, plan, bytes, tensors } = self.trial.fitted(goal, &offers, &losses)?;
        let mut replaced = Replaced::new();
        for (at, (own, chosen)) in offers.iter().zip(chosen).enumerate() {
            replaced.extend(self.trial.replaced(at, own[chosen].format)?);
        }
        let divergence = self.measure.divergence(self.context, &replaced)?;
        self.context.watcher().ends();
        let bits = 8.0 * tensors as f64 / self.trial.weights().max(1) as f64;
        let told = format!(
            "{plan} takes {bytes} B, {bits:.3} bits for each weight, and its predictions diverge by {divergence:.5} nats"
        );
        Ok((plan, told))
    }

    fn told(&self, done: usize, all: usize, words: &str) -> Result<()> {
        let watcher = self.context.watcher();
        watcher.starts(done, all, words);
        if watcher.cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
