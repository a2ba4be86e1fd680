//! A calibration as it is told: its terms one by one.

use roofline_core::{
    Device,
    calibration::{Beside, Calibration, CpuTerms, Gap, GpuTerms, KernelTerms, Lane, LaneTerms, Terms},
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Note;

/// A calibration, for reading.
#[derive(Serialize, JsonSchema)]
pub struct Calibrated {
    #[serde(flatten)]
    pub calibration: Calibration,
    pub device_name: String,
    /// The terms as a list, for tables.
    pub rows: Vec<Term>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A term, with its unit and what it means.
#[derive(Serialize, JsonSchema)]
pub struct Term {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
    pub meaning: &'static str,
}

impl Calibrated {
    pub(crate) fn new(calibration: Calibration, device: &Device) -> Self {
        let rows = match &calibration.terms {
            Terms::Cpu(terms) => cpu(terms),
            Terms::Gpu(terms) => {
                let gap = calibration.gap.as_ref();
                let prompts = gap.and_then(|gap| gap.prompts.as_ref()).map(beside);
                gpu(terms).into_iter().chain(gap.map(between)).chain(prompts).collect()
            }
            Terms::Timed(terms) => terms.kernels.iter().flat_map(timed_kernel).collect(),
        };
        Self { calibration, device_name: device.name.clone(), rows, notes: Vec::new() }
    }
}

fn term(name: impl Into<String>, value: f64, unit: &'static str, meaning: &'static str) -> Term {
    Term { name: name.into(), value, unit, meaning }
}

fn cpu(terms: &CpuTerms) -> Vec<Term> {
    let mut rows = vec![
        term("launch", terms.launch.micros(), "us", "per call: starting all cores, waiting for the last"),
        term(
            "ramp",
            terms.ramp.micros(),
            "us",
            "where weights or a cache are read: a second stage, filling memory's pipes",
        ),
        term("read", terms.read.value() / 1e9, "GB/s", "what reading from memory reaches"),
        term("write", terms.write.value() / 1e9, "GB/s", "what results cost, written and waited for"),
        term("overlap", terms.overlap, "", "share of the shorter of memory and compute that is hidden"),
    ];
    rows.extend(terms.rates.iter().map(|rate| {
        let name = format!("{} {}", rate.family, rate.math);
        term(name, rate.rate.value() / 1e9, "GFLOP/s", "rate reached")
    }));
    rows.extend(terms.unpack.iter().map(|unpack| {
        let name = format!("{} {}/{} on {}", unpack.family, unpack.format, unpack.inputs, unpack.math);
        term(name, unpack.cost.value() * 1e12, "ps/element", "widening or packing what is stored")
    }));
    rows.extend(terms.pack.iter().map(|pack| {
        let name = format!("{} x on {}", pack.family, pack.math);
        term(name, pack.cost.value() * 1e12, "ps/element", "laying out rows of x")
    }));
    rows.extend(terms.touch.iter().map(|touch| {
        let name = format!("{} {}", touch.kind.site(), touch.format);
        term(name, touch.cost.value() * 1e12, "ps/element", "the kernel's own work")
    }));
    rows
}

fn gpu(terms: &GpuTerms) -> Vec<Term> {
    let mut rows = Vec::new();
    for shared in &terms.families {
        let name = |of: &str| format!("{}: {of}", shared.family);
        rows.extend([
            term(name("launch"), shared.launch.micros(), "us", "per call: starting, filling, draining"),
            term(name("read"), shared.read.value() / 1e9, "GB/s", "what reading from memory reaches"),
            term(name("write"), shared.write.value() / 1e9, "GB/s", "what results are written at"),
            term(name("sums"), shared.sums.value() / 1e9, "GB/s", "what partial sums are left and added up at"),
            term(name("block"), shared.block.micros(), "us", "per block on a multiprocessor"),
            term(name("split"), shared.split.micros(), "us", "adding the parts where blocks share a sum"),
            term(name("wave"), shared.wave, "", "share of a wave that is waited for though not full"),
            term(name("throttle"), shared.throttle, "", "slower by this share after a millisecond of work"),
        ]);
        for lane in terms.lanes.iter().filter(|lane| lane.lane.family == shared.family) {
            let name = |of: &str| format!("{}: {of}", words(&lane.lane));
            if let Some(rate) = lane.rate {
                rows.push(term(name("rate"), rate.value() / 1e12, "TFLOP/s", "what its blocks reach together"));
            }
            rows.push(term(name("stream"), lane.stream.value() / 1e9, "GB/s", "what one multiprocessor takes in"));
            if lane.unpack.value() > 0.0 {
                let cost = lane.unpack.value() * 1e15;
                rows.push(term(name("unpack"), cost, "fs/element", "widening what is stored, all together"));
            }
            rows.extend(lane.wave.filter(|wave| (wave - shared.wave).abs() >= 0.01).map(|wave| {
                term(name("wave"), wave, "", "share of a wave that is waited for, where it is not the family's")
            }));
            rows.extend(own(lane).into_iter().map(|(of, value, unit, meaning)| term(name(of), value, unit, meaning)));
        }
    }
    rows
}

fn between(gap: &Gap) -> Term {
    let meaning = "what every kernel of a pass takes longer than alone; below zero where the next begins earlier";
    term("pass: gap", gap.kernel.micros(), "us", meaning)
}

fn beside(prompts: &Beside) -> Term {
    let meaning = "what element-wise work moves beside products of many rows";
    term("pass: element-wise", prompts.rate.value() / 1e9, "GB/s", meaning)
}

/// What a lane has and others do without, where it shows.
fn own(lane: &LaneTerms) -> Vec<(&'static str, f64, &'static str, &'static str)> {
    let (launch, step, output) = (lane.launch.micros(), lane.step.value() * 1e9, lane.output.value() * 1e15);
    let mut all = Vec::new();
    if launch >= 0.01 {
        all.push(("extra launch", launch, "us", "per call, on top of the family's"));
    }
    if step >= 1.0 {
        all.push(("step", step, "ns", "what a block waits for per 64 of its sum"));
    }
    if output >= 10.0 {
        all.push(("output", output, "fs/element", "what is done to a result after its sum, all together"));
    }
    if !lane.splits {
        all.push(("shared sums", 0.0, "", "its blocks never share a sum"));
    }
    all
}

/// A lane in words: what runs on which unit from which format.
fn words(lane: &Lane) -> String {
    let format = lane.format.map_or_else(String::new, |format| format!(" from {format}"));
    match lane.kind {
        Some(kind) => format!("{} {}", lane.family, kind.site()),
        None => format!("{} {}{format}", lane.family, lane.math),
    }
}

/// The terms of a kernel that somebody timed.
pub(super) fn timed_kernel(kernel: &KernelTerms) -> Vec<Term> {
    let row = |(spec, value): (&'static roofline_core::calibration::TermSpec, f64)| {
        let (value, unit) = match spec.unit {
            "s" => (value * 1e6, "us"),
            "B/s" => (value / 1e9, "GB/s"),
            "FLOP/s" => (value / 1e12, "TFLOP/s"),
            "B" => (value / 1e6, "MB"),
            unit => (value, unit),
        };
        term(format!("{} {}: {}", kernel.op, kernel.dtype, spec.name), value, unit, spec.meaning)
    };
    kernel.terms.present().map(row).collect()
}
