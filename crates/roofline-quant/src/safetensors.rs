//! The safetensors container: `u64 header length | JSON header | data`.
//!
//! A header is believed only where it agrees with the file: lengths, offsets, shapes and names are all checked before
//! anything is read through them. See <https://github.com/huggingface/safetensors> for the format.

use std::{collections::HashSet, fmt, fs::File, io::Read, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};

use crate::{Dtype, Error, Result};

/// The longest header that is read, as in the reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;

/// What a file says it holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    /// Free text of the `__metadata__` entry.
    pub metadata: Vec<(String, String)>,
    /// The tensors, in the order of their data.
    pub tensors: Vec<Entry>,
    /// Where the data begins in the file.
    pub start: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// First byte, from the start of the data.
    pub begin: u64,
    /// One past the last byte.
    pub end: u64,
}

impl Entry {
    /// How many bytes it takes.
    pub fn bytes(&self) -> u64 {
        self.end - self.begin
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.bytes() / self.dtype.bytes() as u64
    }
}

impl Header {
    /// Reads the header of an open file.
    pub fn read(file: &File, path: &Path) -> Result<Self> {
        let refuse = |reason: String| Error::malformed(path, "safetensors", reason);
        let length = file.metadata().map_err(Error::file("read", path))?.len();
        let mut prefix = [0; 8];
        let mut reader = file;
        if length < 8 {
            return Err(refuse(format!("it has {length} bytes, fewer than the length of a header takes")));
        }
        reader.read_exact(&mut prefix).map_err(Error::file("read", path))?;
        let announced = u64::from_le_bytes(prefix);
        if announced > length - 8 {
            return Err(refuse(format!("it announces a header of {announced} bytes in a file of {length}")));
        }
        if announced > LONGEST_HEADER {
            let most = format!("more than the {LONGEST_HEADER} that the format allows: write it in shards");
            return Err(refuse(format!("it announces a header of {announced} bytes, {most}")));
        }
        let mut json = vec![0; announced as usize];
        reader.read_exact(&mut json).map_err(Error::file("read", path))?;
        Self::parse(&json, length - 8 - announced).map_err(refuse)
    }

    /// Reads the JSON of a header whose file holds `data` bytes after it; says in words what is wrong with it.
    pub fn parse(json: &[u8], data: u64) -> Result<Self, String> {
        let raw: Raw = serde_json::from_slice(json).map_err(|error| format!("its header is no valid JSON: {error}"))?;
        let mut names = HashSet::new();
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        for (name, info) in raw.tensors {
            let entry = info.entry(name)?;
            if !names.insert(entry.name.clone()) {
                return Err(format!("two tensors are named `{}`", entry.name));
            }
            tensors.push(entry);
        }
        tensors.sort_by_key(|entry| (entry.begin, entry.end));
        let mut expected = 0;
        for entry in &tensors {
            if entry.begin != expected {
                let what = if entry.begin < expected { "overlaps the one before" } else { "leaves a hole before it" };
                return Err(format!("tensor `{}` starts at byte {}, which {what}", entry.name, entry.begin));
            }
            expected = entry.end;
        }
        if expected != data {
            return Err(format!("its tensors take {expected} bytes, but the file holds {data} after the header"));
        }
        Ok(Self { metadata: raw.metadata, tensors, start: 8 + json.len() as u64 })
    }

    /// The bytes of a header with these tensors, in order, padded so that the data starts at a multiple of 8.
    pub fn bytes(metadata: &[(String, String)], tensors: &[Entry]) -> Vec<u8> {
        let mut map = serde_json::Map::new();
        if !metadata.is_empty() {
            let texts = metadata.iter().map(|(key, text)| (key.clone(), text.clone().into()));
            map.insert("__metadata__".to_owned(), serde_json::Value::Object(texts.collect()));
        }
        for entry in tensors {
            let value = serde_json::json!({
                "dtype": entry.dtype.name(),
                "shape": entry.shape,
                "data_offsets": [entry.begin, entry.end],
            });
            map.insert(entry.name.clone(), value);
        }
        let mut json = serde_json::Value::Object(map).to_string().into_bytes();
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.append(&mut json);
        bytes
    }
}

/// The order in which the reference implementation lays out tensors: wide types first, so that all are aligned, then by
/// name. Files with the same tensors are the same bytes.
pub(crate) fn customary(dtype: Dtype, name: &str) -> (std::cmp::Reverse<usize>, &str) {
    // The order of the reference implementation's list of types.
    const ORDER: [Dtype; 16] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8E5M2,
        Dtype::F8E4M3,
        Dtype::F8E8M0,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];
    (std::cmp::Reverse(ORDER.iter().position(|known| *known == dtype).unwrap_or(0)), name)
}

/// The JSON as it stands, repeated names and all.
struct Raw {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, Info)>,
}

