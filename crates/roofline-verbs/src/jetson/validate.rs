//! Matrix-vector products, theory against measurement.

use clap::Args;
use roofline_core::{Device, Graph, measurement::Subject, precision::PrecisionSpec};
use roofline_run::{
    Backend, Protocol,
    jetson::{Root, Status},
    measure,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Board, Place, instrument, predicted, unmeasurable};
use crate::{Context, Note, Result};

/// Sides of the matrices, with the names they go by.
const SIZES: [(&str, u64); 2] = [("Small", 2048), ("Medium", 4096)];
const PRECISIONS: [&str; 2] = ["fp16", "int8"];

/// Which board, and whether it is measured.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Validate {
    /// What theory says; nothing is measured
    #[arg(long)]
    pub predict_only: bool,
    /// A quarter of a second for each product
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub board: Place,
}

/// Theory and measurement of the products.
#[derive(Serialize, JsonSchema)]
pub struct Validation {
    pub device: String,
    pub device_name: String,
    pub measured: bool,
    pub results: Vec<ValidatedProduct>,
    pub mean_error_pct: Option<f64>,
    pub skipped: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// One product.
#[derive(Serialize, JsonSchema)]
pub struct ValidatedProduct {
    pub config: &'static str,
    #[serde(rename = "N")]
    pub n: u64,
    #[serde(rename = "K")]
    pub k: u64,
    pub dtype: &'static str,
    pub predicted_us: f64,
    pub measured_us: Option<f64>,
    /// |predicted - measured| over predicted.
    pub error_pct: Option<f64>,
    pub tflops: Option<f64>,
    pub bw_gb_s: Option<f64>,
}

pub(super) fn validate(context: &Context, root: &Root, asked: &Validate) -> Result<Validation> {
    if asked.predict_only {
        let board = Board::open(context, root, &asked.board)?;
        let device = board.now().map_or(&board.device, |mode| &mode.device);
        return validation(context, device, None);
    }
    asked.board.measured_here()?;
    let status = Status::read(root);
    let board = status.is_jetson.then(|| Board::of(context, status.clone())).transpose()?;
    let scaled = board.as_ref().map(|board| board.now().map_or(&board.device, |mode| &mode.device));
    let mut backend = instrument(context, root, &status, scaled)?;
    let device = backend.device().clone();
    let protocol = if asked.quick { Protocol::quick() } else { Protocol::default() };
    validation(context, &device, Some((&mut *backend, &protocol)))
}

fn validation(
    context: &Context,
    device: &Device,
    mut with: Option<(&mut dyn Backend, &Protocol)>,
) -> Result<Validation> {
    let (mut results, mut skipped) = (Vec::new(), Vec::new());
    for (config, side) in SIZES {
        for dtype in PRECISIONS {
            let predicted = predicted(device, side, dtype)?;
            let mut row = ValidatedProduct {
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
        return Err(unmeasurable(skipped.join("; ")));
    }
    let mean_error_pct = measured.then(|| errors.iter().sum::<f64>() / errors.len() as f64);
    let (device, device_name) = (device.label(), device.name.clone());
    Ok(Validation { device, device_name, measured, results, mean_error_pct, skipped, notes: context.notes() })
}
