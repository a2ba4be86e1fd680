//! Known cases, and what must hold for all.

mod field;
mod plans;
mod products;

use super::*;
use crate::{
    Dim, Registry,
    energy::Energy,
    machine::Stack,
    units::{Bytes, Seconds, Watts},
};

const DECODE: Demand = Demand::Decode { context: 4096 };

/// A question: what most tests leave as it is.
#[derive(Clone)]
struct Ask {
    tier: Tier,
    batch: Option<u64>,
    devices: Option<u64>,
    demand: Demand,
    goal: Goal,
    price: Option<f64>,
    limits: Limits,
}

impl Default for Ask {
    fn default() -> Self {
        let (goal, limits) = (Goal::Latency, Limits::default());
        Self { tier: Tier::Expected, batch: None, devices: None, demand: DECODE, goal, price: None, limits }
    }
}

fn machine(device: &str) -> Machine {
    Machine::new(Registry::builtin().find(device).unwrap().into_owned(), Stack::Roofline)
}

impl Ask {
    fn of(&self, model: &str, machine: &Machine) -> Result<Recommendation> {
        recommend(&self.need(&Model::find(model).unwrap(), machine))
    }

    fn need<'a>(&'a self, model: &'a Model, machine: &'a Machine) -> Need<'a> {
        Need {
            tier: self.tier,
            batch: self.batch,
            devices: self.devices,
            demand: self.demand,
            goal: self.goal,
            dollars_per_hour: self.price,
            limits: &self.limits,
            ..Need::new(model, machine)
        }
    }
}

fn within(limits: Limits) -> Ask {
    Ask { limits, ..Ask::default() }
}

fn advise(model: &str, device: &str, ask: &Ask) -> Recommendation {
    ask.of(model, &machine(device)).unwrap()
}

fn plan(advice: &Recommendation) -> String {
    advice.plan.as_ref().map_or_else(|| panic!("{}", advice.reason), ToString::to_string)
}

fn find<'a>(advice: &'a Recommendation, plan: &str) -> &'a Outcome {
    let named = |outcome: &&Outcome| outcome.candidate.plan.to_string() == plan && outcome.offload.is_none();
    advice.outcomes.iter().find(named).unwrap_or_else(|| panic!("no {plan}"))
}

#[test]
fn prompts_on_an_h100_go_through_fp8() {
    let advice = advise("llama-3-8b", "h100_sxm", &Ask { demand: Demand::Prefill { prompt: 2048 }, ..Ask::default() });
    assert_eq!(plan(&advice), "fp8", "{}", advice.reason);
    assert!(advice.warnings.iter().any(|warning| warning.contains("no time")), "{:?}", advice.warnings);
    // Prompts alone are for programs that serve, and what is set aside is told.
    let aside = advice.left_out.iter().find(|left| left.plan.contains("llama.cpp")).unwrap();
    assert!(aside.reason.contains("`⟨runtime llama.cpp⟩`"), "{aside:?}");
}

#[test]
fn every_kind_of_device_has_several_plans_and_the_smallest_leads_by_memory() {
    for device in ["b200", "h200", "jetson_orin_nano", "mi300x"] {
        let limits = Limits { any_quality: true, ..Limits::default() };
        let advice = advise("llama-3-8b", device, &Ask { goal: Goal::Memory, limits, ..Ask::default() });
        let plans = advice.outcomes.len();
        assert!(plans >= if device == "b200" { 200 } else { 40 }, "{device}: {plans}");
        // The best by memory has the least.
        let allowed = advice.outcomes.iter().filter(|outcome| outcome.refused.is_none());
        let least = allowed.map(|outcome| outcome.memory.total.value()).fold(f64::INFINITY, f64::min);
        assert_eq!(advice.choice().unwrap().memory.total.value(), least);
        assert!(advice.outcomes.iter().any(|outcome| outcome.pareto));
    }
}

