//! bitsandbytes: what transformers saves of a model that it loaded in four or eight bits, and loads again.
//!
//! transformers makes every product that is a plain `nn.Linear` one of bitsandbytes', but for those whose names the
//! configuration tells it to skip: what is kept must be named, by the names that modules have in its models.

use std::{collections::BTreeSet, sync::Arc};

use roofline_core::{Format, Plan, Role};
use serde_json::{Value, json};

use super::{Decision, Layout, Scheme, Target, asked, compressed_tensors::check_embedding, decide, folder, sites};
use crate::{
    Checkpoint, Dtype, Error, Method, QuantizeJob, Result,
    coding::bitsandbytes::{self as coded, Quantiles, Scheme as Coded},
    family::{Family, Products, Stack},
    job::Work,
};

const fn four(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    quantiles: Quantiles,
    double: bool,
) -> Scheme {
    let target = Target::Bitsandbytes(Coded::Four { quantiles, double });
    Scheme { name, aliases, summary, weights, activations: None, target }
}

/// Every scheme this layout has.
pub(super) const SCHEMES: &[Scheme] = &[
    four(
        "nf4",
        &["bnb-nf4"],
        "NF4 in blocks of 64 with FP32 maxima; 16-bit activations",
        Format::NF4,
        Quantiles::Nf4,
        false,
    ),
    four(
        "nf4-dq",
        &["bnb-nf4-dq"],
        "NF4 in blocks of 64 whose maxima are quantized, too, as QLoRA has it; 16-bit activations",
        Format::NF4_DOUBLE,
        Quantiles::Nf4,
        true,
    ),
    four(
        "bnb-fp4",
        &[],
        "bitsandbytes' FP4 in blocks of 64 with FP32 maxima; 16-bit activations",
        Format::BNB_FP4,
        Quantiles::Fp4,
        false,
    ),
    four(
        "bnb-fp4-dq",
        &[],
        "bitsandbytes' FP4 in blocks of 64 whose maxima are quantized, too; 16-bit activations",
        Format::BNB_FP4_DOUBLE,
        Quantiles::Fp4,
        true,
    ),
    Scheme {
        name: "int8",
        aliases: &["w8a8", "llm-int8"],
        summary: "LLM.int8(): INT8 with a maximum per row; INT8 activations per token, outliers in 16 bit",
        weights: Format::INT8,
        activations: Some(Format::INT8),
        target: Target::Bitsandbytes(Coded::Int8),
    },
];

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, plan: &Plan, method: Method) -> Result<QuantizeJob<'a>> {
    let config = &checkpoint.config;
    let family = Family::of(config);
    // transformers would leave other classes alone, and not find their weights.
    if family.products() != Products::Linear {
        let family = config["model_type"].as_str().unwrap_or_default();
        return Err(Error::unsupported(
            format!(
                "transformers cannot load a `{family}` in bitsandbytes' codes: its products are of a class of their own"
            ),
            "use `⟨as gguf⟩` or `⟨as compressed-tensors⟩`",
        ));
    }
    if family.stack() == Some(Stack::SideBySide) {
        return Err(Error::unsupported(
            "transformers takes the experts of this family apart for bitsandbytes, and finds them neither in stacks nor one by one",
            "use `⟨as compressed-tensors⟩`",
        ));
    }
    let (mut decisions, mut notes) = decide(checkpoint, plan, Layout::Bitsandbytes, |scheme, stored| {
        let Target::Bitsandbytes(coding) = scheme.target else { unreachable!("a scheme of this layout") };
        let columns = stored.shape.last().copied().unwrap_or(0);
        coded::coding(coding, columns, stored.dtype, method).map(Arc::from)
    })?;
    notes.extend(keep_experts(checkpoint, plan, &mut decisions)?);
    check_embedding(config, &decisions)?;
    notes.extend(checkpoint.left_out()?);
    let quantization = configuration(&decisions, config)?;
    let config = folder::with_quantization(config, quantization);
    let mut job = folder::job(checkpoint, decisions, Vec::new(), &config, notes)?;
    // The mean of its maxima is a matrix's own, whatever it is fused with.
    for (at, item) in job.items.iter_mut().enumerate() {
        if let Work::Code(code) = &mut item.work {
            code.fused = vec![at];
        }
    }
    Ok(job)
}

