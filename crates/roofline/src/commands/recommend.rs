//! `roofline recommend`.

mod model;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use roofline_verbs::{
    Context,
    picture::{Theme, write},
    recommend::{Answer, ModelWish, Product, ProductAdvice, Request, pareto, recommend},
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, emit_with},
};

#[derive(Subcommand)]
pub(crate) enum RecommendSubject {
    /// A linear layer that decodes one token: n rows and k columns
    Gemv(Product),
    /// A linear layer over m tokens
    Gemm(Product),
    /// A whole model
    Model(Box<ModelArgs>),
}

#[derive(Args)]
pub(crate) struct ModelArgs {
    #[command(flatten)]
    wish: ModelWish,
    /// Show every plan instead of the best
    #[arg(long)]
    all: bool,
    /// Draw the plans by memory, speed and quality
    #[arg(long)]
    plot: bool,
    /// Write that picture: .svg or .png
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, requires = "out")]
    force: bool,
    /// Colours of the picture
    #[arg(long, value_enum, default_value_t)]
    theme: Theme,
}

impl RecommendSubject {
    /// What is asked, without how it is shown.
    pub(crate) fn request(&self) -> Request {
        match self {
            Self::Gemv(asked) => Request::Gemv(asked.clone()),
            Self::Gemm(asked) => Request::Gemm(asked.clone()),
            Self::Model(args) => Request::Model(Box::new(args.wish.clone())),
        }
    }
}

pub(crate) fn run(context: &Context, subject: &RecommendSubject, form: Format) -> Result<(), Failure> {
    match (recommend(context, &subject.request())?, subject) {
        (Answer::Product(told), _) => emit(&Shown::all(&*told), form),
        (Answer::Model(told), RecommendSubject::Gemv(_) | RecommendSubject::Gemm(_)) => {
            emit(&Shown::best(&*told), form)
        }
        (Answer::Model(told), RecommendSubject::Model(args)) => {
            let picture = pareto(&told);
            if let Some(path) = &args.out {
                write(context, &picture.drawing(args.theme), path, 2.0, args.force)?;
            }
            let report = if args.all { Shown::all(&*told) } else { Shown::best(&*told) };
            emit_with(&report, args.plot.then_some(picture), form)
        }
    }
}

impl Report for Shown<'_, ProductAdvice> {
    const ROWS: &'static str = "ranked";

    fn warnings(&self) -> Vec<String> {
        self.advice.warnings.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let ProductAdvice { m, n, k, .. } = &**self;
        let mut table = Table::default()
            .column("precision", Align::Left, 0)
            .column("method", Align::Left, 2)
            .column("time", Align::Right, 0)
            .column("speed-up", Align::Right, 0)
            .column("bound", Align::Left, 1)
            .column("weights", Align::Right, 1)
            .column("smaller", Align::Right, 2)
            .column("why not", Align::Left, 1);
        for row in &self.advice.ranked {
            table.row([
                row.precision.as_str().into(),
                row.method.into(),
                row.time.to_string().into(),
                row.ratios.speedup.map_or_else(String::new, |speedup| format!("{speedup:.2}x")).into(),
                row.bound.to_string().into(),
                row.weights.to_string().into(),
                format!("{:.1} %", row.memory_savings_pct).into(),
                row.lost.clone().unwrap_or_default().into(),
            ]);
        }
        let best = &self.advice.recommendation;
        let mut sections = vec![
            Section::Heading(format!("{m} x {n} x {k} on {} ({}): {}", self.device_name, self.device, best.precision)),
            Section::Paragraph(format!("{}; {} tier.", best.reason, self.advice.tier)),
            Section::Table(table),
        ];
        sections.extend(self.advice.warnings.iter().map(|warning| Section::Paragraph(format!("Warning: {warning}."))));
        sections.extend((!self.commands.is_empty()).then(|| Section::Code(self.commands.clone())));
        sections
    }
}
