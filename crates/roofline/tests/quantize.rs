//! `roofline quantize` and `roofline inspect` as a user meets them, on checkpoints made here.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// A folder of its own for a test.
fn temporary(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("quantize-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A repeatable run of numbers that look like weights: sums of uniform ones, some of them large.
struct Weights(u64);

impl Weights {
    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let sum = uniform() + uniform() + uniform() + uniform();
        if (self.0 >> 33).is_multiple_of(1024) { sum * 0.5 } else { sum * 0.05 }
    }

    fn bf16(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| ((self.next().to_bits() >> 16) as u16).to_le_bytes()).collect()
    }
}

/// Tensors of a file: names, types, shapes and bytes.
type Tensors = Vec<(String, &'static str, Vec<usize>, Vec<u8>)>;

fn write(path: &Path, tensors: &Tensors) {
    let (mut header, mut offset) = (serde_json::Map::new(), 0);
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for (name, dtype, shape, bytes) in tensors {
        let end = offset + bytes.len();
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] }));
        offset = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    for (.., bytes) in tensors {
        file.extend(bytes);
    }
    fs::write(path, file).unwrap();
}

const HIDDEN: usize = 256;
const INNER: usize = 512;
const VOCABULARY: usize = 64;

fn tensors(layers: usize) -> Tensors {
    let mut weights = Weights(7);
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize]| {
        let bytes = weights.bf16(shape.iter().product());
        all.push((name, "BF16", shape.to_vec(), bytes));
    };
    add("model.embed_tokens.weight".to_owned(), &[VOCABULARY, HIDDEN]);
    for layer in 0..layers {
        let at = format!("model.layers.{layer}");
        add(format!("{at}.input_layernorm.weight"), &[HIDDEN]);
        for (name, rows) in [("q", HIDDEN), ("k", HIDDEN / 2), ("v", HIDDEN / 2), ("o", HIDDEN)] {
            add(format!("{at}.self_attn.{name}_proj.weight"), &[rows, HIDDEN]);
        }
        add(format!("{at}.post_attention_layernorm.weight"), &[HIDDEN]);
        for (name, rows, columns) in [("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)] {
            add(format!("{at}.mlp.{name}_proj.weight"), &[rows, columns]);
        }
    }
    add("model.norm.weight".to_owned(), &[HIDDEN]);
    add("lm_head.weight".to_owned(), &[VOCABULARY, HIDDEN]);
    all
}

fn config(layers: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
        "bos_token_id": 0,
        "eos_token_id": 1,
    })
}

