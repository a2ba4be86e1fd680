//! Products of experts on a GPU: what made times is found again, and a stack that has kernels for them is forecast by those.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::borrow::Cow;

use common::{h200 as device, precision, terms_of};
use roofline_core::{
    Dim, Graph, Machine, Model, Op, Plan, Precision,
    calibration::{Calibration, Family, FamilyTerms, Lane, LaneTerms, Sample, Spread, Terms, ThinRows, fit},
    format::Sizes,
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    op::{ElementwiseKind, ExpertSide, Experts},
    predict::forecast,
    units::{ByteRate, FlopRate, Seconds},
};

const ROWS: ThinRows = ThinRows::all(16).packing(256).contested(9).sorting(128);

fn experts(tokens: u64, [experts, active]: [u64; 2], [n, k]: [u64; 2], side: ExpertSide) -> Op {
    let dim = |value| Dim::new("test", value).unwrap();
    let [tokens, experts, active, n, k] = [tokens, experts, active, n, k].map(dim);
    Graph::experts(Experts { tokens, experts, active, n, k, side }).nodes[0].op
}

/// What ships for the H200, as if nobody had measured experts.
fn unmeasured() -> Calibration {
    let shipped = Machine::new(device(), Stack::Roofline).calibration().unwrap().clone();
    let mut terms = terms_of(&shipped).clone();
    let of_experts = |family: Family| matches!(family, Family::Chosen | Family::Grouped);
    terms.thin_rows.visits = None;
    terms.families.retain(|own| !of_experts(own.family));
    terms.lanes.retain(|own| !of_experts(own.lane.family));
    Calibration { terms: Terms::Gpu(terms), ..shipped }
}

