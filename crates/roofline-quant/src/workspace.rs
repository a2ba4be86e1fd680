//! Where a run writes: a folder beside the target, which becomes the target in one rename when all is done.
//!
//! ```text
//! .NAME.partial/lock            held while a run is at it
//! .NAME.partial/job.json        what is being made, from what
//! .NAME.partial/journal.jsonl   tensors that are safely on disk, and their errors
//! .NAME.partial/out/            the target
//! ```
//!
//! A run that is killed leaves this folder behind and the target untouched; `--resume` goes on from the journal.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result, Tally};

/// What may be done about things in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Replace a target that is there.
    pub force: bool,
    /// Go on with a run that was interrupted.
    pub resume: bool,
}

/// A target in the making.
#[derive(Debug)]
pub struct Workspace {
    target: PathBuf,
    partial: PathBuf,
    force: bool,
    journal: File,
    lock: File,
    /// Items that an interrupted run finished, with their tallies.
    pub done: BTreeMap<usize, Option<Tally>>,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct Line {
    item: usize,
    tally: Option<Tally>,
}

impl Workspace {
    /// Prepares to write `target`, a file or a folder. `job` says what is made from what, and is resumed only if it is the
    /// same; `files` are the names and lengths of what goes into the target, and `needed` the bytes it all takes.
    pub fn open(
        target: &Path,
        job: &Value,
        files: &[(&str, u64)],
        single: bool,
        needed: u64,
        manner: Manner,
    ) -> Result<Self> {
        let (parent, partial) = admitted(target, single, manner)?;
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
            let done = earlier(&partial, job, files, manner)?;
            if done.is_empty() {
                clear(&partial)?;
            }
            let space = if done.is_empty() { needed } else { needed.saturating_sub(occupied(&partial.join("out"))) };
            enough_space(&parent, space)?;
            let journal = begin(&partial, job)?;
            let (target, partial, force) = (target.to_owned(), partial.clone(), manner.force);
            Ok(Self { target, partial, force, journal, lock, done })
        });
        if made.is_err() && fresh {
            let _ = fs::remove_dir_all(&partial);
        }
        made
    }

    /// Everything that [`Workspace::open`] would refuse, with nothing written; how many bytes there is room for, where the
    /// system tells.
    pub fn check(target: &Path, job: &Value, single: bool, manner: Manner) -> Result<Option<u64>> {
        let (parent, partial) = admitted(target, single, manner)?;
        if partial.exists() {
            let lock = partial.join("lock");
            if let Ok(file) = File::open(&lock)
                && matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
            {
                return Err(in_use(&partial));
            }
            only_ours(&partial)?;
            continues(&partial, job, manner)?;
        }
        free_space(&parent)
    }

    /// The folder that becomes the target.
    pub fn out(&self) -> PathBuf {
        self.partial.join("out")
    }

    /// Notes items whose bytes are on disk.
    pub(crate) fn note(&self, items: &[(usize, Option<Tally>)]) -> Result<()> {
        let mut text = String::new();
        for (item, tally) in items {
            let line = Line { item: *item, tally: *tally };
            text += &serde_json::to_string(&line).unwrap_or_default();
            text.push('\n');
        }
        let path = self.partial.join("journal.jsonl");
        (&self.journal).write_all(text.as_bytes()).map_err(Error::file("write", &path))?;
        self.journal.sync_data().map_err(Error::file("write", &path))
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
            let (journal, aside) = (self.partial.join("journal.jsonl"), self.partial.join("journal.aside"));
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

    /// Leaves nothing behind. What cannot be removed is in nobody's way.
    pub fn abandon(self) {
        let _ = clear(&self.partial);
        let _ = fs::remove_file(self.partial.join("lock"));
        drop((self.journal, self.lock));
        let _ = fs::remove_dir(&self.partial);
    }
}

