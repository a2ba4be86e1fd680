//! Packed products of more than few rows, and attention over prompts: what was measured is predicted, what made times is
//! found again, and more work never takes less time.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::borrow::Cow;

use common::{h200 as device, precision, product, terms_of};
use proptest::prelude::*;
use roofline_core::{
    Dim, Graph, Machine, Model, Op, Plan, Precision,
    calibration::{
        Calibration, Family, FamilyQuality, FamilyTerms, GpuTerms, Lane, LaneTerms, Sample, Spread, Terms, ThinRows,
        fit,
    },
    format::Sizes,
    graph::Ffn,
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    op::{Attention, Cache},
    predict::forecast,
    units::{ByteRate, FlopRate, Seconds},
};

const ROWS: ThinRows = ThinRows::all(16).packing(256);

fn attention(batch: u64, heads: u64, width: u64, queries: u64, context: u64) -> Op {
    let dim = |value| Dim::new("test", value).unwrap();
    Op::Attention(Attention {
        batch: dim(batch),
        heads: dim(heads),
        kv_heads: dim(heads / 4),
        head_dim: dim(width),
        value_dim: dim(width),
        queries: dim(queries),
        context: dim(context),
        causal: true,
        window: None,
        cache: Cache::Separate,
    })
}

fn sample(op: Op, precision: Precision, time: Seconds) -> Sample {
    Sample { op, precision, math: op.math(&precision), time, ran: None }
}

fn calibrated(samples: &[Sample]) -> Calibration {
    fit(samples, &device(), "roofline", "a test".to_owned(), ROWS, Spread::default()).unwrap()
}

fn held_out(calibration: &Calibration, family: Family) -> FamilyQuality {
    *calibration.quality.families.iter().find(|quality| quality.family == family).unwrap()
}

/// Products of our own kernels on an H200 (`docs/results/2026-11-17-h200-quantized-products.md`): six shapes of weights, four
/// formats. A third of the shapes is held out, and with so few that is often all there is of a number of rows.
#[test]
fn measured_products_are_predicted() {
    let text = include_str!("../../../docs/results/2026-11-17-h200-quantized-products.csv");
    let read = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let [m, n, k] = [0, 1, 2].map(|at: usize| fields[at].parse::<u64>().unwrap());
        sample(product(m, n, k), precision(fields[3]), Seconds::new(fields[4].parse::<f64>().unwrap() * 1e-6))
    };
    let found = calibrated(&text.lines().skip(1).map(read).collect::<Vec<_>>());
    let quality = held_out(&found, Family::Packed);
    assert!(quality.held_out > 35 && quality.mean < 0.05 && quality.median < 0.04, "{quality:?}");
    assert!(found.quality.ideal_mean > 0.3, "{:?}", found.quality);
    // 256 rows of FP8 times FP8 are still ours, 1024 the library's.
    let family = |m| found.family(&product(m, 8192, 8192), &precision("fp8"));
    assert_eq!([16, 256, 1024].map(family), [Family::Thin, Family::Packed, Family::Tiled].map(Some));
    assert_eq!(found.family(&product(1024, 8192, 8192), &precision("w4a16")), Some(Family::Packed));
    // Its file says where kernels change.
    let again: Calibration = toml::from_str(&toml::to_string(&found).unwrap()).unwrap();
    assert_eq!(again.checked().unwrap(), found);
}

/// A machine whose terms we know.
fn truth() -> Calibration {
    static ONCE: std::sync::LazyLock<Calibration> = std::sync::LazyLock::new(made);
    ONCE.clone()
}

