//! Models on a GPU, held against transformers' logits and the processor's: every family, every format, any chunks. Run by
//! `cargo xtask test` where there is a GPU.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{Fixture, deviation};
use roofline_core::{Format, Model, Plan};
use roofline_engine::{Backend, Engine, Session, Settings, Wanted};

const FAMILIES: [&str; 16] = [
    "gemma",
    "gemma2",
    "gemma3-text",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "llama",
    "llama-bias",
    "llama-tied",
    "mistral",
    "mixtral",
    "phi",
    "phi3",
    "phi3-longrope",
    "qwen2",
    "qwen3",
    "qwen3-moe",
];

fn on_gpu(settings: Settings) -> Settings {
    let kernels = Some(std::env::temp_dir().join("roofline-test-kernels"));
    Settings { backend: Backend::Cuda { index: 0, kernels }, ..settings }
}

fn settings(values: Format) -> Settings {
    Settings { threads: 2, all_logits: true, ..Settings::with(values) }
}

/// The deviation of logits of 48 tokens. Rounding may send a token to another of two experts that score alike, which is no
/// error of any kernel: where there are experts, the token that is furthest off does not count.
fn typical(family: &str, got: &[f32], want: &[f32]) -> f32 {
    if !["gpt-oss", "gpt-oss-mxfp4", "mixtral", "qwen3-moe"].contains(&family) {
        return deviation(got, want);
    }
    let largest = want.iter().fold(0f32, |largest, one| largest.max(one.abs()));
    let row = want.len() / 48;
    let rows = got.chunks(row).zip(want.chunks(row));
    let mut off: Vec<f32> = rows
        .map(|(got, want)| {
            got.iter().zip(want).fold(0f32, |most, (a, b)| if a.is_nan() { f32::NAN } else { most.max((a - b).abs()) })
        })
        .collect();
    off.sort_by(f32::total_cmp);
    if off[47].is_nan() { f32::NAN } else { off[46] / largest }
}

