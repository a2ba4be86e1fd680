//! A profiler's trace as a comparison: each shape of an operator is a measurement that somebody else made.

use std::path::Path;

use roofline_core::compare::{Comparison, Totals, Verdict, compare as compared};

use super::{Answer, Request, new_report, nothing_measured};
use crate::{Context, Error, Result, trace};

/// Compares what a profiler recorded.
pub(super) fn traced(context: &Context, request: &Request, path: &Path) -> Result<Answer> {
    new_report(request)?;
    nothing_measured(&request.run, "trace")?;
    if request.subject.is_some() || request.demo {
        return Err(Error::request("a trace has its own subjects", "leave out the subject, or leave out ⟨trace⟩"));
    }
    let read = trace::read(context, path, request.on.as_deref())?;
    let comparison = if read.observations.is_empty() {
        nothing()
    } else {
        compared(&read.observations, &read.machine, request.tier())?
    };
    let mut answer = Answer::new(path.display().to_string(), &read.machine, comparison);
    answer.report.clone_from(&request.report);
    answer.trace = Some(read);
    Ok(answer)
}

/// A comparison of nothing: a trace without shapes has times, and no work to set beside them.
fn nothing() -> Comparison {
    Comparison {
        pairs: Vec::new(),
        passes: Vec::new(),
        speedups: Vec::new(),
        gains: Vec::new(),
        losses: Vec::new(),
        slow: Vec::new(),
        totals: Totals {
            count: 0,
            mean_error_pct: 0.0,
            median_error_pct: 0.0,
            max_error_pct: 0.0,
            within_15_pct: 0,
            ideal_mean_error_pct: 0.0,
            ideal_median_error_pct: 0.0,
            judged_error_pct: 0.0,
            judged_by_pass: false,
            prediction: Verdict::Undecided,
            verdict: Verdict::Undecided,
        },
        verdict: "nothing in the trace says what its kernels had to do, so no roof can be set beside them".to_owned(),
        insight: None,
        demonstration: None,
    }
}