/// A plan whose weights would be decoded row by row is not one that the forecast speaks of.
#[test]
fn what_no_kernel_reads_is_refused() {
    let (model, h200) = (Model::find("llama-3-8b").unwrap(), machine("h200"));
    let need = Need { reads: Some(|format| format != Format::FP8), ..Need::new(&model, &h200) };
    let advice = recommend(&need).unwrap();
    let refused = |name: &str| {
        let outcome = advice.outcomes.iter().find(|outcome| outcome.candidate.plan.to_string() == name);
        outcome.unwrap().refused.clone()
    };
    assert_eq!(refused("fp8").unwrap(), "has weights in fp8-e4m3, which no kernel here reads as they are stored");
    assert!(refused("bf16,ffn=fp8").is_some());
    // A cache is no weight.
    assert_eq!((refused("w4a16"), refused("w4a16,kv=fp8-e4m3")), (None, None));
}

#[test]
fn limits_bite_and_say_so() {
    let refused = |limits: Limits| advise("llama-3-8b", "h200", &within(limits));
    let strict = refused(Limits { quality_loss: Some(0.01), ..Limits::default() });
    assert!(strict.choice().unwrap().loss().unwrap() <= 0.01);
    // 8.03 billion weights of 5.5 bits are 5.5 GB, embedding and head counted.
    let (small, model) =
        (Limits { bits_per_weight: Some(5.5), ..Limits::default() }, Model::find("llama-3-8b").unwrap());
    let bytes = Limits { weights: Some(Bytes::new(5.5 / 8.0 * model.parameters() as f64)), ..Limits::default() };
    for (limits, unit) in [(small, "bits for each weight"), (bytes, "has weights of")] {
        let advice = refused(limits);
        let bits = |outcome: &Outcome| model.bits_per_weight(outcome.memory.weights, Dim::ONE);
        assert!(bits(advice.choice().unwrap()) <= 5.5, "{}", advice.reason);
        let over = advice.outcomes.iter().filter(|outcome| bits(outcome) > 5.501);
        let told: Vec<&String> = over.map(|outcome| outcome.refused.as_ref().unwrap()).collect();
        assert!(told.len() > 5 && told.iter().any(|told| told.contains(unit)), "{told:?}");
    }
    let native = refused(Limits { native_only: true, ..Limits::default() });
    assert!(!native.choice().unwrap().candidate.weight_only());
    let own = plan(&refused(Limits::default()));
    let denied = refused(Limits { deny: vec![own.clone()], ..Limits::default() });
    assert_ne!(plan(&denied), own);
    let fast = refused(Limits { tokens_per_s: Some(1e6), ..Limits::default() });
    assert!(fast.choice().is_none() && fast.reason.starts_with("no plan meets every limit"), "{}", fast.reason);
    let tight = refused(Limits { memory: Some(Bytes::new(1e9)), ..Limits::default() });
    assert!(tight.plan.is_none() && tight.reason.starts_with("nothing fits"), "{}", tight.reason);
    for wrong in [
        Limits { memory: Some(Bytes::ZERO), ..Limits::default() },
        Limits { weights: Some(Bytes::ZERO), ..Limits::default() },
        Limits { bits_per_weight: Some(f64::NAN), ..Limits::default() },
        Limits { tokens_per_s: Some(-1.0), ..Limits::default() },
        Limits { quality_loss: Some(f64::NAN), ..Limits::default() },
        Limits { allow: vec!["fp8".into()], deny: vec!["fp8".into()], ..Limits::default() },
        Limits { first_token: Some(Seconds::new(1e-6)), ..Limits::default() },
        Limits { runtimes: vec!["ollama".into()], ..Limits::default() },
    ] {
        assert!(within(wrong.clone()).of("llama-3-8b", &machine("h200")).is_err(), "{wrong:?}");
    }
}

