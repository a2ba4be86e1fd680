use std::{fs, path::PathBuf};

use roofline_core::Plan;

use super::*;
use crate::{
    Dtype, Layout, Manner, Request, Workspace,
    checkpoint::{SINGLE, tests::write},
    part::Share,
    scratch::Scratch,
    stream,
};

/// A layer of a Llama with numbers that repeat after a while, and a tokenizer where one is needed.
pub(crate) fn source(folder: &Path) -> Checkpoint {
    fs::create_dir_all(folder).unwrap();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 32,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": false,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        (0..32).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = serde_json::json!({
        "added_tokens": [], "pre_tokenizer": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut state = 7u64;
    let mut numbers = |count: usize| -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.1
        };
        (0..count).flat_map(|_| ((next().to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    let layer = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| format!("model.layers.0.self_attn.{name}.weight"));
    let mlp = ["gate_proj", "up_proj", "down_proj"].map(|name| format!("model.layers.0.mlp.{name}.weight"));
    let norms = [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.norm.weight",
    ];
    let ends = ["model.embed_tokens.weight", "lm_head.weight"];
    let mut all: Vec<(&str, Dtype, &[usize], Vec<u8>)> = Vec::new();
    for name in layer.iter().chain(&mlp) {
        all.push((name, Dtype::Bf16, &[256, 256], numbers(256 * 256)));
    }
    all.extend(ends.map(|name| (name, Dtype::Bf16, &[32, 256][..], numbers(32 * 256))));
    all.extend(norms.map(|name| (name, Dtype::Bf16, &[256][..], numbers(256))));
    write(&folder.join(SINGLE), &all);
    Checkpoint::open(folder).unwrap()
}

/// Whichever byte of a weight changes after it was written, it is found, and the weight is named: codes, scales, copies,
/// heads of files and what lies beside them.
#[test]
fn a_byte_that_changed_is_found() {
    let scratch = Scratch::new("verify");
    let checkpoint = source(&scratch.path().join("source"));
    for (layout, plan) in [
        (Layout::CompressedTensors, "w4a16"),
        (Layout::CompressedTensors, "nvfp4a16"),
        (Layout::CompressedTensors, "fp8"),
        (Layout::Torchao, "int4-g64-zp16"),
        (Layout::Plain, "fp32"),
        (Layout::Gguf, "q4_k_s"),
        (Layout::Gguf, "nvfp4a16"),
    ] {
        let target = scratch.path().join("target");
        let plan: Plan = plan.parse().unwrap();
        let job = layout.job(&checkpoint, &Request::new(plan.clone(), layout, target.clone())).unwrap();
        let space = Workspace::open(&target, None, &serde_json::json!({}), &[], false, 10, Manner::default()).unwrap();
        let stats = stream::run(&job, &Share::whole(&job), &space, 2, &|_: u64| {}).unwrap();
        let out = space.out();
        for (name, companion) in &job.companions {
            match companion {
                Companion::Bytes(bytes) => fs::write(out.join(name), bytes).unwrap(),
                Companion::Copy(from) => drop(fs::copy(from, out.join(name)).unwrap()),
            }
        }
        let check = || verify(&job, &stats, &out, 2, &|_: u64| {}).map_err(|error| error.to_string());
        assert_eq!(check(), Ok(()), "{layout} {plan}");
        let path: PathBuf = out.join(&job.files[0].name);
        let good = fs::read(&path).unwrap();
        let mut changed = 0;
        for item in &job.items {
            for place in crate::layout::places(item) {
                let bytes = match &item.work {
                    Work::Copy { entry, .. } => entry.bytes(),
                    Work::Literal { bytes, .. } => bytes.len() as u64,
                    Work::Code(code) => {
                        let (part, _) = code.parts.iter().find(|(_, to)| *to == place).unwrap();
                        part_bytes(part, code.matrix().rows) as u64
                    }
                };
                // The first byte, the last and one between. Of a pair of nibbles the low one changes.
                for at in [0, bytes / 2, bytes - 1] {
                    let mut bad = good.clone();
                    bad[(place.offset + at) as usize] ^= 0x01;
                    fs::write(&path, bad).unwrap();
                    let told = check();
                    // A shape beside the codes, zeros of a symmetric type: some bytes nobody computes with.
                    if let Err(told) = &told {
                        changed += 1;
                        let stem = item.name.trim_end_matches(".weight");
                        assert!(told.contains(stem) || told.contains("codes of a kind"), "{layout} {plan}: {told}");
                    } else {
                        let Work::Code(code) = &item.work else {
                            panic!("{layout} {plan}: a copy that changed passes")
                        };
                        let (part, _) = code.parts.iter().find(|(_, to)| *to == place).unwrap();
                        let idle = matches!(part.name, "weight_shape" | "zero_point");
                        assert!(idle, "{layout} {plan}: byte {at} of `{}` of `{}` passes", part.name, item.name);
                    }
                }
            }
        }
        assert!(changed > 30, "{layout} {plan}: {changed}");
        let mut cut = good.clone();
        cut.truncate(good.len() - 1);
        fs::write(&path, cut).unwrap();
        assert!(check().is_err(), "{layout} {plan}: a file that was cut");
        fs::write(&path, &good).unwrap();
        if let Some((name, _)) = job.companions.last() {
            fs::write(out.join(name), "{}").unwrap();
            assert!(check().unwrap_err().starts_with(&format!("`{name}` was written")), "{layout} {plan}");
        }
        space.abandon();
    }
}
