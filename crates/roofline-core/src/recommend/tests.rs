//! Known cases, and what must hold for all.

use super::*;
use crate::Registry;

fn advise(model: &str, device: &str, demand: Demand, goal: Goal, limits: &Limits) -> Result<Recommendation> {
    let device = Registry::builtin().find(device).unwrap().into_owned();
    let calibration = Calibration::builtin(&device, "roofline");
    let model = Model::find(model).unwrap();
    let need =
        Need { model: &model, device: &device, calibration, batch: None, demand, goal, dollars_per_hour: None, limits };
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
        assert!(plans >= if device == "b200" { 200 } else { 40 }, "{device}: {plans}");
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

#[test]
fn energy_is_fitted_where_it_was_measured_and_the_limit_elsewhere() {
    let h200 = advise("llama-3-8b", "h200", DECODE, Goal::Energy, &Limits::default()).unwrap();
    let best = h200.choice().unwrap();
    // Measured kernels of w4a16 sum to 1.09 J; nvfp4a16 moves a little more.
    assert!(matches!(best.energy_per_token, Some(Energy::Fitted(joules)) if (1.05..1.20).contains(&joules.value())));
    let wide = h200.outcomes.iter().find(|outcome| outcome.candidate.is_plain()).unwrap();
    let ratio = wide.energy_per_token.unwrap().joules() / best.energy_per_token.unwrap().joules();
    assert!(ratio > 1.8 && ratio < best.speedup, "{ratio}");
    let orin = advise("llama-3-8b", "jetson_orin_nano@7W", DECODE, Goal::Energy, &Limits::default()).unwrap();
    let best = orin.choice().unwrap();
    assert_eq!(best.energy_per_token, Some(Energy::AtLimit(crate::units::Watts::new(7.0) * best.time)));
    // A mode without a budget has nothing to be judged by.
    assert!(
        advise("llama-3-8b", "jetson_orin_nano_8gb_super@MAXN_SUPER", DECODE, Goal::Energy, &Limits::default())
            .is_err()
    );
}

#[test]
fn much_loss_is_not_taken_unasked() {
    let prefill = Demand::Prefill { prompt: 2048 };
    let advice = advise("llama-3-8b", "gb10", prefill, Goal::Latency, &Limits::default()).unwrap();
    assert_eq!(advice.choice().unwrap().candidate.name, "fp8", "{}", advice.reason);
    assert!(advice.warnings.iter().any(|warning| warning.starts_with("nvfp4 would be")), "{:?}", advice.warnings);
    let any = Limits { any_quality: true, ..Limits::default() };
    let advice = advise("llama-3-8b", "gb10", prefill, Goal::Latency, &any).unwrap();
    assert_eq!(advice.choice().unwrap().candidate.name, "nvfp4", "{}", advice.reason);
}

#[test]
fn what_would_do_is_named() {
    let advice = advise("llama-3-70b", "rtx_4090", DECODE, Goal::Latency, &Limits::default()).unwrap();
    assert!(advice.choice().is_none() && advice.reason.contains("it would fit L40S"), "{}", advice.reason);
    let limits = Limits { memory: Some(Bytes::new(4e9)), ..Limits::default() };
    let advice = advise("llama-3-8b", "h200", DECODE, Goal::Latency, &limits).unwrap();
    assert!(advice.reason.contains("would do, which the device has"), "{}", advice.reason);
}

#[test]
fn a_head_counts_once_where_it_is_tied_and_twice_where_it_is_not() {
    let saved = |model: &str| {
        let limits = Limits { runtimes: vec!["llama.cpp".to_owned()], any_quality: true, ..Limits::default() };
        let advice = advise(model, "a100_sxm_80gb", DECODE, Goal::Memory, &limits).unwrap();
        let weights = |head: bool| {
            let plain = |outcome: &&Outcome| {
                let candidate = &outcome.candidate;
                candidate.attention == "bf16" && candidate.feed_forward == "bf16" && candidate.head.is_some() == head
            };
            advice.outcomes.iter().find(plain).unwrap().footprint.weights.value()
        };
        weights(false) - weights(true)
    };
    // 16 bits become 8.5.
    let table = |vocabulary: f64, hidden: f64| vocabulary * hidden * 7.5 / 8.0;
    assert!((saved("llama-3.2-1b") / table(128_256.0, 2048.0) - 1.0).abs() < 1e-9);
    assert!((saved("llama-3-8b") / (2.0 * table(128_256.0, 4096.0)) - 1.0).abs() < 1e-9);
}

#[test]
fn other_circumstances_are_told() {
    let device = Registry::builtin().find("h200").unwrap().into_owned();
    let (model, limits) = (Model::find("llama-3-8b").unwrap(), Limits::default());
    let need = |goal, dollars_per_hour| Need {
        model: &model,
        device: &device,
        calibration: Calibration::builtin(&device, "roofline"),
        batch: None,
        demand: DECODE,
        goal,
        dollars_per_hour,
        limits: &limits,
    };
    let latency = need(Goal::Latency, None);
    let advice = recommend(&latency).unwrap();
    let told = sensitivity(&latency, &advice).unwrap();
    let changes: Vec<&str> = told.iter().map(|variation| variation.change).collect();
    assert_eq!(changes, ["bandwidth -20 %", "bandwidth +20 %", "context x4", "batch x8"]);
    // With less bandwidth, fewer bytes gain more.
    assert!(told[0].speedup.unwrap() > told[1].speedup.unwrap(), "{told:?}");
    // An hour at 3.60 dollars costs a thousandth of a dollar per second.
    let cost = need(Goal::Cost, Some(3.6));
    let best = recommend(&cost).unwrap().choice().unwrap().clone();
    assert!((best.dollars_per_million_tokens.unwrap() - 1000.0 / best.tokens_per_s).abs() < 1e-9);
    assert!(recommend(&need(Goal::Cost, None)).is_err() && recommend(&need(Goal::Cost, Some(-1.0))).is_err());
}

#[test]
fn throughput_is_looked_for_between_powers_of_two() {
    let limits = Limits { runtimes: vec!["vllm".to_owned()], ..Limits::default() };
    let advice = advise("llama-3.1-8b", "a100_sxm_80gb", DECODE, Goal::Throughput, &limits).unwrap();
    let plan = |name: &str| advice.outcomes.iter().find(|outcome| outcome.candidate.name == name).unwrap();
    let (wide, narrow) = (plan("bf16"), plan("w8a16"));
    // 536.9 MB of cache for each sequence: what is left of nine tenths of 85.9 GB holds 114 and 127.
    assert_eq!((wide.batch, narrow.batch), (114, 127));
    assert!((narrow.speedup - narrow.tokens_per_s / wide.tokens_per_s).abs() < 1e-12 && narrow.speedup < 1.1);
    // One sequence more would not fit.
    assert!(narrow.memory + Bytes::new(536.9e6) > advice.capacity.unwrap());
}

#[test]
fn nothing_is_quantized_for_nothing() {
    let advice = advise("smollm2-135m", "h200", DECODE, Goal::Latency, &Limits::default()).unwrap();
    assert!(advice.choice().unwrap().candidate.is_plain(), "{}", advice.reason);
}

#[test]
fn blocks_divide_what_is_stored() {
    // Rows of 576 weights have no groups of 128; heads of 80 no blocks of 32.
    let small = advise("smollm2-135m", "a100_sxm_80gb", DECODE, Goal::Latency, &Limits::default()).unwrap();
    assert!(small.outcomes.iter().all(|outcome| !outcome.candidate.name.contains("w4a16")));
    assert!(small.outcomes.iter().any(|outcome| outcome.candidate.name == "int4-g64/bf16"));
    let phi = advise("phi-2", "a100_sxm_80gb", DECODE, Goal::Latency, &Limits::default()).unwrap();
    assert!(phi.outcomes.iter().all(|outcome| outcome.candidate.kv.block() != Some(32)));
}

#[test]
fn names_deny_formats_too_and_must_mean_something() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let advice = |limits: &Limits| advise("llama-3-8b", "h100_sxm", DECODE, Goal::Latency, limits);
    let denied = advice(&Limits { deny: names(&["int4", "fp8-e4m3"]), ..Limits::default() }).unwrap();
    for outcome in denied.outcomes.iter().filter(|outcome| outcome.refused.is_none()) {
        assert!(!outcome.candidate.name.contains("int4") && !outcome.candidate.name.contains("fp8-e4m3"));
        assert!(!outcome.candidate.name.contains("w4a"), "{}", outcome.candidate.name);
    }
    let allowed = advice(&Limits { allow: names(&["int4-g32", "int8-g32"]), ..Limits::default() }).unwrap();
    let best = &allowed.choice().unwrap().candidate;
    assert_eq!(best.name, "int4-g32/bf16, int8-g32 head", "{}", allowed.reason);
    let slip = advice(&Limits { deny: names(&["int2"]), ..Limits::default() }).unwrap_err();
    assert!(slip.to_string().contains("`int2`: there are bf16, fp8"), "{slip}");
}
