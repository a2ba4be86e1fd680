//! The fit finds the terms that made the times, says how well it predicts what it did not see, and refuses nonsense.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::borrow::Cow;

use roofline_core::{
    Device, Dim, Graph, Machine, Math, Precision,
    calibration::{Calibration, CpuTerms, Family, Pack, Quality, Rate, Sample, Spread, Terms, ThinRows, Unpack, fit},
    compare,
    device::{Kind, Peaks},
    format::Sizes,
    machine::{Basis, Stack},
    op::{Elementwise, ElementwiseKind},
    precision::PrecisionSpec,
    predict::{Bound, Prediction, Tier},
    units::{ByteRate, FlopRate, Seconds},
};

fn device() -> Device {
    let rates = [(Math::Fp32, 300e9), (Math::Int16, 400e9), (Math::Bf16, 3e12)];
    let peaks = Peaks::distinct(rates.map(|(math, rate)| (math, FlopRate::new(rate)))).unwrap();
    let device = Device::custom("synthetic", ByteRate::new(29e9), peaks, None).unwrap();
    Device { kind: Kind::Cpu, ..device }
}

fn precision(name: &str) -> Precision {
    name.parse::<PrecisionSpec>().unwrap().on(&device()).unwrap()
}

/// A machine whose terms we know.
fn truth() -> Calibration {
    let rate = |family, math, rate| Rate { family, math, rate: FlopRate::new(rate) };
    // Few rows of whole numbers are multiplied as integers, and BF16 in FP32 vectors: not on the fastest unit there is.
    let unpack = |family, format: &str, inputs: &str, math, cost: f64| {
        let (format, inputs, cost) = (format.parse().unwrap(), inputs.parse().unwrap(), Seconds::new(cost));
        Unpack { family, format, inputs, math, cost }
    };
    let pack = |family, math, cost| Pack { family, math, cost: Seconds::new(cost) };
    let terms = CpuTerms {
        launch: Seconds::new(4e-6),
        ramp: Seconds::new(3e-6),
        read: ByteRate::new(27e9),
        write: ByteRate::new(12e9),
        overlap: 1.0,
        thin_rows: 16,
        rates: vec![
            rate(Family::Thin, Math::Fp32, 150e9),
            rate(Family::Thin, Math::Int16, 220e9),
            rate(Family::Tiled, Math::Fp32, 260e9),
            rate(Family::Tiled, Math::Bf16, 1.8e12),
        ],
        unpack: vec![
            unpack(Family::Thin, "fp32", "fp32", Math::Fp32, 1e-13),
            unpack(Family::Thin, "bf16", "bf16", Math::Fp32, 1e-12),
            unpack(Family::Thin, "int4-g128", "bf16", Math::Int16, 12e-12),
            unpack(Family::Tiled, "fp32", "fp32", Math::Fp32, 100e-12),
            unpack(Family::Tiled, "bf16", "bf16", Math::Bf16, 120e-12),
            unpack(Family::Tiled, "int4-g128", "bf16", Math::Bf16, 200e-12),
        ],
        pack: vec![
            pack(Family::Thin, Math::Fp32, 300e-12),
            pack(Family::Thin, Math::Int16, 4e-9),
            pack(Family::Tiled, Math::Fp32, 250e-12),
            pack(Family::Tiled, Math::Bf16, 400e-12),
        ],
        touch: Vec::new(),
    };
    let quality = Quality {
        fitted: 0,
        fitted_mean: 0.0,
        held_out: 0,
        mean: 0.0,
        median: 0.0,
        p90: 0.0,
        max: 0.0,
        ideal_mean: 0.0,
        ideal_median: 0.0,
        interval: 0.0,
        spread: Spread::default(),
        families: Vec::new(),
    };
    let (device, stack, provenance) = ("synthetic".to_owned(), "roofline".to_owned(), "a test".to_owned());
    Calibration { device, stack, provenance, terms: Terms::Cpu(terms), quality, gap: None }
}

fn terms_of(calibration: &Calibration) -> &CpuTerms {
    match &calibration.terms {
        Terms::Cpu(terms) => terms,
        Terms::Gpu(_) | Terms::Timed(_) => panic!("a processor has the terms of one"),
    }
}

