//! Small models and what transformers computed with them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};

use roofline_quant::{
    Checkpoint,
    checkpoint::Shard,
    rows::{Plain, Rows, Spare},
};
use serde_json::json;

/// A small model of a family.
pub struct Fixture {
    pub folder: PathBuf,
    pub checkpoint: Checkpoint,
    /// Two prompts.
    pub tokens: Vec<Vec<u32>>,
    /// Their logits, one row of the vocabulary per token, in FP32 and in BF16.
    pub logits: Vec<f32>,
    pub logits_bf16: Vec<f32>,
    /// What follows the first ten tokens of the first prompt.
    pub greedy: Vec<u32>,
}

impl Fixture {
    pub fn open(family: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(family);
        let checkpoint = Checkpoint::open(&folder.join("model.safetensors")).unwrap();
        let shard = Shard::open(&folder.join("expected.safetensors")).unwrap();
        let prompts = whole(&shard, "tokens");
        let tokens = prompts.chunks(prompts.len() / 2).map(<[u32]>::to_vec).collect();
        Self {
            tokens,
            logits: floats(&shard, "logits"),
            logits_bf16: floats(&shard, "logits_bf16"),
            greedy: whole(&shard, "greedy"),
            folder,
            checkpoint,
        }
    }
}

/// The numbers of a tensor.
pub fn floats(shard: &Shard, name: &str) -> Vec<f32> {
    let entry = shard.header.tensors.iter().find(|entry| entry.name == name).unwrap();
    let rows = Plain::new(shard, entry).unwrap();
    let matrix = rows.matrix();
    let mut numbers = vec![0.0; matrix.rows * matrix.columns];
    rows.read(0..matrix.rows, &mut Spare::default(), &mut numbers).unwrap();
    numbers
}

/// The whole numbers of a tensor of I64.
fn whole(shard: &Shard, name: &str) -> Vec<u32> {
    let entry = shard.header.tensors.iter().find(|entry| entry.name == name).unwrap();
    let bytes = std::fs::read(&shard.path).unwrap();
    let from = (shard.header.start + entry.begin) as usize;
    let bytes = &bytes[from..from + entry.bytes() as usize];
    bytes.chunks_exact(8).map(|one| u32::from_le_bytes([one[0], one[1], one[2], one[3]])).collect()
}

/// The largest difference over the largest magnitude.
pub fn deviation(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0f32, |largest, one| largest.max(one.abs()));
    let off = got
        .iter()
        .zip(want)
        .fold(0f32, |largest, (a, b)| largest.max((a - b).abs()).max(if a.is_nan() { f32::INFINITY } else { 0.0 }));
    off / largest
}

/// Writes random BF16 tensors: `1 + spread x` for vectors, `spread x` for matrices and biases, with `x` between -1 and 1.
pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, f32)]) {
    let (mut header, mut data, mut state) = (serde_json::Map::new(), Vec::new(), 7u64);
    for (name, shape, spread) in tensors {
        let begin = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * spread;
            let value = if shape.len() == 1 && !name.ends_with("bias") { 1.0 + noise } else { noise };
            data.extend_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
        }
        let entry = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(path, file).unwrap();
}

/// Writes a random model whose matrices are wide enough for every block: a dense one, or one of experts, apart (mixtral) or in stacks
/// (gpt-oss).
pub fn model(folder: &Path, family: &str) {
    let (hidden, inner, heads, kv_heads, width, vocabulary, layers) = (256, 512, 4, 2, 64, 320, 2);
    let mut config = json!({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": width, "vocab_size": vocabulary, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": false, "torch_dtype": "bfloat16"});
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden], 1.0),
        ("model.norm.weight".to_owned(), vec![hidden], 0.0),
        ("lm_head.weight".to_owned(), vec![vocabulary, hidden], 0.2),
    ];
    for layer in 0..layers {
        let mut add = |name: &str, shape: Vec<usize>| {
            // Norms that are not one: of few numbers, many would lie exactly between two codes.
            let spread = if shape.len() == 1 { 0.1 } else { 1.5 / (shape[1] as f32).sqrt() };
            // Stacks of experts, biases and sinks are no modules.
            let plain = shape.len() == 3 || name.ends_with("bias") || name.ends_with("sinks");
            let end = if plain { "" } else { ".weight" };
            tensors.push((format!("model.layers.{layer}.{name}{end}"), shape, spread));
        };
        add("input_layernorm", vec![hidden]);
        add("post_attention_layernorm", vec![hidden]);
        add("self_attn.q_proj", vec![heads * width, hidden]);
        add("self_attn.k_proj", vec![kv_heads * width, hidden]);
        add("self_attn.v_proj", vec![kv_heads * width, hidden]);
        add("self_attn.o_proj", vec![hidden, heads * width]);
        if family == "gpt-oss" {
            add("self_attn.sinks", vec![heads]);
            add("self_attn.q_proj.bias", vec![heads * width]);
            add("self_attn.k_proj.bias", vec![kv_heads * width]);
            add("self_attn.v_proj.bias", vec![kv_heads * width]);
            add("self_attn.o_proj.bias", vec![hidden]);
            add("mlp.router", vec![4, hidden]);
            add("mlp.router.bias", vec![4]);
            add("mlp.experts.gate_up_proj", vec![4, hidden, 2 * inner]);
            add("mlp.experts.gate_up_proj_bias", vec![4, 2 * inner]);
            add("mlp.experts.down_proj", vec![4, inner, hidden]);
            add("mlp.experts.down_proj_bias", vec![4, hidden]);
        } else if family == "mixtral" {
            add("block_sparse_moe.gate", vec![4, hidden]);
            for expert in 0..4 {
                add(&format!("block_sparse_moe.experts.{expert}.w1"), vec![inner, hidden]);
                add(&format!("block_sparse_moe.experts.{expert}.w2"), vec![hidden, inner]);
                add(&format!("block_sparse_moe.experts.{expert}.w3"), vec![inner, hidden]);
            }
        } else {
            add("mlp.gate_proj", vec![inner, hidden]);
            add("mlp.up_proj", vec![inner, hidden]);
            add("mlp.down_proj", vec![hidden, inner]);
        }
    }
    if family == "mixtral" {
        let more = json!({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
            "num_experts_per_tok": 2});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    if family == "gpt-oss" {
        let more = json!({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 4,
            "num_experts_per_tok": 2, "experts_per_token": 2, "sliding_window": 8, "attention_bias": true,
            "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 64}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/llama").join(name);
        std::fs::copy(from, folder.join(name)).unwrap();
    }
    write_safetensors(&folder.join("model.safetensors"), &tensors);
}
