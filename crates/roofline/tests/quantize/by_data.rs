//! Methods that go by a text: what they write, what they refuse, and runs that are killed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::made::{
    VOCABULARY, Weights, all_of, checkpoint, journaled, killed_before, names, partial, roofline, said, shown,
    temporary, tensors, write,
};

/// A small Llama whose tokens are letters, and a text of them.
fn spelling(folder: &Path, layers: usize) -> (PathBuf, PathBuf) {
    let source = checkpoint(folder, layers);
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').chain('0'..='9').collect();
    let vocabulary = letters.iter().enumerate().map(|(id, letter)| (letter.to_string(), json!(id)));
    let rest = (letters.len()..VOCABULARY).map(|id| (format!("t{id}"), json!(id)));
    let vocabulary: serde_json::Map<String, Value> = vocabulary.chain(rest).collect();
    let tokenizer = json!({ "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] } });
    fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut random = Weights(5);
    let text: String = (0..4000).map(|_| letters[(random.next().abs() * 1e4) as usize % letters.len()]).collect();
    let path = folder.join("text.txt");
    fs::write(&path, text).unwrap();
    (source, path)
}

/// The answer and the model card name the text, the samples and the seed; GPTQ's weights lose more and are written all the same.
#[test]
fn what_is_said_of_the_text() {
    let folder = temporary("by-data");
    let (source, text) = spelling(&folder, 2);
    let (source, text) = (source.to_str().unwrap(), text.to_str().unwrap());
    let target = folder.join("out");
    let to = target.to_str().unwrap();
    let data = ["--data", text, "--samples", "8", "--length", "64", "--seed", "3"];
    for (method, plan, layout) in [
        ("gptq", "w4a16", "compressed-tensors"),
        ("gptq", "int4-g64", "gptq"),
        ("awq", "int4-g64-zp", "awq"),
        ("smoothquant", "int8", "compressed-tensors"),
    ] {
        let asked = ["quantize", source, "--plan", plan, "--as", layout, "--method", method, "--to", to, "--force"];
        let output = roofline(&[&asked[..], &data, &["--verify", "--json"]].concat());
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["method"], method);
        assert_eq!(answer["verified"], true);
        assert_eq!(answer["perplexity_change"], Value::Null);
        let told = &answer["data"];
        assert_eq!((&told["name"], &told["samples"]), (&json!("text.txt"), &json!(8)));
        assert_eq!((&told["length"], &told["seed"]), (&json!(64), &json!(3)));
        assert!(said(&output).contains("text.txt in 8 samples of 64 tokens takes about"), "{}", said(&output));
        let card = fs::read_to_string(target.join("README.md")).unwrap();
        assert!(
            card.contains(&format!("method `{method}`")) && card.contains("8 samples of 64 tokens, seed 3"),
            "{card}"
        );
    }
    // Another seed takes other samples, the same seed the same bytes, wherever samples wait between layers.
    let made = |seed: &str, name: &str, more: &[&str]| {
        let to = folder.join(name);
        let asked = ["quantize", source, "--plan", "w4a16", "--method", "gptq", "--data", text, "--samples", "8"];
        let output =
            roofline(&[&asked[..], &["--length", "64", "--seed", seed, "--to", to.to_str().unwrap()], more].concat());
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let waits = said(&output).contains(" of memory and ");
        assert_eq!(waits, !more.is_empty(), "{}", said(&output));
        fs::read(to.join("model.safetensors")).unwrap()
    };
    let one = made("1", "one", &[]);
    assert!(one == made("1", "again", &[]) && one != made("2", "two", &[]));
    let wait = folder.join("wait");
    fs::create_dir(&wait).unwrap();
    assert!(one == made("1", "waited", &["--offload", wait.to_str().unwrap()]));
    assert!(names(&wait).is_empty());
}

/// What a dry run says of a method that goes by data is what the run says, and what is wrong with the text is said in both; so is what
/// the text lacks, in the answer, too.
#[test]
fn dry_runs_look_at_the_text() {
    let folder = temporary("by-data-dry");
    let (source, text) = spelling(&folder, 1);
    let source = source.to_str().unwrap();
    let (same, empty) = (folder.join("same.txt"), folder.join("empty.txt"));
    fs::write(&same, "a".repeat(300)).unwrap();
    fs::write(&empty, "").unwrap();
    let run = |data: &Path, more: &[&str]| {
        let target = folder.join("out");
        let asked = ["quantize", source, "--plan", "w4a16", "--method", "gptq", "--to", target.to_str().unwrap()];
        let data = ["--data", data.to_str().unwrap(), "--length", "32", "--json"];
        roofline(&[&asked[..], &data, more].concat())
    };
    let told = |data: &Path, more: &[&str]| -> Value {
        let output = run(data, more);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let refused = run(&empty, &["--dry-run"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("is empty"), "{}", said(&refused));
    let dry = told(&text, &["--dry-run"]);
    let small = told(&text, &["--dry-run", "--samples", "1"]);
    assert!(dry["memory_bytes"].as_u64() > small["memory_bytes"].as_u64(), "samples are in memory");
    assert!(dry["room"]["needed"].as_u64() > dry["bytes_after"].as_u64(), "layers are kept until the end");
    for more in [&["--dry-run"][..], &[]] {
        let notes = told(&same, more)["notes"].to_string();
        assert!(notes.contains("one and the same token"), "{notes}");
    }
    assert!(folder.join("out").exists());
}

#[test]
fn refusals() {
    let folder = temporary("by-data-refusals");
    let (source, text) = spelling(&folder, 1);
    let target = folder.join("out");
    let (model, to) = (source.to_str().unwrap(), target.to_str().unwrap());
    let (empty, noise) = (folder.join("empty.txt"), folder.join("noise.txt"));
    fs::write(&empty, "").unwrap();
    fs::write(&noise, [0xff, 0xfe]).unwrap();
    let before = names(&folder);
    let refused = |more: &[&str], words: &[&str]| {
        let output = roofline(&[&["quantize", model, "--plan", "w4a16", "--to", to][..], more].concat());
        assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
        assert!(words.iter().all(|word| said(&output).contains(word)), "{words:?}: {}", said(&output));
        assert_eq!(names(&folder), before, "nothing is left behind");
    };
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    refused(&["--method", "gptq", "--data", &path(&empty)], &["empty.txt is empty", "a text that says something"]);
    refused(&["--method", "gptq", "--data", &path(&noise)], &["no UTF-8"]);
    refused(
        &["--method", "awq", "--data", &path(&text), "--length", "512", "--samples", "0"],
        &["--samples", "nothing is learned of none"],
    );
    refused(&["--method", "gptq", "--data", &path(&text), "--length", "600"], &["600 tokens", "512", "--length"]);
    let none = path(&folder.join("none"));
    refused(&["--method", "gptq", "--data", &path(&text), "--offload", &none], &[&none]);
    fs::write(&text, "abc").unwrap();
    refused(&["--method", "gptq", "--data", &path(&text)], &["text.txt has 3 tokens, and a sample 512", "--length"]);
    refused(&["--data", &path(&text)], &["the method `rtn` goes by no data", "--method gptq"]);
    refused(&["--offload", &path(&folder)], &["goes by no data", "--offload"]);
    refused(&["--method", "awq", "--damping", "0.1"], &["--damping", "gptq's"]);
    refused(&["--method", "gptq", "--damping", "7"], &["--damping", "from 0 to 1"]);
    refused(&["--method", "gptq", "--part", "1/2"], &["the method `gptq` goes by a text"]);
    let config = source.join("config.json");
    let known = fs::read_to_string(&config).unwrap();
    fs::write(&text, "abc".repeat(40)).unwrap();
    fs::write(&config, known.replace("\"llama\"", "\"granite\"")).unwrap();
    for more in [&["--dry-run"][..], &[]] {
        let asked = ["--method", "gptq", "--data", &path(&text), "--length", "32"];
        refused(&[&asked[..], more].concat(), &["tiny cannot be run", "multiplies"]);
    }
    fs::write(&config, known).unwrap();
    fs::remove_file(source.join("tokenizer.json")).unwrap();
    refused(&["--method", "gptq", "--data", &path(&text)], &["has no tokenizer", "tokenizer.json"]);
}

/// A model that overflows says where, and nothing is written.
#[test]
fn activations_that_are_no_numbers() {
    let folder = temporary("by-data-overflow");
    let (source, text) = spelling(&folder, 1);
    let mut all = tensors(1);
    for (name, _, _, bytes) in &mut all {
        if name.ends_with("v_proj.weight") || name.ends_with("input_layernorm.weight") {
            // 2^127, of which sums overflow.
            bytes.chunks_exact_mut(2).for_each(|number| number.copy_from_slice(&[0x00, 0x7f]));
        }
    }
    write(&source.join("model.safetensors"), &all);
    let before = names(&folder);
    let (source, text) = (source.to_str().unwrap(), text.to_str().unwrap());
    let target = folder.join("out");
    let asked = ["quantize", source, "--plan", "w4a16", "--method", "gptq", "--data", text, "--length", "32"];
    let output = roofline(&[&asked[..], &["--to", target.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
    assert!(
        said(&output).contains("model.layers.0.self_attn") && said(&output).contains("is given"),
        "{}",
        said(&output)
    );
    assert_eq!(names(&folder), before);
}

/// Killed at any layer, or while it is written: resuming ends with the same bytes.
#[test]
fn a_killed_run_goes_on_with_its_layer() {
    const LAYERS: usize = 6;
    let folder = temporary("by-data-killed");
    let (source, text) = spelling(&folder, LAYERS);
    let (source, text) = (source.to_str().unwrap(), text.to_str().unwrap());
    let target = folder.join("out");
    let partial = partial(&target);
    let data = ["--method", "gptq", "--data", text, "--samples", "12", "--length", "128"];
    let arguments = [&["quantize", source, "--plan", "w4a16", "--to", target.to_str().unwrap()][..], &data].concat();
    assert!(roofline(&arguments).status.success());
    let expected = all_of(&target);
    let layer = |at: usize| partial.join("layers").join(format!("layer-{at:04}.safetensors"));
    let finished = || (0..LAYERS).take_while(|at| layer(*at).exists()).count();
    // Layers, and tensors that were written after all of them.
    for moment in
        [(0, None), (0, Some(0)), (1, Some(0)), (3, Some(0)), (5, Some(0)), (LAYERS, Some(0)), (LAYERS, Some(1))]
    {
        killed_before(&target, &arguments, || (finished(), journaled(&partial)) >= moment);
        assert!((finished(), journaled(&partial)) >= moment, "{moment:?}");
        let output = roofline(&[&arguments[..], &["--resume", "--threads", "1"]].concat());
        assert!(output.status.success(), "{}", shown(&output, &folder));
        assert_eq!(all_of(&target), expected, "the same bytes in the end");
        assert!(!partial.exists());
    }
}