/// The folder that a target goes into, and the one it is made in; an error where it may not be.
fn admitted(target: &Path, single: bool, manner: Manner) -> Result<(PathBuf, PathBuf)> {
    let (parent, name) = split(target)?;
    fs::read_dir(&parent).map_err(Error::file("write into", &parent))?;
    if target.symlink_metadata().is_ok() && !manner.force {
        return Err(taken(target));
    }
    replaceable(target)?;
    of_one_kind(target, single)?;
    let partial = parent.join(format!(".{name}.partial"));
    Ok((parent, partial))
}

/// A folder that another run has the lock of.
fn in_use(partial: &Path) -> Error {
    Error::Exists {
        path: partial.to_owned(),
        state: "is being written by another run",
        hint: "wait for it, or choose another place with `--to`",
    }
}

/// What is there and may not be replaced.
fn taken(target: &Path) -> Error {
    let hint = "choose another place with `--to`, or replace it with `--force`";
    Error::Exists { path: target.to_owned(), state: "is there already", hint }
}

/// What an interrupted run of the same job finished; nothing where there was none, or where it starts again.
fn earlier(
    partial: &Path,
    job: &Value,
    files: &[(&str, u64)],
    manner: Manner,
) -> Result<BTreeMap<usize, Option<Tally>>> {
    if !continues(partial, job, manner)? {
        return Ok(BTreeMap::new());
    }
    // A journal speaks of files: without them it says nothing.
    let whole = |(name, length): &(&str, u64)| {
        fs::metadata(partial.join("out").join(name)).is_ok_and(|file| file.is_file() && file.len() == *length)
    };
    if files.iter().all(whole) { finished(partial) } else { Ok(BTreeMap::new()) }
}

/// Whether there is an interrupted run of the same job to go on with; an error where one is in the way.
fn continues(partial: &Path, job: &Value, manner: Manner) -> Result<bool> {
    if !partial.join("job.json").exists() || !partial.join("journal.jsonl").exists() {
        return Ok(false);
    }
    if !manner.resume && !manner.force {
        let hint = "continue it with `--resume`, or start again with `--force`";
        return Err(Error::Exists { path: partial.to_owned(), state: "is left of an interrupted run", hint });
    }
    if manner.resume {
        same(partial, job)?;
    }
    Ok(manner.resume)
}

/// What a run puts into its folder, beside the lock.
const OURS: [&str; 6] = ["job.json", "job.json.draft", "journal.jsonl", "journal.aside", "out", "out.before"];

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

/// Removes everything of ours but the lock.
fn clear(partial: &Path) -> Result<()> {
    for path in OURS.map(|name| partial.join(name)) {
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
    Err(Error::Exists { path: target.to_owned(), state, hint: "choose another place with `--to`" })
}

/// Makes the folder one that can be resumed; returns its journal.
fn begin(partial: &Path, job: &Value) -> Result<File> {
    let out = partial.join("out");
    fs::create_dir_all(&out).map_err(Error::file("create", &out))?;
    let path = partial.join("job.json");
    if !path.exists() {
        // Never half a file under this name.
        let draft = partial.join("job.json.draft");
        let write = |mut file: File| file.write_all(job.to_string().as_bytes()).and_then(|()| file.sync_all());
        File::create(&draft).and_then(write).map_err(Error::file("write", &draft))?;
        fs::rename(&draft, &path).map_err(Error::file("write", &path))?;
    }
    let journal = partial.join("journal.jsonl");
    let file = OpenOptions::new().create(true).append(true).open(&journal);
    file.map_err(Error::file("create", &journal))
}

/// Bytes that files take on the disk: what was promised and not written yet takes none.
#[cfg(unix)]
fn occupied(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.map(|file| file.blocks() * 512).sum()
}

#[cfg(not(unix))]
fn occupied(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.map(|file| file.len()).sum()
}

/// The folder a path lies in, and its last word.
fn split(target: &Path) -> Result<(PathBuf, String)> {
    let Some(name) = target.file_name() else {
        let path = target.display();
        return Err(Error::unsupported(format!("`{path}` names no file or folder to write"), "name one with `--to`"));
    };
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.to_owned(), name.to_string_lossy().into_owned()))
}

