//! One ladder for how right a prediction was, as a word for a whole comparison and as a grade for a line; and a mark for what
//! needs explaining.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Pair, Pass, SlowKernel, Totals, diagnosis::percent};
use crate::calibration::Quality;

/// What a comparison comes to: how right the prediction was, and how good the kernels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ComparisonVerdict")]
pub enum Verdict {
    /// Error below 10 %, and no slow kernel.
    Excellent,
    /// Error below 25 %, and no slow kernel.
    Good,
    /// Predicted well, but kernels are slow: theory is right, and it says that something is left on the table.
    Mixed,
    /// The prediction is far off: something is not understood.
    Investigate,
    /// The calibration is too far off itself for any verdict on the prediction.
    Undecided,
}

impl Verdict {
    /// The word on a prediction alone, by its relative error.
    pub fn of(error: f64) -> Self {
        match error {
            error if error < 0.10 => Self::Excellent,
            error if error < 0.25 => Self::Good,
            _ => Self::Investigate,
        }
    }

    /// The word on both, where this is the one on the prediction: praise is only for kernels that deserve it.
    #[must_use]
    pub fn given(self, slow: bool) -> Self {
        match self {
            Self::Excellent | Self::Good if slow => Self::Mixed,
            word => word,
        }
    }
}

/// The same ladder for a single line, in words that a face can colour by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ComparisonGrade")]
pub enum Grade {
    /// An error that alone would be excellent.
    Good,
    /// One that would be good.
    Fair,
    /// The rest.
    Poor,
}

impl Grade {
    /// The grade of a relative error.
    pub fn of(error: f64) -> Self {
        match Verdict::of(error) {
            Verdict::Excellent => Self::Good,
            Verdict::Good => Self::Fair,
            Verdict::Mixed | Verdict::Investigate | Verdict::Undecided => Self::Poor,
        }
    }
}

/// Slow kernels that a sentence names; further ones are counted.
const NAMED: usize = 3;

/// The verdict with its reasons: the error of what was predicted in `tier`, and the kernels that are slow.
pub(super) fn sentence(
    totals: &Totals,
    passes: &[Pass],
    tier: &str,
    slow: &[SlowKernel],
    quality: Option<&Quality>,
) -> String {
    let Totals { count, mean_error_pct: mean, median_error_pct: median, max_error_pct: worst, verdict, .. } = totals;
    let off = if !passes.is_empty() {
        in_passes(totals, passes, tier)
    } else if *count == 1 {
        format!("the prediction was off by {mean:.1} % ({tier})")
    } else {
        let spread = format!("median {median:.1} %, worst {worst:.0} %; {count} kernels, {tier}");
        format!("the prediction was off by {mean:.1} % on average ({spread})")
    };
    let named = slow_kernels(slow);
    match (verdict, named, quality) {
        (Verdict::Undecided, named, Some(quality)) => {
            let basis = format!(
                "the calibration itself is off by {:.1} % on shapes it never saw, and above {:.0} % it can carry no \
                 verdict on theory. Close other programs, run `⟨roofline calibrate⟩`, and compare again.",
                quality.mean * 100.0,
                Quality::DOUBTFUL * 100.0
            );
            let slow = named.map(|named| format!(" Whatever theory says, {named}.")).unwrap_or_default();
            format!("{verdict}: {basis}{slow}")
        }
        (Verdict::Investigate, Some(named), _) => format!("{verdict}: {off}, and {named}."),
        (_, Some(named), _) => format!("{verdict}: {off}, but {named}."),
        (Verdict::Excellent | Verdict::Good, None, _) => format!("{verdict}: {off}, and no kernel is slow."),
        (_, None, _) => format!("{verdict}: {off}."),
    }
}

/// The error of passes in words: of each one, or of the best and the worst where they are many.
fn in_passes(totals: &Totals, passes: &[Pass], tier: &str) -> String {
    let Totals { count, judged_error_pct: judged, .. } = totals;
    let one = |pass: &Pass| format!("{} {:.0} %", pass.name(), pass.kernel_error_pct);
    if let [pass] = passes {
        let sum = pass.error_pct;
        return format!(
            "the prediction was off by {judged:.1} % of the pass (its sum by {sum:.1} %; {count} kernels, {tier})"
        );
    }
    let mut sorted: Vec<&Pass> = passes.iter().collect();
    let many = passes.len() > NAMED;
    if many {
        sorted.sort_by(|one, other| one.kernel_error_pct.total_cmp(&other.kernel_error_pct));
        sorted.drain(1..passes.len() - 1);
    }
    let each: Vec<String> = sorted.into_iter().map(one).collect();
    let each = each.join(if many { " to " } else { ", " });
    format!("the prediction was off by {judged:.1} % of a pass on average ({each}; {count} kernels, {tier})")
}

