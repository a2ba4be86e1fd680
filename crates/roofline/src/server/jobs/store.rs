//! Jobs on disk.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use roofline_run::Run;
use roofline_verbs::{
    Context, Error,
    context::{
        Home,
        files::{read_text, replace},
    },
    measure::{MeasuredKernel, shown_run},
};
use serde_json::Value;

use super::job::{Job, Record, Stage};
use crate::report::style;

const RECORD: &str = "job.json";
const RUN: &str = "run.jsonl";
const RESULT: &str = "result.json";

/// The right to change what is in `folder`; none where another process has it.
pub(super) fn lock(folder: &Path) -> Result<Option<File>, Error> {
    let path = folder.join("lock");
    let open = || {
        fs::create_dir_all(folder)?;
        File::options().create(true).truncate(false).write(true).open(&path)
    };
    let file = open().map_err(|error| Error::File { path: path.clone(), error })?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(Error::File { path, error }),
    }
}

/// Every job of `folder`. One that had not ended was interrupted, where nobody else works there; one that is broken is said
/// and left out.
pub(super) fn load(home: &Arc<Home>, folder: &Path, alone: bool) -> Result<BTreeMap<String, Arc<Job>>, Error> {
    let failed = |error| Error::File { path: folder.to_owned(), error };
    let mut jobs = BTreeMap::new();
    if !folder.is_dir() {
        return Ok(jobs);
    }
    for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
        let path = entry.path();
        if !path.join(RECORD).exists() {
            continue;
        }
        match read(home, &path, alone) {
            Ok(record) => {
                jobs.insert(record.id.clone(), Arc::new(Job::earlier(home.clone(), record, folder)));
            }
            Err(reason) => style::talk("warning", &format!("left out {}: {reason}", path.display())),
        }
    }
    Ok(jobs)
}

fn read(home: &Arc<Home>, path: &Path, alone: bool) -> Result<Record, String> {
    let text = read_text(&path.join(RECORD)).map_err(|error| error.to_string())?;
    let mut record: Record = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if path.file_name().is_none_or(|name| name.to_string_lossy() != record.id.as_str()) {
        return Err(format!("it is called `{}`", record.id));
    }
    if alone && matches!(record.state, Stage::Queued | Stage::Running) {
        record.interrupted(points(&Context::remote(home.clone()), path).len());
        save(path, &record).map_err(|error| error.to_string())?;
    }
    Ok(record)
}

pub(super) fn save(folder: &Path, record: &Record) -> Result<(), Error> {
    let path = folder.join(RECORD);
    let text = serde_json::to_string_pretty(record).map_err(io::Error::from).map_err(Error::file(&path))? + "\n";
    replace(&path, text.as_bytes())
}

/// Where the kernels of a job are written as they finish.
pub(super) fn run(folder: &Path) -> PathBuf {
    folder.join(RUN)
}

/// The finished kernels of a job, as far as they were written whole.
pub(super) fn points(context: &Context, folder: &Path) -> Vec<MeasuredKernel> {
    Run::read(&run(folder)).ok().and_then(|run| shown_run(context, &run).ok()).unwrap_or_default()
}

pub(super) fn keep_result(folder: &Path, answer: &Value) -> Result<(), Error> {
    replace(&folder.join(RESULT), answer.to_string().as_bytes())
}

pub(super) fn result(folder: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(folder.join(RESULT)).ok()?).ok()
}

/// Removes what a job wrote, and nothing else.
pub(super) fn forget(folder: &Path) -> Result<(), Error> {
    for name in [RUN, RESULT, "run.html", RECORD] {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::File { path, error }),
            _ => {}
        }
    }
    let _ = fs::remove_dir(folder);
    Ok(())
}
