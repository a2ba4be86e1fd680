//! `roofline recommend`: which precision, why, and how to get it.

mod explain;
mod model;
mod picture;
mod question;
mod recipe;
mod words;

use roofline_core::{
    Device, Machine,
    machine::Stack,
    predict::Tier,
    recommend::{OperatorAdvice, OperatorNeed, RecommendationResult, recommend_operator},
};
use serde::Serialize;

use super::{calibrate, setting, tier};
use crate::{
    cli::{ProductArgs, RecommendPlace, RecommendSubject},
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

/// The machine of a question, and which of its times is spoken of.
struct Place {
    machine: Machine,
    tier: Tier,
}

impl Place {
    fn of(args: &RecommendPlace) -> Result<Self, Failure> {
        let names: Vec<String> = args.on.iter().cloned().collect();
        let device = setting::devices(&names, &args.rates)?.pop();
        let device = device.ok_or_else(|| Failure::usage("no device was named", "name one: `--on h200`"))?;
        Ok(Self::on(args, device))
    }

    /// The same question on another device: a power mode of the one that was named.
    fn on(args: &RecommendPlace, device: Device) -> Self {
        let (tier, stack) = (tier::spoken(args.tier, &device), Stack::from(args.stack));
        let calibration = calibrate::stored(&device, stack.name());
        Self { machine: Machine::new(device, stack).calibrated(calibration), tier }
    }
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
    let Place { machine, tier, .. } = Place::of(&args.place)?;
    let shape = (args.m, args.n, args.k);
    let (memory, any_quality) = (args.place.memory_limit, args.place.any_quality);
    let advice = recommend_operator(shape, &OperatorNeed { machine: &machine, tier, memory, any_quality })?;
    let commands = recipe::checkpoint(&advice.plan, "./CHECKPOINT");
    let ((m, n, k), device) = (shape, machine.device);
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
                row.ratios.speedup.map_or_else(String::new, |speedup| format!("{speedup:.2}x")).into(),
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
