//! A checkpoint's configuration from anywhere: refused, or a model that can be counted, lowered and sized.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_core::{
    Machine, Model, Plan, Registry,
    format::Sizes,
    machine::Stack,
    model::{Lowering, Workload},
    predict::{Tier, predict},
};

fuzz_target!(|text: &str| {
    let Ok(model) = Model::from_config(text, "fuzz") else { return };
    assert!(model.parameters() >= model.active_parameters());
    let device = Registry::builtin().find("h200_sxm").expect("a built-in device").into_owned();
    let plan: Plan = "w4a16".parse().expect("a plan");
    let Ok(assignment) = plan.on(&device, Some(&model.anatomy)) else { return };
    let machine = Machine::new(device, Stack::Roofline);
    for workload in [Workload::decode(3, 1000), Workload::prefill(2, 77)] {
        let workload = workload.expect("a sensible workload");
        for fused in [true, false] {
            let Ok(graph) = model.graph(workload, Lowering { fused, ..Lowering::default() }) else { continue };
            let total = predict(&graph, &plan, &machine).expect("every unit is there").total;
            for tier in [Tier::Ideal, Tier::Expected] {
                let seconds = total.time(tier).value();
                assert!(seconds.is_finite() && seconds > 0.0);
            }
        }
        if let Ok(footprint) = model.footprint(workload, Lowering::default(), &assignment, Sizes::Exact) {
            assert!(footprint.total().value().is_finite());
        }
    }
});
