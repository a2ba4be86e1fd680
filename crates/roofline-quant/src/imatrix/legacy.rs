//! The form before GGUF, `.dat`: an i32 of entries, then for each a name with its length before it, how many pieces it is of, how
//! many numbers follow, and the numbers, which are means times the pieces. At the end, where a file has it: all pieces, and the text.

use std::path::Path;

use super::{Entry, FORMAT, Imatrix, LONGEST};
use crate::{Error, Result, checkpoint::read_bounded};

/// The longest name of a tensor, or of a text.
const LONGEST_NAME: usize = 4096;

/// What is left of a file.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (own, rest) = self.0.split_at_checked(bytes).ok_or_else(|| "ends too early".to_owned())?;
        self.0 = rest;
        Ok(own)
    }

    fn number(&mut self) -> Result<i32, String> {
        let bytes = self.take(4)?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A count that is above zero.
    fn count(&mut self, of: &str) -> Result<usize, String> {
        let count = self.number()?;
        usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(|| format!("says {count} {of}"))
    }

    fn text(&mut self) -> Result<String, String> {
        let length = self.count("letters of a name")?;
        if length > LONGEST_NAME {
            return Err(format!("says {length} letters of a name, more than {LONGEST_NAME}"));
        }
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| "has a name that is no UTF-8".to_owned())
    }
}

pub(super) fn read(path: &Path) -> Result<Imatrix> {
    let bytes = read_bounded(path, LONGEST, FORMAT)?;
    parse(&bytes).map_err(|reason| Error::malformed(path, FORMAT, reason))
}

fn parse(bytes: &[u8]) -> Result<Imatrix, String> {
    let mut rest = Rest(bytes);
    let entries = rest.count("entries").map_err(|reason| format!("it {reason}, and is no GGUF either"))?;
    let mut read = Imatrix::default();
    for at in 0..entries {
        let (name, entry) = entry(&mut rest).map_err(|reason| format!("entry {at} of {entries} {reason}"))?;
        if read.entries.insert(name.clone(), entry).is_some() {
            return Err(format!("`{name}` is there twice"));
        }
    }
    if let Ok(chunks) = rest.number() {
        read.chunks = u32::try_from(chunks).unwrap_or(0);
        read.datasets.extend(rest.text().ok());
    }
    Ok(read)
}

fn entry(rest: &mut Rest<'_>) -> Result<(String, Entry), String> {
    let name = rest.text()?;
    let calls = rest.number()?;
    let numbers = rest.count("numbers")?;
    let bytes = rest.take(numbers.checked_mul(4).ok_or("ends too early")?)?;
    let sums = bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
    // Numbers of no pieces are taken as they are.
    Ok((name, Entry { sums, counts: vec![if calls > 0 { calls as f32 } else { 1.0 }] }))
}
