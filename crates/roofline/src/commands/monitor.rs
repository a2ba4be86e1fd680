//! `roofline monitor`: what a GPU says of itself, once or as long as somebody looks.

mod history;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::{Duration, Instant, SystemTime},
};

use roofline_core::Device;
use roofline_run::telemetry::{Gpu, Source, Status};
use serde::Serialize;
use serde_json::Value;

use self::{history::History, view::View};
use super::runner::utc;
use crate::{
    cli::MonitorArgs,
    config,
    failure::Failure,
    report::{self, Format, Report, Section, emit},
};

pub(crate) fn monitor(args: &MonitorArgs, form: Format) -> Result<(), Failure> {
    let live = match form {
        _ if args.once => None,
        Format::Markdown => {
            return Err(Failure::usage(
                "a view that goes on has no Markdown form",
                "add --once, or say --json or --csv",
            ));
        }
        Format::Json => Some(Live::Json),
        Format::Csv => Some(Live::Csv),
        Format::Text if in_place() => Some(Live::InPlace),
        Format::Text => Some(Live::Lines),
    };
    let gpu = Gpu::open(args.gpu)?;
    let watched = Watched::new(&gpu, args.gpu);
    match live {
        None if form == Format::Csv => Ok(emit(&Rows::of(&watched.look()), form)?),
        None => Ok(emit(&watched.look(), form)?),
        Some(live) => {
            let (interval, seconds) =
                (Duration::from_secs_f64(args.interval), args.seconds.map(Duration::from_secs_f64));
            Ok(watched.watch(live, interval, seconds, &mut io::stdout())?)
        }
    }
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

/// A GPU, and the device of the registry that reports its name.
struct Watched<'a> {
    source: &'a dyn Source,
    index: u32,
    device: Option<Device>,
    started: Instant,
}

/// What was seen at one moment.
#[derive(Serialize)]
struct Look {
    gpu_index: u32,
    /// When, in UTC.
    time: String,
    /// Since the first look.
    elapsed_s: f64,
    #[serde(flatten)]
    status: Status,
    /// Key of the registry's device that reports exactly this name.
    device: Option<String>,
    /// Its rated power.
    tdp_w: Option<f64>,
    /// Power over rated power.
    power_of_tdp: Option<f64>,
}

impl<'a> Watched<'a> {
    fn new(source: &'a dyn Source, index: u32) -> Self {
        let name = source.device_name().ok();
        let device = name.and_then(|name| config::registry().reported(&name).map(std::borrow::Cow::into_owned));
        Self { source, index, device, started: Instant::now() }
    }

    fn look(&self) -> Look {
        let status = Status::read(self.source);
        let tdp = self.device.as_ref().and_then(|device| device.tdp);
        Look {
            gpu_index: self.index,
            time: utc(SystemTime::now()),
            elapsed_s: (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            device: self.device.as_ref().map(Device::label),
            tdp_w: tdp.map(roofline_core::units::Watts::value),
            power_of_tdp: status.power_draw.zip(tdp).map(|(power, tdp)| power / tdp),
            status,
        }
    }

    /// Looks at once and at every interval, `seconds` at most.
    fn watch(&self, live: Live, interval: Duration, seconds: Option<Duration>, out: &mut dyn Write) -> io::Result<()> {
        let (mut history, mut screen, mut first) = (History::default(), Screen::default(), true);
        let mut next = self.started;
        loop {
            let look = self.look();
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
                    let table = report::render(&Rows::of(&look), Format::Csv)?;
                    let (header, row) = table.split_once('\n').unwrap_or_default();
                    write!(out, "{}{row}", if first { format!("{header}\n") } else { String::new() })?;
                }
            }
            out.flush()?;
            first = false;
            // What took longer than the interval is not caught up with.
            next = (next + interval).max(Instant::now());
            if seconds.is_some_and(|seconds| next.duration_since(self.started) > seconds) {
                return Ok(());
            }
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
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

impl Report for Look {
    const ROWS: &'static str = "looks";

    fn sections(&self) -> Vec<Section> {
        view::sections(self)
    }
}

/// Looks as rows of a CSV, with the same columns whatever failed.
#[derive(Serialize)]
struct Rows {
    looks: Vec<Value>,
}

impl Rows {
    fn of(look: &Look) -> Self {
        let mut row = serde_json::to_value(look).unwrap_or_default();
        let errors = look.status.errors.iter().map(|(query, reason)| format!("{query}: {reason}"));
        if let Some(fields) = row.as_object_mut() {
            fields.insert("errors".into(), errors.collect::<Vec<String>>().into());
        }
        Self { looks: vec![row] }
    }
}

impl Report for Rows {
    const ROWS: &'static str = "looks";

    fn sections(&self) -> Vec<Section> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
