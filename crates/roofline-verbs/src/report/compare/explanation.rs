//! What a comparison says in sentences: its first words, its figures, what is wrong and why.

use roofline_core::compare::{Diagnosis, Verdict};

use crate::{
    compare::{Answer, Explained},
    report::{Lead, Tone},
    request::BackendName,
};

impl Answer {
    pub(super) fn heading(&self) -> String {
        let how = match (self.backend, self.residency) {
            (Some(BackendName::Null), _) => " (null backend: fake times)".to_owned(),
            (Some(backend), Some(residency)) => format!(" ({} backend, {residency})", backend.name()),
            _ => String::new(),
        };
        format!("{} on {}: theory against measurement{how}", self.subject, self.device_name)
    }

    /// The verdict, the insight and whatever keeps the two from being misread.
    pub(super) fn lead(&self) -> Lead {
        let tone = match self.summary.verdict {
            Verdict::Excellent | Verdict::Good => Tone::Good,
            Verdict::Mixed | Verdict::Undecided => Tone::Fair,
            Verdict::Investigate => Tone::Bad,
        };
        let facts = [
            ("verdict", Some(&self.verdict)),
            ("insight", self.insight.as_ref()),
            ("demonstration", self.demonstration.as_ref()),
        ];
        let fact = |(name, value): (&str, Option<&String>)| Some((name.to_owned(), value?.clone()));
        Lead { word: self.summary.verdict.to_string(), tone, facts: facts.into_iter().filter_map(fact).collect() }
    }

    /// The errors of both tiers, the bound, the basis.
    pub(super) fn analysis(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let summary = &self.summary;
        let mut facts = vec![
            fact(
                "errors",
                format!(
                    "mean {:.1} %, median {:.1} %, worst {:.0} % over {} kernels, {} below 15 %",
                    summary.mean_error_pct,
                    summary.median_error_pct,
                    summary.max_error_pct,
                    summary.count,
                    summary.within_15_pct
                ),
            ),
            fact(
                "ideal tier",
                format!("mean {:.1} %, median {:.1} %", summary.ideal_mean_error_pct, summary.ideal_median_error_pct),
            ),
        ];
        if summary.judged_by_pass {
            let each = self.passes.iter().map(|pass| {
                let (name, sum, weighed) = (pass.name(), pass.error_pct, pass.kernel_error_pct);
                format!("{name} {weighed:.1} % (its sum {sum:.1} %)")
            });
            facts.push(fact("passes", each.collect::<Vec<String>>().join(", ")));
        }
        if let Some(basis) = &self.calibration {
            let quality = &basis.quality;
            facts.push(fact(
                "calibration",
                format!(
                    "{}; mean error {:.1} % on {} held-out measurements{}",
                    basis.provenance,
                    quality.mean * 100.0,
                    quality.held_out,
                    if quality.spread.repeats == 0 {
                        String::new()
                    } else {
                        format!(", the machine itself repeats within {:.1} %", quality.spread.mean * 100.0)
                    }
                ),
            ));
        }
        facts
    }

    /// What is wrong and why, the worst case of each cause in full; and what could not be measured.
    pub fn explanations(&self) -> Vec<String> {
        let mut causes: Vec<(&str, Vec<(f64, String)>)> = Vec::new();
        for row in &self.comparisons {
            let kernel = format!("{} {}", row.placed(), row.precision);
            let slow = |found: &&Explained| matches!(found.diagnosis, Diagnosis::SlowKernel { .. });
            let diagnosed = row.diagnoses.iter().map(|found| {
                // The worst of the slow is the furthest from the roof.
                let off = if slow(&found) { row.ideal_error_pct } else { row.error_pct };
                (off, found.diagnosis.name(), found.text.clone())
            });
            // A doubt needs no words where the error is explained; that a kernel is slow explains none.
            let doubts = row.warnings.iter().filter(|_| row.diagnoses.iter().all(|found| slow(&found)));
            let doubted = doubts.map(|warning| (row.error_pct, warning.name(), warning.sentence()));
            for (off, name, text) in diagnosed.chain(doubted) {
                let said = (off, format!("{kernel}: {text}"));
                match causes.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, all)) => all.push(said),
                    None => causes.push((name, vec![said])),
                }
            }
        }
        // What the verdict names comes first.
        causes.sort_by_key(|(name, _)| *name != "slow kernel");
        let paragraph = |(name, mut all): (&str, Vec<(f64, String)>)| {
            all.sort_by(|one, other| other.0.total_cmp(&one.0));
            let more = if all.len() > 1 { format!(" ({} kernels)", all.len()) } else { String::new() };
            format!("{name}{more}: {}", all[0].1)
        };
        let mut all: Vec<String> = causes.into_iter().map(paragraph).collect();
        all.extend(self.skipped.iter().map(|skipped| {
            let phase = skipped.phase.map(|phase| format!("{phase} ")).unwrap_or_default();
            let words = skipped.op.words(&skipped.site);
            format!("{phase}{words} {} was not measured: {}", skipped.precision, skipped.reason)
        }));
        all
    }

    /// What is not shown before it is asked for.
    pub(super) fn rest(&self) -> String {
        let mut causes: Vec<(&str, usize)> = Vec::new();
        for name in self.comparisons.iter().flat_map(|row| &row.diagnoses).map(|found| found.diagnosis.name()) {
            match causes.iter_mut().find(|(known, _)| *known == name) {
                Some((_, count)) => *count += 1,
                None => causes.push((name, 1)),
            }
        }
        let causes: Vec<String> = causes.iter().map(|(name, count)| format!("{name} ({count})")).collect();
        let found = if causes.is_empty() { String::new() } else { format!("Diagnoses: {}. ", causes.join(", ")) };
        let explained = if causes.is_empty() { "shows" } else { "explains them, and shows" };
        let made_of = if self.made_of.is_empty() { "" } else { ", and what the machine is made of" };
        let skipped = match self.skipped.len() {
            0 => String::new(),
            1 => " One kernel was not measured.".to_owned(),
            count => format!(" {count} kernels were not measured."),
        };
        format!("{found}--all {explained} every time, rate and speed-up{made_of}.{skipped}")
    }
}
