//! What samples hand from one layer to the next: a row for each token, in memory, or in a file where memory is short.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use roofline_quant::{
    Error as FileError,
    disk::{allocate, enough_space, read_exact_at, write_all_at},
};

use crate::Result;

const BYTES: usize = size_of::<f32>();

/// The streams of all samples.
pub(crate) enum Streams {
    Memory(Vec<Vec<f32>>),
    File(Offloaded),
}

/// Streams in a file, one behind the other. It has no name, so that it is gone with whoever made it, however that ends.
pub(crate) struct Offloaded {
    file: File,
    folder: PathBuf,
    /// Numbers of each sample.
    lengths: Vec<usize>,
    /// Which samples have left something.
    written: Vec<bool>,
}

/// The stream of one sample, which a thread of its own may read and write.
pub(crate) enum Stream<'s> {
    Memory(&'s mut Vec<f32>),
    File { file: &'s File, folder: &'s Path, at: u64, length: usize, written: &'s mut bool },
}

impl Streams {
    /// Nothing yet, in memory.
    pub(crate) fn new(samples: usize) -> Self {
        Self::Memory(vec![Vec::new(); samples])
    }

    /// Nothing yet, in a file in `folder`, which has to have room for all: so many numbers of each sample.
    pub(crate) fn offloaded(folder: &Path, lengths: Vec<usize>) -> Result<Self> {
        let bytes = (lengths.iter().sum::<usize>() * BYTES) as u64;
        let file = tempfile::tempfile_in(folder).map_err(FileError::file("write into", folder))?;
        enough_space(folder, bytes)?;
        // A result that is written to the same disk must not reckon with this room.
        allocate(&file, bytes).map_err(FileError::file("write into", folder))?;
        let written = vec![false; lengths.len()];
        Ok(Self::File(Offloaded { file, folder: folder.to_owned(), lengths, written }))
    }

    /// Each sample's own.
    pub(crate) fn each(&mut self) -> Vec<Stream<'_>> {
        match self {
            Self::Memory(streams) => streams.iter_mut().map(Stream::Memory).collect(),
            Self::File(Offloaded { file, folder, lengths, written }) => {
                let mut next = 0;
                let stream = |(length, written): (&usize, _)| {
                    let (at, length) = (next, *length);
                    next += (length * BYTES) as u64;
                    Stream::File { file, folder, at, length, written }
                };
                lengths.iter().zip(written).map(stream).collect()
            }
        }
    }

    /// Whether they are in memory.
    pub(crate) fn in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}

impl Stream<'_> {
    /// The rows that were written last; none before.
    pub(crate) fn read(&self) -> Result<Vec<f32>> {
        match self {
            Self::Memory(stream) => Ok((*stream).clone()),
            Self::File { written: false, .. } => Ok(Vec::new()),
            Self::File { file, folder, at, length, .. } => {
                let mut bytes = vec![0; length * BYTES];
                read_exact_at(file, &mut bytes, *at).map_err(FileError::file("read a sample back from", folder))?;
                Ok(bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
            }
        }
    }

    /// Rows in the place of those that were there.
    pub(crate) fn write(&mut self, rows: Vec<f32>) -> Result<()> {
        match self {
            Self::Memory(stream) => **stream = rows,
            Self::File { file, folder, at, length, written } => {
                debug_assert_eq!(rows.len(), *length, "as many rows as there is room for");
                let bytes: Vec<u8> = rows.iter().flat_map(|number| number.to_le_bytes()).collect();
                write_all_at(file, &bytes, *at).map_err(FileError::file("leave a sample in", folder))?;
                **written = true;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_what_memory_keeps() {
        let lengths = vec![3, 0, 5];
        let mut kept = [Streams::new(3), Streams::offloaded(&std::env::temp_dir(), lengths.clone()).unwrap()];
        // Not a number keeps its bits, too.
        let rows = |start: f32| {
            lengths.iter().map(move |length| vec![start, -0.0, f32::NAN, 1e-42, start][..*length].to_vec())
        };
        for streams in &mut kept {
            assert!(streams.each().iter().all(|stream| stream.read().unwrap().is_empty()), "nothing yet");
            for start in [1.5, -3.25] {
                streams.each().into_iter().zip(rows(start)).for_each(|(mut stream, rows)| stream.write(rows).unwrap());
                for (stream, rows) in streams.each().iter().zip(rows(start)) {
                    let bits = |rows: &[f32]| rows.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&stream.read().unwrap()), bits(&rows));
                }
            }
        }
        assert_eq!(kept.map(|streams| streams.in_memory()), [true, false]);
    }

    #[test]
    fn a_place_that_is_none_is_named() {
        let none = Path::new("/proc/nowhere");
        let error = Streams::offloaded(none, vec![1]).err().unwrap().to_string();
        assert!(error.contains("/proc/nowhere"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn its_room_is_taken_at_once() {
        use std::os::unix::fs::MetadataExt;
        let full = Streams::offloaded(&std::env::temp_dir(), vec![1 << 58]).err().unwrap().to_string();
        assert!(full.contains("bytes free"), "{full}");
        let Streams::File(taken) = Streams::offloaded(&std::env::temp_dir(), vec![1 << 18]).unwrap() else { panic!() };
        let file = taken.file.metadata().unwrap();
        assert_eq!(file.len(), 1 << 20);
        // A file system that cannot give room beforehand has only promised it.
        if allocate(&taken.file, 1 << 20).unwrap() {
            assert!(file.blocks() * 512 >= 1 << 20, "{} blocks", file.blocks());
        }
    }
}
