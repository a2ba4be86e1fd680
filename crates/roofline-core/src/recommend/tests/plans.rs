//! Every plan that can be advised is one that `predict` takes and says the same of.

use super::*;
use crate::{
    model::Lowering,
    predict::{Figures, predict},
};

/// All candidates of all devices for a few models: the text comes back as the plan, it means something on the device, and the
/// figures are those of the prediction to the last digit.
#[test]
fn every_candidate_is_a_plan_that_predict_takes() {
    let models = ["llama-3-8b", "qwen2.5-0.5b", "gpt-oss-20b", "deepseek-v2-lite", "gemma-3-4b"];
    let models = models.map(|name| Model::find(name).unwrap());
    let mut seen = 0;
    for (at, device) in Registry::builtin().devices().enumerate() {
        let machine = Machine::new(device.clone(), Stack::Roofline);
        // Two models for each device, so that every pair of kinds is seen and a test takes seconds.
        for model in [&models[0], &models[1 + at % 4]] {
            let ask = Ask::default();
            let need = ask.need(model, &machine);
            let advice = recommend(&need).unwrap_or_else(|error| panic!("{}: {error}", device.key));
            assert!(!advice.outcomes.is_empty(), "{}", device.key);
            for outcome in &advice.outcomes {
                seen += 1;
                let plan = &outcome.candidate.plan;
                let text = plan.to_string();
                let parsed: Plan = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(parsed, *plan, "{text}");
                let ranks = crate::Dim::new("devices", outcome.tp).unwrap();
                let graph = model.graph(need.demand.typical(1).unwrap(), Lowering { ranks, ..Lowering::default() });
                let forecast = predict(&graph.unwrap(), &parsed, &machine).unwrap();
                let figures = Figures::of_forecast(&forecast, Tier::Expected, &machine);
                assert_eq!(outcome.figures, figures, "{text} on {}", device.key);
                if outcome.offload.is_none() {
                    assert_eq!(outcome.time, forecast.total.time(Tier::Expected), "{text} on {}", device.key);
                }
            }
        }
    }
    assert!(seen > 5000, "{seen}");
}

/// A speed-up is the ratio of two times of one tier, and the ideal one stands beside it.
#[test]
fn one_tier_for_all() {
    for tier in [Tier::Ideal, Tier::Expected] {
        let advice = advise("llama-3-8b", "h200", &Ask { tier, ..Ask::default() });
        let wide = find(&advice, "bf16").figures.clone();
        for outcome in advice.outcomes.iter().filter(|outcome| outcome.figures.stack == wide.stack) {
            let figures = &outcome.figures;
            assert_eq!(figures.tier, tier);
            let ratio = wide.predicted_time_us / figures.predicted_time_us;
            assert!((outcome.ratios.speedup.unwrap() / ratio - 1.0).abs() < 1e-12);
            let ideal = wide.ideal_time_us / figures.ideal_time_us;
            assert!((outcome.ratios.ideal_speedup.unwrap() / ideal - 1.0).abs() < 1e-12);
        }
    }
}

/// In JSON the plan is its text, at the top and of every outcome, with the fields of every estimate beside it.
#[test]
fn json_has_the_fields_of_every_estimate() {
    let advice = advise("llama-3-8b", "rtx_4090", &Ask::default());
    let json = serde_json::to_value(&advice).unwrap();
    assert_eq!(json["plan"], advice.plan.as_ref().unwrap().to_string());
    let first = &json["outcomes"][0];
    assert_eq!(first["plan"], json["plan"]);
    for field in [
        "known_as",
        "tier",
        "stack",
        "basis",
        "predicted_time_us",
        "ideal_time_us",
        "expected_time_us",
        "lo_us",
        "hi_us",
        "flops",
        "bytes",
        "ai",
        "critical_ai",
        "speedup",
        "ideal_speedup",
        "bottleneck",
        "tp",
        "batch",
        "quality",
        "cache_quality",
    ] {
        assert!(first.get(field).is_some(), "{field}");
    }
    for field in ["weights", "cache", "in_flight", "system", "kept_free", "total", "capacity"] {
        assert!(first["memory"].get(field).is_some(), "{field}");
    }
}
