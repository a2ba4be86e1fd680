//! Advice on a model, for reading.

use roofline_core::{
    energy::Energy,
    recommend::{Goal, Outcome, Variation},
    units::Bytes,
};
use roofline_verbs::recommend::{
    ModelAdvice,
    words::{energy, loss, loss_with_source, work},
};

use crate::report::{Align, Report, Section, Shown, Table, number};

/// Plans that are shown where nobody asked for all.
const SHOWN: usize = 12;

impl Report for Shown<'_, ModelAdvice> {
    const ROWS: &'static str = "outcomes";

    fn warnings(&self) -> Vec<String> {
        self.recommendation.warnings.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let advice = &self.recommendation;
        let batch = self.batch;
        let work = work(self.demand);
        let several = advice.choice().filter(|best| best.tp > 1);
        let several = several.map_or_else(String::new, |best| format!("{} x ", best.tp));
        let mut sections = vec![
            Section::Heading(format!(
                "{} on {several}{} ({}): {work}, batch {batch}",
                self.model, self.device_name, self.device
            )),
            Section::Paragraph(format!("{}; {} tier.", advice.reason, advice.tier)),
        ];
        if let Some(best) = advice.choice() {
            sections.push(Section::Facts(self.facts(best)));
        }
        let steps = self.explanation.iter().flatten().enumerate();
        sections.extend(steps.map(|(at, step)| Section::Paragraph(format!("{}. {step}", at + 1))));
        if !self.modes.is_empty() {
            sections.push(Section::Heading(
                "The best of each power mode; energy is the mode's budget for the time".to_owned(),
            ));
            sections.push(Section::Table(self.mode_table()));
        }
        let shown = if self.all { advice.outcomes.len() } else { SHOWN };
        let shown = shown.min(advice.outcomes.len());
        sections.push(Section::Table(plans(&advice.outcomes[..shown], self.goal)));
        let refused = advice.outcomes.iter().filter(|outcome| outcome.refused.is_some()).count();
        let rest = advice.outcomes.len() - shown;
        let rest = if rest > 0 {
            format!("{rest} more plans, {refused} of all refused; --all shows them. ")
        } else {
            String::new()
        };
        let own = match self.goal {
            Goal::Throughput | Goal::Cost => {
                " Each plan has its own best batch; speed-ups are over 16 bit at the same one."
            }
            _ => "",
        };
        sections.push(Section::Paragraph(format!(
            "{rest}A star: no other plan is at least as fast, as small and as good.{own}"
        )));
        sections.extend(advice.warnings.iter().map(|warning| Section::Paragraph(format!("Warning: {warning}."))));
        sections.extend(self.left_out());
        sections.extend((!self.commands.is_empty()).then(|| Section::Code(self.commands.clone())));
        sections
    }
}