/// A few kernels that read neither weights nor a cache, and so show what starting costs by itself.
fn norms() -> Vec<Sample> {
    let norm = |tokens: u64, name: &str| {
        let (width, vectors) = (Dim::new("width", 4096).unwrap(), Dim::ONE);
        let norm = Elementwise { kind: ElementwiseKind::Norm, tokens: u128::from(tokens), vectors, width };
        let (op, precision) = (Graph::elementwise(norm).nodes[0].op, precision(name));
        let time = truth().causes(&op, &precision, Sizes::Exact).unwrap().time;
        Sample { op, precision, math: Math::Fp32, time, ran: None }
    };
    [1, 4, 16, 64, 256, 1024].into_iter().flat_map(|tokens| ["fp32", "bf16"].map(|name| norm(tokens, name))).collect()
}

/// What the kernels of that machine multiply with.
fn unit(rows: u64, name: &str) -> Math {
    match (rows <= 16, name) {
        (true, "w4a16") => Math::Int16,
        (false, "bf16" | "w4a16") => Math::Bf16,
        _ => Math::Fp32,
    }
}

/// A grid of products with the true times, each off by up to `noise` in a fixed pattern.
fn samples(noise: f64) -> Vec<Sample> {
    let mut samples = Vec::new();
    for m in [1, 2, 4, 8, 16, 32, 64, 128, 512, 1024] {
        for (n, k) in [(1024, 1024), (2048, 1024), (4096, 4096), (14336, 4096), (4096, 14336), (512, 2048)] {
            let op = Graph::gemm(m, n, k).unwrap().nodes[0].op;
            for name in ["fp32", "bf16", "w4a16"] {
                let precision = precision(name);
                let time = truth().causes(&op, &precision, Sizes::Exact).unwrap().time;
                let wobble = 1.0 + noise * ((samples.len() * 7919 % 101) as f64 / 50.0 - 1.0);
                samples.push(Sample { op, precision, math: unit(m, name), time: time * wobble, ran: None });
            }
        }
    }
    samples.extend(norms());
    samples
}

fn fitted(noise: f64) -> Calibration {
    fit(&samples(noise), &device(), "roofline", "a test".to_owned(), ThinRows::all(16), Spread::default()).unwrap()
}

#[test]
fn exact_times_give_the_terms_back() {
    let calibration = fitted(0.0);
    let quality = &calibration.quality;
    assert!(quality.held_out >= 30 && quality.fitted > 2 * quality.held_out - 12, "{quality:?}");
    assert!(quality.mean < 0.02 && quality.max < 0.10, "{quality:?}");
    assert!(quality.ideal_mean > 0.3, "the ideal should be far off: {quality:?}");
    let close = |found: f64, truth: f64| (found / truth - 1.0).abs() < 0.05;
    let truth = truth();
    let (terms, truth) = (terms_of(&calibration), terms_of(&truth));
    assert!(close(terms.launch.value(), truth.launch.value()), "{terms:?}");
    assert!(close(terms.ramp.value(), truth.ramp.value()), "{terms:?}");
    assert!(close(terms.read.value(), truth.read.value()), "{terms:?}");
    let tiled = terms.rates.iter().find(|rate| rate.family == Family::Tiled && rate.math == Math::Fp32).unwrap();
    assert!(close(tiled.rate.value(), 260e9), "{terms:?}");
    let packing = |family, math| {
        let found = terms.pack.iter().find(|pack| (pack.family, pack.math) == (family, math));
        found.unwrap().cost.value()
    };
    assert!((packing(Family::Tiled, Math::Bf16) / 400e-12 - 1.0).abs() < 0.15, "{terms:?}");
    assert!(close(packing(Family::Thin, Math::Int16), 4e-9), "{terms:?}");
}

