//! Checkpoints of PyTorch, read without PyTorch and without running anything: a zip archive of uncompressed members, of
//! which one is a pickle that says which tensor is where in which of the others.
//!
//! Python runs whatever a pickle asks for. This reader knows the few words that state dicts are made of, refuses any
//! other by its name, and ends with byte ranges of the file: from there on a tensor is read as one of safetensors.

mod pickle;
mod zip;

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io,
    path::Path,
};

use crate::{
    Error, Result,
    disk::read_exact_at,
    safetensors::{Entry, Header},
};
use pickle::{Pickle, Tensor};
use zip::Member;

/// The longest pickle that is read: a tensor takes about 200 bytes in it.
const LONGEST_PICKLE: u64 = 32 << 20;

/// A file of which any part can be read.
pub struct Source<'a> {
    /// Fills the bytes from that place on.
    pub read: &'a dyn Fn(&mut [u8], u64) -> io::Result<()>,
    /// How long it is.
    pub length: u64,
}

impl Source<'_> {
    /// So many bytes from there on, which the caller holds to be few.
    fn bytes(&self, at: u64, count: u64) -> Result<Vec<u8>, String> {
        if at.checked_add(count).is_none_or(|end| end > self.length) {
            return Err("it ends too early".to_owned());
        }
        let mut bytes = vec![0; count as usize];
        (self.read)(&mut bytes, at).map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

/// What an open file holds.
pub(crate) fn read(file: &File, path: &Path) -> Result<Header> {
    let length = file.metadata().map_err(Error::file("read", path))?.len();
    let read = |bytes: &mut [u8], at: u64| read_exact_at(file, bytes, at);
    let tensors = tensors(&Source { read: &read, length });
    tensors
        .map(|tensors| Header { metadata: Vec::new(), tensors, start: 0 })
        .map_err(|reason| Error::malformed(path, "PyTorch checkpoint", reason))
}

/// The tensors of a checkpoint, in the order of their data, with their places in the file; what is wrong with it where it
/// is not to be believed. Tied tensors are at the same place.
pub fn tensors(source: &Source<'_>) -> Result<Vec<Entry>, String> {
    let members = zip::members(source)?;
    let folder = folder(&members)?;
    let member = |name: &str| members.get(&format!("{folder}/{name}"));
    if let Some(order) = member("byteorder") {
        let order = source.bytes(order.begin, order.bytes().min(16))?;
        if order != b"little" {
            return Err("its numbers are not little-endian".to_owned());
        }
    }
    let pickle = member("data.pkl").map_or(0..0, |member| member.begin..member.end);
    if pickle.end - pickle.start > LONGEST_PICKLE {
        return Err(format!("its pickle has more than {LONGEST_PICKLE} bytes"));
    }
    let pickle = source.bytes(pickle.start, pickle.end - pickle.start)?;
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    for (name, tensor) in Pickle::read(&pickle)?.state()? {
        if !names.insert(name) {
            return Err(format!("two tensors are named `{name}`"));
        }
        let member = member(&format!("data/{}", tensor.key));
        entries.push(entry(name, &tensor, member).map_err(|reason| format!("tensor `{name}` {reason}"))?);
    }
    entries.sort_by_key(|entry| (entry.begin, entry.end));
    Ok(entries)
}

/// The one folder of the archive, which is called after the file it was saved as.
fn folder(members: &BTreeMap<String, Member>) -> Result<&str, String> {
    let mut folders = members.keys().filter_map(|name| name.strip_suffix("/data.pkl"));
    match (folders.next(), folders.next()) {
        (Some(folder), None) if !folder.contains('/') => Ok(folder),
        _ => Err("it is a zip archive, but not one that `torch.save` wrote".to_owned()),
    }
}

/// A tensor that lies in a member without gaps.
fn entry(name: &str, tensor: &Tensor<'_>, member: Option<&Member>) -> Result<Entry, String> {
    let member = member.ok_or_else(|| format!("lies in `data/{}`, which is not in the archive", tensor.key))?;
    let size = tensor.dtype.bytes() as u64;
    let mut elements = 1u64;
    for (dim, stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
        if *dim != 1 && *stride != elements && !tensor.shape.contains(&0) {
            return Err(format!(
                "has the shape {:?} and the strides {:?}: it is a view with gaps or in another order; \
                 save it again with `.contiguous()`",
                tensor.shape, tensor.strides
            ));
        }
        elements = elements.checked_mul(*dim).ok_or_else(|| format!("has the shape {:?}", tensor.shape))?;
    }
    let begin = tensor.offset.checked_mul(size).and_then(|begin| begin.checked_add(member.begin));
    let end = elements.checked_mul(size).and_then(|bytes| begin?.checked_add(bytes));
    let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= member.end)) else {
        return Err(format!("of {} {:?} ends beyond `data/{}`", tensor.dtype, tensor.shape, tensor.key));
    };
    let shape = tensor.shape.iter().map(|dim| *dim as usize).collect();
    Ok(Entry { name: name.to_owned(), dtype: tensor.dtype, shape, begin, end })
}

#[cfg(test)]
mod tests;