/// A small Llama with a tokenizer.
fn checkpoint(folder: &Path, layers: usize) -> PathBuf {
    let path = folder.join("tiny");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("config.json"), config(layers).to_string()).unwrap();
    let vocabulary: serde_json::Map<String, Value> = (0..VOCABULARY).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({
        "added_tokens": [{ "id": 0, "content": "t0", "special": true }],
        "pre_tokenizer": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    write(&path.join("model.safetensors"), &tensors(layers));
    path
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roofline"));
    command.args(arguments).env("ROOFLINE_CONFIG_DIR", "/nonexistent").env_remove("COLUMNS").env("NO_COLOR", "1");
    command
}

fn roofline(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// What the program printed, with the folder's name and the time taken out.
fn shown(output: &Output, folder: &Path) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let lines = text(&output.stderr).replace(&*folder.to_string_lossy(), "FOLDER");
    let timed = lines
        .lines()
        .map(|line| if line.starts_with("note: ") && line.ends_with("GB/s") { "note: TIME" } else { line });
    format!(
        "exit code: {}\n----- stdout -----\n{}----- stderr -----\n{}",
        output.status.code().unwrap(),
        text(&output.stdout).replace(&*folder.to_string_lossy(), "FOLDER"),
        timed.collect::<Vec<_>>().join("\n"),
    )
}

/// Every file of a folder, by name.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

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

/// The FP32 tensors of a safetensors file.
fn read(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let file = fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let data = &file[8 + length..];
    let tensors = header.iter().filter(|(name, info)| *name != "__metadata__" && info["dtype"] == "F32");
    tensors
        .map(|(name, info)| {
            let [begin, end] = [0, 1].map(|at| info["data_offsets"][at].as_u64().unwrap() as usize);
            let numbers = data[begin..end].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            (name.clone(), numbers.collect())
        })
        .collect()
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

/// Killed at random moments: the input is whole, there is no target or a whole one, and resuming ends with the same bytes.
#[test]
fn a_killed_run_is_resumed() {
    const MOMENTS: usize = 20;
    let folder = temporary("killed");
    // 30 MB in 24 layers: long enough to be killed in the middle, and in several waves.
    let source = checkpoint(&folder, 24);
    let before = contents(&source);
    let source = source.to_str().unwrap();
    // A folder, one with scales that fused weights share, one with transposed parts, and a single file.
    let variants = [
        ("out", ["--plan", "w4a16-asym", "--method", "mse"]),
        ("shared", ["--plan", "nvfp4a16", "--method", "four-over-six"]),
        ("lines", ["--plan", "int4-weight-only", "--as", "torchao"]),
        ("out.gguf", ["--plan", "q4_k_m", "--as", "gguf"]),
    ];
    let (mut interrupted, mut resumed) = (0, 0);
    let mut moments = Weights(99);
    for (name, options) in variants {
        let target = folder.join(name);
        let arguments = [&["quantize", source, "--to", target.to_str().unwrap()][..], &options].concat();
        let start = Instant::now();
        assert!(roofline(&arguments).status.success());
        let whole = start.elapsed();
        let expected = all_of(&target);
        for _ in 0..MOMENTS / variants.len() {
            if target.is_dir() {
                fs::remove_dir_all(&target).unwrap();
            } else {
                fs::remove_file(&target).unwrap();
            }
            let mut child = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            sleep(whole.mul_f64(f64::from((moments.next() * 20.0).abs().fract())).max(Duration::from_millis(1)));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(contents(Path::new(source)), before, "the input is whole");
            if target.exists() {
                assert_eq!(all_of(&target), expected, "a target is whole");
                let _ = fs::remove_dir_all(folder.join(format!(".{name}.partial")));
                continue;
            }
            interrupted += 1;
            let partial = folder.join(format!(".{name}.partial"));
            let journal = fs::read_to_string(partial.join("journal.jsonl")).unwrap_or_default();
            resumed += usize::from(!journal.is_empty());
            if partial.join("job.json").exists() && partial.join("journal.jsonl").exists() {
                let refused = roofline(&arguments);
                assert_eq!(refused.status.code(), Some(2), "{}", shown(&refused, &folder));
                assert!(shown(&refused, &folder).contains("continue it with `--resume`"));
            }
            let output = roofline(&[&arguments[..], &["--resume"]].concat());
            assert!(output.status.success(), "{}", shown(&output, &folder));
            assert_eq!(all_of(&target), expected, "the same bytes in the end");
            assert!(!partial.exists());
        }
    }
    assert!(
        interrupted > 5 && resumed > 0,
        "{interrupted} of {MOMENTS} were interrupted, {resumed} had something to resume"
    );
}

/// The files of a folder, or the one file.
fn all_of(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_dir() { contents(path) } else { BTreeMap::from([(String::new(), fs::read(path).unwrap())]) }
}

/// Everything that must be refused: what is said, and that nothing is left behind.
#[test]
fn refusals() {
    let folder = temporary("refusals");
    let source = checkpoint(&folder, 1);
    let source_text = source.to_str().unwrap();
    let model = source.join("model.safetensors");
    let good = fs::read(&model).unwrap();
    let target = folder.join("out");
    let to = target.to_str().unwrap();
    let mut said = Vec::new();
    let mut refused = |what: &str, arguments: &[&str], left: &[&str]| {
        let output = roofline(arguments);
        assert!(!output.status.success(), "{what}: {}", shown(&output, &folder));
        said.push(format!("# {what}\n{}", shown(&output, &folder)));
        assert_eq!(names(&folder), left, "{what} left something behind");
    };
    let quantize = |plan| ["quantize", source_text, "--plan", plan, "--to", to];
    refused("an unknown scheme", &quantize("w4a61"), &["tiny"]);
    refused("a scheme of another layout", &[&quantize("q4_k_m")[..], &["--as", "torchao"]].concat(), &["tiny"]);
    refused("a method that does not suit", &[&quantize("w4a16")[..], &["--method", "hqq"]].concat(), &["tiny"]);
    refused("an unknown method", &[&quantize("w4a16")[..], &["--method", "awq"]].concat(), &["tiny"]);
    refused("a role that a layout cannot store", &quantize("w4a16,head=q8_0"), &["tiny"]);
    refused("four-bit activations that need data", &quantize("nvfp4"), &["tiny"]);
    refused("a plan that is not there", &quantize("plan.toml"), &["tiny"]);
    refused("no such checkpoint", &["quantize", "nowhere", "--plan", "w4a16", "--to", to], &["tiny"]);
    refused(
        "into the source",
        &["quantize", source_text, "--plan", "w4a16", "--to", &format!("{source_text}/out")],
        &["tiny"],
    );
    refused(
        "over the source",
        &["quantize", source_text, "--plan", "w4a16", "--to", source_text, "--force"],
        &["tiny"],
    );
    refused(
        "nowhere to write",
        &["quantize", source_text, "--plan", "w4a16", "--to", &format!("{to}/deep/er")],
        &["tiny"],
    );
    fs::write(&model, &good[..good.len() - 100]).unwrap();
    refused("a truncated file", &quantize("w4a16"), &["tiny"]);
    fs::write(&model, &good[..4]).unwrap();
    refused("four bytes", &quantize("w4a16"), &["tiny"]);
    let far =
        String::from_utf8_lossy(&good[8..200]).replacen("[0,32768]", "[9223372036854775808,9223372036854808576]", 1);
    let mut bytes = (far.len() as u64).to_le_bytes().to_vec();
    bytes.extend(far.as_bytes());
    fs::write(&model, bytes).unwrap();
    refused("a header that is cut short", &quantize("w4a16"), &["tiny"]);
    let changed = |change: &dyn Fn(&mut Tensors)| {
        let mut all = tensors(1);
        change(&mut all);
        write(&model, &all);
    };
    changed(&|all| all[9].3[0..2].copy_from_slice(&[0xc0, 0x7f]));
    refused("a weight that is not a number", &quantize("w4a16"), &["tiny"]);
    changed(&|all| all[9].3[514..516].copy_from_slice(&[0x80, 0xff]));
    refused("an infinite weight", &quantize("nvfp4a16"), &["tiny"]);
    changed(&|all| {
        all[9].2 = vec![512, 200];
        all[9].3.truncate(512 * 200 * 2);
    });
    refused("columns that are no multiple of the group", &quantize("w4a16"), &["tiny"]);
    changed(&|all| all[9].1 = "I16");
    refused("weights that are integers", &quantize("w4a16"), &["tiny"]);
    fs::write(&model, &good).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("diary.txt"), "dear").unwrap();
    refused("a target that is no checkpoint", &[&quantize("w4a16")[..], &["--force"]].concat(), &["out", "tiny"]);
    assert_eq!(fs::read_to_string(target.join("diary.txt")).unwrap(), "dear");
    insta::assert_snapshot!("refusals", said.join("\n\n"));
}

/// A write that fails in the middle, here because of a limit on the size of files.
#[cfg(unix)]
#[test]
fn a_failed_write_leaves_nothing_behind() {
    let folder = temporary("full");
    let source = checkpoint(&folder, 1);
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_roofline");
    let target = folder.join("out");
    let arguments = [source.to_str().unwrap(), "--plan", "w4a16", "--to", target.to_str().unwrap()];
    let output = Command::new("sh").args(["-c", script, "sh", program, "quantize"]).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output, &folder));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("model.safetensors`: File too large"),
        "{}",
        shown(&output, &folder)
    );
    assert_eq!(names(&folder), ["tiny"]);
}

