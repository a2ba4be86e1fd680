//! Reading a head. The file may be anyone's: every count is held against the bytes that are left before it is believed,
//! so memory stays within a small multiple of the longest head there may be, and nothing that follows from a head can lie
//! outside the file.

use std::{
    collections::HashSet,
    io::{self, BufReader, Read},
    path::Path,
};

use super::{ALIGNMENT, ALIGNMENT_KEY, Header, Item, Tensor, Value};
use crate::{Error, checkpoint::open_regular, ggml::Type};

/// The most dimensions ggml has.
const MOST_DIMS: u32 = 4;
/// The longest head that is read. Most of a head is its vocabulary, and a quarter of a million tokens with their merges
/// take 15 MB. The length of the file is no bound: a hole of a terabyte costs nothing on disk.
const LONGEST_HEAD: u64 = 128 << 20;
/// The largest alignment that is believed; files have 32, or a page.
const MOST_ALIGNMENT: u64 = 1 << 20;

/// What is left of a file.
pub(super) struct Source<R> {
    reader: R,
    read: u64,
    left: u64,
}

impl<R: Read> Source<R> {
    /// Fills all of `bytes`.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        let wanted = bytes.len() as u64;
        if wanted > self.left {
            return Err(self.spent());
        }
        self.reader.read_exact(bytes).map_err(|error| ended(&error))?;
        self.left -= wanted;
        self.read += wanted;
        Ok(())
    }

    /// A length and as many bytes.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, String> {
        let length = u64::take(self)?;
        self.room(length, 1, "bytes")?;
        let mut bytes = Vec::new();
        // Grows with what is there, not with what is claimed.
        let got = self.reader.by_ref().take(length).read_to_end(&mut bytes).map_err(|error| ended(&error))?;
        if (got as u64) < length {
            return Err("ends too early".to_owned());
        }
        self.left -= length;
        self.read += length;
        Ok(bytes)
    }

    /// A length and as many bytes of text.
    fn text(&mut self) -> Result<String, String> {
        String::from_utf8(self.bytes()?).map_err(|_| "is no UTF-8".to_owned())
    }

    /// Whether `count` of at least `least` bytes can follow in a head.
    pub(super) fn room(&self, count: u64, least: u64, of: &str) -> Result<(), String> {
        if count > self.left / least {
            let bound = if self.is_bounded() {
                format!(" of the {LONGEST_HEAD} that are read of a head")
            } else {
                String::new()
            };
            return Err(format!("claims {count} {of}, more than the {} bytes that follow{bound} can hold", self.left));
        }
        Ok(())
    }

    /// Whether what is left is so by the bound on heads, rather than by the file's end.
    fn is_bounded(&self) -> bool {
        self.read + self.left == LONGEST_HEAD
    }

    /// That nothing is left.
    fn spent(&self) -> String {
        if self.is_bounded() {
            format!("lies beyond the {LONGEST_HEAD} bytes that are read of a head, more than any model's takes")
        } else {
            "ends too early".to_owned()
        }
    }
}

fn ended(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof { "ends too early".to_owned() } else { error.to_string() }
}

impl Header {
    /// The head of a file, with every tensor inside it.
    pub fn read(path: &Path) -> crate::Result<Self> {
        let file = open_regular(path, "GGUF")?;
        let length = file.metadata().map_err(Error::file("read", path))?.len();
        Self::parse(BufReader::new(file), length).map_err(|reason| Error::malformed(path, "GGUF", reason))
    }

    /// The head of a file of `length` bytes that `reader` is at the start of; what is wrong with it where it is not
    /// to be believed.
    pub fn parse(reader: impl Read, length: u64) -> Result<Self, String> {
        let mut from = Source { reader, read: 0, left: length.min(LONGEST_HEAD) };
        let (tensors, keys) = preamble(&mut from)?;
        let metadata = metadata(&mut from, keys)?;
        let alignment = alignment(&metadata)?;
        let tensors = infos(&mut from, tensors)?;
        let data_start = from.read.next_multiple_of(alignment);
        inside(&tensors, alignment, length.saturating_sub(data_start))?;
        Ok(Self { metadata, tensors, alignment, data_start })
    }
}