/// Only what looks like a checkpoint, and like nothing else, may be replaced: `--force --to ~` must not empty a home, nor a
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
    Err(Error::Exists { path: target.to_owned(), state, hint: "choose another place with `--to`" })
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

/// Whether an open file is the one at that path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: &fs::Metadata, b: &fs::Metadata| a.ino() == b.ino() && a.dev() == b.dev();
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(there)) if same(&open, &there))
}

#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Whether the interrupted run was about the same.
fn same(partial: &Path, job: &Value) -> Result<()> {
    let path = partial.join("job.json");
    let earlier: Value = crate::checkpoint::read_json(&path, "job")?;
    let differing = job.as_object().into_iter().flatten().find(|(key, value)| earlier.get(key) != Some(value));
    match differing {
        None => Ok(()),
        Some((key, _)) => Err(Error::unsupported(
            format!("`{}` was begun with another {key}", partial.display()),
            "give the same arguments as then, or start again with `--force`",
        )),
    }
}

/// What the journal holds; a last line that was cut short is dropped.
fn finished(partial: &Path) -> Result<BTreeMap<usize, Option<Tally>>> {
    let path = partial.join("journal.jsonl");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(Error::File { action: "read", path, error }),
    };
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole < text.len() {
        let file = OpenOptions::new().write(true).open(&path).map_err(Error::file("write", &path))?;
        file.set_len(whole as u64).map_err(Error::file("write", &path))?;
    }
    let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let line: Line =
                serde_json::from_slice(line).map_err(|error| Error::malformed(&path, "journal", error.to_string()))?;
            Ok((line.item, line.tally))
        })
        .collect()
}

fn enough_space(folder: &Path, needed: u64) -> Result<()> {
    match free_space(folder)? {
        Some(free) if free < needed => Err(Error::Space { path: folder.to_owned(), free, needed }),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn free_space(folder: &Path) -> Result<Option<u64>> {
    let error = |error: rustix::io::Errno| Error::File {
        action: "ask for the space of",
        path: folder.to_owned(),
        error: error.into(),
    };
    let disk = rustix::fs::statvfs(folder).map_err(error)?;
    Ok(Some(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Other systems are asked by writing.
#[cfg(not(unix))]
fn free_space(_folder: &Path) -> Result<Option<u64>> {
    Ok(None)
}

/// A rename is safe only once the folder that holds the name is on disk.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::file("write", folder))
}

#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> Result<()> {
    Ok(())
}

/// Renames where nothing is: what appeared there since the run began is not ours.
#[cfg(target_os = "linux")]
fn put(made: &Path, target: &Path) -> Result<()> {
    use rustix::{
        fs::{CWD, RenameFlags, renameat_with},
        io::Errno,
    };
    match renameat_with(CWD, made, CWD, target, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(taken(target)),
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS) => put_if_free(made, target),
        Err(error) => Err(Error::File { action: "write", path: target.to_owned(), error: error.into() }),
    }
}

#[cfg(not(target_os = "linux"))]
fn put(made: &Path, target: &Path) -> Result<()> {
    put_if_free(made, target)
}

fn put_if_free(made: &Path, target: &Path) -> Result<()> {
    if target.symlink_metadata().is_ok() {
        return Err(taken(target));
    }
    fs::rename(made, target).map_err(Error::file("write", target))
}

#[cfg(target_os = "linux")]
fn exchange(made: &Path, target: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, made, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => in_two_steps(made, target),
        Err(error) => Err(Error::File { action: "write", path: target.to_owned(), error: error.into() }),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(made: &Path, target: &Path) -> Result<()> {
    in_two_steps(made, target)
}

fn in_two_steps(made: &Path, target: &Path) -> Result<()> {
    let aside = made.with_extension("before");
    fs::rename(target, &aside).map_err(Error::file("write", target))?;
    fs::rename(made, target).map_err(Error::file("write", target)).inspect_err(|_| {
        let _ = fs::rename(&aside, target);
    })
}

#[cfg(test)]
mod tests;
