//! A Jetson: set-up, status, power modes, and what runs best in which.
//!
//! Everything is read from the board's files; nothing is changed unless that is asked for, and nothing here becomes root.

mod bench;
mod modes;
mod schedule;
mod set_mode;
mod setup;
mod validate;

pub use bench::{BenchedModes, BenchedProduct, ModeSlowdown, PowerBench, PrecisionSpeedup};
pub use modes::{ModeFigures, ModeList};
pub use roofline_run::jetson::{EmcSource, Status};
pub use schedule::{Schedule, ScheduleApply, ScheduleCandidate, ScheduleGoal, Scheduled};
pub use set_mode::{ModeChange, SetMode, ShellStep};
pub use setup::{CheckState, NextStep, SetUp, SetUpCheck};
pub use validate::{Validate, ValidatedProduct, Validation};

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use roofline_core::{
    Device, Graph, Machine,
    device::PowerMode,
    machine::Stack,
    predict::predict,
    units::{Bytes, Seconds},
};
use roofline_run::{
    Backend, Error as Run, cuda,
    jetson::{ModeDevice, OnBoard, Root, Sensors, named},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Error, Result, gpu, request::with_subjects};

/// Side of the matrices that stand for a model where none is named.
pub const SIDE: u64 = 4096;

/// What is asked of a board.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = HELP)]
#[schemars(rename = "JetsonRequest", transform = with_subjects::<Action>)]
pub struct Request {
    #[command(subcommand)]
    #[serde(rename = "subject")]
    #[schemars(skip)]
    pub action: Action,
    /// Where the board's files are; another folder than / is read and never acted on
    #[arg(long, global = true, value_name = "PATH", default_value = "/", help_heading = "Board")]
    #[serde(default = "here")]
    #[schemars(extend("x-local" = true))]
    pub root: PathBuf,
}

const HELP: &str = "\
Everything is read from the board's files; nothing is changed without --apply, and nothing here becomes root.

Examples:
  roofline jetson setup                            is everything there, and what to do next
  roofline jetson status --json
  roofline jetson modes                            what each power mode leaves of the roofline
  roofline jetson set-mode 15W                     prints the command; --apply runs it
  roofline jetson schedule --goal power --model llama-3.2-1b
  roofline jetson validate --predict-only --on jetson_orin_nano
  roofline jetson status --root copied-tree        files that were copied from a board";
const SET_MODE_HELP: &str = "\
Modes are chosen by name because ids differ: mode 1 of an Orin Nano is 7 W, and 25 W with the Super image.

Examples:
  roofline jetson set-mode 15W
  roofline jetson set-mode MAXN_SUPER --clocks --apply";
const SCHEDULE_HELP: &str = "\
Nothing is changed without --apply.

Examples:
  roofline jetson schedule --goal power --model llama-3.2-1b
  roofline jetson schedule --goal throughput --on jetson_orin_nano
  roofline jetson schedule --goal latency --apply";

fn here() -> PathBuf {
    PathBuf::from("/")
}

/// What to do.
#[derive(Subcommand, Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "subject", rename_all = "kebab-case")]
#[schemars(rename = "JetsonAction")]
pub enum Action {
    /// A checklist: JetPack, CUDA, power mode, clocks, memory, and what to do next
    Setup,
    /// Power mode, clocks, memory, power by rail and temperatures, as they are now
    Status,
    /// The board's power modes, and what each leaves of bandwidth and compute
    Modes(Place),
    /// Choose a power mode by name; prints the command unless --apply
    #[command(after_help = SET_MODE_HELP)]
    SetMode(SetMode),
    /// Which power mode, precision and batch for a goal
    #[command(after_help = SCHEDULE_HELP)]
    Schedule(Schedule),
    /// Time and energy of matrix-vector products in the power modes
    PowerBench(PowerBench),
    /// Theory against measurement: matrix-vector products of 2048 and 4096, FP16 and INT8
    Validate(Validate),
}

/// A board of the registry instead of files.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "JetsonPlace")]
pub struct Place {
    /// A Jetson of `roofline devices` with its known modes, instead of the files; `KEY@MODE` for one of them
    #[arg(long, value_name = "DEVICE", help_heading = "Board")]
    pub on: Option<String>,
}

/// What is told.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "JetsonAnswer")]
pub enum Answer {
    /// What is there, and what to do next.
    Setup(SetUp),
    /// How the board is now.
    Status(Box<Status>),
    /// Its power modes.
    Modes(ModeList),
    /// A change of mode.
    SetMode(ModeChange),
    /// The mode, plan and batch for a goal.
    Schedule(Box<Scheduled>),
    /// Products in every mode.
    PowerBench(BenchedModes),
    /// Theory against measurement.
    Validate(Validation),
}

