//! Windows that are finished, one line each, so that an evaluation that was interrupted goes on.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::PathBuf,
};

use roofline_core::hash::fnv1a;
use roofline_engine::evaluation::WindowScore;

use crate::{Context, Error, Result};

/// The folder of them.
const FOLDER: &str = "evaluations";

/// The file of one evaluation.
pub(super) struct State {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
}

impl State {
    /// The file of what `identity` says, everything that the figures depend on, and the windows in it that can be gone on
    /// from. None where nothing is kept.
    pub(super) fn begin(context: &Context, identity: &str, resume: bool) -> Result<Option<(Self, Vec<WindowScore>)>> {
        let folder = if resume {
            context.home().required_folder(FOLDER)?
        } else {
            let Some(folder) = context.home().folder(FOLDER) else { return Ok(None) };
            folder
        };
        let path = folder.join(format!("{:016x}.jsonl", fnv1a(identity.as_bytes())));
        let opened = fs::create_dir_all(&folder)
            .and_then(|()| OpenOptions::new().create(true).read(true).write(true).truncate(!resume).open(&path));
        let mut file = opened.map_err(Error::file(&path))?;
        let (mut windows, mut kept) = (Vec::new(), 0);
        if resume {
            let text = fs::read_to_string(&path).map_err(Error::file(&path))?;
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let Ok(score) = serde_json::from_str::<WindowScore>(line) else { break };
                if score.index != windows.len() {
                    break;
                }
                windows.push(score);
                kept += line.len() as u64;
            }
            // What was written in part is written again.
            let cut = file.set_len(kept).and_then(|()| file.seek(SeekFrom::Start(kept)));
            cut.map_err(Error::file(&path))?;
        }
        Ok(Some((Self { path, file, length: kept }, windows)))
    }

    /// One more window. One that does not fit on the disk leaves those before it as they are.
    pub(super) fn add(&mut self, score: &WindowScore) -> Result<()> {
        let written = serde_json::to_string(score).map_err(io::Error::from).and_then(|line| {
            self.file.write_all((line + "\n").as_bytes())?;
            self.file.stream_position()
        });
        match written {
            Ok(length) => self.length = length,
            Err(error) => {
                let _ = self.file.set_len(self.length);
                return Err(Error::File { path: self.path.clone(), error });
            }
        }
        Ok(())
    }

    /// Nothing is left to go on with.
    pub(super) fn forget(self) -> Result<()> {
        fs::remove_file(&self.path).map_err(Error::file(self.path))
    }
}
