use super::*;
use crate::{Dim, Plan, Registry, machine::Stack, predict::forecast};

/// Prompts and single tokens, shorter and longer than windows, and chunks in between, where latent attention changes sides.
fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for sequences in [1, 64] {
        for context in [1, 77, 128, 129, 4096, 4097, 33_000] {
            for new in [1, 2, 50, context] {
                all.extend(Workload::chunk(sequences, new, context).ok());
            }
        }
    }
    all
}

fn same(model: &Model, device: &str, plan: &str, lowering: Lowering) {
    let machine = Machine::new(Registry::builtin().find(device).unwrap().into_owned(), Stack::Roofline);
    let plan: Plan = plan.parse().unwrap();
    let assignment = plan.on(&machine.device, Some(&model.anatomy)).unwrap();
    let mut prepared: Vec<Prepared<'_>> = Vec::new();
    let mut known = Known::of(20);
    for workload in workloads() {
        let at = prepared.iter().position(|own| own.takes(workload)).unwrap_or_else(|| {
            prepared.push(Prepared::new(model, &machine, &assignment, lowering, workload).unwrap());
            prepared.len() - 1
        });
        let graph = model.graph(workload, lowering).unwrap();
        let told = forecast(&graph, &assignment, &machine).unwrap();
        let footprint = model.footprint_of(&graph, workload, lowering.ranks, &assignment, machine.sizes);
        let expected = Passed { total: told.total, basis: told.basis, footprint };
        for _ in 0..2 {
            let passed = prepared[at].pass(workload, 7, &mut known).unwrap();
            assert_eq!(passed, expected, "{} {device} {plan} {workload:?}", model.key);
        }
    }
    assert!(prepared.len() <= 4, "{}: {} ways", model.key, prepared.len());
}

/// Every model there is, by what its layers have in common and by what they differ in.
#[test]
fn a_prepared_pass_is_a_forecast_to_the_last_bit() {
    for model in Model::builtin() {
        for (device, plan) in [("a100", "bf16"), ("a100", "q4_k_m"), ("h200", "w4a16")] {
            same(model, device, plan, Lowering::default());
        }
    }
}

#[test]
fn so_is_one_of_kernels_that_are_not_fused_or_shared() {
    let two = Dim::new("ranks", 2).unwrap();
    for name in ["llama-3-8b", "mixtral-8x7b", "deepseek-v3"] {
        let model = Model::find(name).unwrap();
        for lowering in [
            Lowering { fused: false, ..Lowering::default() },
            Lowering { ranks: two, all_logits: true, ..Lowering::default() },
        ] {
            same(&model, "h100_sxm", "fp8", lowering);
        }
    }
}
