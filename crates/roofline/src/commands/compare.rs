//! `roofline compare`.

use clap::Args;
use roofline_verbs::{
    Context,
    compare::{Answer, Request},
    trace,
};

use crate::{
    failure::Failure,
    report::{Format, Report, Section, Shown, emit, style},
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
    let answer = Answer::with_page(context, &args.request)?;
    match &answer.trace {
        // The rows of a trace are its operators.
        Some(trace) if form == Format::Csv => emit(&Shown::of(trace, args.all), form)?,
        _ => emit(&Shown::of(&answer, args.all), form)?,
    }
    if let (Some(path), true) = (&answer.report, form != Format::Text) {
        style::talk("note", &format!("report: {}", path.display()));
    }
    match answer.broken {
        Some(broken) => Err(Failure::Broken(broken)),
        None if answer.stopped => Err(Failure::Interrupted),
        None => Ok(()),
    }
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "comparisons";

    fn sections(&self) -> Vec<Section> {
        Answer::sections(self, self.all)
    }

    fn warnings(&self) -> Vec<String> {
        self.explanations()
    }
}

impl Report for Shown<'_, trace::Answer> {
    const ROWS: &'static str = "operators";

    fn sections(&self) -> Vec<Section> {
        trace::Answer::sections(self, self.all)
    }

    fn warnings(&self) -> Vec<String> {
        self.first.clone()
    }
}
