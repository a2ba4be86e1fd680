//! `roofline jetson power-bench`: the same products in every power mode, with the energy they take.

use std::{thread, time::Duration};

use roofline_core::{
    Device, Graph,
    measurement::{Measurement, Subject},
    precision::PrecisionSpec,
    units::Seconds,
};
use roofline_run::{
    Backend, Error, Protocol,
    jetson::{Root, Status, named, set_mode as ask},
    measure,
};
use serde::Serialize;

use super::{Board, InMode, instrument, measurable, predicted, set_mode, watts};
use crate::{
    cli::PowerBenchArgs,
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, number, style},
};

/// Side of the matrix.
const SIDE: u64 = 4096;
const PRECISIONS: [&str; 3] = ["fp16", "int8", "w4a16"];
/// What clocks take to settle after a change of mode.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the power of each product is watched.
const WATCHED: Seconds = Seconds::new(1.0);

#[derive(Serialize)]
struct Bench {
    device: String,
    device_name: String,
    measured: bool,
    results: Vec<Row>,
    /// INT8 and INT4 over FP16 in each mode.
    speedups: Vec<Speedup>,
    /// A mode's time over that of the mode with the largest budget.
    ratios: Vec<Slowdown>,
    skipped: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    mode: String,
    power_budget_w: Option<f64>,
    gpu_mhz: Option<f64>,
    bandwidth_scale: f64,
    compute_scale: f64,
    precision: &'static str,
    predicted_us: f64,
    measured_us: Option<f64>,
    error_pct: Option<f64>,
    power_w: Option<f64>,
    energy_mj: Option<f64>,
}

#[derive(Serialize)]
struct Speedup {
    mode: String,
    precision: &'static str,
    over_fp16: f64,
}

#[derive(Serialize)]
struct Slowdown {
    precision: &'static str,
    slower: String,
    faster: String,
    /// The time in `slower` over the time in `faster`: 1 is no difference, 2 is twice as slow.
    time_ratio: f64,
}

pub(super) fn bench(root: &Root, args: &PowerBenchArgs, form: Format) -> Result<(), Failure> {
    let bench = if args.predict_only {
        let board = Board::open(root, &args.board)?;
        let mut bench = Bench::of(&board.device);
        for mode in wanted(&board, args)? {
            bench.add(&mode.device, &board.device, Some(mode), None)?;
        }
        bench
    } else if args.board.on.is_some() {
        let hint = "add --predict-only, or leave out --on";
        return Err(Failure::usage("a board of the registry cannot be measured from here", hint));
    } else {
        let status = Status::read(root);
        if status.is_jetson { on_board(root, &status, args)? } else { elsewhere(root, &status, args)? }
    };
    Ok(emit(&bench.finished()?, form)?)
}

/// Modes that were named, else those with a budget and the one the board is in.
fn wanted<'a>(board: &'a Board, args: &PowerBenchArgs) -> Result<Vec<&'a InMode>, Failure> {
    if args.modes.is_empty() {
        let now = |mode: &InMode| board.status.is_some() && board.current.as_deref() == Some(mode.mode.name.as_str());
        return Ok(board.modes.iter().filter(|mode| mode.mode.power.is_some() || now(mode)).collect());
    }
    args.modes.iter().map(|name| board.find(name)).collect()
}

/// A GPU that is no Jetson's has one mode: the limit it is at.
fn elsewhere(root: &Root, status: &Status, args: &PowerBenchArgs) -> Result<Bench, Failure> {
    let mut backend = instrument(root, status, None)?;
    let device = backend.device().clone();
    let mut bench = Bench::of(&device);
    if args.apply || !args.modes.is_empty() {
        bench.skip("power modes: this is no Jetson, and limits of other GPUs are not changed".to_owned());
    }
    bench.add(&device, &device, None, Some(&mut *backend))?;
    Ok(bench)
}

