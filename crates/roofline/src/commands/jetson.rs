//! `roofline jetson`.

mod bench;
mod modes;
mod schedule;
mod set_mode;
mod setup;
mod status;
mod validate;

use roofline_verbs::{
    Context, Note,
    jetson::{Answer, Request, jetson},
    note::NoteKind,
};

use crate::{
    failure::Failure,
    report::{Format, Shown, emit},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    match jetson(context, request)? {
        Answer::Setup(told) => emit(&Shown::all(&told), form),
        Answer::Status(told) if form == Format::Csv => emit(&status::Line { status: [&*told] }, form),
        Answer::Status(told) => emit(&Shown::all(&*told), form),
        Answer::Modes(told) => emit(&Shown::all(&told), form),
        Answer::SetMode(told) => emit(&Shown::all(&told), form),
        Answer::Schedule(told) => emit(&Shown::all(&*told), form),
        Answer::PowerBench(told) => emit(&Shown::all(&told), form),
        Answer::Validate(told) if form == Format::Csv => emit(&validate::Columns { results: &told.results }, form),
        Answer::Validate(told) => emit(&Shown::all(&told), form),
    }
}

/// What an answer says itself; warnings were said while it was made.
fn own(notes: &[Note]) -> impl Iterator<Item = &str> {
    notes.iter().filter(|note| note.kind == NoteKind::Note).map(|note| note.text.as_str())
}

/// Watts as people write budgets.
fn watts(power: Option<f64>) -> String {
    power.map_or_else(String::new, |power| format!("{power:.0} W"))
}

fn megahertz(clock: f64) -> String {
    format!("{clock:.0} MHz")
}