const EXPERTS: usize = 12;

/// A checkpoint of these tensors, with the configuration changed and a tokenizer.
fn checkpoint_of(folder: &Path, name: &str, more: &Value, tensors: &Tensors) -> String {
    let path = checkpoint(folder, 1);
    let mut config = config(1);
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    write(&path.join("model.safetensors"), tensors);
    let renamed = folder.join(name);
    fs::rename(path, &renamed).unwrap();
    renamed.to_str().unwrap().to_owned()
}

/// A small Mixtral of one layer: enough experts that their numbers and their names are in different orders.
fn mixtral() -> (Value, Tensors) {
    let mut all = tensors(1);
    all.retain(|(name, ..)| !name.contains(".mlp."));
    let mut weights = Weights(11);
    let mut add = |name: String, shape: [usize; 2]| {
        all.push((
            format!("model.layers.0.block_sparse_moe.{name}"),
            "BF16",
            shape.to_vec(),
            weights.bf16(shape[0] * shape[1]),
        ));
    };
    add("gate.weight".to_owned(), [EXPERTS, HIDDEN]);
    for expert in 0..EXPERTS {
        for (part, shape) in [("w1", [INNER, HIDDEN]), ("w2", [HIDDEN, INNER]), ("w3", [INNER, HIDDEN])] {
            add(format!("experts.{expert}.{part}.weight"), shape);
        }
    }
    let config = json!({
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
    });
    (config, all)
}

