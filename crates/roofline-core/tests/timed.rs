//! Kernels of serving stacks: what ships is sound, never below its floor, and finds terms again that made its timings.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::sync::LazyLock;

use common::named as device;
use proptest::prelude::*;
use roofline_core::{
    Device, Graph, Machine, Op, Plan,
    calibration::{Calibration, Dtype, Regime, Shape, Terms, TimedKernel, TimedOp, Timing, fit_timings},
    machine::{Basis, Stack},
    op::Linear,
    precision::PrecisionSpec,
    predict,
};

const STACKS: [Stack; 3] = [Stack::Vllm, Stack::TrtLlm, Stack::Sglang];

fn shapes(op: TimedOp) -> Vec<Shape> {
    let rows = [1.0, 7.0, 33.0, 129.0, 1025.0, 16384.0];
    let sides = [32.0, 768.0, 4096.0, 65536.0];
    if op == TimedOp::Gemm {
        let pairs = sides.iter().flat_map(|n| sides.iter().map(move |k| (*n, *k)));
        return pairs.flat_map(|(n, k)| rows.map(|m| Shape::Product { m, n, k })).collect();
    }
    let decode = op == TimedOp::GenerationAttention;
    let mut all = Vec::new();
    for batch in [1.0, 64.0] {
        for tokens in [2.0, 512.0, 16384.0] {
            for (heads, kv_heads) in [(32.0, 8.0), (128.0, 1.0), (16.0, 16.0)] {
                for (head_dim, window) in [(64.0, 128.0), (128.0, 0.0), (512.0, 0.0)] {
                    let queries = if decode { 1.0 } else { tokens };
                    all.push(Shape::Attention {
                        batch,
                        queries,
                        context: tokens,
                        heads,
                        kv_heads,
                        head_dim,
                        window,
                        decode,
                    });
                }
            }
        }
    }
    all
}

/// No estimate is below the floor of its residency: bytes at five times the memory's rate where they were in the L2, and the
/// dense peak always.
#[test]
fn no_timed_kernel_is_faster_than_its_floor() {
    let mut seen = 0;
    for calibration in Calibration::shipped().map(Result::unwrap) {
        let Terms::Timed(terms) = &calibration.terms else { continue };
        let place = device(&calibration.device);
        for kernel in &terms.kernels {
            for shape in shapes(kernel.op) {
                let kernel = TimedKernel { dtype: kernel.dtype, shape };
                let (time, interval) = calibration.as_timed(&kernel, None, &place, true).unwrap();
                let (bytes, flops) = kernel.work();
                let peak = place.peaks.of(kernel.dtype.math()).unwrap().value();
                assert!(time.value() >= flops / peak * (1.0 - 1e-12), "{kernel:?} on {}", calibration.device);
                assert!(time.value() >= bytes / (5.0 * place.memory.bandwidth.value()) * (1.0 - 1e-12), "{kernel:?}");
                assert!(time.value().is_finite() && interval > 0.0);
                seen += 1;
            }
        }
    }
    assert!(seen > 5_000, "{seen}");
}

/// Every place that timed terms speak of: devices that were timed, those of their architectures, and each device by what was
/// timed on another.
static PLACES: LazyLock<Vec<(Device, Stack, Calibration)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for (key, _) in roofline_core::registry::files() {
        for stack in STACKS {
            let place = device(key);
            let own = Calibration::builtin(&place, stack.name()).cloned();
            let moved = Calibration::moved_to(&place, stack.name());
            let other = Calibration::of_another(&place, stack.name()).map(|(other, _)| other);
            all.extend([own, moved, other].into_iter().flatten().map(|terms| (place.clone(), stack, terms)));
        }
    }
    all
});