#[test]
fn throughput_takes_as_many_sequences_as_fit() {
    let ask = Ask { goal: Goal::Throughput, ..Ask::default() };
    let advice = advise("llama-3-8b", "h200", &ask);
    let best = advice.choice().unwrap();
    assert!(best.batch >= 64 && best.memory.missing().is_none(), "{}", best.batch);
    // Plans have batches of their own, and each is compared with 16 bit at its own, in words too.
    assert!(advice.reason.contains(&format!("at the same batch of {}", best.batch)), "{}", advice.reason);
    let large = advise("llama-3.1-70b", "h200", &ask);
    let gains = large.outcomes.iter().filter_map(|outcome| outcome.gain);
    assert!(gains.into_iter().all(|gain| (0.5..8.0).contains(&gain)), "{}", large.reason);
}

#[test]
fn throughput_is_looked_for_between_powers_of_two() {
    let limits = Limits { runtimes: vec!["vllm".to_owned()], ..Limits::default() };
    let advice = advise("llama-3.1-8b", "a100_sxm_80gb", &Ask { goal: Goal::Throughput, limits, ..Ask::default() });
    let (wide, narrow) = (find(&advice, "bf16"), find(&advice, "w8a16"));
    // 536.9 MB of cache for each sequence: what is left of nine tenths of 85.9 GB holds 114 and 127.
    assert_eq!((wide.batch, narrow.batch), (114, 127));
    assert_eq!(wide.gain, Some(1.0));
    // One sequence more would not fit.
    assert!(narrow.memory.total + Bytes::new(536.9e6) > advice.room.unwrap().capacity);
}

#[test]
fn a_narrow_cache_is_not_free() {
    let advice = advise("llama-3-8b", "h100_sxm", &within(Limits { quality_loss: Some(0.0), ..Limits::default() }));
    assert_eq!(plan(&advice), "bf16", "{}", advice.reason);
    assert!(find(&advice, "bf16,kv=q8_0").refused.is_some());
    // With what was published of it, it competes; without, nobody takes it unasked.
    let long = Ask { demand: Demand::Decode { context: 100_000 }, ..Ask::default() };
    let advice = advise("llama-3.1-8b", "h100_sxm", &long);
    let best = advice.choice().unwrap();
    assert_eq!(best.candidate.kv().nominal_bits(), 8, "{}", advice.reason);
    assert!(find(&advice, "fp8,kv=fp8-e5m2").lost.as_ref().unwrap().contains("unknown"));
}

#[test]
fn a_limit_tightens_what_there_is_and_one_above_it_is_told() {
    let limits = Limits { memory: Some(Bytes::new(80e9)), ..Limits::default() };
    let advice = advise("llama-3-8b", "jetson_orin_nano", &within(limits));
    assert!(advice.room.unwrap().capacity < Bytes::new(9e9), "{:?}", advice.room);
    assert!(advice.warnings[0].starts_with("the memory limit of 80 GB is more than the 8.59 GB there are"));
}

#[test]
fn memory_is_told_part_by_part() {
    let advice = advise("llama-3-8b", "jetson_orin_nano", &Ask::default());
    let memory = advice.choice().unwrap().memory;
    let parts = memory.weights + memory.cache + memory.in_flight + memory.system + memory.kept_free;
    assert_eq!(memory.total, parts);
    // What JetPack takes, and a tenth of the board's 8 GiB.
    assert_eq!((memory.system, memory.kept_free), (Bytes::new(1.5e9), memory.capacity.unwrap() * 0.1));
    // A plan that leaves less than that free is refused.
    for outcome in &advice.outcomes {
        assert_eq!(
            outcome.memory.missing().is_some(),
            outcome.refused.as_ref().is_some_and(|why| why.contains("more than"))
        );
    }
}

