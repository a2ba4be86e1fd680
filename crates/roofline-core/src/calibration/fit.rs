//! Fitting the terms to measurements.
//!
//! The terms that are kept are fitted to every sample. How well they predict is measured before that: terms fitted to
//! two thirds of the shapes, judged on the others.

use std::collections::BTreeMap;

use super::{
    Calibration, Quality, Spread, cpu, gpu,
    terms::{Family, Stands, Terms, ThinRows},
};
use crate::{
    Device, Error, Math, Op, Precision, Result, device::Kind, format::Sizes, hash::fnv1a, measurement::Measurement,
    predict::Estimate, units::Seconds,
};

/// One measured kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// What was computed.
    pub op: Op,
    /// Its formats.
    pub precision: Precision,
    /// The unit that multiplied. A precision names the fastest that could; a kernel may have had its reasons for another.
    pub math: Math,
    /// The median.
    pub time: Seconds,
    /// Which of the stack's kernels for products ran, where that is known.
    pub ran: Option<Family>,
}

impl Sample {
    /// What was measured, by its median.
    pub fn of(measured: &Measurement) -> Self {
        let Measurement { op, formats, kernel, .. } = measured;
        let ran = Family::of_kernel(&kernel.name);
        Self { op: *op, precision: *formats, math: kernel.math, time: measured.time(), ran }
    }
}

/// Fewest samples that say anything about so many terms.
const FEWEST: usize = 12;

/// Fits terms to `samples`. Their error is stated on shapes that were held out: a third, all precisions of a shape on one
/// side. `thin_rows` is where the stack changes kernels.
pub fn fit(
    samples: &[Sample],
    device: &Device,
    stack: &str,
    provenance: String,
    thin_rows: ThinRows,
    spread: Spread,
) -> Result<Calibration> {
    let sizes = Sizes::Exact;
    let refuse = |reason: String| Error::Calibration { device: device.key.clone(), reason };
    let known = |sample: &&Sample| {
        Family::of(&sample.op, &sample.precision, thin_rows).is_some()
            && Estimate::of(&sample.op, &sample.precision, sizes, device).is_ok()
    };
    let samples: Vec<Sample> = samples.iter().filter(known).copied().collect();
    if samples.len() < FEWEST {
        return Err(refuse(format!("{} measurements are too few: {FEWEST} is the least", samples.len())));
    }
    let held_out = held_out(&samples, thin_rows);
    let (mut unseen, mut seen): (Vec<Sample>, Vec<Sample>) =
        samples.iter().partition(|sample| held_out.contains(&shape(&sample.op)));
    let terms = search(&seen, device, thin_rows);
    // What no seen shape has a term for cannot be predicted, nor counted: a gate whose product was never seen has none.
    for samples in [&mut unseen, &mut seen] {
        samples.retain(|sample| terms.parts(&sample.op, &sample.precision, sizes, Stands::Alone).is_some());
    }
    if unseen.len() < 4 {
        return Err(refuse("too few shapes to hold some out".to_owned()));
    }
    let quality = Quality::of(&terms, &seen, &unseen, device, spread)?;
    let terms = search(&samples, device, thin_rows);
    Ok(Calibration { device: device.label(), stack: stack.to_owned(), provenance, terms, quality, gap: None })
}

/// A machine of many multiprocessors runs kernels in blocks; one whose multiprocessors are not known, or that has none,
/// has the form of a processor.
fn search(samples: &[Sample], device: &Device, thin_rows: ThinRows) -> Terms {
    let gpu = matches!(device.kind, Kind::Gpu | Kind::Soc);
    match device.units.count().filter(|units| gpu && *units > 0) {
        Some(units) => Terms::Gpu(gpu::search(samples, device, units, thin_rows)),
        None => Terms::Cpu(cpu::search(samples, device, thin_rows.native)),
    }
}

/// An operator without its precision, in words that sort.
fn shape(op: &Op) -> String {
    format!("{op:?}")
}

/// Every third shape of each family, in an order that has nothing to do with size: that of a hash.
fn held_out(samples: &[Sample], thin_rows: ThinRows) -> Vec<String> {
    let mut families: BTreeMap<Family, BTreeMap<u64, String>> = BTreeMap::new();
    for sample in samples {
        let Some(family) = Family::of_sample(sample, thin_rows) else { continue };
        let shape = shape(&sample.op);
        families.entry(family).or_default().insert(fnv1a(shape.as_bytes()), shape);
    }
    families.into_values().flat_map(|shapes| shapes.into_values().skip(1).step_by(3)).collect()
}
