//! Where a run writes: a folder beside the target, which becomes the target in one rename when all is done.
//!
//! ```text
//! .NAME.partial/lock            held while a run is at it
//! .NAME.partial/job.json        what is being made, from what
//! .NAME.partial/journal.jsonl   tensors that are safely on disk, and their errors
//! .NAME.partial/layers/         what a method that goes by data has made of layers
//! .NAME.partial/out/            the target
//! ```
//!
//! A run that is killed leaves this folder behind and the target untouched; a run that resumes goes on from the journal. A
//! part of a run has the same in `.NAME.part-1-of-4`, and leaves it there for whoever joins the parts.

mod disk;
mod found;
mod journal;

pub(crate) use found::{Found, Unfit};

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Error, ErrorStats, Result,
    disk::{enough_space, free_space},
    part::Part,
};
pub(crate) use disk::put;
use disk::{exchange, is_at, occupied, sync_folder, writable};
use journal::{begin, finished, same};

/// What is made, and the same before it has its name.
const JOB: &str = "job.json";
const JOB_DRAFT: &str = "job.json.draft";
/// The file of a run's journal.
const JOURNAL: &str = "journal.jsonl";
/// The folder of layers that a method has made.
const LAYERS: &str = "layers";

/// What may be done about things in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Replace a target that is there.
    pub force: bool,
    /// Go on with a run that was interrupted.
    pub resume: bool,
}

impl Manner {
    /// Refuses a target that is there already and may not be replaced, or that nothing can be made beside, before anything is known
    /// of what becomes of it.
    pub(crate) fn admits(self, target: &Path) -> Result<()> {
        let (parent, name) = split(target)?;
        free(&parent, target, self)?;
        let partial = parent.join(folder(&name));
        if partial.exists() {
            idle(&partial)?;
            goes_on(&partial, None, self)?;
        }
        Ok(())
    }
}

/// Room for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that are free, where the system tells.
    pub free: Option<u64>,
    /// Bytes of an interrupted run, which are gone on with or make room.
    pub reused: u64,
}

/// A target in the making.
#[derive(Debug)]
pub struct Workspace {
    target: PathBuf,
    partial: PathBuf,
    force: bool,
    journal: File,
    lock: File,
    /// Items that an interrupted run finished, with their errors.
    pub done: BTreeMap<usize, Option<ErrorStats>>,
}

impl Workspace {
    /// Prepares to write `target`, a file or a folder, or a part of it. `job` says what is made from what, and is resumed only
    /// if it is the same; `files` are the names and lengths of what goes into the target, and `needed` the bytes it all takes.
    pub fn open(
        target: &Path,
        part: Option<Part>,
        job: &Value,
        files: &[(&str, u64)],
        single: bool,
        needed: u64,
        manner: Manner,
    ) -> Result<Self> {
        let (parent, partial) = admitted(target, part, single, manner)?;
        let fresh = !partial.exists();
        if fresh {
            // What a disk refuses is refused before anything is made on it.
            enough_space(&parent, needed)?;
            match fs::create_dir(&partial) {
                // Another run came between the two calls; the lock says which of them goes on.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(Error::file("create", &partial))?,
            }
        }
        let lock = lock(&partial).inspect_err(|_| {
            // Whoever has it may have been faster: a folder with anything in it is theirs.
            let _ = fs::remove_dir(&partial);
        })?;
        let made = recover(&partial, target).and_then(|()| {
            let goes_on = continues(&partial, part, job, manner)?;
            let done = if goes_on { earlier(&partial, files)? } else { BTreeMap::new() };
            // What a disk refuses costs nothing of what lies there.
            enough_space(&parent, needed.saturating_sub(reused(&partial)))?;
            if done.is_empty() {
                // Layers were made before the first tensor was written.
                clear(&partial, if goes_on { &[JOB, JOURNAL, LAYERS] } else { &[] })?;
            }
            let journal = begin(&partial, job, done.is_empty())?;
            let (target, partial, force) = (target.to_owned(), partial.clone(), manner.force);
            Ok(Self { target, partial, force, journal, lock, done })
        });
        if made.is_err() && fresh {
            let _ = fs::remove_dir_all(&partial);
        }
        made
    }

