//! What the expected tier of a comparison rests on.

use std::borrow::Cow;

use roofline_core::calibration::{Calibration, Quality};
use serde::Serialize;

use super::super::{calibrate, gpu, runner::Runner, setting, this};
use crate::{
    cli::{BackendArg, CompareArgs, CompareSubject, RunArgs},
    config,
    failure::Failure,
    report::style,
};

/// What the expected tier rests on.
#[derive(Serialize)]
pub(super) struct Basis {
    pub(super) provenance: String,
    pub(super) quality: Quality,
    /// Whether it is too far off on shapes it never saw to judge anything by.
    doubtful: bool,
}

impl Basis {
    pub(super) fn of(calibration: &Calibration) -> Self {
        let Calibration { provenance, quality, .. } = calibration;
        Self { provenance: provenance.clone(), quality: quality.clone(), doubtful: quality.doubtful() }
    }
}

/// The expected tier of what is about to be measured. A newcomer gets one, too: before the tour or a model comes a short
/// calibration, in a run of its own, so that both are measured afresh.
pub(super) fn calibration(args: &CompareArgs, on: Option<&str>) -> Result<Option<Cow<'static, Calibration>>, Failure> {
    let (backend, seconds) = (args.run.backend(), args.run.seconds);
    let device = match (backend, on) {
        (BackendArg::Cpu, None | Some("this")) => this::device()?,
        (BackendArg::Null, Some(on)) => setting::device(&config::registry(), on)?,
        (BackendArg::Cuda, _) => gpu::device(args.run.gpu)?,
        // What cannot run is said by whoever tries.
        _ => return Ok(None),
    };
    let stack = if backend == BackendArg::Null { "null" } else { "roofline" };
    let kept = calibrate::stored(&device, stack);
    let small = matches!(args.subject, Some(CompareSubject::Operator(_) | CompareSubject::Sizes(_)));
    if kept.is_some() || backend == BackendArg::Null || small || args.run.warm {
        return Ok(kept);
    }
    config::can_keep("calibrations")?;
    style::talk("note", "this machine is not calibrated yet: a short calibration comes first");
    let short = RunArgs {
        backend: Some(backend),
        gpu: args.run.gpu,
        warm: false,
        quick: true,
        seconds,
        energy: false,
        out: None,
        resume: false,
        watcher: args.run.watcher.clone(),
    };
    let calibration = calibrate::measured(&mut Runner::start(&short, None, "calibrate")?, &short)?;
    calibrate::keep(&calibration, &device)?;
    if calibration.quality.doubtful() {
        let off = calibration.quality.mean * 100.0;
        style::talk(
            "warning",
            &format!(
                "the short calibration is off by {off:.0} % on shapes it never saw, so it can carry no verdict: close other \
                 programs and run `roofline calibrate`, which measures longer"
            ),
        );
    }
    Ok(Some(Cow::Owned(calibration)))
}
