//! `roofline jetson validate`: matrix-vector products, theory against measurement.

use roofline_core::{Device, Graph, measurement::Subject, precision::PrecisionSpec};
use roofline_run::{
    Backend, Protocol,
    jetson::{Root, Status},
    measure,
};
use serde::Serialize;

use super::{Board, instrument, predicted};
use crate::{
    cli::ValidateArgs,
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, number},
};

/// Sides of the matrices, with the names they go by.
const SIZES: [(&str, u64); 2] = [("Small", 2048), ("Medium", 4096)];
const PRECISIONS: [&str; 2] = ["fp16", "int8"];

#[derive(Serialize)]
struct Validation {
    device: String,
    device_name: String,
    measured: bool,
    results: Vec<Row>,
    mean_error_pct: Option<f64>,
    skipped: Vec<String>,
}

#[derive(Clone, Serialize)]
struct Row {
    config: &'static str,
    #[serde(rename = "N")]
    n: u64,
    #[serde(rename = "K")]
    k: u64,
    dtype: &'static str,
    predicted_us: f64,
    measured_us: Option<f64>,
    /// |predicted - measured| over predicted.
    error_pct: Option<f64>,
    tflops: Option<f64>,
    bw_gb_s: Option<f64>,
}

/// The rows alone: the columns of a CSV that other tools read.
#[derive(Serialize)]
struct Rows<'a> {
    results: &'a [Row],
}

pub(super) fn validate(root: &Root, args: &ValidateArgs, form: Format) -> Result<(), Failure> {
    let validation = if args.predict_only {
        let board = Board::open(root, &args.board)?;
        let device = board.now().map_or(&board.device, |mode| &mode.device);
        validation(device, None)?
    } else if args.board.on.is_some() {
        let hint = "add --predict-only, or leave out --on";
        return Err(Failure::usage("a board of the registry cannot be measured from here", hint));
    } else {
        let status = Status::read(root);
        let board = status.is_jetson.then(|| Board::of(status.clone())).transpose()?;
        let scaled = board.as_ref().map(|board| board.now().map_or(&board.device, |mode| &mode.device));
        let mut backend = instrument(root, &status, scaled)?;
        let device = backend.device().clone();
        let protocol = if args.quick { Protocol::quick() } else { Protocol::default() };
        validation(&device, Some((&mut *backend, &protocol)))?
    };
    match form {
        Format::Csv => emit(&Rows { results: &validation.results }, form)?,
        form => emit(&validation, form)?,
    }
    Ok(())
}

fn validation(device: &Device, mut with: Option<(&mut dyn Backend, &Protocol)>) -> Result<Validation, Failure> {
    let (mut results, mut skipped) = (Vec::new(), Vec::new());
    for (config, side) in SIZES {
        for dtype in PRECISIONS {
            let predicted = predicted(device, side, dtype)?;
            let mut row = Row {
                config,
                n: side,
                k: side,
                dtype,
                predicted_us: predicted.micros(),
                measured_us: None,
                error_pct: None,
                tflops: None,
                bw_gb_s: None,
            };
            if let Some((backend, protocol)) = &mut with {
                let formats = dtype.parse::<PrecisionSpec>()?.on(device)?;
                let subject = Subject::new(&Graph::gemv(side, side)?.nodes[0], dtype, formats);
                match measure(&mut **backend, &subject, protocol) {
                    Ok(measured) => {
                        row.measured_us = Some(measured.time().micros());
                        row.error_pct = Some(((predicted - measured.time()) / predicted).abs() * 100.0);
                        row.tflops = Some(measured.rate().value() / 1e12);
                        row.bw_gb_s = Some(measured.bandwidth().value() / 1e9);
                    }
                    // A small board may lack the memory for one size and not for the other.
                    Err(error) => skipped.push(format!("{dtype} {side} x {side}: {error}")),
                }
            }
            results.push(row);
        }
    }
    let errors: Vec<f64> = results.iter().filter_map(|row| row.error_pct).collect();
    let measured = !errors.is_empty();
    if with.is_some() && !measured {
        let reason = skipped.join("; ");
        return Err(
            roofline_run::Error::Gpu { reason, hint: Some("`--predict-only` prints what theory says".into()) }.into()
        );
    }
    let mean_error_pct = measured.then(|| errors.iter().sum::<f64>() / errors.len() as f64);
    let (device, device_name) = (device.label(), device.name.clone());
    Ok(Validation { device, device_name, measured, results, mean_error_pct, skipped })
}

impl Report for Rows<'_> {
    const ROWS: &'static str = "results";

    fn sections(&self) -> Vec<Section> {
        Vec::new()
    }
}

impl Report for Validation {
    const ROWS: &'static str = "results";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("size", Align::Left, 0)
            .column("N x K", Align::Right, 0)
            .column("precision", Align::Left, 0)
            .column("predicted", Align::Right, 0)
            .column("measured", Align::Right, 0)
            .column("error", Align::Right, 0)
            .column("rate", Align::Right, 2)
            .column("bandwidth", Align::Right, 1);
        let or_empty = |value: Option<f64>, unit: &str| {
            value.map_or_else(String::new, |value| format!("{} {unit}", number(value)))
        };
        for row in &self.results {
            table.row([
                row.config.into(),
                format!("{} x {}", row.n, row.k).into(),
                row.dtype.into(),
                format!("{} µs", number(row.predicted_us)).into(),
                or_empty(row.measured_us, "µs").into(),
                or_empty(row.error_pct, "%").into(),
                or_empty(row.tflops, "TFLOP/s").into(),
                or_empty(row.bw_gb_s, "GB/s").into(),
            ]);
        }
        let what = if self.measured { "theory and measurement" } else { "theory only, nothing was measured" };
        let mut sections = vec![
            Section::Heading(format!("{} ({}): {what}", self.device_name, self.device)),
            Section::Table(table.without_empty_columns()),
        ];
        if let Some(mean) = self.mean_error_pct {
            sections
                .push(Section::Paragraph(format!("Mean error {} %, relative to the ideal roofline.", number(mean))));
        }
        sections.extend(self.skipped.iter().map(|skipped| Section::Paragraph(format!("Not measured: {skipped}"))));
        sections
    }
}