    /// Everything that [`Workspace::open`] would refuse but for want of room, with nothing written.
    pub fn check(target: &Path, job: &Value, single: bool, manner: Manner) -> Result<DiskSpace> {
        let (parent, partial) = admitted(target, None, single, manner)?;
        let mut found = DiskSpace { free: free_space(&parent)?, reused: 0 };
        if partial.exists() {
            idle(&partial)?;
            continues(&partial, None, job, manner)?;
            found.reused = reused(&partial);
        }
        Ok(found)
    }

    /// The folder that becomes the target.
    pub fn out(&self) -> PathBuf {
        self.partial.join("out")
    }

    /// The folder of layers that a method has made.
    pub(crate) fn layers(&self) -> PathBuf {
        self.partial.join(LAYERS)
    }

    /// Notes items whose bytes are on disk.
    pub(crate) fn note(&self, items: &[(usize, Option<ErrorStats>)]) -> Result<()> {
        journal::append(&self.journal, &self.partial.join(JOURNAL), items)
    }

    /// Makes what was written the target: the folder, or the one file `single` in it.
    pub fn finish(self, single: Option<&str>) -> Result<()> {
        let out = self.out();
        sync_folder(&out)?;
        let made = single.map_or_else(|| out.clone(), |name| out.join(name));
        if self.force {
            replaceable(&self.target)?;
            of_one_kind(&self.target, single.is_some())?;
        }
        if self.force && self.target.is_dir() && !self.target.is_symlink() {
            // What was the target is `out` afterwards, and must not be taken for what the journal speaks of.
            let (journal, aside) = (self.partial.join(JOURNAL), self.partial.join("journal.aside"));
            fs::rename(&journal, &aside).map_err(Error::file("write", &aside))?;
            sync_folder(&self.partial)?;
            exchange(&made, &self.target).inspect_err(|_| {
                let _ = fs::rename(&aside, &journal);
            })?;
        } else if self.force {
            fs::rename(&made, &self.target).map_err(Error::file("write", &self.target))?;
        } else {
            put(&made, &self.target)?;
        }
        let (parent, _) = split(&self.target)?;
        sync_folder(&parent)?;
        self.abandon();
        Ok(())
    }

    /// What is left of a run that failed: nothing, except what took weights or a method that goes by data their time where a disk
    /// or a memory is full now, and everything where whoever asked stopped it, who may want to go on.
    pub(crate) fn fail(self, error: Error) -> Error {
        let kept = match &error {
            Error::Cancelled => true,
            Error::File { .. } | Error::Space { .. } | Error::Memory { .. } => {
                let written = finished(&self.partial).is_ok_and(|done| !done.is_empty());
                written || has_layers(&self.layers())
            }
            _ => false,
        };
        if !kept {
            self.abandon();
        }
        error
    }

    /// Leaves a part for whoever joins it: its folder.
    pub(crate) fn leave(self) -> PathBuf {
        self.partial
    }

    /// Leaves nothing behind. What cannot be removed is in nobody's way.
    pub fn abandon(self) {
        let _ = clear(&self.partial, &[]);
        let _ = fs::remove_file(self.partial.join("lock"));
        drop((self.journal, self.lock));
        let _ = fs::remove_dir(&self.partial);
    }
}

/// The folder that a target goes into, and the one it is made in; an error where it may not be.
fn admitted(target: &Path, part: Option<Part>, single: bool, manner: Manner) -> Result<(PathBuf, PathBuf)> {
    let (parent, name) = split(target)?;
    free(&parent, target, manner)?;
    of_one_kind(target, single)?;
    let partial = part.map_or_else(|| folder(&name), |part| part.folder(&name));
    let partial = parent.join(partial);
    Ok((parent, partial))
}

/// The folder that a target of this name is made in.
fn folder(name: &str) -> String {
    format!(".{name}.partial")
}

