//! What a picture shows, as numbers: the fields of every estimate, and none of the picture.

use roofline_core::{
    Plan,
    predict::{Figures, KernelFigures, Prediction, Ratios},
};
use serde::Serialize;

use super::{Case, grid};
use crate::{
    cli::{PlotArgs, PlotKind},
    commands::model::{phase_name, tokens},
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// Every point of a picture.
#[derive(Serialize)]
pub(crate) struct Points {
    kind: &'static str,
    points: Vec<Point>,
}

/// A pass; `operators` are its kernels, where the picture shows them.
#[derive(Serialize)]
struct Point {
    model: String,
    device: String,
    precision: String,
    plan: Plan,
    tensor_parallel: u64,
    phase: &'static str,
    batch: u64,
    context: u64,
    #[serde(flatten)]
    figures: Figures,
    /// Over the first plan at the same place.
    #[serde(flatten)]
    ratios: Ratios,
    tokens_per_s: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operators: Vec<KernelFigures>,
}

pub(super) fn points(args: &PlotArgs, cases: &[Case]) -> Result<Points, Failure> {
    let kind = match args.kind {
        PlotKind::Roofline => "roofline",
        PlotKind::Batch => "batch",
        PlotKind::Context => "context",
        PlotKind::Shares => "shares",
    };
    let shows_kernels = matches!(args.kind, PlotKind::Roofline | PlotKind::Shares);
    let mut points = Vec::new();
    for case in cases {
        let first = cases.iter().find(|other| other.beside(case)).unwrap_or(case);
        for (batch, context) in grid(args)? {
            let forecast = case.forecast(args.phase, batch, context)?;
            let total = forecast.total;
            let baseline: Prediction =
                if first.plan == case.plan { total } else { first.forecast(args.phase, batch, context)?.total };
            points.push(Point {
                model: case.model.key.clone(),
                device: case.machine.device.label(),
                precision: case.plan.label(),
                plan: case.plan.clone(),
                tensor_parallel: case.lowering.ranks.get(),
                phase: phase_name(args.phase),
                batch,
                context,
                figures: Figures::of_forecast(&forecast, case.tier, &case.machine),
                ratios: Ratios::of(&total, Some(&baseline), case.tier),
                tokens_per_s: tokens(args.phase, batch, context) / total.time(case.tier).value(),
                operators: if shows_kernels { forecast.by_site(case.tier, &case.machine) } else { Vec::new() },
            });
        }
    }
    Ok(Points { kind, points })
}

impl Report for Points {
    const ROWS: &'static str = "points";

    fn sections(&self) -> Vec<Section> {
        let mut table = Table::default()
            .column("model", Align::Left, 0)
            .column("device", Align::Left, 0)
            .column("precision", Align::Left, 0)
            .column("phase", Align::Left, 0)
            .column("batch", Align::Right, 0)
            .column("context", Align::Right, 0)
            .column("time us", Align::Right, 0)
            .column("tokens/s", Align::Right, 1)
            .column("bound", Align::Left, 2);
        for point in &self.points {
            table.row([
                point.model.as_str().into(),
                point.device.as_str().into(),
                point.precision.as_str().into(),
                point.phase.into(),
                point.batch.to_string().into(),
                point.context.to_string().into(),
                number(point.figures.predicted_time_us).into(),
                number(point.tokens_per_s).into(),
                point.figures.bottleneck.as_str().into(),
            ]);
        }
        vec![Section::Table(table)]
    }
}
