//! `roofline recommend`: which precision, why, and how to get it.

use roofline_core::{
    Device,
    calibration::Calibration,
    precision::{NAMED, PrecisionSpec},
    recommend::{
        Candidate, Demand, Goal, Limits, Need, OperatorAdvice, Outcome, Quality, Recommendation, recommend as search,
        recommend_operator,
    },
    units::Bytes,
};
use roofline_quant::torchao::get_quantize_config;
use serde::Serialize;

use super::{calibrate, setting, source};
use crate::{
    cli::{Phase, ProductArgs, RecommendGoal, RecommendModelArgs, RecommendPlace, RecommendSubject, TierArg},
    failure::Failure,
    report::{Align, Format, Report, Section, Table, emit},
};

/// Plans that are shown where nobody asked for all.
const SHOWN: usize = 12;

pub(crate) fn recommend(subject: &RecommendSubject, form: Format) -> Result<(), Failure> {
    match subject {
        RecommendSubject::Gemv(args) | RecommendSubject::Gemm(args) => Ok(emit(&product(args)?, form)?),
        RecommendSubject::Model(args) => Ok(emit(&model(args)?, form)?),
    }
}

/// The device, and what is known of it.
fn place(args: &RecommendPlace) -> Result<(Device, Option<Calibration>), Failure> {
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
    let advice = recommend_operator(shape, &device, calibration.as_ref(), args.place.memory_limit)?;
    let commands = how(&advice.recommendation.precision, "./CHECKPOINT");
    let (m, n, k) = shape;
    Ok(Product { device: device.label(), device_name: device.name, m, n, k, advice, commands })
}

/// What `roofline quantize` calls a precision, where it writes it.
fn scheme(precision: &str) -> Option<&'static str> {
    Some(match precision {
        "w4a16" => "w4a16",
        "w8a16" => "w8a16",
        "int8" => "w8a8",
        "fp8" => "fp8-dynamic",
        "fp8a16" => "fp8a16",
        "nvfp4a16" => "nvfp4a16",
        "mxfp4a16" => "mxfp4a16",
        _ => return None,
    })
}

/// What makes a checkpoint of a precision: ours, then the same in torchao, where it has it.
fn how(precision: &str, model: &str) -> Vec<String> {
    let ours = scheme(precision).map(|scheme| {
        let method = if matches!(precision, "w4a16" | "nvfp4a16") { " --method mse" } else { "" };
        let layout = if precision == "fp8a16" { " --as torchao" } else { "" };
        format!("roofline quantize {model} --plan {scheme}{method}{layout} --to OUT")
    });
    let word = match precision {
        "w4a16" => "INT4",
        "w8a16" | "int8" => "INT8",
        "nf4" => "NF4",
        "fp8" | "fp8a16" => "FP8_E4M3",
        "nvfp4" | "nvfp4a16" => "NVFP4",
        "mxfp4" | "mxfp4a16" => "MXFP4",
        _ => "",
    };
    let torchao = get_quantize_config(word, 128).map(|config| {
        let weights_only = (precision == "int8").then(|| "weights only: activations stay at 16 bit".to_owned());
        let differs = config.differs.or(weights_only).map_or_else(String::new, |differs| format!("    # {differs}"));
        format!("quantize_(model, {}){differs}", config.expression)
    });
    ours.into_iter().chain(torchao).collect()
}

/// Advice on a model.
#[derive(Serialize)]
struct Advised {
    model: String,
    device: String,
    device_name: String,
    batch: u64,
    demand: Demand,
    goal: Goal,
    #[serde(flatten)]
    recommendation: Recommendation,
    commands: Vec<String>,
    #[serde(skip)]
    all: bool,
}