/// Refuses a target that may not be made, or be replaced.
fn free(parent: &Path, target: &Path, manner: Manner) -> Result<()> {
    fs::read_dir(parent).map_err(Error::file("write into", parent))?;
    writable(parent)?;
    if target.symlink_metadata().is_ok() && !manner.force {
        return Err(taken(target));
    }
    replaceable(target)
}

/// Refuses a folder that another run writes in, or in which others have put something; leaves it as it is.
fn idle(partial: &Path) -> Result<()> {
    if let Ok(file) = File::open(partial.join("lock"))
        && matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    {
        return Err(in_use(partial));
    }
    only_ours(partial)
}

/// Bytes that lie in the folder of an interrupted run: what goes on with it has them already, and what begins anew frees them.
fn reused(partial: &Path) -> u64 {
    occupied(&partial.join("out")) + occupied(&partial.join(LAYERS))
}

/// A folder that another run has the lock of.
fn in_use(partial: &Path) -> Error {
    Error::Exists {
        path: partial.to_owned(),
        state: "is being written by another run",
        hint: "wait for it, or choose another place with `⟨to⟩`",
    }
}

/// What is there and may not be replaced.
fn taken(target: &Path) -> Error {
    let hint = "choose another place with `⟨to⟩`, or replace it with `⟨force⟩`";
    Error::Exists { path: target.to_owned(), state: "is there already", hint }
}

/// Whether a method that goes by data has finished a layer.
fn has_layers(folder: &Path) -> bool {
    let layer =
        |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|entry| extension(&entry.path()) == "safetensors");
    fs::read_dir(folder).is_ok_and(|mut entries| entries.any(layer))
}

/// What an interrupted run of the same job finished.
fn earlier(partial: &Path, files: &[(&str, u64)]) -> Result<BTreeMap<usize, Option<ErrorStats>>> {
    // A journal speaks of files: without them it says nothing.
    if files.iter().all(|file| whole(partial, file)) { finished(partial) } else { Ok(BTreeMap::new()) }
}

/// Whether a file has been begun at its full length.
fn whole(partial: &Path, (name, length): &(&str, u64)) -> bool {
    fs::metadata(partial.join("out").join(name)).is_ok_and(|file| file.is_file() && file.len() == *length)
}

/// Whether there is an interrupted run of the same job to go on with; an error where one is in the way.
fn continues(partial: &Path, part: Option<Part>, job: &Value, manner: Manner) -> Result<bool> {
    let goes_on = goes_on(partial, part, manner)?;
    if goes_on {
        same(partial, job)?;
    }
    Ok(goes_on)
}

/// Whether there is an interrupted run, of whatever job, to go on with; an error where one is in the way.
fn goes_on(partial: &Path, part: Option<Part>, manner: Manner) -> Result<bool> {
    if !partial.join(JOB).exists() || !partial.join(JOURNAL).exists() {
        return Ok(false);
    }
    if !manner.resume && !manner.force {
        let (state, hint) = match part {
            None => ("is left of an interrupted run", "continue it with `⟨resume⟩`, or start again with `⟨force⟩`"),
            Some(_) => ("is there already", "keep and complete it with `⟨resume⟩`, or make it again with `⟨force⟩`"),
        };
        return Err(Error::Exists { path: partial.to_owned(), state, hint });
    }
    Ok(manner.resume)
}

/// What a run puts into its folder, beside the lock.
const OURS: [&str; 7] = [JOB, JOB_DRAFT, JOURNAL, "journal.aside", LAYERS, "out", "out.before"];

/// Puts back what an interrupted exchange took away, and refuses a folder in which others have put something.
fn recover(partial: &Path, target: &Path) -> Result<()> {
    only_ours(partial)?;
    let before = partial.join("out.before");
    if before.exists() && target.symlink_metadata().is_err() {
        fs::rename(&before, target).map_err(Error::file("write", target))?;
    }
    Ok(())
}

