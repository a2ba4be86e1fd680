//! What a run that somebody measured achieved: rates, utilisation, distance to the roof.

#[cfg(feature = "hardware")]
mod power;

use clap::Args;
use roofline_core::{
    Dim, Plan,
    model::Workload,
    predict::{Figures, Prediction, Ratios, Tier},
    request::{Request as Served, timeline},
    units::Seconds,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Context, Error, Note, Result,
    machine::{Case, Varies, cases},
    predict::lowerings,
    request::{self, Lower, ModelName, Setting},
    text::number,
};

/// A run that somebody measured.
#[derive(Args, Clone, Debug, Deserialize, JsonSchema)]
#[command(after_help = "\
What `roofline monitor --json > looks.jsonl` recorded while the run went on says what it drew, with --power looks.jsonl.

Example:
  roofline analyze --model mistral-7b --on t4 --precision fp16 --prompt 512 --generate 100 --measured 12.4s")]
#[schemars(rename = "AnalyzeRequest")]
pub struct Request {
    /// A name of `roofline models`, a `config.json`, or a folder with one
    #[arg(long)]
    pub model: ModelName,
    /// Tokens of the prompt
    #[arg(long, allow_negative_numbers = true)]
    pub prompt: Dim,
    /// Tokens that were generated
    #[arg(long, allow_negative_numbers = true)]
    pub generate: Dim,
    /// Requests side by side
    #[arg(long, default_value = "1", allow_negative_numbers = true)]
    #[serde(default = "request::one")]
    pub batch: Dim,
    /// How long it took from start to end
    #[arg(long, value_name = "TIME")]
    #[schemars(with = "String")]
    pub measured: Seconds,
    /// Of that, the time to the first token: splits prefill from decode
    #[arg(long, value_name = "TIME")]
    #[schemars(with = "Option<String>")]
    pub ttft: Option<Seconds>,
    /// What `roofline monitor --json` recorded meanwhile: power and tokens per joule
    #[cfg(feature = "hardware")]
    #[arg(long, value_name = "FILE")]
    #[schemars(extend("x-local" = true))]
    pub power: Option<std::path::PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub lowering: Lower,
    #[command(flatten)]
    #[serde(flatten)]
    pub setting: Setting,
}

