//! A prediction as a picture: what was asked about, under the roofs of its device.

use roofline_core::{
    Device,
    op::Class as Kind,
    predict::{KernelFigures, Prediction, Tier},
};

use super::{Answer, Request};
use crate::{
    Context, Result, machine,
    picture::{Class, Memory, Picture, Point, Roofline, ceilings},
};

/// A row of an answer, as far as it is drawn.
struct Row<'a> {
    device: &'a str,
    name: &'a str,
    /// What tells it from the others on its device.
    series: String,
    tier: Tier,
    total: &'a Prediction,
    operators: &'a [KernelFigures],
}

/// A roofline for each device that was asked about: every operator and the whole, in the time that is spoken of.
pub fn pictures(context: &Context, request: &Request, answer: &Answer) -> Result<Vec<Picture>> {
    let (title, rows) = match answer {
        Answer::Operator(told) => {
            let rows = told.estimates.iter().map(|one| Row {
                device: &one.device,
                name: &one.device_name,
                series: one.precision.clone(),
                tier: one.figures.tier,
                total: &one.total,
                operators: &one.operators,
            });
            (told.subject.as_str(), rows.collect::<Vec<_>>())
        }
        Answer::Model(told) => {
            let rows = told.estimates.iter().map(|one| Row {
                device: &one.device,
                name: &one.device_name,
                series: format!("{} {}", one.precision, one.phase),
                tier: one.figures.tier,
                total: &one.total,
                operators: &one.operators,
            });
            (told.model_name.as_str(), rows.collect())
        }
    };
    let setting = request.setting();
    let devices = machine::devices(context, &setting.on, &setting.rates)?;
    let of = |device: &Device| {
        let label = device.label();
        let own: Vec<&Row<'_>> = rows.iter().filter(|row| row.device == label).collect();
        let first = own.first()?;
        let tier = if first.tier == Tier::Ideal { "ideal roofline" } else { "expected" };
        Some(Picture::Roofline(Roofline {
            title: format!("{title} on {}", first.name),
            subtitle: tier.to_owned(),
            memories: vec![Memory { label: "memory".to_owned(), bandwidth: device.memory.bandwidth }],
            ceilings: ceilings(device),
            points: own.iter().flat_map(|row| points(row)).collect(),
            brief: false,
        }))
    };
    Ok(devices.iter().filter_map(of).collect())
}

fn points(row: &Row<'_>) -> Vec<Point> {
    let point = |label: String, class: Class, prediction: &Prediction| Point {
        label,
        intensity: prediction.ideal.intensity(),
        rate: prediction.ideal.work.flops / prediction.time(row.tier),
        class,
        series: row.series.clone(),
        measured: false,
    };
    let computing = row.operators.iter().filter(|one| one.prediction.ideal.work.flops.value() > 0.0);
    let mut points: Vec<Point> =
        computing.map(|one| point(format!("{} {}", one.site, row.series), class(one.class), &one.prediction)).collect();
    // One operator is the whole.
    if points.len() != 1 {
        points.push(point(format!("all {}", row.series), Class::Total, row.total));
    }
    points
}

fn class(kind: Kind) -> Class {
    match kind {
        Kind::Gemm => Class::Product,
        Kind::Attention => Class::Attention,
        Kind::Elementwise | Kind::Network => Class::Elementwise,
    }
}