impl Shown<'_, ModelAdvice> {
    /// What the device multiplies and nobody loads, in one sentence.
    fn left_out(&self) -> Option<Section> {
        let mut by_reason: Vec<(&str, Vec<&str>)> = Vec::new();
        for left in &self.recommendation.left_out {
            match by_reason.iter_mut().find(|(reason, _)| *reason == left.reason) {
                Some((_, plans)) => plans.push(&left.plan),
                None => by_reason.push((&left.reason, vec![&left.plan])),
            }
        }
        let told: Vec<String> =
            by_reason.iter().map(|(reason, plans)| format!("{} ({reason})", plans.join(", "))).collect();
        (!told.is_empty()).then(|| Section::Paragraph(format!("Left out: {}.", told.join("; "))))
    }

    /// The arithmetic of the memory, the quality with its source, what the choice costs and how firm it is.
    fn facts(&self, best: &Outcome) -> Vec<(String, String)> {
        let memory = &best.memory;
        let part = |name: &str, bytes: Bytes| {
            if bytes > Bytes::ZERO { format!(" + {name} {bytes}") } else { String::new() }
        };
        let there = memory.capacity.map_or_else(String::new, |capacity| format!(" of {capacity}"));
        let each = if best.tp > 1 { " on each device" } else { "" };
        let told = format!(
            "weights {} + cache {} + in flight {}{}{} = {}{there}{each}",
            memory.weights,
            memory.cache,
            memory.in_flight,
            part("the system's", memory.system),
            part("kept free", memory.kept_free),
            memory.total
        );
        let mut facts = vec![
            ("plan".to_owned(), best.candidate.plan.to_string()),
            ("known as".to_owned(), known_as(best)),
            ("memory".to_owned(), told),
            ("perplexity".to_owned(), loss_with_source(&best.candidate.losses)),
            ("algorithm".to_owned(), self.algorithm(best)),
        ];
        if let Some(prefill) = &self.recommendation.prefill {
            facts.push(("prompts".to_owned(), prefill.sentence.clone()));
        }
        if let Some(cost) = &best.last_resort {
            facts.push(("last resort".to_owned(), cost.clone()));
        }
        if let Some(known) = best.energy_per_token {
            let how = match known {
                Energy::Fitted(_) => " by terms fitted to measured kernels",
                Energy::AtLimit(_) => ": the whole power limit for the predicted time, nothing was measured",
            };
            facts.push(("energy per token".to_owned(), energy(Some(known)) + how));
        }
        if let Some(dollars) = best.dollars_per_million_tokens {
            facts.push(("cost".to_owned(), format!("${dollars:.3} per million tokens")));
        }
        facts.push(("firm?".to_owned(), self.firmness()));
        facts
    }

    /// The algorithm for a scheme, and what others are known to give.
    fn algorithm(&self, best: &Outcome) -> String {
        let own = match best.candidate.algorithm {
            "none" => return "none: nothing is quantized".to_owned(),
            "mse" => "mse: the scale with the least squared error, no data needed",
            _ => "rtn: round to nearest, no data needed",
        };
        let others: Vec<String> = self
            .published
            .iter()
            .filter(|row| row.method != "rtn")
            .map(|row| format!("{} +{:.1} % ({})", row.method, 100.0 * row.change(), row.source))
            .collect();
        if others.is_empty() { own.to_owned() } else { format!("{own}; published for others: {}", others.join(", ")) }
    }

    fn firmness(&self) -> String {
        let told = |variation: &Variation| match &variation.choice {
            _ if variation.same => format!("{}: the same", variation.change),
            Some(choice) => format!("{}: {choice}", variation.change),
            None => format!("{}: nothing fits", variation.change),
        };
        let all: Vec<String> = self.sensitivity.iter().map(told).collect();
        let next = self.recommendation.outcomes.get(1).filter(|next| next.refused.is_none());
        let next = next.and_then(|next| Some(format!("; the next, {}: {}", next.candidate.plan, next.lost.as_ref()?)));
        all.join("; ") + &next.unwrap_or_default()
    }

    fn mode_table(&self) -> Table {
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("budget", Align::Right, 0)
            .column("plan", Align::Left, 0)
            .column("tokens/s", Align::Right, 0)
            .column("energy per token", Align::Right, 0);
        for mode in &self.modes {
            let chosen = if Some(&mode.power_mode) == self.power_mode.as_ref() { " <" } else { "" };
            table.row([
                format!("{}{chosen}", mode.power_mode).into(),
                format!("{} W", number(mode.power_w)).into(),
                mode.plan.to_string().into(),
                number(mode.tokens_per_s).into(),
                energy(mode.energy_per_token).into(),
            ]);
        }
        table
    }
}

/// What runtimes call a plan.
fn known_as(best: &Outcome) -> String {
    let told: Vec<String> =
        best.candidate.known_as.iter().map(|(runtime, name)| format!("{name} in {runtime}")).collect();
    if told.is_empty() { "nothing: no runtime that we know loads it here".to_owned() } else { told.join(", ") }
}

fn plans(outcomes: &[Outcome], goal: Goal) -> Table {
    let mut table = Table::default()
        .column("plan", Align::Left, 0)
        .column("", Align::Left, 3)
        .column("devices", Align::Right, 1)
        .column("batch", Align::Right, 3)
        .column("time", Align::Right, 0)
        .column("first token", Align::Right, 2)
        .column("tokens/s", Align::Right, 1)
        .column("speed-up", Align::Right, 0)
        .column("bound", Align::Left, 2)
        .column("memory", Align::Right, 0)
        .column("energy/token", Align::Right, if goal == Goal::Energy { 0 } else { 3 })
        .column("$/M tokens", Align::Right, if goal == Goal::Cost { 0 } else { 3 })
        .column("perplexity", Align::Left, 1)
        .column("why not", Align::Left, 1);
    for outcome in outcomes {
        let dollars = outcome.dollars_per_million_tokens;
        table.row([
            outcome.candidate.plan.to_string().into(),
            if outcome.pareto { "*" } else { "" }.into(),
            if outcome.tp > 1 { outcome.tp.to_string() } else { String::new() }.into(),
            outcome.batch.to_string().into(),
            outcome.time.to_string().into(),
            outcome.first_token.map_or_else(String::new, |time| time.to_string()).into(),
            number(outcome.tokens_per_s).into(),
            outcome.gain.map_or_else(String::new, |gain| format!("{gain:.2}x")).into(),
            outcome.bound.to_string().into(),
            outcome.memory.total.to_string().into(),
            energy(outcome.energy_per_token.filter(|_| goal == Goal::Energy)).into(),
            dollars.map_or_else(String::new, |dollars| format!("{dollars:.3}")).into(),
            loss(&outcome.candidate.losses).into(),
            outcome.refused.clone().or_else(|| outcome.lost.clone()).unwrap_or_default().into(),
        ]);
    }
    table.without_empty_columns()
}
