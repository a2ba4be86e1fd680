//! Where the weights of a model that runs come from.

use std::path::PathBuf;

use roofline_core::{
    Device, Dim, Format, Model, Plan,
    format::Sizes,
    model::{Lowering, Workload},
};
use roofline_engine::Settings;

use super::Passes;
use crate::{
    Context, Error, Result,
    machine::{Varies, plans},
    predict::ModelPass,
    running::{Executor, Need, weights_at, within},
};

/// Weights on disk, or a plan to make them up by.
pub(super) enum Source {
    Checkpoint(PathBuf),
    Random(Box<Model>, Plan),
}

impl Source {
    /// What it is, in a few words.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Checkpoint(path) => path.display().to_string(),
            Self::Random(model, plan) => format!("{} with random weights in {}", model.name, plan.label()),
        }
    }
}

/// The checkpoints, or the plans, in the order in which they were named.
pub(super) fn sources(context: &Context, passes: &Passes, asked: &ModelPass, device: &Device) -> Result<Vec<Source>> {
    if passes.random {
        if !passes.beside.is_empty() {
            let hint = "say ⟨precision⟩ with several plans, or leave out ⟨random⟩";
            return Err(Error::request("⟨random⟩ weights are made, and those ⟨beside⟩ lie on disk", hint));
        }
        let model = context.model(&asked.model)?;
        let plans = if asked.setting.precision.is_empty() {
            vec![Plan::sixteen()]
        } else {
            plans(&asked.setting.precision, Varies::Model(&model), device)?
        };
        return Ok(plans.into_iter().map(|plan| Source::Random(Box::new(model.clone()), plan)).collect());
    }
    if !asked.setting.precision.is_empty() {
        let hint =
            "leave out ⟨precision⟩; `⟨roofline quantize⟩` writes other formats, ⟨random⟩ makes weights up in any";
        return Err(Error::request("a checkpoint runs in the formats that it is stored in", hint));
    }
    let first = asked.model.text().and_then(weights_at);
    let checked = |path: &PathBuf| {
        let missing = || {
            let message = format!("there are no weights in {}", path.display());
            Error::request(message, "name a checkpoint's folder, its file of weights, or a GGUF file")
        };
        weights_at(&path.to_string_lossy()).map(Source::Checkpoint).ok_or_else(missing)
    };
    first.iter().chain(&passes.beside).map(checked).collect()
}

/// How a model of made-up weights runs: with 16 bit between kernels, and the plan's cache.
pub(super) fn usual(plan: &Plan) -> Settings {
    let settings = Settings::with(Format::BF16);
    Settings { kv: plan.kv().unwrap_or(settings.kv), ..settings }
}

/// Refuses what there is no room for, before any of it is made. Weights are counted as the plan has them; what a GPU has no
/// kernel for takes more there, of which the engine knows.
pub(super) fn fits(
    model: &Model,
    plan: &Plan,
    device: &Device,
    (sequences, length): (usize, usize),
    settings: &Settings,
    executor: &Executor,
) -> Result<()> {
    within(model, length)?;
    let assignment = plan.on(device, Some(&model.anatomy))?;
    let workload = Workload::decode(sequences as u64, length as u64)?;
    let graph = model.graph(workload, Lowering::default())?;
    let weights = model.footprint_of(&graph, workload, Dim::ONE, &assignment, Sizes::Exact).weights;
    executor.has_room(&Need::of(model, weights, sequences, length, settings)?)
}