#[test]
fn the_first_token_waits_for_one_prompt() {
    let ask =
        |batch| Ask { demand: Demand::Request { prompt: 1024, generate: 64 }, batch: Some(batch), ..Ask::default() };
    let first = |batch| find(&advise("llama-3-8b", "h100_sxm", &ask(batch)), "fp8").first_token.unwrap();
    // Eight prompts side by side are read one by one.
    assert_eq!(first(8), first(1));
    // And it is what the timeline of the request says.
    let (machine, model) = (machine("h100_sxm"), Model::find("llama-3-8b").unwrap());
    let assignment = "fp8".parse::<Plan>().unwrap().on(&machine.device, Some(&model.anatomy)).unwrap();
    let request = crate::request::Request { batch: 8, prompt: 1024, generate: 64 };
    let timeline =
        crate::request::timeline(&model, request, crate::model::Lowering::default(), &assignment, &machine).unwrap();
    assert_eq!(first(8), timeline.first.time(Tier::Expected));
    // The whole by its typical step is the sum of all steps.
    let whole = find(&advise("llama-3-8b", "h100_sxm", &ask(8)), "fp8").time;
    assert!((whole / timeline.total().time(Tier::Expected) - 1.0).abs() < 2e-3);
}

#[test]
fn decoding_says_what_becomes_of_prompts() {
    let advice =
        advise("llama-3-8b", "a100_sxm_80gb", &within(Limits { runtimes: vec!["vllm".into()], ..Limits::default() }));
    let prefill = advice.prefill.unwrap();
    // Weights alone are narrower, and multipliers decide.
    assert!((0.9..1.1).contains(&prefill.speedup.unwrap()), "{prefill:?}");
    assert!(prefill.sentence.starts_with("a prompt of 4096 tokens takes"), "{}", prefill.sentence);
}

#[test]
fn energy_is_fitted_where_it_was_measured_and_the_limit_elsewhere() {
    let ask = Ask { goal: Goal::Energy, ..Ask::default() };
    let h200 = advise("llama-3-8b", "h200", &ask);
    let best = h200.choice().unwrap();
    assert!(matches!(best.energy_per_token, Some(Energy::Fitted(joules)) if (0.9..1.6).contains(&joules.value())));
    let ratio = find(&h200, "bf16").energy_per_token.unwrap().joules() / best.energy_per_token.unwrap().joules();
    assert!((1.5..3.0).contains(&ratio), "{ratio}");
    let orin = advise("llama-3-8b", "jetson_orin_nano@7W", &ask);
    let best = orin.choice().unwrap();
    assert_eq!(best.energy_per_token, Some(Energy::AtLimit(Watts::new(7.0) * best.time)));
    // A mode without a budget has nothing to be judged by.
    assert!(ask.of("llama-3-8b", &machine("jetson_orin_nano_8gb_super@MAXN_SUPER")).is_err());
}

#[test]
fn much_loss_is_not_taken_unasked() {
    let prefill = Ask { demand: Demand::Prefill { prompt: 2048 }, ..Ask::default() };
    let advice = advise("llama-3-8b", "gb10", &prefill);
    assert_eq!(plan(&advice), "fp8", "{}", advice.reason);
    assert!(
        advice.warnings.iter().any(|warning| warning.starts_with("nvfp4") && warning.contains("would be")),
        "{:?}",
        advice.warnings
    );
    let any = Limits { any_quality: true, ..Limits::default() };
    assert!(plan(&advise("llama-3-8b", "gb10", &Ask { limits: any, ..prefill })).starts_with("nvfp4"));
}

/// Where plans are as good by the goal, the one that loses less leads, always.
#[test]
fn as_good_never_flips_to_a_plan_that_loses_more() {
    let limits = Limits { memory: Some(Bytes::new(64e9)), ..Limits::default() };
    for tier in [Tier::Ideal, Tier::Expected] {
        let advice = advise("qwen2.5-32b", "apple_m3_max", &Ask { tier, limits: limits.clone(), ..Ask::default() });
        let best = advice.choice().unwrap();
        let (own, time) = (best.loss().unwrap(), best.time);
        for outcome in advice.outcomes.iter().filter(|outcome| outcome.refused.is_none()) {
            // Nothing is at least as fast and clearly better.
            let clearly = outcome.loss().is_some_and(|loss| loss * 1.1 + 0.001 < own);
            assert!(!(clearly && outcome.time <= time), "{}: {}", advice.reason, outcome.candidate.plan);
        }
        assert!(own < find(&advice, "mxfp4a16").loss().unwrap(), "{}", advice.reason);
    }
}

