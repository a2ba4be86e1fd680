//! Whole files: there, back, and again.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::*;
use crate::{
    Layout,
    checkpoint::{SINGLE, tests::write},
    gguf::Header,
    kernel_form::tests::{same, transposed},
    quantize::{Report, Request, quantize},
    rows::Spare,
    scratch::Scratch,
};

const TOKENIZER: &str = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    "pre_tokenizer": {"type": "ByteLevel"}}"#;

/// Numbers that BF16 holds, and with one added still does: sixteenths, no two neighbours alike.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    let number = |at: usize| ((at * 7 + seed * 13) % 61) as f32 / 16.0 - 1.9375;
    (0..count).flat_map(|at| number(at).to_bits().to_le_bytes()[2..].to_vec()).collect()
}

/// A checkpoint of that class, with tensors of these names and shapes.
fn checkpoint(folder: &Path, class: &str, more: &Json, tensors: &[(&str, &[usize])]) -> Checkpoint {
    let mut config = json!({"architectures": [class], "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 3, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": true});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
    let tensors: Vec<(&str, Dtype, &[usize], Vec<u8>)> = tensors
        .iter()
        .enumerate()
        .map(|(at, (name, shape))| (*name, Dtype::Bf16, *shape, bytes(shape.iter().product(), at)))
        .collect();
    write(&folder.join(SINGLE), &tensors);
    Checkpoint::open(folder).unwrap()
}

fn run(checkpoint: &Checkpoint, layout: Layout, plan: &str, target: &Path) -> Result<Report> {
    let request = Request::new(plan.parse().unwrap(), layout, target.to_owned());
    quantize(checkpoint, &request, &|_: u64| {})
}

fn numbers(stored: StoredTensor<'_>) -> Vec<f32> {
    let count = stored.shape.iter().product();
    let rows = stored.into_rows().unwrap();
    let mut out = vec![0.0; count];
    rows.read(0..rows.matrix().rows, &mut Spare::default(), &mut out).unwrap();
    out
}

/// Names and shapes.
type Tensors<'a> = &'a [(&'a str, &'a [usize])];

const ENDS: [(&str, &[usize]); 2] = [("model.embed_tokens.weight", &[3, 64]), ("model.norm.weight", &[64])];

