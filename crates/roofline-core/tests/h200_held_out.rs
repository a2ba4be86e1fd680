//! Random kernels on an H200 that no calibration saw (`docs/results/2026-11-*-h200-held-out.csv`): what ships foretells them,
//! family by family, and a fit to the points it was made of does as well.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeMap;

use common::h200 as device;
use roofline_core::{
    Dim, Graph, Machine, Op, Precision,
    calibration::{Calibration, Family, Sample, Spread, ThinRows, fit},
    format::Sizes,
    machine::Stack,
    measurement::Measurement,
    op::{Attention, Cache, ExpertSide, Experts},
    precision::PrecisionSpec,
    units::Seconds,
};

/// Mean errors that are asked for.
const ASKED: f64 = 0.07;
/// Fewest kernels that say something.
const FEWEST: usize = 8;
/// Those families of which enough was measured to say something.
const JUDGED: [Family; 7] =
    [Family::Thin, Family::Tiled, Family::Packed, Family::Decode, Family::Prefill, Family::Chosen, Family::Grouped];

struct Kernel {
    op: Op,
    precision: Precision,
    name: String,
    time: Seconds,
}

/// The products and attentions of the file; whole prompts and single tokens, as their words do not tell chunks from windows.
fn kernels() -> Vec<Kernel> {
    // Nothing was fitted to the last one, nor was anything chosen by it.
    let files = [
        (include_str!("../../../docs/results/2026-11-17-h200-held-out.csv"), true),
        (include_str!("../../../docs/results/2026-11-18-h200-held-out.csv"), false),
        (include_str!("../../../docs/results/2026-11-20-h200-held-out.csv"), false),
    ];
    let device = device();
    let machine = Machine::new(device.clone(), Stack::Roofline);
    let kernel = |row: csv::StringRecord| {
        // A cast has a name that is no precision's.
        let precision = row[1].parse::<PrecisionSpec>().ok()?.on(&device).unwrap();
        let time = Seconds::new(row[3].parse::<f64>().unwrap() * 1e-6);
        let op = op(&row[0])?;
        // Words do not tell windows either, floors do.
        let (told, _) = machine.prediction(&op, &precision).unwrap();
        let floor = row[5].parse::<f64>().unwrap() * 1e-6;
        let same = (told.ideal.time().seconds().value() / floor - 1.0).abs() < 1e-3;
        same.then(|| Kernel { op, precision, name: row[1].to_owned(), time })
    };
    // Products have changed since the first of them was measured, attention has not.
    let attends = |row: &csv::StringRecord| row[0].starts_with("attention");
    let rows = files.into_iter().flat_map(|(text, old)| {
        let rows: Vec<csv::StringRecord> =
            csv::Reader::from_reader(text.as_bytes()).records().map(Result::unwrap).collect();
        rows.into_iter().filter(move |row| !old || attends(row))
    });
    rows.filter_map(kernel).collect()
}

