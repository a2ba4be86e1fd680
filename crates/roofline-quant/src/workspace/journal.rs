//! What a run leaves for the one that goes on: what is being made, and which items are safely on disk.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{JOB, JOB_DRAFT, JOURNAL};
use crate::{Error, ErrorStats, Result};

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct Line {
    item: usize,
    /// Under the name that journals of interrupted runs have it by.
    #[serde(rename = "tally")]
    stats: Option<ErrorStats>,
}

/// Makes the folder one that can be resumed; returns its journal, `empty` where nothing is done.
pub(super) fn begin(partial: &Path, job: &Value, empty: bool) -> Result<File> {
    let out = partial.join("out");
    fs::create_dir_all(&out).map_err(Error::file("create", &out))?;
    let path = partial.join(JOB);
    if !path.exists() {
        // Never half a file under this name.
        let draft = partial.join(JOB_DRAFT);
        let write = |mut file: File| file.write_all(job.to_string().as_bytes()).and_then(|()| file.sync_all());
        File::create(&draft).and_then(write).map_err(Error::file("write", &draft))?;
        fs::rename(&draft, &path).map_err(Error::file("write", &path))?;
    }
    let journal = partial.join(JOURNAL);
    let file = OpenOptions::new().create(true).append(true).open(&journal).map_err(Error::file("create", &journal))?;
    if empty {
        file.set_len(0).map_err(Error::file("write", &journal))?;
    }
    Ok(file)
}

/// In which word what was begun there is another job than this; none where it is the same.
pub(super) fn differing(partial: &Path, job: &Value) -> Result<Option<String>> {
    let path = partial.join(JOB);
    let earlier: Value = crate::checkpoint::read_json(&path, "job")?;
    let mut each = job.as_object().into_iter().flatten();
    Ok(each.find(|(key, value)| earlier.get(key) != Some(*value)).map(|(key, _)| key.clone()))
}

/// Whether the interrupted run was about the same.
pub(super) fn same(partial: &Path, job: &Value) -> Result<()> {
    match differing(partial, job)? {
        None => Ok(()),
        Some(key) => Err(Error::unsupported(
            format!("`{}` was begun with another {key}", partial.display()),
            "give the same arguments as then, or start again with `⟨force⟩`",
        )),
    }
}

/// What the journal holds; a last line that was cut short is dropped.
pub(super) fn finished(partial: &Path) -> Result<BTreeMap<usize, Option<ErrorStats>>> {
    let path = partial.join(JOURNAL);
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
            Ok((line.item, line.stats))
        })
        .collect()
}

/// Notes items whose bytes are on disk.
pub(super) fn append(mut file: &File, path: &Path, items: &[(usize, Option<ErrorStats>)]) -> Result<()> {
    let mut text = String::new();
    for (item, stats) in items {
        let line = Line { item: *item, stats: *stats };
        text += &serde_json::to_string(&line).unwrap_or_default();
        text.push('\n');
    }
    file.write_all(text.as_bytes()).map_err(Error::file("write", path))?;
    file.sync_data().map_err(Error::file("write", path))
}
