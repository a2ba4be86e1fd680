//! Passes of a model over many workloads: its kernels are found once, and each workload is only their rows.
//!
//! What a kernel takes is told by what tells it in a [forecast](super::forecast()), so the numbers are the same to the last
//! bit; what is left out is lowering the model and giving every kernel its formats, again and again.

use super::{Prediction, sum::Sum};
use crate::{
    Machine, Model, Op, Precision, Result,
    machine::Basis,
    model::{Footprint, Lowering, Rows, Workload},
    plan::{Assignment, Kernel},
    published::{Among, Shared},
    units::Bytes,
};

/// The kernels of a model on a machine by formats that are known, over any workload that takes the same ones.
pub struct Prepared<'a> {
    model: &'a Model,
    machine: &'a Machine,
    assignment: &'a Assignment,
    lowering: Lowering,
    ways: u16,
    kernels: Vec<Each>,
    shared: Shared,
    weights: Bytes,
}

/// A kernel, per row.
struct Each {
    op: Op,
    rows: Rows,
    count: u64,
    precision: Precision,
}

/// A whole pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passed {
    /// Both times.
    pub total: Prediction,
    /// The weakest basis of a kernel.
    pub basis: Basis,
    /// What it occupies.
    pub footprint: Footprint,
}

impl<'a> Prepared<'a> {
    /// The kernels of `workload`, and of every other that [takes](Self::takes) the same.
    pub fn new(
        model: &'a Model,
        machine: &'a Machine,
        assignment: &'a Assignment,
        lowering: Lowering,
        workload: Workload,
    ) -> Result<Self> {
        let graph = model.graph(workload, lowering)?;
        let mut kernels = Vec::with_capacity(graph.nodes.len());
        let mut failed = None;
        assignment.kernels(&graph, |Kernel { node, precision }| match node.rows.of(workload) {
            Ok(rows) => {
                let op = node.op.per_row(rows);
                kernels.push(Each { op, rows: node.rows, count: node.count, precision: *precision });
            }
            Err(error) => failed = Some(error),
        });
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(Self {
            model,
            machine,
            assignment,
            lowering,
            ways: model.ways(workload),
            kernels,
            shared: Shared::of(&graph, assignment),
            weights: model.weights_of(&graph, lowering.ranks, assignment, machine.sizes),
        })
    }

    /// Whether a workload has these kernels.
    pub fn takes(&self, workload: Workload) -> bool {
        self.ways == self.model.ways(workload)
    }

    /// The pass over a workload that these are the kernels of. What is `known` of others is taken from there; `id` tells
    /// them apart, and no two that share it may have the same.
    pub fn pass(&self, workload: Workload, id: u32, known: &mut Known) -> Result<Passed> {
        let Self { model, machine, assignment, lowering, .. } = *self;
        let sizes = machine.sizes;
        let among = self.shared.among(workload.sequences.float(), workload.new.get() > 1, machine.reach());
        let (mut sum, mut largest) = (Sum::default(), Bytes::ZERO);
        for (at, Each { op, rows, count, precision }) in self.kernels.iter().enumerate() {
            let op = op.over(rows.of(workload)?, workload);
            let find = || machine.prediction_among(&op, precision, among);
            // Terms of a class are sooner told than looked up.
            let (prediction, basis) = match machine.calibration() {
                Some(_) => known.or_else((id, self.ways, at as u16), &op, among, find)?,
                None => find()?,
            };
            largest = largest.max(op.in_flight(prediction.ideal.work.bytes(), precision, sizes));
            sum.add(prediction.times(*count), basis);
        }
        let (total, basis) = sum.total()?;
        let footprint = model.occupied(self.weights, largest, workload, lowering.ranks, assignment, sizes);
        Ok(Passed { total, basis, footprint })
    }
}

/// Kernels whose times are known. Of those that fall on one place, the newer one stays: memory is flat, and looking in vain
/// costs next to nothing.
pub struct Known {
    /// None until something is to be kept.
    told: Vec<Option<Told>>,
    places: usize,
}

/// Which kernel of which passes.
type Key = (u32, u16, u16);
/// A kernel's times.
type Told = (Key, Op, Among, (Prediction, Basis));

/// Most places for kernels: eight megabytes.
const PLACES: usize = 1 << 15;

impl Known {
    /// With places for the kernels of as many passes, as far as they are worth it.
    pub fn of(passes: usize) -> Self {
        Self { told: Vec::new(), places: passes.saturating_mul(8).clamp(1, PLACES) }
    }

    /// What is known of a kernel, or what is found now. Attention is different in every pass, and never kept.
    fn or_else(
        &mut self,
        key: Key,
        op: &Op,
        among: Among,
        find: impl FnOnce() -> Result<(Prediction, Basis)>,
    ) -> Result<(Prediction, Basis)> {
        let rows = match op {
            Op::Linear(linear) => linear.m.get(),
            Op::ActivatedLinear(activated) => activated.linear.m.get(),
            Op::Experts(experts) => experts.tokens.get(),
            Op::AllReduce(reduce) => reduce.tokens.get(),
            Op::Elementwise(elementwise) => elementwise.tokens as u64,
            Op::Attention(_) | Op::Scores(_) | Op::Softmax(_) | Op::Values(_) => return find(),
        };
        // Odd factors spread neighbours; the upper bits are the ones that all lower bits reach.
        let mixed = [u64::from(key.0), u64::from(key.1) << 16 | u64::from(key.2), rows]
            .into_iter()
            .fold(0_u64, |mixed, part| (mixed ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if self.told.is_empty() {
            self.told.resize_with(self.places, || None);
        }
        let place = &mut self.told[(mixed >> 40) as usize % self.places];
        match place {
            Some((of, own, others, told)) if *of == key && own == op && *others == among => Ok(*told),
            _ => {
                let told = find()?;
                *place = Some((key, *op, among, told));
                Ok(told)
            }
        }
    }
}

#[cfg(test)]
mod tests;