/// Keeps experts as they are: transformers holds those of a layer in one parameter, which is no product. Refuses a rule
/// that speaks of them.
fn keep_experts(checkpoint: &Checkpoint, plan: &Plan, decisions: &mut [Decision<'_>]) -> Result<Option<String>> {
    let all = sites(checkpoint)?;
    let (asked, _) = asked(plan, checkpoint, &all);
    let total: u64 = decisions.iter().map(|decision| decision.stored.elements()).sum();
    let mut kept = 0;
    for decision in decisions.iter_mut().filter(|decision| decision.site.experts().is_some()) {
        if decision.coded.is_some() && asked.rule(&decision.site).is_some() {
            return Err(decision.stored.refuse(
                "is an expert's, and transformers loads experts in bitsandbytes' codes from no file",
                Some("leave experts out of the rule, or use `⟨as compressed-tensors⟩`, `⟨as gguf⟩` or `⟨as mlx⟩`"),
            ));
        }
        decision.coded = None;
        kept += decision.stored.elements();
    }
    if decisions.iter().all(|decision| decision.coded.is_none()) {
        return Err(Error::unsupported(
            "nothing to do: transformers loads experts in bitsandbytes' codes from no file, and the plan names nothing else",
            "use `⟨as compressed-tensors⟩`, `⟨as gguf⟩` or `⟨as mlx⟩`",
        ));
    }
    let share = 100.0 * kept as f64 / total.max(1) as f64;
    Ok((kept > 0).then(|| {
        format!("experts are kept, as bitsandbytes in transformers keeps them: {share:.0} % of the parameters stay unquantized")
    }))
}

/// The `quantization_config`, which names one scheme for all.
fn configuration(decisions: &[Decision<'_>], config: &Value) -> Result<Value> {
    let coded = || decisions.iter().filter_map(|decision| Some((decision, decision.coded.as_ref()?.0)));
    let names: BTreeSet<&str> = coded().map(|(_, scheme)| scheme.name).collect();
    let Some((first, scheme)) = coded().next().filter(|_| names.len() == 1) else {
        let names: Vec<&str> = names.into_iter().collect();
        return Err(Error::unsupported(
            format!("a bitsandbytes checkpoint has one scheme, and the plan asks for {}", names.join(" and ")),
            "use `⟨as compressed-tensors⟩` or `⟨as mlx⟩`, which take several",
        ));
    };
    let Target::Bitsandbytes(stored) = scheme.target else { unreachable!("a scheme of this layout") };
    let (quantiles, double) = match stored {
        Coded::Four { quantiles, double } => (quantiles, double),
        Coded::Int8 => (Quantiles::Fp4, false),
    };
    let eight = stored == Coded::Int8;
    // Products are computed in the model's own type.
    let compute = match first.stored.dtype {
        _ if eight => "float32",
        Dtype::F16 => "float16",
        Dtype::F32 => "float32",
        _ => "bfloat16",
    };
    Ok(json!({
        "_load_in_4bit": !eight,
        "_load_in_8bit": eight,
        "bnb_4bit_compute_dtype": compute,
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": quantiles.name(),
        "bnb_4bit_use_double_quant": double,
        "llm_int8_enable_fp32_cpu_offload": false,
        "llm_int8_has_fp16_weight": false,
        "llm_int8_skip_modules": skipped(decisions, config)?,
        "llm_int8_threshold": 6.0,
        "load_in_4bit": !eight,
        "load_in_8bit": eight,
        "quant_method": "bitsandbytes",
    }))
}

/// What transformers has to leave alone. It skips modules whose names begin with an entry as a pattern, or end with it
/// as it is.
fn skipped(decisions: &[Decision<'_>], config: &Value) -> Result<Vec<String>> {
    let quantized: Vec<&str> = decisions
        .iter()
        .filter(|decision| decision.coded.is_some())
        .map(|decision| decision.site.module.as_str())
        .collect();
    let mut skipped = BTreeSet::new();
    // The head is a product even where it has no tensor of its own.
    if !quantized.iter().any(|module| module.ends_with("lm_head")) {
        skipped.insert("lm_head".to_owned());
    }
    let kept = decisions
        .iter()
        .filter(|decision| decision.coded.is_none() && !matches!(decision.site.role, Role::Vector | Role::Embedding));
    for decision in kept {
        let module = &decision.site.module;
        if decision.site.experts().is_some() {
            skipped.insert("experts".to_owned());
            continue;
        }
        // Models that see have the language model's modules, and their own, elsewhere than their checkpoints say.
        if let Some(tower) = decision.site.tower() {
            skipped.insert(format!(".*{tower}.*"));
            continue;
        }
        skipped.insert(module.clone());
        let layers =
            module.find("layers.").filter(|_| decision.site.layer.is_some() && config.get("text_config").is_some());
        skipped.extend(layers.map(|at| module[at..].to_owned()));
    }
    for entry in &skipped {
        let inside = entry.strip_prefix(".*").and_then(|entry| entry.strip_suffix(".*"));
        let clash = quantized.iter().find(|module| {
            module.ends_with(entry.as_str())
                || inside.is_some_and(|inside| module.contains(inside))
                || module.strip_prefix(entry.as_str()).is_some_and(|rest| rest.starts_with('.'))
        });
        if let Some(module) = clash {
            return Err(Error::Weight {
                name: format!("{module}.weight"),
                reason: format!(
                    "would be skipped by transformers as well, which goes by the end of names: `{entry}` is kept"
                ),
                hint: Some("quantize or keep both".to_owned()),
            });
        }
    }
    Ok(skipped.into_iter().collect())
}
