//! Importance matrices and sizes to aim at, as a user meets them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use common::{Tensors, answer, roofline, said, temporary, write};
use serde_json::{Value, json};

/// A Llama of 131 tokens, for its configuration and its tokenizer.
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../roofline-engine/tests/data/llama");
/// The width of the models here, a whole number of GGUF's small blocks.
const WIDTH: usize = 64;
/// Tokens of the tokenizer.
const TOKENS: usize = 131;

/// A model of two layers whose weights are random: a Llama, or with experts a Mixtral.
fn model(folder: &Path, experts: usize) -> String {
    let to = folder.join(format!("model-{experts}"));
    fs::create_dir_all(&to).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(Path::new(LLAMA).join("config.json")).unwrap()).unwrap();
    let change = json!({
        "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": TOKENS, "tie_word_embeddings": false,
    });
    config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    if experts > 0 {
        let change = json!({
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": experts,
            "num_experts_per_tok": 2,
        });
        config.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    }
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        if let Ok(bytes) = fs::read(Path::new(LLAMA).join(file)) {
            fs::write(to.join(file), bytes).unwrap();
        }
    }
    let mut shapes =
        vec![("model.embed_tokens".to_owned(), vec![TOKENS, WIDTH]), ("lm_head".to_owned(), vec![TOKENS, WIDTH])];
    shapes.push(("model.norm".to_owned(), vec![WIDTH]));
    for layer in 0..2 {
        let mut own = vec![
            ("self_attn.q_proj".to_owned(), vec![WIDTH, WIDTH]),
            ("self_attn.k_proj".to_owned(), vec![32, WIDTH]),
            ("self_attn.v_proj".to_owned(), vec![32, WIDTH]),
            ("self_attn.o_proj".to_owned(), vec![WIDTH, WIDTH]),
            ("input_layernorm".to_owned(), vec![WIDTH]),
            ("post_attention_layernorm".to_owned(), vec![WIDTH]),
        ];
        if experts == 0 {
            own.extend(["gate", "up", "down"].map(|name| (format!("mlp.{name}_proj"), vec![WIDTH, WIDTH])));
        } else {
            own.push(("block_sparse_moe.gate".to_owned(), vec![experts, WIDTH]));
            for expert in 0..experts {
                let of = |name: &str| format!("block_sparse_moe.experts.{expert}.{name}");
                own.extend(["w1", "w2", "w3"].map(|name| (of(name), vec![WIDTH, WIDTH])));
            }
        }
        shapes.extend(own.into_iter().map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape)));
    }
    let mut state = 11u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let tensors: Tensors = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<usize>();
            let number = |random: f32| if shape.len() == 1 { 1.0 + random } else { 0.5 * random };
            let bytes = (0..count).flat_map(|_| number(random()).to_le_bytes()).collect();
            (format!("{name}.weight"), "F32", shape, bytes)
        })
        .collect();
    write(&to.join("model.safetensors"), &tensors);
    to.to_str().unwrap().to_owned()
}

/// A folder with a text.
fn place(name: &str) -> (PathBuf, String) {
    let folder = temporary(name);
    let words: Vec<String> = (0..80).map(|at| format!("the cat number {at} sat on the mat.\n")).collect();
    let text = folder.join("text.txt");
    fs::write(&text, words.concat()).unwrap();
    (folder, text.to_str().unwrap().to_owned())
}

fn made(model: &str, text: &str, to: &Path) -> Output {
    roofline(&["imatrix", model, "--data", text, "--length", "32", "-o", to.to_str().unwrap(), "--json"])
}

fn refused(output: &Output, words: &str) {
    assert_eq!(output.status.code(), Some(2), "{}", said(output));
    assert!(said(output).contains(words), "{}", said(output));
}

#[test]
fn a_matrix_is_made_once_and_the_same_by_any_number_of_threads() {
    let (folder, text) = place("made");
    let llama = &model(&folder, 0);
    let file = folder.join("imatrix.gguf");
    let told = answer(&made(llama, &text, &file));
    assert_eq!(told["length"], 32);
    assert_eq!(told["entries"], 14, "seven matrices of each layer");
    assert_eq!(told["bytes"].as_u64().unwrap(), fs::metadata(&file).unwrap().len());
    refused(&made(llama, &text, &file), "is there already");
    let bytes = fs::read(&file).unwrap();
    let other = folder.join("again.gguf");
    let to = other.to_str().unwrap();
    for threads in ["1", "3"] {
        let again =
            roofline(&["imatrix", llama, "--data", &text, "--length", "32", "-o", to, "--threads", threads, "--force"]);
        assert!(again.status.success(), "{}", said(&again));
        assert_eq!(fs::read(&other).unwrap(), bytes, "{threads} threads");
    }
}

