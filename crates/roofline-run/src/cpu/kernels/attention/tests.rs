use roofline_core::{Device, Dim, Registry, device::Peaks, op, precision::PrecisionSpec};

use super::*;
use crate::reference;

fn dim(value: usize) -> Dim {
    Dim::new("test", value as u64).unwrap()
}

/// Numbers between -1 and 1 that look random.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from((state >> 16) as u16) / 32_768.0 - 1.0
        })
        .collect()
}

fn precision(query: &str, kv: &str) -> Precision {
    let device: Device = Registry::builtin().find("h200").unwrap().into_owned();
    assert_ne!(device.peaks, Peaks::default());
    format!("{query}/{query}/{kv}").parse::<PrecisionSpec>().unwrap().on(&device).unwrap()
}

fn shape(batch: usize, heads: (usize, usize), dims: (usize, usize), queries: usize, context: usize) -> op::Attention {
    op::Attention {
        batch: dim(batch),
        heads: dim(heads.0),
        kv_heads: dim(heads.1),
        head_dim: dim(dims.0),
        value_dim: dim(dims.1),
        queries: dim(queries),
        context: dim(context),
        causal: true,
        window: None,
        cache: Cache::Separate,
    }
}

/// The largest error against the reference, relative to the largest output.
fn error(op: &op::Attention, precision: &Precision, threads: usize, isa: Isa) -> f64 {
    let size = |dim: Dim| dim.get() as usize;
    let rows = size(op.batch) * size(op.queries) * size(op.heads);
    let keys = size(op.batch) * size(op.kv_heads) * size(op.context);
    // Queries large enough for the softmax to prefer some keys.
    let q: Vec<f32> = noise(rows * size(op.head_dim), 1).iter().map(|value| 4.0 * value).collect();
    let q = precision.query.encode(&q, op.head_dim).unwrap();
    let k = precision.kv.encode(&noise(keys * size(op.head_dim), 2), op.head_dim).unwrap();
    let v = precision.kv.encode(&noise(keys * size(op.value_dim), 3), op.value_dim).unwrap();
    let mut plan = Attention::plan_on(op, precision, threads, isa).unwrap();
    let mut out = vec![0u8; rows * size(op.value_dim) * precision.query.nominal_bits() as usize / 8];
    let mut pool = Pool::new(threads);
    for _ in 0..2 {
        out.fill(0xff);
        plan.run(&mut pool, (&q).into(), (&k).into(), (&v).into(), &mut out);
    }
    let kind = Kind::of(precision.query).unwrap();
    let expected = reference::attention::attention(op, &q.decode(), &k.decode(), &v.decode());
    let largest = expected.iter().fold(0f64, |max, value| max.max(value.abs()));
    let got = (0..expected.len()).map(|at| f64::from(crate::cpu::kernels::convert::scalar(kind, &out, at)));
    got.zip(&expected).fold(0f64, |max, (got, expected)| {
        let error = (got - expected).abs();
        if error.is_nan() { f64::INFINITY } else { max.max(error) }
    }) / largest
}

fn agree(op: &op::Attention, query: &str, kv: &str) {
    let precision = precision(query, kv);
    // Half a step of the output's mantissa, or FP32 sums of a few hundred products.
    let tolerance = match query {
        "fp32" => 1e-5,
        "fp16" => 1e-3,
        _ => 6e-3,
    };
    for isa in Isa::restrictions() {
        for threads in [1, 3] {
            let error = error(op, &precision, threads, isa);
            assert!(error < tolerance, "{op:?} {query} {kv} {isa:?} {threads} threads: {error}");
        }
    }
}

#[test]
fn decode_matches_the_reference_in_every_format() {
    let op = shape(2, (8, 2), (64, 64), 1, 150);
    for kv in ["fp32", "bf16", "fp16", "int8", "fp8", "fp8-e5m2"] {
        agree(&op, "fp32", kv);
    }
    agree(&op, "bf16", "bf16");
    agree(&op, "fp16", "int8");
}

#[test]
fn decode_matches_on_ragged_shapes() {
    agree(&shape(1, (1, 1), (128, 128), 1, 1), "fp32", "bf16");
    agree(&shape(1, (7, 1), (128, 128), 1, 200), "fp32", "bf16");
    agree(&shape(3, (6, 2), (80, 72), 1, 67), "fp32", "int8");
    agree(&shape(1, (3, 3), (5, 3), 1, 65), "bf16", "fp8");
    agree(&op::Attention { causal: false, ..shape(1, (4, 4), (32, 96), 1, 129) }, "fp32", "fp32");
    agree(&op::Attention { window: Some(dim(70)), ..shape(2, (4, 2), (64, 64), 1, 300) }, "fp32", "bf16");
}

#[test]
fn prefill_matches_the_reference() {
    for kv in ["fp32", "bf16", "int8"] {
        agree(&shape(1, (4, 2), (64, 64), 70, 70), "fp32", kv);
    }
    agree(&shape(2, (2, 1), (80, 24), 33, 100), "fp32", "fp8");
    agree(&shape(1, (3, 1), (7, 5), 130, 131), "bf16", "bf16");
    agree(&op::Attention { causal: false, ..shape(1, (2, 2), (64, 64), 20, 65) }, "fp32", "fp32");
    agree(&op::Attention { window: Some(dim(9)), ..shape(1, (2, 2), (32, 32), 140, 150) }, "fp32", "fp16");
}

#[test]
fn what_has_no_kernel_is_said_so() {
    let op = shape(1, (4, 2), (64, 64), 1, 16);
    let why = |op: &op::Attention, kv: &str| Attention::plan(op, &precision("bf16", kv), 2).err().unwrap().0;
    assert!(why(&op, "int4-g32").contains("int4-g32"));
    assert!(why(&op::Attention { cache: Cache::Latent, ..op }, "bf16").contains("latent"));
    assert!(why(&op::Attention { kv_heads: dim(3), ..op }, "bf16").contains("evenly"));
    let huge = dim(Dim::MAX as usize);
    let large = op::Attention { batch: huge, heads: huge, kv_heads: huge, context: huge, ..op };
    assert!(!why(&large, "bf16").is_empty());
    let plan = Attention::plan(&op, &precision("bf16", "fp8"), 2).unwrap();
    assert!(plan.kernel_name().starts_with("attention-decode-"));
    assert_eq!(plan.math(), Math::Fp32);
}
