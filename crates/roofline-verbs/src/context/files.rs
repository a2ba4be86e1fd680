//! Files that are read whole, and files that appear whole.

use std::{
    fs,
    io::{Read, Write},
    path::Path,
};

use crate::{Error, Result};

/// Longest file that is read: a device is a page of text, a `config.json` a few.
const MAX_LENGTH: u64 = 1 << 20;

/// Written beside, synced and renamed: a reader sees the old file or the new one, never half of it.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let write = || {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        let mut file = fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&beside);
        Error::File { path: path.to_owned(), error }
    })
}

/// Whether a file can be made at `path`; leaves nothing behind.
pub fn writable(path: &Path) -> Result<()> {
    folder_of(path)?;
    let made = fs::File::create_new(path).and_then(|_| fs::remove_file(path));
    made.map_err(Error::file(path))
}

/// Makes the folder of a file.
pub fn folder_of(path: &Path) -> Result<()> {
    let made = path.parent().filter(|folder| !folder.as_os_str().is_empty()).map(fs::create_dir_all);
    made.unwrap_or(Ok(())).map_err(Error::file(path))
}

/// The text of a device file or a `config.json`.
pub fn read_text(path: &Path) -> Result<String> {
    read_short(path, "name a device file or a `config.json`")
}

/// The same of points that somebody measured.
pub fn read_points(path: &Path) -> Result<String> {
    read_short(path, "points are read from a file of 1 MiB at most; split one that is longer")
}

/// The same of a model card.
pub fn read_card(path: &Path) -> Result<String> {
    read_short(path, "a model card is a text of 1 MiB at most")
}

/// The text of a regular file of sensible length, without the mark that spreadsheets start it with; a pipe or a device
/// could go on for ever. `hint` says what is expected instead.
fn read_short(path: &Path, hint: &str) -> Result<String> {
    let refuse = |reason: &str| Error::request(format!("{}: {reason}", path.display()), hint);
    if !fs::metadata(path).map_err(Error::file(path))?.is_file() {
        return Err(refuse("not a regular file"));
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(Error::file(path))?;
    file.take(MAX_LENGTH + 1).read_to_string(&mut text).map_err(Error::file(path))?;
    if text.len() as u64 > MAX_LENGTH {
        return Err(refuse("longer than any such file"));
    }
    Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
}
