//! The same products in every power mode, with the energy they take.

use std::{thread, time::Duration};

use clap::Args;
use roofline_core::{
    Device, Graph, Math,
    measurement::{Measurement, Subject},
    precision::PrecisionSpec,
    units::{Seconds, Watts},
};
use roofline_run::{
    Backend, Protocol,
    jetson::{Root, Status, named, set_mode as ask},
    measure,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Board, InMode, Place, SIDE, instrument, measurable, predicted, set_mode::done, unmeasurable};
use crate::{Context, Error, Note, Result, request::list};

const PRECISIONS: [&str; 3] = ["fp16", "int8", "w4a16"];
/// What clocks take to settle after a change of mode.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the power of each product is watched.
const WATCHED: Seconds = Seconds::new(1.0);

/// Which modes of which board, and whether they are measured.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PowerBench {
    /// Modes to go through; all with a budget when left out
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<String>")]
    pub modes: Vec<String>,
    /// Change the power mode, and change it back; without it only the current mode is measured
    #[arg(long)]
    #[schemars(extend("x-local" = true))]
    pub apply: bool,
    /// What theory says of every mode; nothing is measured
    #[arg(long)]
    pub predict_only: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub board: Place,
}

/// The products in every mode.
#[derive(Serialize, JsonSchema)]
pub struct BenchedModes {
    pub device: String,
    pub device_name: String,
    pub measured: bool,
    pub results: Vec<BenchedProduct>,
    /// INT8 and INT4 over FP16 in each mode.
    pub speedups: Vec<PrecisionSpeedup>,
    /// A mode's time over that of the mode with the largest budget.
    pub ratios: Vec<ModeSlowdown>,
    pub skipped: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A product in a mode.
#[derive(Serialize, JsonSchema)]
pub struct BenchedProduct {
    pub mode: String,
    pub power_budget_w: Option<f64>,
    pub gpu_mhz: Option<f64>,
    pub bandwidth_scale: f64,
    pub compute_scale: f64,
    pub precision: &'static str,
    pub predicted_us: f64,
    pub measured_us: Option<f64>,
    pub error_pct: Option<f64>,
    pub power_w: Option<f64>,
    pub energy_mj: Option<f64>,
}

/// What a precision gains in a mode.
#[derive(Serialize, JsonSchema)]
pub struct PrecisionSpeedup {
    pub mode: String,
    pub precision: &'static str,
    pub over_fp16: f64,
}

/// What a mode loses.
#[derive(Serialize, JsonSchema)]
pub struct ModeSlowdown {
    pub precision: &'static str,
    pub slower: String,
    pub faster: String,
    /// The time in `slower` over the time in `faster`: 1 is no difference, 2 is twice as slow.
    pub time_ratio: f64,
}

pub(super) fn bench(context: &Context, root: &Root, asked: &PowerBench) -> Result<BenchedModes> {
    if asked.apply && asked.predict_only {
        let hint = "leave out ⟨apply⟩, or leave out ⟨predict_only⟩";
        return Err(Error::request("a prediction changes no power mode", hint));
    }
    if asked.predict_only {
        let board = Board::open(context, root, &asked.board)?;
        let mut bench = BenchedModes::of(&board.device);
        for mode in wanted(&board, asked)? {
            bench.add(context, &mode.device, &board.device, Some(mode), None)?;
        }
        return bench.finished(context);
    }
    asked.board.measured_here()?;
    let status = Status::read(root);
    let here = if status.is_jetson { on_board } else { elsewhere };
    here(context, root, &status, asked)?.finished(context)
}

/// Modes that were named, else those with a budget and the one the board is in.
fn wanted<'a>(board: &'a Board, asked: &PowerBench) -> Result<Vec<&'a InMode>> {
    if asked.modes.is_empty() {
        let now = |mode: &InMode| board.status.is_some() && board.current.as_deref() == Some(mode.mode.name.as_str());
        return Ok(board.modes.iter().filter(|mode| mode.mode.power.is_some() || now(mode)).collect());
    }
    asked.modes.iter().map(|name| board.find(name)).collect()
}

/// A GPU that is no Jetson's has one mode: the limit it is at.
fn elsewhere(context: &Context, root: &Root, status: &Status, asked: &PowerBench) -> Result<BenchedModes> {
    let mut backend = instrument(context, root, status, None)?;
    let device = backend.device().clone();
    let mut bench = BenchedModes::of(&device);
    if asked.apply || !asked.modes.is_empty() {
        bench.skip(context, "power modes: this is no Jetson, and limits of other GPUs are not changed".to_owned());
    }
    bench.add(context, &device, &device, None, Some(&mut *backend))?;
    Ok(bench)
}

