//! GPTQ's and AWQ's packings, fine-grained FP8 and scales from ranges as a user meets them, on checkpoints made here.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{fs, path::Path, process::Output};

use common::{Tensors, bf16, journaled, killed_before, numbers, partial, read, roofline, said, temporary, write};
use serde_json::{Value, json};

/// Numbers that look like weights, as BF16; `state` goes on from call to call.
fn weights(state: &mut u64, count: usize) -> Vec<u8> {
    let mut uniform = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let next = |_| ((((uniform() + uniform() + uniform()) * 0.1).to_bits() >> 16) as u16).to_le_bytes();
    (0..count).flat_map(next).collect()
}

const HIDDEN: usize = 256;
const INNER: usize = 512;

fn tensors(layers: usize, inner: usize) -> Tensors {
    let (mut state, mut all) = (7, Vec::new());
    let mut add = |name: String, shape: &[usize]| {
        all.push((name, "BF16", shape.to_vec(), weights(&mut state, shape.iter().product())));
    };
    add("model.embed_tokens.weight".to_owned(), &[64, HIDDEN]);
    for layer in 0..layers {
        let at = format!("model.layers.{layer}");
        add(format!("{at}.input_layernorm.weight"), &[HIDDEN]);
        for (name, rows) in [("q", HIDDEN), ("k", HIDDEN / 2), ("v", HIDDEN / 2), ("o", HIDDEN)] {
            add(format!("{at}.self_attn.{name}_proj.weight"), &[rows, HIDDEN]);
        }
        for (name, rows, columns) in [("gate", inner, HIDDEN), ("up", inner, HIDDEN), ("down", HIDDEN, inner)] {
            add(format!("{at}.mlp.{name}_proj.weight"), &[rows, columns]);
        }
    }
    add("model.norm.weight".to_owned(), &[HIDDEN]);
    add("lm_head.weight".to_owned(), &[64, HIDDEN]);
    all
}

/// A checkpoint of these tensors, with the configuration of a Llama changed.
fn checkpoint(folder: &Path, name: &str, more: &Value, tensors: &Tensors) -> String {
    let path = folder.join(name);
    fs::create_dir_all(&path).unwrap();
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 64, "tie_word_embeddings": false,
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    fs::write(path.join("tokenizer.json"), "{}").unwrap();
    write(&path.join("model.safetensors"), tensors);
    path.to_str().unwrap().to_owned()
}

