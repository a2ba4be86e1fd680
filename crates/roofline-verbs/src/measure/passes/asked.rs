//! What is asked of whole passes, and when they are what is asked for.

use std::path::PathBuf;

use clap::Args;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    Context, Error, Result,
    predict::ModelPass,
    request::{BackendName, CONTEXT, Measuring, Range, list},
    running::{Numbers, weights_at},
    subjects::refuse_theory,
};

/// What can be said of whole passes beside what is said of a model.
#[derive(Args, Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Passes {
    /// Make weights up, stored as each plan of --precision says, and run the model with them: no checkpoint is needed
    #[arg(long, global = true, help_heading = "Whole models")]
    #[schemars(extend("x-local" = true))]
    pub random: bool,
    /// Further checkpoints, to stand beside the first
    #[arg(long, global = true, value_name = "CHECKPOINT", value_delimiter = ',', help_heading = "Whole models")]
    #[serde(deserialize_with = "list::read")]
    #[schemars(schema_with = "list::schema::<PathBuf>", extend("x-local" = true))]
    pub beside: Vec<PathBuf>,
    /// Tokens of the prompt, a pass for each number; 512 when left out
    #[arg(long, global = true, value_name = "RANGE", help_heading = "Whole models")]
    #[schemars(extend("x-local" = true))]
    pub prompt: Option<Range>,
    /// Sequences side by side, a pass for each number; that of --batch when left out
    #[arg(long, global = true, value_name = "RANGE", help_heading = "Whole models")]
    #[schemars(extend("x-local" = true))]
    pub batches: Option<Range>,
    #[command(flatten)]
    #[serde(flatten)]
    pub numbers: Numbers,
}

impl Passes {
    /// Whether anything was said that only whole passes heed.
    fn given(&self) -> Option<&'static str> {
        let Numbers { kv, values, threads, chunk } = &self.numbers;
        let said = [
            ("random", self.random),
            ("beside", !self.beside.is_empty()),
            ("prompt", self.prompt.is_some()),
            ("batches", self.batches.is_some()),
            ("kv", kv.is_some()),
            ("values", values.is_some()),
            ("threads", threads.is_some()),
            ("chunk", chunk.is_some()),
        ];
        said.into_iter().find_map(|(name, said)| said.then_some(name))
    }

    /// Whether whole passes are asked for: weights lie where the model's name says, or are to be made up. Kernels alone are
    /// measured of a model that is only a name or a configuration, and by backends that do not run models. What cannot be
    /// is refused here, before a machine is measured for its sake.
    pub(crate) fn wanted(&self, context: &Context, asked: Option<&ModelPass>, run: &Measuring) -> Result<bool> {
        let elsewhere = run.backend.filter(|backend| *backend == BackendName::Null);
        let here = |asked: &ModelPass| asked.model.text().and_then(weights_at).is_some();
        match (asked, self.given()) {
            (Some(asked), _) if context.is_local() && elsewhere.is_none() && (self.random || here(asked)) => {
                refuse_kernels(asked, run)?;
                Ok(true)
            }
            (_, None) => Ok(false),
            (Some(_), Some(said)) => {
                let hint = match elsewhere {
                    Some(_) => "the null backend runs no models: `⟨backend cpu⟩` or `cuda` does",
                    None => "name a checkpoint's folder or a GGUF file, or say ⟨random⟩",
                };
                Err(Error::request(format!("⟨{said}⟩ is of models that run, and this one is only described"), hint))
            }
            (None, Some(said)) => {
                let hint = "`⟨roofline measure model ./checkpoint⟩`, or leave it out";
                Err(Error::request(format!("⟨{said}⟩ is of whole models"), hint))
            }
        }
    }
}

/// Refuses what is said of single kernels.
fn refuse_kernels(asked: &ModelPass, run: &Measuring) -> Result<()> {
    refuse_theory(&asked.setting)?;
    let lowering = &asked.lowering;
    let tp = lowering.tp.iter().any(|ranks| ranks.get() > 1);
    let gpu = run.backend() == BackendName::Cuda;
    let alone = if gpu { "a model runs on one GPU" } else { "one machine cannot share a layer with itself" };
    let said = [
        ("phase", asked.phase.is_some(), "both passes are measured"),
        ("context", asked.context.get() != CONTEXT, "say how long prompts are by ⟨prompt⟩"),
        ("tp", tp, alone),
        ("unfused", lowering.unfused, "steps are fused as the engine runs them"),
        ("all_logits", lowering.all_logits, "logits are computed of the last token"),
        ("no_causal", lowering.no_causal, "tokens see those before them"),
        ("warm", run.warm, "weights come from memory, as they do when text is generated"),
        ("energy", run.energy && !gpu, "only a GPU's power is watched during whole passes"),
        ("resume", run.resume, "start a new file with another ⟨out⟩"),
    ];
    // Which GPU there is, is known once it is opened.
    if let Some(on) = asked.setting.first().filter(|on| *on != "this" && !gpu) {
        return Err(Error::request(format!("the processor of this machine cannot run as `{on}`"), "leave out ⟨on⟩"));
    }
    match said.into_iter().find(|(_, said, _)| *said) {
        Some((name, _, why)) => {
            let hint = format!("{why}; `⟨roofline measure model ./checkpoint/config.json⟩` measures single kernels");
            Err(Error::request(format!("⟨{name}⟩ is of single kernels, and this is a whole model"), hint))
        }
        None => Ok(()),
    }
}
