//! The shipped terms against the measurements they come from.

use super::*;
use crate::{Model, Plan, Registry, model::Lowering, model::Workload};

const CSV: &str = include_str!("../../../../docs/results/2026-11-15-h200-energy.csv");

struct Sample {
    fit: bool,
    model: &'static str,
    precision: &'static str,
    math: &'static str,
    count: f64,
    seconds: f64,
    bytes: f64,
    flops: f64,
    widened: f64,
    joules: f64,
}

fn samples() -> Vec<Sample> {
    let number = |text: &str| text.parse::<f64>().unwrap();
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split(',').collect();
        assert_eq!(cells.len(), 16, "{line}");
        Sample {
            fit: cells[0] == "fit",
            model: cells[1],
            precision: cells[4],
            math: cells[6],
            count: number(cells[7]),
            seconds: number(cells[8]) * 1e-6,
            bytes: number(cells[9]),
            flops: number(cells[10]),
            widened: number(cells[11]),
            joules: number(cells[12]),
        }
    };
    CSV.lines().skip(1).map(row).collect()
}

/// Time, bytes, operations of the three units, widened weights.
fn features(sample: &Sample) -> [f64; 6] {
    let of = |math: &str| if sample.math == math { sample.flops } else { 0.0 };
    [sample.seconds, sample.bytes, of("bf16"), of("fp8"), of("int8"), sample.widened]
}

fn terms(model: &EnergyModel) -> [f64; 6] {
    let unit = |math| model.pj_per_operation[&math] * 1e-12;
    let (byte, widened) = (model.pj_per_byte * 1e-12, model.pj_per_widened_weight * 1e-12);
    [model.static_w, byte, unit(Math::Bf16), unit(Math::Fp8), unit(Math::Int8), widened]
}

fn error(sample: &Sample, terms: &[f64; 6]) -> f64 {
    features(sample).iter().zip(terms).map(|(amount, each)| amount * each).sum::<f64>() / sample.joules - 1.0
}

/// Least squares of relative errors, by Gauss elimination of the normal equations in scaled units.
fn fit(samples: &[&Sample]) -> [f64; 6] {
    const SCALE: [f64; 6] = [100.0, 1e-10, 1e-12, 1e-12, 1e-12, 1e-11];
    let mut system = [[0.0; 7]; 6];
    for sample in samples {
        let row = features(sample);
        let scaled: [f64; 6] = std::array::from_fn(|i| row[i] * SCALE[i] / sample.joules);
        for (equation, own) in system.iter_mut().zip(scaled) {
            for (cell, other) in equation.iter_mut().zip(scaled.into_iter().chain([1.0])) {
                *cell += own * other;
            }
        }
    }
    for pivot in 0..6 {
        let leading = system[pivot];
        for (_, equation) in system.iter_mut().enumerate().filter(|(row, _)| *row != pivot) {
            let factor = equation[pivot] / leading[pivot];
            for (cell, above) in equation.iter_mut().zip(leading) {
                *cell -= factor * above;
            }
        }
    }
    std::array::from_fn(|i| system[i][6] / system[i][i] * SCALE[i])
}

fn h200() -> Device {
    Registry::builtin().find("h200").unwrap().into_owned()
}

#[test]
fn the_shipped_terms_are_the_fit_of_the_measured_kernels() {
    let all = samples();
    let own: Vec<&Sample> = all.iter().filter(|sample| sample.fit).collect();
    let model = EnergyModel::builtin(&h200()).unwrap();
    for (shipped, fitted) in terms(model).iter().zip(fit(&own)) {
        assert!((shipped / fitted - 1.0).abs() < 0.005, "{shipped:e} shipped, {fitted:e} fitted");
    }
}

#[test]
fn kernels_and_steps_that_were_not_fitted_are_met() {
    let all = samples();
    let model = EnergyModel::builtin(&h200()).unwrap();
    let held: Vec<&Sample> = all.iter().filter(|sample| !sample.fit).collect();
    let mean = held.iter().map(|sample| error(sample, &terms(model)).abs()).sum::<f64>() / held.len() as f64;
    assert!((mean - model.held_out_mean_error).abs() < 0.002, "{mean}");
    // Whole decode steps of two models, the sum of their kernels.
    for name in ["llama-3-8b", "qwen2.5-7b"] {
        for precision in ["bf16", "fp8", "w4a16"] {
            let step = || held.iter().filter(|sample| sample.model == name && sample.precision == precision);
            let measured: f64 = step().map(|sample| sample.joules * sample.count).sum();
            let told: f64 =
                step().map(|sample| (1.0 + error(sample, &terms(model))) * sample.joules * sample.count).sum();
            assert!((told / measured - 1.0).abs() < 0.07, "{name} {precision}: {told} told, {measured} measured");
        }
    }
}

#[test]
fn a_pass_adds_up_its_kernels() {
    let device = h200();
    let model = Model::find("llama-3-8b").unwrap();
    let graph = model.graph(Workload::decode(1, 4096).unwrap(), Lowering::default()).unwrap();
    let plan = |name: &str| name.parse::<Plan>().unwrap().on(&device, Some(&model.anatomy)).unwrap();
    let wide = Activity::of(&graph, &plan("bf16"), Sizes::Exact);
    let narrow = Activity::of(&graph, &plan("w4a16"), Sizes::Exact);
    // 32 layers of 218,103,808 weights are widened; the head is not.
    assert_eq!((wide.widened, narrow.widened), (0.0, 32.0 * 218_103_808.0));
    assert_eq!(wide.operations, narrow.operations);
    // The step measured 2.40 J in its kernels' 3.87 ms.
    let told = energy(&graph, &plan("bf16"), Sizes::Exact, &device, Seconds::new(3.87e-3)).unwrap();
    assert!(matches!(told, Energy::Fitted(joules) if (joules.value() / 2.40 - 1.0).abs() < 0.03), "{told:?}");
    // A device without terms has its limit, a power mode its budget, and what has neither has nothing.
    let at = |key: &str| {
        energy(&graph, &plan("w4a16"), Sizes::Exact, &Registry::builtin().find(key).unwrap(), Seconds::new(1.0))
    };
    assert_eq!(at("h100_sxm"), Some(Energy::AtLimit(Joules::new(700.0))));
    assert_eq!(at("jetson_orin_nano@7W"), Some(Energy::AtLimit(Joules::new(7.0))));
}
