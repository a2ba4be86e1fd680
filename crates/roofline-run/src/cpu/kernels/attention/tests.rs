use roofline_core::{Device, Dim, Registry, device::Peaks, format::Encoded, op, precision::PrecisionSpec};

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

/// What an attention runs on.
struct Inputs {
    q: Encoded,
    k: Encoded,
    v: Encoded,
}

impl Inputs {
    /// Noise for `queries` queries over a cache of `capacity` rows.
    fn new(op: &op::Attention, precision: &Precision, queries: usize, capacity: usize) -> Self {
        let size = |dim: Dim| dim.get() as usize;
        let rows = size(op.batch) * queries * size(op.heads);
        let keys = size(op.batch) * size(op.kv_heads) * capacity;
        // Queries large enough for the softmax to prefer some keys.
        let q: Vec<f32> = noise(rows * size(op.head_dim), 1).iter().map(|value| 4.0 * value).collect();
        Self {
            q: precision.query.encode(&q, op.head_dim).unwrap(),
            k: precision.kv.encode(&noise(keys * size(op.head_dim), 2), op.head_dim).unwrap(),
            v: precision.kv.encode(&noise(keys * size(op.value_dim), 3), op.value_dim).unwrap(),
        }
    }
}

/// The largest error, relative to the largest output.
fn distance(kind: Kind, out: &[u8], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0f64, |max, value| max.max(value.abs()));
    let got = (0..expected.len()).map(|at| f64::from(crate::cpu::kernels::convert::scalar(kind, out, at)));
    got.zip(expected).fold(0f64, |max, (got, expected)| {
        let error = (got - expected).abs();
        if error.is_nan() { f64::INFINITY } else { max.max(error) }
    }) / largest
}

/// The largest error against the reference, relative to the largest output.
fn error(op: &op::Attention, precision: &Precision, threads: usize, isa: Isa) -> f64 {
    let size = |dim: Dim| dim.get() as usize;
    let Inputs { q, k, v } = Inputs::new(op, precision, size(op.queries), size(op.context));
    let mut plan = Attention::plan_on(op, precision, threads, isa).unwrap();
    let mut out = vec![0u8; q.rows() * size(op.value_dim) * precision.query.nominal_bits() as usize / 8];
    let mut pool = Pool::new(threads);
    for _ in 0..2 {
        out.fill(0xff);
        plan.run(&mut pool, (&q).into(), (&k).into(), (&v).into(), &mut out);
    }
    let expected = reference::attention::attention(op, &q.decode(), &k.decode(), &v.decode());
    distance(Kind::of(precision.query).unwrap(), &out, &expected)
}

/// Half a step of the output's mantissa, or FP32 sums of a few hundred products.
fn tolerance(query: &str) -> f64 {
    match query {
        "fp32" => 1e-5,
        "fp16" => 1e-3,
        _ => 6e-3,
    }
}

