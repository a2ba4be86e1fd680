//! `roofline pipeline`.

mod page;
mod text;

use roofline_verbs::{
    Context,
    context::files,
    pipeline::{Answer, Request, pipeline},
};

use crate::{
    failure::Failure,
    report::{Format, Shown, emit, style},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let mut answer = pipeline(context, request)?;
    // What was measured is told, even where its page cannot be kept.
    let write = |path| files::replace(path, page::page(&Shown::all(&answer)).as_bytes());
    if let Some(Err(error)) = answer.report.as_deref().map(write) {
        context.warn(format!("the report is not written: {error}"));
        answer.report = None;
        answer.notes.extend(context.notes());
    }
    emit(&Shown::all(&answer), form)?;
    if let (Some(path), true) = (&answer.report, form != Format::Text) {
        style::talk("note", &format!("report: {}", path.display()));
    }
    ended(&answer)
}

/// How the program ends: what failed was told with what was done, and has an exit code of its own.
fn ended(answer: &Answer) -> Result<(), Failure> {
    match &answer.error {
        None => Ok(()),
        Some(failed) if failed.is_cancelled => Err(Failure::Interrupted),
        Some(failed) => Err(Failure::Told { input: failed.is_input }),
    }
}