/// Reads a board, and acts on it where that is asked for.
pub fn jetson(context: &Context, request: &Request) -> Result<Answer> {
    let Request { action, root } = request;
    action.check(context, root)?;
    let root = &Root::new(root);
    Ok(match action {
        Action::Setup => Answer::Setup(setup::setup(context, root)),
        Action::Status => Answer::Status(Box::new(Status::read(root))),
        Action::Modes(place) => Answer::Modes(modes::modes(context, &Board::open(context, root, place)?)),
        Action::SetMode(asked) => Answer::SetMode(set_mode::set_mode(context, root, asked)?),
        Action::Schedule(asked) => Answer::Schedule(Box::new(schedule::schedule(context, root, asked)?)),
        Action::PowerBench(asked) => Answer::PowerBench(bench::bench(context, root, asked)?),
        Action::Validate(asked) => Answer::Validate(validate::validate(context, root, asked)?),
    })
}

impl Action {
    /// A board is in files or in the registry, and only somebody who is at it changes it or names its files.
    fn check(&self, context: &Context, root: &Path) -> Result<()> {
        let (place, apply) = match self {
            Self::Setup | Self::Status => (None, false),
            Self::Modes(place) => (Some(place), false),
            Self::SetMode(asked) => (None, asked.apply),
            Self::Schedule(asked) => (Some(&asked.board), asked.apply),
            Self::PowerBench(asked) => (Some(&asked.board), asked.apply),
            Self::Validate(asked) => (Some(&asked.board), false),
        };
        let elsewhere = root != Path::new("/");
        if elsewhere && place.is_some_and(|place| place.on.is_some()) {
            let hint = "leave out ⟨on⟩, or leave out ⟨root⟩";
            return Err(Error::request("a board is in files or in the registry", hint));
        }
        if !context.is_local() && (elsewhere || apply) {
            let hint = "leave out ⟨root⟩ and ⟨apply⟩";
            return Err(Error::request("files and power modes are for somebody at the board", hint));
        }
        Ok(())
    }
}

impl Place {
    /// Refuses to measure a board of the registry.
    fn measured_here(&self) -> Result<()> {
        if self.on.is_none() {
            return Ok(());
        }
        let hint = "add ⟨predict_only⟩, or leave out ⟨on⟩";
        Err(Error::request("a board of the registry cannot be measured from here", hint))
    }
}

/// A board: what it is, and what each of its modes makes of it.
struct Board {
    /// The whole chip.
    device: Device,
    modes: Vec<InMode>,
    /// The mode it is in, or was asked for.
    current: Option<String>,
    /// The files that say so; none for a board of the registry.
    status: Option<Status>,
}

/// A mode with its roofline.
struct InMode {
    mode: PowerMode,
    device: Device,
    /// What its own table says, where there is one.
    table: Option<(ModeDevice, u32)>,
}

impl Board {
    /// The board of the files below `root`, or of the registry where one is named.
    fn open(context: &Context, root: &Root, place: &Place) -> Result<Self> {
        match &place.on {
            Some(name) => Self::registered(context, name),
            None => Self::of(context, Status::read(root)),
        }
    }

    fn registered(context: &Context, name: &str) -> Result<Self> {
        let (key, mode) = name.split_once('@').map_or((name, None), |(key, mode)| (key, Some(mode)));
        let device = context.device(key)?;
        if device.power_modes.is_empty() {
            let hint =
                "`⟨roofline devices --kind soc⟩` lists boards; their power modes are in `⟨roofline devices KEY⟩`";
            return Err(Error::request(format!("{} has no power modes", device.name), hint));
        }
        let in_mode =
            |mode: &PowerMode| Ok(InMode { mode: mode.clone(), device: device.in_mode(&mode.name)?, table: None });
        let modes = device.power_modes.iter().map(in_mode).collect::<Result<_>>()?;
        let current = match mode {
            Some(mode) => device.in_mode(mode)?.mode,
            None => device.power_modes.iter().find(|mode| mode.default).map(|mode| mode.name.clone()),
        };
        Ok(Self { device, modes, current, status: None })
    }

    fn of(context: &Context, status: Status) -> Result<Self> {
        let refuse = |reason: String, hint: &str| Run::Gpu { reason, hint: Some(hint.to_owned()) };
        let elsewhere = "`⟨root FOLDER⟩` reads files that were copied from a board, `⟨on jetson_orin_nano⟩` takes one of \
                         the registry";
        if !status.is_jetson {
            return Err(refuse(status.errors.join("; "), elsewhere).into());
        }
        let Some(key) = &status.device else {
            let reason = format!("no board of the registry is this one: {}", status.errors.join("; "));
            return Err(refuse(reason, elsewhere).into());
        };
        let device = context.registry().find(key)?.into_owned();
        let table = status.table.clone().unwrap_or_default();
        let mut modes = Vec::new();
        for mode in &table.modes {
            match ModeDevice::new(&device, mode, &table) {
                Ok(scaled) => {
                    let (mode, device, cores) = (scaled.mode.clone(), scaled.device.clone(), mode.cores);
                    modes.push(InMode { mode, device, table: Some((scaled, cores)) });
                }
                Err(error) => context.warn(format!("power mode {}: {error}", mode.name)),
            }
        }
        if modes.is_empty() {
            let reason = format!("it has no power mode that makes sense: {}", status.errors.join("; "));
            return Err(refuse(reason, "`sudo apt install --reinstall nvidia-l4t-nvpmodel` restores the table").into());
        }
        let current = status.current().map(|mode| mode.name.clone());
        Ok(Self { device, modes, current, status: Some(status) })
    }