/// The operator that a row names.
fn op(words: &str) -> Option<Op> {
    let numbers: Vec<u64> =
        words.split(|one: char| !one.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
    match (words.split(' ').next()?, &numbers[..]) {
        ("gemm" | "gemv", [m, n, k]) => Some(Graph::gemm(*m, *n, *k).unwrap().nodes[0].op),
        ("attention", [batch, queries, context, heads, kv_heads, width]) if *queries == 1 || queries == context => {
            let dim = |value: &u64| Dim::new("test", *value).unwrap();
            Some(Op::Attention(Attention {
                batch: dim(batch),
                heads: dim(heads),
                kv_heads: dim(kv_heads),
                head_dim: dim(width),
                value_dim: dim(width),
                queries: dim(queries),
                context: dim(context),
                causal: true,
                window: None,
                cache: Cache::Separate,
            }))
        }
        ("experts_gate_up" | "experts_down", [tokens, active, experts, n, k]) => {
            let dim = |value: &u64| Dim::new("size", *value).unwrap();
            let side = if words.starts_with("experts_down") { ExpertSide::Down } else { ExpertSide::GatedUp };
            let [tokens, active, experts, n, k] = [tokens, active, experts, n, k].map(dim);
            Some(Op::Experts(Experts { tokens, experts, active, n, k, side }))
        }
        _ => None,
    }
}

/// Mean errors by family, and by family and precision: `|predicted - measured| / measured`, with how many they are of.
fn errors(calibration: &Calibration) -> BTreeMap<(Family, String), (f64, usize)> {
    let mut sums: BTreeMap<(Family, String), (f64, usize)> = BTreeMap::new();
    for kernel in kernels() {
        let Some(causes) = calibration.causes(&kernel.op, &kernel.precision, Sizes::Exact) else { continue };
        let family = calibration.family(&kernel.op, &kernel.precision).unwrap();
        for name in [String::new(), kernel.name] {
            let (sum, count) = sums.entry((family, name)).or_default();
            *sum += (causes.time / kernel.time - 1.0).abs();
            *count += 1;
        }
    }
    sums.into_iter().map(|(group, (sum, count))| (group, (sum / count as f64, count))).collect()
}

fn judged(calibration: &Calibration) {
    let errors = errors(calibration);
    for family in JUDGED {
        let (mean, count) = errors[&(family, String::new())];
        assert!(count >= FEWEST, "{family}: only {count}");
        assert!(mean <= ASKED, "{family}: {:.1} % of {count}\n{errors:#?}", 100.0 * mean);
    }
    // No precision of many products is far off for itself, either.
    for ((family, name), (mean, count)) in &errors {
        let products = matches!(family, Family::Tiled | Family::Packed);
        assert!(!products || *count < 5 || *mean < 0.12, "{family} {name}: {:.1} % of {count}", 100.0 * mean);
    }
}

#[test]
fn what_ships_foretells_kernels_it_never_saw() {
    judged(Calibration::builtin(&device(), "roofline").unwrap());
}

/// The points that the calibration was made of, as `roofline calibrate` measured them.
fn points() -> Vec<Sample> {
    let text = include_str!("../../../docs/results/2026-11-20-h200-calibration.jsonl");
    // The first line is a header, and some say what could not be measured.
    let measured = text.lines().filter_map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        let measured = line.get_mut("measured")?.take();
        Some(serde_json::from_value::<Measurement>(measured).unwrap())
    });
    measured.map(|one| Sample::of(&one)).collect()
}

/// Of the kernels of now: which of two runs is in the points.
const ROWS: ThinRows = ThinRows::all(16).packing(256).sorting(128);

fn fitted(samples: &[Sample], rows: ThinRows) -> Calibration {
    fit(samples, &device(), "roofline", "a test".to_owned(), rows, Spread::default()).unwrap()
}

#[test]
fn the_points_say_as_much_when_they_are_fitted_again() {
    judged(&fitted(&points(), ROWS.contested(9)));
}

/// Each sixth of the shapes by the others, without a look at the kernels above: the mean error of thin products.
#[test]
fn knowing_which_kernel_ran_helps() {
    const FOLDS: usize = 6;
    let points = points();
    let mut shapes: Vec<String> = points.iter().map(|one| format!("{:?}", one.op)).collect();
    shapes.sort();
    shapes.dedup();
    let fold = |one: &Sample| shapes.binary_search(&format!("{:?}", one.op)).unwrap() % FOLDS;
    let mean = |rows: ThinRows| {
        let mut off = Vec::new();
        for at in 0..FOLDS {
            let (unseen, seen): (Vec<Sample>, Vec<Sample>) = points.iter().partition(|one| fold(one) == at);
            let found = fitted(&seen, rows);
            let thin = unseen.iter().filter(|one| found.family(&one.op, &one.precision) == Some(Family::Thin));
            let time = |one: &Sample| found.causes(&one.op, &one.precision, Sizes::Exact).map(|causes| causes.time);
            off.extend(thin.filter_map(|one| Some((time(one)? / one.time - 1.0).abs())));
        }
        println!("{rows:?}: {:.1} % of {}", 100.0 * off.iter().sum::<f64>() / off.len() as f64, off.len());
        off.iter().sum::<f64>() / off.len() as f64
    };
    let (one, both) = (mean(ROWS), mean(ROWS.contested(9)));
    assert!(both < 0.075 && both < 0.95 * one, "{one} {both}");
}
