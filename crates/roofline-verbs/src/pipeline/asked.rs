//! What is asked, looked at before anything is done: the model, the text, the lengths, and where everything goes.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use roofline_core::{Dim, Plan, hash::fnv1a};
use roofline_quant::{Checkpoint, Layout};
use serde_json::json;

use super::{Request, StepName};
use crate::{
    Context, Error, Result, demo,
    request::ModelName,
    running::{Executor, Opened, weights_at, within},
};

/// Tokens of a prompt, where nobody says how many.
const PROMPT: u64 = 512;
/// The page about it, and how far it came.
pub(super) const REPORT: &str = "report.html";

/// Tokens that follow the prompt, where nobody says how many.
pub(super) fn generated() -> Dim {
    Dim::new("generate", 32).unwrap_or(Dim::ONE)
}

/// What both are evaluated on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Text {
    File(PathBuf),
    /// What comes with the demo.
    Own,
}

impl Text {
    /// Its file, where it has one or will have one in that folder.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::Own => folder.join("evaluation.txt"),
        }
    }

    fn identity(&self) -> String {
        match self {
            Self::File(path) => identity(path),
            Self::Own => format!("the demo's ({:016x})", fnv1a(demo::text().as_bytes())),
        }
    }
}

/// A request that can be done, as far as that is known before.
pub(super) struct Asked<'r> {
    pub(super) request: &'r Request,
    pub(super) path: PathBuf,
    pub(super) opened: Opened,
    /// Whether it is the model that comes along, which has a text of its own.
    pub(super) demo: bool,
    /// The text, where there is one.
    pub(super) text: Option<Text>,
    pub(super) prompt: u64,
    pub(super) generate: u64,
    /// Who runs the models.
    pub(super) executor: Executor,
    /// The device that the plan is for.
    pub(super) on: String,
}

impl<'r> Asked<'r> {
    pub(super) fn of(context: &Context, request: &'r Request) -> Result<Self> {
        if request.resume && request.force {
            return Err(Error::request("⟨resume⟩ goes on and ⟨force⟩ starts again", "say one of them"));
        }
        let demo = request.demo || request.model.as_deref().is_some_and(demo::is_meant);
        let path = if demo { demo::checkpoint(context, Path::new(demo::NAME))? } else { model(context, request)? };
        let opened = Opened::open(context, &path)?;
        let text = match &request.text {
            Some(path) => {
                readable(path)?;
                Some(Text::File(path.clone()))
            }
            None => demo.then_some(Text::Own),
        };
        let generate = request.generate.get();
        let prompt = match (request.prompt, opened.model.max_context) {
            (Some(prompt), _) => prompt.get(),
            (None, Some(most)) => PROMPT.min(most.get().saturating_sub(generate)).max(1),
            (None, None) => PROMPT,
        };
        within(&opened.model, (prompt + generate) as usize)?;
        let executor = request.execution.executor(context)?;
        // "This" is whoever runs here: a GPU by its own name, since a name of the registry is what others understand.
        let on =
            if request.on == "this" && executor.is_gpu() { executor.device(context)?.key } else { request.on.clone() };
        Ok(Self { request, path, opened, demo, text, prompt, generate, executor, on })
    }

    /// Whether the plan is for the machine that everything is measured on.
    pub(super) fn is_here(&self) -> bool {
        self.request.on == "this"
    }

    /// The model as verbs are asked about it: its folder, else what the file says of itself.
    pub(super) fn name(&self) -> Result<ModelName> {
        let folder = &self.opened.checkpoint.folder;
        if self.path.is_dir() && folder.join("config.json").is_file() {
            // A folder of a registry's name is still a folder.
            let rooted = self.path.is_absolute() || self.path.starts_with(".") || self.path.starts_with("..");
            let path = if rooted { self.path.clone() } else { Path::new(".").join(&self.path) };
            return Ok(ModelName::Name(path.to_string_lossy().into_owned()));
        }
        let config = self.opened.checkpoint.config.clone();
        let unnamed =
            |_| Error::request("the checkpoint does not say what model it is", "name a folder with config.json");
        serde_json::from_value(config).map(ModelName::Config).map_err(unnamed)
    }

