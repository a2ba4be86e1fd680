//! What a run writes.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::made::{
    HIDDEN, INNER, checkpoint, checkpoint_of, config, contents, names, read, roofline, said, shown, temporary, tensors,
    write,
};

#[test]
fn a_run_and_what_it_wrote() {
    let folder = temporary("run");
    let source = checkpoint(&folder, 2);
    let before = contents(&source);
    let (source, target) = (source.to_str().unwrap(), folder.join("out"));
    let output =
        roofline(&["quantize", source, "--plan", "w4a16", "--keep", "*.o_proj", "--to", target.to_str().unwrap()]);
    insta::assert_snapshot!("quantize", shown(&output, &folder));
    let output = roofline(&["inspect", target.to_str().unwrap()]);
    insta::assert_snapshot!("inspect_quantized", shown(&output, &folder));
    let written = contents(&target);
    insta::assert_snapshot!("model_card", String::from_utf8_lossy(&written["README.md"]));
    let config: Value = serde_json::from_slice(&written["config.json"]).unwrap();
    insta::assert_snapshot!(
        "quantization_config",
        serde_json::to_string_pretty(&config["quantization_config"]).unwrap()
    );
    assert_eq!(written["tokenizer.json"], before["tokenizer.json"]);
    assert_eq!(contents(Path::new(source)), before, "the input is never touched");
    assert_eq!(names(&folder), ["out", "tiny"]);
}

#[test]
fn a_gguf_file() {
    let folder = temporary("gguf");
    let source = checkpoint(&folder, 2);
    let target = folder.join("tiny.gguf");
    let (source, target) = (source.to_str().unwrap(), target.to_str().unwrap());
    let output = roofline(&["quantize", source, "--plan", "q4_k_m", "--to", target]);
    insta::assert_snapshot!("quantize_gguf", shown(&output, &folder));
    insta::assert_snapshot!("inspect_gguf", shown(&roofline(&["inspect", target, "--all"]), &folder));
    // A folder gets a name for the file, and a card.
    let output = roofline(&["quantize", source, "--plan", "q8_0", "--to", folder.join("dir").to_str().unwrap()]);
    assert!(output.status.success(), "{}", shown(&output, &folder));
    assert_eq!(names(&folder.join("dir")), ["README.md", "tiny-Q8_0.gguf"]);
}

#[test]
fn the_schemes_there_are() {
    insta::assert_snapshot!("schemes", shown(&roofline(&["quantize", "--list"]), Path::new("/nonexistent")));
}

/// Quantized, then decoded: the second file holds what the report of the first says.
#[test]
fn what_was_coded_can_be_read_back() {
    let folder = temporary("back");
    let source = checkpoint(&folder, 1);
    let source = source.to_str().unwrap();
    let all = [
        ("compressed-tensors", "w4a16"),
        ("compressed-tensors", "w4a16-asym-g32"),
        ("compressed-tensors", "w8a16"),
        ("compressed-tensors", "int8-g128"),
        ("compressed-tensors", "w8a8"),
        ("compressed-tensors", "fp8"),
        ("compressed-tensors", "fp8-block"),
        ("compressed-tensors", "nvfp4a16"),
        ("compressed-tensors", "mxfp4a16"),
        ("compressed-tensors", "mxfp4"),
        ("compressed-tensors", "mxfp8"),
        ("torchao", "w8a16"),
        ("torchao", "w8a16-g128"),
        ("torchao", "fp8a16"),
        ("torchao", "int4-g64-zp16"),
        ("torchao", "intx4-asym-g32"),
    ];
    for (layout, scheme) in all {
        let (coded, plain) = (folder.join("coded"), folder.join("plain"));
        let (coded, plain) = (coded.to_str().unwrap(), plain.to_str().unwrap());
        let output =
            roofline(&["quantize", source, "--plan", scheme, "--as", layout, "--to", coded, "--force", "--json"]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let output = roofline(&["quantize", coded, "--plan", "f32", "--to", plain, "--force"]);
        assert!(output.status.success(), "{layout} {scheme}: {}", shown(&output, &folder));
        let decoded = read(&Path::new(plain).join("model.safetensors"));
        for line in report["weights"].as_array().unwrap() {
            let name = line["name"].as_str().unwrap();
            let (_, _, _, original) = tensors(1).into_iter().find(|(known, ..)| known == name).unwrap();
            let original = original
                .chunks_exact(2)
                .map(|bytes| f64::from(f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)));
            let pairs: Vec<(f64, f64)> = original.zip(decoded[name].iter().map(|value| f64::from(*value))).collect();
            let power: f64 = pairs.iter().map(|(w, _)| w * w).sum();
            let noise: f64 = pairs.iter().map(|(w, q)| (w - q) * (w - q)).sum();
            let (stated, real) = (line["relative_error"].as_f64().unwrap(), (noise / power).sqrt());
            assert!((stated - real).abs() < 1e-6 * real, "{layout} {scheme} {name}: {stated} stated, {real} real");
        }
    }
}

