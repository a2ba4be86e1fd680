//! Calibrations that ship with the program, so that a machine nobody here has can still be told what to expect of it.

use std::sync::LazyLock;

use super::Calibration;
use crate::{Device, Error, Result, device::Origin};

/// Name and text of every file in `data/calibrations`, sorted by name.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/calibrations.rs"));

/// Those that make sense. One that does not is a defect of the build, and a test looks at each.
static SHIPPED: LazyLock<Vec<Calibration>> = LazyLock::new(|| Calibration::shipped().flatten().collect());

impl Calibration {
    /// The calibration that ships for `device` and `stack`. A device whose numbers are the user's own has none: it may be
    /// another machine of the same name.
    pub fn builtin(device: &Device, stack: &str) -> Option<&'static Self> {
        let known = device.origin == Origin::Builtin;
        SHIPPED.iter().find(|kept| known && kept.device == device.label() && kept.stack == stack)
    }

    /// Every calibration that ships, or what is wrong with it.
    pub fn shipped() -> impl Iterator<Item = Result<Self>> {
        FILES.iter().map(|(name, text)| {
            let refuse = |reason: String| Error::Calibration { device: (*name).to_owned(), reason };
            let read: Self = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
            let read = read.checked()?;
            let expected = format!("{}.{}", read.device, read.stack);
            if *name == expected { Ok(read) } else { Err(refuse(format!("it is of {expected}, so its name is wrong"))) }
        })
    }
}