fn agree(op: &op::Attention, query: &str, kv: &str) {
    let (precision, tolerance) = (precision(query, kv), tolerance(query));
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

/// One plan for the longest context, run at each `(context, queries)` of `steps` over a cache with room to spare, whose
/// rows past the context are noise that must not count.
fn agree_while_growing(op: &op::Attention, manner: &Manner, steps: &[(usize, usize)], query: &str, kv: &str) {
    let precision = precision(query, kv);
    let size = |dim: Dim| dim.get() as usize;
    let capacity = manner.capacity.unwrap_or(size(op.context));
    let scale = manner.scale.map_or(1.0 / (size(op.head_dim) as f64).sqrt(), f64::from);
    let cap = manner.soft_cap.map(f64::from);
    let score = |product: f64| cap.map_or(product * scale, |cap| cap * (product * scale / cap).tanh());
    let sink = |head: usize| manner.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
    let runs = steps.iter().map(|(context, queries)| {
        let inputs = Inputs::new(op, &precision, *queries, capacity);
        let first = |rows: &Encoded| -> Vec<f32> {
            let heads = rows.decode();
            let heads = heads.chunks(capacity * rows.columns());
            heads.flat_map(|head| head[..context * rows.columns()].to_vec()).collect()
        };
        let now = op::Attention { queries: dim(*queries), context: dim(*context), ..*op };
        let (q, k, v) = (inputs.q.decode(), first(&inputs.k), first(&inputs.v));
        let expected = reference::attention::attention_with(&now, score, sink, &q, &k, &v);
        (*context, inputs, expected)
    });
    let runs: Vec<(usize, Inputs, Vec<f64>)> = runs.collect();
    let kind = Kind::of(precision.query).unwrap();
    for isa in Isa::restrictions() {
        for threads in [1, 3] {
            let mut pool = Pool::new(threads);
            let mut plan = Attention::plan_on(op, &precision, threads, isa).unwrap().with(manner).unwrap();
            for (context, Inputs { q, k, v }, expected) in &runs {
                let mut out = vec![0xff; expected.len() * kind.bytes()];
                plan.run_at(&mut pool, *context, q.into(), k.into(), v.into(), &mut out);
                let error = distance(kind, &out, expected);
                let at = format!("{op:?} at {context} {manner:?} {query} {kv} {isa:?} {threads} threads");
                assert!(error < tolerance(query), "{at}: {error}");
            }
        }
    }
}

#[test]
fn one_plan_serves_while_the_context_grows() {
    let steps = [(1, 1), (2, 1), (64, 1), (65, 1), (200, 1), (7, 1), (230, 1)];
    let spare = Manner { capacity: Some(256), ..Manner::default() };
    for kv in ["fp32", "bf16", "fp16", "int8", "fp8"] {
        agree_while_growing(&shape(2, (6, 2), (64, 48), 1, 230), &spare, &steps, "fp32", kv);
    }
    let windowed = op::Attention { window: Some(dim(70)), ..shape(1, (4, 2), (64, 64), 1, 230) };
    agree_while_growing(&windowed, &spare, &steps, "fp32", "bf16");
    agree_while_growing(&windowed, &Manner::default(), &steps, "bf16", "bf16");
}

/// Chunks of a prompt, the last one shorter, then a token by itself through the same plan.
#[test]
fn prompts_come_in_chunks() {
    let steps = [(40, 40), (80, 40), (120, 40), (133, 13), (134, 1)];
    let spare = Manner { capacity: Some(150), ..Manner::default() };
    for kv in ["fp32", "bf16", "int8"] {
        agree_while_growing(&shape(2, (4, 2), (64, 48), 40, 140), &spare, &steps, "fp32", kv);
    }
    let windowed = op::Attention { window: Some(dim(9)), ..shape(1, (4, 2), (32, 32), 40, 140) };
    agree_while_growing(&windowed, &spare, &steps, "fp32", "bf16");
    let both_ways = op::Attention { causal: false, ..shape(1, (4, 2), (32, 32), 40, 140) };
    agree_while_growing(&both_ways, &spare, &steps, "fp32", "fp32");
}

/// Caps low enough to bend the scores, sinks above and far below the largest of them.
#[test]
fn models_score_in_manners_of_their_own() {
    let sinks = Some(vec![3.0, -40.0, 0.5, 60.0]);
    let manners = [
        Manner { scale: Some(0.4), ..Manner::default() },
        Manner { soft_cap: Some(1.5), ..Manner::default() },
        Manner { soft_cap: Some(50.0), capacity: Some(160), ..Manner::default() },
        Manner { sinks: sinks.clone(), ..Manner::default() },
        Manner { scale: Some(0.3), soft_cap: Some(2.0), sinks, capacity: Some(150) },
    ];
    for manner in &manners {
        for kv in ["fp32", "int8", "fp8"] {
            agree_while_growing(&shape(1, (4, 2), (64, 24), 1, 150), manner, &[(150, 1), (3, 1)], "fp32", kv);
            agree_while_growing(&shape(2, (4, 2), (40, 64), 30, 150), manner, &[(30, 30), (150, 30)], "fp32", kv);
        }
    }
}

#[test]
fn manners_that_cannot_be_meant_are_refused() {
    let refused = |manner: Manner| {
        let plan = Attention::plan(&shape(1, (4, 2), (64, 64), 1, 16), &precision("bf16", "bf16"), 2).unwrap();
        plan.with(&manner).err().unwrap().0
    };
    assert!(refused(Manner { sinks: Some(vec![0.0; 3]), ..Manner::default() }).contains("3 sinks"));
    assert!(refused(Manner { soft_cap: Some(0.0), ..Manner::default() }).contains("above zero"));
    assert!(refused(Manner { scale: Some(f32::NAN), ..Manner::default() }).contains("finite"));
    assert!(refused(Manner { capacity: Some(15), ..Manner::default() }).contains("15 rows"));
    assert!(refused(Manner { capacity: Some(usize::MAX / 2), ..Manner::default() }).contains("address"));
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
