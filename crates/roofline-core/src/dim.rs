//! A dimension of a tensor, checked once at the border so that nothing downstream has to.

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A positive length up to [`Dim::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "u64")]
pub struct Dim(u32);

impl Dim {
    /// The largest dimension: what the 32-bit signed extents of BLAS interfaces can express. Four of them multiply to
    /// less than 2^124, so element counts fit a `u128` without overflow.
    pub const MAX: u64 = i32::MAX as u64;
    /// One.
    pub const ONE: Self = Self(1);

    /// `value` as a dimension called `what` in the error.
    pub fn new(what: &'static str, value: u64) -> Result<Self> {
        if (1..=Self::MAX).contains(&value) {
            Ok(Self(value as u32))
        } else {
            Err(Error::Dimension { what, value, max: Self::MAX })
        }
    }

    /// The length.
    pub const fn get(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn float(self) -> f64 {
        f64::from(self.0)
    }

    pub(crate) fn wide(self) -> u128 {
        u128::from(self.0)
    }
}

impl TryFrom<u64> for Dim {
    type Error = Error;

    fn try_from(value: u64) -> Result<Self> {
        Self::new("a dimension", value)
    }
}

impl From<Dim> for u64 {
    fn from(dim: Dim) -> Self {
        dim.get()
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Dim {
    type Err = Error;

    /// Digits, with `_` between them where that helps the eye.
    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::NoDimension { text: text.to_owned() };
        let digits = text.trim().replace('_', "");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refuse());
        }
        digits.parse().ok().and_then(|value| Self::new("a dimension", value).ok()).ok_or_else(refuse)
    }
}

impl JsonSchema for Dim {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Dim".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": Self::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_a_dimension() {
        assert_eq!("4096".parse::<Dim>().unwrap().get(), 4096);
        assert_eq!(" 131_072 ".parse::<Dim>().unwrap().to_string(), "131072");
        assert_eq!("2147483647".parse::<Dim>().unwrap().get(), Dim::MAX);
        for wrong in ["", "0", "2147483648", "-1", "+1", "4k", "1.0", "99999999999999999999999", "_"] {
            let why = wrong.parse::<Dim>().unwrap_err().to_string();
            assert_eq!(why, "a dimension is a whole number from 1 to 2147483647");
        }
    }
}
