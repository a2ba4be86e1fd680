//! Small models and what transformers computed with them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};

use roofline_quant::{
    Checkpoint,
    checkpoint::Shard,
    rows::{Plain, Rows, Spare},
};

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

/// Writes random BF16 tensors: `1 + spread x` for vectors, `spread x` for matrices, with `x` between -1 and 1.
pub fn write_safetensors(path: &Path, tensors: &[(String, Vec<usize>, f32)]) {
    let (mut header, mut data, mut state) = (serde_json::Map::new(), Vec::new(), 7u64);
    for (name, shape, spread) in tensors {
        let begin = data.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let noise = ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * spread;
            let value = if shape.len() == 1 { 1.0 + noise } else { noise };
            data.extend_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
        }
        let entry = serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(path, file).unwrap();
}
