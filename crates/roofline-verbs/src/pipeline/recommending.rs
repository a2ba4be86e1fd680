//! The plan: what is recommended, as far as it can be written, or what whoever asks named.

use std::path::{Path, PathBuf};

use roofline_core::{
    Plan,
    recommend::{Outcome, Quality},
};
use roofline_quant::{Layout, Method, preview::Preview};

use super::{
    asked::Asked,
    told::{Alternative, Recommended},
};
use crate::{
    Context, Error, Note, Result,
    quantize::{self, quantize},
    recommend::{self, Limits, ModelAdvice, ModelWish, Place, recommend, words},
    request::Phase,
};

/// Others that are told.
const ALTERNATIVES: usize = 6;

/// A plan, and what writing it takes; nothing where the original stays.
pub(super) struct Chosen {
    pub(super) told: Recommended,
    pub(super) preview: Option<Box<Preview>>,
}

pub(super) fn choose(context: &Context, asked: &Asked<'_>, notes: &mut Vec<Note>) -> Result<Chosen> {
    match &asked.request.plan {
        Some(plan) => given(context, asked, plan),
        None => searched(context, asked, notes),
    }
}

/// What whoever asked wants.
fn given(context: &Context, asked: &Asked<'_>, plan: &str) -> Result<Chosen> {
    let method = asked.request.method.clone().unwrap_or_else(|| Method::Rtn.to_string());
    let preview = preview(context, asked, plan, &method)?;
    let told = Recommended {
        precision: preview.plan.to_string(),
        method,
        reason: format!("{} was asked for", preview.plan),
        predicted_speedup: None,
        predicted_memory_bytes: None,
        loss: None,
        quality: None,
        tier: None,
        basis: None,
        given: true,
        keeps_original: false,
        alternatives: Vec::new(),
        warnings: Vec::new(),
    };
    Ok(Chosen { told, preview: Some(preview) })
}

/// The best plan that can be written.
fn searched(context: &Context, asked: &Asked<'_>, notes: &mut Vec<Note>) -> Result<Chosen> {
    let advice = advice(context, asked)?;
    notes.extend(advice.notes.iter().cloned());
    let allowed = || advice.recommendation.outcomes.iter().filter(|outcome| outcome.refused.is_none());
    if allowed().next().is_none() {
        let hint = "give it more memory (⟨memory_limit⟩), a longer ⟨max_quality_loss⟩, or name a ⟨plan⟩";
        return Err(Error::request(advice.recommendation.reason.clone(), hint));
    }
    let mut refused: Option<(String, Error)> = None;
    for outcome in allowed() {
        let plan = outcome.candidate.plan.to_string();
        if outcome.candidate.losses.quality == Quality::Exact && outcome.candidate.plan.kv().is_none() {
            return Ok(Chosen { told: told(&advice, outcome, "none".to_owned(), refused), preview: None });
        }
        let method = asked.request.method.clone();
        let method = method.unwrap_or_else(|| method_of(outcome.candidate.algorithm));
        match preview(context, asked, &plan, &method) {
            Ok(preview) => {
                return Ok(Chosen { told: told(&advice, outcome, method, refused), preview: Some(preview) });
            }
            Err(error) => refused = refused.or(Some((plan, error))),
        }
    }
    Err(refused.map_or_else(|| Error::request("no plan can be written", "name one by ⟨plan⟩"), |(_, error)| error))
}

/// The quantizer's word for how codes are chosen.
fn method_of(algorithm: &str) -> String {
    algorithm.parse::<Method>().unwrap_or(Method::Rtn).to_string()
}

fn advice(context: &Context, asked: &Asked<'_>) -> Result<Box<ModelAdvice>> {
    let request = asked.request;
    let tokens = match request.phase {
        Phase::Prefill => asked.prompt,
        Phase::Decode => asked.prompt + asked.generate,
    };
    let wish = ModelWish {
        model: asked.name()?,
        phase: Some(request.phase),
        context: roofline_core::Dim::new("context", tokens)?,
        prompt: None,
        generate: None,
        batch: None,
        tp: None,
        goal: request.goal,
        price: None,
        limits: Limits { max_quality_loss: request.max_quality_loss, ..Limits::default() },
        explain: false,
        place: Place { on: Some(asked.on.clone()), memory_limit: request.memory_limit, ..Place::default() },
    };
    match recommend(context, &recommend::Request::Model(Box::new(wish)))? {
        recommend::Answer::Model(advice) => Ok(advice),
        recommend::Answer::Product(_) => Err(Error::request("a model was asked about", "")),
    }
}

/// What writing a plan takes. Everything that the quantizer refuses is refused here, before there is a folder.
fn preview(context: &Context, asked: &Asked<'_>, plan: &str, method: &str) -> Result<Box<Preview>> {
    let folder = asked.folder(plan);
    let gguf = plan.parse::<Plan>().is_ok_and(|plan| Layout::of_plan(&plan) == Layout::Gguf);
    let name = if gguf { ".roofline-preview.gguf" } else { ".roofline-preview" };
    let request = quantize::Request {
        model: Some(asked.path.clone()),
        plan: Some(plan.to_owned()),
        to: Some(existing(&folder).join(name)),
        method: method.to_owned(),
        dry_run: true,
        threads: asked.request.threads,
        ..quantize::Request::default()
    };
    match quantize(context, &request)? {
        quantize::Answer::Previewed(preview) => Ok(preview),
        _ => Err(Error::request("nothing was to be written", "")),
    }
}

/// The nearest folder that is there: its disk is the one that is written to.
fn existing(folder: &Path) -> PathBuf {
    let there = folder.ancestors().skip(1).find(|parent| parent.is_dir() || parent.as_os_str().is_empty());
    there.filter(|parent| !parent.as_os_str().is_empty()).map_or_else(|| PathBuf::from("."), Path::to_owned)
}

fn told(advice: &ModelAdvice, best: &Outcome, method: String, refused: Option<(String, Error)>) -> Recommended {
    let reason = match refused {
        None => advice.recommendation.reason.clone(),
        Some((plan, error)) => {
            let lost = best.lost.as_ref().map(|lost| format!(" ({lost})")).unwrap_or_default();
            format!(
                "{plan} comes first, but cannot be written: {error}. The best that can is {}{lost}",
                best.candidate.plan
            )
        }
    };
    let others = advice.recommendation.outcomes.iter().filter(|outcome| outcome.candidate.plan != best.candidate.plan);
    let alternative = |outcome: &Outcome| Alternative {
        precision: outcome.candidate.plan.to_string(),
        predicted_speedup: outcome.ratios.speedup,
        predicted_memory_bytes: outcome.memory.model().value() as u64,
        quality: words::loss(&outcome.candidate.losses),
        why_not: outcome.refused.clone().or_else(|| outcome.lost.clone()).unwrap_or_default(),
    };
    Recommended {
        precision: best.candidate.plan.to_string(),
        keeps_original: method == "none",
        method,
        reason,
        predicted_speedup: best.ratios.speedup,
        predicted_memory_bytes: Some(best.memory.model().value() as u64),
        loss: best.loss(),
        quality: Some(words::loss_with_source(&best.candidate.losses)),
        tier: Some(best.figures.tier.to_string()),
        basis: Some(best.figures.basis.name().to_owned()),
        given: false,
        alternatives: others.take(ALTERNATIVES).map(alternative).collect(),
        warnings: advice.recommendation.warnings.clone(),
    }
}
