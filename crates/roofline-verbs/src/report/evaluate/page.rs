//! The evaluation as one HTML file that needs nothing else: what it comes to, pictures of where quality is lost, then the
//! tables, folded.

use super::{change, facts, four, lost, plans, within};
use crate::{
    evaluate::{Answer, Evaluated, WeightError, pictures},
    report::{Lead, Section, Tone, html},
};

pub(super) fn page(told: &Answer) -> String {
    let mut sections = vec![Section::Heading(told.heading())];
    sections.extend(lead(&told.evaluated));
    sections.push(Section::Facts(told.all_facts()));
    sections.extend(pictures::plans(told).map(|picture| Section::Picture(Box::new(picture))));
    if !told.plans.is_empty() {
        sections.push(Section::Table(plans(&told.plans)));
    }
    sections.extend(pictures::pictures(&told.evaluated).into_iter().map(|picture| Section::Picture(Box::new(picture))));
    if !told.evaluated.worst.is_empty() {
        sections.push(Section::Heading("The tokens that are predicted most differently".to_owned()));
        sections.push(Section::Table(lost::tokens(&told.evaluated)));
    }
    for one in &told.plans {
        let name =
            format!("{} by {}", one.plan.as_deref().unwrap_or_default(), one.method.as_deref().unwrap_or_default());
        let mut inner = vec![Section::Facts(facts(one))];
        inner.extend(pictures::pictures(one).into_iter().map(|picture| Section::Picture(Box::new(picture))));
        sections.push(Section::Folded(name, inner));
    }
    if !told.evaluated.weights.is_empty() {
        let weights = lost::weights(&told.evaluated.weights, usize::MAX);
        sections.push(Section::Folded("Every weight".to_owned(), vec![Section::Table(weights)]));
    }
    if !told.evaluated.positions.is_empty() {
        let positions = lost::positions(&told.evaluated);
        sections.push(Section::Folded("Every position".to_owned(), vec![Section::Table(positions)]));
    }
    html(&told.heading(), &sections)
}

/// What it comes to; none where there is nothing to hold it against.
fn lead(told: &Evaluated) -> Option<Section> {
    let ratio = told.ratio?;
    let (word, tone) = match (ratio, told.ratio_low) {
        (_, Some(low)) if low <= 1.0 => ("NO LOSS FOUND", Tone::Good),
        (ratio, _) if ratio < 1.01 => ("LITTLE LOST", Tone::Good),
        (ratio, _) if ratio < 1.05 => ("SOMETHING LOST", Tone::Fair),
        _ => ("MUCH LOST", Tone::Bad),
    };
    let sentence = format!(
        "{word}: the perplexity changes by {}, with {} nats between predictions, and {:.1} % of first tokens the same.",
        within(ratio, told.ratio_low, told.ratio_high, change),
        told.kl_divergence.map(four).unwrap_or_default(),
        100.0 * told.top1_agreement.unwrap_or_default(),
    );
    let mut facts = vec![("verdict".to_owned(), sentence)];
    let worst = |one: &&WeightError| one.snr_db.unwrap_or(f64::INFINITY);
    if let Some(weight) =
        told.weights.iter().filter(|one| one.snr_db.is_some()).min_by(|one, other| worst(one).total_cmp(&worst(other)))
    {
        let text = format!(
            "`{}`, {} at {:.2} bits per weight",
            weight.name,
            lost::decibel(weight.snr_db),
            weight.bits_per_weight
        );
        facts.push(("worst weight".to_owned(), text));
    }
    Some(Section::Lead(Lead { word: word.to_owned(), tone, facts }))
}
