//! Which machine a question is about, and which of its two times is spoken of.

use roofline_core::{
    Device, Machine,
    device::Origin,
    machine::Basis,
    predict::{Tier, Weaker},
};

use super::calibrate;
use crate::{
    cli::{Setting, TierArg},
    commands::setting,
};

/// `device` with everything that is known of it: the user's calibration, that which ships, or what its class has in common.
pub(super) fn machine(setting: &Setting, device: Device) -> Machine {
    let machine = Machine::new(device, setting.stack.into()).counting(setting::sizes(setting.sizes));
    let calibration = calibrate::stored(&machine.device, machine.stack.name());
    machine.calibrated(calibration)
}

/// The tier that was asked for; left out, the one to expect, but for a chip that is only rates.
pub(super) fn spoken(tier: Option<TierArg>, device: &Device) -> Tier {
    let rates = device.origin == Origin::Flags;
    tier.map_or(if rates { Tier::Ideal } else { Tier::Expected }, Tier::from)
}

/// What a heading says of the tiers below it.
pub(super) fn words<'a>(mut told: impl Iterator<Item = (Tier, Basis, &'a [Weaker])>) -> &'static str {
    let (first, basis, weaker) = told.next().unwrap_or((Tier::Ideal, Basis::Prior, &[]));
    let start = (basis, basis, !weaker.is_empty());
    // The strongest and the weakest basis, and whether some answer has both.
    let seen = told.try_fold(start, |(least, most, mixed), (tier, basis, weaker)| {
        (tier == first).then(|| (least.min(basis), most.max(basis), mixed || !weaker.is_empty()))
    });
    match (first, seen) {
        (_, None) => "expected, or the ideal roofline of chips that are only rates",
        (Tier::Ideal, Some(_)) => "ideal roofline",
        (Tier::Expected, Some((least, most, mixed))) if mixed || least != most => {
            "expected, some of it on less than the rest"
        }
        (Tier::Expected, Some((Basis::Calibrated, ..))) => "expected by its calibration",
        (Tier::Expected, Some((Basis::Published, ..))) => "expected by published speeds",
        (Tier::Expected, Some((Basis::Transferred, ..))) => "expected by kernels like it that were measured",
        (Tier::Expected, Some((Basis::Prior, ..))) => "expected of devices of its class",
    }
}

/// A sentence for kernels that stand on less than the others.
pub(super) fn weaker_words(weaker: &[Weaker]) -> Option<String> {
    let sentence = |weaker: &Weaker| {
        let kernels = weaker.kernels.join(", ");
        match weaker.basis {
            Basis::Prior => {
                format!("{kernels}: nothing like it was measured, so by what devices of its class have in common")
            }
            _ => format!("{kernels}: not measured, so by the nearest kernel that was"),
        }
    };
    (!weaker.is_empty()).then(|| weaker.iter().map(sentence).collect::<Vec<_>>().join("; "))
}
