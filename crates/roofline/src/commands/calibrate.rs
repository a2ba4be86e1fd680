//! `roofline calibrate`: fits the expected tier to this machine, and says how good the fit is.

mod grid;
mod processor;
mod report;
mod shapes;
mod validate;

use std::{borrow::Cow, path::PathBuf};

use roofline_core::{
    Device, Machine,
    calibration::{Calibration, Sample, Spread, ThinRows, fit},
    device::{Kind, Origin},
    machine::Stack,
    measurement::{Measurement, Path, Residency, Subject},
    units::Seconds,
};
use roofline_run::{Run, cpu::kernels::linear::THIN_ROWS};

use self::report::Calibrated;
use super::{compare::device_of, gpu, runner::Runner, setting};
use crate::{
    cli::{BackendArg, CalibrateArgs, RunArgs},
    config,
    failure::Failure,
    report::{Format, emit, style},
};

/// Rows up to which a GPU has kernels of its own for products; beyond, they are the library's.
const GPU_THIN_ROWS: ThinRows = ThinRows { native: 16, widened: 16 };
/// Kernels that are measured twice, to know how well the machine repeats itself.
const REPEATS: usize = 12;

pub(crate) fn calibrate(args: &CalibrateArgs, form: Format) -> Result<(), Failure> {
    let named = |on: &str| setting::device(&config::registry(), on);
    if args.show || args.forget {
        let backend = args.run.backend();
        let device = match args.on.as_deref() {
            None if backend == BackendArg::Cuda => gpu::device(args.run.gpu)?,
            on => named(on.unwrap_or("this"))?,
        };
        let stack = if backend == BackendArg::Null { "null" } else { "roofline" };
        let missing = || {
            let hint = "`roofline calibrate` makes one";
            Failure::usage(format!("there is no calibration of {} ({})", device.name, device.key), hint)
        };
        if args.forget {
            let there = config::forget("calibrations", &name(&device, stack))?;
            if !there {
                return Err(missing());
            }
            style::talk("note", "forgotten");
            return Ok(());
        }
        let calibration = stored(&device, stack).ok_or_else(missing)?.into_owned();
        return Ok(emit(&Calibrated::new(calibration, &device), form)?);
    }
    if let Some(count) = args.validate {
        return validate::validate(args, count, form);
    }
    if args.run.warm {
        let hint = "leave out --warm: a model finds its weights in memory";
        return Err(Failure::usage("the expected tier is of operands in memory", hint));
    }
    let (calibration, device) = if let Some(path) = &args.from {
        let run = Run::read(path)?;
        let device = args.on.as_deref().map_or_else(|| device_of(&run), named)?;
        let provenance = format!("{}, {} backend, {}", run.header.started, run.header.backend, path.display());
        let once = |_: &Measurement| None;
        (fitted(&run.measurements, &once, &device, stack(&run.header.backend), provenance, Spread::default())?, device)
    } else {
        config::can_keep("calibrations")?;
        let mut runner = Runner::start(&args.run, args.on.as_deref(), "calibrate")?;
        (measured(&mut runner, &args.run)?, runner.device().clone())
    };
    let path = keep(&calibration, &device)?;
    let fake = if calibration.stack == "null" { " --stack null" } else { "" };
    style::talk("note", &format!("kept in {}; `predict --on {}{fake}` uses it", path.display(), device.label()));
    Ok(emit(&Calibrated::new(calibration, &device), form)?)
}

