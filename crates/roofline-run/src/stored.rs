//! Quantities in result files: numbers of base units, which is what the core writes; what it reads are device files,
//! where a quantity is a text with its unit.

use roofline_core::{Math, units::Quantity};
use serde::{Deserialize, Deserializer};

/// Reads a number; for `deserialize_with`.
pub(crate) use roofline_core::units::number::deserialize as number;

/// Reads a number or nothing.
pub(crate) fn optional<'de, D: Deserializer<'de>, Q: Quantity>(deserializer: D) -> Result<Option<Q>, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.map(Q::of))
}

/// Reads the key of a multiplying unit.
pub(crate) fn math<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Math, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
