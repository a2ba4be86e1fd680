//! The answer for reading.

use crate::{
    pipeline::{Answer, Expected, Found, PredictedPlace, Quality, Recommended, Side, Step, StepState, Tone as Meant},
    report::{Align, Lead, Section, Table, Tone},
    text::{number, size},
};

impl Answer {
    /// All of it.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = vec![Section::Heading(self.heading())];
        sections.extend(self.failure());
        sections.extend(self.lead());
        sections.extend(self.found.recommendation.as_ref().map(recommended));
        sections.extend(self.sides());
        sections.extend(self.forecasts());
        sections.push(Section::Table(steps(&self.steps)));
        if !self.commands.is_empty() && self.error.is_none() {
            sections.push(Section::Paragraph("Each step alone:".to_owned()));
            sections.push(Section::Code(self.commands.clone()));
        }
        sections.extend(self.report.iter().map(|path| Section::Line(format!("Report: {}", path.display()))));
        sections
    }

    pub(super) fn heading(&self) -> String {
        let plan = self.found.recommendation.as_ref().map_or("no plan yet", |told| &told.precision);
        let what = if self.dry_run { "what would be done: " } else { "" };
        format!("{what}{} to {plan} for {}", self.model, self.device_name)
    }

    /// What went wrong, and how to go on.
    fn failure(&self) -> Vec<Section> {
        let Some(failed) = &self.error else { return Vec::new() };
        let what = if failed.is_cancelled { "STOPPED" } else { "FAILED" };
        let mut facts = vec![(failed.step.words().to_owned(), format!("{what}: {}", failed.message))];
        facts.extend(failed.hint.clone().map(|hint| ("hint".to_owned(), hint)));
        facts.push(("kept".to_owned(), format!("what was done before is in {}", self.folder.display())));
        vec![
            Section::Lead(Lead { word: what.to_owned(), tone: Tone::Bad, facts }),
            Section::Paragraph("To go on from there:".to_owned()),
            Section::Code(vec![failed.go_on.clone()]),
        ]
    }

    /// The verdict.
    fn lead(&self) -> Option<Section> {
        let verdict = self.verdict.as_ref()?;
        let tone = match verdict.tone {
            Meant::Good => Tone::Good,
            Meant::Fair => Tone::Fair,
            Meant::Bad => Tone::Bad,
        };
        let facts = vec![("verdict".to_owned(), format!("{}: {}.", verdict.word, verdict.sentence))];
        Some(Section::Lead(Lead { word: verdict.word.clone(), tone, facts }))
    }

    /// Both models beside each other, as measured here.
    fn sides(&self) -> Vec<Section> {
        let Found { before: Some(before), after, .. } = &self.found else { return Vec::new() };
        vec![Section::Table(sides(before, after.as_ref(), self.here_name.as_deref().unwrap_or("this machine")))]
    }

    fn forecasts(&self) -> Vec<Section> {
        let told = &self.found.predicted;
        let place = |place: &PredictedPlace| Section::Table(forecast(place));
        // One machine is told of once.
        let on = told.on.iter().filter(|_| self.elsewhere || told.here.is_none());
        on.chain(&told.here).map(place).collect()
    }
}

pub(super) fn recommended(told: &Recommended) -> Section {
    let mut facts = vec![("plan".to_owned(), told.precision.clone()), ("why".to_owned(), told.reason.clone())];
    if let Some(speedup) = told.predicted_speedup {
        let basis = told.basis.as_ref().map(|basis| format!(" ({basis} terms)")).unwrap_or_default();
        facts.push(("predicted".to_owned(), format!("{speedup:.2} times as fast as 16 bit{basis}")));
    }
    facts.extend(told.quality.clone().map(|quality| ("perplexity".to_owned(), quality)));
    Section::Facts(facts)
}

fn millis(micros: Option<f64>) -> String {
    micros.map_or_else(String::new, |time| format!("{} ms", number(time / 1e3)))
}

