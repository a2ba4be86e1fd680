//! What the file system is asked for: room, and names that change hands at once.

use std::{
    fs::{self, File},
    path::Path,
};

use super::taken;
use crate::{Error, Result};

/// Bytes that files take on the disk: what was promised and not written yet takes none.
#[cfg(unix)]
pub(super) fn occupied(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.map(|file| file.blocks() * 512).sum()
}

#[cfg(not(unix))]
pub(super) fn occupied(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.map(|file| file.len()).sum()
}

/// Whether an open file is the one at that path.
#[cfg(unix)]
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: &fs::Metadata, b: &fs::Metadata| a.ino() == b.ino() && a.dev() == b.dev();
    matches!((file.metadata(), fs::metadata(path)), (Ok(open), Ok(there)) if same(&open, &there))
}

#[cfg(not(unix))]
pub(super) fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Refuses a folder in which nothing can be made, and makes nothing.
#[cfg(unix)]
pub(super) fn writable(folder: &Path) -> Result<()> {
    let allowed = rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(std::io::Error::from);
    allowed.map_err(Error::file("write into", folder))
}

/// Other systems are asked by writing.
#[cfg(not(unix))]
pub(super) fn writable(_folder: &Path) -> Result<()> {
    Ok(())
}

/// A rename is safe only once the folder that holds the name is on disk.
#[cfg(unix)]
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::file("write", folder))
}

#[cfg(not(unix))]
pub(super) fn sync_folder(_folder: &Path) -> Result<()> {
    Ok(())
}

/// Renames where nothing is: what appeared there since the run began is not ours.
#[cfg(target_os = "linux")]
pub(crate) fn put(made: &Path, target: &Path) -> Result<()> {
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
pub(crate) fn put(made: &Path, target: &Path) -> Result<()> {
    put_if_free(made, target)
}

fn put_if_free(made: &Path, target: &Path) -> Result<()> {
    if target.symlink_metadata().is_ok() {
        return Err(taken(target));
    }
    fs::rename(made, target).map_err(Error::file("write", target))
}

/// Lets what was made and the target change places.
#[cfg(target_os = "linux")]
pub(super) fn exchange(made: &Path, target: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, made, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => in_two_steps(made, target),
        Err(error) => Err(Error::File { action: "write", path: target.to_owned(), error: error.into() }),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn exchange(made: &Path, target: &Path) -> Result<()> {
    in_two_steps(made, target)
}

fn in_two_steps(made: &Path, target: &Path) -> Result<()> {
    let aside = made.with_extension("before");
    fs::rename(target, &aside).map_err(Error::file("write", target))?;
    fs::rename(made, target).map_err(Error::file("write", target)).inspect_err(|_| {
        let _ = fs::rename(&aside, target);
    })
}
