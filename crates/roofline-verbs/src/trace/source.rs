//! A profiler's file, opened with care: compressed or not, and never more of it than was agreed.
//!
//! Traces reach hundreds of megabytes, so they are read as a stream. A file of a few kilobytes may unpack to any length, and
//! one event may be as long as the file; both are bounded where the bytes come in, so that no reader further on has to
//! think of it.

use std::{
    cell::Cell,
    fs,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    rc::Rc,
};

use flate2::read::MultiGzDecoder;

use crate::{Error, Result, text::binary};

/// Most bytes of a trace, unpacked.
pub(crate) const LONGEST: u64 = 2 << 30;
/// Most bytes of one event.
const LONGEST_EVENT: u64 = 1 << 20;
/// Buffered bytes: one read of the disk, and many of the parser.
const BUFFER: usize = 1 << 18;

/// How much may still be read of the event that is being read, shared by who parses and who reads.
#[derive(Clone)]
pub(crate) struct Allowance(Rc<Cell<u64>>);

impl Allowance {
    fn unlimited() -> Self {
        Self(Rc::new(Cell::new(u64::MAX)))
    }

    /// An event begins.
    pub(crate) fn event(&self) {
        self.0.set(LONGEST_EVENT);
    }

    /// What follows is skipped, however long.
    pub(crate) fn lift(&self) {
        self.0.set(u64::MAX);
    }
}

/// The unpacked bytes of a file, counted.
pub(crate) struct Source {
    inner: Box<dyn BufRead>,
    longest: u64,
    left: u64,
    allowance: Allowance,
}

impl Source {
    /// Opens a regular file; a pipe or a device could go on for ever.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let hint = "name a trace of torch.profiler (.json, .json.gz) or an export of `ncu --csv`";
        if !fs::metadata(path).map_err(Error::file(path))?.is_file() {
            return Err(Error::request(format!("{}: not a regular file", path.display()), hint));
        }
        let file = fs::File::open(path).map_err(Error::file(path))?;
        Self::new(file, LONGEST).map_err(Error::file(path))
    }

    /// The same of bytes from anywhere, at most `longest` of them once they are unpacked.
    pub(crate) fn new(bytes: impl Read + 'static, longest: u64) -> io::Result<Self> {
        let mut packed = BufReader::with_capacity(BUFFER, bytes);
        let inner: Box<dyn BufRead> = if packed.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(packed)))
        } else {
            Box::new(packed)
        };
        Ok(Self { inner, longest, left: longest, allowance: Allowance::unlimited() })
    }

    /// Less, for who keeps all of it.
    pub(crate) fn shorter(self, longest: u64) -> Self {
        Self { longest, left: self.left.min(longest), ..self }
    }

    /// What bounds single events.
    pub(crate) fn allowance(&self) -> Allowance {
        self.allowance.clone()
    }

    /// The first byte that says something, which stays to be read. Marks of byte order and white space go.
    pub(crate) fn first(&mut self) -> io::Result<Option<u8>> {
        loop {
            let buffer = self.inner.fill_buf()?;
            let Some(first) = buffer.first().copied() else { return Ok(None) };
            if !(first.is_ascii_whitespace() || [0xef, 0xbb, 0xbf].contains(&first)) {
                return Ok(Some(first));
            }
            self.inner.consume(1);
            self.left = self.left.saturating_sub(1);
        }
    }
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let most = binary(self.longest as f64);
            let text = format!("it unpacks to more than {most}, the most that is read; profile fewer steps");
            return Err(io::Error::other(text));
        }
        let allowed = self.allowance.0.get();
        if allowed == 0 {
            let kilobytes = LONGEST_EVENT >> 10;
            return Err(io::Error::other(format!(
                "an event is longer than {kilobytes} KiB, which none of a profiler's is"
            )));
        }
        let most = (into.len() as u64).min(self.left).min(allowed) as usize;
        let count = self.inner.read(&mut into[..most])?;
        self.left -= count as u64;
        if allowed != u64::MAX {
            self.allowance.0.set(allowed - count as u64);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn compressed_or_not_is_seen_by_its_first_bytes() {
        for bytes in [b"\xef\xbb\xbf {\"a\":1}".to_vec(), packed(b" {\"a\":1}")] {
            let mut source = Source::new(io::Cursor::new(bytes), 100).unwrap();
            assert_eq!(source.first().unwrap(), Some(b'{'));
            let mut text = String::new();
            source.read_to_string(&mut text).unwrap();
            assert_eq!(text, "{\"a\":1}");
        }
    }

    /// A thousandth of the length on disk says nothing of what comes out.
    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = packed(&vec![b' '; 1 << 20]);
        assert!(bomb.len() < 4096, "{}", bomb.len());
        let mut source = Source::new(io::Cursor::new(bomb), 1000).unwrap();
        let mut bytes = Vec::new();
        let error = source.read_to_end(&mut bytes).unwrap_err();
        assert!(error.to_string().contains("unpacks to more than"), "{error}");
        assert_eq!(bytes.len(), 1000);
    }

    #[test]
    fn half_a_compressed_file_is_an_error() {
        let mut half = packed(&[7; 5000]);
        half.truncate(half.len() / 2);
        let mut source = Source::new(io::Cursor::new(half), 1 << 20).unwrap();
        assert!(source.read_to_end(&mut Vec::new()).is_err());
    }
}
