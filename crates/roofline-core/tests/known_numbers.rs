//! Published and hand-derived numbers, with the derivation beside each.
//!
//! Many circulate in text books and READMEs with element bits only; those use [`Sizes::Nominal`]. The devices here are
//! bandwidths and peaks as the numbers were published with, not entries of the registry.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::near;
use roofline_core::{
    Device, Dim, Graph, Machine, Math, Registry,
    device::Peaks,
    format::Sizes,
    golden::{Golden, golden},
    graph::Ffn,
    machine::Stack,
    op::{Attention, Cache},
    predict::{Bound, Estimate, Forecast, Reason, predict},
    units::{ByteRate, FlopRate},
};

fn device(gigabytes_per_second: f64, teraflops: &[(Math, f64)]) -> Device {
    let peaks = Peaks::distinct(teraflops.iter().map(|(math, peak)| (*math, FlopRate::new(peak * 1e12)))).unwrap();
    Device::custom("test", ByteRate::new(gigabytes_per_second * 1e9), peaks, None).unwrap()
}

/// 287 GB/s and the rates a GB10 is often quoted with; its FP4 figure is a sparse one.
fn desktop() -> Device {
    let peaks = [(Math::Fp32, 31.0), (Math::Fp16, 62.0), (Math::Fp8, 124.0), (Math::Int4, 248.0), (Math::Fp4, 1000.0)];
    device(287.0, &peaks)
}