/// Every way of turning rows, there and back: the same names, shapes and numbers.
#[test]
fn what_becomes_gguf_comes_back() {
    let families: [(&str, Json, Tensors<'_>); 6] = [
        (
            "LlamaForCausalLM",
            json!({"head_dim": 16}),
            &[
                ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
                ("model.layers.0.self_attn.q_proj.bias", &[64]),
                ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
            ],
        ),
        ("Gemma2ForCausalLM", json!({"head_dim": 16}), &[("model.layers.0.input_layernorm.weight", &[64])]),
        (
            "GptOssForCausalLM",
            json!({"head_dim": 16, "num_local_experts": 2}),
            &[
                ("model.layers.0.mlp.experts.gate_up_proj", &[2, 64, 32]),
                ("model.layers.0.mlp.experts.down_proj", &[2, 16, 64]),
                ("model.layers.0.mlp.experts.gate_up_proj_bias", &[2, 32]),
                ("model.layers.0.self_attn.sinks", &[4]),
            ],
        ),
        (
            "Llama4ForCausalLM",
            json!({"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 64}),
            &[("model.layers.0.feed_forward.experts.gate_up_proj", &[2, 64, 32])],
        ),
        (
            "DeepseekV3ForCausalLM",
            json!({"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2}),
            &[
                ("model.layers.0.self_attn.kv_b_proj.weight", &[96, 32]),
                ("model.layers.0.mlp.gate.e_score_correction_bias", &[2]),
                ("model.layers.0.mlp.experts.0.up_proj.weight", &[16, 64]),
                ("model.layers.0.mlp.experts.1.up_proj.weight", &[16, 64]),
            ],
        ),
        (
            "Qwen2ForCausalLM",
            json!({}),
            &[("model.layers.0.mlp.up_proj.weight", &[64, 64]), ("model.layers.0.self_attn.v_proj.bias", &[32])],
        ),
    ];
    for (class, more, tensors) in families {
        let scratch = Scratch::new(&format!("back-{class}"));
        let source = scratch.path().join("source");
        std::fs::create_dir(&source).unwrap();
        let tensors: Vec<(&str, &[usize])> = ENDS.iter().chain(tensors).copied().collect();
        let plain = checkpoint(&source, class, &more, &tensors);
        let file = scratch.path().join("model.gguf");
        run(&plain, Layout::Gguf, "bf16", &file).unwrap_or_else(|error| panic!("{class}: {error}"));
        let back = Checkpoint::open(&file).unwrap_or_else(|error| panic!("{class}: {error}"));
        assert_eq!(back.config["architectures"][0], class);
        assert_eq!(back.config["num_hidden_layers"], 1);
        let files = back.tokenizer_files().unwrap();
        let files: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(files, ["tokenizer.json", "tokenizer_config.json"]);
        let (there, here) = (StoredTensor::all(&plain).unwrap(), StoredTensor::all(&back).unwrap());
        let names =
            |all: &[StoredTensor<'_>]| all.iter().map(|one| (one.name.clone(), one.shape.clone())).collect::<Vec<_>>();
        assert_eq!(names(&there), names(&here), "{class}");
        for (there, here) in there.into_iter().zip(here) {
            let name = there.name.clone();
            assert_eq!(numbers(there), numbers(here), "{class} {name}");
        }
        // A folder of it: the same bytes, and what transformers needs beside them.
        let folder = scratch.path().join("folder");
        run(&back, Layout::Plain, "bf16", &folder).unwrap_or_else(|error| panic!("{class}: {error}"));
        let again = Checkpoint::open(&folder).unwrap();
        for (there, here) in StoredTensor::all(&plain).unwrap().into_iter().zip(StoredTensor::all(&again).unwrap()) {
            assert_eq!((there.name.clone(), numbers(there)), (here.name.clone(), numbers(here)), "{class}");
        }
        let tokenizer: Json = serde_json::from_slice(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap();
        assert_eq!(tokenizer["model"]["merges"], json!([["a", "b"]]));
    }
}

/// Every type that kernels read, in the order of a plain checkpoint: heads of queries and keys, experts one by one.
#[test]
fn blocks_are_read_as_they_are() {
    let tensors: [(&str, &[usize]); 6] = [
        ("model.embed_tokens.weight", &[3, 256]),
        ("model.norm.weight", &[256]),
        ("model.layers.0.self_attn.q_proj.weight", &[256, 256]),
        ("model.layers.0.self_attn.k_proj.weight", &[128, 256]),
        ("model.layers.0.mlp.up_proj.weight", &[64, 256]),
        ("model.layers.0.mlp.down_proj.weight", &[256, 512]),
    ];
    let scratch = Scratch::new("blocks");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let plain = checkpoint(&source, "LlamaForCausalLM", &json!({"hidden_size": 256}), &tensors);
    let mut seen = std::collections::BTreeSet::new();
    for plan in [
        "bf16", "q8_0", "q6_k", "q5_k_m", "q5_1", "q5_0", "q4_k_m", "q4_1", "q4_0", "q3_k_m", "q2_k", "mxfp4a16",
        "nvfp4a16",
    ] {
        let file = scratch.path().join(format!("{plan}.gguf"));
        run(&plain, Layout::Gguf, plan, &file).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let back = Checkpoint::open(&file).unwrap();
        for stored in StoredTensor::all(&back).unwrap().into_iter().filter(|one| one.shape.len() == 2) {
            let format = stored.format().to_lowercase();
            assert_eq!(
                stored.kernel_form().map(|form| form.format.to_string()),
                Some(format.clone()),
                "{}",
                stored.name
            );
            same(&*stored.into_rows().unwrap(), &format, false);
            seen.insert(format);
        }
    }
    let all =
        ["bf16", "mxfp4", "nvfp4", "q2_k", "q3_k", "q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0"];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

/// Experts are matrices of their own, or a stack that is turned so that each output of each expert is a row.
#[test]
fn blocks_of_experts_are_read_as_they_are() {
    let stacks: [(&str, &[usize]); 2] = [
        ("model.layers.0.mlp.experts.gate_up_proj", &[2, 64, 48]),
        ("model.layers.0.mlp.experts.down_proj", &[2, 32, 64]),
    ];
    let apart: [(&str, &[usize]); 2] = [
        ("model.layers.0.mlp.experts.0.up_proj.weight", &[16, 64]),
        ("model.layers.0.mlp.experts.1.up_proj.weight", &[16, 64]),
    ];
    for (class, more, tensors) in [
        ("GptOssForCausalLM", json!({"head_dim": 16, "num_local_experts": 2}), &stacks),
        ("Qwen3MoeForCausalLM", json!({"num_experts": 2}), &apart),
    ] {
        for plan in ["bf16", "mxfp4a16"] {
            let scratch = Scratch::new(&format!("experts-{class}-{plan}"));
            let source = scratch.path().join("source");
            std::fs::create_dir(&source).unwrap();
            let all: Vec<(&str, &[usize])> = ENDS.iter().chain(tensors).copied().collect();
            let plain = checkpoint(&source, class, &more, &all);
            let file = scratch.path().join("model.gguf");
            run(&plain, Layout::Gguf, plan, &file).unwrap_or_else(|error| panic!("{class} {plan}: {error}"));
            let back = Checkpoint::open(&file).unwrap();
            let format = plan.trim_end_matches("a16");
            let all = StoredTensor::all(&back).unwrap();
            let experts: Vec<_> = all.into_iter().filter(|one| one.name.contains(".experts.")).collect();
            assert_eq!(experts.len(), 2);
            for stored in experts {
                if stored.shape.len() == 3 {
                    assert_eq!(stored.kernel_form(), None, "{}", stored.name);
                    let turned = stored.turned().unwrap();
                    same(&*turned, format, false);
                    let lying = StoredTensor::all(&back).unwrap().into_iter().find(|one| one.name == stored.name);
                    transposed(&*lying.unwrap().into_rows().unwrap(), &*turned, 2);
                } else {
                    same(&*stored.into_rows().unwrap(), format, false);
                }
            }
            // The numbers of the checkpoint itself lie the other way round, and are read so.
            for stored in StoredTensor::all(&plain).unwrap().into_iter().filter(|one| one.shape.len() == 3) {
                same(&*stored.turned().unwrap(), "bf16", false);
                let turned = stored.turned().unwrap();
                let (shard, entry) = stored.first();
                transposed(&crate::rows::Plain::new(shard, entry).unwrap(), &*turned, 2);
            }
        }
    }
}

/// What has its type already is copied, the rest is decoded and coded again, and metadata and tokenizer stay.
#[test]
fn a_gguf_file_is_made_of_another() {
    let scratch = Scratch::new("again");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let up = ("model.layers.0.mlp.up_proj.weight", &[64, 64][..]);
    let tensors: Vec<(&str, &[usize])> = ENDS.iter().chain([&up]).copied().collect();
    let plain = checkpoint(&source, "LlamaForCausalLM", &json!({}), &tensors);
    let (bf16, q8, q4) = (scratch.path().join("a.gguf"), scratch.path().join("b.gguf"), scratch.path().join("c.gguf"));
    run(&plain, Layout::Gguf, "bf16", &bf16).unwrap();
    run(&plain, Layout::Gguf, "q8_0", &q8).unwrap();
    let again = scratch.path().join("again.gguf");
    // From plain numbers: the same file as from the checkpoint, but for the order of two keys.
    let report = run(&Checkpoint::open(&bf16).unwrap(), Layout::Gguf, "q8_0", &again).unwrap();
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    let (ours, theirs) = (Header::read(&again).unwrap(), Header::read(&q8).unwrap());
    assert_eq!(ours.tensors, theirs.tensors);
    let data = |path: &Path, header: &Header| std::fs::read(path).unwrap()[header.data_start as usize..].to_vec();
    assert_eq!(data(&again, &ours), data(&q8, &theirs));
    let sorted = |header: &Header| {
        let mut keys: Vec<(String, String)> =
            header.metadata.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
        keys.sort();
        keys
    };
    assert_eq!(sorted(&ours), sorted(&theirs));
    // From codes: with a word.
    let report = run(&Checkpoint::open(&q8).unwrap(), Layout::Gguf, "q4_0", &q4).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("errors add up")), "{:?}", report.notes);
    // Into itself is refused.
    let said = run(&Checkpoint::open(&q8).unwrap(), Layout::Gguf, "q4_0", &q8).unwrap_err().to_string();
    assert!(said.contains("would be written into"), "{said}");
}

/// llama.cpp stops at an NVFP4 matrix of the feed-forward that has a bias.
#[test]
fn a_bias_after_a_scale_is_refused() {
    let scratch = Scratch::new("late-scale");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let up: [(&str, &[usize]); 2] =
        [("model.layers.0.mlp.up_proj.weight", &[64, 64]), ("model.layers.0.mlp.up_proj.bias", &[64])];
    let tensors: Vec<(&str, &[usize])> = ENDS.iter().chain(&up).copied().collect();
    let plain = checkpoint(&source, "LlamaForCausalLM", &json!({}), &tensors);
    let target = scratch.path().join("model.gguf");
    let said = run(&plain, Layout::Gguf, "nvfp4a16", &target).unwrap_err().to_string();
    assert!(said.contains("has a bias, and llama.cpp stops"), "{said}");
    assert!(!target.exists());
    run(&plain, Layout::Gguf, "mxfp4a16", &target).unwrap();
}

/// A class that is not in the table is named, whatever its tensors are called.
#[test]
fn what_is_not_known_is_refused_by_name() {
    let scratch = Scratch::new("unknown-class");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for class in ["GPT2LMHeadModel", "MambaForCausalLM"] {
        let plain = checkpoint(&source, class, &json!({}), &[("wte.weight", &[3, 64])]);
        let error = run(&plain, Layout::Gguf, "q8_0", &scratch.path().join("model.gguf")).unwrap_err();
        assert!(error.to_string().contains(class), "{error}");
    }
}

/// Types that are poor without an importance matrix are refused without one, and told how to get it. Of embedding and head it says
/// nothing: they have only what ggml can write without.
#[test]
fn narrow_types_ask_for_an_importance_matrix() {
    let scratch = Scratch::new("narrow");
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let tensors: [(&str, &[usize]); 3] = [
        ("model.embed_tokens.weight", &[3, 256]),
        ("model.norm.weight", &[256]),
        ("model.layers.0.self_attn.q_proj.weight", &[256, 256]),
    ];
    let model = checkpoint(&source, "LlamaForCausalLM", &json!({"hidden_size": 256, "head_dim": 64}), &tensors);
    let file = scratch.path().join("model.gguf");
    for (plan, ty) in [
        ("iq3_xxs", "IQ2_S"),
        ("iq2_m", "IQ2_S"),
        ("iq2_s", "IQ2_XS"),
        ("iq2_xs", "IQ2_XS"),
        ("iq2_xxs", "IQ2_XXS"),
        ("iq1_m", "IQ1_M"),
        ("iq1_s", "IQ1_S"),
        ("query=iq3_xxs", "IQ3_XXS"),
    ] {
        let error = run(&model, Layout::Gguf, plan, &file).unwrap_err();
        assert!(error.to_string().contains(&format!("would be {ty}, which is poor without")), "{plan}: {error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("imatrix FILE") && hint.contains("roofline imatrix"), "{plan}: {hint}");
    }
    for plan in ["embedding=iq2_xs", "embedding=iq2_xxs", "embedding=iq1_s"] {
        let error = run(&model, Layout::Gguf, plan, &file).unwrap_err();
        assert!(error.to_string().contains("needs an importance matrix"), "{plan}: {error}");
        assert!(error.hint().unwrap().contains("embedding=q2_k"), "{plan}");
    }
    for plan in ["iq3_s", "embedding=iq2_s", "embedding=iq1_m"] {
        run(&model, Layout::Gguf, plan, &scratch.path().join(format!("{plan}.gguf"))).unwrap();
    }
}
