//! A pass as text books count it.

use roofline_core::{
    Graph, Op, Role, Work,
    format::Shape,
    measurement::Phase,
    model::{Lowering, Workload},
    op::Class,
    plan::Kernel,
    role::Part,
    units::{Bytes, Flops, Intensity, Seconds},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::place::Found;
use crate::Result;

/// Operations by component, all layers together; a multiply-add is two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "FlopsByComponent")]
pub struct Components {
    pub q_proj: Flops,
    pub k_proj: Flops,
    pub v_proj: Flops,
    pub attn_scores: Flops,
    pub attn_output: Flops,
    pub o_proj: Flops,
    pub mlp_gate: Flops,
    pub mlp_up: Flops,
    pub mlp_down: Flops,
    pub lm_head: Flops,
    /// Products of models that have more: the choice of experts.
    pub other: Flops,
    pub total: Flops,
}

/// Bytes by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "TrafficByPurpose")]
pub struct Traffic {
    /// Of the layers, the head and the table of token vectors.
    pub weights: Bytes,
    /// Keys and values that a new token reads; a prompt has them at hand.
    pub kv_cache: Bytes,
    /// Four hidden vectors for each token and layer.
    pub activations: Bytes,
    pub total: Bytes,
}

/// A pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) flops: Components,
    pub(super) memory: Traffic,
}

/// Hidden vectors that a layer reads and writes for each token, as they are usually estimated.
const VECTORS: f64 = 4.0;

/// What is said wherever these numbers are.
pub(super) const NOTE: &str = "operations count logits of every prompt token and every pair of prompt tokens, bytes \
     the whole table of token vectors and four hidden vectors per layer, as such tables are usually made; `kernels` has \
     what a pass really needs";

/// A prompt of `tokens`, or one token over a context of them.
pub(super) fn workload(phase: Phase, batch: u64, tokens: u64) -> Result<Workload> {
    Ok(match phase {
        Phase::Prefill => Workload::prefill(batch, tokens)?,
        Phase::Decode => Workload::decode(batch, tokens)?,
    })
}

impl Found {
    pub(super) fn counted(&self, phase: Phase, batch: u64, tokens: u64) -> Result<Counted> {
        let workload = workload(phase, batch, tokens)?;
        let prefill = phase == Phase::Prefill;
        let lowering = Lowering { fused: false, all_logits: true, causal: !prefill, ..Lowering::default() };
        let graph = self.model.graph(workload, lowering)?;
        Ok(Counted { flops: self.components(&graph), memory: self.traffic(&graph, workload, prefill)? })
    }

    fn components(&self, graph: &Graph) -> Components {
        let mut all = Components::default();
        self.plan.kernels(graph, |Kernel { node, precision }| {
            // Products only: what norms and activation functions compute is not counted.
            if !matches!(node.op.class(), Class::Gemm | Class::Attention) {
                return;
            }
            let flops = node.op.work(precision, self.machine.sizes).flops * node.count as f64;
            let place = match (node.op, node.part) {
                (Op::Scores(_), _) => &mut all.attn_scores,
                (Op::Values(_), _) => &mut all.attn_output,
                (_, Part::One(Role::Query)) => &mut all.q_proj,
                (_, Part::One(Role::Key)) => &mut all.k_proj,
                (_, Part::One(Role::Value)) => &mut all.v_proj,
                (_, Part::One(Role::Output)) => &mut all.o_proj,
                (_, Part::One(Role::Gate | Role::ExpertGate)) => &mut all.mlp_gate,
                (_, Part::One(Role::Up | Role::ExpertUp)) => &mut all.mlp_up,
                (_, Part::One(Role::Down | Role::ExpertDown)) => &mut all.mlp_down,
                (_, Part::One(Role::Head)) => &mut all.lm_head,
                _ => &mut all.other,
            };
            *place += flops;
            all.total += flops;
        });
        all
    }

    fn traffic(&self, graph: &Graph, workload: Workload, prefill: bool) -> Result<Traffic> {
        let (model, sizes) = (&self.model, self.machine.sizes);
        let mut weights = Bytes::ZERO;
        self.plan.kernels(graph, |Kernel { node, precision }| {
            weights += node.op.weight_bytes(precision, sizes) * node.count as f64;
        });
        if !model.tied {
            let table = Shape::matrix(model.vocabulary, model.hidden);
            weights += self.plan.at(Role::Embedding).weights.bytes(table, sizes);
        }
        let kv_cache = if prefill {
            Bytes::ZERO
        } else {
            let one = roofline_core::Dim::ONE;
            model.kv_bytes(workload.sequences, workload.context, one, self.plan.kv(), sizes)
        };
        let layers: u64 = model.layers.iter().map(|layer| layer.count).sum();
        let hidden = Shape::matrix(workload.tokens()?, model.hidden);
        let activations = self.plan.at(Role::Mix).query.bytes(hidden, sizes) * (VECTORS * layers as f64);
        Ok(Traffic { weights, kv_cache, activations, total: weights + kv_cache + activations })
    }

    /// How long the roof allows for it, all of it as one.
    pub(super) fn roof_time(&self, counted: &Counted) -> Result<Seconds> {
        let device = self.device();
        let memory = counted.memory.total / device.memory.bandwidth;
        let peak = self.ridge()? * device.memory.bandwidth;
        Ok(memory.max(counted.flops.total / peak))
    }
}

impl Counted {
    pub(super) fn work(&self) -> Work {
        Work { flops: self.flops.total, read: self.memory.total, write: Bytes::ZERO }
    }

    pub(super) fn intensity(&self) -> Intensity {
        self.work().intensity()
    }
}
