//! Fewer kernels for the same computation: what would be written only to be read again stays in a kernel.

use super::{CacheUse, Step, Weight};
use crate::{
    Dim, Op,
    op::{ActivatedLinear, ElementwiseKind, ExpertSide, Experts, Linear},
    role::{Part, Role},
};

/// The steps of a layer, fused: products of one input run together, attention keeps its scores, activation functions run
/// in the product before them, and other element-wise work runs in its neighbour.
pub(crate) fn fused(steps: &[Step]) -> Vec<Step> {
    absorbed(merged(steps))
}

/// What a few steps in a row become, and how many they are.
type Rule = fn(&[Step]) -> Option<(Step, usize)>;

/// Rules for a few steps in a row; the first that fits replaces them.
const RULES: &[Rule] = &[projections, attention, feed_forward, gated_experts];

fn merged(steps: &[Step]) -> Vec<Step> {
    let mut done = Vec::with_capacity(steps.len());
    let mut at = 0;
    while at < steps.len() {
        let merged = RULES.iter().find_map(|rule| rule(&steps[at..]));
        let (step, count) = merged.unwrap_or_else(|| (steps[at].clone(), 1));
        done.push(step);
        at += count;
    }
    done
}

/// Queries, keys and values in one product.
fn projections(steps: &[Step]) -> Option<(Step, usize)> {
    const ALL: &[Weight] = &[Weight::Query, Weight::Key, Weight::Value];
    let [one, two, three, ..] = steps else { return None };
    let (Op::Linear(query), Op::Linear(key), Op::Linear(value)) = (one.op, two.op, three.op) else { return None };
    let weights = [one, two, three].map(|step| step.weights);
    if weights != [&ALL[..1], &ALL[1..2], &ALL[2..]] || [one.reads, two.reads] != [two.reads, three.reads] {
        return None;
    }
    let n = Dim::new("qkv", query.n.get() + key.n.get() + value.n.get()).ok()?;
    let part = Part::Qkv { query: query.n, key: key.n };
    let op = Op::Linear(Linear { n, ..query });
    Some((Step { weights: ALL, ..Step::new(("qkv_proj", op, part), one.reads, ALL, one.writes) }, 3))
}

/// Scores that never reach memory.
fn attention(steps: &[Step]) -> Option<(Step, usize)> {
    const NAMES: &[(&str, &str)] = &[("qk_score", "attention"), ("window_qk_score", "window_attention")];
    let [scores, softmax, values, ..] = steps else { return None };
    let (Op::Scores(one), Op::Softmax(two), Op::Values(three)) = (scores.op, softmax.op, values.op) else {
        return None;
    };
    if one != two || two != three {
        return None;
    }
    let site = NAMES.iter().find(|(apart, _)| *apart == scores.site)?.1;
    let step = Step::new((site, Op::Attention(one), scores.part), scores.reads, softmax.weights, values.writes);
    Some((step.with_cache(CacheUse::Read), 3))
}

/// The activation function in the product before it; with a gate, both products in one kernel.
fn feed_forward(steps: &[Step]) -> Option<(Step, usize)> {
    const BOTH: &[Weight] = &[Weight::Gate, Weight::Up];
    const SHARED: &[Weight] = &[Weight::SharedGate, Weight::SharedUp];
    let is = |step: &Step, wanted: ElementwiseKind| matches!(step.op, Op::Elementwise(own) if own.kind == wanted);
    match steps {
        [gate, up, join, ..] if is(join, ElementwiseKind::GatedActivation) => {
            let (Op::Linear(linear), Op::Linear(other)) = (gate.op, up.op) else { return None };
            let shared = gate.weights == &SHARED[..1];
            let (site, weights) = if shared { ("shared_gate_up_proj", SHARED) } else { ("gate_up_proj", BOTH) };
            let op = Op::ActivatedLinear(ActivatedLinear { linear, gated: true });
            let step = Step::new((site, op, Part::GateUp), gate.reads, weights, join.writes);
            (linear == other).then_some((step, 3))
        }
        [up, act, ..] if is(act, ElementwiseKind::Activation) => {
            let Op::Linear(linear) = up.op else { return None };
            let op = Op::ActivatedLinear(ActivatedLinear { linear, gated: false });
            Some((Step::new((up.site, op, up.part), up.reads, up.weights, act.writes), 2))
        }
        _ => None,
    }
}

/// The same for experts with a gate.
fn gated_experts(steps: &[Step]) -> Option<(Step, usize)> {
    const BOTH: &[Weight] = &[Weight::ExpertGate, Weight::ExpertUp];
    let [gate, up, join, ..] = steps else { return None };
    let (Op::Experts(one), Op::Experts(two), Op::Elementwise(_)) = (gate.op, up.op, join.op) else { return None };
    if gate.part != Part::One(Role::ExpertGate) || one != two {
        return None;
    }
    let op = Op::Experts(Experts { side: ExpertSide::GatedUp, ..one });
    Some((Step::new(("experts_gate_up", op, Part::ExpertGateUp), gate.reads, BOTH, join.writes), 3))
}

/// Element-wise steps go into the kernel before them, and those that nothing is before into the one after. The lookup of
/// tokens is a kernel: nothing is before it.
fn absorbed(steps: Vec<Step>) -> Vec<Step> {
    let mut done: Vec<Step> = Vec::with_capacity(steps.len());
    let mut waiting = Vec::new();
    for mut step in steps {
        let absorbs = matches!(step.op, Op::Elementwise(own) if own.kind != ElementwiseKind::Embedding);
        match done.last_mut() {
            Some(kernel) if absorbs => kernel.after.push(step),
            None if absorbs => waiting.push(step),
            _ => {
                step.before = std::mem::take(&mut waiting);
                done.push(step);
            }
        }
    }
    done
}
