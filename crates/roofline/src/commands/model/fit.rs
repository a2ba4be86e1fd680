//! What would make a model fit that does not.

use roofline_core::{
    Device, Dim, Model, Plan, Result,
    format::Sizes,
    model::{Lowering, Workload},
    precision::NAMED,
    units::Bytes,
};
use serde::Serialize;

use super::missing;

/// How much is missing, and what would help.
#[derive(Serialize)]
pub(crate) struct Shortfall {
    pub(crate) missing_bytes: Bytes,
    /// The widest named precision of at least 4 bits that fits.
    pub(super) precision: Option<&'static str>,
    /// The fewest devices that can share it, up to 32.
    pub(super) tensor_parallel: Option<u64>,
}

pub(crate) fn shortfall(
    model: &Model,
    workload: Workload,
    lowering: Lowering,
    plan: &Plan,
    sizes: Sizes,
    device: &Device,
) -> Result<Option<Shortfall>> {
    let footprint = model.footprint(workload, lowering, plan, sizes)?;
    let Some(missing_bytes) = missing(footprint, device) else { return Ok(None) };
    let fits = |plan: &Plan, lowering: Lowering| {
        let footprint = model.footprint(workload, lowering, plan, sizes);
        footprint.is_ok_and(|footprint| missing(footprint, device).is_none())
    };
    let precision = NAMED.iter().find(|named| {
        let plan = Plan::model(&named.precision(), device);
        plan.is_ok_and(|plan| plan.layers.weights.nominal_bits() >= 4 && fits(&plan, lowering))
    });
    let share = |ranks: &u64| Dim::new("tp", *ranks).is_ok_and(|ranks| fits(plan, Lowering { ranks, ..lowering }));
    let more = [2, 4, 8, 16, 32].into_iter().filter(|ranks| *ranks > lowering.ranks.get());
    let tensor_parallel = more.into_iter().find(share).filter(|_| device.link().is_ok());
    Ok(Some(Shortfall { missing_bytes, precision: precision.map(|named| named.name), tensor_parallel }))
}