    /// Where everything goes.
    pub(super) fn folder(&self, plan: &str) -> PathBuf {
        let odd = |letter: char| !letter.is_ascii_alphanumeric() && !"._-".contains(letter);
        let named = || PathBuf::from(format!("{}-{plan}", self.opened.checkpoint.name()).replace(odd, "-"));
        self.request.to.clone().unwrap_or_else(|| Path::new(".").join(named()))
    }

    /// What each step depends on, in words that can be compared and read.
    pub(super) fn inputs(&self, step: StepName) -> BTreeMap<String, String> {
        let Request { memory_limit, phase, goal, max_quality_loss, plan, method, quick, threads, tokens, .. } =
            self.request;
        let word = |known: Option<String>| known.unwrap_or_else(|| "not given".to_owned());
        let backend = ("backend", self.executor.name.name().to_owned());
        let lengths = || [("prompt", self.prompt.to_string()), ("generate", self.generate.to_string())];
        let own = match step {
            StepName::Inspect => Vec::new(),
            StepName::Recommend => [
                ("on", self.on.clone()),
                ("memory limit", word(memory_limit.map(|bytes| bytes.to_string()))),
                ("phase", phase.to_string()),
                ("goal", format!("{goal:?}").to_lowercase()),
                ("largest quality loss", word(max_quality_loss.map(|share| share.0.to_string()))),
                ("plan", word(plan.clone())),
            ]
            .into_iter()
            .chain(lengths())
            .collect(),
            StepName::Quantize => vec![("method", word(method.clone()))],
            StepName::MeasureBefore | StepName::MeasureAfter => {
                let threads = word(threads.map(|threads| threads.to_string()));
                [("quick", quick.to_string()), ("threads", threads), backend].into_iter().chain(lengths()).collect()
            }
            StepName::Evaluate | StepName::Compare => vec![
                ("text", word(self.text.as_ref().map(Text::identity))),
                ("tokens of the text", word(tokens.map(|tokens| tokens.to_string()))),
                ("quick", quick.to_string()),
                backend,
            ],
        };
        let model = (step > StepName::Inspect).then(|| ("model".to_owned(), weights(&self.opened.checkpoint)));
        own.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(model).collect()
    }
}

/// Where the original's weights are, where they do not come along.
fn model(context: &Context, request: &Request) -> Result<PathBuf> {
    let Some(path) = &request.model else {
        return Err(Error::request("no model was named", "name a checkpoint's folder, or say ⟨demo⟩"));
    };
    let name = path.to_string_lossy();
    if context.is_local() && weights_at(&name).is_none() {
        let hint =
            "name a checkpoint's folder, its file of weights, or a GGUF file: the pipeline writes, runs and measures";
        let what = if path.exists() { "there are no weights in" } else { "there is no" };
        return Err(Error::request(format!("{what} {}", path.display()), hint));
    }
    Ok(path.clone())
}

/// Refuses a text that cannot be read, before hours are spent on its model.
fn readable(path: &Path) -> Result<()> {
    let mut start = [0; 1];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut start)).map_err(Error::file(path))?;
    if read == 0 {
        return Err(Error::request(format!("{} is empty", path.display()), "name a text of some thousand words"));
    }
    Ok(())
}

/// The file in which a plan's checkpoint goes.
pub(super) fn target(folder: &Path, plan: &Plan) -> PathBuf {
    folder.join(if Layout::of_plan(plan) == Layout::Gguf { "checkpoint.gguf" } else { "checkpoint" })
}

/// Which files a checkpoint has, how long they are and when they were written.
pub(super) fn weights(checkpoint: &Checkpoint) -> String {
    let files: Vec<String> = checkpoint.shards.iter().map(|shard| identity(&shard.path)).collect();
    let config = fnv1a(checkpoint.config.to_string().as_bytes());
    format!(
        "{} of {} bytes ({:016x})",
        checkpoint.name(),
        checkpoint.bytes(),
        fnv1a(files.concat().as_bytes()) ^ config
    )
}

/// A file's name, length and time.
fn identity(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Ok(metadata) = fs::metadata(path) else { return name };
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let changed = changed.map_or(0, |time| time.as_nanos());
    format!(
        "{name} of {} bytes ({:016x})",
        metadata.len(),
        fnv1a(json!([metadata.len(), changed.to_string()]).to_string().as_bytes())
    )
}