/// The slow kernels in words.
fn slow_kernels(slow: &[SlowKernel]) -> Option<String> {
    let one = |(at, slow): (usize, &SlowKernel)| {
        let reach = if at == 0 { " reaches" } else { "" };
        let (shape, precision, reached) = (&slow.shape, &slow.precision, percent(slow.of_roof_pct / 100.0));
        let phase = slow.phase.map(|phase| format!("{phase} ")).unwrap_or_default();
        let end = if at == 0 { " of its roof" } else { "" };
        format!("{phase}{shape} {precision}{reach} {reached} %{end}")
    };
    let names: Vec<String> = slow.iter().take(NAMED).enumerate().map(one).collect();
    let more = slow.len() - names.len();
    let names = names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() };
    match slow.len() {
        0 => None,
        1 => Some(format!("one kernel is slow: {names}")),
        count => Some(format!("{count} kernels are slow: {names}")),
    }
}

/// What was judged, in words.
pub(super) fn tier(pairs: &[&Pair]) -> String {
    match pairs.iter().filter(|pair| pair.expected.is_some()).count() {
        0 => "ideal tier, no calibration".to_owned(),
        all if all == pairs.len() => "expected tier".to_owned(),
        some => format!("expected tier for {some}, ideal for the others"),
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Excellent => "EXCELLENT",
            Self::Good => "GOOD",
            Self::Mixed => "MIXED",
            Self::Investigate => "INVESTIGATE",
            Self::Undecided => "UNDECIDED",
        })
    }
}

/// One line's mark: OK below 20 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "ComparisonStatus")]
pub enum Status {
    /// Below 20 %.
    Ok,
    /// The rest.
    High,
}

impl Status {
    /// The mark of a relative error.
    pub fn of(error: f64) -> Self {
        if error < 0.20 { Self::Ok } else { Self::High }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ok => "OK",
            Self::High => "HIGH",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs() {
        assert_eq!([0.0, 0.0999].map(Verdict::of), [Verdict::Excellent; 2]);
        assert_eq!([0.10, 0.2499].map(Verdict::of), [Verdict::Good; 2]);
        assert_eq!([0.25, 9.0, f64::NAN].map(Verdict::of), [Verdict::Investigate; 3]);
        assert_eq!([0.1999, 0.20].map(Status::of), [Status::Ok, Status::High]);
        // The same rungs for a line.
        let grades = [Grade::Good, Grade::Good, Grade::Fair, Grade::Fair, Grade::Poor, Grade::Poor];
        assert_eq!([0.0, 0.0999, 0.10, 0.2499, 0.25, f64::NAN].map(Grade::of), grades);
    }

    #[test]
    fn slow_kernels_take_praise_away_and_nothing_else() {
        let all = [Verdict::Excellent, Verdict::Good, Verdict::Investigate, Verdict::Undecided];
        assert_eq!(all.map(|word| word.given(false)), all);
        let slow = [Verdict::Mixed, Verdict::Mixed, Verdict::Investigate, Verdict::Undecided];
        assert_eq!(all.map(|word| word.given(true)), slow);
    }

    fn totals(mean: f64, verdict: Verdict) -> Totals {
        Totals {
            count: 22,
            mean_error_pct: mean,
            median_error_pct: mean / 2.0,
            max_error_pct: mean * 3.0,
            within_15_pct: 20,
            ideal_mean_error_pct: 400.0,
            ideal_median_error_pct: 300.0,
            judged_error_pct: mean,
            judged_by_pass: false,
            prediction: Verdict::of(mean / 100.0),
            verdict,
        }
    }

    fn slow(of_roof_pct: f64) -> SlowKernel {
        let (shape, precision) = ("gemm 8 x 64 x 64".to_owned(), "w4a16".to_owned());
        SlowKernel { shape, phase: None, precision, of_roof_pct, share_pct: 40.0 }
    }

    #[test]
    fn the_sentence_has_the_error_and_the_slow_kernels() {
        let said =
            |mean, verdict, slow: &[SlowKernel]| sentence(&totals(mean, verdict), &[], "expected tier", slow, None);
        let off = |mean: &str, rest: &str| {
            format!("the prediction was off by {mean} % on average ({rest}; 22 kernels, expected tier)")
        };
        let good = off("8.0", "median 4.0 %, worst 24 %");
        assert_eq!(said(8.0, Verdict::Excellent, &[]), format!("EXCELLENT: {good}, and no kernel is slow."));
        assert_eq!(
            said(8.0, Verdict::Mixed, &[slow(2.1)]),
            format!("MIXED: {good}, but one kernel is slow: gemm 8 x 64 x 64 w4a16 reaches 2 % of its roof.")
        );
        let four = [0.4, 2.0, 3.0, 4.0].map(slow);
        let bad = off("60.0", "median 30.0 %, worst 180 %");
        assert_eq!(
            said(60.0, Verdict::Investigate, &four),
            format!(
                "INVESTIGATE: {bad}, and 4 kernels are slow: gemm 8 x 64 x 64 w4a16 reaches 0.4 % of its roof, \
                 gemm 8 x 64 x 64 w4a16 2 %, gemm 8 x 64 x 64 w4a16 3 % and 1 more."
            )
        );
        assert_eq!(said(60.0, Verdict::Investigate, &[]), format!("INVESTIGATE: {bad}."));
    }
}