/// What was printed: notes are part of the report.
fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs, must not succeed, says all of the words, and leaves nothing behind.
fn refused(arguments: &[&str], target: &Path, words: &[&str]) {
    let output = roofline(&[arguments, &["--to", target.to_str().unwrap()]].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert!(!target.exists());
}

/// The numbers that data were seen to reach.
fn ranges(folder: &Path, layers: usize) -> String {
    let modules = ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"];
    let of = |layer| modules.map(|module| (format!("model.layers.{layer}.{module}_proj"), json!(2.0)));
    let inputs: serde_json::Map<String, Value> = (0..layers).flat_map(of).collect();
    let cache = |peak: f64| -> serde_json::Map<String, Value> {
        (0..layers).map(|layer| (format!("model.layers.{layer}.self_attn"), json!(peak))).collect()
    };
    let path = folder.join("ranges.json");
    fs::write(&path, json!({ "inputs": inputs, "keys": cache(448.0), "values": cache(224.0) }).to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What every new way of storing can be looked at and decoded again, to within the error that was reported.
#[test]
fn what_was_packed_is_recognised_and_decoded() {
    let folder = temporary("back");
    let all = tensors(1, INNER);
    let source = checkpoint(&folder, "llama", &json!({ "num_hidden_layers": 1 }), &all);
    let seen = ranges(&folder, 1);
    for (layout, plan, words) in [
        ("gptq", "w4a16", "GPTQ INT4 in groups of 128"),
        ("gptq", "int3-g32-zp", "GPTQ INT3 in groups of 32 with zero points"),
        ("gptq", "int2", "GPTQ INT2 in groups of 64"),
        ("gptq", "int8-channel-zp", "GPTQ INT8 per channel with zero points"),
        ("awq", "int4-g64-zp", "AWQ INT4 in groups of 64"),
        ("fp8", "fp8-block", "FP8 in blocks of 128 x 128"),
        ("compressed-tensors", "fp8-static", "FP8 per tensor"),
        ("compressed-tensors", "w4a8", "INT4 in groups of 128"),
        ("compressed-tensors", "w4a8-int8", "INT4 in groups of 128, a byte each"),
        ("compressed-tensors", "nvfp4,kv=fp8", "NVFP4"),
    ] {
        let (coded, plain) = (folder.join("coded"), folder.join("plain"));
        let (coded, plain) = (coded.to_str().unwrap(), plain.to_str().unwrap());
        let mut arguments =
            vec!["quantize", &source, "--plan", plan, "--as", layout, "--to", coded, "--force", "--json"];
        if layout == "compressed-tensors" && !plan.starts_with("w4a8") {
            arguments.extend(["--ranges", &seen]);
        }
        let output = roofline(&arguments);
        assert!(output.status.success(), "{layout} {plan}: {}", said(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let output = roofline(&["inspect", coded, "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let coded_as = found["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["format"] == words).count();
        assert_eq!(coded_as, 7, "{layout} {plan}: {found}");
        assert_eq!(found["suspicious"], json!([]), "{layout} {plan}");
        let output = roofline(&["quantize", coded, "--plan", "f32", "--to", plain, "--force"]);
        assert!(output.status.success(), "{layout} {plan}: {}", said(&output));
        let decoded = read(&Path::new(plain).join("model.safetensors"));
        assert_eq!(decoded.len(), all.len(), "{layout} {plan}: what scales activations is left out");
        for line in report["weights"].as_array().unwrap() {
            let name = line["name"].as_str().unwrap();
            let (.., original) = all.iter().find(|(known, ..)| known == name).unwrap();
            let original = bf16(original).into_iter().map(f64::from);
            let (dtype, _, bytes) = &decoded[name];
            let (mut power, mut noise) = (0.0, 0.0);
            for (weight, value) in original.zip(numbers(dtype, bytes)) {
                power += weight * weight;
                noise += (weight - f64::from(value)).powi(2);
            }
            let (stated, real) = (line["relative_error"].as_f64().unwrap(), (noise / power).sqrt());
            assert!((stated - real).abs() < 1e-6 * real, "{layout} {plan} {name}: {stated} stated, {real} real");
        }
    }
}

/// Killed in the middle, every new layout goes on and ends with the same bytes.
#[test]
fn a_killed_run_is_resumed() {
    let folder = temporary("killed");
    let source = checkpoint(&folder, "llama", &json!({ "num_hidden_layers": 24 }), &tensors(24, INNER));
    let seen = ranges(&folder, 24);
    for (layout, plan) in [
        ("gptq", "int4-g128-zp"),
        ("awq", "int4-g128-zp"),
        ("fp8", "fp8-block"),
        ("compressed-tensors", "nvfp4,kv=fp8"),
    ] {
        let target = folder.join(layout);
        let mut arguments = vec!["quantize", &source, "--plan", plan, "--as", layout, "--to", target.to_str().unwrap()];
        if layout == "compressed-tensors" {
            arguments.extend(["--ranges", &seen]);
        }
        let output = roofline(&arguments);
        assert!(output.status.success(), "{}", said(&output));
        let expected = read(&target.join("model.safetensors"));
        let partial = partial(&target);
        for tensors in [0, 1, 60, 120] {
            killed_before(&target, &arguments, || journaled(&partial) >= Some(tensors));
            assert!(journaled(&partial) >= Some(tensors), "{layout}: {tensors}");
            let output = roofline(&[&arguments[..], &["--resume"]].concat());
            assert!(output.status.success(), "{layout}: {}", said(&output));
            assert!(read(&target.join("model.safetensors")) == expected, "{layout}: the same bytes in the end");
        }
    }
}

/// Scales that only data can tell come from a file, and without it nothing is written.
#[test]
fn ranges_are_stored_and_missing_ones_are_named() {
    let folder = temporary("ranges");
    let source = checkpoint(&folder, "llama", &json!({}), &tensors(2, INNER));
    let target = folder.join("out");
    for plan in ["nvfp4", "fp8-static", "w4a16,down=fp8-static"] {
        let first = "`model.layers.0.mlp.down_proj`, which only data can tell";
        refused(&["quantize", &source, "--plan", plan], &target, &[first, "--ranges FILE"]);
    }
    let short = ranges(&folder, 1);
    let words = ["the file of ranges has none for the input of `model.layers.1.mlp.down_proj`, nor for 6 others"];
    refused(&["quantize", &source, "--plan", "nvfp4", "--ranges", &short], &target, &words);
    let words = ["the keys of `model.layers.1.self_attn`, nor for 1 others"];
    refused(&["quantize", &source, "--plan", "fp8,kv=fp8", "--ranges", &short], &target, &words);
    let words = ["gptq stores no scales of activations"];
    refused(&["quantize", &source, "--plan", "w4a16", "--as", "gptq", "--ranges", &short], &target, &words);
    let broken = folder.join("broken.json");
    fs::write(&broken, r#"{"inputs": {"a": -3}}"#).unwrap();
    let words = ["the inputs of `a` is -3"];
    refused(&["quantize", &source, "--plan", "nvfp4", "--ranges", broken.to_str().unwrap()], &target, &words);

    let seen = ranges(&folder, 2);
    let plan = "nvfp4,down=fp8-static,kv=fp8";
    let output = roofline(&["quantize", &source, "--plan", plan, "--ranges", &seen, "--to", target.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(!told(&output).contains("says nothing of the cache"), "{}", told(&output));
    let written = read(&target.join("model.safetensors"));
    let at = |name: &str| written[&format!("model.layers.1.{name}")].clone();
    // 2688 / 2 in FP32; 2 / 448, 448 / 448 and 224 / 448 in BF16.
    let one = |dtype: &str, bytes: &[u8]| (dtype.to_owned(), vec![1], bytes.to_vec());
    assert_eq!(at("self_attn.q_proj.input_global_scale"), one("F32", &1344f32.to_le_bytes()));
    assert_eq!(at("mlp.down_proj.input_scale"), one("BF16", &0x3b92u16.to_le_bytes()));
    assert_eq!(at("self_attn.k_scale"), one("BF16", &0x3f80u16.to_le_bytes()));
    assert_eq!(at("self_attn.v_scale"), one("BF16", &0x3f00u16.to_le_bytes()));
    let config: Value = serde_json::from_slice(&fs::read(target.join("config.json")).unwrap()).unwrap();
    let scheme = &config["quantization_config"]["kv_cache_scheme"];
    assert_eq!(
        (&scheme["num_bits"], &scheme["type"], &scheme["strategy"]),
        (&json!(8), &json!("float"), &json!("tensor"))
    );
}

/// What transformers' loaders cannot take is refused before anything is written.
#[test]
fn what_no_loader_takes_is_refused() {
    let folder = temporary("refused");
    let target = folder.join("out");
    let llama = tensors(1, INNER);
    let source = checkpoint(&folder, "llama", &json!({}), &llama);
    let quantize = |source: &str, plan: &str, layout: &str, words: &[&str]| {
        refused(&["quantize", source, "--plan", plan, "--as", layout], &target, words);
    };
    quantize(&source, "w4a16,head=w4a16", "gptq", &["lm_head.weight", "no product inside a layer", "head=keep"]);
    quantize(&source, "w4a16,down=int4-g32", "gptq", &["one scheme for all"]);
    quantize(&source, "w4a16", "awq", &["awq cannot store", "int4-g128-zp"]);
    quantize(&source, "fp8", "fp8", &["fp8 cannot store", "`fp8-block` is what it has"]);
    quantize(&source, "int4-g128-zp,embedding=int4-g128-zp", "awq", &["embed_tokens"]);

    let mut experts = llama.clone();
    for (name, ..) in &mut experts {
        *name = name.replace("mlp.", "mlp.experts.0.");
    }
    let moe = checkpoint(&folder, "moe", &json!({}), &experts);
    for (layout, plan) in [("gptq", "w4a16"), ("awq", "int4-g128-zp")] {
        quantize(&moe, plan, layout, &["is of an expert", "experts=keep"]);
        let output = roofline(&[
            "quantize",
            &moe,
            "--plan",
            &format!("{plan},experts=keep"),
            "--as",
            layout,
            "--to",
            target.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{}", said(&output));
        fs::remove_dir_all(&target).unwrap();
    }
    // All experts of a layer are codes for fine-grained FP8, or none.
    quantize(&moe, "fp8-block,*.up_proj=keep", "fp8", &["is of experts of which others are kept"]);
    let seeing = checkpoint(&folder, "seeing", &json!({ "vision_config": {} }), &llama);
    quantize(&seeing, "w4a16", "gptq", &["vision_config", "models of text alone"]);
    let scaled = checkpoint(&folder, "scaled", &json!({ "model_type": "starcoder2" }), &llama);
    quantize(&scaled, "int4-g128-zp", "awq", &["starcoder2", "--as gptq"]);
    let elsewhere = llama
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.replace("model.", "backbone."), *dtype, shape.clone(), bytes.clone()));
    let elsewhere = checkpoint(&folder, "elsewhere", &json!({}), &elsewhere.collect());
    quantize(&elsewhere, "w4a16", "gptq", &["lies in no stack of layers that optimum knows"]);
}

/// Inputs share scales by 128: a product of 320 inputs would be written and fail when it runs. Rows that as many scales would divide evenly
/// are taken for other blocks.
#[test]
fn blocks_that_would_fail_or_be_misread_are_refused() {
    let folder = temporary("blocks");
    let target = folder.join("out");
    let wide = checkpoint(&folder, "wide", &json!({}), &tensors(1, 320));
    for layout in ["compressed-tensors", "fp8"] {
        let words = ["mlp.down_proj.weight", "has 320 columns, and its inputs share a scale by 128"];
        let keep = ["--keep", "*.gate_proj", "--keep", "*.up_proj"];
        refused(&[&["quantize", &wide, "--plan", "fp8-block", "--as", layout], &keep[..]].concat(), &target, &words);
    }
    let even = checkpoint(&folder, "even", &json!({}), &tensors(1, 192));
    let arguments = ["quantize", &even, "--plan", "fp8-block", "--as", "fp8", "--keep", "*.down_proj"];
    refused(&arguments, &target, &["mlp.gate_proj.weight", "has 192 rows", "smaller ones"]);
    // 5 scales do not divide 576 rows: transformers says so itself where it matters.
    let odd = checkpoint(&folder, "odd", &json!({}), &tensors(1, 576));
    let to = target.to_str().unwrap();
    let output =
        roofline(&["quantize", &odd, "--plan", "fp8-block", "--as", "fp8", "--keep", "*.down_proj", "--to", to]);
    assert!(output.status.success() && told(&output).contains("has 576 rows"), "{}", said(&output));
    let config: Value = serde_json::from_slice(&fs::read(target.join("config.json")).unwrap()).unwrap();
    let kept = &config["quantization_config"]["modules_to_not_convert"];
    assert_eq!(*kept, json!(["lm_head", "model.layers.0.mlp.down_proj"]));
}

/// A checkpoint of GPTQ's first format, with channels in no order and scales of BF16; and what is not believed.
#[test]
fn packings_are_believed_only_if_all_fits() {
    let folder = temporary("believed");
    let source = checkpoint(&folder, "llama", &json!({ "num_hidden_layers": 1 }), &tensors(1, INNER));
    let packed = folder.join("packed");
    let output = roofline(&["quantize", &source, "--plan", "w4a16", "--as", "gptq", "--to", packed.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let file = packed.join("model.safetensors");
    let original: Tensors = read(&file)
        .into_iter()
        .map(|(name, (dtype, shape, bytes))| {
            let dtype = ["BF16", "I32", "F16"].into_iter().find(|known| **known == dtype).unwrap();
            (name, dtype, shape, bytes)
        })
        .collect();
    let index = "model.layers.0.mlp.up_proj.g_idx";
    let plain = folder.join("plain");
    let decode = || {
        roofline(&["quantize", packed.to_str().unwrap(), "--plan", "f32", "--to", plain.to_str().unwrap(), "--force"])
    };
    let up = || read(&plain.join("model.safetensors"))["model.layers.0.mlp.up_proj.weight"].2.clone();
    assert!(decode().status.success());
    let before = up();
    // The two groups of 128 change places: what was read with the scale of the one is read with that of the other.
    let mut swapped = original.clone();
    let tensor = swapped.iter_mut().find(|(name, ..)| name == index).unwrap();
    tensor.3 = (0..256u32).flat_map(|at| (1 - at / 128).to_le_bytes()).collect();
    write(&file, &swapped);
    assert!(decode().status.success());
    let after = up();
    assert_ne!(before, after);
    let number = |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[at * 4..][..4].try_into().unwrap());
    let scales = &original.iter().find(|(name, ..)| *name == index.replace("g_idx", "scales")).unwrap().3;
    let bits = |at: usize| u16::from_le_bytes([scales[at * 2], scales[at * 2 + 1]]);
    // FP16 between 2^-14 and 1, as FP32.
    let half = |bits: u16| f32::from_bits((u32::from(bits) << 13) + ((127 - 15) << 23));
    let (zeroth, first) = (half(bits(0)), half(bits(512)));
    let at = (0..128).find(|at| number(&before, *at) != 0.0).unwrap();
    assert!((number(&after, at) / number(&before, at) - first / zeroth).abs() < 1e-6);
    // A group that is not there, an index of another length, words of another count, an unknown format, no configuration.
    let mut beyond = original.clone();
    beyond.iter_mut().find(|(name, ..)| name == index).unwrap().3[4] = 2;
    write(&file, &beyond);
    assert!(said(&decode()).contains("is in codes of a kind that this program does not know"));
    write(&file, &original);
    let config = fs::read_to_string(packed.join("config.json")).unwrap();
    for (from, to) in [
        ("\"gptq\",\n    \"lm_head\"", "\"marlin\",\n    \"lm_head\""),
        ("\"quant_method\": \"gptq\"", "\"quant_method\": \"x\""),
    ] {
        assert!(config.contains(from), "{config}");
        fs::write(packed.join("config.json"), config.replace(from, to)).unwrap();
        assert!(said(&decode()).contains("does not know"), "{to}");
    }
    fs::write(packed.join("config.json"), config).unwrap();
    assert!(decode().status.success());
}
