//! `roofline precisions`: the named precisions, in general or on a device.

use roofline_core::{
    Device, Dim, Precision,
    format::{Shape, Sizes},
    plan::Mix,
    precision::{NAMED, PrecisionSpec},
    units::FlopRate,
};
use serde::Serialize;

use super::setting::device;
use crate::{
    cli::PrecisionsArgs,
    config,
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// The table of precisions.
#[derive(Serialize)]
pub(crate) struct Precisions {
    device: Option<String>,
    precisions: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: String,
    activations: String,
    kv: String,
    output: String,
    stored_bits_per_weight: f64,
    math: Option<&'static str>,
    peak_tflops: Option<f64>,
    critical_ai: Option<f64>,
    unavailable: Option<String>,
}

pub(crate) fn precisions(args: &PrecisionsArgs) -> Result<Precisions, Failure> {
    let device = args.on.as_deref().map(|name| device(&config::registry(), name)).transpose()?;
    let named = NAMED.iter().map(|named| Listed {
        name: named.name,
        aliases: named.aliases,
        summary: named.summary,
        spec: named.precision(),
    });
    let recipes = Mix::ALL.into_iter().map(|mix| Listed {
        name: mix.name(),
        aliases: mix.aliases(),
        summary: mix.summary(),
        spec: PrecisionSpec::weights_only(mix.base()),
    });
    let precisions = named.chain(recipes).map(|listed| row(listed, device.as_ref())).collect::<Result<_, Failure>>()?;
    Ok(Precisions { device: device.map(|device| device.label()), precisions })
}

/// A name, and what it stands for: a precision, or a recipe of llama.cpp by the type of most of its tensors.
struct Listed {
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    spec: PrecisionSpec,
}

fn row(listed: Listed, device: Option<&Device>) -> Result<Row, Failure> {
    let Listed { name: own, aliases, summary, spec } = listed;
    let on_device = device.map(|device| spec.on(device).map(|precision| (device, precision)));
    let formats = spec.formats();
    let dim = Dim::new("columns", 4096)?;
    let bits = formats.weights.map_or(16.0, |weights| weights.bits_per_element(Shape::matrix(dim, dim), Sizes::Exact));
    let peak = |(device, precision): &(&Device, Precision)| device.peaks.of(precision.math).map(FlopRate::value);
    let ready = on_device.as_ref().and_then(|result| result.as_ref().ok());
    let name = |format: Option<roofline_core::Format>| format.map_or_else(|| "16 bit".to_owned(), |f| f.to_string());
    Ok(Row {
        name: own,
        aliases,
        summary,
        weights: name(formats.weights),
        activations: name(formats.activations),
        kv: name(formats.kv),
        output: name(formats.output),
        stored_bits_per_weight: bits,
        math: ready.map(|(_, precision)| precision.math.key()),
        peak_tflops: ready.and_then(peak).map(|peak| peak / 1e12),
        critical_ai: ready
            .and_then(|(device, p)| device.critical_intensity(p.math))
            .map(roofline_core::units::Intensity::value),
        unavailable: on_device.and_then(Result::err).map(|error| error.to_string()),
    })
}

impl Report for Precisions {
    const ROWS: &'static str = "precisions";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("precision", Align::Left, 0)
            .column("weights", Align::Left, 0)
            .column("activations", Align::Left, 0)
            .column("KV", Align::Left, 3)
            .column("output", Align::Left, 4)
            .column("bits/weight", Align::Right, 1)
            .column("unit", Align::Left, 0)
            .column("TFLOP/s", Align::Right, 0)
            .column("ridge", Align::Right, 2)
            .column("is", Align::Left, 5);
        for row in self.precisions.iter().filter(|row| row.unavailable.is_none()) {
            let aliases = if row.aliases.is_empty() { String::new() } else { format!(" ({})", row.aliases.join(", ")) };
            table.row([
                format!("{}{aliases}", row.name).into(),
                row.weights.as_str().into(),
                row.activations.as_str().into(),
                row.kv.as_str().into(),
                row.output.as_str().into(),
                format!("{:.3}", row.stored_bits_per_weight).into(),
                row.math.unwrap_or_default().into(),
                row.peak_tflops.map_or_else(String::new, number).into(),
                row.critical_ai.map_or_else(String::new, number).into(),
                row.summary.into(),
            ]);
        }
        let place = self.device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
        let mut sections =
            vec![Section::Heading(format!("Precisions{place}")), Section::Table(table.without_empty_columns())];
        let missing: Vec<&str> =
            self.precisions.iter().filter(|row| row.unavailable.is_some()).map(|row| row.name).collect();
        if !missing.is_empty() {
            sections.push(Section::Paragraph(format!("It has no unit for {}.", missing.join(", "))));
        }
        sections.push(Section::Paragraph(
            "16 bit is BF16 or FP16, whichever the device multiplies faster. `weights/activations/kv` says everything, \
             for instance int4-g128/bf16/fp8. Embeddings, norms, router and LM head of a model stay at 16 bit, but in \
             llama.cpp's recipes, which decide about each tensor."
                .to_owned(),
        ));
        sections
    }
}