    /// The mode it is in.
    fn now(&self) -> Option<&InMode> {
        let current = self.current.as_deref()?;
        self.modes.iter().find(|mode| mode.mode.name == current)
    }

    /// The mode called `name`.
    fn find(&self, name: &str) -> Result<&InMode> {
        let found = self.modes.iter().find(|mode| named(&mode.mode.name, name));
        found.ok_or_else(|| {
            let modes = self.modes.iter().map(|mode| mode.mode.name.clone()).collect();
            let device = self.device.name.clone();
            roofline_core::Error::PowerMode { device, mode: name.to_owned(), modes }.into()
        })
    }
}

/// What theory says of a square matrix-vector product.
fn predicted(device: &Device, side: u64, precision: &str) -> Result<Seconds> {
    let machine = Machine::new(device.clone(), Stack::Roofline);
    let forecast = predict(&Graph::gemv(side, side)?, &precision.parse()?, &machine)?;
    Ok(forecast.total.ideal.time().seconds())
}

/// The GPU to measure on. A board's power comes from its own meter, another GPU's from NVML.
fn instrument(context: &Context, root: &Root, status: &Status, device: Option<&Device>) -> Result<Box<dyn Backend>> {
    measurable(root, status)?;
    if let Some(device) = device.filter(|_| status.is_jetson) {
        let gpu = cuda::Gpu::open(0, context.home().folder("kernels"))?;
        // Nothing runs without it, so its absence is said before anything is prepared.
        gpu.compiler()?;
        let backend = cuda::Cuda::new(gpu, device.clone());
        return Ok(Box::new(OnBoard::new(backend, Sensors::new(root.clone()))));
    }
    context.note("this is no Jetson: the GPU of this machine is measured as it is");
    Ok(Box::new(gpu::backend(context, 0)?))
}

/// Why nothing can be measured, where that is so.
fn measurable(root: &Root, status: &Status) -> Result<()> {
    let refuse = |reason: &str| Err(unmeasurable(format!("nothing can be measured here: {reason}")));
    if !root.is_this_machine() {
        return refuse("the files are a copy, and their board is elsewhere");
    }
    if !cuda::present() {
        let board = if status.is_jetson { "" } else { "this is no Jetson, and " };
        return refuse(&format!("{board}there is no NVIDIA driver with a GPU"));
    }
    Ok(())
}

/// A board that cannot be measured can be predicted.
fn unmeasurable(reason: String) -> Error {
    Run::Gpu { reason, hint: Some("`⟨predict_only⟩` prints what theory says".to_owned()) }.into()
}

/// Memory as boards have it.
fn gibi(size: Bytes) -> String {
    format!("{:.1} GiB", size.value() / 1024f64.powi(3))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        context::Home,
        note::Nobody,
        request::{answers_fit, from_json},
    };

    fn tree() -> String {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-run/tests/jetson/synthetic-orin-nano-8gb").to_owned()
    }

    fn asked(body: Value) -> Result<Answer> {
        jetson(&Context::local(Arc::new(Home::none()), Arc::new(Nobody)), &from_json(body)?)
    }

    #[test]
    fn answers_fit_their_schemas() {
        for body in [
            json!({ "subject": "setup", "root": tree() }),
            json!({ "subject": "status", "root": tree() }),
            json!({ "subject": "modes", "root": tree() }),
            json!({ "subject": "set-mode", "name": "15W", "root": tree() }),
            json!({ "subject": "schedule", "goal": "power", "model": "llama-3.2-1b", "on": "jetson_orin_nano" }),
            json!({ "subject": "power-bench", "predict_only": true, "on": "jetson_orin_nano" }),
            json!({ "subject": "validate", "predict_only": true, "root": tree() }),
        ] {
            answers_fit(&asked(body).unwrap());
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let why = |body: Value| asked(body).err().unwrap().to_string();
        let both = json!({ "subject": "modes", "on": "jetson_orin_nano", "root": tree() });
        assert_eq!(why(both), "a board is in files or in the registry");
        let applied =
            json!({ "subject": "power-bench", "predict_only": true, "apply": true, "on": "jetson_orin_nano" });
        assert_eq!(why(applied), "a prediction changes no power mode");
        assert_eq!(
            why(json!({ "subject": "validate", "on": "jetson_orin_nano" })),
            "a board of the registry cannot be measured from here"
        );
        assert!(why(json!({ "subject": "fly" })).contains("unknown subject `fly`"));
    }

    /// Whoever is not at the board may not change it, nor read files of whoever is.
    #[test]
    fn a_board_is_changed_by_somebody_at_it() {
        for body in [
            json!({ "subject": "set-mode", "name": "15W", "apply": true }),
            json!({ "subject": "status", "root": tree() }),
        ] {
            let told = jetson(&Context::pure(), &from_json(body).unwrap());
            assert!(told.err().unwrap().to_string().contains("somebody at the board"));
        }
    }
}