/// A run against its roof.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AnalyzeAnswer")]
pub struct Answer {
    pub model: String,
    pub model_name: String,
    pub runs: Vec<AnalyzedRun>,
    pub prompt: u64,
    pub generate: u64,
    pub batch: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The run on one device, at one precision.
#[derive(Serialize, JsonSchema)]
pub struct AnalyzedRun {
    pub device: String,
    pub device_name: String,
    pub precision: String,
    pub plan: Plan,
    pub tensor_parallel: u64,
    pub parts: Vec<RunPart>,
    pub generated_tokens_per_s: f64,
    pub verdict: String,
}

/// The whole, prefill or decode.
#[derive(Serialize, JsonSchema)]
pub struct RunPart {
    #[serde(rename = "part")]
    pub name: &'static str,
    #[serde(flatten)]
    pub figures: Figures,
    /// Over the first plan that was named.
    #[serde(flatten)]
    pub ratios: Ratios,
    pub measured_time_us: Option<f64>,
    pub achieved_tflops: Option<f64>,
    pub achieved_gb_s: Option<f64>,
    /// Operations per second over the peak of the unit.
    pub mfu: Option<f64>,
    /// Bytes per second over the bandwidth.
    pub mbu: Option<f64>,
    /// Ideal over measured time: 1 is the roof.
    pub efficiency: Option<f64>,
    /// Measured over expected time: 1 is what was to be expected.
    pub measured_over_expected: Option<f64>,
    /// Mean power of the GPU that was watched, and tokens over the energy: those of the prompts in prefill, else those that
    /// were generated.
    pub power_w: Option<f64>,
    pub tokens_per_joule: Option<f64>,
    #[serde(skip)]
    pub prediction: Prediction,
}

/// What was achieved, beside what could be.
pub fn analyze(context: &Context, asked: &Request) -> Result<Answer> {
    let model = context.model(&asked.model)?;
    let (prompt, generate, batch) = (asked.prompt.get(), asked.generate.get(), asked.batch.get());
    check(asked)?;
    let request = Served { batch, prompt, generate };
    let drawn = drawn(context, asked)?;
    let mut runs: Vec<AnalyzedRun> = Vec::new();
    for case in cases(context, &asked.setting, Varies::Product(None))? {
        let Case { machine, plans, tier } = &case;
        // One run has one plan: the one that was named, or the baseline.
        let named = if asked.setting.precision.is_empty() { &plans[..1] } else { &plans[..] };
        for lowering in lowerings(&asked.lowering) {
            let mut first: Option<Vec<Prediction>> = None;
            for plan in named {
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
                let decode_time = asked.ttft.map(|ttft| asked.measured - ttft);
                let passes = [
                    Some(("whole", timeline.total(), Some(asked.measured))),
                    Some(("prefill", timeline.prefill, asked.ttft)),
                    timeline.decode.map(|decode| ("decode", decode, decode_time)),
                ];
                let passes: Vec<_> = passes.into_iter().flatten().collect();
                let first = first.get_or_insert_with(|| passes.iter().map(|(_, prediction, _)| *prediction).collect());
                let parts: Vec<RunPart> = passes
                    .iter()
                    .zip(first)
                    .map(|((name, prediction, measured), baseline)| {
                        let figures = Figures::of(prediction, timeline.basis, *tier, machine);
                        let ratios = Ratios::of(prediction, Some(baseline), *tier);
                        let [power_w, tokens_per_joule] = drawn(name);
                        RunPart {
                            power_w,
                            tokens_per_joule,
                            ..RunPart::new(name, figures, ratios, prediction, *measured)
                        }
                    })
                    .collect();
                runs.push(AnalyzedRun {
                    device: machine.device.label(),
                    device_name: machine.device.name.clone(),
                    precision: plan.label(),
                    plan: plan.clone(),
                    tensor_parallel: lowering.ranks.get(),
                    generated_tokens_per_s: (batch * generate) as f64 / asked.measured.value(),
                    verdict: verdict(&parts[0]) + &memory,
                    parts,
                });
            }
        }
    }
    Ok(Answer { model: model.key, model_name: model.name, runs, prompt, generate, batch, notes: context.notes() })
}

/// Watts of a part, and tokens per joule.
type Drawn = Box<dyn Fn(&str) -> [Option<f64>; 2]>;

/// What each part drew, where somebody looked.
#[cfg(feature = "hardware")]
fn drawn(context: &Context, asked: &Request) -> Result<Drawn> {
    let Some(path) = &asked.power else { return Ok(Box::new(|_| [None; 2])) };
    if !context.is_local() {
        return Err(Error::Path { what: "recording", name: path.display().to_string() });
    }
    let (measured, ttft) = (asked.measured, asked.ttft);
    let power = power::Power::read(path, measured)?;
    let [prompts, answers] = [asked.prompt, asked.generate].map(|tokens| (asked.batch.get() * tokens.get()) as f64);
    Ok(Box::new(move |part| {
        let region = match part {
            "prefill" => ttft.map(|ttft| (Seconds::ZERO, ttft, prompts)),
            "decode" => ttft.map(|ttft| (ttft, measured, answers)),
            _ => Some((Seconds::ZERO, measured, answers)),
        };
        let told = region.and_then(|(from, until, tokens)| {
            let energy = power.energy(from, until)?.value();
            Some([energy / (until - from).value(), tokens / energy])
        });
        told.map_or([None; 2], |told| told.map(Some))
    }))
}

#[cfg(not(feature = "hardware"))]
#[expect(clippy::unnecessary_wraps, reason = "with hardware there may be a recording that cannot be read")]
fn drawn(_: &Context, _: &Request) -> Result<Drawn> {
    Ok(Box::new(|_| [None; 2]))
}

fn check(asked: &Request) -> Result<()> {
    if asked.measured <= Seconds::ZERO {
        return Err(Error::request(
            "a run cannot take no time",
            "give the time from start to end, such as `⟨measured 12.4s⟩`",
        ));
    }
    if asked.ttft.is_some_and(|ttft| ttft >= asked.measured || ttft <= Seconds::ZERO) {
        return Err(Error::request("the first token must come within the run", "`⟨ttft⟩` is part of `⟨measured⟩`"));
    }
    Ok(())
}

impl RunPart {
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
            power_w: None,
            tokens_per_joule: None,
            prediction: *prediction,
        }
    }
}

/// Where the run stands, in a sentence.
fn verdict(whole: &RunPart) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::request::{answers_fit, from_json};

    fn asked(times: &Value) -> Result<Answer> {
        let mut body =
            json!({ "model": "mistral-7b", "on": "t4", "precision": "fp16", "prompt": 512, "generate": 100 });
        body.as_object_mut().unwrap().extend(times.as_object().unwrap().clone());
        analyze(&Context::pure(), &from_json(body)?)
    }

    /// 100 tokens in 12.5 s are 8 per second; 14.5 GB at 320 GB/s for each make the roof four and a half seconds.
    #[test]
    fn a_run_in_json() {
        let answer = asked(&json!({ "measured": "12.5s", "ttft": "0.9s" })).unwrap();
        answers_fit(&answer);
        let run = &answer.runs[0];
        assert_eq!((run.generated_tokens_per_s, run.parts.len()), (8.0, 3));
        assert!((0.3..0.45).contains(&run.parts[0].efficiency.unwrap()), "{}", run.verdict);
        assert!(asked(&json!({ "measured": "0s" })).is_err());
        assert!(asked(&json!({ "measured": "1s", "ttft": "2s" })).is_err());
    }
}
