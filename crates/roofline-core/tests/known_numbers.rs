//! Published and hand-derived numbers, with the derivation beside each.
//!
//! Many circulate in text books and READMEs with element bits only; those use [`Sizes::Nominal`]. The devices here are
//! bandwidths and peaks as the numbers were published with, not entries of the registry.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use roofline_core::{
    Device, Dim, Format, Graph, Math, Plan, Precision, Registry,
    device::Peaks,
    format::Sizes,
    graph::Ffn,
    op::{Attention, Cache},
    precision::PrecisionSpec,
    predict::{Bound, Estimate, Forecast, Reason, Speedup, predict},
    units::{ByteRate, FlopRate},
};

fn device(gigabytes_per_second: f64, teraflops: &[(Math, f64)]) -> Device {
    let peaks = Peaks::distinct(teraflops.iter().map(|(math, peak)| (*math, FlopRate::new(peak * 1e12)))).unwrap();
    Device::custom("test", ByteRate::new(gigabytes_per_second * 1e9), peaks, None).unwrap()
}

/// 60 GB/s with CUDA-core-class rates, as an Orin Nano is often quoted.
fn edge() -> Device {
    device(60.0, &[(Math::Fp16, 2.7), (Math::Int8, 5.5), (Math::Int4, 11.0), (Math::Fp32, 1.3)])
}

/// 287 GB/s and the rates a GB10 is often quoted with; its FP4 figure is a sparse one.
fn desktop() -> Device {
    let peaks = [(Math::Fp32, 31.0), (Math::Fp16, 62.0), (Math::Fp8, 124.0), (Math::Int4, 248.0), (Math::Fp4, 1000.0)];
    device(287.0, &peaks)
}

fn run(graph: &Graph, precision: &str, sizes: Sizes, device: &Device) -> Forecast {
    let precision = precision.parse::<PrecisionSpec>().unwrap().on(device).unwrap();
    predict(graph, &Plan::uniform(precision), sizes, device).unwrap()
}

fn micros(n: u64, k: u64, precision: &str, device: &Device) -> f64 {
    run(&Graph::gemv(n, k).unwrap(), precision, Sizes::Nominal, device).total.time().micros()
}

#[track_caller]
fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() < tolerance, "{value} is not {expected}");
}

/// Bytes of a 4096 x 4096 product with a vector, all formats at every place, 16-bit output: K*b + N*K*b + N*2.
#[test]
fn gemv_work() {
    let cases = [
        (Format::FP32, 67_133_440.0, 0.4998),
        (Format::FP16, 33_570_816.0, 0.9995),
        (Format::FP8, 16_789_504.0, 1.9985),
        (Format::INT8, 16_789_504.0, 1.9985),
        (Format::INT4_G128, 8_398_848.0, 3.9951),
        (Format::INT2_G64, 4_203_520.0, 7.9825),
    ];
    let graph = Graph::gemv(4096, 4096).unwrap();
    for (format, bytes, intensity) in cases {
        let kv = Format::FP16;
        let (weights, activations, output, math) = (format, format, Format::FP16, Math::Fp16);
        let precision = Precision { weights, activations, kv, output, query: output, math, attention: math };
        let work = graph.nodes[0].op.work(&precision, Sizes::Nominal);
        assert_eq!(work.flops.value(), 33_554_432.0); // 2 * 4096^2
        assert_eq!(work.bytes().value(), bytes, "{format}");
        near(work.intensity().value(), intensity, 1e-4);
    }
}

