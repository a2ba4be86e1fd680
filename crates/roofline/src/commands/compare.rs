//! `roofline compare`.

mod explanation;
mod page;
mod table;
mod text;
mod trace;

use clap::Args;
use roofline_verbs::{
    Context,
    compare::{Answer, Request, compare},
    context::files,
};

use crate::{
    failure::Failure,
    report::{Format, Shown, emit, style},
};

#[derive(Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) request: Request,
    /// Show everything: each time, rate and speed-up, what explains the errors, what the machine is made of
    #[arg(long = "all", global = true, help_heading = "Output")]
    all: bool,
}

pub(crate) fn run(context: &Context, args: &CompareArgs, form: Format) -> Result<(), Failure> {
    let answer = answer(context, &args.request)?;
    match &answer.trace {
        // The rows of a trace are its operators.
        Some(trace) if form == Format::Csv => emit(&Shown::of(trace, args.all), form)?,
        _ => emit(&Shown::of(&answer, args.all), form)?,
    }
    if let (Some(path), true) = (&answer.report, form != Format::Text) {
        style::talk("note", &format!("report: {}", path.display()));
    }
    if answer.stopped { Err(Failure::Interrupted) } else { Ok(()) }
}

/// The comparison, with its page written where it goes. The answer was measured; that its page cannot be kept must not cost
/// it.
pub(crate) fn answer(context: &Context, request: &Request) -> Result<Answer, Failure> {
    let mut answer = compare(context, request)?;
    let write = |path| files::replace(path, page::page(&Shown::all(&answer)).as_bytes());
    if let Some(Err(error)) = answer.report.as_deref().map(write) {
        context.warn(format!("the report is not written: {error}"));
        answer.report = None;
        answer.notes.extend(context.notes());
    }
    Ok(answer)
}