fn model(args: &RecommendModelArgs) -> Result<Advised, Failure> {
    let (device, calibration) = place(&args.place)?;
    let model = source::model(&args.model)?;
    let demand = match (args.phase, args.prompt, args.generate) {
        (Some(Phase::Prefill), ..) => Demand::Prefill { prompt: args.context },
        (None, Some(prompt), Some(generate)) => Demand::Request { prompt, generate },
        _ => Demand::Decode { context: args.context },
    };
    let goal = match args.goal {
        RecommendGoal::Latency => Goal::Latency,
        RecommendGoal::Throughput => Goal::Throughput,
        RecommendGoal::Memory => Goal::Memory,
    };
    let limits = Limits {
        memory: args.place.memory_limit,
        quality_loss: args.max_quality_loss,
        tokens_per_s: args.min_tokens_per_s,
        first_token: args.max_ttft,
        native_only: args.native_only,
        allow: args.allow.iter().map(|name| canonical(name)).collect::<Result<_, _>>()?,
        deny: args.deny.iter().map(|name| canonical(name)).collect::<Result<_, _>>()?,
    };
    let need = Need {
        model: &model,
        device: &device,
        calibration: calibration.as_ref(),
        batch: args.batch,
        demand,
        goal,
        limits: &limits,
    };
    let recommendation = search(&need)?;
    // A name of the registry is no folder to read weights from.
    let folder = std::path::Path::new(&args.model);
    let folder = if folder.is_dir() { args.model.as_str() } else { "./CHECKPOINT" };
    let commands = recommendation.choice().map_or_else(Vec::new, |best| commands(&best.candidate, folder));
    Ok(Advised {
        model: model.name.clone(),
        device: device.label(),
        device_name: device.name.clone(),
        batch: args.batch,
        demand,
        goal,
        recommendation,
        commands,
        all: args.all,
    })
}

/// What to type for a plan, as far as this program can make it.
fn commands(candidate: &Candidate, model: &str) -> Vec<String> {
    let narrow = candidate.kv.nominal_bits() < 16;
    let weights = |precision: roofline_core::Precision| precision.weights.nominal_bits();
    let plan = &candidate.plan;
    let inner = plan.feed_forward.unwrap_or(plan.layers);
    let whole = weights(plan.layers) >= 16 && weights(inner) >= 16;
    let mut commands = Vec::new();
    let mut served = whole.then_some(model);
    if !whole && candidate.attention == candidate.feed_forward {
        commands = how(&candidate.attention, model);
        served = scheme(&candidate.attention).map(|_| "OUT");
    } else if !whole {
        let attention = if weights(plan.layers) >= 16 { Some("keep") } else { scheme(&candidate.attention) };
        // torchao's FP8 has no place among the schemes of a mixed checkpoint.
        let mixed =
            attention.zip(scheme(&candidate.feed_forward)).filter(|both| both.0 != "fp8a16" && both.1 != "fp8a16");
        if let Some((attention, inner)) = mixed {
            let rule = format!("scheme = \"{inner}\"\\n[[rule]]\\nrole = \"attention\"\\nscheme = \"{attention}\"\\n");
            commands.push(format!("printf '{rule}' > plan.toml"));
            commands.push(format!("roofline quantize {model} --plan plan.toml --to OUT"));
            served = Some("OUT");
        }
    }
    if served.is_none() {
        commands.push(format!("# {} is not among the schemes that `roofline quantize` writes", candidate.name));
    }
    if let Some(served) = served.filter(|_| candidate.runtimes.contains(&"vLLM")) {
        let cache = if narrow { " --kv-cache-dtype fp8" } else { "" };
        commands.push(format!("vllm serve {served}{cache}"));
    }
    let file = match candidate.feed_forward.as_str() {
        _ if candidate.attention != candidate.feed_forward => None,
        "w4a16" => Some("q4_k_m"),
        "w8a16" => Some("q8_0"),
        "nvfp4a16" => Some("nvfp4"),
        "mxfp4a16" => Some("mxfp4"),
        _ => whole.then_some("f16"),
    };
    if let Some(file) = file.filter(|_| candidate.runtimes.contains(&"llama.cpp")) {
        let cache = if narrow { " --cache-type-k q8_0 --cache-type-v q8_0" } else { "" };
        commands.push(format!(
            "roofline quantize {model} --as gguf --plan {file} --to model.gguf && llama-server -m model.gguf{cache}"
        ));
    }
    commands
}

/// The name in the table of precisions, by whichever it was asked for.
fn canonical(name: &str) -> Result<String, Failure> {
    let lower = name.trim().to_lowercase();
    lower.parse::<PrecisionSpec>()?;
    let known = NAMED.iter().find(|named| named.name == lower || named.aliases.contains(&lower.as_str()));
    Ok(known.map_or(lower, |named| named.name.to_owned()))
}