fn side(most: u32) -> impl Strategy<Value = u64> {
    (0.0..f64::from(most)).prop_map(|log| log.exp2() as u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Warm: no byte faster than from the L2, five times the memory's rate; and always the dense peak.
    #[test]
    fn no_timing_is_forecast_below_its_floor(
        at in any::<prop::sample::Index>(), kernel in any::<prop::sample::Index>(), corrected: bool,
        m in side(17), n in side(18), k in side(18), context in side(18), heads in side(7), group in side(6),
        width in prop::sample::select(vec![64.0, 128.0, 192.0, 256.0, 512.0]), window in prop::sample::select(vec![0.0, 128.0, 4096.0]),
    ) {
        let (place, _, calibration) = at.get(&PLACES);
        let Terms::Timed(terms) = &calibration.terms else { return Ok(()) };
        let of = kernel.get(&terms.kernels);
        let [m, n, k, context, heads, group] = [m, n, k, context, heads, group].map(|side| side as f64);
        let shape = match of.op {
            TimedOp::Gemm => Shape::Product { m, n, k },
            op => {
                let decode = op == TimedOp::GenerationAttention;
                let queries = if decode { 1.0 } else { m.min(context) };
                let (batch, kv_heads, heads) = (n.min(1024.0), heads, heads * group);
                Shape::Attention { batch, queries, context, heads, kv_heads, head_dim: width, window, decode }
            }
        };
        let kernel = TimedKernel { dtype: of.dtype, shape };
        let Some((time, interval)) = calibration.as_timed(&kernel, None, place, corrected) else { return Ok(()) };
        let (bytes, flops) = kernel.work();
        let peak = place.peaks.of(kernel.dtype.math()).unwrap().value();
        prop_assert!(time.value() >= flops / peak * (1.0 - 1e-12), "{kernel:?} on {}", place.key);
        prop_assert!(time.value() >= bytes / (5.0 * place.memory.bandwidth.value()) * (1.0 - 1e-12), "{kernel:?}");
        prop_assert!(time.value().is_finite() && interval > 0.0);
    }

    /// Cold, as models find their weights: no byte faster than from memory, and the dense peak.
    #[test]
    fn no_kernel_of_a_model_is_expected_below_its_floor(
        at in any::<prop::sample::Index>(), m in side(17), n in side(18), k in side(18),
        name in prop::sample::select(vec!["bf16", "fp8", "w4a16", "w8a8"]),
    ) {
        let (place, stack, _) = at.get(&PLACES);
        let Ok(precision) = name.parse::<PrecisionSpec>().unwrap().on(place) else { return Ok(()) };
        let machine = Machine::new(place.clone(), *stack);
        let op = Op::Linear(Linear::new(m, n, k).unwrap());
        let Ok((prediction, _)) = machine.prediction(&op, &precision) else { return Ok(()) };
        let expected = prediction.expected.time.seconds().value();
        let weights = precision.weights.nominal_bits();
        let bytes = n as f64 * k as f64 * f64::from(weights) / 8.0;
        prop_assert!(expected >= bytes / place.memory.bandwidth.value() * (1.0 - 1e-9));
        let peak = place.peaks.of(precision.math).unwrap().value();
        prop_assert!(expected >= 2.0 * m as f64 * n as f64 * k as f64 / peak * (1.0 - 1e-9));
    }
}

/// The contract of every calibration of public timings: twelve numbers at most, an error that was measured on other shapes, and
/// far better than the ideal roofline.
#[test]
fn shipped_terms_are_few_and_better_than_the_ideal() {
    let (mut inside, mut all) = (0.0, 0.0);
    for calibration in Calibration::shipped().map(Result::unwrap) {
        let Terms::Timed(terms) = &calibration.terms else { continue };
        assert!(calibration.provenance.contains("Apache-2.0"), "{}", calibration.provenance);
        for kernel in &terms.kernels {
            let (quality, what) = (&kernel.quality, format!("{} {} {}", calibration.device, kernel.op, kernel.dtype));
            assert!(kernel.terms.present().count() <= 12, "{what}");
            // A library that was timed seldom is known less well.
            let most = if quality.rows < 200 { 0.3 } else { 0.2 };
            assert!(quality.rows >= 40 && quality.median < most, "{what}: {}", quality.median);
            // Judged by intervals of other shapes.
            assert!((0.6..0.95).contains(&quality.coverage80), "{what}: {}", quality.coverage80);
            assert!(quality.mean < quality.ideal_mean, "{what}");
            inside += quality.coverage80 * quality.rows as f64;
            all += quality.rows as f64;
        }
    }
    let coverage = inside / all;
    assert!(all > 78_000.0 && (0.76..0.84).contains(&coverage), "{coverage} of {all}");
}

#[test]
fn a_stack_is_predicted_by_its_own_kernels_and_says_so() {
    let graph = Graph::gemm(64, 4096, 4096).unwrap();
    for stack in STACKS {
        let machine = Machine::new(device("h200"), stack);
        let forecast = predict(&graph, &"bf16".parse::<Plan>().unwrap(), &machine).unwrap();
        assert_eq!(forecast.basis, Basis::Calibrated, "{stack}");
        assert!(forecast.total.expected.time.seconds() > forecast.total.ideal.time().seconds());
    }
}

/// Nobody timed an H100: Hopper's kernels were timed on an H200, whose multiprocessors are the same and whose memory is faster.
#[test]
fn a_device_that_nobody_timed_has_the_kernels_of_its_architecture() {
    let graph = Graph::gemm(1, 16384, 16384).unwrap();
    let time = |name: &str| {
        let machine = Machine::new(device(name), Stack::Vllm);
        let forecast = predict(&graph, &"bf16".parse::<Plan>().unwrap(), &machine).unwrap();
        (forecast.total.expected.time.seconds(), forecast.basis, machine.is_moved())
    };
    let ((h200, own, at_home), (h100, moved, away)) = (time("h200"), time("h100_sxm"));
    assert_eq!((own, at_home, moved, away), (Basis::Calibrated, false, Basis::Transferred, true));
    // Bound by memory: slower by about the ratio of the bandwidths, 4.8 / 3.35.
    let ratio = h100 / h200;
    assert!((1.2..1.5).contains(&ratio), "{ratio}");
    // An architecture that nobody timed has only what its class has in common.
    assert!(Calibration::moved_to(&device("t4"), "vllm").is_none());
}

/// Timings made by known terms are predicted again by those that are found, on shapes that were held out.
#[test]
fn terms_are_found_again() {
    let place = device("h200");
    let calibration = Calibration::builtin(&place, "trtllm").unwrap();
    let timing = |shape: Shape| {
        let kernel = TimedKernel { dtype: Dtype::Bfloat16, shape };
        let (time, _) = calibration.as_timed(&kernel, None, &place, false).unwrap();
        Timing { kernel, time }
    };
    let sides = [1.0, 16.0, 64.0, 256.0, 1024.0, 4096.0];
    let mut timings = Vec::new();
    for m in sides {
        for n in [128.0, 512.0, 1024.0, 4096.0, 16384.0] {
            for k in [256.0, 512.0, 2048.0, 8192.0, 32768.0] {
                timings.push(timing(Shape::Product { m, n, k }));
            }
        }
    }
    let fit = fit_timings(&timings, &place).unwrap();
    assert!(fit.terms.quality.median < 0.03, "{:?}", fit.terms.quality);
    assert_eq!(fit.held_out.len(), timings.len());
    // The same timings give the same terms, to the last digit.
    assert_eq!(fit_timings(&timings, &place).unwrap().terms, fit.terms);
    let few = fit_timings(&timings[..12], &place).unwrap_err().to_string();
    assert!(few.contains("12 timings of gemm in bfloat16 are too few"), "{few}");
    assert_eq!(Regime::of(&timings[0].kernel.shape), Regime::Thin);
}
