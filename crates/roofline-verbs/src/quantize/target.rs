//! A size to aim at: every portion of the model is tried in every format, what that costs is seen in what the model predicts, and the
//! formats that lose least within the size become a plan.

mod measure;
#[cfg(test)]
mod tests;

use roofline_core::{Dim, Plan, units::Bytes};
use roofline_quant::{
    Layout, Request as Order,
    allocation::{Fitted, Goal, Trial},
    observed::Replaced,
};
use roofline_run::cpu::machine::Machine;

use self::measure::{Ground, Measure, Needs};
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
            (Some(size), None) => Ok(Goal::Bytes(size.bytes())),
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
            Trial::admits(&opened.checkpoint, &order)?;
            let most = Dim::new("samples", SAMPLES.into())?;
            let (cut, samples) = imatrix::samples(context, opened, data, (Samples::Own, None), Some(most))?;
            order.imatrix =
                Some(imatrix::of_samples(context, &opened.checkpoint, (samples, &cut), order.threads, None)?);
        }
        let window = WINDOW.min(opened.model.max_context.map_or(WINDOW, Dim::get));
        let (cut, all) = imatrix::samples(context, opened, data, (Samples::Own, Some(window)), None)?;
        let count = TOKENS / window as usize;
        // Spread over the text, so that no part of it is the whole measure.
        let taken = count.min(all.len());
        let samples: Vec<Vec<u32>> = (0..taken).map(|at| all[at * all.len() / taken].clone()).collect();
        let tokens = samples.iter().map(Vec::len).sum::<usize>();
        let trial = Trial::new(&opened.checkpoint, order.clone())?;
        trial.reachable(goal)?;
        let ground = Ground::of(context, opened, self.threads)?;
        let together = admit(context, &trial, &ground.needs(opened, &samples))?;
        let measure = Measure::open(context, opened, samples, ground)?;
        let mut search = Search { context, trial, measure };
        let (plan, told) = search.run(goal, together)?;
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
    /// The best plan, and what it costs in words: that of all at once, where there is room for that.
    fn run(&mut self, goal: Goal, together: bool) -> Result<(Plan, String)> {
        let portions = self.trial.portions().to_vec();
        let mut rated = Vec::new();
        for (at, portion) in portions.iter().enumerate() {
            self.told(at, portions.len(), &format!("formats of {portion}"))?;
            rated.push(self.trial.rated(at)?);
        }
        let (mut offers, mut losses) = (Vec::new(), Vec::new());
        for (at, (portion, own)) in portions.iter().zip(self.trial.worthwhile(goal, &rated)).enumerate() {
            let (mut tried, mut lost) = (Vec::with_capacity(own.len()), Vec::new());
            for offer in own {
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

/// Says how much memory formats are tried in; refuses what this machine has no room for, before the model is loaded. Whether there is
/// room for all that is chosen at once.
fn admit(context: &Context, trial: &Trial<'_>, needs: &Needs) -> Result<bool> {
    // A portion at a time is tried, and in the end all of what was chosen.
    let [one, all] = [trial.largest(), trial.open()].map(|weights| needs.held + needs.transient + needs.each * weights);
    let available = Machine::detect().available;
    let fits = |bytes: u64| available.is_none_or(|available| available >= Bytes::new(bytes as f64));
    let needed = size(if fits(all) { all } else { one });
    context.note(format!("formats are tried with the model in memory, which takes about {needed} of it"));
    match available {
        Some(available) if !fits(one) => Err(Error::request(
            format!("{needed} of memory are needed to try formats, and {available} are available"),
            "end what else takes memory, or say what becomes of the weights with `⟨plan⟩`",
        )),
        _ => Ok(fits(all)),
    }
}
