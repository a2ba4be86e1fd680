//! An evaluation.

mod lost;
mod page;

use super::{Align, Section, Table, keep};
use crate::{
    Context, Result,
    evaluate::{Answer, Evaluated, Request, evaluate},
    text::number,
};

/// Four significant digits: perplexities of formats differ in the third.
pub(crate) fn four(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        size if size >= 1.0 => format!("{value:.3}"),
        size if size >= 0.001 => format!("{value:.5}"),
        _ => number(value),
    }
}

/// A figure with its interval.
pub(crate) fn within(value: f64, low: Option<f64>, high: Option<f64>, show: impl Fn(f64) -> String) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("{} ({} to {})", show(value), show(low), show(high)),
        _ => show(value),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// How much a ratio is above one.
fn change(ratio: f64) -> String {
    format!("{:+.2} %", 100.0 * (ratio - 1.0))
}

/// The figures of one model.
fn facts(told: &Evaluated) -> Vec<(String, String)> {
    let mut facts = vec![("perplexity", within(told.perplexity, told.perplexity_low, told.perplexity_high, four))];
    if let Some(value) = told.llama_cpp_perplexity {
        let uncertainty = told.llama_cpp_uncertainty.map(|one| format!(" +/- {}", four(one))).unwrap_or_default();
        facts.push(("as llama.cpp counts", format!("{}{uncertainty}", four(value))));
    }
    if let Some(ratio) = told.ratio {
        facts.push(("change", within(ratio, told.ratio_low, told.ratio_high, change)));
    }
    if let Some(kl) = told.kl_divergence {
        let mut text = within(kl, told.kl_divergence_low, told.kl_divergence_high, four) + " nats per token";
        if let (Some(p99), Some(max)) = (told.kl_divergence_p99, told.kl_divergence_max) {
            text += &format!("; 1 % above {}, at most {}", four(p99), four(max));
        }
        facts.push(("KL divergence", text));
    }
    if let Some(share) = told.top1_agreement {
        facts.push(("same first token", within(share, told.top1_agreement_low, told.top1_agreement_high, percent)));
    }
    facts.push(("weights", format!("{}, {}", told.format, told.weights_bytes)));
    facts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

impl Answer {
    /// Every weight and position, or the worst.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        let mut sections = vec![Section::Heading(self.heading()), Section::Facts(self.all_facts())];
        if !self.plans.is_empty() {
            sections.push(Section::Table(plans(&self.plans)));
        }
        sections.extend(lost::sections(&self.evaluated, all));
        sections.extend(self.report.iter().map(|path| Section::Line(format!("Page: {}", path.display()))));
        sections
    }

    /// As one HTML file.
    pub fn page(&self) -> String {
        page::page(self)
    }

    /// The evaluation, with its page written where it goes.
    pub fn with_page(context: &Context, request: &Request) -> Result<Self> {
        let mut answer = evaluate(context, request)?;
        let page = if answer.report.is_some() { answer.page() } else { String::new() };
        keep(context, &mut answer.report, &mut answer.notes, &page);
        Ok(answer)
    }

    fn heading(&self) -> String {
        match &self.original {
            Some(original) => format!("{} against {}, on {}", self.evaluated.model, original.model, self.text.name),
            None => format!("{} on {}", self.evaluated.model, self.text.name),
        }
    }

    fn all_facts(&self) -> Vec<(String, String)> {
        let mut all = facts(&self.evaluated);
        if let Some(original) = &self.original {
            let text = within(original.perplexity, original.perplexity_low, original.perplexity_high, four);
            all.insert(1, ("of the original".to_owned(), text));
        }
        all.push(("text".to_owned(), self.text_words()));
        let numbers = format!(
            "{} between kernels, {} cached, {}, {} s",
            self.evaluated.values,
            self.evaluated.kv,
            self.backend.workers(self.evaluated.threads),
            number(self.evaluated.seconds)
        );
        all.push(("computed with".to_owned(), numbers));
        all
    }

    fn text_words(&self) -> String {
        let Answer { text, window, stride, windows, .. } = self;
        format!(
            "{} of {} tokens scored, in {windows} windows of {window}, {stride} apart{}",
            self.evaluated.tokens,
            text.tokens,
            if self.bos.is_some() { ", each begun by the BOS token" } else { "" }
        )
    }
}

/// What plans cost.
fn plans(all: &[Evaluated]) -> Table {
    let mut table = Table::default()
        .column("plan", Align::Left, 0)
        .column("method", Align::Left, 1)
        .column("layout", Align::Left, 3)
        .column("size", Align::Right, 2)
        .column("perplexity", Align::Right, 0)
        .column("change", Align::Right, 0)
        .column("interval", Align::Right, 2)
        .column("KL", Align::Right, 0)
        .column("same first", Align::Right, 1);
    for one in all {
        let layout = match one.stored {
            Some(false) => "none: through its codes to 16 bit".to_owned(),
            _ => one.layout.clone().unwrap_or_default(),
        };
        table.row([
            one.plan.clone().unwrap_or_default().into(),
            one.method.clone().unwrap_or_default().into(),
            layout.into(),
            one.weights_bytes.to_string().into(),
            four(one.perplexity).into(),
            one.ratio.map(change).unwrap_or_default().into(),
            one.ratio_low
                .zip(one.ratio_high)
                .map_or_else(String::new, |(low, high)| format!("{} to {}", change(low), change(high)))
                .into(),
            one.kl_divergence.map(four).unwrap_or_default().into(),
            one.top1_agreement.map(percent).unwrap_or_default().into(),
        ]);
    }
    table
}
