//! Which prediction is shown: what a calibrated machine is expected to do, else the ideal.

use std::borrow::Cow;

use roofline_core::{
    Device, Graph, Plan,
    calibration::{Calibration, Expected},
    format::Sizes,
};

use super::calibrate;
use crate::{
    cli::{Setting, TierArg},
    failure::Failure,
    report::style,
};

/// The calibration to use for `device`, as far as one is wanted and kept.
pub(super) fn calibration(setting: &Setting, device: &Device) -> Result<Option<Cow<'static, Calibration>>, Failure> {
    let stack = setting.stack.name();
    match setting.tier {
        Some(TierArg::Ideal) => Ok(None),
        None => Ok(calibrate::stored(device, stack)),
        Some(TierArg::Expected) => calibrate::stored(device, stack).map(Some).ok_or_else(|| {
            let hint = "`roofline calibrate` makes one of this machine; `--tier ideal` needs none";
            Failure::usage(format!("there is no calibration of {} ({})", device.name, device.key), hint)
        }),
    }
}

/// What the kernels of a graph are expected to take, and their sum.
pub(super) struct Outlook {
    pub(super) stack: String,
    pub(super) kernels: Vec<Expected>,
    pub(super) total: Expected,
}

/// What `calibration` says of `graph`; what it does not cover is said, and then the ideal is all there is.
pub(super) fn outlook(
    calibration: Option<&Calibration>,
    graph: &Graph,
    plan: &Plan,
    sizes: Sizes,
    name: &str,
) -> Option<Outlook> {
    let calibration = calibration?;
    match calibration.forecast(graph, plan, sizes) {
        Ok(kernels) => {
            let total = Calibration::total(&kernels)?;
            Some(Outlook { stack: calibration.stack.clone(), kernels, total })
        }
        Err(mut uncovered) => {
            uncovered.dedup();
            let kernels = uncovered.join(", ");
            style::talk("note", &format!("{name}: the calibration does not cover {kernels}; the ideal is shown"));
            None
        }
    }
}

/// What a heading says of the tiers below it.
pub(super) fn tier_words<'a>(mut tiers: impl Iterator<Item = &'a str>) -> &'static str {
    let first = tiers.next().unwrap_or("ideal");
    match (first, tiers.all(|tier| tier == first)) {
        ("ideal", true) => "ideal roofline",
        (_, true) => "expected by its calibration",
        (_, false) => "expected where the calibration covers it, else ideal",
    }
}