/// Bytes with others in the place of some, as many.
fn replaced(bytes: &[u8], old: [u8; 4], new: [u8; 4]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for at in 0..out.len() - 3 {
        if out[at..at + 4] == old {
            out[at..at + 4].copy_from_slice(&new);
        }
    }
    out
}

#[test]
fn errors_are_weighed_and_a_matrix_of_another_model_is_refused() {
    let (folder, text) = place("weighed");
    let (llama, mixtral) = (&model(&folder, 0), &model(&folder, 4));
    let (own, other) = (folder.join("llama.gguf"), folder.join("mixtral.gguf"));
    answer(&made(llama, &text, &own));
    answer(&made(mixtral, &text, &other));
    let quantized = |plan: &str, to: &str, more: &[&str]| {
        let to = folder.join(to);
        roofline(&[&["quantize", llama, "--plan", plan, "--to", to.to_str().unwrap(), "--json"][..], more].concat())
    };
    // Names that no model has.
    let third = folder.join("third-matrix.gguf");
    let renamed: Vec<u8> = fs::read(&own).unwrap();
    fs::write(&third, replaced(&renamed, *b"blk.", *b"xlk.")).unwrap();
    let own = own.to_str().unwrap();
    answer(&quantized("q4_0", "plain.gguf", &[]));
    answer(&quantized("q4_0", "weighed.gguf", &["--imatrix", own, "--verify"]));
    assert_ne!(fs::read(folder.join("plain.gguf")).unwrap(), fs::read(folder.join("weighed.gguf")).unwrap());
    let weighed = fs::read(folder.join("weighed.gguf")).unwrap();
    assert!(weighed.windows(20).any(|bytes| bytes == b"quantize.imatrix.fil"));
    // Other layouts weigh by the method that looks at errors, and no other.
    let rounded = quantized("int4-g32", "rounded", &["--imatrix", own]);
    refused(&rounded, "the method `rtn` looks at none");
    answer(&quantized("int4-g32", "searched", &["--imatrix", own, "--method", "mse"]));
    answer(&quantized("int4-g32", "blind", &["--method", "mse"]));
    let weights = |name: &str| fs::read(folder.join(name).join("model.safetensors")).unwrap();
    assert_ne!(weights("searched"), weights("blind"));
    // Files that are none, or of something else.
    // One of a model with experts speaks of attention alone.
    let partly = answer(&quantized("q4_0", "other.gguf", &["--imatrix", other.to_str().unwrap()]));
    assert!(partly["notes"].to_string().contains("says nothing of 6 of 14 matrices"), "{}", partly["notes"]);
    let tied = quantized("q4_0", "third.gguf", &["--imatrix", third.to_str().unwrap()]);
    refused(&tied, "speaks of none of the 14 matrices");
    refused(&quantized("q4_0", "text.gguf", &["--imatrix", &text]), "is no usable importance matrix");
    let absent = quantized("q4_0", "absent.gguf", &["--imatrix", "/nonexistent/imatrix.gguf"]);
    assert!(!absent.status.success() && said(&absent).contains("/nonexistent/imatrix.gguf"), "{}", said(&absent));
    assert!(!folder.join("third.gguf").exists() && !folder.join("text.gguf").exists());
}