#[test]
fn what_would_do_is_named() {
    let advice = advise("llama-3.1-405b", "jetson_orin_nano", &Ask::default());
    assert!(advice.choice().is_none() && advice.reason.contains("it would fit"), "{}", advice.reason);
    let limits = Limits { memory: Some(Bytes::new(2e9)), ..Limits::default() };
    let advice = advise("llama-3-8b", "apple_m2", &within(limits));
    assert!(advice.reason.contains("that the device has would do"), "{}", advice.reason);
}

/// Four of these hold 405 billion weights and three would, but 128 heads are shared by two, four or eight.
#[test]
fn devices_divide_heads() {
    let advice = advise("llama-3.1-405b", "h200", &Ask::default());
    for outcome in advice.outcomes.iter().filter(|outcome| outcome.refused.is_none()) {
        assert!([1, 2, 4, 8].contains(&outcome.tp), "{}", outcome.tp);
    }
    assert_eq!(find(&advice, "w4a16").tp, 2);
    let three = Ask { devices: Some(3), ..Ask::default() }.of("llama-3.1-405b", &machine("h200"));
    assert!(three.unwrap_err().to_string().contains("128 attention heads cannot be shared evenly by 3 devices"));
    // Sums between devices count.
    let (two, four) = (Some(2), Some(4));
    let on = |devices| find(&advise("llama-3.1-70b", "h200", &Ask { devices, ..Ask::default() }), "w4a16").time;
    assert!(on(four) < on(two) && on(two) / on(four) < 2.0);
}

/// Where nothing of four bits fits, three do, with what they cost; the least loss leads, not the least time.
#[test]
fn fewer_than_four_bits_are_a_last_resort() {
    let limits = Limits { memory: Some(Bytes::new(5.2e9)), ..Limits::default() };
    let advice = advise("llama-3-8b", "apple_m2", &within(limits));
    let best = advice.choice().unwrap();
    assert_eq!(plan(&advice), "q3_k_l,kv=q8_0", "{}", advice.reason);
    // llama.cpp's table: 6.7879 after 6.2316.
    assert!(best.last_resort.as_ref().unwrap().contains("may raise the perplexity by 9 %"), "{:?}", best.last_resort);
    assert!(advice.reason.contains("a last resort"), "{}", advice.reason);
    // Where four bits fit, they wait at the end, unless quality does not count.
    let advice = advise("llama-3-8b", "apple_m2", &Ask::default());
    assert!(find(&advice, "q3_k_m").lost.as_ref().unwrap().starts_with("a last resort"));
    let any = advise("llama-3-8b", "apple_m2", &within(Limits { any_quality: true, ..Limits::default() }));
    assert!(any.choice().unwrap().candidate.is_narrow(), "{}", any.reason);
}

#[test]
fn layers_of_the_host_cross_its_link_in_every_pass() {
    let advice = advise("llama-3.1-70b", "rtx_4090", &Ask { devices: Some(1), ..Ask::default() });
    let outcome = advice.outcomes.iter().find(|outcome| outcome.offload.is_some()).unwrap();
    let offload = outcome.offload.unwrap();
    // 32 GB/s one way, and all of a dense layer's weights are needed for each token.
    assert!((offload.link_time.value() - offload.host_memory.value() / 32e9).abs() < 1e-6);
    assert!(outcome.time > offload.link_time && outcome.memory.missing().is_none());
    assert!(outcome.last_resort.as_ref().unwrap().contains(&format!("{} of 80 layers", offload.layers)));
    // One layer fewer would not fit.
    let layer = offload.host_memory / offload.layers as f64;
    assert!(outcome.memory.total + layer > outcome.memory.capacity.unwrap());
    // Where plans of four bits fit, nobody offloads.
    let fits = advise("llama-3-8b", "rtx_4090", &Ask::default());
    assert!(fits.outcomes.iter().all(|outcome| outcome.offload.is_none()));
}

