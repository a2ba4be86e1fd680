//! Factors of terms, as they are kept in a file, and what they come to in one place.

use std::{collections::BTreeMap, sync::LazyLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Level, Reach, Regime, TERMS, Term};
use crate::{
    Device, Error, Result,
    machine::{Class, Stack},
};

/// Factors that figures with the same keys share. Without a key they are the terms themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PublishedEffect")]
pub struct Effect {
    /// The runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Stack>,
    /// The class of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The release of the runtime, as its publishers call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The factors.
    pub factors: BTreeMap<Term, f64>,
}

/// What is known of a runtime on a class of devices, and how well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PublishedKnown")]
pub struct Known {
    /// The runtime.
    pub stack: Stack,
    /// The class.
    pub class: Class,
    /// How many figures were used.
    pub figures: usize,
    /// Of which devices.
    pub devices: Vec<String>,
    /// How far the median figure of a device was from a forecast that had seen none of the device, as a share.
    pub median: f64,
    /// The same of nine in ten.
    pub p90: f64,
}

/// How far figures are from forecasts, four of five of them, in logarithms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "PublishedInterval")]
pub struct Interval {
    /// Of which passes.
    pub regime: Regime,
    /// On a device that figures of the runtime are known of.
    pub seen: f64,
    /// On another of its class.
    pub unseen: f64,
    /// Of a runtime that nobody measured on such devices.
    pub foreign: f64,
}

/// Every factor, with where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PublishedEffects")]
pub struct Effects {
    /// When, from what, and how good it is.
    pub provenance: String,
    /// Intervals by kind of pass.
    pub interval: Vec<Interval>,
    /// What is known of which runtime.
    pub known: Vec<Known>,
    /// The factors.
    pub effect: Vec<Effect>,
}

/// Where a figure was measured, or where a forecast is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) stack: Stack,
    pub(crate) class: Class,
    pub(crate) architecture: String,
    pub(crate) device: String,
    pub(crate) release: Option<String>,
}

impl Place {
    pub(crate) fn of(device: &Device, stack: Stack, release: Option<&str>) -> Self {
        Self {
            stack,
            class: Class::of(device),
            architecture: architecture(device),
            device: device.key.clone(),
            release: release.map(str::to_owned),
        }
    }

    /// The keys of a level, with no factors yet; none where the place has no such key.
    pub(super) fn key(&self, level: Level) -> Option<Effect> {
        let (stack, class) = (Some(self.stack), Some(self.class));
        let none = Effect::default();
        Some(match level {
            Level::All => none,
            Level::Stack => Effect { stack, ..none },
            Level::Class => Effect { class, ..none },
            Level::StackClass => Effect { stack, class, ..none },
            Level::Architecture => Effect { stack, architecture: Some(self.architecture.clone()), ..none },
            Level::Release => Effect { stack, release: Some(self.release.clone()?), ..none },
            Level::Device => Effect { device: Some(self.device.clone()), ..none },
        })
    }
}