/// BF16 between kernels: no further from FP32 than transformers itself is in BF16, by as much again.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_family_is_as_close_as_transformers() {
    let mut wrong = Vec::new();
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        let engine = Engine::load(&fixture.checkpoint, on_gpu(settings(Format::BF16)), &mut |_, _| Ok(())).unwrap();
        let theirs = deviation(&fixture.logits_bf16, &fixture.logits);
        let mut session = engine.session(2, 24).unwrap();
        let whole = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
        let error = typical(family, &whole, &fixture.logits);
        println!("{family:16} prompt {error:.2e}, transformers {theirs:.2e}");
        if error.is_nan() || error > 2.0 * theirs {
            wrong.push(format!("{family}: {error:.2e}, transformers {theirs:.2e}"));
        }
        // Token by token, which is recorded after the first and replayed from the third on.
        session.clear();
        let vocabulary = fixture.logits.len() / 48;
        let mut apart = vec![0.0; fixture.logits.len()];
        for at in 0..24 {
            let tokens: Vec<Vec<u32>> = fixture.tokens.iter().map(|own| vec![own[at]]).collect();
            let logits = session.feed(0..2, &tokens, Wanted::Last).unwrap();
            for (sequence, row) in logits.chunks(vocabulary).enumerate() {
                apart[(sequence * 24 + at) * vocabulary..][..vocabulary].copy_from_slice(row);
            }
        }
        let error = typical(family, &apart, &fixture.logits);
        println!("{family:16} tokens {error:.2e}");
        if error.is_nan() || error > 2.0 * theirs {
            wrong.push(format!("{family}, token by token: {error:.2e}, transformers {theirs:.2e}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What each layer hands on, beside the processor's.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_layer_agrees_with_the_processor() {
    let mut wrong = Vec::new();
    for family in FAMILIES {
        let fixture = Fixture::open(family);
        let layers = |settings: Settings| {
            let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
            let mut session = engine.session(2, 24).unwrap();
            session.keep_layers(1);
            session.feed(0..2, &fixture.tokens, Wanted::Nothing).unwrap();
            session.take_layers()
        };
        let (ours, exact) = (layers(on_gpu(settings(Format::BF16))), layers(settings(Format::BF16)));
        assert_eq!((ours.len(), ours.is_empty()), (exact.len(), false), "{family}");
        for (own, other) in ours.iter().zip(&exact) {
            let error = typical(family, &own.values, &other.values);
            println!("{family:16} layer {} {error:.2e}", own.layer);
            if error.is_nan() || error > 0.04 {
                wrong.push(format!("{family}, layer {}: {error:.2e}", own.layer));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Chunks, several sequences and kept layers change nothing beyond rounding.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn chunks_change_nothing() {
    for family in ["llama-tied", "gemma2", "gpt-oss", "mixtral"] {
        let fixture = Fixture::open(family);
        let theirs = deviation(&fixture.logits_bf16, &fixture.logits);
        for chunk in [2, 6, 16] {
            let settings = Settings { chunk: Some(chunk), ..on_gpu(settings(Format::BF16)) };
            let engine = Engine::load(&fixture.checkpoint, settings, &mut |_, _| Ok(())).unwrap();
            let mut session = engine.session(2, 24).unwrap();
            session.keep_layers(4);
            let logits = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
            let error = typical(family, &logits, &fixture.logits);
            assert!(error <= 2.0 * theirs, "{family} in chunks of {chunk}: {error:.2e}, transformers {theirs:.2e}");
            let layers = session.take_layers();
            assert_eq!(layers.len(), engine.model.anatomy.order.len());
            assert!(layers.iter().all(|own| own.values.len() == 12 * own.width), "{family}");
        }
    }
}

/// A Llama whose rows are wide enough for every format, and for kernels that do a part of their neighbours' work.
fn small() -> Model {
    let config = serde_json::json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
        "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": 640, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"});
    Model::from_config(&config.to_string(), "small").unwrap()
}

/// Passes that were recorded come again behind larger ones, which took more scratch memory than there was: for the heads of
/// more sequences, and for their 8-bit caches as 16-bit numbers. What differs is which of several fast kernels ran.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn recorded_passes_outlive_larger_ones() {
    // Their heads are more than prompts have counters for on any GPU. A chunk has as many tokens.
    const SEQUENCES: usize = 256;
    for name in ["bf16", "bf16,kv=fp8"] {
        let plan: Plan = name.parse().unwrap();
        let usual = Settings::with(Format::BF16);
        let settings = Settings { kv: plan.kv().unwrap_or(usual.kv), chunk: Some(SEQUENCES), ..on_gpu(usual) };
        let engine = Engine::random(small(), &plan, settings).unwrap();
        let mut session = engine.session(SEQUENCES, 488).unwrap();
        let tokens = |sequence: usize, count: usize| -> Vec<u32> {
            (0..count).map(|at| ((at * 37 + sequence * 91) % 640) as u32).collect()
        };
        // Two chunks, and then one token after the other.
        let alone = |session: &mut Session<'_, '_>| {
            session.clear();
            let mut logits = session.feed(0..1, &[tokens(0, 480)], Wanted::Last).unwrap();
            for at in 0..4 {
                logits.extend(session.feed(0..1, &[tokens(at, 1)], Wanted::Last).unwrap());
            }
            logits
        };
        let first = alone(&mut session);
        let replayed = deviation(&alone(&mut session), &first);
        session.clear();
        let together = |sequences: usize, count: usize| -> Vec<Vec<u32>> {
            (0..sequences).map(|own| tokens(own, count)).collect()
        };
        session.feed(0..4, &together(4, 60), Wanted::Nothing).unwrap();
        for _ in 0..3 {
            session.feed(0..SEQUENCES, &together(SEQUENCES, 1), Wanted::Nothing).unwrap();
        }
        let again = deviation(&alone(&mut session), &first);
        println!("{name:12} replayed {replayed:.2e}, again {again:.2e}");
        assert!(replayed < 0.04 && again < 0.04, "{name}: {replayed:.2e}, {again:.2e}");
    }
}

/// Prompts whose tokens are sorted by expert, some experts with none and some with most of them, beside the processor's, and
/// beside chunks so short that they are not sorted. A token that goes to another of two experts that score alike is no error of
/// any kernel; of these few are.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sorted_experts_agree_with_the_processor() {
    let shape = |family: &str| {
        let mut config = serde_json::json!({"hidden_size": 512, "intermediate_size": 320, "num_hidden_layers": 2,
            "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 640, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
            "num_experts_per_tok": 4, "sliding_window": 128, "swiglu_limit": 7.0});
        let (architecture, kind) =
            if family == "mixtral" { ("MixtralForCausalLM", "mixtral") } else { ("GptOssForCausalLM", "gpt_oss") };
        config["architectures"] = serde_json::json!([architecture]);
        config["model_type"] = kind.into();
        config["num_local_experts"] = 24.into();
        Model::from_config(&config.to_string(), family).unwrap()
    };
    let mut wrong = Vec::new();
    for family in ["mixtral", "gpt-oss"] {
        let model = shape(family);
        for name in ["bf16", "*=bf16,experts=mxfp4a16", "*=bf16,experts=w4a16", "*=bf16,experts=w8a16"] {
            let plan: Plan = name.parse().unwrap();
            let tokens: Vec<Vec<u32>> = [37, 91].map(|step| (0..100).map(|at| at * step % 640).collect()).to_vec();
            let logits = |settings: Settings| {
                let engine = Engine::random(model.clone(), &plan, settings).unwrap();
                let mut session = engine.session(2, 128).unwrap();
                session.feed(0..2, &tokens, Wanted::All).unwrap()
            };
            let want = logits(settings(Format::BF16));
            let largest = want.iter().fold(0f32, |largest, one| largest.max(one.abs()));
            let row = want.len() / 200;
            for chunk in [None, Some(16)] {
                let got = logits(Settings { chunk, ..on_gpu(settings(Format::BF16)) });
                let off = |(got, want): (&[f32], &[f32])| {
                    got.iter().zip(want).any(|(a, b)| a.is_nan() || (a - b).abs() > 0.04 * largest)
                };
                let off = got.chunks(row).zip(want.chunks(row)).filter(|rows| off(*rows)).count();
                println!("{family} {name} in chunks of {chunk:?}: {off} of 200 tokens are off");
                if off > 10 {
                    wrong.push(format!("{family} {name} in chunks of {chunk:?}: {off} of 200 tokens"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Steps of as many sequences as kernels of few rows take, as kernels of more rows do a part of their neighbours' work for, and of
/// one more of both: what is fused differs between them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_batch_agrees_with_the_processor() {
    let model = small();
    for (name, batch) in ["bf16", "w4a16", "w8a16", "fp8"]
        .into_iter()
        .flat_map(|name| [1, 3, 9, 16, 17, 32, 33, 64].map(|batch| (name, batch)))
    {
        let plan: Plan = name.parse().unwrap();
        let logits = |settings: Settings| {
            let engine = Engine::random(model.clone(), &plan, settings).unwrap();
            let mut session = engine.session(batch, 32).unwrap();
            let mut all = Vec::new();
            for at in 0..6 {
                let step: Vec<Vec<u32>> = (0..batch).map(|own| vec![((at * 37 + own * 91) % 640) as u32]).collect();
                all.extend(session.feed(0..batch, &step, Wanted::Last).unwrap());
            }
            all
        };
        let error = deviation(&logits(on_gpu(Settings::with(Format::BF16))), &logits(Settings::with(Format::BF16)));
        println!("{name:8} batch {batch:2} {error:.2e}");
        // As in `every_format_agrees_with_the_processor`, inputs of 8 bit round to other codes.
        let limit = if name == "fp8" { 0.2 } else { 0.04 };
        assert!(error < limit, "{name} of {batch} sequences: {error:.2e}");
    }
}

/// A small model with wide enough rows in every format, on the GPU and on the processor: prompts and single tokens.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_format_agrees_with_the_processor() {
    let model = small();
    let mut wrong = Vec::new();
    for name in [
        "bf16",
        "fp16",
        "w8a16",
        "fp8a16",
        "w4a16",
        "int4-g32/bf16",
        "int4-g64-zp/bf16",
        "int4-g128-zp/bf16",
        "nf4",
        "mxfp4a16",
        "nvfp4a16",
        "fp8",
        "int8",
        "q4_k_m",
        "q8_0",
        "w4a16,head=w8a16",
        "bf16,kv=fp8",
        "bf16,kv=int8",
    ] {
        let plan: Plan = name.parse().unwrap();
        let values = if name == "fp16" { Format::FP16 } else { Format::BF16 };
        let usual = Settings::with(values);
        let settings = Settings { kv: plan.kv().unwrap_or(values), all_logits: true, ..usual };
        let tokens: Vec<Vec<u32>> =
            vec![(0..40).map(|at| at * 37 % 640).collect(), (0..40).map(|at| at * 91 % 640).collect()];
        let logits = |plan: &Plan, settings: Settings, single: bool| {
            let engine = Engine::random(model.clone(), plan, settings).unwrap();
            let mut session = engine.session(2, 64).unwrap();
            if !single {
                return session.feed(0..2, &tokens, Wanted::All).unwrap();
            }
            let mut all = Vec::new();
            for at in 0..12 {
                let step: Vec<Vec<u32>> = tokens.iter().map(|own| vec![own[at]]).collect();
                all.extend(session.feed(0..2, &step, Wanted::Last).unwrap());
            }
            all
        };
        for single in [false, true] {
            let here = logits(&plan, settings.clone(), single);
            let error = deviation(&logits(&plan, on_gpu(settings.clone()), single), &here);
            // Inputs of 8 bit that differ in their last bit of 16 round to other codes: the two may be as far from each other as
            // both together are from what is not rounded at all.
            let rounded = match name {
                "fp8" => Some("fp8a16"),
                "int8" => Some("w8a16"),
                _ => None,
            };
            let limit = rounded.map_or(0.04, |exact| {
                2.0 * deviation(&here, &logits(&exact.parse().unwrap(), settings.clone(), single))
            });
            println!("{name:20} {} {error:.2e} of {limit:.2e}", if single { "tokens" } else { "prompt" });
            if error.is_nan() || error > limit {
                wrong.push(format!("{name}, {}: {error:.2e}", if single { "token by token" } else { "a prompt" }));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