/// The counts of tensors and of keys.
fn preamble(from: &mut Source<impl Read>) -> Result<(u64, u64), String> {
    let mut magic = [0; 4];
    from.fill(&mut magic)?;
    if &magic != b"GGUF" {
        return Err("it does not begin with `GGUF`".to_owned());
    }
    let version = u32::take(from)?;
    match version {
        2 | 3 => {}
        1 => return Err("it has version 1, which has other lengths; convert it with a recent llama.cpp".to_owned()),
        swapped if matches!(swapped.swap_bytes(), 1..=3) => return Err("it is big-endian".to_owned()),
        other => return Err(format!("it has version {other}, and 2 and 3 are known")),
    }
    let (tensors, keys) = (u64::take(from)?, u64::take(from)?);
    // A name's length, a count of dimensions, a type and an offset.
    from.room(tensors, 24, "tensors").map_err(|reason| format!("it {reason}"))?;
    // A name's length, a type and at least a byte.
    from.room(keys, 13, "keys").map_err(|reason| format!("it {reason}"))?;
    Ok((tensors, keys))
}

fn metadata(from: &mut Source<impl Read>, keys: u64) -> Result<Vec<(String, Value)>, String> {
    let mut metadata = Vec::new();
    let mut seen = HashSet::new();
    for at in 0..keys {
        let key = from.text().map_err(|reason| format!("the name of key {at} {reason}"))?;
        let value = u32::take(from)
            .and_then(|id| Value::read(id, from))
            .map_err(|reason| format!("the key `{key}` {reason}"))?;
        if !seen.insert(key.clone()) {
            return Err(format!("the key `{key}` is there twice"));
        }
        metadata.push((key, value));
    }
    Ok(metadata)
}

pub(super) fn alignment(metadata: &[(String, Value)]) -> Result<u64, String> {
    match metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT),
        Some((_, Value::U32(alignment))) if alignment.is_power_of_two() && u64::from(*alignment) <= MOST_ALIGNMENT => {
            Ok(u64::from(*alignment))
        }
        Some((_, other)) => Err(format!("the key `{ALIGNMENT_KEY}` is no power of two up to 2^20 but {other:?}")),
    }
}

fn infos(from: &mut Source<impl Read>, count: u64) -> Result<Vec<Tensor>, String> {
    let mut tensors = Vec::new();
    let mut seen = HashSet::new();
    for at in 0..count {
        let name = from.text().map_err(|reason| format!("the name of tensor {at} {reason}"))?;
        let tensor = info(from, name.clone()).map_err(|reason| format!("the tensor `{name}` {reason}"))?;
        if !seen.insert(name) {
            return Err(format!("the tensor `{}` is there twice", tensor.name));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn info(from: &mut Source<impl Read>, name: String) -> Result<Tensor, String> {
    let dims = u32::take(from)?;
    if dims > MOST_DIMS {
        return Err(format!("has {dims} dimensions, and {MOST_DIMS} are the most"));
    }
    let dims = (0..dims).map(|_| u64::take(from)).collect::<Result<Vec<_>, _>>()?;
    let id = u32::take(from)?;
    let ty = Type::from_id(id).ok_or_else(|| format!("has the type {id}, which is not known"))?;
    let tensor = Tensor { name, dims, ty, offset: u64::take(from)? };
    if tensor.weights().is_none_or(|weights| weights == 0) {
        return Err(format!("has the shape {:?}, which is no size", tensor.dims));
    }
    if tensor.bytes().is_none() {
        return Err(format!(
            "has {} columns, no multiple of the block of {} that {ty} has",
            tensor.columns(),
            ty.block()
        ));
    }
    Ok(tensor)
}

/// Every tensor has to be aligned, inside the `room` bytes of data, and apart from the others.
fn inside(tensors: &[Tensor], alignment: u64, room: u64) -> Result<(), String> {
    let mut spans = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let Tensor { name, offset, .. } = tensor;
        if !offset.is_multiple_of(alignment) {
            return Err(format!("the tensor `{name}` begins at {offset}, no multiple of {alignment}"));
        }
        let end = tensor.bytes().and_then(|bytes| offset.checked_add(bytes)).filter(|end| *end <= room);
        let Some(end) = end else {
            return Err(format!("the tensor `{name}` ends beyond the {room} bytes of data"));
        };
        spans.push((*offset, end, name));
    }
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(format!("the tensors `{}` and `{}` overlap", pair[0].2, pair[1].2));
        }
    }
    Ok(())
}