/// What one constant share of the roof makes of real kernels: 200 BF16 products of vLLM on an H200 (`data/README.md`) reach
/// from 8 to 92 % of it, and neither 70 % nor the constant that fits them best comes near them all.
#[test]
fn no_constant_share_of_the_roof_fits() {
    let h200 = Registry::builtin().find("h200").unwrap().into_owned();
    let rows = include_str!("data/h200_linear_bf16.csv").lines().skip(1);
    let mut shares: Vec<f64> = rows
        .map(|row| {
            let cells: Vec<f64> = row.split(',').map(|cell| cell.parse().unwrap()).collect();
            let [m, n, k] = [0, 1, 2].map(|at| cells[at] as u64);
            let ideal = run(&Graph::gemm(m, n, k).unwrap(), "bf16", Sizes::Exact, &h200).total.ideal.time();
            ideal.micros() / cells[3]
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    let off = |constant: f64| shares.iter().map(|share| (share / constant - 1.0).abs()).sum::<f64>() / 200.0;
    let percent = |value: f64| (100.0 * value).round();
    assert_eq!((shares.len(), percent(shares[0]), percent(shares[199])), (200, 8.0, 92.0));
    assert!(shares[20] < 0.41, "{}", shares[20]);
    assert_eq!(percent(off(0.7)), 18.0);
    let best = (20..=100).map(|share| f64::from(share) / 100.0).min_by(|a, b| off(*a).total_cmp(&off(*b))).unwrap();
    assert_eq!((percent(best), percent(off(best))), (74.0, 17.0));
}

/// The intensity of a token's product is 16 over the stored bits of a weight, less what the vectors add.
#[test]
fn the_rule_of_sixteen_over_bits() {
    let graph = Graph::gemv(4096, 4096).unwrap();
    for (precision, bits) in [("bf16", 16.0), ("w8a16", 8.0), ("w4a16", 4.125), ("nvfp4a16", 4.5)] {
        let ai = run(&graph, precision, Sizes::Exact, &desktop_bf16()).total.ideal.intensity().value();
        assert!(ai < 16.0 / bits && ai > 0.99 * 16.0 / bits, "{precision}: {ai}");
    }
}

fn desktop_bf16() -> Device {
    device(273.0, &[(Math::Bf16, 125.0)])
}

fn run(graph: &Graph, precision: &str, sizes: Sizes, device: &Device) -> Forecast {
    let machine = Machine::new(device.clone(), Stack::Roofline).counting(sizes);
    predict(graph, &precision.parse().unwrap(), &machine).unwrap()
}

fn micros(n: u64, k: u64, precision: &str, device: &Device) -> f64 {
    run(&Graph::gemv(n, k).unwrap(), precision, Sizes::Nominal, device).total.ideal.time().micros()
}

/// Every number of the table that an installed program checks itself by.
#[test]
fn golden_values() {
    let all = golden().unwrap();
    assert!(all.len() > 50, "{}", all.len());
    for one in all {
        assert!(one.holds(), "{}: {} is not {} ({})", one.name, one.found, one.expected, one.why);
    }
}

/// A number that is not what it should be is no match, and neither is none.
#[test]
fn a_golden_value_can_fail() {
    let one = golden().unwrap().remove(0);
    assert!(one.holds());
    assert!(!Golden { found: one.found + 1.0, ..one.clone() }.holds());
    assert!(!Golden { found: f64::NAN, ..one }.holds());
}

#[test]
fn gemv_times() {
    let desktop = desktop();
    // bytes / 287 GB/s.
    near(micros(4096, 4096, "fp16", &desktop), 116.97, 1e-4);
    near(micros(4096, 4096, "fp8", &desktop), 58.50, 1e-4);
    near(micros(4096, 4096, "int4/int4", &desktop), 29.26, 2e-4);
    // bytes / 1 TB/s.
    let round = device(1000.0, &[(Math::Fp16, 200.0), (Math::Fp8, 400.0), (Math::Int4, 800.0)]);
    near(micros(4096, 4096, "fp16", &round), 33.57, 1e-4);
    near(micros(4096, 4096, "fp8", &round), 16.79, 1e-4);
    near(micros(4096, 4096, "int4/int4", &round), 8.40, 2e-4);
    // NVFP4 with its 4.5 bits; 33.15 and 9.51 us are with 4.53.
    let exact = |device: &Device| {
        run(&Graph::gemv(4096, 4096).unwrap(), "nvfp4", Sizes::Exact, device).total.ideal.time().micros()
    };
    near(exact(&desktop), 9_447_688.0 / 287e3, 1e-9);
    near(exact(&desktop), 33.15 * 4.5 / 4.53125, 1e-3);
}

#[test]
fn ridges() {
    let ridge = |device: &Device, math| device.critical_intensity(math).unwrap().value();
    near(ridge(&desktop(), Math::Fp16), 216.03, 1e-4);
    near(ridge(&desktop(), Math::Fp8), 432.06, 1e-4);
    near(ridge(&desktop(), Math::Int4), 864.11, 1e-4);
    near(ridge(&desktop(), Math::Fp4), 3484.32, 1e-4);
}

/// 4096^3: 2 * 4096^3 operations; A and B at the format's size, C at 16 bit.
#[test]
fn gemm() {
    let desktop = desktop();
    let graph = Graph::gemm(4096, 4096, 4096).unwrap();
    let total = |precision: &str| run(&graph, precision, Sizes::Nominal, &desktop).total.ideal;
    let cases = [
        ("fp16", 100_663_296.0, 1365.33, 2216.76, Bound::Compute),
        ("fp8", 67_108_864.0, 2048.0, 1108.38, Bound::Compute),
        ("int4/int4", 50_331_648.0, 2730.67, 554.19, Bound::Compute),
    ];
    for (precision, bytes, intensity, micros, bound) in cases {
        let total = total(precision);
        assert_eq!(total.work.flops.value(), 137_438_953_472.0);
        assert_eq!(total.work.bytes().value(), bytes);
        near(total.intensity().value(), intensity, 1e-5);
        near(total.time().micros(), micros, 1e-5);
        assert_eq!(total.bound(), bound);
    }
    // A weight-only format leaves the ceiling where it is: no gain where compute is the limit.
    near(total("w4a16").time().micros(), 2216.76, 1e-5);
    // NVFP4: 2 * 9,437,184 + 4 + 4 + 33,554,432 bytes; 52,559,872 is with 4.53 bits. The sparse FP4 figure makes the product memory-bound; the dense 500 TFLOP/s does not.
    let nvfp4 = run(&graph, "nvfp4", Sizes::Exact, &desktop).total.ideal;
    assert_eq!(nvfp4.work.bytes().value(), 52_428_808.0);
    assert_eq!(nvfp4.bound(), Bound::Memory);
    let gb10 = Registry::builtin().find("gb10").unwrap().into_owned();
    assert_eq!(run(&graph, "nvfp4", Sizes::Exact, &gb10).total.ideal.bound(), Bound::Compute);
}

fn attention(queries: u64, context: u64, kv_heads: u64, causal: bool) -> Attention {
    let dim = |value| Dim::new("test", value).unwrap();
    let (batch, heads, head_dim) = (dim(1), dim(32), dim(128));
    let (queries, context, kv_heads) = (dim(queries), dim(context), dim(kv_heads));
    Attention {
        batch,
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        queries,
        context,
        causal,
        window: None,
        cache: Cache::Separate,
    }
    .checked()
    .unwrap()
}

#[test]
fn attention_work() {
    let desktop = desktop();
    // Full, multi-head: 4 * 32 * 2048^2 * 128 operations, four tensors of 32 * 2048 * 128 halves, intensity S / 2.
    let full =
        run(&Graph::attention(attention(2048, 2048, 32, false), true), "fp16", Sizes::Exact, &desktop).total.ideal;
    assert_eq!(full.work.flops.value(), 68_719_476_736.0);
    assert_eq!(full.work.bytes().value(), 67_108_864.0);
    assert_eq!(full.intensity().value(), 1024.0);
    near(full.time().micros(), 1108.38, 1e-5);
    // A causal mask leaves S(S+1)/2 of S^2 pairs, and all the traffic.
    let causal =
        run(&Graph::attention(attention(2048, 2048, 32, true), true), "fp16", Sizes::Exact, &desktop).total.ideal;
    near(causal.work.flops / full.work.flops, 2049.0 / 4096.0, 1e-12);
    assert_eq!(causal.work.bytes(), full.work.bytes());
    // Decode with grouped queries: KV of 8 heads x 4096 x 128 halves twice, one query and one output vector per head.
    let decode = run(&Graph::attention(attention(1, 4096, 8, true), true), "fp16", Sizes::Exact, &desktop).total.ideal;
    assert_eq!(decode.work.bytes().value(), 2.0 * 8_388_608.0 + 2.0 * 8192.0);
    assert_eq!(decode.work.flops.value(), 4.0 * 32.0 * 4096.0 * 128.0);
    // An FP8 cache with a 16-bit scale per vector: 130 bytes for 128 elements.
    let fp8 =
        run(&Graph::attention(attention(1, 4096, 8, true), true), "fp16/fp16/fp8", Sizes::Exact, &desktop).total.ideal;
    assert_eq!(fp8.work.bytes().value(), 2.0 * 8.0 * 4096.0 * 130.0 + 2.0 * 8192.0);
    // Unfused: scores are written once, read and written by the softmax, read again: 4 * 32 * 2048^2 halves.
    let graph = Graph::attention(attention(2048, 2048, 32, false), false);
    let unfused = run(&graph, "fp16", Sizes::Exact, &desktop).total.ideal;
    assert_eq!((unfused.work.bytes() - full.work.bytes()).value(), 4.0 * 32.0 * 2048.0 * 2048.0 * 2.0);
    assert!(unfused.time() > full.time());
}

/// Llama-3 8B: 4096 to 14336 and back, gated.
#[test]
fn ffn_work() {
    let desktop = desktop();
    let dim = |value| Dim::new("test", value).unwrap();
    let ffn = |tokens, gated| Ffn { tokens: dim(tokens), hidden: dim(4096), inner: dim(14_336), gated };
    let total = |ffn, fused| run(&Graph::ffn(ffn, fused), "fp16", Sizes::Exact, &desktop).total.ideal;
    let weights = 3.0 * 4096.0 * 14_336.0;
    // Fused: x in, the gated product out and in, y out: 2H + 2F halves. 352,387,072 forgets to read x.
    let decode = total(ffn(1, true), true);
    assert_eq!(decode.work.flops.value(), 352_321_536.0); // 6 * H * F
    assert_eq!(decode.work.bytes().value(), 2.0 * (weights + 2.0 * 4096.0 + 2.0 * 14_336.0));
    assert_eq!(decode.work.bytes().value(), 352_387_072.0 + 2.0 * 4096.0);
    near(decode.time().micros(), 1227.83, 1e-4);
    assert_eq!(decode.bound(), Bound::Memory);
    // Unfused: x twice, gate and up out and in, their product out and in, y out: 3H + 6F.
    let unfused = total(ffn(1, true), false);
    assert_eq!(unfused.work.bytes().value(), 2.0 * (weights + 3.0 * 4096.0 + 6.0 * 14_336.0));
    // Without a gate there are two matrices, not three.
    let plain = total(ffn(1, false), true);
    assert_eq!(plain.work.flops.value(), 4.0 * 4096.0 * 14_336.0);
    assert_eq!(plain.work.bytes().value(), 2.0 * (2.0 * 4096.0 * 14_336.0 + 2.0 * 4096.0 + 2.0 * 14_336.0));
    let plain = total(ffn(1, false), false);
    assert_eq!(plain.work.bytes().value(), 2.0 * (2.0 * 4096.0 * 14_336.0 + 2.0 * 4096.0 + 4.0 * 14_336.0));
    // Prefill of 2048 tokens is compute-bound in every kernel.
    let prefill = total(ffn(2048, true), true);
    assert_eq!(prefill.work.flops.value(), 721_554_505_728.0);
    near(prefill.time().micros(), 11_637.98, 1e-5);
    // 486,539,264 counts H + 2F per token: it forgets to read x.
    assert_eq!(prefill.work.bytes().value(), 486_539_264.0 + 2.0 * 2048.0 * 4096.0);
    // The inner activations are written in the format they are read in: 9 tokens, FP8 with 16-bit scales per row.
    let h200 = Registry::builtin().find("h200").unwrap().into_owned();
    let plain = run(&Graph::ffn(ffn(9, false), true), "fp8", Sizes::Exact, &h200).total.ideal.work.bytes().value();
    let row = |width: f64| width + 2.0;
    let weights = 14_336.0 * row(4096.0) + 4096.0 * row(14_336.0);
    assert_eq!(plain, weights + 9.0 * (row(4096.0) + 2.0 * row(14_336.0) + 2.0 * 4096.0));
}

/// PyTorch 2.11's BF16 products on an H200, cold caches, from a CUDA graph (`docs/results/h200_products.py`): none is under
/// the floor, and the floor is not far below.
#[test]
fn no_measured_product_is_faster_than_predicted() {
    let h200 = Registry::builtin().find("h200").unwrap().into_owned();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/2026-11-15-h200-torch-");
    for (phase, most) in [("decode", 1.95), ("prefill", 1.45)] {
        let text = std::fs::read_to_string(format!("{folder}{phase}.csv")).unwrap();
        let rows: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len(), 4);
        for row in rows {
            let size = |at: usize| row[at].parse::<u64>().unwrap();
            let graph = Graph::gemm(size(2), size(3), size(4)).unwrap();
            let ideal = run(&graph, row[1], Sizes::Exact, &h200).total.ideal.time().micros();
            let slower = row[5].parse::<f64>().unwrap() / ideal;
            assert!((1.0..most).contains(&slower), "{row:?} is {slower} times the ideal {ideal}");
        }
    }
}

#[test]
fn a_speed_up_says_which_ratio_it_is() {
    let h200 = Registry::builtin().find("h200").unwrap().into_owned();
    let estimate = |m: u64, precision: &str| -> Estimate {
        run(&Graph::gemm(m, 8192, 8192).unwrap(), precision, Sizes::Exact, &h200).total.ideal
    };
    let factor = |m: u64, precision: &str| estimate(m, "bf16").time() / estimate(m, precision).time();
    let reason = |m: u64, precision: &str| Reason::of(&estimate(m, precision), &estimate(m, "bf16"));
    // Decode: the ratio of the bytes. INT4 with its scales is 3.87x, not 4x.
    assert_eq!(reason(1, "w4a16"), Reason::Bytes);
    near(factor(1, "w4a16"), 16.0 / 4.125, 1e-3);
    // Prefill: the ratio of the peaks, which a weight-only format does not change.
    assert_eq!(reason(4096, "fp8"), Reason::Peak);
    near(factor(4096, "fp8"), 1978.9 / 989.4, 1e-12);
    assert_eq!(factor(4096, "w4a16"), 1.0);
    // In between BF16 still waits for memory and W4A16 no longer does.
    assert_eq!(reason(128, "w4a16"), Reason::Crossover);
}