/// Measures the grid and fits to it. Kernels are measured again at the end: that is how far the machine itself is from one
/// time to the next. Where there is time, a processor's are all measured twice, a minute apart, and fitted to the middle of
/// both: what neighbours take away, they take for seconds.
pub(super) fn measured(runner: &mut Runner, args: &RunArgs) -> Result<Calibration, Failure> {
    let (quick, chosen) = (args.quick, args.seconds.is_some());
    let device = runner.device().clone();
    let subjects = if in_blocks(&device) { grid::gpu(&device, quick)? } else { processor::grid(&device, quick)? };
    let quiet = runner.protocol;
    if !chosen {
        runner.protocol.stop = roofline_run::Protocol::quick().stop;
    }
    let outcome = runner.measure(&subjects)?;
    let every = if in_blocks(&device) || quick { (subjects.len() / REPEATS).max(1) } else { 1 };
    let twice: Vec<Subject> = subjects.iter().step_by(every).cloned().collect();
    let again = runner.repeat(&twice);
    let (residency, name) = (runner.protocol.residency, runner.backend.name());
    let find = |all: &[Measurement], subject: &Subject| {
        all.iter().find(|one| one.repeats(subject, residency, name)).map(|one| one.time().value())
    };
    let pair = |subject: &Subject| Some((find(&outcome.measured, subject)?, find(&again, subject)?));
    let spread = Spread::of(&twice.iter().filter_map(pair).collect::<Vec<_>>());
    let second = |one: &Measurement| again.iter().find(|other| same(one, other)).map(|other| other.time().value());
    runner.protocol = quiet;
    fitted(&outcome.measured, &second, &device, stack(name), runner.provenance(), spread)
}

/// Whether two measurements are of one kernel.
fn same(one: &Measurement, other: &Measurement) -> bool {
    (one.op, one.formats, one.kernel.path) == (other.op, other.formats, other.kernel.path)
}

/// Fits to measurements, and where one was made a second time, to the geometric mean of both.
fn fitted(
    measured: &[Measurement],
    second: &dyn Fn(&Measurement) -> Option<f64>,
    device: &Device,
    stack: &str,
    provenance: String,
    spread: Spread,
) -> Result<Calibration, Failure> {
    let sample = |measured: &Measurement| {
        let first = measured.time();
        let time = second(measured).map_or(first, |second| Seconds::new((first.value() * second).sqrt()));
        Sample { op: measured.op, precision: measured.formats, math: measured.kernel.math, time }
    };
    // The expected tier is of operands in memory, and of kernels that nobody would call naive.
    let usual = |one: &&Measurement| one.kernel.path != Path::CastEmulated && one.residency == Residency::Cold;
    let samples: Vec<Sample> = measured.iter().filter(usual).map(sample).collect();
    let thin_rows = if in_blocks(device) { GPU_THIN_ROWS } else { ThinRows::all(THIN_ROWS) };
    Ok(fit(&samples, device, stack, provenance, thin_rows, spread)?)
}

/// Whether a machine runs kernels in blocks, which need a wider grid to be known.
fn in_blocks(device: &Device) -> bool {
    matches!(device.kind, Kind::Gpu | Kind::Soc)
}

/// The calibration to use for a device and a stack: the user's own, else the one that ships with the program, and then
/// that is said. A device with other rates than its own has none.
pub(super) fn stored(device: &Device, stack: &str) -> Option<Cow<'static, Calibration>> {
    own(device, stack).map(Cow::Owned).or_else(|| {
        let shipped = Calibration::builtin(device, stack)?;
        style::talk("note", &format!("the calibration of {} that ships with roofline is used", device.name));
        Some(Cow::Borrowed(shipped))
    })
}

/// `device` with what was measured of a backend's kernels on it.
pub(super) fn machine(device: Device, backend: &str) -> Machine {
    let stack = if backend == "null" { Stack::Null } else { Stack::Roofline };
    let calibration = stored(&device, stack.name());
    Machine::new(device, stack).calibrated(calibration)
}

/// The calibration that was made here.
fn own(device: &Device, stack: &str) -> Option<Calibration> {
    if device.origin == Origin::Modified {
        return None;
    }
    let kept = config::load::<Calibration>("calibrations", &name(device, stack))?;
    match kept.checked() {
        Ok(kept) if kept.device == device.label() && kept.stack == stack => Some(kept),
        Ok(_) => None,
        Err(error) => {
            style::talk("warning", &format!("left out: {error}"));
            None
        }
    }
}

/// Keeps a calibration for its device and stack.
pub(super) fn keep(calibration: &Calibration, device: &Device) -> Result<PathBuf, Failure> {
    config::keep("calibrations", &name(device, &calibration.stack), calibration)
}

fn name(device: &Device, stack: &str) -> String {
    format!("{}.{stack}", device.label())
}

/// Whose kernels a backend runs.
pub(super) fn stack(backend: &str) -> &'static str {
    if backend == "null" { "null" } else { "roofline" }
}
