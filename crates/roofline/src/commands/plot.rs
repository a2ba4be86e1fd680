//! `roofline plot`: a picture in a file or in the terminal, or its points.

use std::path::PathBuf;

use clap::Args;
use roofline_core::Dim;
use roofline_verbs::{
    Context,
    picture::{self, Picture},
    plot::{Answer, Request, picture, plot},
};

use crate::{
    failure::Failure,
    report::{Align, Format, Report, Section, Shown, Table, emit, number, print},
};

/// Size of a terminal nobody can ask.
const TERMINAL: (usize, usize) = (100, 32);

#[derive(Args)]
pub(crate) struct PlotArgs {
    #[command(flatten)]
    pub(crate) request: Request,
    /// Write a picture: .svg or .png
    #[arg(long, short, value_name = "FILE", display_order = 3)]
    out: Option<PathBuf>,
    /// Replace the file if it is there
    #[arg(long, display_order = 4)]
    force: bool,
    /// Pixels of a PNG per unit of the picture
    #[arg(long, default_value = "2", display_order = 5)]
    scale: Dim,
}

pub(crate) fn run(context: &Context, args: &PlotArgs, form: Format) -> Result<(), Failure> {
    match &args.out {
        None if form == Format::Text => print(&in_terminal(&picture(context, &args.request)?)),
        None => emit(&Shown::all(&plot(context, &args.request)?), form),
        Some(path) if form == Format::Text => {
            let drawing = picture(context, &args.request)?.drawing(args.request.theme);
            Ok(picture::write(context, &drawing, path, args.scale.get() as f64, args.force)?)
        }
        Some(path) => {
            let hint = "leave out --out for the points, or the flag for the picture";
            Err(Failure::usage(format!("{} is a picture, and its points are asked for", path.display()), hint))
        }
    }
}

fn in_terminal(picture: &Picture) -> String {
    let size = terminal_size::terminal_size_of(std::io::stdout());
    let (width, height) =
        size.map_or(TERMINAL, |(width, height)| (width.0.into(), usize::from(height.0).saturating_sub(2)));
    picture.terminal(width.max(40), height.clamp(12, 60), true)
}

impl Report for Shown<'_, Answer> {
    const ROWS: &'static str = "points";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("model", Align::Left, 0)
            .column("device", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("phase", Align::Left, 0)
            .column("batch", Align::Right, 0)
            .column("context", Align::Right, 0)
            .column("time us", Align::Right, 0)
            .column("tokens/s", Align::Right, 1)
            .column("bound", Align::Left, 2);
        for point in &self.points {
            table.row([
                point.model.as_str().into(),
                point.device.as_str().into(),
                point.precision.as_str().into(),
                point.phase.name().into(),
                point.batch.to_string().into(),
                point.context.to_string().into(),
                number(point.figures.predicted_time_us).into(),
                number(point.tokens_per_s).into(),
                point.figures.bottleneck.as_str().into(),
            ]);
        }
        vec![Section::Table(table)]
    }
}
