//! A run from anywhere: refused, or one that can be compared and fitted.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use roofline_core::{
    Machine, Registry,
    calibration::{Sample, Spread, ThinRows, fit},
    compare::{Observation, compare},
    machine::Stack,
    predict::Tier,
};
use roofline_run::Run;

fuzz_target!(|bytes: &[u8]| {
    let Ok(run) = Run::parse(bytes, Path::new("fuzz")) else { return };
    let device = Registry::builtin().find("h200_sxm").expect("a built-in device").into_owned();
    let observations: Vec<Observation> = run.measurements.iter().map(Observation::from).collect();
    let machine = Machine::new(device.clone(), Stack::Roofline);
    for tier in [Tier::Ideal, Tier::Expected] {
        if let Ok(comparison) = compare(&observations, &machine, tier) {
            assert_eq!(comparison.pairs.len(), observations.len());
        }
    }
    let samples: Vec<Sample> = run.measurements.iter().map(Sample::of).collect();
    let _ = fit(&samples, &device, "fuzz", String::new(), ThinRows::all(16), Spread::default());
});