fn made() -> Calibration {
    let any = |index: u64| sample(product(17 + index, 1024 + 128 * index, 2048), precision("bf16"), Seconds::new(1e-5));
    let any = calibrated(&(0..30).map(any).collect::<Vec<_>>());
    let shared = |family, launch: f64, wave| FamilyTerms {
        family,
        launch: Seconds::new(launch),
        read: ByteRate::new(4.1e12),
        write: ByteRate::new(3e12),
        sums: ByteRate::new(3e12),
        block: Seconds::new(1e-6),
        split: Seconds::new(1.5e-6),
        wave,
        throttle: 0.1,
    };
    let lane = |family, name: &str, rate: f64, stream: f64, unpack: f64| {
        let Precision { weights, kv, math, .. } = precision(name);
        LaneTerms {
            lane: Lane { family, math, format: Some(if family == Family::Packed { weights } else { kv }), kind: None },
            rate: Some(FlopRate::new(rate)),
            stream: ByteRate::new(stream),
            unpack: Seconds::new(unpack),
            launch: Seconds::ZERO,
            step: Seconds::ZERO,
            output: Seconds::ZERO,
            wave: None,
            splits: true,
            remainder: Vec::new(),
        }
    };
    let prompt =
        LaneTerms { step: Seconds::new(0.4e-6), splits: false, ..lane(Family::Prefill, "bf16", 700e12, 400e9, 0.0) };
    let terms = GpuTerms {
        units: 132,
        thin_rows: ROWS,
        families: vec![shared(Family::Packed, 3.5e-6, 0.9), shared(Family::Prefill, 4e-6, 0.5)],
        lanes: vec![
            lane(Family::Packed, "w4a16", 720e12, 190e9, 0.9e-13),
            lane(Family::Packed, "w8a16", 700e12, 140e9, 0.4e-13),
            lane(Family::Packed, "fp8", 1500e12, 140e9, 0.0),
            prompt,
        ],
    };
    Calibration { terms: Terms::Gpu(terms), ..any }
}

fn time(calibration: &Calibration, op: &Op, precision: &Precision) -> Seconds {
    calibration.causes(op, precision, Sizes::Exact).unwrap().time
}

/// Shapes at their true times, spread as those of a calibration are.
fn samples(truth: &Calibration, skip: usize) -> Vec<Sample> {
    let mut all = Vec::new();
    for index in skip..skip + 40 {
        let part = |power: i32| (0.5 + index as f64 / 1.2207_f64.powi(power)).fract();
        let side = |at: f64| ((896.0 * 32_f64.powf(at)) / 128.0).round() as u64 * 128;
        let (n, k) = (side(part(2)), side(part(3)));
        let (rows, fewer) = ((17.0 * 120_f64.powf(part(1))) as u64, (17.0 * 15_f64.powf(part(1))) as u64);
        for (m, name) in [(rows, "w4a16"), (rows, "w8a16"), (fewer, "fp8")] {
            let (op, precision) = (product(m, n, k), precision(name));
            all.push(sample(op, precision, time(truth, &op, &precision)));
        }
        let context = ((128.0 * 64_f64.powf(part(1))) as u64).next_multiple_of(16);
        let queries = if part(2) < 0.3 { (context / 4).max(2) } else { context };
        let heads = [8, 16, 32, 64][(part(3) * 4.0) as usize];
        let op = attention(1, heads, if part(4) < 0.3 { 64 } else { 128 }, queries, context);
        all.push(sample(op, precision("bf16"), time(truth, &op, &precision("bf16"))));
    }
    all
}

#[test]
fn exact_times_give_the_terms_back() {
    let truth = truth();
    let found = calibrated(&samples(&truth, 0));
    for family in [Family::Packed, Family::Prefill] {
        let quality = held_out(&found, family);
        assert!(quality.mean < 0.04 && quality.p90 < 0.1, "{quality:?}");
    }
    let close = |found: f64, truth: f64, within: f64| (found / truth - 1.0).abs() < within;
    for (found, truth) in terms_of(&found).families.iter().zip(&terms_of(&truth).families) {
        assert_eq!(found.family, truth.family);
        // A block's own time and the launch are told apart only by the few kernels of many waves.
        let fixed = |terms: &FamilyTerms| terms.launch.value() + terms.block.value();
        assert!(close(fixed(found), fixed(truth), 0.25), "{found:?}");
    }
    for truth in &terms_of(&truth).lanes {
        let found = terms_of(&found).lanes.iter().find(|found| found.lane == truth.lane).unwrap();
        let rate = |terms: &LaneTerms| terms.rate.unwrap().value();
        assert!(close(rate(found), rate(truth), 0.12), "{:?}: {:e}", found.lane, rate(found));
        assert_eq!(found.unpack.value() > 0.0, truth.unpack.value() > 0.0);
    }
    // Narrow heads wait for the softmax: what they take per step is found.
    let prompt = terms_of(&found).lanes.iter().find(|lane| lane.lane.family == Family::Prefill).unwrap();
    assert!(close(prompt.step.value(), 0.4e-6, 0.2), "{:e}", prompt.step.value());
    // Shapes that neither the fit nor its held-out third saw.
    let fresh = samples(&truth, 1000);
    let off = |one: &Sample| (time(&found, &one.op, &one.precision) / one.time - 1.0).abs();
    let mean = fresh.iter().map(off).sum::<f64>() / fresh.len() as f64;
    assert!(mean < 0.04, "{mean}");
}