/// What ships for the H200, with kernels of experts whose terms we know in the place of those that were measured.
fn truth() -> Calibration {
    let shipped = unmeasured();
    let mut terms = terms_of(&shipped).clone();
    let family = |family, launch| FamilyTerms {
        family,
        launch: Seconds::new(launch),
        read: ByteRate::new(4.2e12),
        write: ByteRate::new(3e12),
        sums: ByteRate::new(3e12),
        block: Seconds::new(0.3e-6),
        split: Seconds::new(1.5e-6),
        wave: 0.5,
        throttle: 0.1,
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
    let grouped = lane(Family::Grouped, "mxfp4a16", 600e12, 190e9, 0.9e-13);
    let followed = LaneTerms {
        lane: Lane { kind: Some(ElementwiseKind::GatedActivation), ..grouped.lane },
        launch: Seconds::new(9e-6),
        output: Seconds::new(2e-12),
        ..grouped.clone()
    };
    terms.thin_rows = ROWS;
    terms.families.extend([family(Family::Chosen, 5e-6), family(Family::Grouped, 8e-6)]);
    terms.lanes.extend([
        lane(Family::Chosen, "bf16", 300e12, 60e9, 0.0),
        lane(Family::Chosen, "mxfp4a16", 300e12, 60e9, 0.5e-13),
        lane(Family::Grouped, "bf16", 620e12, 200e9, 0.0),
        grouped,
        followed,
    ]);
    Calibration { terms: Terms::Gpu(terms), ..shipped }
}

fn time(calibration: &Calibration, op: &Op, precision: &Precision) -> Seconds {
    calibration.causes(op, precision, Sizes::Exact).unwrap().time
}

/// Of `rows` between those, spread as those of a calibration are.
fn samples(truth: &Calibration, from: u32, grouped: bool) -> Vec<Sample> {
    let mut all = Vec::new();
    for index in from..from + 48 {
        let part = |power: i32| (0.5 + f64::from(index) / 1.1673_f64.powi(power)).fract();
        let (count, active) = [(8, 2), (32, 4), (128, 8), (64, 6)][(part(2) * 4.0) as usize];
        let side = |at: f64| (512.0 * 8_f64.powf(at) / 128.0).round() as u64 * 128;
        let (least, most) = if grouped { (128 / active + 1, 4096) } else { (1, 128 / active) };
        let tokens = (least as f64 * (most as f64 / least as f64).powf(part(1))) as u64;
        let of = if part(4) < 0.5 { ExpertSide::GatedUp } else { ExpertSide::Down };
        let op = experts(tokens, [count, active], [side(part(3)), side(part(2))], of);
        for name in ["bf16", "mxfp4a16"] {
            let precision = precision(name);
            let (math, ran) = (op.math(&precision), None);
            all.push(Sample { op, precision, math, time: time(truth, &op, &precision), ran });
        }
    }
    all
}

#[test]
fn exact_times_give_the_terms_back() {
    let truth = truth();
    let all = [samples(&truth, 0, false), samples(&truth, 100, true)].concat();
    let found = fit(&all, &device(), "roofline", "a test".to_owned(), ROWS, Spread::default()).unwrap();
    for family in [Family::Chosen, Family::Grouped] {
        let quality = found.quality.families.iter().find(|quality| quality.family == family).unwrap();
        assert!(quality.held_out >= 20 && quality.mean < 0.05, "{quality:?}");
    }
    let lane = |of: &Calibration, lane: Lane| {
        let own = terms_of(of).lanes.iter().find(|own| own.lane == lane);
        own.unwrap_or_else(|| panic!("{lane:?}")).rate.unwrap().value()
    };
    let grouped = terms_of(&truth).lanes.iter().filter(|own| own.lane.family == Family::Grouped);
    for LaneTerms { lane: own, .. } in grouped {
        let ratio = lane(&found, *own) / lane(&truth, *own);
        assert!((0.85..1.15).contains(&ratio), "{own:?}: {ratio}");
    }
    // Shapes that neither the fit nor its held-out third saw.
    let fresh = [samples(&truth, 1000, false), samples(&truth, 1100, true)].concat();
    let off = |one: &Sample| (time(&found, &one.op, &one.precision) / one.time - 1.0).abs();
    let mean = fresh.iter().map(off).sum::<f64>() / fresh.len() as f64;
    assert!(mean < 0.05, "{mean}");
    // Its file says where kernels change.
    let again: Calibration = toml::from_str(&toml::to_string(&found).unwrap()).unwrap();
    assert_eq!(again.checked().unwrap(), found);
}

/// A calibration that says nothing of kernels for experts forecasts them by their neighbours; with terms, by those.
#[test]
fn experts_are_forecast_by_their_own_terms() {
    let machine = |calibration: &Calibration| {
        Machine::new(device(), Stack::Roofline).calibrated(Some(Cow::Owned(calibration.clone())))
    };
    let truth = truth();
    let Terms::Gpu(mut terms) = truth.terms.clone() else { panic!("a GPU has the terms of one") };
    terms.thin_rows.visits = None;
    let without = Calibration { terms: Terms::Gpu(terms), ..truth.clone() };
    let told = |calibration: &Calibration, tokens, name: &str| {
        let op = experts(tokens, [32, 4], [2880, 2880], ExpertSide::GatedUp);
        let (told, basis) = machine(calibration).prediction(&op, &precision(name)).unwrap();
        assert!(told.expected.time.seconds() >= told.ideal.time().seconds());
        (told.expected.time.seconds(), basis)
    };
    for tokens in [1, 8, 32, 33, 512, 4096] {
        for name in ["bf16", "mxfp4a16"] {
            let (own, basis) = told(&truth, tokens, name);
            assert_eq!(basis, Basis::Calibrated, "{tokens} {name}");
            let op = experts(tokens, [32, 4], [2880, 2880], ExpertSide::GatedUp);
            assert!((own / time(&truth, &op, &precision(name)) - 1.0).abs() < 1e-9);
            let (other, basis) = told(&without, tokens, name);
            assert_eq!(basis, Basis::Transferred);
            assert_ne!(own, other);
        }
    }
    // 256 tokens meet all experts, whose weights take longer to read than their rows to multiply.
    let op = experts(256, [32, 4], [2880, 2880], ExpertSide::GatedUp);
    let (met, _) = machine(&truth).prediction(&op, &precision("bf16")).unwrap();
    assert!(met.expected.memory > met.expected.compute && met.expected.memory > Seconds::new(200e-6), "{met:?}");
    // Other four-bit weights are forecast by products of experts that were measured, not by one matrix.
    let lanes = |format: &str| {
        let mut own = truth.clone();
        let Terms::Gpu(terms) = &mut own.terms else { panic!("a GPU has the terms of one") };
        let Precision { weights, .. } = precision(format);
        for lane in
            terms.lanes.iter_mut().filter(|own| own.lane.family == Family::Grouped && own.unpack > Seconds::ZERO)
        {
            lane.lane.format = Some(weights);
        }
        own
    };
    let w4a16 = lanes("w4a16");
    let (near, basis) = told(&w4a16, 512, "nvfp4a16");
    assert_eq!(basis, Basis::Transferred);
    let (own, _) = told(&w4a16, 512, "w4a16");
    assert!((0.9..1.3).contains(&(near / own)), "{near} {own}");
    // More tokens take no less time, but for where rows begin to be sorted.
    for name in ["bf16", "mxfp4a16"] {
        for (from, to) in [(1_u64, 32_u64), (33, 4096)] {
            let mut last = Seconds::ZERO;
            for tokens in (0..40).map(|at| (from as f64 * (to as f64 / from as f64).powf(f64::from(at) / 39.0)) as u64)
            {
                let (here, _) = told(&truth, tokens, name);
                assert!(here.value() >= 0.98 * last.value(), "{name} {tokens}: {here} after {last}");
                last = last.max(here);
            }
        }
    }
    // A whole model stands on what was measured.
    let model = Model::find("gpt-oss-20b").unwrap();
    let graph = model.graph(Workload::prefill(1, 512).unwrap(), Lowering::default()).unwrap();
    let assignment = "*=bf16,experts=mxfp4a16".parse::<Plan>().unwrap().on(&device(), Some(&model.anatomy)).unwrap();
    let basis = |calibration| forecast(&graph, &assignment, &machine(calibration)).unwrap().basis;
    assert_eq!([basis(&truth), basis(&without)], [Basis::Calibrated, Basis::Transferred]);
}
