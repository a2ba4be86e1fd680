//! Peak rates per multiplying unit.

use std::{borrow::Cow, collections::BTreeMap};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Error, Math, Result, units::FlopRate};

/// A rate per unit; a unit that is not there has none, and nothing stands in for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks([Option<FlopRate>; Math::ALL.len()]);

impl Peaks {
    /// Each unit once.
    pub fn distinct(peaks: impl IntoIterator<Item = (Math, FlopRate)>) -> Result<Self> {
        let mut all = Self::default();
        for (math, peak) in peaks {
            if all.of(math).is_some() {
                return Err(Error::Twice { what: "peak", name: math.key().to_owned() });
            }
            all.set(math, peak);
        }
        Ok(all)
    }

    /// The rate of `math`.
    pub fn of(&self, math: Math) -> Option<FlopRate> {
        self.0[math as usize]
    }

    /// Sets the rate of `math`.
    pub fn set(&mut self, math: Math, peak: FlopRate) {
        self.0[math as usize] = Some(peak);
    }

    /// The units there are, with their rates.
    pub fn iter(&self) -> impl Iterator<Item = (Math, FlopRate)> + '_ {
        Math::ALL.iter().filter_map(|math| Some((*math, self.of(*math)?)))
    }

    pub(crate) fn scaled(&self, factor: f64) -> Self {
        Self(self.0.map(|peak| peak.map(|peak| peak * factor)))
    }
}

impl<'de> Deserialize<'de> for Peaks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let named = BTreeMap::<String, FlopRate>::deserialize(deserializer)?;
        let peaks = named.into_iter().map(|(name, peak)| Ok((name.parse::<Math>()?, peak)));
        let peaks = peaks.collect::<Result<Vec<_>>>().and_then(Self::distinct);
        peaks.map_err(serde::de::Error::custom)
    }
}

impl Serialize for Peaks {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(math, peak)| (math.key(), peak)))
    }
}

impl JsonSchema for Peaks {
    fn schema_name() -> Cow<'static, str> {
        "Peaks".into()
    }

    /// Where peaks are told, a property for every unit there may be; where they are asked for, any spelling of one.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let rate = generator.subschema_for::<FlopRate>();
        let about = "Peak rates by the unit that multiplies; a unit that is not there has none.";
        if generator.contract().is_deserialize() {
            return json_schema!({ "type": "object", "description": about, "additionalProperties": rate });
        }
        let rates: serde_json::Map<_, _> =
            Math::ALL.iter().map(|math| (math.key().to_owned(), rate.clone().into())).collect();
        json_schema!({ "type": "object", "description": about, "properties": rates, "additionalProperties": false })
    }
}