/// Prompts as good kernels are known to run them (about 400 TFLOP/s at 2048 tokens, 550 at 8192, heads of 64 at two thirds of
/// that), with 3 % of noise. The kernel that is played has steps of 128 keys, and its softmax is half hidden: no form of ours.
#[test]
fn plausible_prompts_are_predicted() {
    let bf16 = precision("bf16");
    let one = |index: u32| {
        let part = |power: i32| (0.5 + f64::from(index) / 1.1673_f64.powi(power)).fract();
        let context = ((128.0 * 64_f64.powf(part(1))) as u64).next_multiple_of(16);
        let queries = if part(2) < 0.3 { (context / 4).max(2) } else { context };
        let (heads, width) = ([8, 16, 32, 64][(part(3) * 4.0) as usize], if part(4) < 0.3 { 64 } else { 128 });
        let steps = |block: u64| (context - queries + 128 * (block + 1)).min(context).div_ceil(128) as f64;
        let (multiplying, softmax) = (128.0 * 128.0 * 4.0 * width as f64 * 132.0 / 720e12, 0.75e-6);
        let each = f64::max(multiplying, softmax) + 0.5 * f64::min(multiplying, softmax);
        let block = |block: u64| 3e-6 + each * steps(block);
        let all: f64 = (0..queries.div_ceil(128)).map(block).sum::<f64>() * heads as f64 / 132.0;
        let noise = 1.0 + 0.03 * (f64::from(index) * 12.9898).sin();
        let time = (4e-6 + (1.05 * all).max(block(queries.div_ceil(128) - 1))) * noise;
        sample(attention(1, heads, width, queries, context), bf16, Seconds::new(time))
    };
    let samples: Vec<Sample> = (0..36).map(one).collect();
    let found = calibrated(&samples);
    let quality = held_out(&found, Family::Prefill);
    assert!(quality.mean < 0.07, "{quality:?}");
    let rate = |context: u64| {
        let op = attention(1, 32, 128, context, context);
        op.work(&bf16, Sizes::Exact).flops.value() / time(&found, &op, &bf16).value() / 1e12
    };
    assert!(
        (360.0..470.0).contains(&rate(2048)) && (480.0..620.0).contains(&rate(8192)),
        "{} {}",
        rate(2048),
        rate(8192)
    );
}

