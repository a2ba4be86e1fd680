//! Ten questions of the field, with what somebody who does this every day would answer.

use super::*;

fn ask(model: &str, device: &str, ask: &Ask) -> (Recommendation, String, Outcome) {
    let advice = advise(model, device, ask);
    let (text, best) = (plan(&advice), advice.choice().unwrap().clone());
    (advice, text, best)
}

fn bits(outcome: &Outcome) -> u32 {
    outcome.candidate.assignment().at(crate::Role::Query).weights.nominal_bits()
}

/// 70 billion weights take 35 GB in four bits and a 4090 has 24: two of them hold it, with W4A16 in vLLM. On one alone half of
/// the layers stay in the host's memory, at one or two tokens per second.
#[test]
fn a_70b_on_an_rtx_4090() {
    let (advice, _, best) = ask("llama-3.1-70b", "rtx_4090", &Ask::default());
    assert_eq!((best.tp, bits(&best)), (2, 4), "{}", advice.reason);
    assert!(best.candidate.known_as.contains_key("vLLM"));
    assert!(advice.warnings.iter().any(|warning| warning.starts_with("one device alone would take a last resort")));
    let (advice, text, best) = ask("llama-3.1-70b", "rtx_4090", &Ask { devices: Some(1), ..Ask::default() });
    let offload = best.offload.unwrap_or_else(|| panic!("{}", advice.reason));
    assert!((30..50).contains(&offload.layers) && (0.5..3.0).contains(&best.tokens_per_s), "{text}: {offload:?}");
}

/// 48 GB of the 64 are the GPU's. Four to six bits in GGUF, what every guide for Macs says; never a format that loses more for
/// a percent of speed.
#[test]
fn a_32b_on_an_m3_max_with_64_gb() {
    let limits = Limits { memory: Some(Bytes::new(64e9)), ..Limits::default() };
    let (advice, text, best) = ask("qwen2.5-32b", "apple_m3_max", &within(limits));
    assert!(["q4_k_m", "q5_k_s", "q5_k_m", "q4_k_s"].iter().any(|known| text.starts_with(known)), "{}", advice.reason);
    assert!(best.loss().unwrap() < 0.06 && best.candidate.known_as.contains_key("llama.cpp"));
}

/// 8 GB less what JetPack takes: four bits fit, eight do not.
#[test]
fn an_8b_on_an_orin_nano() {
    let (advice, text, best) = ask("llama-3.1-8b", "jetson_orin_nano_8gb", &Ask::default());
    assert!(text.starts_with("q4_k"), "{}", advice.reason);
    assert!(best.memory.system >= Bytes::new(1.5e9) && best.memory.missing().is_none());
    assert!(find(&advice, "q8_0").refused.is_some() && find(&advice, "w8a16").refused.is_some());
}

/// At 64 sequences the cache takes as long as the weights, so that eight bits are as fast as four and lose nothing.
#[test]
fn an_8b_on_an_a100_at_batch_64() {
    let (advice, _, best) = ask("llama-3.1-8b", "a100_sxm_80gb", &Ask { batch: Some(64), ..Ask::default() });
    assert_eq!(bits(&best), 8, "{}", advice.reason);
    assert!(best.candidate.known_as.contains_key("vLLM") && best.loss().unwrap() < 0.02);
}

/// 140 GB in 16 bit fill two H100; FP8 halves that, is what their units multiply, and leaves room for a cache.
#[test]
fn a_70b_on_two_h100() {
    let demand = Demand::Request { prompt: 1024, generate: 256 };
    let request = Ask { demand, devices: Some(2), goal: Goal::Throughput, ..Ask::default() };
    let (advice, text, best) = ask("llama-3.1-70b", "h100_sxm", &request);
    assert!(text.starts_with("fp8") && best.tp == 2, "{}", advice.reason);
    assert_eq!(best.candidate.known_as["vLLM"], "FP8_DYNAMIC");
}

/// A laptop with 16 GB runs an 8B in Q4_K_M: what Ollama downloads unless it is told otherwise.
#[test]
fn an_8b_on_a_laptop_with_16_gb() {
    let limits = Limits { memory: Some(Bytes::new(16e9)), ..Limits::default() };
    let (advice, text, best) = ask("llama-3.1-8b", "ddr5_desktop_8c", &within(limits));
    assert!(text.starts_with("q4_k_m"), "{}", advice.reason);
    assert_eq!(best.candidate.known_as["llama.cpp"], "Q4_K_M");
}

/// 14 billion weights in four bits take 9 GB of 12, and in five they would leave less than a tenth.
#[test]
fn a_14b_on_an_rtx_3060() {
    let (advice, text, best) = ask("qwen2.5-14b", "rtx_3060_12gb", &Ask::default());
    assert!(text.starts_with("q4_k") && best.tp == 1, "{}", advice.reason);
    assert!(find(&advice, "bf16").refused.is_some() || find(&advice, "bf16").tp > 1);
}

/// 671 billion weights were released in FP8. Eight B200 serve them as they are, four in four bits.
#[test]
fn deepseek_v3_on_b200() {
    let demand = Demand::Request { prompt: 1024, generate: 256 };
    let serve = |devices| Ask { devices: Some(devices), demand, goal: Goal::Throughput, ..Ask::default() };
    let (advice, text, best) = ask("deepseek-v3", "b200", &serve(8));
    assert!(text.starts_with("fp8") && best.loss() == Some(0.0), "{}", advice.reason);
    let (advice, text, _) = ask("deepseek-v3", "b200", &serve(4));
    assert_eq!(text, "fp8,experts=nvfp4a16", "{}", advice.reason);
    // Nobody is told to buy one, three or five of them.
    let (advice, _, best) = ask("deepseek-v3", "b200", &Ask::default());
    assert!(best.tp == 4 || best.tp == 8, "{}", advice.reason);
}

/// An L40S has FP8 units and little bandwidth: prompts and many sequences go through FP8.
#[test]
fn an_8b_on_an_l40s() {
    let prefill = Ask { demand: Demand::Prefill { prompt: 2048 }, ..Ask::default() };
    let (advice, text, best) = ask("llama-3.1-8b", "l40s", &prefill);
    assert_eq!(text, "fp8", "{}", advice.reason);
    assert!(best.gain.unwrap() > 1.7);
    let demand = Demand::Request { prompt: 1024, generate: 256 };
    let (advice, text, _) = ask("llama-3.1-8b", "l40s", &Ask { demand, goal: Goal::Throughput, ..Ask::default() });
    assert!(text.starts_with("fp8"), "{}", advice.reason);
}

/// 192 GB hold 70 billion weights in 16 bit, and FP8 is faster and loses little.
#[test]
fn a_70b_on_an_mi300x() {
    let demand = Demand::Request { prompt: 1024, generate: 256 };
    let (advice, text, _) = ask("llama-3.1-70b", "mi300x", &Ask { demand, goal: Goal::Throughput, ..Ask::default() });
    assert!(text.starts_with("fp8"), "{}", advice.reason);
    let wide = find(&advice, "bf16");
    assert!(wide.refused.is_none() && wide.tp == 1);
    assert!(find(&advice, "fp8").tokens_per_s > 1.3 * wide.tokens_per_s);
    // One user waits for memory: eight bits or fewer, in a format that loses little. Published speeds do not tell vLLM and
    // llama.cpp apart on one such card, so either may lead.
    let (advice, text, best) = ask("llama-3.1-70b", "mi300x", &Ask::default());
    assert!(bits(&best) <= 8 && best.loss().unwrap() < 0.06, "{text}: {}", advice.reason);
}
