//! What an expectation stands on, in words.

use roofline_core::{
    machine::Basis,
    predict::{Tier, Weaker},
};

/// What a heading says of the tiers below it.
pub(crate) fn words<'a>(mut told: impl Iterator<Item = (Tier, Basis, &'a [Weaker])>) -> &'static str {
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
pub(crate) fn weaker_words(weaker: &[Weaker]) -> Option<String> {
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