fn floats(bf16: &[u8]) -> Vec<f32> {
    bf16.chunks_exact(2)
        .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16))
        .collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Experts are stacked in the order of their numbers, whatever their names sort like.
#[test]
fn experts_are_stacked_in_order() {
    let folder = temporary("experts");
    let (config, all) = mixtral();
    let source = checkpoint_of(&folder, "moe", &config, &all);
    for (plan, tolerance) in [("bf16", 0.0), ("q8_0", 0.01)] {
        let target = folder.join(format!("{plan}.gguf"));
        let output = roofline(&["quantize", &source, "--plan", plan, "--to", target.to_str().unwrap()]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let file = roofline_quant::gguf::File::open(&target).unwrap();
        for (stacked, part) in [("gate", "w1"), ("down", "w2"), ("up", "w3")] {
            let tensor = file.header.tensor(&format!("blk.0.ffn_{stacked}_exps.weight")).unwrap();
            let (columns, rows) = (tensor.dims[0], tensor.dims[1]);
            assert_eq!(tensor.dims[2], EXPERTS as u64);
            for expert in 0..EXPERTS {
                let name = format!("model.layers.0.block_sparse_moe.experts.{expert}.{part}.weight");
                let (.., bytes) = all.iter().find(|(known, ..)| *known == name).unwrap();
                let first = expert as u64 * rows;
                let mut decoded = vec![0.0; (rows * columns) as usize];
                file.read(tensor, first..first + rows, &mut decoded).unwrap();
                let off = floats(bytes).iter().zip(&decoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(off <= tolerance, "{plan} {name}: {off}");
            }
        }
        let router = file.header.tensor("blk.0.ffn_gate_inp.weight").unwrap();
        assert_eq!(router.ty.to_string(), "F32");
    }
    // The number 7 a second time, in another spelling.
    let mut twice = all.clone();
    let eleventh = twice.iter_mut().find(|(name, ..)| name.contains("experts.11.w1")).unwrap();
    eleventh.0 = eleventh.0.replace("experts.11", "experts.07");
    let source = checkpoint_of(&folder, "twice", &config, &twice);
    let target = folder.join("twice.gguf");
    let output = roofline(&["quantize", &source, "--plan", "q8_0", "--to", target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
    assert!(
        said(&output).contains("would be written as `blk.0.ffn_gate_exps.weight` a second time"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_router_is_kept_and_ignored() {
    let folder = temporary("router");
    let (config, all) = mixtral();
    let source = checkpoint_of(&folder, "moe", &config, &all);
    for (layout, plan) in [("compressed-tensors", "w4a16"), ("torchao", "w8a16")] {
        let target = folder.join(layout);
        let to = target.to_str().unwrap();
        let output = roofline(&["quantize", &source, "--plan", plan, "--as", layout, "--to", to]);
        assert!(output.status.success(), "{}", shown(&output, &folder));
        let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
        let quantization = &config["quantization_config"];
        let router = "model.layers.0.block_sparse_moe.gate";
        if layout == "torchao" {
            assert_eq!(quantization["modules_to_not_convert"], json!([router]));
            assert_eq!(quantization["include_input_output_embeddings"], false);
        } else {
            assert_eq!(quantization["ignore"], json!(["lm_head", router]));
            assert_eq!(quantization["config_groups"]["group_0"]["targets"], json!(["Linear"]));
        }
        let output = roofline(&["inspect", to, "--json"]);
        let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
        let tensors = inspected["tensors"].as_array().unwrap();
        let format = |name: &str| &tensors.iter().find(|tensor| tensor["name"] == name).unwrap()["format"];
        assert_eq!(format(&format!("{router}.weight")), "BF16");
        assert_ne!(format("model.layers.0.block_sparse_moe.experts.11.w2.weight"), "BF16");
    }
}

/// Llama 4's experts: one tensor of three dimensions, without a module.
#[test]
fn stacked_experts_are_kept_and_it_is_said() {
    let folder = temporary("stacked");
    let mut all = tensors(1);
    all.retain(|(name, ..)| !name.contains(".mlp."));
    for (name, shape) in [("gate_up_proj", [4, HIDDEN, 2 * INNER]), ("down_proj", [4, INNER, HIDDEN])] {
        let bytes = Weights(5).bf16(shape.iter().product());
        all.push((format!("model.layers.0.feed_forward.experts.{name}"), "BF16", shape.to_vec(), bytes));
    }
    let source = checkpoint_of(&folder, "stacked", &json!({}), &all);
    let target = folder.join("out");
    let arguments = ["quantize", &source, "--plan", "w4a16", "--to", target.to_str().unwrap()];
    let output = roofline(&arguments);
    assert!(output.status.success(), "{}", shown(&output, &folder));
    // 4 x 256 x 1024 + 4 x 512 x 256 of 1.8 million.
    let note = "2 tensors hold experts in stacks and are kept: 87 % of the parameters stay unquantized";
    assert!(String::from_utf8_lossy(&output.stdout).contains(note), "{}", shown(&output, &folder));
    let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
    let ignore = json!(["lm_head", r"re:model\.layers\.0\.feed_forward\.experts\..*"]);
    assert_eq!(config["quantization_config"]["ignore"], ignore);
    // A rule that names them asks for what cannot be.
    let refused = folder.join("refused");
    let output = roofline(&["quantize", &source, "--plan", "w4a16,down=w8a16", "--to", refused.to_str().unwrap()]);
    assert!(said(&output).contains("which is no matrix"), "{}", said(&output));
}

/// What looks tokens up in codes is torchao alone, and not in all of them.
#[test]
fn an_embedding_is_quantized_where_something_loads_it() {
    let folder = temporary("embedding");
    let untied = checkpoint_of(&folder, "untied", &json!({}), &tensors(1));
    let tied = checkpoint_of(&folder, "tied", &json!({ "tie_word_embeddings": true }), &tensors(1));
    let mut headless = tensors(1);
    headless.retain(|(name, ..)| name != "lm_head.weight");
    let headless = checkpoint_of(&folder, "headless", &json!({}), &headless);
    for (source, layout, scheme, reason) in [
        (&untied, "torchao", "w8a16", None),
        (&untied, "torchao", "int4-g128-zp16", Some("torchao cannot look tokens up in INT4")),
        (&untied, "compressed-tensors", "w8a16", Some("what loads compressed-tensors quantizes products alone")),
        (&tied, "torchao", "w8a16", Some("is the output head, too")),
        (&headless, "torchao", "w8a16", Some("is the output head, too")),
        (&headless, "compressed-tensors", "w8a16", Some("is the output head, too")),
    ] {
        let (plan, target) = (format!("{scheme},embedding={scheme}"), folder.join("out"));
        let to = target.to_str().unwrap();
        let output = roofline(&["quantize", source, "--plan", &plan, "--as", layout, "--to", to, "--force"]);
        if let Some(reason) = reason {
            assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
            assert!(said(&output).contains("weight `model.embed_tokens.weight`: "), "{}", said(&output));
            assert!(said(&output).contains(reason), "{}", said(&output));
        } else {
            assert!(output.status.success(), "{}", shown(&output, &folder));
            let config: Value = serde_json::from_slice(&contents(&target)["config.json"]).unwrap();
            assert_eq!(config["quantization_config"]["include_input_output_embeddings"], true);
        }
    }
}

/// A part of a weight in codes: its name, type, shape and bytes of an element.
type Part = (&'static str, &'static str, Vec<usize>, usize);

/// Codes that are not known are neither quantized again nor copied as if they were weights; they can be looked at.
#[test]
fn codes_of_unknown_kinds_are_refused() {
    let folder = temporary("unknown");
    let stem = "model.layers.0.self_attn.q_proj";
    let at = tensors(1).iter().position(|(name, ..)| *name == format!("{stem}.weight")).unwrap();
    let kinds: [(&str, Vec<Part>); 4] = [
        // GPTQ, FP8 with one scale, packed integers in an order of their own, and bytes with zero points.
        (
            "gptq",
            vec![
                ("qweight", "I32", vec![32, 256], 4),
                ("qzeros", "I32", vec![2, 32], 4),
                ("scales", "F16", vec![2, 256], 2),
            ],
        ),
        (
            "static",
            vec![
                ("weight", "F8_E4M3", vec![256, 256], 1),
                ("weight_scale", "BF16", vec![1], 2),
                ("input_scale", "BF16", vec![1], 2),
            ],
        ),
        (
            "ordered",
            vec![
                ("weight_packed", "I32", vec![256, 32], 4),
                ("weight_scale", "BF16", vec![256, 2], 2),
                ("weight_shape", "I64", vec![2], 8),
                ("weight_g_idx", "I32", vec![256], 4),
            ],
        ),
        (
            "shifted",
            vec![
                ("weight", "I8", vec![256, 256], 1),
                ("weight_scale", "BF16", vec![256, 1], 2),
                ("weight_zero_point", "I8", vec![256, 1], 1),
            ],
        ),
    ];
    for (kind, parts) in kinds {
        let mut all = tensors(1);
        all.remove(at);
        for (part, dtype, shape, size) in parts {
            // 256 x 256, where the shape is said.
            let bytes = if part == "weight_shape" {
                [256u64, 256].iter().flat_map(|dim| dim.to_le_bytes()).collect()
            } else {
                vec![0; shape.iter().product::<usize>() * size]
            };
            all.push((format!("{stem}.{part}"), dtype, shape, bytes));
        }
        let declared = json!({ "quantization_config": { "quant_method": kind } });
        let source = checkpoint_of(&folder, kind, &declared, &all);
        for plan in ["bf16", "w4a16", "q8_0"] {
            let output = roofline(&["quantize", &source, "--plan", plan, "--to", folder.join("out").to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2), "{kind} {plan}: {}", shown(&output, &folder));
            let expected = format!("weight `{stem}.weight`: is in codes of a kind that this program does not know");
            assert!(said(&output).contains(&expected), "{kind} {plan}: {}", said(&output));
        }
        let output = roofline(&["inspect", &source]);
        assert!(output.status.success(), "{kind}: {}", shown(&output, &folder));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("fit no scheme this program knows"), "{kind}: {text}");
    }
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

#[test]
fn one_shard_of_several_is_looked_at_but_not_quantized() {
    let folder = temporary("shard");
    let source = checkpoint(&folder, 1);
    let shard = source.join("model-00001-of-00004.safetensors");
    fs::rename(source.join("model.safetensors"), &shard).unwrap();
    let shard = shard.to_str().unwrap();
    let output = roofline(&["quantize", shard, "--plan", "w4a16", "--to", folder.join("out").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", shown(&output, &folder));
    assert!(said(&output).contains("is one of 4 shards"), "{}", said(&output));
    assert!(roofline(&["inspect", shard]).status.success());
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
            let why = ["cannot store", "nothing to do", "has one scheme, and the plan asks for"];
            assert!(why.iter().any(|why| text.contains(why)), "{plan}: {text}");
            refused += 1;
        }
    }
    assert!(refused * 3 < plans.len(), "{refused} of {} refused", plans.len());
}
