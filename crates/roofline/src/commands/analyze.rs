//! `roofline analyze`: what a run that somebody measured achieved.

use roofline_core::{
    Error, Plan,
    model::Workload,
    predict::{Figures, Prediction, Ratios, Tier},
    request::{Request, timeline},
    units::Seconds,
};
use serde::Serialize;

use super::{
    model::lowerings,
    setting::{Case, Varies, cases},
    source,
};
use crate::{
    cli::AnalyzeArgs,
    failure::Failure,
    report::{Align, Report, Section, Table, number},
};

/// A run against its roof.
#[derive(Serialize)]
pub(crate) struct Analysis {
    model: String,
    model_name: String,
    runs: Vec<Run>,
    prompt: u64,
    generate: u64,
    batch: u64,
}

/// The run on one device, at one precision.
#[derive(Serialize)]
struct Run {
    device: String,
    device_name: String,
    precision: String,
    plan: Plan,
    tensor_parallel: u64,
    parts: Vec<Part>,
    generated_tokens_per_s: f64,
    verdict: String,
}

/// The whole, prefill or decode.
#[derive(Serialize)]
struct Part {
    #[serde(rename = "part")]
    name: &'static str,
    #[serde(flatten)]
    figures: Figures,
    /// Over the first plan that was named.
    #[serde(flatten)]
    ratios: Ratios,
    measured_time_us: Option<f64>,
    achieved_tflops: Option<f64>,
    achieved_gb_s: Option<f64>,
    /// Operations per second over the peak of the unit.
    mfu: Option<f64>,
    /// Bytes per second over the bandwidth.
    mbu: Option<f64>,
    /// Ideal over measured time: 1 is the roof.
    efficiency: Option<f64>,
    /// Measured over expected time: 1 is what was to be expected.
    measured_over_expected: Option<f64>,
    #[serde(skip)]
    prediction: Prediction,
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<Analysis, Failure> {
    let model = source::model(&args.model)?;
    check(args)?;
    let request = Request { batch: args.batch, prompt: args.prompt, generate: args.generate };
    let mut runs: Vec<Run> = Vec::new();
    for case in cases(&args.setting, Varies::Product(None))? {
        let Case { machine, plans, tier } = &case;
        // One run has one plan: the one that was named, or the baseline.
        let asked = if args.setting.precision.is_empty() { &plans[..1] } else { &plans[..] };
        for lowering in lowerings(&args.lowering)? {
            let mut first: Option<Vec<Prediction>> = None;
            for plan in asked {
                let assignment = plan.on(&machine.device, Some(&model.anatomy))?;
                let timeline = timeline(&model, request, lowering, &assignment, machine)?;
                let end = Workload::decode(request.batch, request.prompt + request.generate)?;
                let short = model.shortfall(end, lowering, &assignment, machine.sizes, &machine.device)?;
                let memory = short.map_or_else(String::new, |short| {
                    format!(
                        "; it needs {} more memory than the device has, so it did not run like this",
                        short.missing_bytes
                    )
                });
                let decode_time = args.ttft.map(|ttft| args.measured - ttft);
                let passes = [
                    Some(("whole", timeline.total(), Some(args.measured))),
                    Some(("prefill", timeline.prefill, args.ttft)),
                    timeline.decode.map(|decode| ("decode", decode, decode_time)),
                ];
                let passes: Vec<_> = passes.into_iter().flatten().collect();
                let first = first.get_or_insert_with(|| passes.iter().map(|(_, prediction, _)| *prediction).collect());
                let parts: Vec<Part> = passes
                    .iter()
                    .zip(first)
                    .map(|((name, prediction, measured), baseline)| {
                        let figures = Figures::of(prediction, timeline.basis, *tier, machine);
                        let ratios = Ratios::of(prediction, Some(baseline), *tier);
                        Part::new(name, figures, ratios, prediction, *measured)
                    })
                    .collect();
                runs.push(Run {
                    device: machine.device.label(),
                    device_name: machine.device.name.clone(),
                    precision: plan.label(),
                    plan: plan.clone(),
                    tensor_parallel: lowering.ranks.get(),
                    generated_tokens_per_s: (args.batch * args.generate) as f64 / args.measured.value(),
                    verdict: verdict(&parts[0]) + &memory,
                    parts,
                });
            }
        }
    }
    Ok(Analysis {
        model: model.key,
        model_name: model.name,
        runs,
        prompt: args.prompt,
        generate: args.generate,
        batch: args.batch,
    })
}

fn check(args: &AnalyzeArgs) -> Result<(), Failure> {
    if args.measured <= Seconds::ZERO {
        return Err(Failure::usage(
            "a run cannot take no time",
            "give the time from start to end, such as `--measured 12.4s`",
        ));
    }
    if args.ttft.is_some_and(|ttft| ttft >= args.measured || ttft <= Seconds::ZERO) {
        return Err(Failure::usage("the first token must come within the run", "`--ttft` is part of `--measured`"));
    }
    if args.prompt.checked_add(args.generate).is_none() {
        return Err(Error::Shape("prompt and generated tokens overflow".to_owned()).into());
    }
    Ok(())
}

impl Part {
    fn new(
        name: &'static str,
        figures: Figures,
        ratios: Ratios,
        prediction: &Prediction,
        measured: Option<Seconds>,
    ) -> Self {
        let Prediction { ideal, expected } = prediction;
        // The peak and the bandwidth, back from the times they give: kernels of a pass may use several units.
        let over = |part: Seconds| measured.map(|time| part / time);
        Self {
            name,
            figures,
            ratios,
            measured_time_us: measured.map(Seconds::micros),
            achieved_tflops: measured.map(|time| (ideal.work.flops / time).value() / 1e12),
            achieved_gb_s: measured.map(|time| (ideal.work.bytes() / time).value() / 1e9),
            mfu: over(ideal.compute),
            mbu: over(ideal.memory),
            efficiency: over(ideal.time().seconds()),
            measured_over_expected: measured.map(|time| time / expected.time.seconds()),
            prediction: *prediction,
        }
    }
}

/// Where the run stands, in a sentence.
fn verdict(whole: &Part) -> String {
    let efficiency = whole.efficiency.unwrap_or_default();
    if efficiency > 1.0 {
        return format!(
            "the run is {efficiency:.2}x as fast as the roof allows: the precision, the token counts or the device named here \
             cannot be what ran"
        );
    }
    let expected = whole.measured_over_expected.filter(|_| whole.figures.tier == Tier::Expected);
    let expected = expected.map_or_else(String::new, |ratio| {
        let (time, basis) = (whole.prediction.expected.time, whole.figures.basis);
        format!(", and {} times the {time} to expect ({basis})", number(ratio))
    });
    format!(
        "{}-bound by theory, at {:.0} % of the roof: {}x slower than the ideal{expected}",
        whole.prediction.ideal.bound(),
        100.0 * efficiency,
        number(1.0 / efficiency)
    )
}

impl Report for Analysis {
    const ROWS: &'static str = "runs";