#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Info {
    fn entry(self, name: String) -> Result<Entry, String> {
        let Some(dtype) = Dtype::named(&self.dtype) else {
            return Err(format!("tensor `{name}` has the unknown type `{}`", self.dtype));
        };
        let (begin, end) = self.data_offsets;
        let elements = self.shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bytes() as u64));
        if bytes.is_none_or(|bytes| end.checked_sub(begin) != Some(bytes)) {
            let shape = &self.shape;
            return Err(format!("tensor `{name}` of {dtype} {shape:?} cannot lie in bytes {begin} to {end}"));
        }
        Ok(Entry { name, dtype, shape: self.shape.iter().map(|dim| *dim as usize).collect(), begin, end })
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw { metadata: Vec::new(), tensors: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let texts: serde_json::Map<String, serde_json::Value> = map.next_value()?;
                for (key, value) in texts {
                    let serde_json::Value::String(text) = value else {
                        return Err(serde::de::Error::custom(format!("metadata `{key}` is no text")));
                    };
                    raw.metadata.push((key, text));
                }
            } else {
                let info = map.next_value()?;
                raw.tensors.push((name, info));
            }
        }
        Ok(raw)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(json: &str, data: u64) -> String {
        Header::parse(json.as_bytes(), data).unwrap_err()
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let entry =
            |begin: u64, end: u64| format!(r#"{{"dtype":"BF16","shape":[2,3],"data_offsets":[{begin},{end}]}}"#);
        let one = |begin, end| format!(r#"{{"a":{}}}"#, entry(begin, end));
        assert!(Header::parse(one(0, 12).as_bytes(), 12).is_ok());
        assert_eq!(refused(&one(0, 10), 10), "tensor `a` of BF16 [2, 3] cannot lie in bytes 0 to 10");
        assert_eq!(refused(&one(12, 0), 12), "tensor `a` of BF16 [2, 3] cannot lie in bytes 12 to 0");
        assert_eq!(refused(&one(4, 16), 16), "tensor `a` starts at byte 4, which leaves a hole before it");
        assert_eq!(refused(&one(0, 12), 20), "its tensors take 12 bytes, but the file holds 20 after the header");
        let far = refused(&one(1 << 63, (1 << 63) + 12), 12);
        assert_eq!(far, "tensor `a` starts at byte 9223372036854775808, which leaves a hole before it");
        let twice = format!(r#"{{"a":{},"a":{}}}"#, entry(0, 12), entry(12, 24));
        assert_eq!(refused(&twice, 24), "two tensors are named `a`");
        let overlap = format!(r#"{{"a":{},"b":{}}}"#, entry(0, 12), entry(6, 18));
        assert_eq!(refused(&overlap, 18), "tensor `b` starts at byte 6, which overlaps the one before");
        let huge = r#"{"a":{"dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#;
        assert_eq!(refused(huge, 0), "tensor `a` of BF16 [4294967296, 4294967296] cannot lie in bytes 0 to 0");
        let unknown = r#"{"a":{"dtype":"F3","shape":[],"data_offsets":[0,0]}}"#;
        assert_eq!(refused(unknown, 0), "tensor `a` has the unknown type `F3`");
        assert!(refused(r#"{"__metadata__":{"format":1}}"#, 0).contains("metadata `format` is no text"));
        assert!(refused(&"[".repeat(100_000), 0).contains("no valid JSON"));
        let deep = format!(r#"{{"__metadata__":{{"a":{}1{}}}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(refused(&deep, 0).contains("no valid JSON"));
        assert!(refused(r#"{"a":{"dtype":"BF16","shape":[-1],"data_offsets":[0,0]}}"#, 0).contains("no valid JSON"));
    }

    #[test]
    fn a_file_that_ends_early_is_refused() {
        let path = std::env::temp_dir().join(format!("roofline-short-{}.safetensors", std::process::id()));
        for (bytes, reason) in [
            (&b"abc"[..], "it has 3 bytes, fewer than the length of a header takes"),
            (&[255; 8], "it announces a header of 18446744073709551615 bytes in a file of 8"),
            (&[9, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'], "it announces a header of 9 bytes in a file of 10"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = Header::read(&File::open(&path).unwrap(), &path).unwrap_err().to_string();
            assert!(error.ends_with(reason), "{error}");
        }
        // A hole costs nothing on disk, so a file may well be as long as it says; the bound is named.
        std::fs::write(&path, 100_000_001u64.to_le_bytes()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(200_000_000).unwrap();
        let error = Header::read(&File::open(&path).unwrap(), &path).unwrap_err().to_string();
        assert!(error.contains("100000001 bytes, more than the 100000000 that the format allows"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(shapes in prop::collection::vec((0usize..3, prop::collection::vec(0usize..9, 0..4)), 0..9)) {
            let mut begin = 0;
            let tensors: Vec<Entry> = shapes.into_iter().enumerate().map(|(at, (dtype, shape))| {
                let dtype = [Dtype::U8, Dtype::Bf16, Dtype::I64][dtype];
                let end = begin + (shape.iter().product::<usize>() * dtype.bytes()) as u64;
                let entry = Entry { name: format!("t\"{at}"), dtype, shape, begin, end };
                begin = end;
                entry
            }).collect();
            let metadata = vec![("format".to_owned(), "pt".to_owned())];
            let bytes = Header::bytes(&metadata, &tensors);
            prop_assert_eq!(bytes.len() % 8, 0);
            let mut header = Header::parse(&bytes[8..], begin).unwrap();
            header.tensors.sort_by(|a, b| a.name.cmp(&b.name));
            let mut expected = tensors;
            expected.sort_by(|a, b| a.name.cmp(&b.name));
            prop_assert_eq!(header, Header { metadata, tensors: expected, start: bytes.len() as u64 });
        }
    }
}
