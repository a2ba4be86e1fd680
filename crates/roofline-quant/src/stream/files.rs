//! The files that a run writes, each byte at its place.

use std::{
    fs::{File, OpenOptions},
    path::PathBuf,
};

use crate::{
    Error, Result, Workspace,
    job::{Output, Place, QuantizeJob},
};

/// The open output files; none of them where nothing is to be written.
pub(crate) struct Files(Vec<(PathBuf, File)>);

impl Files {
    /// Where what is written is dropped.
    pub(crate) const NOWHERE: Self = Self(Vec::new());

    /// Opens them at their full length, with their heads. What an interrupted run wrote stays.
    pub(super) fn create(job: &QuantizeJob<'_>, space: &Workspace) -> Result<Self> {
        let open = |output: &Output| {
            let path = space.out().join(&output.name);
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(Error::file("create", &path))?;
            file.set_len(output.bytes).map_err(Error::file("write", &path))?;
            write_all_at(&file, &output.head.bytes(), 0).map_err(Error::file("write", &path))?;
            Ok((path, file))
        };
        Ok(Self(job.files.iter().map(open).collect::<Result<_>>()?))
    }

    pub(super) fn write(&self, to: Place, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some((path, file)) = self.0.get(to.file) else { return Ok(()) };
        write_all_at(file, bytes, to.offset + offset).map_err(Error::file("write", path))
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.0.iter().try_for_each(|(path, file)| file.sync_data().map_err(Error::file("write", path)))
    }
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}