fn on_board(root: &Root, status: &Status, args: &PowerBenchArgs) -> Result<Bench, Failure> {
    // No mode is changed for a measurement that cannot be made.
    measurable(root, status)?;
    let board = Board::of(status.clone())?;
    let mut bench = Bench::of(&board.device);
    let first = board.current.clone();
    let mut now = first.clone();
    for mode in wanted(&board, args)? {
        let name = &mode.mode.name;
        if now.as_deref() != Some(name.as_str()) {
            if !args.apply {
                bench.skip(format!("{name}: the board is in another mode, and --apply was not given"));
                continue;
            }
            let command = format!("sudo nvpmodel -m {}", mode.mode.id);
            // Whoever stops the program in the middle has to bring the board back.
            if let Some(back) = first.as_deref().filter(|_| now == first).and_then(|first| board.find(first).ok()) {
                let words = format!(
                    "should this be stopped, `sudo nvpmodel -m {}` brings {} back",
                    back.mode.id, back.mode.name
                );
                style::talk("note", &words);
            }
            if let Err(failure) = set_mode::run(ask(mode.mode.id), &command) {
                bench.skip(format!("{name}: {}", failure.message()));
                continue;
            }
            thread::sleep(SETTLE);
            now = Status::read(root).power_mode_name;
            if !now.as_deref().is_some_and(|now| named(now, name)) {
                bench.skip(format!("{name}: nvpmodel reports success, but the mode did not change"));
                continue;
            }
            now = Some(name.clone());
        }
        let measured = instrument(root, status, Some(&mode.device))
            .and_then(|mut backend| bench.add(&mode.device, &board.device, Some(mode), Some(&mut *backend)));
        if let Err(failure) = measured {
            restore(&board, first.as_deref(), now.as_deref());
            return Err(failure);
        }
    }
    restore(&board, first.as_deref(), now.as_deref());
    Ok(bench)
}

/// Back to where it was.
fn restore(board: &Board, first: Option<&str>, now: Option<&str>) {
    let Some(mode) = first.filter(|first| Some(*first) != now).and_then(|first| board.find(first).ok()) else { return };
    let command = format!("sudo nvpmodel -m {}", mode.mode.id);
    if let Err(failure) = set_mode::run(ask(mode.mode.id), &command) {
        style::talk(
            "warning",
            &format!("the board is not back in {}: {}; run `{command}`", mode.mode.name, failure.message()),
        );
    }
}