/// The family of chips, without the chip: `Ampere` of `Ampere (GA102)`, `Apple M2` of `Apple M2 Ultra`.
fn architecture(device: &Device) -> String {
    let named = device.architecture.split('(').next().unwrap_or_default();
    named.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

impl Effect {
    /// Whether it is of the same figures as another.
    pub(super) fn has_keys_of(&self, other: &Self) -> bool {
        (self.stack, self.class) == (other.stack, other.class)
            && (&self.architecture, &self.release, &self.device) == (&other.architecture, &other.release, &other.device)
    }

    fn matches(&self, place: &Place) -> bool {
        let same = |key: &Option<String>, own: &str| key.as_deref().is_none_or(|key| key == own);
        self.stack.is_none_or(|stack| stack == place.stack)
            && self.class.is_none_or(|class| class == place.class)
            && same(&self.architecture, &place.architecture)
            && same(&self.device, &place.device)
            && self.release.as_deref().is_none_or(|release| Some(release) == place.release.as_deref())
    }
}

static SHIPPED: LazyLock<Effects> = LazyLock::new(|| {
    // A file that does not read is a defect of the build, and a test looks at it.
    Effects::parse(include_str!("../../data/published/terms.toml")).unwrap_or_default()
});

impl Effects {
    /// Those that ship with the program.
    pub fn builtin() -> &'static Self {
        &SHIPPED
    }

    /// Reads a file.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |reason: String| Error::Calibration { device: "published speeds".to_owned(), reason };
        toml::from_str::<Self>(text).map_err(|error| refuse(error.to_string()))?.checked()
    }

    /// Refuses numbers that no machine has, for factors that come from a file.
    pub fn checked(self) -> Result<Self> {
        let refuse = |reason: String| Error::Calibration { device: "published speeds".to_owned(), reason };
        let sensible = |factor: &f64| (1e-3..=1e5).contains(factor);
        let wrong = self.effect.iter().find(|effect| !effect.factors.values().all(sensible));
        if let Some(wrong) = wrong {
            return Err(refuse(format!("a factor is outside what a machine can have: {:?}", wrong.factors)));
        }
        let spread = |interval: &Interval| [interval.seen, interval.unseen, interval.foreign];
        if self.interval.iter().flat_map(spread).any(|width| !(0.0..=5.0).contains(&width)) {
            return Err(refuse("an interval is outside what a forecast can have".to_owned()));
        }
        Ok(self)
    }

    /// The terms of a runtime on a device.
    pub fn reach(&self, device: &Device, stack: Stack, release: Option<&str>) -> Reach {
        self.at(&Place::of(device, stack, release))
    }

    pub(crate) fn at(&self, place: &Place) -> Reach {
        let mut values = [1.0; TERMS];
        for effect in self.effect.iter().filter(|effect| effect.matches(place)) {
            for (term, factor) in &effect.factors {
                values[*term as usize] *= factor;
            }
        }
        // Without a file nothing is known of any runtime, and the terms are where a fit would start.
        if self.effect.is_empty() {
            values = std::array::from_fn(|term| Term::ALL[term].start());
        }
        let known = self.known.iter().find(|known| known.stack == place.stack && known.class == place.class);
        let width = |interval: &Interval| match known {
            Some(known) if known.devices.contains(&place.device) => interval.seen,
            Some(_) => interval.unseen,
            None => interval.foreign,
        };
        let mut intervals = [1.0; Regime::ALL.len()];
        for interval in &self.interval {
            intervals[interval.regime as usize] = width(interval);
        }
        Reach::new(&values, intervals, known.is_some())
    }

    /// What is known of a runtime on a device's class.
    pub fn known(&self, device: &Device, stack: Stack) -> Option<&Known> {
        let class = Class::of(device);
        self.known.iter().find(|known| known.stack == stack && known.class == class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    #[test]
    fn the_file_that_ships_reads_and_every_device_has_terms() {
        let shipped = Effects::parse(include_str!("../../data/published/terms.toml")).unwrap();
        assert!(!shipped.known.is_empty() && shipped.interval.len() == Regime::ALL.len());
        for device in Registry::builtin().devices() {
            for stack in Stack::ALL {
                let reach = shipped.reach(device, *stack, None);
                for term in Term::ALL {
                    let (least, most) = term.bounds();
                    assert!((least..=most).contains(&reach.value(*term)), "{} {stack} {term:?}", device.key);
                }
            }
        }
    }

    #[test]
    fn factors_of_every_key_that_fits_are_multiplied() {
        let text = "provenance = ''\ninterval = []\nknown = []\n[[effect]]\nfactors = { peak = 0.5 }\n[[effect]]\nstack = 'mlx'\n\
                    factors = { peak = 0.8 }\n[[effect]]\nstack = 'mlx'\nclass = 'cpu'\nfactors = { peak = 0.1 }";
        let effects = Effects::parse(text).unwrap();
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        assert_eq!(effects.reach(&device, Stack::Mlx, None).value(Term::Peak), 0.4);
        assert_eq!(effects.reach(&device, Stack::Vllm, None).value(Term::Peak), 0.5);
        assert!(Effects::parse(&text.replace("0.8", "nan")).is_err());
    }
}