    fn sections(&self) -> Vec<Section> {
        let heading = format!(
            "{}, {} x ({} prompt + {} generated tokens)",
            self.model_name, self.batch, self.prompt, self.generate
        );
        let mut sections = vec![Section::Heading(heading)];
        for run in &self.runs {
            let mut table = Table::default()
                .column(format!("{} on {}", run.precision, run.device), Align::Left, 0)
                .column("ideal", Align::Right, 0)
                .column("expected", Align::Right, 1)
                .column("measured", Align::Right, 0)
                .column("of roof", Align::Right, 0)
                .column("TFLOP/s", Align::Right, 1)
                .column("MFU", Align::Right, 0)
                .column("GB/s", Align::Right, 2)
                .column("MBU", Align::Right, 0)
                .column("FLOP/B", Align::Right, 3)
                .column("bound", Align::Left, 0);
            for part in &run.parts {
                let percent =
                    |value: Option<f64>| value.map_or_else(String::new, |value| format!("{:.1} %", 100.0 * value));
                let shown = |value: Option<f64>| value.map_or_else(String::new, number);
                let measured = part.measured_time_us.map(|micros| Seconds::new(micros * 1e-6).to_string());
                table.row([
                    part.name.into(),
                    part.prediction.ideal.time().to_string().into(),
                    if part.figures.tier == Tier::Expected {
                        part.prediction.expected.time.to_string()
                    } else {
                        String::new()
                    }
                    .into(),
                    measured.unwrap_or_default().into(),
                    percent(part.efficiency).into(),
                    shown(part.achieved_tflops).into(),
                    percent(part.mfu).into(),
                    shown(part.achieved_gb_s).into(),
                    percent(part.mbu).into(),
                    number(part.figures.ai).into(),
                    part.figures.bottleneck.as_str().into(),
                ]);
            }
            sections.push(Section::Table(table.without_empty_columns()));
            let speed = number(run.generated_tokens_per_s);
            sections.push(Section::Paragraph(format!("{speed} generated tokens/s; {}", run.verdict)));
        }
        sections
    }
}
