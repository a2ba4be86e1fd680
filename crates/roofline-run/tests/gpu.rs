//! Every kernel on a real GPU: right on odd shapes, and timed. Without one this says so and passes.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use roofline_core::{
    Dim, Graph, Registry,
    graph::Ffn,
    measurement::Subject,
    op::{Attention, Cache, Elementwise, ElementwiseKind as Kind},
    precision::PrecisionSpec,
    units::Seconds,
};
use roofline_run::{
    Backend, Error, Protocol,
    cuda::{Cuda, Gpu, present},
    measure,
    protocol::Warmup,
};

const THIN: &str = "fp32 tf32 fp16 bf16 fp8 int8 w8a16 fp8a16 w4a16 nf4 mxfp4a16 nvfp4a16 int4-g32/bf16 int4-g64/fp16 \
                    int4-g32-zp/bf16 int4-g64-zp/fp16 int4-g128-zp/bf16 int4-g128/fp16 nf4/fp16 mxfp4/fp16 nvfp4/fp16 \
                    int8/fp16 fp8/fp16";
const MANY: &str = "fp32 tf32 fp16 bf16 fp8 int8 fp8-e4m3-tensor/fp8-e4m3-tensor";
const GATED: &str = "bf16 fp16 w8a16 fp8a16 w4a16 nf4 mxfp4a16 nvfp4a16";

/// None, said aloud, where there is no GPU.
fn gpu() -> Option<Cuda> {
    if !present() {
        eprintln!("SKIPPED: there is no NVIDIA GPU here, so no kernel ran on one");
        return None;
    }
    // Kernels are compiled once for all tests.
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let gpu = Gpu::open(0, Some(folder)).unwrap();
    let device = Registry::builtin().reported(&gpu.name).expect("a GPU of the registry").into_owned();
    Some(Cuda::new(gpu, device))
}

/// Measures every node of `graph` in each precision; what is wrong fails, what is not supported has to say so.
fn check(cuda: &mut Cuda, graph: &Graph, precisions: &str) -> usize {
    let mut protocol = Protocol::quick();
    protocol.warmup = Warmup { calls: 1, time: Seconds::ZERO, most: 1 };
    protocol.stop.budget = Seconds::new(0.01);
    let mut measured = 0;
    for name in precisions.split_whitespace() {
        let formats = name.parse::<PrecisionSpec>().unwrap().on(cuda.device()).unwrap();
        for node in &graph.nodes {
            let subject = Subject::new(node, name, formats);
            match measure(cuda, &subject, &protocol) {
                Ok(measurement) => {
                    measured += 1;
                    println!(
                        "{} {:.2} us, off by {:.1e}",
                        subject.words(),
                        measurement.time().micros(),
                        measurement.check.error
                    );
                }
                Err(Error::Unsupported { reason, .. }) => println!("{}: {reason}", subject.words()),
                Err(error) => panic!("{}: {error}", subject.words()),
            }
        }
    }
    measured
}

fn dim(value: u64) -> Dim {
    Dim::new("size", value).unwrap()
}

#[test]
fn products_of_few_rows_are_right() {
    let Some(mut cuda) = gpu() else { return };
    for (m, n, k) in
        [(1, 1, 64), (1, 17, 128), (1, 1000, 1032), (3, 48, 320), (8, 896, 4864), (9, 100, 200), (16, 2049, 1096)]
    {
        let measured = check(&mut cuda, &Graph::gemm(m, n, k).unwrap(), THIN);
        assert!(measured >= 15, "{m} x {n} x {k}: {measured}");
    }
}

#[test]
fn products_of_many_rows_are_right() {
    let Some(mut cuda) = gpu() else { return };
    for (m, n, k) in [(17, 64, 64), (33, 1000, 1032), (300, 896, 4864), (1024, 2056, 520)] {
        assert!(check(&mut cuda, &Graph::gemm(m, n, k).unwrap(), MANY) >= 5, "{m} x {n} x {k}");
    }
}

#[test]
fn activated_products_are_right() {
    let Some(mut cuda) = gpu() else { return };
    for (tokens, hidden, inner, gated) in
        [(1, 1024, 2816, true), (11, 200, 1000, true), (40, 512, 520, true), (2, 128, 300, false)]
    {
        let ffn = Ffn { tokens: dim(tokens), hidden: dim(hidden), inner: dim(inner), gated };
        assert!(check(&mut cuda, &Graph::ffn(ffn, true), GATED) >= 4, "{tokens} x {hidden} x {inner}");
    }
}

#[test]
fn attention_over_a_cache_is_right() {
    let Some(mut cuda) = gpu() else { return };
    for (batch, heads, kv_heads, context, width) in
        [(1, 8, 8, 1, 64), (1, 32, 8, 777, 128), (3, 28, 4, 4097, 80), (5, 16, 1, 300, 96), (2, 6, 2, 1000, 256)]
    {
        let attention = Attention {
            batch: dim(batch),
            heads: dim(heads),
            kv_heads: dim(kv_heads),
            queries: Dim::ONE,
            context: dim(context),
            head_dim: dim(width),
            value_dim: dim(width),
            cache: Cache::Separate,
            causal: true,
            window: None,
        };
        let measured = check(&mut cuda, &Graph::attention(attention, true), "bf16 fp16 bf16/bf16/fp8 bf16/bf16/int8");
        assert!(measured >= 2, "{attention:?}: {measured}");
    }
}

#[test]
fn kernels_over_elements_are_right() {
    let Some(mut cuda) = gpu() else { return };
    let kinds = [
        Kind::Norm,
        Kind::Rope,
        Kind::Residual,
        Kind::KvWrite,
        Kind::Embedding,
        Kind::GatedActivation,
        Kind::Activation,
    ];
    for kind in kinds {
        for (tokens, vectors, width) in [(1, 1, 4096), (7, 3, 100), (33, 8, 128)] {
            let op = Elementwise { kind, tokens, vectors: dim(vectors), width: dim(width) };
            assert_eq!(check(&mut cuda, &Graph::elementwise(op), "bf16 fp16"), 2, "{op:?}");
        }
    }
}
