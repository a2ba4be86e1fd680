//! Quantities as types: `Flops / FlopRate` is `Seconds`, `Bytes / FlopRate` does not compile.
//!
//! Base units are inside (FLOP, byte, second, hertz, watt, joule); prefixes exist only in text. Prefixes are decimal, as
//! vendors and the field use them (1 GB = 10^9 B); the binary ones are spelled `KiB`, `MiB`, `GiB`. One multiply-add is
//! two FLOP, and an integer operation is counted like a floating-point one, so `TOPS` and `TFLOP/s` are one quantity.

mod file_size;
mod text;

use std::{
    borrow::Cow,
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, Sub},
    str::FromStr,
};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;
pub use file_size::FileSize;
use text::Unit;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident, $unit:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
        pub struct $name(f64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0.0);
            const UNIT: Unit = $unit;

            /// From a number of base units.
            pub const fn new(base_units: f64) -> Self {
                Self(base_units)
            }

            /// The number of base units.
            pub const fn value(self) -> f64 {
                self.0
            }

            /// The smaller of two.
            #[must_use]
            pub fn min(self, other: Self) -> Self {
                Self(self.0.min(other.0))
            }

            /// The larger of two.
            #[must_use]
            pub fn max(self, other: Self) -> Self {
                Self(self.0.max(other.0))
            }
        }

        impl Quantity for $name {
            fn of(base_units: f64) -> Self {
                Self(base_units)
            }

            fn base_units(self) -> f64 {
                self.0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }

        impl Mul<f64> for $name {
            type Output = Self;
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }

        impl Div<f64> for $name {
            type Output = Self;
            fn div(self, divisor: f64) -> Self {
                Self(self.0 / divisor)
            }
        }

        impl Div for $name {
            type Output = f64;
            fn div(self, other: Self) -> f64 {
                self.0 / other.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&Self::UNIT.show(self.0))
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<Self, Error> {
                Self::UNIT.parse(text).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serialize_number(self.0, serializer)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                Self::UNIT.schema(generator)
            }
        }
    };
}

/// Quantities as plain numbers of base units in both directions, for files that only this program writes and whose field
/// names say the unit: `#[serde(with = "units::number")]`.
pub mod number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Quantity;

    /// Writes base units.
    pub fn serialize<Q: Quantity, S: Serializer>(quantity: &Q, serializer: S) -> Result<S::Ok, S::Error> {
        quantity.base_units().serialize(serializer)
    }

    /// Reads base units.
    pub fn deserialize<'de, Q: Quantity, D: Deserializer<'de>>(deserializer: D) -> Result<Q, D::Error> {
        f64::deserialize(deserializer).map(Q::of)
    }
}

/// Any quantity.
pub trait Quantity: Copy {
    /// From a number of base units.
    fn of(base_units: f64) -> Self;
    /// The number of base units.
    fn base_units(self) -> f64;
}

/// A whole number is written without a fraction, so that byte and FLOP counts read as the integers they are.
fn serialize_number<S: Serializer>(value: f64, serializer: S) -> Result<S::Ok, S::Error> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    if value.fract() == 0.0 && value.abs() < EXACT {
        serializer.serialize_i64(value as i64)
    } else {
        serializer.serialize_f64(value)
    }
}

macro_rules! relation {
    ($product:ident = $left:ident * $right:ident) => {
        impl Mul<$right> for $left {
            type Output = $product;
            fn mul(self, other: $right) -> $product {
                $product::new(self.value() * other.value())
            }
        }
        impl Div<$left> for $product {
            type Output = $right;
            fn div(self, other: $left) -> $right {
                $right::new(self.value() / other.value())
            }
        }
        impl Div<$right> for $product {
            type Output = $left;
            fn div(self, other: $right) -> $left {
                $left::new(self.value() / other.value())
            }
        }
    };
}

