//! An open GGUF file, whose tensors can be read as numbers.

use std::{
    fs::File as Handle,
    ops::Range,
    path::{Path, PathBuf},
};

use super::{Header, Tensor};
use crate::{Error, Result, disk::read_exact_at, ggml, ggml::Type};

/// A GGUF file. Nothing but its head has been read.
#[derive(Debug)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// All of it but the data.
    pub header: Header,
    handle: Handle,
}

impl File {
    /// Opens a file and reads its head.
    pub fn open(path: &Path) -> Result<Self> {
        let header = Header::read(path)?;
        let handle = Handle::open(path).map_err(Error::file("open", path))?;
        Ok(Self { path: path.to_owned(), header, handle })
    }

    /// Decodes these rows of a tensor: `columns` numbers each, the scale of the tensor applied.
    pub fn read(&self, tensor: &Tensor, rows: Range<u64>, out: &mut [f32]) -> Result<()> {
        let unreadable = || Error::Weight {
            name: tensor.name.clone(),
            reason: format!("is stored as {}, which this program cannot decode", tensor.ty),
            hint: None,
        };
        let row = tensor.ty.bytes(tensor.columns()).ok_or_else(unreadable)?;
        let mut bytes = vec![0; (row * (rows.end - rows.start)) as usize];
        self.fill(tensor.offset + row * rows.start, &mut bytes)?;
        if ggml::decode(tensor.ty, &bytes, self.scale(tensor)?, out) { Ok(()) } else { Err(unreadable()) }
    }

    /// What every weight of the tensor is multiplied by: NVFP4's scale lies in a tensor of its own.
    fn scale(&self, tensor: &Tensor) -> Result<f32> {
        let beside = tensor.name.strip_suffix(".weight").and_then(|name| self.header.tensor(&format!("{name}.scale")));
        let Some(scale) = beside.filter(|scale| tensor.ty == Type::Nvfp4 && scale.ty == Type::F32) else {
            return Ok(1.0);
        };
        let mut bytes = [0; 4];
        self.fill(scale.offset, &mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        read_exact_at(&self.handle, bytes, self.header.data_start + offset).map_err(Error::file("read", &self.path))
    }
}