/// A plan is the same as a text, in a file, and in a file as a list; a file of the form before is told the new one.
#[test]
fn a_plan_is_a_text_or_a_file_of_it() {
    let folder = temporary("plan");
    let source = checkpoint(&folder, 2);
    let source = source.to_str().unwrap();
    let file = folder.join("plan.toml");
    let mut written = Vec::new();
    let text = "w4a16,down=w8a16,layers.0=16bit,head=fp8";
    let contents_of = [
        None,
        Some(format!("plan = \"{text}\"")),
        Some("plan = [\"w4a16\", \"down=w8a16\", \"layers.0=16bit\", \"head=fp8\"]".to_owned()),
    ];
    for content in contents_of {
        if let Some(content) = &content {
            fs::write(&file, content).unwrap();
        }
        let plan = if content.is_some() { file.to_str().unwrap() } else { text };
        let to = folder.join("out");
        let output = roofline(&["quantize", source, "--plan", plan, "--to", to.to_str().unwrap(), "--force", "--json"]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["plan"], text);
        written.push(contents(&to));
    }
    assert!(written[0] == written[1] && written[1] == written[2]);
    fs::write(&file, "scheme = \"w4a16\"\n[[rule]]\nrole = \"down\"\nscheme = \"w8a16\"").unwrap();
    let to = folder.join("former");
    let output = roofline(&["quantize", source, "--plan", file.to_str().unwrap(), "--to", to.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("plan = \"w4a16,down=w8a16\""), "{}", said(&output));
}

/// Number of threads, sharding and resuming change nothing.
#[test]
fn shards_and_threads_give_the_same_tensors() {
    let folder = temporary("shards");
    let source = checkpoint(&folder, 2);
    let sharded = folder.join("sharded");
    fs::create_dir_all(&sharded).unwrap();
    let all = tensors(2);
    let (first, second) = (all[..9].to_vec(), all[9..].to_vec());
    let mut map = serde_json::Map::new();
    for (file, part) in [("model-00001-of-00002.safetensors", &first), ("model-00002-of-00002.safetensors", &second)] {
        write(&sharded.join(file), part);
        for (name, ..) in part {
            map.insert(name.clone(), file.into());
        }
    }
    fs::write(sharded.join("model.safetensors.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    fs::write(sharded.join("config.json"), config(2).to_string()).unwrap();
    let mut plain = Vec::new();
    for (name, source, threads) in [("one", &source, "1"), ("four", &source, "4"), ("shards", &sharded, "2")] {
        let (out, back) = (folder.join(name), folder.join(format!("{name}-back")));
        for (from, to, plan) in [(source, &out, "nvfp4a16"), (&out, &back, "f32")] {
            let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
            let output = roofline(&["quantize", from, "--plan", plan, "--to", to, "--threads", threads]);
            assert!(output.status.success(), "{}", shown(&output, &folder));
        }
        let files = names(&back).into_iter().filter(|name| name.ends_with(".safetensors"));
        plain.push(files.flat_map(|name| read(&back.join(name))).collect::<BTreeMap<_, _>>());
    }
    assert_eq!(contents(&folder.join("one")), contents(&folder.join("four")));
    assert_eq!(plain[0], plain[2]);
    assert_eq!(plain[0].len(), tensors(2).len());
}

/// DeepSeek's and Qwen's FP8, and what goes with it.
#[test]
fn fine_grained_fp8_becomes_plain() {
    let folder = temporary("fine-grained");
    let stem = "model.layers.0.mlp.gate_proj";
    let mut all = tensors(1);
    let at = all.iter().position(|(name, ..)| *name == format!("{stem}.weight")).unwrap();
    // 0x38 is 1; each block has a scale of its own.
    all[at] = (format!("{stem}.weight"), "F8_E4M3", vec![INNER, HIDDEN], vec![0x38; INNER * HIDDEN]);
    let (down, across) = (INNER / 128, HIDDEN / 128);
    let scales = (0..down * across).flat_map(|at| (at as f32 + 0.5).to_le_bytes()).collect();
    all.push((format!("{stem}.weight_scale_inv"), "F32", vec![down, across], scales));
    all.push((format!("{stem}.input_scale"), "F32", vec![1], vec![0; 4]));
    let declared = json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128] } });
    let source = checkpoint_of(&folder, "fp8", &declared, &all);
    let target = folder.join("out");
    let output = roofline(&["quantize", &source, "--plan", "f32", "--to", target.to_str().unwrap()]);
    assert!(output.status.success(), "{}", shown(&output, &folder));
    let decoded = read(&target.join("model.safetensors"));
    assert_eq!(decoded.len(), tensors(1).len(), "scales are gone: {:?}", decoded.keys());
    for (at, value) in decoded[&format!("{stem}.weight")].iter().enumerate() {
        let (row, column) = (at / HIDDEN, at % HIDDEN);
        assert_eq!(*value, (row / 128 * across + column / 128) as f32 + 0.5, "{row} {column}");
    }
    let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
    assert_eq!((config.get("quantization_config"), &config["dtype"]), (None, &json!("float32")));
}

