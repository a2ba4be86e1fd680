//! Every way that weights are stored: the kernels that multiply them as they are against the same weights decoded to FP32.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Fixture, deviation, model};
use roofline_core::{Format, Plan};
use roofline_engine::{Engine, Settings, Wanted};
use roofline_quant::{Checkpoint, Layout, Request, quantize};

/// Inputs stay as they are: rounding makes steps of the smallest differences.
fn settings(decode: bool) -> Settings {
    Settings { threads: 2, all_logits: true, decode, round_inputs: false, ..Settings::with(Format::FP32) }
}

fn logits(checkpoint: &Checkpoint, tokens: &[Vec<u32>], decode: bool) -> (Vec<f32>, Vec<(String, u64)>, u64) {
    let engine = Engine::load(checkpoint, settings(decode), &mut |_, _| Ok(())).unwrap();
    let mut session = engine.session(tokens.len(), tokens[0].len()).unwrap();
    // Many rows, then few: they are multiplied by different kernels.
    let part = |range: std::ops::Range<usize>| tokens.iter().map(|own| own[range.clone()].to_vec()).collect::<Vec<_>>();
    let mut all = session.feed(0..tokens.len(), &part(0..12), Wanted::All).unwrap();
    for token in 12..tokens[0].len() {
        all.extend(session.feed(0..tokens.len(), &part(token..token + 1), Wanted::Last).unwrap());
    }
    (all, engine.schemes(), engine.decoded_bytes())
}

/// Rows that are decoded one by one give what transformers computes, too: they are a reference worth the name.
#[test]
fn decoded_rows_agree_with_transformers() {
    for family in ["llama", "mixtral", "gpt-oss", "gpt-oss-mxfp4", "phi3", "gemma2"] {
        let fixture = Fixture::open(family);
        let engine = Engine::load(&fixture.checkpoint, settings(true), &mut |_, _| Ok(())).unwrap();
        let mut session = engine.session(2, 24).unwrap();
        let logits = session.feed(0..2, &fixture.tokens, Wanted::All).unwrap();
        let (error, decoded) = (deviation(&logits, &fixture.logits), engine.decoded_bytes());
        assert!(error <= 1e-4, "{family}: {error:.2e}");
        assert!(decoded > 0);
    }
}

/// Names of plans; which of them a layout has is for it to say.
const PLANS: [&str; 33] = [
    "fp32",
    "bf16",
    "fp16",
    "w8a16",
    "w4a16",
    "int8",
    "fp8",
    "fp8a16",
    "nvfp4a16",
    "mxfp4a16",
    "nf4",
    "int4-g32/bf16",
    "int4-g64/bf16",
    "int4-g128-zp/bf16",
    "int8-g32/bf16",
    "int8-g128/bf16",
    "int3-g64/bf16",
    "mxfp8/bf16",
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q5_1",
    "q5_0",
    "q4_k_m",
    "q4_k_s",
    "q4_1",
    "q4_0",
    "q3_k_m",
    "q2_k",
    "iq4_nl",
    "iq4_xs",
    "w4a8",
    "fp8-block",
];

/// Those that experts are tried with.
const EXPERTS: [&str; 6] = ["w4a16", "fp8", "mxfp4a16", "nf4", "q8_0", "q4_k_m"];

#[test]
fn stored_formats_agree_with_what_they_decode_to() {
    let scratch = std::env::temp_dir().join(format!("roofline-engine-formats-{}", std::process::id()));
    let tokens: Vec<Vec<u32>> = (0..2).map(|row| (0..20).map(|at| (at * 37 + row * 101 + 5) % 320).collect()).collect();
    let (mut ran, mut direct) = (0, Vec::new());
    for family in ["llama", "mixtral"] {
        let source = scratch.join(family);
        model(&source, family);
        let checkpoint = Checkpoint::open(&source).unwrap();
        for layout in Layout::ALL {
            // Experts are the same kernels; a few formats show that each expert gets its own.
            let few = |plan: &&str| family == "llama" || EXPERTS.contains(plan);
            for plan in PLANS.into_iter().filter(few) {
                let target = scratch.join(format!("{family}-{layout:?}-{}", plan.replace('/', "_")));
                let target = if layout == Layout::Gguf { target.with_extension("gguf") } else { target };
                let Ok(plan) = plan.parse::<Plan>() else { panic!("{plan} is no plan") };
                let request = Request::new(plan.clone(), layout, target.clone());
                if quantize(&checkpoint, &request, &|_: u64| {}).is_err() {
                    continue;
                }
                let written = Checkpoint::open(&target).unwrap();
                let (fast, schemes, decoded) = logits(&written, &tokens, false);
                let (slow, ..) = logits(&written, &tokens, true);
                let error = deviation(&fast, &slow);
                println!("{family} {layout:?} {plan}: {error:.1e} {schemes:?}, {decoded} bytes decoded");
                assert!(error <= 1e-4, "{family} as {layout:?} in {plan}: {error:.2e} ({schemes:?})");
                ran += 1;
                if decoded == 0 {
                    direct.push(format!("{layout:?} {plan}"));
                }
            }
        }
    }
    std::fs::remove_dir_all(&scratch).unwrap();
    assert!(ran >= 60, "{ran} checkpoints ran");
    // Those that people run most are multiplied as they are stored.
    for wanted in [
        "CompressedTensors w4a16",
        "CompressedTensors int8",
        "CompressedTensors fp8",
        "CompressedTensors nvfp4a16",
        "Gguf q8_0",
        "Gguf q4_0",
        "Gguf q4_k_m",
        "Gguf q6_k",
        "Torchao w8a16",
        "Plain bf16",
    ] {
        assert!(direct.iter().any(|name| name == wanted), "{wanted} is decoded row by row; not so: {direct:?}");
    }
}
