//! `roofline pipeline`.

mod text;

use roofline_verbs::{
    Context,
    pipeline::{Answer, Request, pipeline},
};

use crate::{
    failure::Failure,
    report::{Format, Shown, emit},
};

pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    let answer = pipeline(context, request)?;
    emit(&Shown::all(&answer), form)?;
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
