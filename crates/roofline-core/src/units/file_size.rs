//! Sizes of files as people write them.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::Bytes;
use crate::Error;

/// Bytes of a file, or of several: a quantity that is told as `5G` and `5gb` as well, because nobody counts files in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileSize(u64);

impl FileSize {
    /// How many bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl From<FileSize> for Bytes {
    fn from(size: FileSize) -> Self {
        Self::new(size.0 as f64)
    }
}

impl FromStr for FileSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let refuse = || Error::Unknown {
            what: "size",
            name: text.to_owned(),
            nearest: None,
            hint: "a size with its unit, such as 5GB, 500MB or 4GiB".to_owned(),
        };
        // A number alone is as likely meant in gigabytes as in bytes.
        let end = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(refuse)?;
        let (number, unit) = text.split_at(end);
        let unit = match unit.to_lowercase().as_str() {
            "b" => "B",
            "k" | "kb" => "kB",
            "m" | "mb" => "MB",
            "g" | "gb" => "GB",
            "t" | "tb" => "TB",
            "ki" | "kib" => "KiB",
            "mi" | "mib" => "MiB",
            "gi" | "gib" => "GiB",
            "ti" | "tib" => "TiB",
            _ => return Err(refuse()),
        };
        let bytes: Bytes = format!("{} {unit}", number.trim()).parse().map_err(|_| refuse())?;
        let possible = (1.0..=1e18).contains(&bytes.value());
        if possible { Ok(Self(bytes.value() as u64)) } else { Err(refuse()) }
    }
}

impl fmt::Display for FileSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}

impl<'de> Deserialize<'de> for FileSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for FileSize {
    fn schema_name() -> Cow<'static, str> {
        "FileSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "examples": ["5GB"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes) in [
            ("5GB", 5_000_000_000),
            ("5 gb", 5_000_000_000),
            ("5G", 5_000_000_000),
            ("0.5GB", 500_000_000),
            ("500m", 500_000_000),
            ("4GiB", 4 << 30),
            ("100kb", 100_000),
            ("4096B", 4096),
        ] {
            let size: FileSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().parse().ok()), (bytes, Some(size)), "{text}");
        }
        for text in ["", "5", "GB", "-5GB", "5XB", "0GB", "nanGB", "1e30GB", "5GB5"] {
            let refused = text.parse::<FileSize>().unwrap_err();
            assert!(refused.hint().unwrap().contains("such as 5GB"), "{text}: {refused}");
        }
    }
}
