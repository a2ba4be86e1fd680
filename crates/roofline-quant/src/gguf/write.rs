//! Writing a head.

use super::{Item, Tensor, Value, read};
use crate::{Error, Result, ggml::Type};

/// The longest name of a tensor that ggml loads.
const LONGEST_NAME: usize = 63;

/// The bytes before the data, and where the data go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The file up to its data, padding included.
    pub bytes: Vec<u8>,
    /// Where each tensor begins in the file.
    pub offsets: Vec<u64>,
    /// How long the whole file is: the last tensor is padded too.
    pub length: u64,
}

/// The head of a file with these keys and with tensors of these names, dimensions (columns first) and types, whose
/// data follow in this order, each begun at a multiple of the alignment and zeros between.
pub fn head(metadata: &[(String, Value)], tensors: &[(String, Vec<u64>, Type)]) -> Result<Head> {
    let wrong = |what: String| Error::Unsupported { what, hint: None };
    let alignment = read::alignment(metadata).map_err(wrong)?;
    let mut bytes = b"GGUF".to_vec();
    3u32.put(&mut bytes);
    (tensors.len() as u64).put(&mut bytes);
    (metadata.len() as u64).put(&mut bytes);
    for (key, value) in metadata {
        key.put(&mut bytes);
        value.id().put(&mut bytes);
        value.put(&mut bytes);
    }
    let mut offsets = Vec::with_capacity(tensors.len());
    let mut at = 0u64;
    for (name, dims, ty) in tensors {
        let tensor = Tensor { name: name.clone(), dims: dims.clone(), ty: *ty, offset: at };
        let unfit = |reason: String| Error::Weight { name: name.clone(), reason, hint: None };
        if name.len() > LONGEST_NAME {
            return Err(unfit(format!("has a name of {} bytes, and ggml loads {LONGEST_NAME}", name.len())));
        }
        name.put(&mut bytes);
        (dims.len() as u32).put(&mut bytes);
        for dim in dims {
            dim.put(&mut bytes);
        }
        ty.id().put(&mut bytes);
        at.put(&mut bytes);
        offsets.push(at);
        at = tensor
            .bytes()
            .and_then(|bytes| at.checked_add(bytes)?.checked_next_multiple_of(alignment))
            .ok_or_else(|| unfit(format!("of the shape {dims:?} is no whole number of blocks of {ty}")))?;
    }
    bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
    let start = bytes.len() as u64;
    for offset in &mut offsets {
        *offset += start;
    }
    let length = start.checked_add(at).ok_or_else(|| wrong("a file beyond 2^64 bytes".to_owned()))?;
    Ok(Head { bytes, offsets, length })
}