/// With their scales. MXFP4: 4.25 bits. NVFP4: 4.5 bits and an FP32 scale for each of the two tensors; 9,513,232 is often
/// printed, from a tensor scale per 1024 elements that the format does not have.
#[test]
fn gemv_work_with_scales() {
    let device = device(1000.0, &[(Math::Fp16, 200.0), (Math::Fp4, 800.0), (Math::Int8, 400.0)]);
    let graph = Graph::gemv(4096, 4096).unwrap();
    let bytes = |precision: &str| run(&graph, precision, Sizes::Exact, &device).total.work.bytes().value();
    assert_eq!(bytes("mxfp4"), 8_923_264.0);
    assert_eq!(bytes("nvfp4"), 9_447_680.0 + 4.0 + 4.0);
    // 4.125 bits and 16-bit activations: 8,650,752 + 8192 + 8192.
    assert_eq!(bytes("w4a16"), 8_667_136.0);
    // 4.5 bits: FP32 maxima per 64. 4.25 would be FP16 maxima, which bitsandbytes does not write.
    assert_eq!(bytes("nf4"), 9_437_184.0 + 16_384.0);
    // INT8 rows with a 16-bit scale, one activation row with one: 16,777,216 + 8192 + 4096 + 2 + 8192.
    assert_eq!(bytes("int8"), 16_797_698.0);
}

#[test]
fn gemv_times() {
    let (edge, desktop) = (edge(), desktop());
    // bytes / 60 GB/s. 280 us is often quoted for FP16: that is the INT8 value.
    near(micros(4096, 4096, "fp16", &edge), 559.51, 1e-5);
    near(micros(4096, 4096, "int8", &edge), 279.83, 2e-5);
    near(micros(4096, 4096, "int4/int4", &edge), 139.98, 2e-5);
    near(micros(2048, 2048, "fp16", &edge), 139.95, 5e-5);
    near(micros(8192, 8192, "fp16", &edge), 2237.5, 5e-5);
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
    let exact =
        |device: &Device| run(&Graph::gemv(4096, 4096).unwrap(), "nvfp4", Sizes::Exact, device).total.time().micros();
    near(exact(&desktop), 9_447_688.0 / 287e3, 1e-9);
    near(exact(&desktop), 33.15 * 4.5 / 4.53125, 1e-3);
    // From the registry: 3.35 and 4.8 TB/s.
    let registry = Registry::builtin();
    near(micros(4096, 4096, "fp16", &registry.find("h100").unwrap()), 10.02, 1e-3);
    near(micros(4096, 4096, "fp16", &registry.find("h200").unwrap()), 6.99, 1e-3);
}

#[test]
fn ridges() {
    let ridge = |device: &Device, math| device.critical_intensity(math).unwrap().value();
    near(ridge(&edge(), Math::Fp16), 45.0, 1e-9);
    near(ridge(&edge(), Math::Int8), 91.67, 1e-4);
    near(ridge(&desktop(), Math::Fp16), 216.03, 1e-4);
    near(ridge(&desktop(), Math::Fp8), 432.06, 1e-4);
    near(ridge(&desktop(), Math::Int4), 864.11, 1e-4);
    near(ridge(&desktop(), Math::Fp4), 3484.32, 1e-4);
    // The registry: dense peaks. An H100 at 590 FLOP/B is the sparse figure.
    let registry = Registry::builtin();
    for (name, expected) in [
        ("t4", 203.1),
        ("v100", 138.9),
        ("a100_40gb", 200.6),
        ("a100_80gb", 153.0),
        ("h100", 295.34),
        ("l4", 403.3),
        ("rtx4090", 163.9),
        ("h200", 206.1),
        ("b200", 2250.0 / 7.7), // 281.25 is with 8 TB/s; 562.5 the sparse figure
    ] {
        near(ridge(&registry.find(name).unwrap(), Math::Fp16), expected, 5e-4);
    }
}

