//! A checkpoint's configuration from anywhere: refused, or a model that can be counted, lowered and sized.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_core::{
    Model, Plan, Registry,
    format::Sizes,
    model::{Lowering, Workload},
    precision::PrecisionSpec,
    predict::predict,
};

fuzz_target!(|text: &str| {
    let Ok(model) = Model::from_config(text, "fuzz") else { return };
    assert!(model.parameters() >= model.active_parameters());
    let device = Registry::builtin().find("h200_sxm").expect("a built-in device").into_owned();
    let spec: PrecisionSpec = "w4a16".parse().expect("a precision");
    let plan = Plan::model(&spec, &device).expect("an H200 has 16-bit units");
    for workload in [Workload::decode(3, 1000), Workload::prefill(2, 77)] {
        let workload = workload.expect("a sensible workload");
        for fused in [true, false] {
            let Ok(graph) = model.graph(workload, Lowering { fused, ..Lowering::default() }) else { continue };
            let total = predict(&graph, &plan, Sizes::Exact, &device).expect("every unit is there").total;
            assert!(total.time().value().is_finite() && total.time().value() > 0.0);
        }
        if let Ok(footprint) = model.footprint(workload, Lowering::default(), &plan, Sizes::Exact) {
            assert!(footprint.total().value().is_finite());
        }
    }
});
