//! The devices that can be asked for by name: the built-in ones and the user's own.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{LazyLock, OnceLock},
};

use crate::{Device, Error, Result, device::Origin};

/// Key and text of every built-in device file, sorted by key.
static FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/devices.rs"));

/// Every built-in device. A file that does not parse is a defect of the build, and `data_files` tests that none does.
static BUILTIN: LazyLock<Vec<Device>> = LazyLock::new(|| FILES.iter().filter_map(|file| load(file).ok()).collect());

/// Every name of a built-in device, where they were all read.
static INDEX: OnceLock<HashMap<String, usize>> = OnceLock::new();

fn load((key, text): &(&str, &str)) -> Result<Device> {
    Device::parse(text, key, (*key).to_owned(), Origin::Builtin)
}

/// Built-in devices and the user's.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    own: Vec<Device>,
}

impl Registry {
    /// The devices that ship with the program.
    pub fn builtin() -> Self {
        Self::default()
    }

    /// With devices of the user's, which are found first; [`Registry::shadowed`] tells which built-in they hide.
    #[must_use]
    pub fn with(mut self, own: impl IntoIterator<Item = Device>) -> Self {
        self.own.extend(own);
        self
    }

    /// All devices, the user's first.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.own.iter().chain(BUILTIN.iter())
    }

    /// The device called `name`: its key, an alias, its full name or the name its driver reports, in any case and with any
    /// or no signs between its parts (`RTX 4070 Ti`, `rtx4070ti`); `KEY@MODE` for a power mode.
    pub fn find(&self, name: &str) -> Result<Cow<'_, Device>> {
        let (name, mode) = match name.split_once('@') {
            Some((name, mode)) => (name, Some(mode)),
            None => (name, None),
        };
        let device = self.lookup(name)?;
        match mode {
            Some(mode) => device.in_mode(mode).map(Cow::Owned),
            None => Ok(device),
        }
    }

    fn lookup(&self, name: &str) -> Result<Cow<'_, Device>> {
        let key = bare(name);
        if let Some(device) = self.own.iter().find(|device| answers_to(device, &key)) {
            return Ok(Cow::Borrowed(device));
        }
        if let Some(index) = INDEX.get() {
            return index.get(&key).map(|at| Cow::Borrowed(&BUILTIN[*at])).ok_or_else(|| self.unknown(name));
        }
        // A file is parsed in 18 us, all of them in 6 ms: only those are that could be meant.
        let candidates = FILES.iter().filter(|(known, text)| same(known, &key) || mentions(text, &key));
        let known = candidates.filter_map(|file| load(file).ok()).find(|device| answers_to(device, &key));
        known.map(Cow::Owned).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let known = self.devices().flat_map(|device| device.aliases.iter().chain([&device.key]));
        let hint = "`⟨roofline devices⟩` lists them; a file (`⟨on my-chip.toml⟩`) or `⟨bandwidth⟩` and `⟨peak⟩` describe others";
        Error::unknown("device", name, known.map(String::as_str), hint)
    }

    /// Reads every built-in device now: a process that answers many questions finds each in a table from then on.
    pub fn preload() {
        INDEX.get_or_init(|| {
            let mut index = HashMap::new();
            for (at, device) in BUILTIN.iter().enumerate() {
                for name in device.names() {
                    index.entry(bare(&name)).or_insert(at);
                }
            }
            index
        });
    }

    /// The device whose driver calls it exactly `name`. Unlike [`Registry::find`] nothing is folded and no alias counts: what
    /// a driver says must not become another device by accident.
    pub fn reported(&self, name: &str) -> Option<Cow<'_, Device>> {
        let reports = |device: &Device| device.reported_names.iter().any(|reported| reported == name);
        if let Some(device) = self.own.iter().find(|device| reports(device)) {
            return Some(Cow::Borrowed(device));
        }
        let quoted = format!("\"{name}\"");
        let candidates = FILES.iter().filter(|(_, text)| text.contains(&quoted));
        candidates.filter_map(|file| load(file).ok()).find(reports).map(Cow::Owned)
    }

    /// The built-in device that one of the user's hides, by any of its names.
    pub fn shadowed(device: &Device) -> Option<&'static Device> {
        if device.origin == Origin::Builtin {
            return None;
        }
        device.names().find_map(|name| BUILTIN.iter().find(|known| answers_to(known, &bare(&name))))
    }
}

