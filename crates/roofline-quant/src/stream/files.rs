//! The files that a run writes, each byte at its place.

use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
};

use crate::{
    Error, Result, Workspace,
    disk::write_all_at,
    job::{Output, Place, QuantizeJob},
    part::Share,
};

/// The open output files; none of them where nothing is to be written.
pub(crate) struct Files(Vec<Option<(PathBuf, File)>>);

impl Files {
    /// Where what is written is dropped.
    pub(crate) const NOWHERE: Self = Self(Vec::new());

    /// Opens those that the share writes into. What an interrupted run wrote stays.
    pub(super) fn create(job: &QuantizeJob<'_>, share: &Share, space: &Workspace) -> Result<Self> {
        let open = |(at, output): (usize, &Output)| {
            share.files.contains(&at).then(|| create(output, &space.out())).transpose()
        };
        Ok(Self(job.files.iter().enumerate().map(open).collect::<Result<_>>()?))
    }

    pub(super) fn write(&self, to: Place, offset: u64, bytes: &[u8]) -> Result<()> {
        let Some((path, file)) = self.0.get(to.file).and_then(Option::as_ref) else { return Ok(()) };
        write_all_at(file, bytes, to.offset + offset).map_err(Error::file("write", path))
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.0.iter().flatten().try_for_each(|(path, file)| file.sync_data().map_err(Error::file("write", path)))
    }
}

/// Opens a file at its full length, with its head.
pub(crate) fn create(output: &Output, folder: &Path) -> Result<(PathBuf, File)> {
    let path = folder.join(&output.name);
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(Error::file("create", &path))?;
    file.set_len(output.bytes).map_err(Error::file("write", &path))?;
    write_all_at(&file, &output.head.bytes(), 0).map_err(Error::file("write", &path))?;
    Ok((path, file))
}
