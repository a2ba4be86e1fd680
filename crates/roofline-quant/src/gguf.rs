//! GGUF, version 3: the container that llama.cpp loads.
//!
//! ```text
//! "GGUF" | u32 version | u64 tensors | u64 keys | keys x (name, type, value) | tensors x (name, dims, type, offset)
//! zeros up to the alignment | data of the tensors, each begun at a multiple of the alignment
//! ```
//!
//! Everything is little-endian; strings are a u64 of bytes and the bytes. Where each tensor lies follows from the types
//! and shapes alone, so the head is written first and the data streams after it.

pub mod family;
mod file;
pub mod model;
mod protobuf;
mod read;
mod rope;
pub mod source;
mod special;
mod tokenizer;
mod write;

pub use file::File;
pub use model::joined;
pub use tokenizer::Files;
pub use write::{Head, head};

use crate::ggml::Type;

/// How tensors are aligned where `general.alignment` does not say.
pub const ALIGNMENT: u64 = 32;

/// The key that says how tensors are aligned.
const ALIGNMENT_KEY: &str = "general.alignment";

macro_rules! values {
    ($($(#[$doc:meta])* $name:ident($type:ty) $id:literal $least:literal,)*) => {
        /// A value of the metadata.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "the names say it")]
        pub enum Value {
            $($(#[$doc])* $name($type),)*
            Array(Array),
        }

        /// Values of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "the names say it")]
        pub enum Array {
            $($(#[$doc])* $name(Vec<$type>),)*
            Array(Vec<Array>),
        }

        impl std::fmt::Display for Value {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name(value) => value.fmt(f),)*
                    Self::Array(array) => write!(f, "{} values", array.len()),
                }
            }
        }

        impl Value {
            /// The number of the type in the file.
            fn id(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $id,)*
                    Self::Array(_) => ARRAY,
                }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name(value) => value.put(out),)*
                    Self::Array(array) => array.put(out),
                }
            }

            fn read(id: u32, from: &mut read::Source<impl std::io::Read>) -> Result<Self, String> {
                Ok(match id {
                    $($id => Self::$name(Item::take(from)?),)*
                    ARRAY => Self::Array(Array::read(from, 0)?),
                    other => return Err(format!("has the type {other}, which there is not")),
                })
            }
        }

        impl Array {
            /// How many there are.
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$name(items) => items.len(),)*
                    Self::Array(items) => items.len(),
                }
            }

            fn put(&self, out: &mut Vec<u8>) {
                let id: u32 = match self {
                    $(Self::$name(_) => $id,)*
                    Self::Array(_) => ARRAY,
                };
                id.put(out);
                (self.len() as u64).put(out);
                match self {
                    $(Self::$name(items) => items.iter().for_each(|item| item.put(out)),)*
                    Self::Array(items) => items.iter().for_each(|item| item.put(out)),
                }
            }

            fn read(from: &mut read::Source<impl std::io::Read>, depth: usize) -> Result<Self, String> {
                if depth > 3 {
                    return Err("has arrays within arrays, more than four deep".to_owned());
                }
                let id = u32::take(from)?;
                let items = u64::take(from)?;
                Ok(match id {
                    $($id => {
                        from.room(items, $least, "items")?;
                        Self::$name((0..items).map(|_| Item::take(from)).collect::<Result<_, _>>()?)
                    })*
                    ARRAY => {
                        // A type and a length each.
                        from.room(items, 12, "arrays")?;
                        Self::Array((0..items).map(|_| Self::read(from, depth + 1)).collect::<Result<_, _>>()?)
                    }
                    other => return Err(format!("has items of the type {other}, which there is not")),
                })
            }
        }
    };
}

/// The number of the type of arrays.
const ARRAY: u32 = 9;

values! {
    U8(u8) 0 1,
    I8(i8) 1 1,
    U16(u16) 2 2,
    I16(i16) 3 2,
    U32(u32) 4 4,
    I32(i32) 5 4,
    F32(f32) 6 4,
    Bool(bool) 7 1,
    String(String) 8 8,
    U64(u64) 10 8,
    I64(i64) 11 8,
    F64(f64) 12 8,
}

impl Array {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Value {
    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// The number of any unsigned integer.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::U8(number) => Some(u64::from(*number)),
            Self::U16(number) => Some(u64::from(*number)),
            Self::U32(number) => Some(u64::from(*number)),
            Self::U64(number) => Some(*number),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

/// What has bytes in a GGUF file.
trait Item: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut read::Source<impl std::io::Read>) -> Result<Self, String>;
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl Item for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(from: &mut read::Source<impl std::io::Read>) -> Result<Self, String> {
                let mut bytes = [0; size_of::<Self>()];
                from.fill(&mut bytes)?;
                Ok(Self::from_le_bytes(bytes))
            }
        })*
    };
}
numbers! { u8 i8 u16 i16 u32 i32 f32 u64 i64 f64 }

impl Item for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(from: &mut read::Source<impl std::io::Read>) -> Result<Self, String> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(format!("is neither true nor false but {other}")),
        }
    }
}

impl Item for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend(self.as_bytes());
    }

    /// A tokenizer's pieces need not be text, so what is not is replaced.
    fn take(from: &mut read::Source<impl std::io::Read>) -> Result<Self, String> {
        Ok(String::from_utf8_lossy(&from.bytes()?).into_owned())
    }
}

/// A tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name: `blk.0.attn_q.weight`.
    pub name: String,
    /// Its dimensions in the order of the file, the reverse of PyTorch's: first the columns, along which blocks run.
    pub dims: Vec<u64>,
    /// How it is stored.
    pub ty: Type,
    /// Where it begins, from the start of the data.
    pub offset: u64,
}

impl Tensor {
    /// How many weights a row has: those that are contiguous.
    pub fn columns(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// How many weights there are; nothing beyond 2^64.
    pub fn weights(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |weights, dim| weights.checked_mul(*dim))
    }

    /// How many bytes it takes; nothing where a row is no whole number of blocks.
    pub fn bytes(&self) -> Option<u64> {
        self.ty.bytes(self.columns())?;
        self.ty.bytes(self.weights()?)
    }
}

/// All of a file but the data.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The keys and their values, in the order of the file.
    pub metadata: Vec<(String, Value)>,
    /// The tensors, in the order of the file.
    pub tensors: Vec<Tensor>,
    /// What the offsets of tensors are multiples of.
    pub alignment: u64,
    /// Where the data begin in the file.
    pub data_start: u64,
}

impl Header {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

#[cfg(test)]
mod tests;
