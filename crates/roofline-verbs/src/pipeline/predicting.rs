//! What theory says before anything runs, by the verb that says it.

use roofline_core::Dim;

use super::{
    asked::Asked,
    told::{Expected, PredictedPlace, Speed},
};
use crate::{
    Context, Error, Note, Result,
    predict::{self, ModelPass, ModelPrediction, PassEstimate},
    request::{Phase, Setting},
};

/// The original at 16 bit and the plan on a device, with the prompt and the answer that are measured here.
pub(super) fn predict(
    context: &Context,
    asked: &Asked<'_>,
    on: &str,
    plan: &str,
    notes: &mut Vec<Note>,
) -> Result<PredictedPlace> {
    let (context_length, generate) = (Dim::new("prompt", asked.prompt)?, Dim::new("generate", asked.generate)?);
    let sixteen = context.device(on)?.sixteen_bit().to_string();
    let request = predict::Request::Model(ModelPass {
        generate: Some(generate),
        context: context_length,
        ..pass(
            asked,
            Setting { on: vec![on.to_owned()], precision: vec![sixteen, plan.to_owned()], ..Setting::default() },
        )?
    });
    let predict::Answer::Model(told) = predict::predict(context, &request)? else {
        return Err(Error::request("a model was asked about", ""));
    };
    notes.extend(told.notes.iter().cloned());
    place(&told, asked.request.phase)
}

/// The question about the model itself, of which every other has its own fields.
pub(super) fn pass(asked: &Asked<'_>, setting: Setting) -> Result<ModelPass> {
    Ok(ModelPass {
        model: asked.name()?,
        phase: None,
        batch: Dim::ONE,
        context: crate::request::context(),
        generate: None,
        lowering: crate::request::Lower::default(),
        setting,
    })
}

fn place(told: &ModelPrediction, phase: Phase) -> Result<PredictedPlace> {
    let labels: Vec<&str> = told.estimates.iter().map(|row| row.precision.as_str()).collect();
    let first = labels.first().copied().unwrap_or_default().to_owned();
    let row = |label: &str, phase| told.estimates.iter().find(move |row| row.precision == label && row.phase == phase);
    let rows = |label: &str| row(label, Phase::Prefill).map(|prefill| (prefill, row(label, phase)));
    let (before, typical) = rows(&first).ok_or_else(|| Error::request("nothing could be predicted", ""))?;
    let basis = typical.map_or(before.figures.basis, |typical| typical.figures.basis.max(before.figures.basis));
    let after = labels.iter().find(|label| **label != first).and_then(|label| rows(label));
    Ok(PredictedPlace {
        device: before.device.clone(),
        device_name: before.device_name.clone(),
        tier: before.figures.tier.to_string(),
        basis: basis.name().to_owned(),
        before: expected(before),
        after: after.map(|(prefill, _)| expected(prefill)),
        speedup: after.and_then(|(_, typical)| typical?.ratios.speedup),
    })
}

fn expected(prefill: &PassEstimate) -> Expected {
    let request = prefill.request.as_ref();
    Expected {
        precision: prefill.precision.clone(),
        ttft_us: request.map_or(prefill.figures.predicted_time_us, |request| request.ttft_us),
        tpot_us: request.and_then(|request| request.time_per_output_token_us),
        memory_bytes: prefill.memory_bytes.value() as u64,
        fits: prefill.fits,
    }
}

/// What theory says of the passes that ran.
pub(super) fn of_passes(device: (&str, &str), before: &Speed, after: &Speed, phase: Phase) -> Option<PredictedPlace> {
    let times = before.time(phase).1.zip(after.time(phase).1);
    Some(PredictedPlace {
        device: device.0.to_owned(),
        device_name: device.1.to_owned(),
        tier: before.tier.clone(),
        basis: [before.basis.clone()?, after.basis.clone()?].into_iter().max_by_key(|basis| strength(basis))?,
        before: before.expected()?,
        after: after.expected(),
        speedup: times.map(|(before, after)| before / after),
    })
}

/// The weaker, the larger.
fn strength(basis: &str) -> usize {
    ["calibrated", "published", "transferred", "prior"].iter().position(|name| *name == basis).unwrap_or(usize::MAX)
}
