//! `roofline recommend`: which precision, why, and how to get it.

mod explain;
mod model;
mod picture;
mod recipe;

use std::borrow::Cow;

use roofline_core::{
    Device,
    calibration::Calibration,
    recommend::{OperatorAdvice, RecommendationResult, recommend_operator},
};
use serde::Serialize;

use super::{calibrate, setting};
use crate::{
    cli::{ProductArgs, RecommendPlace, RecommendSubject, TierArg},
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit, json},
};

pub(crate) fn recommend(subject: &RecommendSubject, form: Format) -> Result<(), Failure> {
    match subject {
        RecommendSubject::Gemv(args) | RecommendSubject::Gemm(args) => Ok(emit(&product(args)?, form)?),
        RecommendSubject::Model(args) => {
            let advised = model::answer(args)?;
            picture::write(&advised, &args.picture)?;
            Ok(emit(&advised, form)?)
        }
    }
}

/// The answer as JSON.
pub(crate) fn answer(subject: &RecommendSubject) -> Result<String, Failure> {
    Ok(match subject {
        RecommendSubject::Gemv(args) | RecommendSubject::Gemm(args) => json(&product(args)?)?,
        RecommendSubject::Model(args) => json(&model::answer(args)?)?,
    })
}

/// The answer in short.
pub(crate) fn short(args: &ProductArgs) -> Result<RecommendationResult, Failure> {
    Ok(product(args)?.advice.recommendation)
}

/// The device, and what is known of it.
fn place(args: &RecommendPlace) -> Result<(Device, Option<Cow<'static, Calibration>>), Failure> {
    let device = setting::one(&args.on, &args.rates)?;
    let calibration = match args.tier {
        Some(TierArg::Ideal) => None,
        _ => calibrate::stored(&device, "roofline"),
    };
    if args.tier == Some(TierArg::Expected) && calibration.is_none() {
        let hint = "`roofline calibrate` makes one of this machine; `--tier ideal` needs none";
        return Err(Failure::usage(format!("there is no calibration of {} ({})", device.name, device.key), hint));
    }
    Ok((device, calibration))
}

/// Advice on one product.
#[derive(Serialize)]
struct Product {
    device: String,
    device_name: String,
    m: u64,
    n: u64,
    k: u64,
    #[serde(flatten)]
    advice: OperatorAdvice,
    commands: Vec<String>,
}

fn product(args: &ProductArgs) -> Result<Product, Failure> {
    let (device, calibration) = place(&args.place)?;
    let shape = (args.m, args.n, args.k);
    let advice = recommend_operator(shape, &device, calibration.as_deref(), args.place.memory_limit)?;
    if args.place.tier == Some(TierArg::Expected) && advice.tier != "expected" {
        let hint = "`--tier ideal` needs none";
        return Err(Failure::usage(format!("the calibration of {} does not know this product", device.name), hint));
    }
    let commands = recipe::checkpoint(&advice.recommendation.precision, "./CHECKPOINT");
    let (m, n, k) = shape;
    Ok(Product { device: device.label(), device_name: device.name, m, n, k, advice, commands })
}

impl Report for Product {
    const ROWS: &'static str = "ranked";

    fn warnings(&self) -> Vec<String> {
        self.advice.warnings.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let Self { m, n, k, .. } = self;
        let mut table = Table::default()
            .column("precision", Align::Left, 0)
            .column("method", Align::Left, 2)
            .column("time", Align::Right, 0)
            .column("speed-up", Align::Right, 0)
            .column("bound", Align::Left, 1)
            .column("weights", Align::Right, 1)
            .column("smaller", Align::Right, 2)
            .column("why not", Align::Left, 1);
        for row in &self.advice.ranked {
            table.row([
                row.precision.as_str().into(),
                row.method.into(),
                row.time.to_string().into(),
                format!("{:.2}x", row.speedup).into(),
                row.bound.to_string().into(),
                row.weights.to_string().into(),
                format!("{:.1} %", row.memory_savings_pct).into(),
                row.lost.clone().unwrap_or_default().into(),
            ]);
        }
        let best = &self.advice.recommendation;
        let mut sections = vec![
            Section::Heading(format!("{m} x {n} x {k} on {} ({}): {}", self.device_name, self.device, best.precision)),
            Section::Paragraph(format!("{}; {} tier.", best.reason, self.advice.tier)),
            Section::Table(table),
        ];
        sections.extend(self.advice.warnings.iter().map(|warning| Section::Paragraph(format!("Warning: {warning}."))));
        sections.extend((!self.commands.is_empty()).then(|| Section::Code(self.commands.clone())));
        sections
    }
}
