use super::*;
use crate::{
    Model, Precision,
    format::Sizes,
    model::{Lowering, Workload},
    op::ElementwiseKind,
    precision::PrecisionSpec,
    registry::Registry,
};

fn lowered(model: &Model, fused: bool) -> Program {
    model.program(Workload::chunk(2, 3, 300).unwrap(), Lowering { fused, ..Lowering::default() }).unwrap()
}

fn precision() -> Precision {
    "bf16".parse::<PrecisionSpec>().unwrap().on(&Registry::builtin().find("h200").unwrap()).unwrap()
}

/// Every step reads only what some step before it wrote in this pass, and what it writes is read, or is the result.
#[test]
fn values_are_written_before_they_are_read() {
    for model in Model::builtin() {
        for fused in [false, true] {
            let program = lowered(model, fused);
            let mut known = vec![Value::Tokens];
            let mut check = |step: &Step, at: &str| {
                for value in step.reads {
                    assert!(known.contains(value), "{} {at}: {} reads {value:?}", model.key, step.site);
                }
                known.push(step.writes);
                // A product of queries, keys and values writes all three.
                known.extend([Value::Key, Value::Value].iter().filter(|_| step.site == "qkv_proj"));
            };
            for (layer, step) in program.steps() {
                let at = format!("layer {layer:?}, fused {fused}");
                step.before.iter().for_each(|step| check(step, &at));
                check(step, &at);
                step.after.iter().for_each(|step| check(step, &at));
            }
            assert_eq!(program.end.last().unwrap().writes, Value::Logits);
        }
    }
}

/// What steps do one after the other is what their graph counts, to the last operation and byte.
#[test]
fn the_graph_is_the_steps_counted() {
    let precision = precision();
    for model in Model::builtin() {
        for fused in [false, true] {
            let program = lowered(model, fused);
            let (mut flops, mut bytes) = (0.0, 0.0);
            for (_, step) in program.steps() {
                let work = step.op.work(&precision, Sizes::Exact);
                flops += work.flops.value();
                bytes += work.bytes().value();
            }
            let nodes = program.graph().nodes;
            let sum = |of: &dyn Fn(&Node) -> f64| nodes.iter().map(of).sum::<f64>();
            let counted = (
                sum(&|node| node.op.work(&precision, Sizes::Exact).flops.value() * node.count as f64),
                sum(&|node| node.op.work(&precision, Sizes::Exact).bytes().value() * node.count as f64),
            );
            assert!((flops / counted.0 - 1.0).abs() < 1e-12, "{} {flops} {counted:?}", model.key);
            assert!((bytes / counted.1 - 1.0).abs() < 1e-12, "{} {bytes} {counted:?}", model.key);
        }
    }
}

/// Fusing loses no step: whatever ran apart runs inside a kernel, and every weight is still read once.
#[test]
fn fusion_keeps_every_weight_and_every_elementwise_step() {
    for model in Model::builtin() {
        let of = |program: &Program| {
            let mut weights = Vec::new();
            let mut small = 0;
            for (layer, step) in program.steps() {
                for step in step.before.iter().chain([step]).chain(&step.after) {
                    weights.extend(step.weights.iter().map(|weight| (layer, *weight)));
                    small += u64::from(
                        matches!(step.op, Op::Elementwise(own) if own.kind != ElementwiseKind::GatedActivation
                        && own.kind != ElementwiseKind::Activation),
                    );
                }
            }
            weights.sort_unstable();
            (weights, small)
        };
        assert_eq!(of(&lowered(model, false)), of(&lowered(model, true)), "{}", model.key);
    }
}

/// Llama 3 8B, by hand: a norm, three projections, rotation, cache, three of attention, the output, the sum, a norm, gate,
/// up, their product, down, the sum.
#[test]
fn a_layer_of_llama_has_seventeen_steps_and_five_kernels() {
    let model = Model::find("llama-3-8b").unwrap();
    let sites = |fused| lowered(&model, fused).layers[0].iter().map(|step| step.site).collect::<Vec<_>>();
    assert_eq!(sites(true), ["qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj"]);
    assert_eq!(
        sites(false),
        [
            "rmsnorm",
            "q_proj",
            "k_proj",
            "v_proj",
            "rope",
            "kv_write",
            "qk_score",
            "softmax",
            "sv_prod",
            "o_proj",
            "residual",
            "rmsnorm",
            "gate_proj",
            "up_proj",
            "silu_mul",
            "down_proj",
            "residual"
        ]
    );
    assert_eq!(lowered(&model, true).steps().count(), 1 + 32 * 5 + 1);
}
