//! Sources of every kind, as a user meets them: what `roofline quantize` and `roofline inspect` make of files that are not
//! plain safetensors.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use common::{numbers, roofline, said, temporary, write_tokenizer};
use serde_json::{Value, json};

/// Runs it, and shows why not where it fails.
fn quantize(arguments: &[&str]) -> Value {
    let output = roofline(&[&["quantize"], arguments, &["--json", "--force"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A tensor of a file: its type, shape and bytes.
type Tensor = (&'static str, Vec<usize>, Vec<u8>);
/// Tensors by name.
type Tensors = BTreeMap<String, Tensor>;

/// A repeatable run of numbers between -0.1 and 0.1.
struct Weights(u64);

impl Weights {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5) / 5.0
    }

    fn bf16(&mut self, shape: &[usize]) -> Tensor {
        let bytes = (0..shape.iter().product()).flat_map(|_| ((self.next().to_bits() >> 16) as u16).to_le_bytes());
        ("BF16", shape.to_vec(), bytes.collect())
    }

    fn f32(&mut self, shape: &[usize]) -> Tensor {
        let bytes = (0..shape.iter().product()).flat_map(|_| self.next().to_le_bytes());
        ("F32", shape.to_vec(), bytes.collect())
    }

    fn bytes(&mut self, dtype: &'static str, shape: &[usize]) -> Tensor {
        let bytes = (0..shape.iter().product()).map(|_| (self.next().to_bits() >> 8) as u8 & 0x77);
        (dtype, shape.to_vec(), bytes.collect())
    }
}

const HIDDEN: usize = 64;
const INNER: usize = 128;
const VOCABULARY: usize = 32;

/// A Llama of one layer.
fn llama() -> Tensors {
    let mut weights = Weights(7);
    let mut all = Tensors::new();
    let mut add = |name: &str, shape: &[usize]| all.insert(name.to_owned(), weights.bf16(shape));
    add("model.embed_tokens.weight", &[VOCABULARY, HIDDEN]);
    for (name, rows, columns) in [
        ("self_attn.q_proj", HIDDEN, HIDDEN),
        ("self_attn.k_proj", HIDDEN / 2, HIDDEN),
        ("self_attn.v_proj", HIDDEN / 2, HIDDEN),
        ("self_attn.o_proj", HIDDEN, HIDDEN),
        ("mlp.gate_proj", INNER, HIDDEN),
        ("mlp.up_proj", INNER, HIDDEN),
        ("mlp.down_proj", HIDDEN, INNER),
    ] {
        add(&format!("model.layers.0.{name}.weight"), &[rows, columns]);
    }
    add("model.layers.0.input_layernorm.weight", &[HIDDEN]);
    add("model.layers.0.post_attention_layernorm.weight", &[HIDDEN]);
    add("model.norm.weight", &[HIDDEN]);
    add("lm_head.weight", &[VOCABULARY, HIDDEN]);
    all
}

/// A folder with the configuration and the tokenizer of that Llama, and no weights.
fn folder(parent: &Path, name: &str, more: &Value) -> PathBuf {
    let path = parent.join(name);
    fs::create_dir_all(&path).unwrap();
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    fs::write(path.join("config.json"), config.to_string()).unwrap();
    write_tokenizer(&path.join("tokenizer.json"), VOCABULARY);
    path
}

fn write(path: &Path, tensors: &Tensors) {
    let all = tensors.iter().map(|(name, (dtype, shape, bytes))| (name.clone(), *dtype, shape.clone(), bytes.clone()));
    common::write(path, &all.collect());
}

/// The numbers of a safetensors file of BF16 and FP32, as FP32.
fn read(path: &Path) -> BTreeMap<String, Vec<f32>> {
    common::read(path).into_iter().map(|(name, (dtype, _, bytes))| (name, numbers(&dtype, &bytes))).collect()
}

/// Everything a folder holds but the card, which names the source.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = paths.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path));
    named.filter(|(name, _)| name != "README.md").map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// A checkpoint as `torch.save` writes it, BF16 throughout.
fn archive(tensors: &Tensors) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let int = |value: usize| [b"J", &(value as i32).to_le_bytes()[..]].concat();
    let tuple = |values: &[usize]| {
        let values: Vec<u8> = values.iter().flat_map(|value| int(*value)).collect();
        [b"(", &values[..], b"t"].concat()
    };
    let mut pickle = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
    let mut members = Vec::new();
    for (at, (name, (dtype, shape, bytes))) in tensors.iter().enumerate() {
        assert_eq!(*dtype, "BF16");
        let mut strides: Vec<usize> =
            shape.iter().rev().scan(1, |all, dim| Some(std::mem::replace(all, *all * dim))).collect();
        strides.reverse();
        pickle.extend(text(name));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle.extend(
            [text("storage"), b"ctorch\nBFloat16Storage\n".to_vec(), text(&at.to_string()), text("cpu")].concat(),
        );
        pickle.extend([int(bytes.len() / 2), b"tQ".to_vec(), int(0), tuple(shape), tuple(&strides)].concat());
        pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        members.push((format!("m/data/{at}"), bytes.clone()));
    }
    pickle.extend(b"u.");
    members.insert(0, ("m/data.pkl".to_owned(), pickle));
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in &members {
        let (at, size) = ((file.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes());
        let middle = [&[0; 12][..], &size, &size, &(name.len() as u16).to_le_bytes(), &[0, 0]].concat();
        file.extend([b"PK\x03\x04\0\0", &middle[..], name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\0\0\0\0", &middle[..], &[0; 10], &at, name.as_bytes()].concat());
    }
    let (at, count) = ((file.len() as u32).to_le_bytes(), (members.len() as u16).to_le_bytes());
    let length = (directory.len() as u32).to_le_bytes();
    [&file[..], &directory, b"PK\x05\x06\0\0\0\0", &count, &count, &length, &at, &[0, 0]].concat()
}

/// A checkpoint of PyTorch's becomes what the same numbers in safetensors become, byte for byte.
#[test]
fn pytorch_files_are_as_good_as_safetensors() {
    let parent = temporary("pytorch");
    let tensors = llama();
    let plain = folder(&parent, "plain", &Value::Null);
    write(&plain.join("model.safetensors"), &tensors);
    let single = folder(&parent, "single", &Value::Null);
    fs::write(single.join("pytorch_model.bin"), archive(&tensors)).unwrap();
    for (plan, to) in [("w4a16-g32", "folder"), ("f32", "folder"), ("q8_0", "a.gguf")] {
        let [one, other] = ["a", "b"].map(|name| parent.join(format!("{plan}-{name}")).join(to));
        for (source, target) in [(&plain, &one), (&single, &other)] {
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            quantize(&[source.to_str().unwrap(), "--plan", plan, "--to", target.to_str().unwrap()]);
        }
        if to == "folder" {
            assert_eq!(contents(&one), contents(&other), "{plan}");
        } else {
            // The metadata name the model after its folder.
            assert_eq!(fs::metadata(one).unwrap().len(), fs::metadata(other).unwrap().len());
        }
    }
    let output = roofline(&["inspect", single.to_str().unwrap(), "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["container"], "PyTorch");
    let parameters: usize = tensors.values().map(|(_, shape, _)| shape.iter().product::<usize>()).sum();
    assert_eq!(shown["parameters"], parameters);
    assert_eq!(shown["suspicious"], json!([]));
}

#[test]
fn a_pickle_that_would_run_something_is_refused_by_its_name() {
    let parent = temporary("pickle");
    let mut file = archive(&llama());
    let at = file.windows(22).position(|bytes| bytes == b"ccollections\nOrderedDi").unwrap();
    file[at..at + 24].copy_from_slice(b"cposix_________\nsystem_\n");
    let path = parent.join("pytorch_model.bin");
    fs::write(&path, file).unwrap();
    let output = roofline(&["inspect", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let expected = "is no usable PyTorch checkpoint: its pickle asks Python for `posix_________.system_`, which no state dict \
                    needs: it was not run";
    assert!(said(&output).contains(expected), "{}", said(&output));
}

/// The first bytes say what a file is, whatever its name.
#[test]
fn a_gguf_file_is_known_under_any_name() {
    let parent = temporary("gguf");
    let source = folder(&parent, "plain", &Value::Null);
    write(&source.join("model.safetensors"), &llama());
    let gguf = parent.join("a.gguf");
    quantize(&[source.to_str().unwrap(), "--plan", "q8_0", "--to", gguf.to_str().unwrap()]);
    let renamed = parent.join("model.safetensors");
    fs::copy(&gguf, &renamed).unwrap();
    let output = roofline(&["inspect", renamed.to_str().unwrap(), "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["container"], "GGUF");
    let target = parent.join("out");
    let output =
        roofline(&["quantize", renamed.to_str().unwrap(), "--plan", "w4a16", "--to", target.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("is quantized already"), "{}", said(&output));
    let decoded = parent.join("decoded");
    quantize(&[renamed.to_str().unwrap(), "--plan", "bf16", "--to", decoded.to_str().unwrap()]);
    assert!(decoded.join("config.json").exists() && decoded.join("tokenizer.json").exists());
}

/// gpt-oss as it was released: its experts in codes, everything else plain.
fn released(parent: &Path) -> (PathBuf, Tensors) {
    let mut weights = Weights(3);
    let mut all = Tensors::new();
    all.insert("model.embed_tokens.weight".to_owned(), weights.bf16(&[VOCABULARY, HIDDEN]));
    all.insert("model.layers.0.self_attn.q_proj.weight".to_owned(), weights.bf16(&[HIDDEN, HIDDEN]));
    for (name, outputs, inputs) in [("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)] {
        let at = format!("model.layers.0.mlp.experts.{name}");
        all.insert(format!("{at}_blocks"), weights.bytes("U8", &[4, outputs, inputs / 32, 16]));
        all.insert(format!("{at}_scales"), weights.bytes("U8", &[4, outputs, inputs / 32]));
        all.insert(format!("{at}_bias"), weights.bf16(&[4, outputs]));
    }
    let quantization = json!({ "quantization_config": { "quant_method": "mxfp4" } });
    let path = folder(parent, "released", &quantization);
    write(&path.join("model.safetensors"), &all);
    (path, all)
}

#[test]
fn released_experts_are_decoded_and_counted() {
    let parent = temporary("released");
    let (source, _) = released(&parent);
    let source = source.to_str().unwrap();
    let output = roofline(&["inspect", source, "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let experts = 4 * 3 * INNER * HIDDEN;
    assert_eq!(shown["parameters"], VOCABULARY * HIDDEN + HIDDEN * HIDDEN + experts + 4 * (2 * INNER + HIDDEN));
    let stack = shown["tensors"].as_array().unwrap().iter().find(|tensor| tensor["format"] == "MXFP4").unwrap();
    assert_eq!(stack["name"], "model.layers.0.mlp.experts.down_proj");
    assert_eq!(stack["shape"], json!([4, INNER, HIDDEN]));
    assert_eq!(stack["bits_per_weight"], 4.25);
    assert!(!shown["suspicious"].to_string().contains("codes"), "{}", shown["suspicious"]);
    let target = parent.join("plain");
    quantize(&[source, "--plan", "bf16", "--to", target.to_str().unwrap()]);
    let plain = read(&target.join("model.safetensors"));
    assert_eq!(plain.len(), 6, "codes and scales are gone: {:?}", plain.keys());
    let config: Value = serde_json::from_slice(&fs::read(target.join("config.json")).unwrap()).unwrap();
    assert_eq!(config.get("quantization_config"), None);
    // What needs codes of its own starts from plain numbers.
    let output = roofline(&["quantize", source, "--plan", "w4a16", "--to", parent.join("no").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("is quantized already"), "{}", said(&output));
}

/// FP8 with one scale per tensor, and what scales activations, is decoded; the file that describes it does not come along.
#[test]
fn static_fp8_is_decoded() {
    let parent = temporary("static");
    let mut tensors = llama();
    let module = "model.layers.0.mlp.up_proj";
    // 0x38 is 1, 0xc0 is -2.
    let codes: Vec<u8> = (0..INNER * HIDDEN).map(|at| if at % 2 == 0 { 0x38 } else { 0xc0 }).collect();
    tensors.insert(format!("{module}.weight"), ("F8_E4M3", vec![INNER, HIDDEN], codes));
    tensors.insert(format!("{module}.weight_scale"), ("F32", vec![], 0.25f32.to_le_bytes().to_vec()));
    tensors.insert(format!("{module}.input_scale"), ("F32", vec![], 0.5f32.to_le_bytes().to_vec()));
    let source = folder(&parent, "fp8", &Value::Null);
    write(&source.join("model.safetensors"), &tensors);
    let described = json!({ "producer": { "name": "modelopt" }, "quantization": { "quant_algo": "FP8" } });
    fs::write(source.join("hf_quant_config.json"), described.to_string()).unwrap();
    let source = source.to_str().unwrap();
    let output = roofline(&["inspect", source, "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["quantization"], described);
    assert_eq!(shown["suspicious"], json!([]));
    let up = shown["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == format!("{module}.weight"));
    assert_eq!(up.unwrap()["format"], "FP8 per tensor");
    let target = parent.join("plain");
    quantize(&[source, "--plan", "bf16", "--to", target.to_str().unwrap()]);
    let plain = read(&target.join("model.safetensors"));
    assert_eq!(plain[&format!("{module}.weight")][..4], [0.25, -0.5, 0.25, -0.5]);
    assert_eq!(plain.len(), llama().len());
    assert!(!target.join("hf_quant_config.json").exists());
}

/// An adapter of rank two for three products, and the sum that PEFT would make: `W + scale * alpha / r * B A`.
fn adapter(parent: &Path) -> (PathBuf, BTreeMap<String, Vec<f64>>) {
    let path = parent.join("adapter");
    fs::create_dir_all(&path).unwrap();
    let config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["q_proj", "up_proj"] });
    fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
    let mut weights = Weights(11);
    let (mut tensors, mut sums) = (Tensors::new(), BTreeMap::new());
    for (module, rows, columns) in
        [("self_attn.q_proj", HIDDEN, HIDDEN), ("mlp.up_proj", INNER, HIDDEN), ("mlp.down_proj", HIDDEN, INNER)]
    {
        let (a, b) = (weights.f32(&[2, columns]), weights.f32(&[rows, 2]));
        let (left, right) = (numbers("F32", &b.2), numbers("F32", &a.2));
        let sum = (0..rows * columns).map(|at| {
            let (row, column) = (at / columns, at % columns);
            let product = |rank: usize| f64::from(left[2 * row + rank]) * f64::from(right[rank * columns + column]);
            1.5 * (product(0) + product(1))
        });
        sums.insert(format!("model.layers.0.{module}.weight"), sum.collect());
        tensors.insert(format!("base_model.model.model.layers.0.{module}.lora_A.weight"), a);
        tensors.insert(format!("base_model.model.model.layers.0.{module}.lora_B.weight"), b);
    }
    write(&path.join("adapter_model.safetensors"), &tensors);
    (path, sums)
}

/// Merged on the way is merged before: every layout writes what it writes of a checkpoint that holds the sums.
#[test]
fn an_adapter_is_merged_on_the_way() {
    let parent = temporary("lora");
    let source = folder(&parent, "plain", &Value::Null);
    let mut tensors = llama();
    write(&source.join("model.safetensors"), &tensors);
    let (adapter, sums) = adapter(&parent);
    let lora = format!("{}=0.5", adapter.display());
    let whole = parent.join("whole");
    let source = source.to_str().unwrap();
    let report = quantize(&[source, "--lora", &lora, "--plan", "fp32", "--to", whole.to_str().unwrap()]);
    assert_eq!(report["adapters"][0]["weights"].as_array().unwrap().len(), 3);
    let card = fs::read_to_string(whole.join("README.md")).unwrap();
    assert!(card.contains("- `adapter`, times 0.5: added to 3 weights"), "{card}");
    assert!(card.contains("`model.layers.0.mlp.down_proj.weight`"), "{card}");
    let merged = read(&whole.join("model.safetensors"));
    for (name, (dtype, shape, bytes)) in &mut tensors {
        let before = numbers(dtype, bytes);
        let Some(sum) = sums.get(name) else {
            assert_eq!(merged[name], before, "{name}");
            continue;
        };
        let exact = before.iter().zip(sum).map(|(weight, sum)| f64::from(*weight) + 0.5 * sum);
        for (merged, exact) in merged[name].iter().zip(exact) {
            // The checkpoint is of BF16, and so is what it holds after merging: eight bits.
            assert!((f64::from(*merged) - exact).abs() <= exact.abs() / 256.0 + 1e-9, "{name}: {merged} {exact}");
        }
        *bytes = merged[name].iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect();
        assert_eq!(shape.iter().product::<usize>(), sum.len());
    }
    let before = folder(&parent, "merged", &Value::Null);
    write(&before.join("model.safetensors"), &tensors);
    for (plan, layout) in [
        ("w4a16-g32", "compressed-tensors"),
        ("nvfp4a16", "compressed-tensors"),
        ("w8a16", "torchao"),
        ("bf16", "gguf"),
    ] {
        let [one, other] = ["a", "b"].map(|name| parent.join(format!("{plan}-{layout}-{name}")));
        let arguments = ["--plan", plan, "--as", layout, "--to"];
        quantize(&[&[source, "--lora", &lora][..], &arguments, &[one.to_str().unwrap()]].concat());
        quantize(&[&[before.to_str().unwrap()], &arguments[..], &[other.to_str().unwrap()]].concat());
        let sizes = |folder: &Path| contents(folder).into_values().map(|bytes| bytes.len()).collect::<Vec<_>>();
        if layout == "gguf" {
            // The file and its metadata are named after the folder.
            let tail = |folder: &Path| {
                contents(folder).into_values().map(|b| b[b.len() - 4096..].to_vec()).collect::<Vec<_>>()
            };
            assert_eq!(tail(&one), tail(&other));
            assert_ne!(sizes(&one), [0]);
        } else {
            assert_eq!(contents(&one), contents(&other), "{plan} {layout}");
        }
    }
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_before_anything_is_written() {
    let parent = temporary("unfit");
    let source = folder(&parent, "plain", &Value::Null);
    let mut tensors = llama();
    tensors.remove("model.layers.0.mlp.up_proj.weight");
    write(&source.join("model.safetensors"), &tensors);
    let (adapter, _) = adapter(&parent);
    let target = parent.join("out");
    let run = |lora: &str, code: i32| {
        let arguments = ["quantize", source.to_str().unwrap(), "--plan", "w4a16-g32", "--lora", lora, "--to"];
        let output = roofline(&[&arguments[..], &[target.to_str().unwrap()]].concat());
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert!(!target.exists());
        said(&output)
    };
    let message = run(adapter.to_str().unwrap(), 2);
    assert!(
        message.contains("changes `model.layers.0.mlp.up_proj.weight`, which the checkpoint does not have"),
        "{message}"
    );
    let message = run(&format!("{}=much", adapter.display()), 2);
    assert!(message.contains("`much` is no scale of an adapter"), "{message}");
    let message = run(parent.join("nowhere").to_str().unwrap(), 1);
    assert!(message.contains("nowhere/adapter_config.json"), "{message}");
}