/// A row for each figure: before, after, and how they compare.
fn sides(before: &Side, after: Option<&Side>, here: &str) -> Table {
    let mut table = Table::default()
        .column(format!("measured on {here}"), Align::Left, 0)
        .column("before", Align::Right, 0)
        .column("after", Align::Right, 0);
    let mut row = |name: &str, of: &dyn Fn(&Side) -> String| {
        table.row([name.into(), of(before).into(), after.map_or_else(String::new, of).into()]);
    };
    row("weights", &|side| side.speed.format.clone());
    row("cache", &|side| side.speed.kv.clone());
    row("size of the weights", &|side| size(side.speed.weights_bytes));
    row("peak of memory", &|side| side.speed.peak_memory_bytes.map_or_else(String::new, size));
    row("first token", &|side| millis(Some(side.speed.ttft_us)));
    row("each further token", &|side| millis(side.speed.tpot_us));
    row("tokens per second", &|side| side.speed.tokens_per_s.map_or_else(String::new, number));
    row("tokens of a prompt per second", &|side| number(side.speed.prefill_tokens_per_s));
    let quality =
        |of: fn(&Quality) -> Option<String>| move |side: &Side| side.quality.as_ref().and_then(of).unwrap_or_default();
    row("perplexity", &quality(|told| Some(number(told.perplexity))));
    row(
        "its 95 % interval",
        &quality(|told| Some(format!("{} to {}", number(told.perplexity_low?), number(told.perplexity_high?)))),
    );
    row("KL divergence, nats", &quality(|told| told.kl_divergence.map(number)));
    row(
        "same most probable token",
        &quality(|told| told.top1_agreement.map(|share| format!("{:.1} %", 100.0 * share))),
    );
    table
}

pub(super) fn forecast(place: &PredictedPlace) -> Table {
    let mut table = Table::default()
        .column(format!("predicted on {} ({})", place.device_name, place.basis), Align::Left, 0)
        .column("before", Align::Right, 0)
        .column("after", Align::Right, 0);
    let mut row = |name: &str, of: &dyn Fn(&Expected) -> String| {
        table.row([name.into(), of(&place.before).into(), place.after.as_ref().map_or_else(String::new, of).into()]);
    };
    row("weights", &|told| told.precision.clone());
    row("memory", &|told| size(told.memory_bytes));
    row("first token", &|told| millis(Some(told.ttft_us)));
    row("each further token", &|told| millis(told.tpot_us));
    table
}

/// Seconds, to hundredths where they are few.
fn brief(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.2}") } else { format!("{seconds:.0}") }
}

pub(super) fn steps(steps: &[Step]) -> Table {
    let mut table = Table::default()
        .column("step", Align::Left, 0)
        .column("state", Align::Left, 0)
        .column("seconds", Align::Right, 1)
        .column("what", Align::Left, 0);
    for step in steps {
        let about = if step.state == StepState::Planned { "about " } else { "" };
        table.row([
            step.name.words().into(),
            step.state.name().into(),
            step.seconds.map_or_else(String::new, |seconds| format!("{about}{}", brief(seconds))).into(),
            step.words.as_str().into(),
        ]);
    }
    table.without_empty_columns()
}

/// Plans that were not chosen.
pub(super) fn others(told: &Recommended) -> Table {
    let mut table = Table::default()
        .column("plan", Align::Left, 0)
        .column("speed-up", Align::Right, 0)
        .column("memory", Align::Right, 0)
        .column("perplexity", Align::Left, 0)
        .column("why not", Align::Left, 0);
    for other in &told.alternatives {
        table.row([
            other.precision.as_str().into(),
            other.predicted_speedup.map_or_else(String::new, |speedup| format!("{speedup:.2}x")).into(),
            size(other.predicted_memory_bytes).into(),
            other.quality.as_str().into(),
            other.why_not.as_str().into(),
        ]);
    }
    table
}

/// Where the time of a model went.
pub(super) fn sites(side: &Side) -> Table {
    let mut table = Table::default()
        .column(format!("{}: operator", side.speed.format), Align::Left, 0)
        .column("phase", Align::Left, 0)
        .column("measured us", Align::Right, 0)
        .column("predicted us", Align::Right, 0);
    for site in &side.speed.sites {
        table.row([
            site.site.as_str().into(),
            site.phase.to_string().into(),
            number(site.measured_time_us).into(),
            site.predicted_time_us.map_or_else(String::new, number).into(),
        ]);
    }
    table
}
