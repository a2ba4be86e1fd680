//! Energy of a computation: what the chip takes while it runs, for each byte, for each operation, and for each weight that
//! is widened before it is multiplied.
//!
//! `E = P_static t + e_byte B + sum over units (e_unit F_unit) + e_widen W`, fitted where power was measured. Elsewhere only
//! the power limit is known, and `P_limit t` is all that can be said.

use std::{collections::BTreeMap, sync::LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Device, Format, Graph, Math, Precision,
    device::Origin,
    format::Sizes,
    plan::{Assignment, Kernel},
    units::{Joules, Seconds, Watts},
};

/// Energy, and how it is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "kind", content = "joules", rename_all = "snake_case")]
#[schemars(rename = "PredictedEnergy")]
pub enum Energy {
    /// From terms that were fitted to measured energies of this device.
    Fitted(Joules),
    /// The whole power limit for the predicted time: nothing was measured.
    AtLimit(Joules),
}

impl Energy {
    /// The amount.
    pub fn joules(self) -> Joules {
        match self {
            Self::Fitted(joules) | Self::AtLimit(joules) => joules,
        }
    }

    /// One after the other; none where they are not known in the same way.
    #[must_use]
    pub fn plus(self, next: Self) -> Option<Self> {
        match (self, next) {
            (Self::Fitted(one), Self::Fitted(other)) => Some(Self::Fitted(one + other)),
            (Self::AtLimit(one), Self::AtLimit(other)) => Some(Self::AtLimit(one + other)),
            _ => None,
        }
    }

    /// The same of a part, or of several.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        match self {
            Self::Fitted(joules) => Self::Fitted(joules * factor),
            Self::AtLimit(joules) => Self::AtLimit(joules * factor),
        }
    }
}

/// What energy is paid for, besides time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Bytes to and from memory.
    pub bytes: f64,
    /// Operations of products and attention by the unit that does them. What passes over elements once is all bytes.
    pub operations: BTreeMap<Math, f64>,
    /// Weights that are stored narrower than they are multiplied.
    pub widened: f64,
}

impl Activity {
    /// That of a graph.
    pub fn of(graph: &Graph, plan: &Assignment, sizes: Sizes) -> Self {
        let mut all = Self::default();
        plan.kernels(graph, |Kernel { node, precision }| {
            let count = node.count as f64;
            let work = node.op.likely_work(precision, sizes);
            all.bytes += work.bytes().value() * count;
            let math = node.op.math(precision);
            if math != Math::Fp32 {
                *all.operations.entry(math).or_default() += work.flops.value() * count;
            }
            if let Some(weights) = node.op.weights().filter(|_| widens(precision)) {
                all.widened += weights.read * weights.n.float() * weights.k.float() * count;
            }
        });
        all
    }
}

fn widens(precision: &Precision) -> bool {
    let [weights, activations] = [precision.weights, precision.activations].map(Format::nominal_bits);
    weights < activations
}

/// Terms of a device, with where they come from.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnergyModel {
    /// The device, as `on` takes it.
    pub device: String,
    /// The measurements they were fitted to.
    pub samples: String,
    /// When, on what and how.
    pub provenance: String,
    /// Drawn while anything runs.
    pub static_w: f64,
    /// For each byte to or from memory.
    pub pj_per_byte: f64,
    /// For each weight that is widened.
    pub pj_per_widened_weight: f64,
    /// For each operation of a unit.
    pub pj_per_operation: BTreeMap<Math, f64>,
    /// Mean error on kernels they were not fitted to.
    pub held_out_mean_error: f64,
}

impl EnergyModel {
    /// The terms of `device`; none where nobody measured. A device whose numbers are the user's own has none.
    pub fn builtin(device: &Device) -> Option<&'static Self> {
        static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/energy.rs"));
        static MODELS: LazyLock<Vec<EnergyModel>> =
            LazyLock::new(|| FILES.iter().flat_map(|(_, text)| toml::from_str(text)).collect());
        MODELS.iter().find(|model| device.origin == Origin::Builtin && model.device == device.label())
    }

    /// Energy of an activity that takes `time`; none where a unit's operations were not measured.
    pub fn energy(&self, activity: &Activity, time: Seconds) -> Option<Joules> {
        let mut picojoules = activity.bytes * self.pj_per_byte + activity.widened * self.pj_per_widened_weight;
        for (math, operations) in &activity.operations {
            // FP16 and BF16 go through the same multipliers.
            let math = if *math == Math::Fp16 { Math::Bf16 } else { *math };
            picojoules += operations * self.pj_per_operation.get(&math)?;
        }
        Some(Watts::new(self.static_w) * time + Joules::new(picojoules * 1e-12))
    }
}

/// Energy of a pass on a device: by its own terms where it has some, else at its power limit.
pub fn energy(graph: &Graph, plan: &Assignment, sizes: Sizes, device: &Device, time: Seconds) -> Option<Energy> {
    let fitted = EnergyModel::builtin(device).and_then(|model| model.energy(&Activity::of(graph, plan, sizes), time));
    fitted.map(Energy::Fitted).or_else(|| device.tdp.map(|limit| Energy::AtLimit(limit * time)))
}

#[cfg(test)]
mod tests;