/// 4096^3: 2 * 4096^3 operations; A and B at the format's size, C at 16 bit.
#[test]
fn gemm() {
    let desktop = desktop();
    let graph = Graph::gemm(4096, 4096, 4096).unwrap();
    let total = |precision: &str| run(&graph, precision, Sizes::Nominal, &desktop).total;
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
    let nvfp4 = run(&graph, "nvfp4", Sizes::Exact, &desktop).total;
    assert_eq!(nvfp4.work.bytes().value(), 52_428_808.0);
    assert_eq!(nvfp4.bound(), Bound::Memory);
    let gb10 = Registry::builtin().find("gb10").unwrap().into_owned();
    assert_eq!(run(&graph, "nvfp4", Sizes::Exact, &gb10).total.bound(), Bound::Compute);
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
    let full = run(&Graph::attention(attention(2048, 2048, 32, false), true), "fp16", Sizes::Exact, &desktop).total;
    assert_eq!(full.work.flops.value(), 68_719_476_736.0);
    assert_eq!(full.work.bytes().value(), 67_108_864.0);
    assert_eq!(full.intensity().value(), 1024.0);
    near(full.time().micros(), 1108.38, 1e-5);
    // A causal mask leaves S(S+1)/2 of S^2 pairs, and all the traffic.
    let causal = run(&Graph::attention(attention(2048, 2048, 32, true), true), "fp16", Sizes::Exact, &desktop).total;
    near(causal.work.flops / full.work.flops, 2049.0 / 4096.0, 1e-12);
    assert_eq!(causal.work.bytes(), full.work.bytes());
    // Decode with grouped queries: KV of 8 heads x 4096 x 128 halves twice, one query and one output vector per head.
    let decode = run(&Graph::attention(attention(1, 4096, 8, true), true), "fp16", Sizes::Exact, &desktop).total;
    assert_eq!(decode.work.bytes().value(), 2.0 * 8_388_608.0 + 2.0 * 8192.0);
    assert_eq!(decode.work.flops.value(), 4.0 * 32.0 * 4096.0 * 128.0);
    // An FP8 cache with a 16-bit scale per vector: 130 bytes for 128 elements.
    let fp8 = run(&Graph::attention(attention(1, 4096, 8, true), true), "fp16/fp16/fp8", Sizes::Exact, &desktop).total;
    assert_eq!(fp8.work.bytes().value(), 2.0 * 8.0 * 4096.0 * 130.0 + 2.0 * 8192.0);
    // Unfused: scores are written once, read and written by the softmax, read again: 4 * 32 * 2048^2 halves.
    let graph = Graph::attention(attention(2048, 2048, 32, false), false);
    let unfused = run(&graph, "fp16", Sizes::Exact, &desktop).total;
    assert_eq!((unfused.work.bytes() - full.work.bytes()).value(), 4.0 * 32.0 * 2048.0 * 2048.0 * 2.0);
    assert!(unfused.time() > full.time());
}

/// Llama-3 8B: 4096 to 14336 and back, gated.
#[test]
fn ffn_work() {
    let desktop = desktop();
    let dim = |value| Dim::new("test", value).unwrap();
    let ffn = |tokens, gated| Ffn { tokens: dim(tokens), hidden: dim(4096), inner: dim(14_336), gated };
    let total = |ffn, fused| run(&Graph::ffn(ffn, fused), "fp16", Sizes::Exact, &desktop).total;
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
    let plain = run(&Graph::ffn(ffn(9, false), true), "fp8", Sizes::Exact, &h200).total.work.bytes().value();
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
            let ideal = run(&graph, row[1], Sizes::Exact, &h200).total.time().micros();
            let slower = row[5].parse::<f64>().unwrap() / ideal;
            assert!((1.0..most).contains(&slower), "{row:?} is {slower} times the ideal {ideal}");
        }
    }
}

#[test]
fn a_speed_up_says_which_ratio_it_is() {
    let h200 = Registry::builtin().find("h200").unwrap().into_owned();
    let estimate = |m: u64, precision: &str| -> Estimate {
        run(&Graph::gemm(m, 8192, 8192).unwrap(), precision, Sizes::Exact, &h200).total
    };
    let speedup = |m: u64, precision: &str| Speedup::of(&estimate(m, precision), &estimate(m, "bf16"));
    // Decode: the ratio of the bytes. INT4 with its scales is 3.87x, not 4x.
    assert_eq!(speedup(1, "w4a16").reason, Reason::Bytes);
    near(speedup(1, "w4a16").factor, 16.0 / 4.125, 1e-3);
    // Prefill: the ratio of the peaks, which a weight-only format does not change.
    assert_eq!(speedup(4096, "fp8").reason, Reason::Peak);
    near(speedup(4096, "fp8").factor, 1978.9 / 989.4, 1e-12);
    assert_eq!(speedup(4096, "w4a16").factor, 1.0);
    // In between BF16 still waits for memory and W4A16 no longer does.
    assert_eq!(speedup(128, "w4a16").reason, Reason::Crossover);
}