impl Bench {
    fn of(device: &Device) -> Self {
        let (device, device_name) = (device.key.clone(), device.name.clone());
        let (results, speedups, ratios, skipped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { device, device_name, measured: false, results, speedups, ratios, skipped }
    }

    /// Said at once and again at the end: nobody should take part of the modes for all.
    fn skip(&mut self, what: String) {
        style::talk("warning", &format!("skipped {what}"));
        self.skipped.push(what);
    }

    /// All products on `device`, which is `whole` in a mode.
    fn add(
        &mut self,
        device: &Device,
        whole: &Device,
        mode: Option<&InMode>,
        mut backend: Option<&mut (dyn Backend + 'static)>,
    ) -> Result<(), Failure> {
        let name = mode.map_or_else(|| "current limit".to_owned(), |mode| mode.mode.name.clone());
        for precision in PRECISIONS {
            let time = predicted(device, SIDE, precision)?;
            let measured = match &mut backend {
                Some(backend) => match product(&mut **backend, device, precision) {
                    Ok(measured) => Some(measured),
                    Err(failure) => {
                        self.skip(format!("{name}, {precision}: {}", failure.message()));
                        None
                    }
                },
                None => None,
            };
            self.measured |= measured.is_some();
            let energy = measured.as_ref().and_then(|measured| measured.energy);
            let fp16 = roofline_core::Math::Fp16;
            let compute = device.peaks.of(fp16).zip(whole.peaks.of(fp16)).map_or(1.0, |(part, all)| part / all);
            self.results.push(Row {
                mode: name.clone(),
                power_budget_w: mode.and_then(|mode| mode.mode.power).map(roofline_core::units::Watts::value),
                gpu_mhz: energy.and_then(|energy| energy.clock_mhz).or_else(|| {
                    let clock = mode.filter(|_| backend.is_none())?.mode.gpu_clock;
                    Some(clock.value() / 1e6)
                }),
                bandwidth_scale: device.memory.bandwidth / whole.memory.bandwidth,
                compute_scale: compute,
                precision,
                predicted_us: time.micros(),
                measured_us: measured.as_ref().map(|measured| measured.time().micros()),
                error_pct: measured.as_ref().map(|measured| ((time - measured.time()) / time).abs() * 100.0),
                power_w: energy.map(|energy| energy.power.value()),
                energy_mj: energy.map(|energy| energy.integrated.value() * 1e3),
            });
        }
        Ok(())
    }

    /// With what the rows say of each other; an error where there are none.
    fn finished(mut self) -> Result<Self, Failure> {
        if self.results.is_empty() {
            let reason = format!("no mode could be measured: {}", self.skipped.join("; "));
            return Err(Error::Gpu { reason, hint: Some("`--predict-only` prints what theory says".into()) }.into());
        }
        let time = |row: &Row| row.measured_us.unwrap_or(row.predicted_us);
        let find = |mode: &str, precision: &str| {
            self.results.iter().find(|row| row.mode == mode && row.precision == precision).map(time)
        };
        let mut modes: Vec<(String, f64)> = Vec::new();
        for row in &self.results {
            if !modes.iter().any(|(mode, _)| *mode == row.mode) {
                modes.push((row.mode.clone(), row.power_budget_w.unwrap_or(f64::INFINITY)));
            }
        }
        modes.sort_by(|one, other| other.1.total_cmp(&one.1));
        let speedups = modes.iter().flat_map(|(mode, _)| {
            PRECISIONS[1..].iter().filter_map(|precision| {
                let over_fp16 = find(mode, "fp16")? / find(mode, precision)?;
                Some(Speedup { mode: mode.clone(), precision, over_fp16 })
            })
        });
        let speedups: Vec<Speedup> = speedups.collect();
        let ratios = modes.iter().skip(1).flat_map(|(slower, _)| {
            let faster = &modes[0].0;
            PRECISIONS.iter().filter_map(move |precision| {
                let time_ratio = find(slower, precision)? / find(faster, precision)?;
                Some(Slowdown { precision, slower: slower.clone(), faster: faster.clone(), time_ratio })
            })
        });
        let ratios: Vec<Slowdown> = ratios.collect();
        (self.speedups, self.ratios) = (speedups, ratios);
        Ok(self)
    }
}

fn product(backend: &mut dyn Backend, device: &Device, precision: &str) -> Result<Measurement, Failure> {
    let formats = precision.parse::<PrecisionSpec>()?.on(device)?;
    let subject = Subject::new(&Graph::gemv(SIDE, SIDE)?.nodes[0], precision, formats);
    let protocol = Protocol { watch: Some(WATCHED), ..Protocol::default() };
    Ok(measure(backend, &subject, &protocol)?)
}

impl Report for Bench {
    const ROWS: &'static str = "results";

    fn sections(&self) -> Vec<Section> {
        let faster = self.ratios.first().map(|ratio| &ratio.faster);
        let mut table = Table::default()
            .column("mode", Align::Left, 0)
            .column("budget", Align::Right, 2)
            .column("GPU", Align::Right, 2)
            .column("precision", Align::Left, 0)
            .column("predicted", Align::Right, 0)
            .column("measured", Align::Right, 0)
            .column("error", Align::Right, 1)
            .column("power", Align::Right, 1)
            .column("energy", Align::Right, 0)
            .column("of fp16", Align::Right, 1)
            .column(faster.map_or_else(String::new, |mode| format!("of {mode}")), Align::Right, 1);
        let or_empty = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{} {unit}", number(value)))
        };
        let share = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        for row in &self.results {
            table.row([
                row.mode.as_str().into(),
                watts(row.power_budget_w.map(roofline_core::units::Watts::new)).into(),
                row.gpu_mhz.map_or_else(String::new, |clock| format!("{clock:.0} MHz")).into(),
                row.precision.into(),
                format!("{} µs", number(row.predicted_us)).into(),
                or_empty(row.measured_us, "µs").into(),
                or_empty(row.error_pct, "%").into(),
                or_empty(row.power_w, "W").into(),
                or_empty(row.energy_mj, "mJ").into(),
                share(
                    self.speedups
                        .iter()
                        .find(|one| (one.mode.as_str(), one.precision) == (&row.mode, row.precision))
                        .map(|speedup| 1.0 / speedup.over_fp16),
                )
                .into(),
                share(
                    self.ratios
                        .iter()
                        .find(|one| (one.slower.as_str(), one.precision) == (&row.mode, row.precision))
                        .map(|ratio| ratio.time_ratio),
                )
                .into(),
            ]);
        }
        let what = if self.measured { "measured" } else { "theory only, nothing was measured" };
        let heading = format!("{} ({}): GEMV {SIDE} x {SIDE} by power mode, {what}", self.device_name, self.device);
        let mut sections = vec![Section::Heading(heading), Section::Table(table.without_empty_columns())];
        if let Some(ratio) = self.ratios.first() {
            sections.push(Section::Paragraph(format!(
                "Of {}: the time in a mode over the time in the mode with the largest budget; 2.00 is twice as slow.",
                ratio.faster
            )));
        }
        sections.extend(self.skipped.iter().map(|skipped| Section::Paragraph(format!("Skipped: {skipped}"))));
        sections
    }
}
