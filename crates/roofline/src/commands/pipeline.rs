//! `roofline pipeline`.

use roofline_verbs::{
    Context,
    pipeline::{Answer, Request},
};

use crate::{
    failure::Failure,
    report::{Format, Report, Section, Shown, emit, style},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let answer = Answer::with_page(context, request)?;
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

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "steps";

    fn warnings(&self) -> Vec<String> {
        let failed = self.error.as_ref().map(|failed| format!("{} failed: {}", failed.step.words(), failed.message));
        failed.into_iter().collect()
    }

    fn sections(&self) -> Vec<Section> {
        Answer::sections(self)
    }
}
