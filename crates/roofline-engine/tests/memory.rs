//! What weights take on a GPU, told from headers: no GPU is needed to know it.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::model;
use roofline_core::{Format, Model};
use roofline_engine::{Backend, Settings, memory};
use roofline_quant::{Checkpoint, Layout, Request, quantize};
use roofline_run::cuda::Architecture;

const HOPPER: Architecture = Architecture { major: 9, minor: 0 };
const ADA: Architecture = Architecture { major: 8, minor: 9 };

/// Formats without a kernel are of 16 bit there, norms are FP32, and rows of FP8 are there twice where inputs are FP8 as well.
#[test]
fn weights_take_what_kernels_read() {
    let scratch = std::env::temp_dir().join(format!("roofline-engine-memory-{}", std::process::id()));
    let source = scratch.join("llama");
    model(&source, "llama");
    let plain = Checkpoint::open(&source).unwrap();
    let own = Model::from_config(&plain.config.to_string(), "llama").unwrap();
    let settings = Settings { backend: Backend::Cuda { index: 0, kernels: None }, ..Settings::with(Format::BF16) };
    let bytes = |checkpoint: &Checkpoint, gpu| memory::weights(checkpoint, &own, &settings, gpu).unwrap().value();
    let (mut products, mut rows, mut table, mut norms) = (0, 0, 0, 0);
    for (name, (_, entry)) in plain.tensors() {
        match entry.shape[..] {
            [length] => norms += length,
            [n, k] if name == "model.embed_tokens.weight" => table += n * k,
            [n, k] => (products, rows) = (products + n * k, rows + n),
            _ => panic!("{name}"),
        }
    }
    let others = (2 * table + 4 * norms) as f64;
    let sixteen = (2 * products) as f64 + others;
    assert_eq!(bytes(&plain, Some(HOPPER)), sixteen);
    assert_eq!(bytes(&plain, None), plain.bytes() as f64);
    let written = |layout: Layout, plan: &str, name: &str| {
        let target = scratch.join(name);
        quantize(&plain, &Request::new(plan.parse().unwrap(), layout, target.clone()), &|_: u64| {}).unwrap();
        Checkpoint::open(&target).unwrap()
    };
    let gguf = written(Layout::Gguf, "q8_0", "q8.gguf");
    assert_eq!(bytes(&gguf, Some(HOPPER)), sixteen);
    assert!(bytes(&gguf, None) < 0.6 * sixteen);
    // A head stays at 16 bit.
    let head = 320 * 256;
    let fp8 = written(Layout::CompressedTensors, "fp8", "fp8");
    let once = (2 * head + (products - head) + 2 * (rows - 320)) as f64 + others;
    assert_eq!(bytes(&fp8, Some(ADA)), once);
    assert_eq!(bytes(&fp8, Some(HOPPER)), once + ((products - head) + 4 * (rows - 320)) as f64);
    std::fs::remove_dir_all(&scratch).unwrap();
}
