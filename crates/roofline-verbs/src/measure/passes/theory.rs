//! What theory says of the passes that ran: the same graph, with the weights as they are stored.

use roofline_core::{
    Dim, Machine,
    machine::Basis,
    measurement::Phase,
    model::{Lowering, Workload},
    predict::{Prediction, forecast},
    units::Bytes,
};
use roofline_engine::{Backend, Engine, Settings};

use super::timing::{Pass, Timed};
use crate::Result;

/// Both phases, and the sites of each.
pub(super) struct Theory {
    pub(super) prefill: Prediction,
    pub(super) decode: Prediction,
    pub(super) basis: Basis,
    pub(super) memory: Bytes,
    prefill_sites: Sites,
    decode_sites: Sites,
}

/// What each site takes, in the order in which it runs.
type Sites = Vec<(&'static str, Prediction)>;

impl Theory {
    /// None where other threads of a processor ran than those that it is known by.
    pub(super) fn of(engine: &Engine<'_>, machine: &Machine, timed: &Timed) -> Result<Option<Self>> {
        let Settings { backend, threads, .. } = &engine.settings;
        if *backend == Backend::Cpu && *threads != crate::this_machine::machine().threads {
            return Ok(None);
        }
        let Pass { batch, prompt, generate } = timed.pass;
        let assignment = engine.assignment(&machine.device)?;
        let batch = batch as u64;
        let chunks = (0..prompt).step_by(timed.chunk).map(|from| {
            let until = (from + timed.chunk).min(prompt);
            Workload::chunk(batch, (until - from) as u64, until as u64)
        });
        // The step in the middle is the median one.
        let middle = Workload::decode(batch, (prompt + generate.div_ceil(2)) as u64)?;
        let mut basis = Basis::Calibrated;
        let mut sum = |workloads: Vec<Workload>| -> Result<(Option<Prediction>, Sites)> {
            let (mut total, mut sites): (Option<Prediction>, Sites) = (None, Vec::new());
            for workload in workloads {
                let graph = engine.model.graph(workload, Lowering::default())?;
                let told = forecast(&graph, &assignment, machine)?;
                total = Some(total.map_or(told.total, |sum| sum.then(told.total)));
                basis = basis.max(told.basis);
                for kernel in &told.kernels {
                    match sites.iter_mut().find(|(site, _)| *site == kernel.node.site) {
                        Some((_, sum)) => *sum = sum.then(kernel.prediction),
                        None => sites.push((kernel.node.site, kernel.prediction)),
                    }
                }
            }
            Ok((total, sites))
        };
        let (prefill, prefill_sites) = sum(chunks.collect::<roofline_core::Result<_>>()?)?;
        let (decode, decode_sites) = sum(vec![middle])?;
        let (Some(prefill), Some(decode)) = (prefill, decode) else { return Ok(None) };
        let last = Workload::chunk(batch, timed.chunk.min(prompt) as u64, (prompt + generate) as u64)?;
        let graph = engine.model.graph(last, Lowering::default())?;
        let memory = engine.model.footprint_of(&graph, last, Dim::ONE, &assignment, machine.sizes).total();
        Ok(Some(Self { prefill, decode, basis, memory, prefill_sites, decode_sites }))
    }

    /// The sites of a phase.
    pub(super) fn sites(&self, phase: Phase) -> &[(&'static str, Prediction)] {
        match phase {
            Phase::Prefill => &self.prefill_sites,
            Phase::Decode => &self.decode_sites,
        }
    }
}