/// The units that kernels used are the calibration's to know: `w4a16` names BF16, the fastest there is, for any number of
/// rows, and its few rows are expected at the pace of the integers that they were measured on.
#[test]
fn a_kernel_is_expected_on_the_unit_that_it_was_measured_on() {
    let calibration = fitted(0.0);
    let precision = precision("w4a16");
    assert_eq!(precision.math, Math::Bf16);
    let terms = terms_of(&calibration);
    assert!(!terms.rates.iter().any(|rate| (rate.family, rate.math) == (Family::Thin, Math::Bf16)), "{terms:?}");
    let integers = terms.rates.iter().find(|rate| (rate.family, rate.math) == (Family::Thin, Math::Int16)).unwrap();
    assert!((integers.rate.value() / 220e9 - 1.0).abs() < 0.05, "{integers:?}");
    let op = Graph::gemm(16, 6144, 5120).unwrap().nodes[0].op;
    let time = |of: &Calibration| of.causes(&op, &precision, Sizes::Exact).unwrap().time;
    assert!((time(&calibration) / time(&truth()) - 1.0).abs() < 0.02);
    // What was never measured together has no unit: nothing is made up for it.
    let other = "int4/fp32".parse::<PrecisionSpec>().unwrap().on(&device()).unwrap();
    assert!(calibration.causes(&op, &other, Sizes::Exact).is_none());
}

/// Ceilings that were measured while somebody else held the machine are passed by the first kernel that runs undisturbed: what
/// was seen to be done can be done, and the terms follow the kernels.
#[test]
fn a_disturbed_ceiling_holds_no_fit_back() {
    let disturbed = device().scaled(0.6, 0.5).unwrap();
    let fitted =
        fit(&samples(0.0), &disturbed, "roofline", "a test".to_owned(), ThinRows::all(16), Spread::default()).unwrap();
    assert!(fitted.quality.mean < 0.04, "{:?}", fitted.quality);
    let read = terms_of(&fitted).read.value();
    assert!(read > 1.3 * disturbed.memory.bandwidth.value(), "{read:e}");
}

/// What no measurement shows is taken to be as fast as it can be, or shapes beyond the grid would pay for it.
#[test]
fn a_unit_that_is_always_hidden_is_as_fast_as_its_peak() {
    let one_or_many = |sample: &Sample| matches!(rows(&sample.op), None | Some(1 | 32..));
    let thin: Vec<Sample> = samples(0.0).into_iter().filter(one_or_many).collect();
    let calibration =
        fit(&thin, &device(), "roofline", "a test".to_owned(), ThinRows::all(16), Spread::default()).unwrap();
    for rate in terms_of(&calibration).rates.iter().filter(|rate| rate.family == Family::Thin) {
        let peak = device().peaks.of(rate.math).unwrap();
        assert!(rate.rate / peak > 0.99, "{rate:?}");
    }
}

fn rows(op: &roofline_core::Op) -> Option<u64> {
    match op {
        roofline_core::Op::Linear(linear) => Some(linear.m.get()),
        _ => None,
    }
}

/// Where a calibration covers only one side of a speed-up, the other is told by the one that it does cover, and no ratio
/// beats the speed of light.
#[test]
fn a_speedup_is_of_one_tier() {
    let mut partial = truth();
    let Terms::Cpu(terms) = &mut partial.terms else { panic!("a processor has the terms of one") };
    terms.unpack.retain(|unpack| unpack.format.to_string() != "int4-g128");
    let op = Graph::gemv(4096, 4096).unwrap().nodes[0].op;
    let observed = |name: &str| compare::Observation {
        phase: None,
        site: "gemv".to_owned(),
        precision: name.to_owned(),
        op,
        formats: precision(name),
        count: 1,
        time: truth().causes(&op, &precision(name), Sizes::Exact).unwrap().time,
        samples: 1,
        range: None,
        residency: None,
        path: None,
        kernel: None,
        warnings: Vec::new(),
        detour: roofline_core::units::Bytes::ZERO,
    };
    let both = [observed("bf16"), observed("w4a16")];
    let speedup = |calibration: &Calibration| {
        let machine = Machine::new(device(), Stack::Roofline).calibrated(Some(Cow::Owned(calibration.clone())));
        compare::compare(&both, &machine, Tier::Expected).unwrap().speedups[0].clone()
    };
    let (mixed, whole) = (speedup(&partial), speedup(&truth()));
    assert!(mixed.predicted > whole.predicted && mixed.predicted <= mixed.ideal, "{mixed:?}");
    assert!((whole.predicted / whole.measured - 1.0).abs() < 1e-9 && whole.predicted < whole.ideal, "{whole:?}");
}