/// The gate and the up projection as they are measured, and, where they never were, as a product of both.
#[test]
fn a_function_behind_a_product_may_have_terms_of_its_own() {
    let gated = Ffn {
        tokens: Dim::new("tokens", 512).unwrap(),
        hidden: Dim::new("hidden", 4096).unwrap(),
        inner: Dim::new("inner", 14336).unwrap(),
        gated: true,
    };
    let (op, precision) = (Graph::ffn(gated, true).nodes[0].op, precision("w4a16"));
    let mut calibration = truth();
    let plain = time(&calibration, &op, &precision);
    // Only what is written differs from the product of all 28672 features.
    let ratio = plain / time(&calibration, &product(512, 28672, 4096), &precision);
    assert!((0.9..1.0).contains(&ratio), "{ratio}");
    let Terms::Gpu(terms) = &mut calibration.terms else { panic!("a GPU has the terms of one") };
    let mut own = terms.lanes[0].clone();
    own.lane.kind = Some(roofline_core::op::ElementwiseKind::GatedActivation);
    own.output = Seconds::new(4e-12);
    terms.lanes.push(own);
    assert!(time(&calibration, &op, &precision) > plain);
    // Four gates are enough to find what follows them; two are not, and are forecast as products.
    let gate = |tokens: u64| {
        let tokens = Dim::new("tokens", tokens).unwrap();
        let op = Graph::ffn(Ffn { tokens, ..gated }, true).nodes[0].op;
        sample(op, precision, time(&calibration, &op, &precision))
    };
    let products = samples(&truth(), 0);
    let with = |tokens: &[u64]| {
        let all: Vec<Sample> = products.iter().copied().chain(tokens.iter().map(|tokens| gate(*tokens))).collect();
        let found = calibrated(&all);
        let fresh = gate(700);
        time(&found, &fresh.op, &fresh.precision) / fresh.time - 1.0
    };
    let (few, many) = (with(&[64, 1024]), with(&[64, 300, 1024, 1800]));
    assert!(many.abs() < 0.06 && few < -0.06, "{few} {many}");
}

/// Kernels for few rows and those for more, of which the faster one runs from nine rows on.
fn contested() -> Calibration {
    let mut calibration = truth();
    let Terms::Gpu(terms) = &mut calibration.terms else { panic!("a GPU has the terms of one") };
    let (mut family, mut lane) = (terms.families[0], terms.lanes[0].clone());
    (family.family, family.launch) = (Family::Thin, Seconds::new(2e-6));
    // Cheap to start, and slow at every number that it widens.
    (lane.lane.family, lane.unpack) = (Family::Thin, Seconds::new(2.5e-13));
    terms.families.insert(0, family);
    terms.lanes.insert(0, lane);
    terms.thin_rows = ROWS.contested(9);
    calibration
}

/// The same kernels where another number of rows is the border between them.
fn bordered(calibration: &Calibration, rows: ThinRows) -> Calibration {
    let Terms::Gpu(terms) = &calibration.terms else { panic!("a GPU has the terms of one") };
    Calibration { terms: Terms::Gpu(GpuTerms { thin_rows: rows, ..terms.clone() }), ..calibration.clone() }
}

#[test]
fn of_two_kernels_the_faster_one_is_foretold() {
    let (both, w4a16) = (contested(), precision("w4a16"));
    let (thin, packed) = (bordered(&both, ROWS), bordered(&both, ThinRows { widened: 8, ..ROWS }));
    let mut won = [0, 0];
    for (n, k) in [(256, 512), (1024, 1024), (4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192)] {
        let [few, many, more] = [8, 16, 17].map(|m| product(m, n, k));
        let [one, other] = [&thin, &packed].map(|kernels| time(kernels, &many, &w4a16));
        assert_eq!(time(&both, &many, &w4a16), if one < other { one } else { other });
        won[usize::from(other < one)] += 1;
        assert_eq!(time(&both, &few, &w4a16), time(&thin, &few, &w4a16));
        assert_eq!(time(&both, &more, &w4a16), time(&packed, &more, &w4a16));
    }
    assert!(won[0] > 0 && won[1] > 0, "{won:?}");
    // In a pass of one's own what stands before and behind a thin product is a part of it.
    let model = Model::find("llama-3-8b").unwrap();
    let graph = model.graph(Workload::decode(16, 512).unwrap(), Lowering::default()).unwrap();
    let assignment = "w4a16".parse::<Plan>().unwrap().on(&device(), Some(&model.anatomy)).unwrap();
    let whole = |calibration: &Calibration| {
        let machine = Machine::new(device(), Stack::Roofline).calibrated(Some(Cow::Owned(calibration.clone())));
        forecast(&graph, &assignment, &machine).unwrap().total.expected.time
    };
    assert_eq!(whole(&both), whole(&thin));
    assert_ne!(whole(&both), whole(&packed));
}

