//! Known cases, and what must hold for all.

use super::*;
use crate::Registry;

fn advise(model: &str, device: &str, demand: Demand, goal: Goal, limits: &Limits) -> Result<Recommendation> {
    let device = Registry::builtin().find(device).unwrap().into_owned();
    let calibration = Calibration::builtin(&device, "roofline");
    let model = Model::find(model).unwrap();
    let need =
        Need { model: &model, device: &device, calibration, batch: 1, demand, goal, dollars_per_hour: None, limits };
    recommend(&need)
}

const DECODE: Demand = Demand::Decode { context: 4096 };

#[test]
fn a_small_jetson_decodes_in_four_bits() {
    let limits = Limits { memory: Some(Bytes::new(8e9)), ..Limits::default() };
    let advice = advise("llama-3-8b", "jetson_orin_nano", DECODE, Goal::Latency, &limits).unwrap();
    let best = advice.choice().unwrap();
    assert_eq!(best.candidate.plan.layers.weights.nominal_bits(), 4, "{}", advice.reason);
    assert!(best.speedup > 2.5 && best.speedup < 4.0, "{}", best.speedup);
    // 16 bit takes 16 GB.
    let plain = advice.outcomes.iter().find(|outcome| outcome.candidate.is_plain()).unwrap();
    assert!(plain.refused.as_deref().unwrap().starts_with("needs "), "{:?}", plain.refused);
}

#[test]
fn prompts_on_an_h100_go_through_fp8() {
    let advice = advise("llama-3-8b", "h100_sxm", Demand::Prefill { prompt: 2048 }, Goal::Latency, &Limits::default());
    let advice = advice.unwrap();
    let best = advice.choice().unwrap();
    assert_eq!(best.candidate.attention, "fp8", "{}", advice.reason);
    assert!(advice.warnings.iter().any(|warning| warning.contains("no time")), "{:?}", advice.warnings);
}

#[test]
fn every_kind_of_device_has_several_plans_and_the_smallest_leads_by_memory() {
    for device in ["b200", "h200", "jetson_orin_nano", "mi300x"] {
        let limits = Limits { any_quality: true, ..Limits::default() };
        let advice = advise("llama-3-8b", device, DECODE, Goal::Memory, &limits).unwrap();
        let plans = advice.outcomes.len();
        println!("{device} {plans}");
        assert!(plans >= 8, "{device}: {plans}");
        // The best by memory has the least.
        let least =
            advice.outcomes.iter().filter(|outcome| outcome.refused.is_none()).map(|outcome| outcome.memory.value());
        assert_eq!(advice.choice().unwrap().memory.value(), least.fold(f64::INFINITY, f64::min));
        assert!(advice.outcomes.iter().any(|outcome| outcome.pareto));
    }
}

#[test]
fn limits_bite_and_say_so() {
    let refused = |limits: &Limits| advise("llama-3-8b", "h200", DECODE, Goal::Latency, limits).unwrap();
    let strict = refused(&Limits { quality_loss: Some(0.01), ..Limits::default() });
    assert!(strict.choice().unwrap().quality.worst().unwrap() <= 0.01);
    let native = refused(&Limits { native_only: true, ..Limits::default() });
    assert!(!native.choice().unwrap().candidate.weight_only());
    let denied = refused(&Limits { deny: vec!["w4a16".to_owned()], ..Limits::default() });
    assert!(!denied.choice().unwrap().candidate.name.contains("w4a16"));
    let fast = refused(&Limits { tokens_per_s: Some(1e6), ..Limits::default() });
    assert!(fast.choice().is_none() && fast.reason.starts_with("no plan meets every limit"), "{}", fast.reason);
    let tight = refused(&Limits { memory: Some(Bytes::new(1e9)), ..Limits::default() });
    assert!(tight.reason.starts_with("nothing fits"), "{}", tight.reason);
    for wrong in [
        Limits { memory: Some(Bytes::ZERO), ..Limits::default() },
        Limits { tokens_per_s: Some(-1.0), ..Limits::default() },
        Limits { quality_loss: Some(f64::NAN), ..Limits::default() },
        Limits { allow: vec!["fp8".into()], deny: vec!["fp8".into()], ..Limits::default() },
    ] {
        assert!(advise("llama-3-8b", "h200", DECODE, Goal::Latency, &wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn throughput_takes_as_many_sequences_as_fit() {
    let advice = advise("llama-3-8b", "h200", DECODE, Goal::Throughput, &Limits::default()).unwrap();
    let best = advice.choice().unwrap();
    assert!(best.batch >= 64, "{}", best.batch);
    assert!(best.memory <= advice.capacity.unwrap());
    // 70 billion weights do not fit at 16 bit; a speed-up is still one over 16 bit at the same batch.
    let large = advise("llama-3.1-70b", "h200", DECODE, Goal::Throughput, &Limits::default()).unwrap();
    assert!(large.outcomes.iter().all(|outcome| (0.5..8.0).contains(&outcome.speedup)), "{}", large.reason);
}

#[test]
fn a_narrow_cache_is_not_free() {
    let limits = Limits { quality_loss: Some(0.0), ..Limits::default() };
    let advice = advise("llama-3-8b", "h100_sxm", DECODE, Goal::Latency, &limits).unwrap();
    assert!(advice.choice().unwrap().candidate.is_plain(), "{}", advice.reason);
    let narrow = advice.outcomes.iter().find(|outcome| outcome.candidate.kv.nominal_bits() < 16).unwrap();
    assert!(narrow.refused.is_some());
}

#[test]
fn a_limit_tightens_what_there_is() {
    let limits = Limits { memory: Some(Bytes::new(80e9)), ..Limits::default() };
    let advice = advise("llama-3-8b", "jetson_orin_nano", DECODE, Goal::Latency, &limits).unwrap();
    assert!(advice.capacity.unwrap() < Bytes::new(9e9), "{:?}", advice.capacity);
    let first = Limits { first_token: Some(Seconds::new(1e-6)), ..Limits::default() };
    assert!(advise("llama-3-8b", "h200", DECODE, Goal::Latency, &first).is_err());
}

#[test]
fn a_product_is_advised_with_the_fields_of_the_interface() {
    let orin = Registry::builtin().find("jetson_orin_nano").unwrap().into_owned();
    let advice = recommend_operator((1, 4096, 4096), &orin, None, None).unwrap();
    let short = &advice.recommendation;
    assert_eq!((short.method, short.memory_bound), ("PTQ", true));
    assert!((short.predicted_speedup - 3.87).abs() < 0.01, "{}", short.predicted_speedup);
    assert!((short.memory_savings_pct - 74.2).abs() < 0.1, "{}", short.memory_savings_pct);
    assert!(short.reason.starts_with("memory-bound (AI 1.0, critical"), "{}", short.reason);
    let h100 = Registry::builtin().find("h100_sxm").unwrap().into_owned();
    let prompt = recommend_operator((4096, 4096, 4096), &h100, None, None).unwrap();
    assert_eq!((prompt.recommendation.precision.as_str(), prompt.recommendation.method), ("fp8", "native_fp8"));
    assert!(prompt.warnings[0].contains("no time"));
    assert!(recommend_operator((1, 4096, 4096), &orin, None, Some(Bytes::ZERO)).is_err());
    let tight = recommend_operator((1, 4096, 4096), &orin, None, Some(Bytes::new(1e6))).unwrap_err();
    assert!(tight.to_string().starts_with("no precision fits"), "{tight}");
}