#[test]
fn other_circumstances_are_told() {
    let (machine, model) = (machine("h200"), Model::find("llama-3-8b").unwrap());
    let ask = Ask::default();
    let need = ask.need(&model, &machine);
    let told = sensitivity(&need, &recommend(&need).unwrap()).unwrap();
    let changes: Vec<&str> = told.iter().map(|variation| variation.change).collect();
    assert_eq!(changes, ["bandwidth -20 %", "bandwidth +20 %", "context x4", "batch x8"]);
    // With less bandwidth, fewer bytes gain more.
    assert!(told[0].gain.unwrap() >= told[1].gain.unwrap(), "{told:?}");
    // An hour at 3.60 dollars costs a thousandth of a dollar per second.
    let cost = |price| Ask { goal: Goal::Cost, price, ..Ask::default() }.of("llama-3-8b", &machine);
    let best = cost(Some(3.6)).unwrap().choice().unwrap().clone();
    assert!((best.dollars_per_million_tokens.unwrap() - 1000.0 / best.tokens_per_s).abs() < 1e-9);
    assert!(cost(None).is_err() && cost(Some(-1.0)).is_err());
}

#[test]
fn nothing_is_quantized_for_nothing() {
    let advice = advise("smollm2-135m", "h200", &Ask::default());
    let best = advice.choice().unwrap();
    assert!(best.candidate.is_plain() || best.loss().unwrap() < 0.01, "{}", advice.reason);
}

#[test]
fn blocks_divide_what_is_stored() {
    // Rows of 576 weights have no groups of 128; heads of 80 no blocks of 32.
    let small = advise("smollm2-135m", "a100_sxm_80gb", &Ask::default());
    assert!(small.outcomes.iter().all(|outcome| !outcome.candidate.plan.to_string().contains("w4a16")));
    assert!(small.outcomes.iter().any(|outcome| outcome.candidate.plan.to_string() == "int4-g64"));
    let phi = advise("phi-2", "a100_sxm_80gb", &Ask::default());
    assert!(phi.outcomes.iter().all(|outcome| outcome.candidate.kv().block() != Some(32)));
}

#[test]
fn names_deny_formats_too_and_must_mean_something() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let ask = |limits: Limits| within(limits).of("llama-3-8b", &machine("l40s"));
    let denied = ask(Limits { deny: names(&["int4", "fp8-e4m3", "q4_k_m"]), ..Limits::default() }).unwrap();
    for outcome in denied.outcomes.iter().filter(|outcome| outcome.refused.is_none()) {
        let text = outcome.candidate.plan.to_string();
        assert!(!text.contains("int4") && !text.contains("fp8-e4m3") && !text.contains("q4_k_m"), "{text}");
        assert!(!text.contains("w4a"), "{text}");
    }
    let allowed = ask(Limits { allow: names(&["q4_k_m"]), ..Limits::default() }).unwrap();
    assert_eq!(plan(&allowed), "q4_k_m", "{}", allowed.reason);
    // A whole plan is a name, too.
    let whole = ask(Limits { allow: names(&["fp8,ffn=w4a16,kv=fp8-e4m3"]), ..Limits::default() }).unwrap();
    assert_eq!(plan(&whole), "fp8,ffn=w4a16,kv=fp8-e4m3");
    let slip = ask(Limits { deny: names(&["int2"]), ..Limits::default() }).unwrap_err();
    assert!(slip.to_string().contains("`int2`: there are bf16, fp8"), "{slip}");
}
