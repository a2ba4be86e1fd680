//! How far it came: a file that is written after each step, beside and renamed, so that it always says what is done.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    asked::{Asked, REPORT},
    told::{Found, StepName},
};
use crate::{Error, Result, context::files};

/// Its name in the folder.
const NAME: &str = "pipeline.json";
/// How it is written; another one is not understood.
const VERSION: u32 = 1;

/// Steps that are done, and what they found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    version: u32,
    pub(super) steps: Vec<Kept>,
    pub(super) found: Found,
    #[serde(skip)]
    path: PathBuf,
}

/// A step that is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) name: StepName,
    pub(super) seconds: f64,
    pub(super) words: String,
    /// What it was done with.
    inputs: BTreeMap<String, String>,
}

impl State {
    /// Where it lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// That of an earlier run; none where there was none.
    pub(super) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(Error::file(&path))?,
        };
        let broken = |why: String| {
            let hint = "⟨force⟩ starts again; or name another folder by ⟨to⟩";
            Error::request(format!("{} is no state of a pipeline: {why}", path.display()), hint)
        };
        let state: Self = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        if state.version != VERSION {
            return Err(broken(format!("it has version {}, and this program writes {VERSION}", state.version)));
        }
        Ok(Some(Self { path, ..state }))
    }

    /// One to begin with, or to go on with. What is in the way is refused, and so is what was done with other inputs.
    pub(super) fn open(folder: &Path, asked: &Asked<'_>) -> Result<Self> {
        let fresh = || Self { version: VERSION, path: folder.join(NAME), ..Self::default() };
        if asked.request.resume {
            let missing = || {
                let hint = "leave out ⟨resume⟩, or name the folder of the run by ⟨to⟩";
                Error::request(format!("there is nothing to go on with in {}", folder.display()), hint)
            };
            let state = Self::load(folder)?.ok_or_else(missing)?;
            state.unchanged(asked)?;
            return Ok(state);
        }
        let occupied = match fs::read_dir(folder) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(Error::file(folder)(error)),
        };
        if occupied && !asked.request.force {
            let hint = if folder.join(NAME).exists() {
                "⟨resume⟩ goes on with it, ⟨force⟩ starts again; or name another folder by ⟨to⟩"
            } else {
                "name a new folder by ⟨to⟩; ⟨force⟩ replaces what a pipeline writes there, and nothing else"
            };
            return Err(Error::Taken { path: folder.to_owned(), hint });
        }
        Ok(fresh())
    }

    /// Takes away what an earlier run said of this folder: it is not true any more.
    pub(super) fn clear(&self) -> Result<()> {
        for old in [self.path.clone(), self.path.with_file_name(REPORT)] {
            match fs::remove_file(&old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::File { path: old, error }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Refuses to go on from steps that were done with something else, and says with what.
    fn unchanged(&self, asked: &Asked<'_>) -> Result<()> {
        for step in &self.steps {
            let now = asked.inputs(step.name);
            let changed: Vec<String> = step
                .inputs
                .iter()
                .filter(|(name, was)| now.get(*name) != Some(*was))
                .map(|(name, was)| format!("{name} was {was}, and is {} now", now.get(name).map_or("gone", |now| now)))
                .collect();
            if !changed.is_empty() {
                let what = format!("{} was done with something else: {}", step.name.words(), changed.join("; "));
                let hint = "ask as before, or start again: ⟨force⟩, or another folder by ⟨to⟩";
                return Err(Error::request(what, hint));
            }
        }
        Ok(())
    }

    /// A step that is done.
    pub(super) fn done(&self, name: StepName) -> Option<&Kept> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// Forgets a step and those after it, since what it made is gone.
    pub(super) fn forget_from(&mut self, name: StepName) {
        self.steps.retain(|step| step.name < name || step.name == StepName::MeasureBefore);
    }

    /// Notes a step, and writes all of it down.
    pub(super) fn keep(&mut self, asked: &Asked<'_>, name: StepName, seconds: f64, words: &str) -> Result<()> {
        let inputs = asked.inputs(name);
        self.steps.retain(|step| step.name != name);
        self.steps.push(Kept { name, seconds, words: words.to_owned(), inputs });
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from).map_err(Error::file(&self.path))?;
        files::replace(&self.path, (text + "\n").as_bytes())
    }
}
