//! The highest rates that a saturating run reached.

use roofline_core::{Device, Op, measurement::Measurement};
use roofline_run::backend::Ceiling;
use serde::Serialize;

use crate::report::{Align, Table, number};

/// The best of what was tried.
#[derive(Serialize)]
pub(super) struct Saturation {
    product: Option<Best>,
    per_precision: Vec<Best>,
    stream: Option<Best>,
    /// What memory does when nothing is computed; empty where `devices this` has it.
    ceilings: Vec<Ceiling>,
}

#[derive(Clone, Serialize)]
struct Best {
    shape: String,
    precision: String,
    tflops: f64,
    bandwidth_gb_s: f64,
    /// Of the device's peak, or of its bandwidth.
    share: Option<f64>,
}

impl Saturation {
    /// The best of `all` that `device` did.
    pub(super) fn of(all: &[Measurement], device: &Device, ceilings: Vec<Ceiling>) -> Self {
        let stream = |measured: &&Measurement| matches!(measured.op, Op::Linear(linear) if linear.m.get() == 1);
        let best = |measured: &Measurement, share: Option<f64>| Best {
            shape: measured.op.words(&measured.site),
            precision: measured.precision.clone(),
            tflops: measured.rate().value() / 1e12,
            bandwidth_gb_s: measured.bandwidth().value() / 1e9,
            share,
        };
        let product = |measured: &Measurement| {
            let peak = device.peaks.of(measured.formats.math);
            best(measured, peak.map(|peak| measured.rate() / peak))
        };
        let fastest = |one: &&Measurement, other: &&Measurement| one.rate().value().total_cmp(&other.rate().value());
        let mut names: Vec<&str> = Vec::new();
        for measured in all {
            if !names.contains(&measured.precision.as_str()) {
                names.push(&measured.precision);
            }
        }
        let products = || all.iter().filter(|measured| !stream(measured));
        let per = |name: &str| products().filter(|measured| measured.precision == name).max_by(fastest).map(product);
        let read =
            |one: &&Measurement, other: &&Measurement| one.bandwidth().value().total_cmp(&other.bandwidth().value());
        let streamed = all.iter().filter(stream).max_by(read);
        Self {
            product: products().max_by(fastest).map(product),
            per_precision: names.into_iter().filter_map(per).collect(),
            stream: streamed.map(|measured| best(measured, Some(measured.bandwidth() / device.memory.bandwidth))),
            ceilings,
        }
    }

    pub(super) fn table(&self) -> Table {
        let mut table = Table::default()
            .column("best", Align::Left, 0)
            .column("shape", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("GFLOP/s", Align::Right, 0)
            .column("GB/s", Align::Right, 0)
            .column("of peak", Align::Right, 0);
        let named = |what: &'static str| move |best: &Best| (what, best.clone());
        let rows = self
            .product
            .iter()
            .map(named("product"))
            .chain(self.per_precision.iter().map(named("product in")))
            .chain(self.stream.iter().map(named("stream")));
        for (what, best) in rows {
            table.row([
                what.into(),
                best.shape.into(),
                best.precision.into(),
                number(best.tflops * 1e3).into(),
                number(best.bandwidth_gb_s).into(),
                best.share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0)).into(),
            ]);
        }
        for ceiling in &self.ceilings {
            let (name, time, rate) = match ceiling {
                Ceiling::Stream { name, rate, .. } => (*name, String::new(), number(rate.value() / 1e9)),
                Ceiling::Launch { name, time } => (*name, format!("{} us", number(time.micros())), String::new()),
            };
            table.row([
                "memory".into(),
                name.into(),
                time.into(),
                String::new().into(),
                rate.into(),
                String::new().into(),
            ]);
        }
        table
    }
}
