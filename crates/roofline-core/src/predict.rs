//! How long a graph must take on a machine, and how long it is likely to take: always both.

mod estimate;
mod expected;
mod figures;
mod prediction;
mod prepared;
mod sum;
mod time;

pub use estimate::{Bound, Estimate};
pub use expected::{Causes, Expected};
pub use figures::{Figures, KernelFigures, Ratios};
pub use prediction::{Prediction, Reason, Tier};
pub use prepared::{Known, Passed, Prepared};
pub use time::{Floor, Ideal, Likely, Outlook, Time};

use schemars::JsonSchema;
use serde::Serialize;

use self::sum::Sum;
use crate::{
    Graph, Plan, Precision, Result,
    graph::Node,
    machine::{Basis, Machine},
    plan::{Assignment, Kernel},
};

/// One kernel of a forecast, as often as it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// The kernel.
    pub node: Node,
    /// Its formats.
    pub precision: Precision,
    /// Both times.
    pub prediction: Prediction,
    /// Where the expected one comes from.
    pub basis: Basis,
}

/// A graph's kernels and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Each kernel.
    pub kernels: Vec<Predicted>,
    /// One after the other.
    pub total: Prediction,
    /// The weakest basis of a kernel.
    pub basis: Basis,
}

/// Kernels that stand on a weaker basis than others of the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "WeakerBasis")]
pub struct Weaker {
    /// The weaker basis.
    pub basis: Basis,
    /// The sites whose kernels stand on it.
    pub kernels: Vec<&'static str>,
}

impl Forecast {
    /// Kernels by basis, the weakest first, where not all stand on the same.
    pub fn weaker(&self) -> Vec<Weaker> {
        let mut found: Vec<Weaker> = Vec::new();
        for kernel in &self.kernels {
            match found.iter_mut().find(|weaker| weaker.basis == kernel.basis) {
                Some(weaker) if weaker.kernels.contains(&kernel.node.site) => {}
                Some(weaker) => weaker.kernels.push(kernel.node.site),
                None => found.push(Weaker { basis: kernel.basis, kernels: vec![kernel.node.site] }),
            }
        }
        found.sort_by_key(|weaker| std::cmp::Reverse(weaker.basis));
        // The strongest of several needs no word.
        found.truncate(found.len() - 1);
        found
    }

    /// The part of the layers' operations that feed-forward products do.
    pub fn feed_forward_share(&self) -> f64 {
        let (mut inside, mut all) = (0.0, 0.0);
        for kernel in &self.kernels {
            let (role, flops) = (kernel.node.part.role(), kernel.prediction.ideal.work.flops.value());
            if kernel.node.groups != 0 {
                all += flops;
                inside += if role.is_feed_forward() { flops } else { 0.0 };
            }
        }
        inside / all
    }
}

/// How long `graph` takes on `machine` with the formats of `plan`.
pub fn predict(graph: &Graph, plan: &Plan, machine: &Machine) -> Result<Forecast> {
    forecast(graph, &plan.on(&machine.device, graph.anatomy.as_deref())?, machine)
}

/// The same for formats that are known already.
pub fn forecast(graph: &Graph, assignment: &Assignment, machine: &Machine) -> Result<Forecast> {
    let among = machine.among(graph, assignment);
    let mut kernels = Vec::with_capacity(graph.nodes.len());
    let (mut sum, mut failed) = (Sum::default(), None);
    assignment.kernels(graph, |Kernel { node, precision }| {
        match machine.prediction_among(&node.op, precision, among) {
            Ok((prediction, own)) => {
                let prediction = prediction.times(node.count);
                sum.add(prediction, own);
                kernels.push(Predicted { node, precision: *precision, prediction, basis: own });
            }
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let (total, basis) = sum.total()?;
    Ok(Forecast { kernels, total, basis })
}
