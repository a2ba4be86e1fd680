//! Parts that other runs left beside a target.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{JOB, JOURNAL, Workspace, clear, journal, lock, only_ours, split, whole};
use crate::{Error, ErrorStats, Result, part::Part};

/// A part, held while it is looked at: nobody else writes in it.
#[derive(Debug)]
pub(crate) struct Found {
    partial: PathBuf,
    lock: File,
    /// Items that are safely on disk, with their errors.
    pub(crate) done: BTreeMap<usize, Option<ErrorStats>>,
}

/// Why a part is of no use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It is not there.
    Missing,
    /// A run is at it.
    Busy,
    /// It was made from something else, or into something else: in this word.
    Other(String),
    /// A file of it is not there, or not as long as it must be.
    File(String),
}

impl Workspace {
    /// The parts of a target that have a folder, in order.
    pub(crate) fn parts(target: &Path) -> Result<Vec<Part>> {
        let (parent, name) = split(target)?;
        let mut parts = Vec::new();
        for entry in fs::read_dir(&parent).map_err(Error::file("read", &parent))? {
            let entry = entry.map_err(Error::file("read", &parent))?;
            parts.extend(Part::of_folder(&entry.file_name().to_string_lossy(), &name));
        }
        parts.sort_unstable();
        Ok(parts)
    }

    /// A part of a target, if it is what `job` says and its files have these names and lengths.
    pub(crate) fn find(target: &Path, part: Part, job: &Value, files: &[(&str, u64)]) -> Result<Result<Found, Unfit>> {
        let (parent, name) = split(target)?;
        let partial = parent.join(part.folder(&name));
        if !partial.join(JOB).exists() || !partial.join(JOURNAL).exists() {
            return Ok(Err(Unfit::Missing));
        }
        let lock = match lock(&partial) {
            Ok(lock) => lock,
            Err(Error::Exists { .. }) => return Ok(Err(Unfit::Busy)),
            Err(error) => return Err(error),
        };
        only_ours(&partial)?;
        if let Some(what) = journal::differing(&partial, job)? {
            return Ok(Err(Unfit::Other(what)));
        }
        let done = journal::finished(&partial)?;
        if let Some((name, _)) = files.iter().find(|file| !whole(&partial, file)) {
            return Ok(Err(Unfit::File((*name).to_owned())));
        }
        Ok(Ok(Found { partial, lock, done }))
    }
}

impl Found {
    /// Where its files are.
    pub(crate) fn out(&self) -> PathBuf {
        self.partial.join("out")
    }

    /// Takes it away. What cannot be removed is in nobody's way.
    pub(crate) fn remove(self) {
        let _ = clear(&self.partial, &[]);
        let _ = fs::remove_file(self.partial.join("lock"));
        drop(self.lock);
        let _ = fs::remove_dir(&self.partial);
    }
}