fn on_board(context: &Context, root: &Root, status: &Status, asked: &PowerBench) -> Result<BenchedModes> {
    // No mode is changed for a measurement that cannot be made.
    measurable(root, status)?;
    let board = Board::of(context, status.clone())?;
    let mut bench = BenchedModes::of(&board.device);
    let first = board.current.clone();
    let mut now = first.clone();
    for mode in wanted(&board, asked)? {
        let name = &mode.mode.name;
        if now.as_deref() != Some(name.as_str()) {
            if !asked.apply {
                bench.skip(context, format!("{name}: the board is in another mode, and ⟨apply⟩ was not given"));
                continue;
            }
            let command = format!("sudo nvpmodel -m {}", mode.mode.id);
            // Whoever stops the program in the middle has to bring the board back.
            if let Some(back) = first.as_deref().filter(|_| now == first).and_then(|first| board.find(first).ok()) {
                let words = format!(
                    "should this be stopped, `sudo nvpmodel -m {}` brings {} back",
                    back.mode.id, back.mode.name
                );
                context.note(words);
            }
            if let Err(error) = done(ask(mode.mode.id), &command) {
                bench.skip(context, format!("{name}: {error}"));
                continue;
            }
            thread::sleep(SETTLE);
            now = Status::read(root).power_mode_name;
            if !now.as_deref().is_some_and(|now| named(now, name)) {
                bench.skip(context, format!("{name}: nvpmodel reports success, but the mode did not change"));
                continue;
            }
            now = Some(name.clone());
        }
        let measured = instrument(context, root, status, Some(&mode.device))
            .and_then(|mut backend| bench.add(context, &mode.device, &board.device, Some(mode), Some(&mut *backend)));
        if let Err(error) = measured {
            restore(context, &board, first.as_deref(), now.as_deref());
            return Err(error);
        }
    }
    restore(context, &board, first.as_deref(), now.as_deref());
    Ok(bench)
}

/// Back to where it was.
fn restore(context: &Context, board: &Board, first: Option<&str>, now: Option<&str>) {
    let Some(mode) = first.filter(|first| Some(*first) != now).and_then(|first| board.find(first).ok()) else { return };
    let command = format!("sudo nvpmodel -m {}", mode.mode.id);
    if let Err(error) = done(ask(mode.mode.id), &command) {
        context.warn(format!("the board is not back in {}: {error}; run `{command}`", mode.mode.name));
    }
}

impl BenchedModes {
    fn of(device: &Device) -> Self {
        let (device, device_name) = (device.key.clone(), device.name.clone());
        let (results, speedups, ratios, skipped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { device, device_name, measured: false, results, speedups, ratios, skipped, notes: Vec::new() }
    }

    /// Said at once and again at the end: nobody should take part of the modes for all.
    fn skip(&mut self, context: &Context, what: String) {
        context.warn(format!("skipped {what}"));
        self.skipped.push(what);
    }

    /// All products on `device`, which is `whole` in a mode.
    fn add(
        &mut self,
        context: &Context,
        device: &Device,
        whole: &Device,
        mode: Option<&InMode>,
        mut backend: Option<&mut (dyn Backend + 'static)>,
    ) -> Result<()> {
        let name = mode.map_or_else(|| "current limit".to_owned(), |mode| mode.mode.name.clone());
        for precision in PRECISIONS {
            let time = predicted(device, SIDE, precision)?;
            let measured = match &mut backend {
                Some(backend) => match product(&mut **backend, device, precision) {
                    Ok(measured) => Some(measured),
                    Err(error) => {
                        self.skip(context, format!("{name}, {precision}: {error}"));
                        None
                    }
                },
                None => None,
            };
            self.measured |= measured.is_some();
            let energy = measured.as_ref().and_then(|measured| measured.energy);
            let fp16 = Math::Fp16;
            let compute = device.peaks.of(fp16).zip(whole.peaks.of(fp16)).map_or(1.0, |(part, all)| part / all);
            self.results.push(BenchedProduct {
                mode: name.clone(),
                power_budget_w: mode.and_then(|mode| mode.mode.power).map(Watts::value),
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
    fn finished(mut self, context: &Context) -> Result<Self> {
        if self.results.is_empty() {
            let reason = format!("no mode could be measured: {}", self.skipped.join("; "));
            return Err(unmeasurable(reason));
        }
        let time = |row: &BenchedProduct| row.measured_us.unwrap_or(row.predicted_us);
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
                Some(PrecisionSpeedup { mode: mode.clone(), precision, over_fp16 })
            })
        });
        let speedups: Vec<PrecisionSpeedup> = speedups.collect();
        let ratios = modes.iter().skip(1).flat_map(|(slower, _)| {
            let faster = &modes[0].0;
            PRECISIONS.iter().filter_map(move |precision| {
                let time_ratio = find(slower, precision)? / find(faster, precision)?;
                Some(ModeSlowdown { precision, slower: slower.clone(), faster: faster.clone(), time_ratio })
            })
        });
        let ratios: Vec<ModeSlowdown> = ratios.collect();
        (self.speedups, self.ratios, self.notes) = (speedups, ratios, context.notes());
        Ok(self)
    }
}

fn product(backend: &mut dyn Backend, device: &Device, precision: &str) -> Result<Measurement> {
    let formats = precision.parse::<PrecisionSpec>()?.on(device)?;
    let subject = Subject::new(&Graph::gemv(SIDE, SIDE)?.nodes[0], precision, formats);
    let protocol = Protocol { watch: Some(WATCHED), ..Protocol::default() };
    Ok(measure(backend, &subject, &protocol)?)
}
