//! The form of a GPU: it finds the terms that made the times, it predicts public timings it never saw, and it refuses
//! nonsense.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{h200 as device, precision, product, terms_of};
use roofline_core::{
    Dim, Math, Op, Precision, Registry,
    calibration::{
        Calibration, Family, FamilyTerms, GpuTerms, Lane, LaneTerms, Remainder, Sample, Spread, Terms, ThinRows, fit,
    },
    format::Sizes,
    op::{Attention, Cache},
    predict::Bound,
    units::{ByteRate, FlopRate, Seconds},
};

fn calibrated(samples: &[Sample]) -> Calibration {
    fit(samples, &device(), "roofline", "a test".to_owned(), ThinRows::all(16), Spread::default()).unwrap()
}

/// A machine whose terms we know: two families, two lanes each.
fn truth(from: &Calibration) -> Calibration {
    let shared = |family, launch: f64, wave| FamilyTerms {
        family,
        launch: Seconds::new(launch),
        read: ByteRate::new(4.2e12),
        write: ByteRate::new(6e12),
        sums: ByteRate::new(3e12),
        block: Seconds::new(0.4e-6),
        split: Seconds::new(2e-6),
        wave,
        throttle: 0.08,
    };
    let lane = |family, name: &str, rate: f64, stream: f64, unpack: f64| {
        let Precision { weights, math, .. } = precision(name);
        LaneTerms {
            lane: Lane { family, math, format: Some(weights), kind: None },
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
    let terms = GpuTerms {
        units: 132,
        thin_rows: ThinRows::all(16),
        families: vec![shared(Family::Thin, 2.2e-6, 0.0), shared(Family::Tiled, 3e-6, 0.3)],
        lanes: vec![
            lane(Family::Thin, "bf16", 700e12, 60e9, 0.0),
            lane(Family::Thin, "w4a16", 500e12, 40e9, 0.9e-13),
            lane(Family::Tiled, "bf16", 820e12, 180e9, 0.0),
            LaneTerms {
                step: Seconds::new(130e-9),
                output: Seconds::new(1.5e-12),
                splits: false,
                ..lane(Family::Tiled, "int8", 1500e12, 160e9, 0.0)
            },
        ],
    };
    Calibration { terms: Terms::Gpu(terms), ..from.clone() }
}

/// Products spread over four orders of magnitude, at the true times.
fn samples(truth: &Calibration, skip: usize) -> Vec<Sample> {
    let mut all = Vec::new();
    for index in skip..skip + 60 {
        let part = |power: i32| (0.5 + index as f64 / 1.2207_f64.powi(power)).fract();
        let side = |at: f64| ((896.0 * 64_f64.powf(at)) / 64.0).round() as u64 * 64;
        let (n, k) = (side(part(2)), side(part(3)));
        let thin = 16_f64.powf(part(1)).round() as u64;
        let tiled = (17.0 * 480_f64.powf(part(1))).round() as u64;
        for (m, name) in [(thin, "bf16"), (thin, "w4a16"), (tiled, "bf16"), (tiled, "int8")] {
            let (op, precision) = (product(m, n, k), precision(name));
            let time = truth.causes(&op, &precision, Sizes::Exact).unwrap().time;
            all.push(Sample { op, precision, math: op.math(&precision), time, ran: None });
        }
    }
    all
}

/// Something to copy the quality from; the terms are replaced.
fn any() -> Calibration {
    let op = |index: u64| product(1 + index % 40, 1024 + 128 * index, 2048);
    let sample = |index| Sample {
        op: op(index),
        precision: precision("bf16"),
        math: Math::Bf16,
        time: Seconds::new(1e-5),
        ran: None,
    };
    calibrated(&(0..30).map(sample).collect::<Vec<_>>())
}

#[test]
fn exact_times_give_the_terms_back() {
    let truth = truth(&any());
    let found = calibrated(&samples(&truth, 0));
    let quality = &found.quality;
    assert!(quality.mean < 0.03 && quality.p90 < 0.08, "{quality:?}");
    let close = |found: f64, truth: f64, within: f64| (found / truth - 1.0).abs() < within;
    for family in [Family::Thin, Family::Tiled] {
        let of = |calibration: &Calibration| {
            *terms_of(calibration).families.iter().find(|shared| shared.family == family).unwrap()
        };
        let (found, truth) = (of(&found), of(&truth));
        assert!(close(found.read.value(), truth.read.value(), 0.05), "{found:?}");
        // A block's own time is hard to tell from the launch where every kernel has about as many.
        assert!(close(found.launch.value(), truth.launch.value(), 0.25), "{found:?}");
    }
    let rate = |calibration: &Calibration, family, math| {
        let lanes = &terms_of(calibration).lanes;
        let found = lanes.iter().find(|terms| (terms.lane.family, terms.lane.math) == (family, math)).unwrap();
        found.rate.unwrap().value()
    };
    for math in [Math::Bf16, Math::Int8] {
        let (found, truth) = (rate(&found, Family::Tiled, math), rate(&truth, Family::Tiled, math));
        assert!(close(found, truth, 0.06), "{math}: {found:e} for {truth:e}");
    }
    // One lane has no shared sums, waits at each step and passes over its results again; the others do not.
    let lane = |math| {
        terms_of(&found).lanes.iter().find(|one| (one.lane.family, one.lane.math) == (Family::Tiled, math)).unwrap()
    };
    assert!(lane(Math::Bf16).splits && !lane(Math::Int8).splits);
    assert!(close(lane(Math::Int8).step.value(), 130e-9, 0.2), "{:e}", lane(Math::Int8).step.value());
    assert!(close(lane(Math::Int8).output.value(), 1.5e-12, 0.2), "{:e}", lane(Math::Int8).output.value());
    assert!(lane(Math::Bf16).output.value() < 0.2e-12, "{:e}", lane(Math::Bf16).output.value());
    // Shapes that neither the fit nor its held-out third saw.
    let off = |sample: &Sample| {
        let expected = found.causes(&sample.op, &sample.precision, Sizes::Exact).unwrap().time;
        (expected / sample.time - 1.0).abs()
    };
    let fresh = samples(&truth, 1000);
    let mean = fresh.iter().map(off).sum::<f64>() / fresh.len() as f64;
    assert!(mean < 0.03, "{mean}");
}

#[test]
fn waves_and_edges_are_seen() {
    let truth = truth(&any());
    let time = |m, n, k| truth.causes(&product(m, n, k), &precision("bf16"), Sizes::Exact).unwrap();
    // One row more than fits a tile of 256 costs more than the row.
    let (fits, over) = (time(256, 14336, 8192).time, time(257, 14336, 8192).time);
    assert!(over / fits > 1.02, "{}", over / fits);
    assert_eq!(time(8192, 8192, 8192).bound(), Bound::Compute);
    assert_eq!(time(1, 16384, 16384).bound(), Bound::Memory);
    assert_eq!(time(1, 256, 256).bound(), Bound::Launch);
    // Two thirds of a machine's multiprocessors stay idle with so few features: the sum is shared.
    let narrow = time(64, 896, 57344);
    assert!(narrow.time < Seconds::new(60e-6), "{}", narrow.time);
}

#[test]
fn nonsense_is_refused_and_sense_survives_its_file() {
    let calibration = any();
    let text = serde_json::to_string(&calibration).unwrap();
    let read: Calibration = serde_json::from_str(&text).unwrap();
    assert_eq!(read, calibration);
    assert!(read.checked().is_ok());
    let refused = |change: fn(&mut GpuTerms)| {
        let mut broken = calibration.clone();
        let Terms::Gpu(terms) = &mut broken.terms else { panic!("a GPU has the terms of one") };
        change(terms);
        broken.checked().is_err()
    };
    assert!(refused(|terms| terms.units = 0));
    assert!(refused(|terms| terms.families[0].launch = Seconds::new(-1e-6)));
    assert!(refused(|terms| terms.families[0].wave = 1.5));
    assert!(refused(|terms| terms.families[0].read = ByteRate::new(f64::NAN)));
    assert!(refused(|terms| terms.lanes[0].stream = ByteRate::new(0.0)));
    assert!(refused(|terms| terms.lanes[0].rate = Some(FlopRate::new(f64::INFINITY))));
    assert!(refused(|terms| terms.lanes[0].launch = Seconds::new(2.0)));
    assert!(refused(|terms| terms.lanes[0].step = Seconds::new(-1e-9)));
    assert!(refused(|terms| terms.lanes[0].output = Seconds::new(f64::NAN)));
    assert!(refused(|terms| terms.lanes[0].remainder.push(Remainder { at: [1.0; 4], log: f64::NAN })));
}

/// Files from before lanes had terms of their own are read as if those were nothing.
#[test]
fn lanes_without_their_own_terms_are_read() {
    let calibration = any();
    let mut text = serde_json::to_value(&calibration).unwrap();
    for lane in text["terms"]["lanes"].as_array_mut().unwrap() {
        let lane = lane.as_object_mut().unwrap();
        for term in ["launch_s", "step_s", "output_s", "splits"] {
            assert!(lane.remove(term).is_some(), "{term}");
        }
    }
    let read: Calibration = serde_json::from_value(text).unwrap();
    let lane = &terms_of(&read).lanes[0];
    assert_eq!([lane.launch, lane.step, lane.output], [Seconds::ZERO; 3]);
    assert!(lane.splits);
    assert!(read.checked().is_ok());
}

#[test]
fn what_ships_makes_sense() {
    for shipped in Calibration::shipped() {
        let shipped = shipped.unwrap_or_else(|error| panic!("{error}"));
        let device = Registry::builtin().find(&shipped.device).unwrap().into_owned();
        assert_eq!(Calibration::builtin(&device, &shipped.stack), Some(&shipped));
    }
    assert_eq!(Calibration::builtin(&device(), "nobody's"), None);
}

/// Numbers of a row, without its heading.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let numbers = |line: &str| line.split(',').map(|field| field.parse().unwrap()).collect();
    text.lines().skip(1).map(numbers).collect()
}

/// Times of cuBLAS through PyTorch and of FlashAttention 3, measured by somebody else (see `data/README.md`): a third of
/// the shapes is held out.
#[test]
fn public_timings_are_predicted() {
    let bf16 = precision("bf16");
    let sample =
        |op, us: f64| Sample { op, precision: bf16, math: Math::Bf16, time: Seconds::new(us * 1e-6), ran: None };
    let products = rows(include_str!("data/h200_linear_bf16.csv"));
    let products: Vec<Sample> =
        products.iter().map(|row| sample(product(row[0] as u64, row[1] as u64, row[2] as u64), row[3])).collect();
    let quality = calibrated(&products).quality;
    assert!(quality.mean < 0.08 && quality.median < 0.055 && quality.p90 < 0.18, "{quality:?}");
    assert!(quality.ideal_mean > 0.25, "{quality:?}");

    let dim = |value: f64| Dim::new("test", value as u64).unwrap();
    let decode = |row: &Vec<f64>| {
        let attention = Attention {
            batch: dim(row[0]),
            heads: dim(row[1]),
            kv_heads: dim(row[2]),
            head_dim: dim(row[3]),
            value_dim: dim(row[3]),
            queries: Dim::ONE,
            context: dim(row[4]),
            causal: true,
            window: None,
            cache: Cache::Separate,
        };
        sample(Op::Attention(attention), row[5])
    };
    let decode: Vec<Sample> = rows(include_str!("data/h200_decode_bf16.csv")).iter().map(decode).collect();
    let quality = calibrated(&decode).quality;
    assert!(quality.mean < 0.12 && quality.median < 0.08, "{quality:?}");
}
