//! `roofline evaluate`.

use clap::Args;
use roofline_verbs::{
    Context,
    evaluate::{Answer, Request},
};

use crate::{
    failure::Failure,
    report::{Format, Report, Section, Shown, csv, emit, print},
};

#[derive(Args)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    request: Request,
    /// Show every weight and position instead of the worst
    #[arg(long, help_heading = "Output")]
    all: bool,
}

pub(crate) fn run(context: &Context, args: &EvaluateArgs, form: Format) -> Result<(), Failure> {
    let answer = Answer::with_page(context, &args.request)?;
    // One model is one row; plans are rows of their own.
    if form == Format::Csv && answer.plans.is_empty() {
        let (names, cells) = csv::row(&answer);
        return print(&(names + &cells));
    }
    emit(&Shown::of(&answer, args.all), form)
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "plans";

    fn warnings(&self) -> Vec<String> {
        self.notes.iter().map(|note| note.text.clone()).collect()
    }

    fn sections(&self) -> Vec<Section> {
        Answer::sections(self, self.all)
    }
}