/// Letters, digits and points of a name, in lower case: what people agree on where they write `4070 Ti`, `4070-ti` or
/// `4070ti`. No two built-in devices have a name in common by it.
fn bare(name: &str) -> String {
    letters(name).collect()
}

fn letters(name: &str) -> impl Iterator<Item = char> + '_ {
    // Whatever is no sign that people write between parts stays, so that it is not found: a control character, say.
    let kept = |letter: &char| *letter == '.' || !(letter.is_ascii_punctuation() || matches!(letter, ' ' | '®' | '™'));
    name.chars().filter(kept).map(|letter| letter.to_ascii_lowercase())
}

/// Whether `name` is the bare name `key`.
fn same(name: &str, key: &str) -> bool {
    !key.is_empty() && letters(name).eq(key.chars())
}

/// Whether the bare name `key` is one of the device's names.
fn answers_to(device: &Device, key: &str) -> bool {
    let names = [&device.key, &device.name].into_iter().chain(&device.aliases).chain(&device.reported_names);
    names.into_iter().any(|name| same(name, key))
}

/// Whether one of a file's strings is the bare name `key`.
fn mentions(text: &str, key: &str) -> bool {
    text.split('"').skip(1).step_by(2).any(|string| string.len() >= key.len() && same(string, key))
}