fn quality(quality: &Quality) -> String {
    match quality {
        Quality::Exact => "as 16 bit".to_owned(),
        Quality::Published { change, .. } => format!("+{:.1} % published", 100.0 * change),
        Quality::Estimated(change) => format!("+{:.1} to {:.1} % estimated", 100.0 * change.low, 100.0 * change.high),
        Quality::Unknown => "unknown".to_owned(),
    }
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
        sections.extend(self.commands.iter().map(|command| Section::Line(format!("  {command}"))));
        sections
    }
}

impl Report for Advised {
    const ROWS: &'static str = "outcomes";

    fn warnings(&self) -> Vec<String> {
        self.recommendation.warnings.clone()
    }

    fn sections(&self) -> Vec<Section> {
        let advice = &self.recommendation;
        let work = match self.demand {
            Demand::Decode { context } => format!("one more token at a context of {context}"),
            Demand::Prefill { prompt } => format!("a prompt of {prompt} tokens"),
            Demand::Request { prompt, generate } => format!("a prompt of {prompt} tokens and {generate} more"),
        };
        let batch = advice.choice().map_or(self.batch, |best| best.batch);
        let mut sections = vec![
            Section::Heading(format!(
                "{} on {} ({}): {work}, batch {}",
                self.model, self.device_name, self.device, batch
            )),
            Section::Paragraph(format!("{}; {} tier.", advice.reason, advice.tier)),
        ];
        if let Some(best) = advice.choice() {
            sections.push(Section::Facts(facts(best, advice.capacity)));
        }
        let shown = if self.all { advice.outcomes.len() } else { SHOWN };
        sections.push(Section::Table(plans(&advice.outcomes[..shown.min(advice.outcomes.len())])));
        if shown < advice.outcomes.len() {
            let rest = advice.outcomes.len() - shown;
            let refused = advice.outcomes.iter().filter(|outcome| outcome.refused.is_some()).count();
            sections.push(Section::Paragraph(format!(
                "{rest} more plans, {refused} of all refused; --all shows them. A star: no other plan is at least as fast, as \
                 small and as good."
            )));
        }
        sections.extend(advice.warnings.iter().map(|warning| Section::Paragraph(format!("Warning: {warning}."))));
        sections.extend(self.commands.iter().map(|command| Section::Line(format!("  {command}"))));
        sections
    }
}

/// The arithmetic of the memory, and the quality with its source.
fn facts(best: &Outcome, capacity: Option<Bytes>) -> Vec<(String, String)> {
    let footprint = &best.footprint;
    let mut facts = vec![(
        "memory".to_owned(),
        format!(
            "weights {} + cache {} + in flight {}{} = {}{}",
            footprint.weights,
            footprint.kv,
            footprint.activations,
            if capacity.is_some() { " + a tenth kept free" } else { "" },
            best.memory,
            capacity.map_or_else(String::new, |capacity| format!(" of {capacity}"))
        ),
    )];
    let source = match &best.quality {
        Quality::Published { source, method, .. } => format!(" with {method} ({source})"),
        Quality::Estimated(_) => " from the formats' errors on Gaussian numbers; the cache is not counted".to_owned(),
        _ => String::new(),
    };
    facts.push(("perplexity".to_owned(), quality(&best.quality) + &source));
    facts.push(("runtimes".to_owned(), best.candidate.runtimes.join(", ")));
    facts
}

fn plans(outcomes: &[Outcome]) -> Table {
    let mut table = Table::default()
        .column("plan", Align::Left, 0)
        .column("", Align::Left, 3)
        .column("batch", Align::Right, 3)
        .column("time", Align::Right, 0)
        .column("first token", Align::Right, 2)
        .column("tokens/s", Align::Right, 1)
        .column("speed-up", Align::Right, 0)
        .column("bound", Align::Left, 2)
        .column("memory", Align::Right, 0)
        .column("perplexity", Align::Left, 1)
        .column("refused because it", Align::Left, 1);
    for outcome in outcomes {
        table.row([
            outcome.candidate.name.as_str().into(),
            if outcome.pareto { "*" } else { "" }.into(),
            outcome.batch.to_string().into(),
            outcome.time.to_string().into(),
            outcome.first_token.map_or_else(String::new, |time| time.to_string()).into(),
            crate::report::number(outcome.tokens_per_s).into(),
            format!("{:.2}x", outcome.speedup).into(),
            outcome.bound.to_string().into(),
            outcome.memory.to_string().into(),
            quality(&outcome.quality).into(),
            outcome.refused.clone().unwrap_or_default().into(),
        ]);
    }
    table.without_empty_columns()
}