quantity!(
    /// Operations: a multiply-add is two.
    Flops,
    Unit::large("FLOP", &["FLOP", "FLOPs", "OP", "OPs"])
);
quantity!(
    /// Bytes of storage or of traffic.
    Bytes,
    Unit::bytes("B", &["B"])
);
quantity!(
    /// Time.
    Seconds,
    Unit::small("s", &["s"])
);
quantity!(
    /// Operations per second.
    FlopRate,
    Unit::large("FLOP/s", &["FLOP/s", "FLOPS", "OP/s", "OPS"])
);
quantity!(
    /// Bytes per second.
    ByteRate,
    Unit::bytes("B/s", &["B/s"])
);
quantity!(
    /// Operations per byte of memory traffic; the x axis of a roofline.
    Intensity,
    Unit::plain("FLOP/B", &["FLOP/B", "OP/B"])
);
quantity!(
    /// Power.
    Watts,
    Unit::small("W", &["W"])
);
quantity!(
    /// Energy.
    Joules,
    Unit::small("J", &["J"])
);
quantity!(
    /// Clock frequency.
    Hertz,
    Unit::large("Hz", &["Hz"])
);
quantity!(
    /// Operations per unit of energy: a rate over the power it takes, FLOP/s per watt.
    FlopsPerJoule,
    Unit::large("FLOP/J", &["FLOP/J", "OP/J"])
);
quantity!(
    /// Temperature above the freezing point of water.
    Celsius,
    Unit::plain("°C", &["°C", "C"])
);

/// A number of base units of `symbol` as text that reads back as the same quantity.
pub(crate) fn spelled(value: f64, symbol: &str) -> String {
    const UNITS: &[Unit] = &[
        Flops::UNIT,
        Bytes::UNIT,
        Seconds::UNIT,
        FlopRate::UNIT,
        ByteRate::UNIT,
        Intensity::UNIT,
        Watts::UNIT,
        Joules::UNIT,
        Hertz::UNIT,
        FlopsPerJoule::UNIT,
        Celsius::UNIT,
    ];
    let unit = UNITS.iter().find(|unit| unit.is(symbol));
    unit.map_or_else(|| format!("{value:e} {symbol}"), |unit| unit.exact(value))
}

relation!(Flops = FlopRate * Seconds);
relation!(Bytes = ByteRate * Seconds);
relation!(Flops = Intensity * Bytes);
relation!(FlopRate = Intensity * ByteRate);
relation!(Joules = Watts * Seconds);
relation!(Flops = FlopsPerJoule * Joules);
relation!(FlopRate = FlopsPerJoule * Watts);

impl Seconds {
    /// Microseconds, the unit of machine output for operator times.
    pub fn micros(self) -> f64 {
        self.0 * 1e6
    }

    /// From microseconds.
    pub fn from_micros(micros: f64) -> Self {
        Self(micros / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relations_keep_their_units() {
        // 33.57 MB at 60 GB/s is 559.5 µs; 2.7 TFLOP/s over 60 GB/s is a ridge at 45 FLOP/B.
        let time: Seconds = Bytes::new(33_570_816.0) / ByteRate::new(60e9);
        assert_eq!(time.to_string(), "559.5 µs");
        let ridge: Intensity = FlopRate::new(2.7e12) / ByteRate::new(60e9);
        assert!((ridge.value() - 45.0).abs() < 1e-12);
        assert_eq!(ridge * ByteRate::new(60e9), FlopRate::new(2.7e12));
        assert_eq!(Watts::new(700.0) * Seconds::new(2.0), Joules::new(1400.0));
        // 700 TFLOP/s at 700 W is a teraflop for every joule.
        let efficiency: FlopsPerJoule = FlopRate::new(700e12) / Watts::new(700.0);
        assert_eq!(efficiency.to_string(), "1 TFLOP/J");
    }

    #[test]
    fn whole_numbers_serialize_as_integers() {
        assert_eq!(serde_json::to_string(&Flops::new(33_554_432.0)).unwrap(), "33554432");
        assert_eq!(serde_json::to_string(&Bytes::new(1.5)).unwrap(), "1.5");
        assert_eq!(serde_json::to_string(&Flops::new(1e30)).unwrap(), "1e+30");
    }
}
