//! What a device multiplies and who loads it: the precisions that plans are made of, and those that are left out.

use schemars::JsonSchema;
use serde::Serialize;

use super::runtime::{self, SIXTEEN, runtimes};
use crate::{
    Device, Error, Precision, Result,
    precision::{NAMED, PrecisionSpec},
};

/// A precision that the device multiplies.
pub(super) struct Offer {
    /// Its name among the runtimes.
    pub(super) key: &'static str,
    pub(super) spec: PrecisionSpec,
    pub(super) precision: Precision,
}

impl Offer {
    pub(super) fn bits(&self) -> u32 {
        self.precision.weights.nominal_bits()
    }
}

/// A precision that the device multiplies and that does not compete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "LeftOutPlan")]
pub struct LeftOut {
    /// The name of the precision.
    pub plan: String,
    /// Why it does not compete.
    pub reason: String,
}

/// What there is for a device.
pub(super) struct Offers {
    /// 16 bit first where the device has it, which the others are compared with, then the wider ones.
    pub(super) all: Vec<Offer>,
    pub(super) left_out: Vec<LeftOut>,
    /// Whether no runtime that we know runs on it, so that everything competes.
    pub(super) open: bool,
}

/// The precisions of a device: those that some runtime loads, or all where none speaks of the device.
pub(super) fn offers(device: &Device) -> Result<Offers> {
    let open = !runtimes().iter().any(|runtime| runtime.runs_on(device));
    let sixteen = device.sixteen_bit().to_string();
    let named = NAMED.iter().map(|named| named.name).filter(|name| !["fp16", "bf16"].contains(name));
    let mut keys: Vec<&'static str> = runtime::precisions().chain(named).collect();
    keys.sort_unstable();
    keys.dedup();
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for key in keys {
        let spec: PrecisionSpec = if key == SIXTEEN { sixteen.parse()? } else { key.parse()? };
        // What the device does not multiply is no plan of it.
        let Ok(precision) = spec.on(device) else { continue };
        if key != SIXTEEN && precision.weights.nominal_bits() >= 16 {
            continue;
        }
        if open || runtimes().iter().any(|runtime| runtime.loads(key, device)) {
            all.push(Offer { key, spec, precision });
        } else if NAMED.iter().any(|named| named.name == key) {
            left_out.push(LeftOut { plan: key.to_owned(), reason: missing(key, device) });
        }
    }
    if all.is_empty() {
        let units: Vec<&str> = device.peaks.iter().map(|(math, _)| math.key()).collect();
        let units = if units.is_empty() { "no units".to_owned() } else { units.join(", ") };
        return Err(Error::Shape(format!("{} has {units}, which multiply no precision of a model", device.name)));
    }
    all.sort_by_key(|offer| (offer.key != SIXTEEN, std::cmp::Reverse(offer.bits())));
    Ok(Offers { all, left_out, open })
}

/// Why no runtime loads a precision on a device.
fn missing(key: &str, device: &Device) -> String {
    let capability = device.compute_capability.as_deref().and_then(|text| text.parse::<f64>().ok());
    let ended = runtimes().iter().find_map(|runtime| {
        let below = runtime.ended(key)?;
        capability.filter(|own| *own >= below)?;
        Some(format!("{} has no kernel for it from compute capability {below:.1} on", runtime.name))
    });
    ended.unwrap_or_else(|| "no runtime that we know loads it here".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn what_no_runtime_loads_is_told() {
        let of = |device: &str| offers(&Registry::builtin().find(device).unwrap()).unwrap();
        let reason = |offers: &Offers, plan: &str| {
            offers.left_out.iter().find(|left| left.plan == plan).map(|left| left.reason.clone())
        };
        // GB10 multiplies INT8, and vLLM's kernels for it end before; V100 widens INT4, and nobody's kernels do.
        assert_eq!(
            reason(&of("gb10"), "int8").as_deref(),
            Some("vLLM has no kernel for it from compute capability 10.0 on")
        );
        assert_eq!(reason(&of("v100_sxm2_16gb"), "w4a16").as_deref(), Some("no runtime that we know loads it here"));
        assert!(reason(&of("h200"), "fp8").is_none());
        // Where no runtime runs, everything that is multiplied competes.
        for device in ["tpu_v5e", "gaudi3", "trainium2"] {
            let offers = of(device);
            assert!(offers.open && offers.left_out.is_empty(), "{device}");
            assert!(offers.all[0].key == SIXTEEN && offers.all.len() > 5, "{device}");
        }
    }
}
