//! What would make a model fit that does not.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Lowering, Model, Workload};
use crate::{
    Device, Dim, Plan, Result,
    format::Sizes,
    plan::{Assignment, Mix},
    precision::NAMED,
    units::Bytes,
};

/// How much is missing, and what would help.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Shortfall {
    /// What does not fit.
    pub missing_bytes: Bytes,
    /// The widest named plan of at least 4 bits that fits.
    pub precision: Option<&'static str>,
    /// The fewest devices that can share it, up to 32.
    pub tensor_parallel: Option<u64>,
}

impl Model {
    /// What is missing of a device's memory, and what would do; none where it fits.
    pub fn shortfall(
        &self,
        workload: Workload,
        lowering: Lowering,
        plan: &Assignment,
        sizes: Sizes,
        device: &Device,
    ) -> Result<Option<Shortfall>> {
        let Some(room) = device.room().map(|room| room.for_models()) else { return Ok(None) };
        let need = self.footprint(workload, lowering, plan, sizes)?.total();
        if need <= room {
            return Ok(None);
        }
        let fits = |plan: &Assignment, lowering: Lowering| {
            self.footprint(workload, lowering, plan, sizes).is_ok_and(|footprint| footprint.total() <= room)
        };
        let named = NAMED.iter().map(|named| (named.name, Plan::of(named.precision())));
        let mixes = Mix::advised().map(|mix| (mix.name(), Plan::mixed(mix)));
        let narrow = |plan: &Plan| {
            let plan = plan.on(device, Some(&self.anatomy)).ok()?;
            let weights = plan.at(crate::Role::Output).weights;
            (weights.nominal_bits() >= 4 && fits(&plan, lowering)).then(|| weights.nominal_bits())
        };
        let wide_enough = named.chain(mixes).filter_map(|(name, plan)| Some((name, narrow(&plan)?)));
        // The first of the widest: names of precisions before recipes.
        let precision = wide_enough.reduce(|best, other| if other.1 > best.1 { other } else { best });
        let share = |ranks: &u64| Dim::new("tp", *ranks).is_ok_and(|ranks| fits(plan, Lowering { ranks, ..lowering }));
        let more = [2, 4, 8, 16, 32].into_iter().filter(|ranks| *ranks > lowering.ranks.get());
        let tensor_parallel = more.into_iter().find(share).filter(|_| device.link(Dim::ONE).is_ok());
        let precision = precision.map(|(name, _)| name);
        Ok(Some(Shortfall { missing_bytes: need - room, precision, tensor_parallel }))
    }
}
