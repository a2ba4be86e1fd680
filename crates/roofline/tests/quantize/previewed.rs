//! Runs that write nothing, runs into files of a given size, and runs that look at what they wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::{Value, json};

use crate::made::{checkpoint, checkpoint_of, contents, names, roofline, said, shown, temporary, tensors};

/// A dry run says what a run does: the same files of the same sizes, the same notes, the same refusals; and writes nothing.
#[test]
fn a_dry_run_says_what_a_run_does() {
    let folder = temporary("dry");
    let source = checkpoint(&folder, 2);
    let source = source.to_str().unwrap();
    let before = names(&folder);
    for (name, options) in [
        ("ct", &["--plan", "w4a16,down=w8a16,*.nothing=fp8", "--keep", "*.o_proj"][..]),
        ("shards", &["--plan", "nvfp4a16", "--max-shard-size", "200kB"]),
        ("ao", &["--plan", "int4-weight-only", "--as", "torchao"]),
        ("plain", &["--plan", "fp32"]),
        ("one.gguf", &["--plan", "q4_k_m"]),
    ] {
        let target = folder.join(name);
        let arguments = [&["quantize", source, "--to", target.to_str().unwrap(), "--json"][..], options].concat();
        let output = roofline(&[&arguments[..], &["--dry-run"]].concat());
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(names(&folder), before, "a dry run writes nothing");
        let output = roofline(&arguments);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let done: Value = serde_json::from_slice(&output.stdout).unwrap();
        for same in ["bytes_before", "bytes_after", "bits_per_weight", "notes", "plan", "layout", "model", "method"] {
            assert_eq!(said[same], done[same], "{name}: {same}");
        }
        let all = said["files"].as_array().unwrap().iter().chain(said["companions"].as_array().unwrap());
        let all: BTreeMap<String, u64> =
            all.map(|file| (file[0].as_str().unwrap().to_owned(), file[1].as_u64().unwrap())).collect();
        let mut written = if target.is_dir() {
            contents(&target)
        } else {
            BTreeMap::from([(name.to_owned(), fs::read(&target).unwrap())])
        };
        // The card has the errors, which only a run knows.
        written.remove("README.md");
        let written: BTreeMap<String, u64> =
            written.into_iter().map(|(name, bytes)| (name, bytes.len() as u64)).collect();
        assert_eq!(all, written, "{name}");
        let matrices: u64 =
            said["quantized"].as_array().unwrap().iter().map(|one| one["matrices"].as_u64().unwrap()).sum();
        assert_eq!(matrices, done["weights"].as_array().unwrap().len() as u64, "{name}");
        assert!(said["time"]["estimated_seconds"].as_f64().unwrap() > 0.0, "{said}");
        assert!(said["memory_bytes"].as_u64().unwrap() > 0 && said["room"]["enough"] == true, "{said}");
        // What is there already is refused either way.
        let (dry, run) = (roofline(&[&arguments[..], &["--dry-run"]].concat()), roofline(&arguments));
        assert_eq!((dry.status.code(), dry.stderr), (run.status.code(), run.stderr), "{name}");
        assert_eq!(dry.status.code(), Some(2));
        if target.is_dir() {
            fs::remove_dir_all(&target).unwrap();
        } else {
            fs::remove_file(&target).unwrap();
        }
    }
    let target = folder.join("out");
    for refused in [&["--plan", "w4a16,head=q8_0"][..], &["--plan", "w4a16", "--method", "hqq"], &["--plan", "nvfp4"]] {
        let arguments = [&["quantize", source, "--to", target.to_str().unwrap()][..], refused].concat();
        let (dry, run) = (roofline(&[&arguments[..], &["--dry-run"]].concat()), roofline(&arguments));
        assert_eq!(dry.status.code(), Some(2));
        assert_eq!((dry.status.code(), dry.stderr), (run.status.code(), run.stderr), "{refused:?}");
    }
    // What stays as it is, and why.
    let arguments = ["quantize", source, "--plan", "w4a16", "--keep", "*.o_proj", "--to", target.to_str().unwrap()];
    let output = roofline(&[&arguments[..], &["--dry-run", "--json"]].concat());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let why = |kind: &str| {
        let left = said["left"].as_array().unwrap().iter().find(|left| left["kind"] == kind).unwrap();
        (left["count"].as_u64().unwrap(), left["why"].as_str().unwrap().to_owned())
    };
    assert_eq!(why("model.layers.*.self_attn.o_proj"), (2, "rule".to_owned()));
    assert_eq!(why("lm_head"), (1, "no_product".to_owned()));
    assert_eq!(why("model.layers.*.input_layernorm"), (2, "vector".to_owned()));
    let output = roofline(&[&arguments[..], &["--dry-run"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    for part in ["Nothing was written", "an estimate from", "it fits", "a rule of the plan or --keep says so"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(names(&folder), before);
}

/// Shards of a given size hold the same tensors: in the order of names, no larger than that, what belongs to a weight
/// together.
#[test]
fn shards_are_as_large_as_asked() {
    let folder = temporary("sizes");
    let source = checkpoint(&folder, 3);
    let source = source.to_str().unwrap();
    for (layout, plan) in [("compressed-tensors", "int4-g32-zp"), ("torchao", "w8a16"), ("safetensors", "fp32")] {
        let mut plain = Vec::new();
        for (size, most) in [("0", u64::MAX), ("100kB", 100_000), ("1KiB", 1024), ("5GB", 5_000_000_000)] {
            let target = folder.join(format!("{layout}-{size}"));
            let back = folder.join(format!("{layout}-{size}-back"));
            let to = target.to_str().unwrap();
            let arguments = ["quantize", source, "--plan", plan, "--as", layout, "--to", to, "--max-shard-size", size];
            let output = roofline(&[&arguments[..], &["--verify"]].concat());
            assert!(output.status.success(), "{}", shown(&output, &folder));
            let files: Vec<String> = names(&target).into_iter().filter(|name| name.ends_with(".safetensors")).collect();
            if most > 1_000_000_000 {
                assert_eq!(files, ["model.safetensors"]);
                assert!(!target.join("model.safetensors.index.json").exists());
            } else {
                let index: Value =
                    serde_json::from_slice(&fs::read(target.join("model.safetensors.index.json")).unwrap()).unwrap();
                let map = index["weight_map"].as_object().unwrap();
                let count = files.len();
                assert!(count > 3, "{files:?}");
                let expected: Vec<String> =
                    (1..=count).map(|at| format!("model-{at:05}-of-{count:05}.safetensors")).collect();
                assert_eq!(files, expected);
                // In the order of names: a weight's file never comes before that of a weight before it.
                let mut weights: BTreeMap<&str, &str> = BTreeMap::new();
                for (name, file) in map {
                    let file = file.as_str().unwrap();
                    assert_eq!(*weights.entry(weight_of(name)).or_insert(file), file, "{name} is torn from its weight");
                }
                let order: Vec<&str> = weights.into_values().collect();
                assert!(order.is_sorted(), "{order:?}");
                for file in &files {
                    let header = header(&target.join(file));
                    let weights: BTreeSet<&str> = header.iter().map(|(name, _)| weight_of(name)).collect();
                    let bytes: u64 = header.iter().map(|(_, bytes)| bytes).sum();
                    assert!(bytes <= most || weights.len() == 1, "{file}: {bytes}");
                }
            }
            let output =
                roofline(&["quantize", to, "--plan", "f32", "--to", back.to_str().unwrap(), "--max-shard-size", "0"]);
            assert!(output.status.success(), "{}", shown(&output, &folder));
            plain.push(fs::read(back.join("model.safetensors")).unwrap());
        }
        assert!(plain.windows(2).all(|pair| pair[0] == pair[1]), "{layout}: the same numbers, however they are spread");
    }
    let target = folder.join("out.gguf");
    let arguments = ["quantize", source, "--plan", "q8_0", "--to", target.to_str().unwrap(), "--max-shard-size"];
    let output = roofline(&[&arguments[..], &["5GB"]].concat());
    assert!(said(&output).contains("a GGUF file is written whole"), "{}", said(&output));
    assert!(roofline(&[&arguments[..], &["0"]].concat()).status.success());
    let output = roofline(&[&arguments[..], &["five"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("such as 5GB"), "{}", said(&output));
}

/// The weight that a stored tensor belongs to, by the names of compressed-tensors and of torchao.
fn weight_of(name: &str) -> &str {
    let end = [".weight", "._weight"].iter().filter_map(|part| name.find(part)).min();
    &name[..end.unwrap_or(name.len())]
}

/// Names and bytes of the tensors of a file.
fn header(path: &std::path::Path) -> Vec<(String, u64)> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .map(|(name, info)| {
            let [begin, end] = [0, 1].map(|at| info["data_offsets"][at].as_u64().unwrap());
            (name.clone(), end - begin)
        })
        .collect()
}

/// Every layout can be read back, and says so.
#[test]
fn a_result_is_read_back() {
    let folder = temporary("verified");
    let source = checkpoint(&folder, 1);
    let source = source.to_str().unwrap();
    for (layout, plan) in [
        ("compressed-tensors", "w4a16-asym-g32"),
        ("compressed-tensors", "nvfp4a16,down=fp8-block,head=w8a16"),
        ("compressed-tensors", "mxfp8"),
        ("torchao", "int4-g64-zp16"),
        ("torchao", "fp8a16"),
        ("safetensors", "fp16"),
        ("gguf", "q4_k_m"),
        ("gguf", "nvfp4a16"),
    ] {
        let target = folder.join("out");
        let arguments =
            ["quantize", source, "--plan", plan, "--as", layout, "--to", target.to_str().unwrap(), "--force"];
        let output = roofline(&[&arguments[..], &["--verify", "--json"]].concat());
        assert!(output.status.success(), "{layout} {plan}: {}", shown(&output, &folder));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["verified"], true, "{layout} {plan}");
        let first = contents(&target);
        let output = roofline(&[&arguments[..], &["--json"]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["verified"], false);
        assert_eq!(contents(&target), first, "{layout} {plan}: looking changes nothing");
        fs::remove_dir_all(&target).unwrap();
    }
    // Codes that became numbers are read back, too.
    let coded = folder.join("coded");
    assert!(roofline(&["quantize", source, "--plan", "fp8", "--to", coded.to_str().unwrap()]).status.success());
    let target = folder.join("decoded");
    let arguments = ["quantize", coded.to_str().unwrap(), "--plan", "bf16", "--verify", "--to"];
    let output = roofline(&[&arguments[..], &[target.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", shown(&output, &folder));
    assert!(String::from_utf8_lossy(&output.stdout).contains("verified"), "{}", shown(&output, &folder));
    // Experts apart.
    let (config, all) = crate::made::mixtral();
    let moe = checkpoint_of(&folder, "moe", &config, &all);
    for (name, plan) in [("moe.gguf", "q8_0"), ("moe-out", "w4a16")] {
        let target = folder.join(name);
        let output = roofline(&["quantize", &moe, "--plan", plan, "--verify", "--to", target.to_str().unwrap()]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
    }
    assert_eq!(tensors(1).len(), 12, "what is read back is what there is: {}", json!(names(&folder)));
}