/// A measurement says of the kernel that ran what it takes, and of the other one that it takes no less.
#[test]
fn the_slower_kernel_teaches_only_that() {
    let (both, w4a16) = (contested(), precision("w4a16"));
    let (thin, packed) = (bordered(&both, ROWS), bordered(&both, ThinRows { widened: 8, ..ROWS }));
    let one = |index: u32| {
        let part = |power: i32| (0.5 + f64::from(index) / 1.2207_f64.powi(power)).fract();
        let side = |at: f64| ((256.0 * 112_f64.powf(at)) / 128.0).round() as u64 * 128;
        let op = product((1.0 + 64_f64.powf(part(1))) as u64, side(part(2)), side(part(3)));
        let slower = |one: &Calibration, other| time(one, &op, &w4a16) > time(other, &op, &w4a16);
        let ran = if slower(&thin, &packed) { Family::Packed } else { Family::Thin };
        Sample { ran: Some(ran), ..sample(op, w4a16, time(&both, &op, &w4a16)) }
    };
    let seen: Vec<Sample> = (0..90).map(one).collect();
    let rows = ROWS.contested(9);
    let found = fit(&seen, &device(), "roofline", "a test".to_owned(), rows, Spread::default()).unwrap();
    let far = |found: &Calibration| {
        let fresh = (1000..1200)
            .map(one)
            .filter(|one| matches!(one.op, Op::Linear(linear) if (9..=16).contains(&linear.m.get())));
        let off = fresh.map(|one| (time(found, &one.op, &w4a16) / one.time - 1.0).abs()).collect::<Vec<_>>();
        off.iter().sum::<f64>() / off.len() as f64
    };
    // Of one form for both kernels that is not to be had.
    let blind: Vec<Sample> = seen.iter().map(|one| Sample { ran: None, ..*one }).collect();
    let (known, unknown) = (far(&found), far(&calibrated(&blind)));
    assert!(known < 0.04 && unknown > 2.0 * known, "{known} {unknown}");
}

proptest! {
    /// More rows, or a longer prompt, take no less time, but for what sharing fields costs: with more rows there may be fields
    /// enough that blocks have nothing to add up. And nothing is below its floor.
    #[test]
    fn more_takes_longer_and_the_floor_holds(
        m in 17_u64..2048, more in 1_u64..300, n in 1_u64..200, k in 1_u64..100,
        context in 2_u64..8192, longer in 1_u64..1000, heads in 1_u64..16, name in prop::sample::select(vec!["w4a16", "w8a16"]),
    ) {
        let truth = truth();
        let (formats, bf16) = (precision(name), precision("bf16"));
        let (few, many) = (product(m, 128 * n, 128 * k), product(m + more, 128 * n, 128 * k));
        let (short, long) =
            (attention(1, 4 * heads, 128, context, context), attention(1, 4 * heads, 128, context + longer, context + longer));
        let machine = Machine::new(device(), Stack::Roofline).calibrated(Some(Cow::Owned(truth.clone())));
        // Two tiles of 256 x 128 sums that each of 132 blocks leaves at 3 TB/s, and eleven that one reads at 140 GB/s or more.
        let sharing = Seconds::new(1.5e-6 + 2.0 * 131_072.0 * 132.0 / 3e12 + 11.0 * 131_072.0 / 140e9);
        for (less, greater, formats, saved) in [(few, many, formats, sharing), (short, long, bf16, Seconds::ZERO)] {
            let (less_time, greater_time) = (time(&truth, &less, &formats), time(&truth, &greater, &formats));
            prop_assert!(greater_time + saved >= less_time * (1.0 - 1e-9), "{less:?}: {less_time} {greater_time}");
            let (told, basis) = machine.prediction(&greater, &formats).unwrap();
            prop_assert_eq!(basis, Basis::Calibrated);
            prop_assert!(told.expected.time.seconds() >= told.ideal.time().seconds());
            prop_assert!(told.expected.low.seconds() >= told.ideal.time().seconds());
        }
    }
}
