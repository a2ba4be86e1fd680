//! Checkpoints made here, and what the program says of them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use serde_json::{Value, json};

use crate::common::{self, numbers, write_tokenizer};
pub(crate) use crate::common::{
    TRIES, Tensors, bf16 as floats, command, journaled, killed, killed_before, partial, remove, roofline, said,
    temporary, write,
};

/// A repeatable run of numbers that look like weights: sums of uniform ones, some of them large.
pub(crate) struct Weights(pub(crate) u64);

impl Weights {
    pub(crate) fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        let sum = uniform() + uniform() + uniform() + uniform();
        if (self.0 >> 33).is_multiple_of(1024) { sum * 0.5 } else { sum * 0.05 }
    }

    pub(crate) fn bf16(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| ((self.next().to_bits() >> 16) as u16).to_le_bytes()).collect()
    }
}

pub(crate) const HIDDEN: usize = 256;
pub(crate) const INNER: usize = 512;
pub(crate) const VOCABULARY: usize = 64;

pub(crate) fn tensors(layers: usize) -> Tensors {
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

pub(crate) fn config(layers: usize) -> Value {
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
pub(crate) fn checkpoint(folder: &Path, layers: usize) -> PathBuf {
    let path = folder.join("tiny");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("config.json"), config(layers).to_string()).unwrap();
    write_tokenizer(&path.join("tokenizer.json"), VOCABULARY);
    write(&path.join("model.safetensors"), &tensors(layers));
    path
}

/// What the program printed, with the folder's name and the time taken out.
pub(crate) fn shown(output: &Output, folder: &Path) -> String {
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
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// The FP32 tensors of a safetensors file.
pub(crate) fn read(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let all = common::read(path).into_iter().filter(|(_, (dtype, ..))| dtype == "F32");
    all.map(|(name, (dtype, _, bytes))| (name, numbers(&dtype, &bytes))).collect()
}

/// The files of a folder, or the one file.
pub(crate) fn all_of(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_dir() { contents(path) } else { BTreeMap::from([(String::new(), fs::read(path).unwrap())]) }
}

pub(crate) const EXPERTS: usize = 12;

/// A checkpoint of these tensors, with the configuration changed and a tokenizer.
pub(crate) fn checkpoint_of(folder: &Path, name: &str, more: &Value, tensors: &Tensors) -> String {
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
pub(crate) fn mixtral() -> (Value, Tensors) {
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