/// The text of every built-in device file, for tests of the data itself.
#[doc(hidden)]
pub fn files() -> &'static [(&'static str, &'static str)] {
    FILES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ByteRate;

    #[test]
    fn names_lead_to_the_device() {
        let registry = Registry::builtin();
        for (name, key) in [
            ("h200", "h200_sxm"),
            ("H200", "h200_sxm"),
            ("NVIDIA H200", "h200_sxm"),
            ("h100", "h100_sxm"),
            ("a100", "a100_sxm_80gb"),
            ("a100_sxm", "a100_sxm_80gb"),
            ("A100-40GB", "a100_sxm_40gb"),
            ("b10", "gb10"),
            ("b200_sxm", "b200"),
            ("jetson_orin_nano", "jetson_orin_nano_8gb"),
            ("jetson_nano", "jetson_nano"),
            ("t4", "t4"),
            ("Tesla T4", "t4"),
            ("v100", "v100_sxm2_16gb"),
            ("l4", "l4"),
            ("RTX4090", "rtx_4090"),
            ("rtx_pro_6000_server", "rtx_pro_6000_server"),
            // As kernel timings and scoreboards spell them.
            ("h100_sxm", "h100_sxm"),
            ("h200_nvl", "h200_nvl"),
            ("b300_sxm", "b300"),
            ("gb200_sxm", "gb200"),
            ("gb300_sxm", "gb300"),
            ("gh200", "gh200_96gb"),
            ("rtx_pro_6000", "rtx_pro_6000_blackwell"),
            ("RTX 4070 Ti SUPER", "rtx_4070_ti_super"),
            ("rtx4070tisuper", "rtx_4070_ti_super"),
            ("GeForce RTX 4070 Ti", "rtx_4070_ti"),
            ("RTX 4070Ti", "rtx_4070_ti"),
            ("4070s", "rtx_4070_super"),
            ("4070ti", "rtx_4070_ti"),
            ("3080", "rtx_3080_10gb"),
            ("5060ti", "rtx_5060_ti_16gb"),
            ("4090 laptop", "rtx_4090_laptop"),
            ("7900xt", "rx_7900_xt"),
            ("RX 7900 XTX", "rx_7900_xtx"),
            ("9070-xt", "rx_9070_xt"),
            ("w7900", "pro_w7900"),
            ("MI50", "mi50_16gb"),
            ("a770", "arc_a770_16gb"),
            ("m2-ultra-76", "apple_m2_ultra"),
            ("M2 Ultra", "apple_m2_ultra"),
            ("M2 Ultra 60", "apple_m2_ultra_60"),
            ("m1-max-24c", "apple_m1_max_24"),
            ("m5 max", "apple_m5_max"),
            ("epyc-9654", "epyc_9654"),
            ("9654", "epyc_9654"),
            ("i9-13900K", "core_i9_13900k"),
            ("Ryzen 7 5800X3D", "ryzen_7_5800x3d"),
            ("Raspberry Pi 5", "raspberry_pi_5"),
            ("DGX Spark", "gb10"),
        ] {
            assert_eq!(registry.find(name).unwrap().key, key, "{name}");
        }
        // A name is never matched in part: an L40S is no L4, an H200 no H20.
        assert_eq!(registry.find("NVIDIA L40S").unwrap().key, "l40s");
        assert!(registry.find("NVIDIA H2").is_err());
        for nothing in ["", " ", "_", "-", "@", "rtx", "4070 ti super duper"] {
            assert!(registry.find(nothing).is_err(), "{nothing:?}");
        }
    }

    #[test]
    fn a_driver_is_taken_at_its_word() {
        let registry = Registry::builtin();
        assert_eq!(registry.reported("NVIDIA H200").unwrap().key, "h200_sxm");
        assert_eq!(registry.reported("NVIDIA H200 NVL").unwrap().key, "h200_nvl");
        for other in ["nvidia h200", "NVIDIA H200 ", "NVIDIA H2", "h200", "H200 SXM5 141GB", "NVIDIA", "bf16", ""] {
            assert!(registry.reported(other).is_none(), "{other:?}");
        }
        let text = "name = 'mine'\nreported_names = ['NVIDIA H200']\n[memory]\nbandwidth = '1 TB/s'\n[peaks]";
        let own = Registry::builtin().with([Device::from_toml(text, "mine.toml").unwrap()]);
        assert_eq!(own.reported("NVIDIA H200").unwrap().name, "mine");
    }

    #[test]
    fn all_devices_at_once_are_the_same_devices() {
        let names = ["h200", "NVIDIA H200", "b10", "Tesla T4", "jetson_orin_nano@7w", "rtx_4090", "h20O", "l40s@1W"];
        let found = || names.map(|name| Registry::builtin().find(name).map(Cow::into_owned));
        let before = found();
        Registry::preload();
        assert_eq!(before, found());
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        // Signs between parts do not matter; what nobody writes in a name does.
        assert!(Registry::builtin().find("H-200").is_ok() && Registry::builtin().find("h200\0").is_err());
        let error = Registry::builtin().find("h20O").unwrap_err();
        assert_eq!(error.to_string(), "unknown device `h20O`; did you mean `h200`?");
        assert!(error.hint().unwrap().contains("roofline devices"));
    }

    #[test]
    fn a_power_mode_scales_compute_and_keeps_its_own_bandwidth() {
        // nvpmodel of the Orin Nano 8GB: 7 W halves the multiprocessors and caps the GPU at 408 MHz, memory stays.
        let registry = Registry::builtin();
        let full = registry.find("jetson_orin_nano").unwrap();
        let low = registry.find("jetson_orin_nano@7w").unwrap();
        assert_eq!(low.memory.bandwidth, full.memory.bandwidth);
        let left = low.peaks.of(crate::Math::Fp16).unwrap() / full.peaks.of(crate::Math::Fp16).unwrap();
        assert!((left - 0.5 * 408.0 / 625.0).abs() < 1e-12);
        let error = registry.find("jetson_orin_nano@70W").unwrap_err();
        assert_eq!(error.hint().unwrap(), "its modes: 15W, 7W");
        assert!(registry.find("h200@7W").unwrap_err().hint().unwrap().contains("single mode"));
    }

    #[test]
    fn the_users_device_is_found_first_and_its_shadow_is_known() {
        let bandwidth = ByteRate::new(4.6e12);
        let own = Device::custom("H200", bandwidth, crate::device::Peaks::default(), None).unwrap();
        assert_eq!(Registry::shadowed(&own).unwrap().key, "h200_sxm");
        let registry = Registry::builtin().with([own]);
        assert_eq!(registry.find("h200").unwrap().memory.bandwidth, bandwidth);
        assert_eq!(registry.find("h200_sxm").unwrap().memory.bandwidth, ByteRate::new(4.8e12));
        // Any of its names counts.
        let own = |text: &str| {
            Device::from_toml(&format!("{text}\n[memory]\nbandwidth = '1 TB/s'\n[peaks]"), "x.toml").unwrap()
        };
        assert_eq!(Registry::shadowed(&own("name = 'Tesla T4'")).unwrap().key, "t4");
        assert_eq!(Registry::shadowed(&own("name = 'x'\nreported_names = ['NVIDIA H200']")).unwrap().key, "h200_sxm");
        assert_eq!(Registry::shadowed(&own("name = 'x'\naliases = ['A100-40GB']")).unwrap().key, "a100_sxm_40gb");
        assert!(Registry::shadowed(&own("name = 'x'")).is_none());
    }
}
