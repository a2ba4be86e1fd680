//! Quantities in result files: numbers of base units, which is what the core writes; what it reads are device files,
//! where a quantity is a text with its unit.

use roofline_core::{
    Math,
    units::{ByteRate, Bytes, FlopRate, Hertz, Seconds},
};
use serde::{Deserialize, Deserializer};

/// A quantity that is stored as a number of base units.
pub(crate) trait Quantity: Sized {
    /// From a number of base units.
    fn of(base_units: f64) -> Self;
}

macro_rules! quantities {
    ($($name:ident),*) => {
        $(impl Quantity for $name {
            fn of(base_units: f64) -> Self {
                Self::new(base_units)
            }
        })*
    };
}

quantities!(ByteRate, Bytes, FlopRate, Hertz, Seconds);

/// Reads a number; for `deserialize_with`.
pub(crate) fn number<'de, D: Deserializer<'de>, T: Quantity>(deserializer: D) -> Result<T, D::Error> {
    f64::deserialize(deserializer).map(T::of)
}

/// Reads a number or nothing.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: Quantity>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.map(T::of))
}

/// Reads the key of a multiplying unit.
pub(crate) fn math<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Math, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
