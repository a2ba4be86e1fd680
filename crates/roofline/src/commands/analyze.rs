//! `roofline analyze`: what a run that somebody measured achieved.

use roofline_core::{
    Error, Plan,
    model::Workload,
    predict::Estimate,
    request::{Request, timeline},
    units::{Bytes, Flops, Seconds},
};
use serde::Serialize;

use super::{
    model::{fit, lowerings},
    setting::{Varies, job},
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
    ideal_time_us: f64,
    measured_time_us: Option<f64>,
    flops: Flops,
    bytes: Bytes,
    ai: f64,
    bottleneck: String,
    achieved_tflops: Option<f64>,
    achieved_gb_s: Option<f64>,
    /// Operations per second over the peak of the unit.
    mfu: Option<f64>,
    /// Bytes per second over the bandwidth.
    mbu: Option<f64>,
    /// Ideal over measured time: 1 is the roof.
    efficiency: Option<f64>,
}

pub(crate) fn analyze(args: &AnalyzeArgs) -> Result<Analysis, Failure> {
    let model = source::model(&args.model)?;
    check(args)?;
    let job = job(&args.setting, Varies::Product(None))?;
    let request = Request { batch: args.batch, prompt: args.prompt, generate: args.generate };
    let mut runs = Vec::new();
    for (device, specs) in &job.cases {
        // One run has one precision: the one that was named, or the baseline.
        let asked = if args.setting.precision.is_empty() { &specs[..1] } else { &specs[..] };
        for (spec, lowering) in
            asked.iter().flat_map(|spec| lowerings(&args.lowering).into_iter().flatten().map(move |l| (spec, l)))
        {
            let plan = Plan::model(spec, device)?;
            let timeline = timeline(&model, request, lowering, &plan, job.sizes, device)?;
            let total = timeline.decode.map_or(timeline.prefill, |decode| timeline.prefill.then(decode));
            let end = Workload::decode(request.batch, request.prompt + request.generate)?;
            let short = fit::shortfall(&model, end, lowering, &plan, job.sizes, device)?;
            let memory = short.map_or_else(String::new, |short| {
                format!(
                    "; it needs {} more memory than the device has, so it did not run like this",
                    short.missing_bytes
                )
            });
            let decode_time = args.ttft.map(|ttft| args.measured - ttft);
            let mut parts =
                vec![part("whole", &total, Some(args.measured)), part("prefill", &timeline.prefill, args.ttft)];
            parts.extend(timeline.decode.map(|decode| part("decode", &decode, decode_time)));
            runs.push(Run {
                device: device.label(),
                device_name: device.name.clone(),
                precision: spec.name().to_owned(),
                tensor_parallel: lowering.ranks.get(),
                generated_tokens_per_s: (args.batch * args.generate) as f64 / args.measured.value(),
                verdict: verdict(&parts[0], &total) + &memory,
                parts,
            });
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

fn part(name: &'static str, ideal: &Estimate, measured: Option<Seconds>) -> Part {
    let rate = measured.map(|time| ideal.work.flops / time);
    let bandwidth = measured.map(|time| ideal.work.bytes() / time);
    // The peak and the bandwidth, back from the times they give: kernels of a pass may use several units.
    let mfu = measured.map(|time| ideal.compute / time);
    let mbu = measured.map(|time| ideal.memory / time);
    Part {
        name,
        ideal_time_us: ideal.time().micros(),
        measured_time_us: measured.map(Seconds::micros),
        flops: ideal.work.flops,
        bytes: ideal.work.bytes(),
        ai: ideal.intensity().value(),
        bottleneck: ideal.bound().to_string(),
        achieved_tflops: rate.map(|rate| rate.value() / 1e12),
        achieved_gb_s: bandwidth.map(|bandwidth| bandwidth.value() / 1e9),
        mfu,
        mbu,
        efficiency: measured.map(|time| ideal.time() / time),
    }
}

/// Where the run stands, in a sentence.
fn verdict(whole: &Part, total: &Estimate) -> String {
    let efficiency = whole.efficiency.unwrap_or_default();
    if efficiency > 1.0 {
        return format!(
            "the run is {efficiency:.2}x as fast as the roof allows: the precision, the token counts or the device named here \
             cannot be what ran"
        );
    }
    format!(
        "{}-bound by theory, at {:.0} % of the roof: {}x slower than the ideal",
        total.bound(),
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
                    Seconds::new(part.ideal_time_us * 1e-6).to_string().into(),
                    measured.unwrap_or_default().into(),
                    percent(part.efficiency).into(),
                    shown(part.achieved_tflops).into(),
                    percent(part.mfu).into(),
                    shown(part.achieved_gb_s).into(),
                    percent(part.mbu).into(),
                    number(part.ai).into(),
                    part.bottleneck.as_str().into(),
                ]);
            }
            sections.push(Section::Table(table));
            let speed = number(run.generated_tokens_per_s);
            sections.push(Section::Paragraph(format!("{speed} generated tokens/s; {}", run.verdict)));
        }
        sections
    }
}