/// Experts have rows of their own in one entry; what no token was sent to counts as one.
#[test]
fn experts_are_weighed_by_their_own_tokens() {
    let (folder, text) = place("experts");
    let mixtral = &model(&folder, 4);
    let file = folder.join("imatrix.gguf");
    answer(&made(mixtral, &text, &file));
    let to = folder.join("mixtral.gguf");
    let told = roofline(&[
        "quantize",
        mixtral,
        "--plan",
        "q4_0",
        "--imatrix",
        file.to_str().unwrap(),
        "--to",
        to.to_str().unwrap(),
        "--verify",
        "--json",
    ]);
    let told = answer(&told);
    assert_eq!(told["verified"], true);
    assert!(
        told["imatrix"].as_str().unwrap().starts_with("imatrix.gguf, an importance matrix of text.txt ("),
        "{told}"
    );
    // Without it every stack of experts is coded otherwise.
    let blind = folder.join("blind.gguf");
    let blind = answer(&roofline(&["quantize", mixtral, "--plan", "q4_0", "--to", blind.to_str().unwrap(), "--json"]));
    let experts = |told: &Value| {
        let weights = told["weights"].as_array().unwrap().clone();
        weights
            .into_iter()
            .filter(|weight| weight["role"] == "experts" || weight["rows"] == 4 * WIDTH)
            .collect::<Vec<_>>()
    };
    let pairs: Vec<_> = experts(&told).into_iter().zip(experts(&blind)).collect();
    assert_eq!(pairs.len(), 6, "{told}");
    assert!(pairs.iter().all(|(one, other)| one["relative_error"] != other["relative_error"]), "{pairs:?}");
    // One of a model with other experts is of another model, wherever it is used.
    for experts in [2, 8] {
        let other = folder.join(format!("other-{experts}.gguf"));
        answer(&made(&model(&folder, experts), &text, &other));
        for more in [["--plan", "q4_0", "--as", "gguf"], ["--plan", "int4-g32", "--method", "mse"]] {
            let to = folder.join("refused");
            let asked = ["quantize", mixtral, "--to", to.to_str().unwrap(), "--imatrix", other.to_str().unwrap()];
            refused(&roofline(&[&asked[..], &more].concat()), "4 experts of 64 input channels");
        }
    }
}

#[test]
fn texts_and_sizes_that_are_none_are_said() {
    let (folder, text) = place("texts");
    let llama = &model(&folder, 0);
    let to = folder.join("out.gguf");
    let to = to.to_str().unwrap();
    // The demo's own text stands in for one that is not named, and is said to.
    let own = roofline(&["imatrix", llama, "-o", to, "--samples", "2", "--json"]);
    assert!(said(&own).contains("the demo's own text") && said(&own).contains("--data FILE"), "{}", said(&own));
    assert!(answer(&own)["notes"].to_string().contains("the demo's own text"));
    fs::remove_file(to).unwrap();
    refused(&roofline(&["imatrix", llama, "-o", to, "--offload", "/nowhere"]), "/nowhere is no folder");
    let short = folder.join("short.txt");
    fs::write(&short, "a").unwrap();
    refused(&roofline(&["imatrix", llama, "--data", short.to_str().unwrap(), "-o", to]), "and a sample");
    let aimed = |more: &[&str]| roofline(&[&["quantize", llama, "--to", to, "--data", &text][..], more].concat());
    refused(&aimed(&["--target-size", "lots"]), "unknown size `lots`");
    refused(&aimed(&["--target-bits=-1"]), "-1 bits for each weight are not possible");
    refused(&aimed(&["--target-bits", "4", "--method", "gptq"]), "aimed at with formats alone");
    refused(&aimed(&["--target-bits", "4", "--seed", "1"]), "samples of its own");
    refused(&aimed(&["--target-bits", "4", "--runtime", "vllm", "--as", "gguf"]), "vLLM");
    fs::write(to, "GGUF").unwrap();
    refused(&aimed(&["--target-bits", "4"]), "is there already");
    fs::remove_file(to).unwrap();
    let less = aimed(&["--target-size", "10kB"]);
    refused(&less, "at least");
    assert!(said(&less).contains(" B at least, and 10000 B are asked for"), "{}", said(&less));
}

/// What is found fits to the byte, and is a plan that can be written by its text.
#[test]
fn sizes_are_aimed_at() {
    let (folder, text) = place("aimed");
    let llama = &model(&folder, 0);
    let to = folder.join("aimed.gguf");
    let to = to.to_str().unwrap();
    let told = answer(&roofline(&["quantize", llama, "--data", &text, "--to", to, "--target-bits", "6", "--json"]));
    let bytes = told["bytes_after"].as_u64().unwrap();
    assert_eq!(fs::metadata(to).unwrap().len(), bytes);
    let inspected = answer(&roofline(&["inspect", to, "--json"]));
    let bits = inspected["bits_per_weight"].as_f64().unwrap();
    assert!(bits <= 6.0 && bits > 4.5, "{bits}");
    let notes = told["notes"].to_string();
    assert!(notes.contains("nats") && notes.contains("importance matrix"), "{notes}");
    let plan = told["plan"].as_str().unwrap();
    let again = folder.join("by-plan.gguf");
    let by_plan = answer(&roofline(&["quantize", llama, "--plan", plan, "--to", again.to_str().unwrap(), "--json"]));
    // The same types; what says that errors were weighed is not in its head.
    assert!(by_plan["bytes_after"].as_u64().unwrap() <= bytes);
}
