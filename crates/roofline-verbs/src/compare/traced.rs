//! A profiler's trace as a comparison: each shape of an operator is a measurement that somebody else made.

use std::{io::Read, path::Path};

use roofline_core::{
    compare::{Comparison, Totals, Verdict, compare as compared},
    predict::Tier,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Answer, Request, new_report, nothing_measured};
use crate::{Context, Error, Result, trace};

/// The longest name of a trace that somebody sends.
const LONGEST_NAME: usize = 200;

/// What is said of a trace that is sent, rather than lying where it is read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "TraceUpload")]
pub struct Upload {
    /// What the answer calls it: the name of its file
    pub name: Option<String>,
    /// The device it was made on; by the name in the trace when left out
    pub on: Option<String>,
    /// Which time is judged, the floor or the one to expect; the latter when left out
    pub tier: Option<Tier>,
}

/// Compares what a profiler recorded, from its bytes: as [`super::compare`] does with the name of a file.
pub fn uploaded(context: &Context, upload: &Upload, bytes: impl Read + 'static) -> Result<Answer> {
    let name = upload.name.as_deref().unwrap_or("trace");
    if name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
        let hint = format!("{LONGEST_NAME} characters at most, and none that drives a terminal");
        return Err(Error::request("the name of the trace is none", hint));
    }
    let read = trace::read_sent(context, name, bytes, upload.on.as_deref())?;
    let answer = answered(read, upload.tier.unwrap_or(Tier::Expected))?;
    Ok(Answer { notes: context.notes(), ..answer })
}

/// Compares what a profiler recorded.
pub(super) fn traced(context: &Context, request: &Request, path: &Path) -> Result<Answer> {
    new_report(request)?;
    nothing_measured(&request.run, "trace")?;
    if request.subject.is_some() || request.demo {
        return Err(Error::request("a trace has its own subjects", "leave out the subject, or leave out ⟨trace⟩"));
    }
    let read = trace::read(context, path, request.on.as_deref())?;
    let mut answer = answered(read, request.tier())?;
    answer.report.clone_from(&request.report);
    Ok(answer)
}

fn answered(read: trace::Answer, tier: Tier) -> Result<Answer> {
    let comparison =
        if read.observations.is_empty() { nothing() } else { compared(&read.observations, &read.machine, tier)? };
    let mut answer = Answer::new(read.subject.clone(), &read.machine, comparison);
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
