//! `roofline sweep`.

mod shapes;

use std::{
    io::{self, BufWriter, Write},
    mem,
    sync::OnceLock,
};

use roofline_verbs::{
    Context,
    sweep::{Answer, ModelPoint, Request, Sweep, sweep},
};

use crate::{
    failure::Failure,
    report::{Format, Shown, csv, emit, number, style},
};

/// Products are a report; points of models may be millions, so they are printed as they come.
pub(crate) fn run(context: &Context, request: &Request, form: Format) -> Result<(), Failure> {
    if request.models.is_empty() {
        let Answer::Shapes(told) = sweep(context, request)? else { return Ok(()) };
        return emit(&Shown::all(&*told), form);
    }
    let mut out = BufWriter::with_capacity(1 << 16, anstream::AutoStream::auto(io::stdout().lock()));
    let mut write = |text: &str| out.write_all(text.as_bytes()).map_err(Failure::Output);
    // Every point has the same columns, so whoever is first names them.
    let columns: OnceLock<String> = OnceLock::new();
    let show = |point: &ModelPoint| match form {
        Format::Csv => {
            let (names, cells) = csv::row(point);
            columns.get_or_init(|| names);
            cells
        }
        _ => render(point, form),
    };
    write(&header(form))?;
    let mut titled = form != Format::Csv;
    Sweep::new(context, request)?.stream(context, show, |text| {
        if !mem::replace(&mut titled, true) {
            write(columns.get().map_or("", String::as_str))?;
        }
        write(text)
    })?;
    out.flush().map_err(Failure::Output)
}

fn header(form: Format) -> String {
    match form {
        Format::Json | Format::Csv => String::new(),
        Format::Markdown => {
            "| model | device | precision | tp | phase | batch | context | time us | tokens/s | bound | fits |\n\
                             | --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | --- | --- |\n"
                .to_owned()
        }
        Format::Text => {
            style::bold(&format!(
                "{:<18} {:<20} {:<10} {:>3} {:<8} {:>6} {:>8} {:>12} {:>12} {:<8} fits",
                "model", "device", "precision", "tp", "phase", "batch", "context", "time us", "tokens/s", "bound"
            )) + "\n"
        }
    }
}

fn render(row: &ModelPoint, form: Format) -> String {
    let fits = match row.fits {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "",
    };
    let scaled = if (row.scale_bandwidth, row.scale_compute) == (1.0, 1.0) {
        row.device.clone()
    } else {
        format!("{} x{}/x{}", row.device, row.scale_bandwidth, row.scale_compute)
    };
    let (time, speed) = (number(row.figures.predicted_time_us), number(row.tokens_per_s));
    match form {
        Format::Json | Format::Csv => serde_json::to_string(row).unwrap_or_default() + "\n",
        Format::Markdown => format!(
            "| {} | {scaled} | {} | {} | {} | {} | {} | {time} | {speed} | {} | {fits} |\n",
            row.model,
            row.precision,
            row.tensor_parallel,
            row.phase.name(),
            row.batch,
            row.context,
            row.figures.bottleneck
        ),
        Format::Text => format!(
            "{:<18} {scaled:<20} {:<10} {:>3} {:<8} {:>6} {:>8} {time:>12} {speed:>12} {:<8} {fits}\n",
            row.model,
            row.precision,
            row.tensor_parallel,
            row.phase.name(),
            row.batch,
            row.context,
            row.figures.bottleneck
        ),
    }
}
