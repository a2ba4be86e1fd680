//! A dimension of a tensor, checked once at the border so that nothing downstream has to.

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

impl std::fmt::Display for Dim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
