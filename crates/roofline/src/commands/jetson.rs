//! `roofline jetson`: a board by its files, its power modes, and what runs best in which.

mod bench;
mod modes;
mod schedule;
mod set_mode;
mod setup;
mod status;
mod validate;

use roofline_core::{
    Device, Graph, Machine,
    device::PowerMode,
    machine::Stack,
    predict::predict,
    units::{Seconds, Watts},
};
use roofline_run::{
    Backend, Error, cuda,
    jetson::{ModeDevice, OnBoard, Root, Sensors, Status},
};

use super::{gpu, setting};
use crate::{
    cli::{JetsonAction, JetsonArgs, OnArgs},
    config,
    failure::Failure,
    report::{Format, emit, style},
};

pub(crate) fn jetson(args: &JetsonArgs, form: Format) -> Result<(), Failure> {
    let root = Root::new(&args.root);
    match &args.action {
        JetsonAction::Status => status::status(&root, form),
        JetsonAction::Setup => Ok(emit(&setup::setup(&root), form)?),
        JetsonAction::Modes(args) => Ok(emit(&modes::modes(&Board::open(&root, args)?), form)?),
        JetsonAction::SetMode(args) => Ok(emit(&set_mode::set_mode(&root, args)?, form)?),
        JetsonAction::Schedule(args) => Ok(emit(&schedule::schedule(&root, args)?, form)?),
        JetsonAction::PowerBench(args) => bench::bench(&root, args, form),
        JetsonAction::Validate(args) => validate::validate(&root, args, form),
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
    fn open(root: &Root, args: &OnArgs) -> Result<Self, Failure> {
        match &args.on {
            Some(name) => Self::registered(name),
            None => Self::of(Status::read(root)),
        }
    }

    fn registered(name: &str) -> Result<Self, Failure> {
        let (key, mode) = name.split_once('@').map_or((name, None), |(key, mode)| (key, Some(mode)));
        let device = setting::device(&config::registry(), key)?;
        if device.power_modes.is_empty() {
            let hint = "`roofline devices --kind soc` lists boards; their power modes are in `roofline devices KEY`";
            return Err(Failure::usage(format!("{} has no power modes", device.name), hint));
        }
        let in_mode =
            |mode: &PowerMode| Ok(InMode { mode: mode.clone(), device: device.in_mode(&mode.name)?, table: None });
        let modes = device.power_modes.iter().map(in_mode).collect::<Result<_, Failure>>()?;
        let current = match mode {
            Some(mode) => device.in_mode(mode)?.mode,
            None => device.power_modes.iter().find(|mode| mode.default).map(|mode| mode.name.clone()),
        };
        Ok(Self { device, modes, current, status: None })
    }

    fn of(status: Status) -> Result<Self, Failure> {
        let refuse = |reason: String, hint: &str| Error::Gpu { reason, hint: Some(hint.to_owned()) };
        let elsewhere = "`--root FOLDER` reads files that were copied from a board, `--on jetson_orin_nano` takes one of the \
                         registry";
        if !status.is_jetson {
            return Err(refuse(status.errors.join("; "), elsewhere).into());
        }
        let Some(key) = &status.device else {
            let reason = format!("no board of the registry is this one: {}", status.errors.join("; "));
            return Err(refuse(reason, elsewhere).into());
        };
        let device = config::registry().find(key)?.into_owned();
        let table = status.table.clone().unwrap_or_default();
        let mut modes = Vec::new();
        for mode in &table.modes {
            match ModeDevice::new(&device, mode, &table) {
                Ok(scaled) => {
                    let (mode, device, cores) = (scaled.mode.clone(), scaled.device.clone(), mode.cores);
                    modes.push(InMode { mode, device, table: Some((scaled, cores)) });
                }
                Err(error) => style::talk("warning", &format!("power mode {}: {error}", mode.name)),
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
    fn find(&self, name: &str) -> Result<&InMode, Failure> {
        let found = self.modes.iter().find(|mode| roofline_run::jetson::named(&mode.mode.name, name));
        found.ok_or_else(|| {
            let modes = self.modes.iter().map(|mode| mode.mode.name.clone()).collect();
            let device = self.device.name.clone();
            roofline_core::Error::PowerMode { device, mode: name.to_owned(), modes }.into()
        })
    }
}

/// What theory says of a square matrix-vector product.
fn predicted(device: &Device, side: u64, precision: &str) -> Result<Seconds, Failure> {
    let machine = Machine::new(device.clone(), Stack::Roofline);
    let forecast = predict(&Graph::gemv(side, side)?, &precision.parse()?, &machine)?;
    Ok(forecast.total.ideal.time().seconds())
}

/// The GPU to measure on. A board's power comes from its own meter, another GPU's from NVML.
fn instrument(root: &Root, status: &Status, device: Option<&Device>) -> Result<Box<dyn Backend>, Failure> {
    measurable(root, status)?;
    if let Some(device) = device.filter(|_| status.is_jetson) {
        let gpu = cuda::Gpu::open(0, config::cache("kernels"))?;
        // Nothing runs without it, so its absence is said before anything is prepared.
        gpu.compiler()?;
        let backend = cuda::Cuda::new(gpu, device.clone());
        return Ok(Box::new(OnBoard::new(backend, Sensors::new(root.clone()))));
    }
    style::talk("note", "this is no Jetson: the GPU of this machine is measured as it is");
    Ok(Box::new(gpu::backend(0)?))
}

/// Why nothing can be measured, where that is so.
fn measurable(root: &Root, status: &Status) -> Result<(), Failure> {
    let refuse = |reason: &str| Error::Gpu {
        reason: format!("nothing can be measured here: {reason}"),
        hint: Some("`--predict-only` prints what theory says".to_owned()),
    };
    if !root.is_this_machine() {
        return Err(refuse("the files are a copy, and their board is elsewhere").into());
    }
    if !cuda::present() {
        let board = if status.is_jetson { "" } else { "this is no Jetson, and " };
        return Err(refuse(&format!("{board}there is no NVIDIA driver with a GPU")).into());
    }
    Ok(())
}

/// Watts as people write budgets.
fn watts(power: Option<Watts>) -> String {
    power.map_or_else(String::new, |power| format!("{:.0} W", power.value()))
}

fn megahertz(clock: roofline_core::units::Hertz) -> String {
    format!("{:.0} MHz", clock.value() / 1e6)
}
