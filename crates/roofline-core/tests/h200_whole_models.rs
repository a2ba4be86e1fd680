//! Whole passes of four models in four precisions on an H200 (`docs/results/2026-11-18-h200-passes`): what ships foretells them.

use std::collections::BTreeMap;

use roofline_core::{
    Machine, Model, Plan, Registry,
    machine::{Basis, Stack},
    model::{Lowering, Workload},
    predict::forecast,
};

/// Mean errors that are asked for, of steps and of prompts.
const ASKED: [(&str, f64); 2] = [("decode", 0.06), ("prefill", 0.10)];
/// Tokens that followed a prompt, by half of which the median step is the one after.
const GENERATED: u64 = 32;

#[test]
fn what_ships_foretells_whole_passes() {
    let device = Registry::builtin().find("h200").unwrap().into_owned();
    let machine = Machine::new(device.clone(), Stack::Roofline);
    let text = include_str!("../../../docs/results/2026-11-19-h200-whole-models.csv");
    let mut errors: BTreeMap<(String, String), Vec<f64>> = BTreeMap::new();
    for row in csv::Reader::from_reader(text.as_bytes()).records().map(Result::unwrap) {
        let number = |at: usize| row[at].parse::<u64>().unwrap();
        let (name, precision, phase) = (&row[0], &row[1], &row[4]);
        let (batch, prompt, measured) = (number(2), number(3), row[5].parse::<f64>().unwrap() * 1e-6);
        let model = Model::find(name).unwrap();
        let assignment = precision.parse::<Plan>().unwrap().on(&device, Some(&model.anatomy)).unwrap();
        let workload = match phase {
            "prefill" => Workload::prefill(batch, prompt),
            _ => Workload::decode(batch, prompt + GENERATED / 2),
        };
        let told =
            forecast(&model.graph(workload.unwrap(), Lowering::default()).unwrap(), &assignment, &machine).unwrap();
        assert_eq!(told.basis, Basis::Calibrated, "{name} {precision}");
        let off = (told.total.expected.time.seconds().value() / measured - 1.0).abs();
        // 32 sequences in FP8 were a fifth too fast while their products were taken for our own kernels' instead of the library's.
        assert!(off < 0.16, "{name} {precision} {phase}, {batch} of {prompt}: {:.1} %", 100.0 * off);
        for group in ["all", precision] {
            errors.entry((phase.to_owned(), group.to_owned())).or_default().push(off);
        }
    }
    assert_eq!(errors.len(), 2 * 5, "both phases of four precisions, and of all");
    for ((phase, group), all) in &errors {
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let (_, asked) = ASKED.iter().find(|(name, _)| name == phase).unwrap();
        println!("{phase} {group}: {:.1} % of {}", 100.0 * mean, all.len());
        assert!(all.len() >= 12 && mean <= *asked, "{phase} {group}: {:.1} % of {}", 100.0 * mean, all.len());
    }
}