/// With 10 % noise the error on unseen shapes is about the noise, and the interval covers nine of ten.
#[test]
fn noise_is_not_fitted() {
    let quality = fitted(0.10).quality;
    assert!(quality.mean < 0.09 && quality.median < 0.08, "{quality:?}");
    assert!((0.05..0.15).contains(&quality.interval), "{quality:?}");
}

#[test]
fn an_interval_surrounds_the_expected_time() {
    let calibration = fitted(0.10);
    let machine = Machine::new(device(), Stack::Roofline).calibrated(Some(Cow::Owned(calibration.clone())));
    let op = Graph::gemv(8192, 8192).unwrap().nodes[0].op;
    let (Prediction { expected, .. }, basis) = machine.prediction(&op, &precision("bf16")).unwrap();
    assert!(expected.low < expected.time && expected.time < expected.high);
    assert_eq!((expected.bound(), basis), (Bound::Memory, Basis::Calibrated));
    let tiny = Graph::gemv(16, 64).unwrap().nodes[0].op;
    assert_eq!(calibration.causes(&tiny, &precision("fp32"), Sizes::Exact).unwrap().bound(), Bound::Launch);
    // Nothing was measured in this format: what is expected is that of its neighbour, and less sure.
    assert_eq!(calibration.causes(&op, &precision("nf4"), Sizes::Exact), None);
    let (nf4, basis) = machine.prediction(&op, &precision("nf4")).unwrap();
    assert_eq!(basis, Basis::Transferred);
    assert!(nf4.expected.high / nf4.expected.time > expected.high / expected.time);
}

/// A laptop multiplies 16-bit numbers on its vectors: its neighbours are those that it has units for.
#[test]
fn a_processor_without_a_16_bit_unit_has_neighbours_too() {
    let rates = [(Math::Fp32, 300e9), (Math::Int16, 400e9)].map(|(math, rate)| (math, FlopRate::new(rate)));
    let plain = Device { peaks: Peaks::distinct(rates).unwrap(), ..device() };
    let machine = Machine::new(plain.clone(), Stack::Roofline).calibrated(Some(Cow::Owned(truth())));
    let op = Graph::gemv(8192, 8192).unwrap().nodes[0].op;
    let nf4 = "nf4".parse::<PrecisionSpec>().unwrap().on(&plain).unwrap();
    assert_eq!(truth().causes(&op, &nf4, Sizes::Exact), None);
    assert_eq!(machine.prediction(&op, &nf4).unwrap().1, Basis::Transferred);
}

#[test]
fn a_calibration_survives_its_file() {
    let calibration = fitted(0.05);
    let text = serde_json::to_string(&calibration).unwrap();
    assert_eq!(serde_json::from_str::<Calibration>(&text).unwrap(), calibration);
    // One from before errors were kept by family is read as it is.
    let mut old: serde_json::Value = serde_json::from_str(&text).unwrap();
    old["quality"].as_object_mut().unwrap().remove("families").unwrap();
    let old: Calibration = serde_json::from_value(old).unwrap();
    assert_eq!(old.terms, calibration.terms);
    assert!(old.quality.families.is_empty() && old.checked().is_ok());
}

#[test]
fn too_little_is_refused() {
    let some = &samples(0.0)[..6];
    let error = fit(some, &device(), "roofline", String::new(), ThinRows::all(16), Spread::default()).unwrap_err();
    assert!(error.to_string().contains("6 measurements are too few"), "{error}");
    // Many precisions of one shape leave nothing to hold out.
    let one: Vec<Sample> = std::iter::repeat_n(samples(0.0)[0], 20).collect();
    assert!(fit(&one, &device(), "roofline", String::new(), ThinRows::all(16), Spread::default()).is_err());
}
