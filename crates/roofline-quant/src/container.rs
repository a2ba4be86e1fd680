//! Which kind of file holds the weights, by its first bytes: names lie.

use std::{fmt, fs::File, path::Path};

use crate::{Error, Result, disk::read_exact_at};

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// What is none of the others: its header is checked when it is read.
    Safetensors,
    /// The zip archive that `torch.save` writes since PyTorch 1.6.
    Pytorch,
    /// One pickle after another, as `torch.save` wrote before.
    OldPytorch,
    /// llama.cpp's.
    Gguf,
}

impl Container {
    /// What an open file is.
    pub fn of(file: &File, path: &Path) -> Result<Self> {
        let length = file.metadata().map_err(Error::file("read", path))?.len();
        let mut start = [0; 9];
        let known = start.len().min(length as usize);
        read_exact_at(file, &mut start[..known], 0).map_err(Error::file("read", path))?;
        Ok(Self::starting(&start[..known]))
    }

    /// What begins with these bytes.
    fn starting(start: &[u8]) -> Self {
        match start {
            [b'G', b'G', b'U', b'F', ..] => Self::Gguf,
            // The length of a header may have any bytes; what follows it is an object.
            [.., b'{'] if start.len() == 9 => Self::Safetensors,
            [b'P', b'K', 3, 4, ..] => Self::Pytorch,
            // A pickle says which protocol it is of; a length that begins so would be of a header beyond all bounds,
            // unless the upper bytes are zero.
            [0x80, 2..=5, .., upper, _] if *upper != 0 => Self::OldPytorch,
            _ => Self::Safetensors,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Pytorch | Self::OldPytorch => "PyTorch",
            Self::Gguf => "GGUF",
        }
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        let of = Container::starting;
        assert_eq!(of(b"GGUF\x03\0\0\0\x17"), Container::Gguf);
        assert_eq!(of(b"PK\x03\x04\0\0\x08\x08\0"), Container::Pytorch);
        // A header of 67324752 bytes begins like an archive, one of 640 like a pickle.
        assert_eq!(of(b"PK\x03\x04\0\0\0\0{"), Container::Safetensors);
        assert_eq!(of(b"\x80\x02\0\0\0\0\0\0{"), Container::Safetensors);
        assert_eq!(of(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9"), Container::OldPytorch);
        assert_eq!(of(b"\x80"), Container::Safetensors);
        assert_eq!(of(b""), Container::Safetensors);
    }
}