/// Refuses a folder in which others have put something.
fn only_ours(partial: &Path) -> Result<()> {
    for entry in fs::read_dir(partial).map_err(Error::file("read", partial))? {
        let name = entry.map_err(Error::file("read", partial))?.file_name();
        if name != "lock" && !OURS.iter().any(|ours| name == *ours) {
            let state = "holds files of somebody else's";
            let hint = "move it away: it has the name of the folder that this run writes in";
            return Err(Error::Exists { path: partial.to_owned(), state, hint });
        }
    }
    Ok(())
}

/// Removes everything of ours but the lock and what is `kept`.
fn clear(partial: &Path, kept: &[&str]) -> Result<()> {
    for path in OURS.iter().filter(|name| !kept.contains(name)).map(|name| partial.join(name)) {
        let removed =
            if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::File { action: "remove", path, error });
            }
            _ => {}
        }
    }
    Ok(())
}

/// A file takes the place of a file, and a folder that of a folder.
fn of_one_kind(target: &Path, single: bool) -> Result<()> {
    let Ok(metadata) = target.symlink_metadata() else { return Ok(()) };
    let state = match (metadata.is_dir(), single) {
        (true, true) => "is a folder, and a file is to be written",
        (false, false) => "is a file, and a folder is to be written",
        _ => return Ok(()),
    };
    Err(Error::Exists { path: target.to_owned(), state, hint: "choose another place with `⟨to⟩`" })
}

/// The folder a path lies in, and its last word.
fn split(target: &Path) -> Result<(PathBuf, String)> {
    let Some(name) = target.file_name() else {
        let path = target.display();
        return Err(Error::unsupported(format!("`{path}` names no file or folder to write"), "name one with `⟨to⟩`"));
    };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), name.to_string_lossy().into_owned()))
}

/// Only what looks like a checkpoint, and like nothing else, may be replaced: a careless path must not empty a home, nor a
/// folder in which models are collected.
fn replaceable(target: &Path) -> Result<()> {
    let Ok(metadata) = target.symlink_metadata() else { return Ok(()) };
    let fine = if metadata.is_dir() {
        let entries = fs::read_dir(target).map_err(Error::file("read", target))?;
        let entries = entries.collect::<std::io::Result<Vec<_>>>().map_err(Error::file("read", target))?;
        is_checkpoint(&entries.iter().map(fs::DirEntry::path).collect::<Vec<_>>())
    } else {
        metadata.is_file() && extension(target) == "gguf"
    };
    if fine {
        return Ok(());
    }
    let state = "is there already and is no checkpoint";
    Err(Error::Exists { path: target.to_owned(), state, hint: "choose another place with `⟨to⟩`" })
}

fn extension(path: &Path) -> String {
    path.extension().map_or_else(String::new, |extension| extension.to_string_lossy().to_lowercase())
}

/// Whether these files are a model's, and only a model's.
fn is_checkpoint(paths: &[PathBuf]) -> bool {
    const KNOWN: [&str; 9] = ["safetensors", "gguf", "json", "md", "model", "txt", "jinja", "tiktoken", "py"];
    let name = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
    let known = |path: &PathBuf| {
        let licence = ["license", "notice", "use_policy"].iter().any(|word| name(path).starts_with(word));
        path.is_file() && (licence || KNOWN.contains(&extension(path).as_str()))
    };
    let count = |end: &str| paths.iter().filter(|path| extension(path) == end).count();
    let folder = paths.iter().any(|path| name(path) == "config.json") && count("safetensors") > 0 && count("gguf") == 0;
    let single = count("gguf") == 1 && paths.len() <= 2;
    paths.is_empty() || paths.iter().all(known) && (folder || single)
}

/// Takes the lock of the folder: it is this run's until its end.
fn lock(partial: &Path) -> Result<File> {
    let path = partial.join("lock");
    loop {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = match file {
            // The run that had made the folder has just ended, and taken it away.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(in_use(partial)),
            file => file.map_err(Error::file("create", &path))?,
        };
        match file.try_lock() {
            // The run that held it may have ended, and taken the file with it, between the two calls.
            Ok(()) if is_at(&file, &path) => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use(partial)),
            Err(TryLockError::Error(error)) => return Err(Error::File { action: "lock", path, error }),
        }
    }
}

#[cfg(test)]
mod tests;
