//! Calibrations that ship with the program, so that a machine nobody here has can still be told what to expect of it.

use std::sync::{LazyLock, OnceLock};

use super::Calibration;
use crate::{Device, Error, Result, device::Origin};

/// Name and text of every file in `data/calibrations`, sorted by name.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/calibrations.rs"));

/// Each once it was asked for: reading one takes longer than an answer. None for one that makes no sense, which is a defect of
/// the build, and a test looks at each.
static SHIPPED: LazyLock<Vec<OnceLock<Option<Calibration>>>> =
    LazyLock::new(|| FILES.iter().map(|_| OnceLock::new()).collect());

impl Calibration {
    /// The calibration that ships for `device` and `stack`. A device whose numbers are the user's own has none: it may be
    /// another machine of the same name.
    pub fn builtin(device: &Device, stack: &str) -> Option<&'static Self> {
        if device.origin != Origin::Builtin {
            return None;
        }
        let name = format!("{}.{stack}", device.label());
        let at = FILES.binary_search_by(|(known, _)| (*known).cmp(name.as_str())).ok()?;
        SHIPPED[at].get_or_init(|| read(FILES[at].0, FILES[at].1).ok()).as_ref()
    }

    /// Every calibration that ships, or what is wrong with it.
    pub fn shipped() -> impl Iterator<Item = Result<Self>> {
        FILES.iter().map(|(name, text)| read(name, text))
    }
}

fn read(name: &str, text: &str) -> Result<Calibration> {
    let refuse = |reason: String| Error::Calibration { device: name.to_owned(), reason };
    let read: Calibration = serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let read = read.checked()?;
    let expected = format!("{}.{}", read.device, read.stack);
    if name == expected { Ok(read) } else { Err(refuse(format!("it is of {expected}, so its name is wrong"))) }
}
