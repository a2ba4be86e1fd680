//! `roofline monitor`: what a GPU says of itself, once or as long as somebody looks.

mod history;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use roofline_verbs::{
    Context,
    monitor::{Answer as Look, Request, Watched, monitor},
};
use serde_json::Value;

use self::{history::History, view::View};
use crate::{
    failure::Failure,
    report::{Format, Report, Section, Shown, csv, emit, print},
};

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    request: Request,
    /// Look once
    #[arg(long, conflicts_with_all = ["interval", "seconds"])]
    once: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = interval)]
    interval: f64,
    /// How long to look; until Ctrl-C when left out
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    seconds: Option<f64>,
}

const HELP: &str = "\
Reads what the NVIDIA driver knows; nothing is changed and nothing runs on the GPU. A value that the
driver does not give is left out and named under `errors`; the others are shown.

Examples:
  roofline monitor                                 until Ctrl-C, drawn in place
  roofline monitor --once                          one look, as a table
  roofline monitor --once --json | jq .throttle_reasons
  roofline monitor --gpu 1 --interval 0.1 --seconds 60 --csv > run.csv
  roofline monitor --json --interval 2             a line of JSON every two seconds";

fn interval(text: &str) -> Result<f64, String> {
    within(text, 0.01, 3600.0)
}

fn duration(text: &str) -> Result<f64, String> {
    within(text, 0.01, 1e9)
}

fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('s').parse().map_err(|_| "seconds are a number such as 0.5".to_owned())?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("between {least} and {most} seconds")) }
}

pub(crate) fn run(context: &Context, args: &MonitorArgs, form: Format) -> Result<(), Failure> {
    let live = match form {
        Format::Csv if args.once => {
            let (header, row) = row(&monitor(context, &args.request)?);
            return print(&(header + &row));
        }
        _ if args.once => return emit(&Shown::all(&monitor(context, &args.request)?), form),
        Format::Markdown => {
            let hint = "add --once, or say --json or --csv";
            return Err(Failure::usage("a view that goes on has no Markdown form", hint));
        }
        Format::Json => Live::Json,
        Format::Csv => Live::Csv,
        Format::Text if in_place() => Live::InPlace,
        Format::Text => Live::Lines,
    };
    let (interval, seconds) = (Duration::from_secs_f64(args.interval), args.seconds.map(Duration::from_secs_f64));
    let watched = Watched::open(context, &args.request)?;
    watch(&watched, live, interval, seconds, &mut io::stdout()).map_err(Failure::Output)
}

/// Whether lines that were written can be written again: a terminal that understands how to go up.
fn in_place() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// How looks follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Live {
    InPlace,
    Lines,
    Json,
    Csv,
}

/// Looks at once and at every interval, `seconds` at most.
fn watch(
    watched: &Watched,
    live: Live,
    interval: Duration,
    seconds: Option<Duration>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (mut history, mut screen, mut first) = (History::default(), Screen::default(), true);
    let mut next = watched.started();
    loop {
        let look = watched.look();
        match live {
            Live::InPlace => {
                history.push(&look);
                let size = terminal_size::terminal_size();
                let size = size.map_or((80, 24), |(width, height)| (width.0.into(), height.0.into()));
                screen.draw(&View { look: &look, history: &history }, size, out)?;
            }
            Live::Lines => writeln!(out, "{}", view::line(&look))?,
            Live::Json => writeln!(out, "{}", serde_json::to_string(&look)?)?,
            Live::Csv => {
                let (header, row) = row(&look);
                write!(out, "{}{row}", if first { header } else { String::new() })?;
            }
        }
        out.flush()?;
        first = false;
        // What took longer than the interval is not caught up with.
        next = (next + interval).max(Instant::now());
        if seconds.is_some_and(|seconds| next.duration_since(watched.started()) > seconds) {
            return Ok(());
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Lines that replace those drawn before.
#[derive(Default)]
struct Screen {
    drawn: usize,
}

impl Screen {
    fn draw(&mut self, view: &View<'_>, (width, height): (usize, usize), out: &mut dyn Write) -> io::Result<()> {
        // The last line of the terminal is where the cursor waits; one more would scroll.
        let lines: Vec<String> = view.lines(width).into_iter().take(height.saturating_sub(1)).collect();
        let plain = anstream::AutoStream::choice(&io::stdout()) == anstream::ColorChoice::Never;
        let mut frame = if self.drawn > 0 { format!("\x1b[{}A\r", self.drawn) } else { String::new() };
        for line in &lines {
            let line = if plain { anstream::adapter::strip_str(line).to_string() } else { line.clone() };
            frame += &format!("\x1b[2K{line}\n");
        }
        self.drawn = lines.len();
        out.write_all(format!("{frame}\x1b[J").as_bytes())
    }
}

impl Report for Shown<'_, Look> {
    const ROWS: &'static str = "looks";

    fn sections(&self) -> Vec<Section> {
        view::sections(self)
    }
}

/// A look as the header and the row of a CSV, with the same columns whatever failed.
fn row(look: &Look) -> (String, String) {
    let mut row = serde_json::to_value(look).unwrap_or_default();
    let errors = look.status.errors.iter().map(|(query, reason)| format!("{query}: {reason}"));
    if let Value::Object(fields) = &mut row {
        fields.insert("errors".into(), errors.collect::<Vec<String>>().into());
    }
    csv::row(&row)
}

#[cfg(test)]
mod tests;