/// Names that differ only by `.weight` are two tensors.
#[test]
fn tensors_of_one_module_have_places_of_their_own() {
    let folder = temporary("modules");
    let source = folder.join("tiny");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("config.json"), "{}").unwrap();
    let numbers = |value: f32| [value; 4].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let all = vec![
        ("a".to_owned(), "F32", vec![4], numbers(1.0)),
        ("a.weight".to_owned(), "F32", vec![2, 2], numbers(2.0)),
        ("b".to_owned(), "F32", vec![4], numbers(3.0)),
    ];
    write(&source.join("model.safetensors"), &all);
    let (half, back) = (folder.join("half"), folder.join("back"));
    for (from, to, plan) in [(&source, &half, "f16"), (&half, &back, "f32")] {
        let output = roofline(&["quantize", from.to_str().unwrap(), "--plan", plan, "--to", to.to_str().unwrap()]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
    }
    let read = read(&back.join("model.safetensors"));
    assert_eq!(read["a"], [1.0; 4]);
    assert_eq!(read["a.weight"], [2.0; 4]);
    assert_eq!(read["b"], [3.0; 4]);
}

/// Every plan that `recommend` can print of a model is one that `predict`, `measure` and `quantize` take, or that a layout
/// refuses by name: what it cannot store, and where.
#[test]
fn what_is_advised_is_taken_or_refused_by_name() {
    let folder = temporary("advised");
    let model = checkpoint(&folder, 2);
    let model = model.to_str().unwrap();
    let answer = |arguments: &[&str]| -> Value {
        let output = roofline(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (mut plans, mut refused) = (Vec::new(), 0);
    // A server's chip, a laptop's, and one that no runtime is known for.
    for device in ["b200", "apple_m2", "tpu_v5e"] {
        let asked = ["--on", device, "--context", "256", "--all", "--any-quality", "--json"];
        let advice = answer(&[&["recommend", "model", model], &asked[..]].concat());
        for outcome in advice["outcomes"].as_array().unwrap() {
            let plan = outcome["plan"].as_str().unwrap().to_owned();
            if plans.contains(&plan) {
                continue;
            }
            let place = ["--on", device, "--precision", &plan, "--phase", "decode", "--context", "256", "--json"];
            let told = answer(&[&["predict", "model", model], &place[..]].concat());
            assert_eq!(told["estimates"][0]["plan"], json!(plan));
            plans.push(plan);
        }
    }
    assert!(plans.len() > 60, "{}", plans.len());
    for (at, plan) in plans.iter().enumerate() {
        // The null backend has a kernel for everything; one in eight is enough to see that the text is understood.
        if at % 8 == 0 {
            let run = folder.join(format!("{at}.jsonl")).display().to_string();
            let place = ["--backend", "null", "--on", "b200", "--precision", plan, "--phase", "decode", "--out", &run];
            answer(&[&["measure", "model", model, "--context", "256", "--json"], &place[..]].concat());
        }
        let target = folder.join(format!("{at}")).display().to_string();
        let output = roofline(&["quantize", model, "--plan", plan, "--to", &target]);
        if !output.status.success() {
            let text = said(&output);
            let why = ["cannot store", "nothing to do", "has one scheme, and the plan asks for", "only data can tell"];
            assert!(why.iter().any(|why| text.contains(why)), "{plan}: {text}");
            refused += 1;
        }
    }
    assert!(refused * 3 < plans.len(), "{refused} of {} refused", plans.len());
}
