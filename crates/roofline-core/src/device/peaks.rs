//! Peak rates per multiplying unit.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Math, Result, units::FlopRate};

/// A rate per unit; a unit that is not there has none, and nothing stands in for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peaks([Option<FlopRate>; Math::ALL.len()]);

impl Peaks {
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

impl FromIterator<(Math, FlopRate)> for Peaks {
    fn from_iter<I: IntoIterator<Item = (Math, FlopRate)>>(peaks: I) -> Self {
        let mut all = Self::default();
        peaks.into_iter().for_each(|(math, peak)| all.set(math, peak));
        all
    }
}

impl<'de> Deserialize<'de> for Peaks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let named = BTreeMap::<String, FlopRate>::deserialize(deserializer)?;
        let peaks = named.into_iter().map(|(name, peak)| Ok((name.parse::<Math>()?, peak)));
        peaks.collect::<Result<_>>().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Peaks {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(math, peak)| (math.key(), peak)))
    }
}
