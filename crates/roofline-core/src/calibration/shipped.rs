//! Calibrations that ship with the program, so that a machine nobody here has can still be told what to expect of it.

use std::sync::{LazyLock, OnceLock};

use super::{Calibration, Terms};
use crate::{
    Device, Error, Registry, Result,
    device::{Kind, Origin},
};

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
        at_place(at)
    }

    /// Kernels that were timed on another device of the architecture, moved to `device` by its multiprocessors, clock,
    /// bandwidth and peaks; of several, those of the device that is most like it. None for an architecture that nobody timed.
    pub fn moved_to(device: &Device, stack: &str) -> Option<Self> {
        let generation = generation(device)?;
        let others = FILES.iter().enumerate().filter_map(|(at, (name, _))| {
            let key = name.strip_suffix(stack)?.strip_suffix('.')?;
            let other = Registry::builtin().find(key).ok()?.into_owned();
            let alike = generation == self::generation(&other)? && other.label() != device.label();
            alike.then(|| (at, unlikeness(&other, device), other))
        });
        let (at, _, from) = others.min_by(|one, two| one.1.total_cmp(&two.1))?;
        moved(at, &from, device)
    }

    /// What was timed on the most similar other device, moved to this one, and the name of the other: of its architecture where
    /// another was timed, else of the nearest architecture with memory of its kind. It says how well terms move.
    pub fn of_another(device: &Device, stack: &str) -> Option<(Self, String)> {
        let own = generation(device)?;
        let others = FILES.iter().enumerate().filter_map(|(at, (name, _))| {
            let key = name.strip_suffix(stack)?.strip_suffix('.')?;
            let other = Registry::builtin().find(key).ok()?.into_owned();
            let apart = generation(&other)?.abs_diff(own);
            let rank = (apart > 0 && is_stacked(&other) != is_stacked(device), apart);
            (other.label() != device.label()).then(|| (rank, unlikeness(&other, device), at, other))
        });
        let nearer = |one: &(_, f64, _, _), two: &(_, f64, _, _)| {
            let (one_rank, two_rank): (&(bool, u8), &(bool, u8)) = (&one.0, &two.0);
            one_rank.cmp(two_rank).then(one.1.total_cmp(&two.1))
        };
        let (_, _, at, from) = others.min_by(nearer)?;
        let name = from.label();
        Some((moved(at, &from, device)?, name))
    }

    /// Every calibration that ships, or what is wrong with it.
    pub fn shipped() -> impl Iterator<Item = Result<Self>> {
        FILES.iter().map(|(name, text)| read(name, text))
    }
}

/// What was timed on one device, on another.
fn moved(at: usize, from: &Device, to: &Device) -> Option<Calibration> {
    let timed = at_place(at)?;
    let Terms::Timed(terms) = &timed.terms else { return None };
    let terms = Terms::Timed(terms.moved(from, to)?);
    let provenance = format!("moved from {} ({}): {}", from.name, from.key, timed.provenance);
    Some(Calibration { device: to.label(), terms, provenance, ..timed.clone() })
}

/// Whether memory is stacked beside the chip: those chips are data centres', and cut as such.
fn is_stacked(device: &Device) -> bool {
    device.memory.kind.as_deref().is_some_and(|kind| kind.starts_with("HBM"))
}

fn at_place(at: usize) -> Option<&'static Calibration> {
    SHIPPED[at].get_or_init(|| read(FILES[at].0, FILES[at].1).ok()).as_ref()
}

/// Devices whose kernels are cut alike: those of one generation of NVIDIA's multiprocessors, by compute capability.
fn generation(device: &Device) -> Option<u8> {
    let capability = device.compute_capability.as_deref().filter(|_| matches!(device.kind, Kind::Gpu | Kind::Soc))?;
    let (major, minor) = capability.split_once('.')?;
    match (major.parse::<u8>().ok()?, minor) {
        // Ada has Ampere's number and its own FP8 units.
        (8, "9") => Some(89),
        (major @ (8 | 9 | 10 | 12), _) => Some(10 * major),
        _ => None,
    }
}

/// How far two devices are apart in what terms are moved by.
fn unlikeness(one: &Device, two: &Device) -> f64 {
    let bandwidth = (one.memory.bandwidth / two.memory.bandwidth).ln().abs();
    let units = |device: &Device| device.units.count().map_or(1.0, f64::from);
    bandwidth + (units(one) / units(two)).ln().abs()
}

fn read(name: &str, text: &str) -> Result<Calibration> {
    let refuse = |reason: String| Error::Calibration { device: name.to_owned(), reason };
    let read: Calibration = toml::from_str(text).map_err(|error| refuse(error.to_string()))?;
    let read = read.checked()?;
    let expected = format!("{}.{}", read.device, read.stack);
    if name == expected { Ok(read) } else { Err(refuse(format!("it is of {expected}, so its name is wrong"))) }
}
