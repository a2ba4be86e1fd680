//! The registry's own data: every file loads, is unique and sourced, and its peaks follow from first principles.
//!
//! `peak = units x operations per clock and unit (dense) x clock`, `bandwidth = bus width x rate per pin / 8`. The rates
//! per clock (`first_principles.toml`) are architectural and independent of the files. What this does not prove: for
//! `derived` devices, and classes whose rates were chosen to reproduce the published figure, the check only guards
//! against slips.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, HashMap, HashSet};

use roofline_core::{
    Device, Math, Registry,
    device::{Kind, Peaks, key_of},
    registry, soundness,
};
use serde::Deserialize;

/// Largest relative difference that needs no explanation.
const TOLERANCE: f64 = 0.03;

#[derive(Deserialize)]
struct FirstPrinciples {
    class: BTreeMap<String, Class>,
    exception: Vec<Exception>,
}

#[derive(Deserialize)]
struct Class {
    devices: Vec<String>,
    rates: BTreeMap<String, f64>,
    #[serde(default)]
    fitted: bool,
}

#[derive(Deserialize)]
struct Exception {
    device: String,
    rate: String,
    reason: String,
}

fn first_principles() -> FirstPrinciples {
    toml::from_str(include_str!("first_principles.toml")).unwrap()
}

/// Every listed value beside the one that follows from first principles: (device, rate, listed, derived).
fn derivations(principles: &FirstPrinciples) -> Vec<(Device, String, f64, f64)> {
    let mut rows = Vec::new();
    for class in principles.class.values() {
        for key in &class.devices {
            let device = Registry::builtin().find(key).unwrap().into_owned();
            // Of processors, cores count, and servers are rated at their base clock.
            let count = f64::from(device.units.count().or(device.units.cores).unwrap());
            let boost = device.clock.boost.or(device.clock.base).unwrap();
            for (name, rate) in &class.rates {
                let math: Math = name.parse().unwrap();
                let Some(peak) = device.peaks.of(math) else { continue };
                // Hopper rates low-precision tensor peaks at a clock of their own; vector and FP64 rates at boost.
                let vector = matches!(math, Math::Fp32 | Math::Fp64 | Math::Fp64Tensor | Math::Int8Dp4a);
                let clock = if vector { boost } else { device.clock.tensor.unwrap_or(boost) };
                rows.push((device.clone(), name.clone(), peak.value(), count * rate * clock.value()));
            }
        }
    }
    for device in builtin() {
        let (Some(bits), Some(rate)) = (device.memory.bus_bits, device.memory.gbps_per_pin) else { continue };
        let listed = device.memory.bandwidth.value();
        rows.push((device, "bandwidth".to_owned(), listed, f64::from(bits) * rate * 1e9 / 8.0));
    }
    rows
}

fn builtin() -> Vec<Device> {
    Registry::builtin().devices().cloned().collect()
}

#[test]
fn every_file_loads() {
    for (key, text) in registry::files() {
        Device::from_toml(text, &format!("{key}.toml")).unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(builtin().len(), registry::files().len());
    assert!(builtin().len() >= 300);
}

#[test]
fn names_are_unique() {
    let mut owners: HashMap<String, String> = HashMap::new();
    for device in builtin() {
        assert_eq!(device.key, key_of(&device.key), "a key is lower case with underscores");
        let names = device.aliases.iter().chain(&device.reported_names).chain([&device.name, &device.key]);
        // Signs between the parts of a name do not tell devices apart.
        let mut own: Vec<String> = names.map(|name| key_of(name).replace('_', "")).collect();
        own.sort();
        own.dedup();
        for name in own {
            assert_eq!(Registry::builtin().find(&name).unwrap().key, device.key, "{name}");
            if let Some(other) = owners.insert(name.clone(), device.key.clone()) {
                panic!("`{name}` names both {other} and {}", device.key);
            }
        }
    }
}

#[test]
fn every_device_is_sourced_and_in_range() {
    assert_eq!(soundness::devices(), Vec::<String>::new());
    assert_eq!(soundness::calibrations(), Vec::<String>::new());
}

#[test]
fn rates_follow_from_first_principles() {
    let principles = first_principles();
    let mut used = HashSet::new();
    let mut failures = Vec::new();
    let rows = derivations(&principles);
    for (device, rate, listed, derived) in &rows {
        if (listed / derived - 1.0).abs() <= TOLERANCE {
            continue;
        }
        let known = principles.exception.iter().find(|exception| {
            let any = exception.rate == "any" && rate != "bandwidth";
            exception.device == device.key && (any || exception.rate == *rate)
        });
        if let Some(exception) = known {
            assert!(exception.reason.len() > 10);
            used.insert((&exception.device, &exception.rate));
        } else {
            let sparse = (listed / derived / 2.0 - 1.0).abs() < TOLERANCE;
            let guess = if sparse { " (looks like a sparse figure)" } else { "" };
            failures.push(format!("{} {rate}: {listed:e}, derived {derived:e}{guess}", device.key));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // An exception that no longer applies would hide the next mistake.
    assert_eq!(used.len(), principles.exception.len(), "unused exceptions");
    let fitted: usize = principles.class.values().filter(|class| class.fitted).map(|class| class.devices.len()).sum();
    assert!(rows.len() >= 1650 && fitted <= 4, "{} checks, {fitted} fitted devices", rows.len());
}

/// A GPU that no class covers would go unchecked.
#[test]
fn every_gpu_is_checked() {
    let principles = first_principles();
    let covered: HashSet<&String> = principles.class.values().flat_map(|class| &class.devices).collect();
    let missing: Vec<String> = builtin()
        .into_iter()
        .filter(|device| matches!(device.kind, Kind::Gpu | Kind::Soc) && !covered.contains(&device.key))
        .map(|device| device.key)
        .collect();
    assert_eq!(missing, ["b100", "b300", "gb300"]);
}

/// Every processor is checked, but for those with two kinds of core, whose files spell out a sum.
#[test]
fn every_processor_with_one_kind_of_core_is_checked() {
    let principles = first_principles();
    let covered: HashSet<&String> = principles.class.values().flat_map(|class| &class.devices).collect();
    for device in builtin().iter().filter(|device| device.kind == Kind::Cpu && !covered.contains(&device.key)) {
        let source = device.source.as_deref().unwrap_or_default();
        assert!(source.contains("sum over cores of"), "{}", device.key);
    }
}

/// 16-bit sums are what GeForce cards run at twice the rate; others have no rate of their own for them.
#[test]
fn sixteen_bit_sums_are_a_matter_of_geforce() {
    let mut cards = 0;
    for device in builtin() {
        let (wide, narrow) = (device.peaks.of(Math::Fp16), device.peaks.of(Math::Fp16Acc16));
        let tensor = device.peaks.of(Math::Int4).is_some() || device.peaks.of(Math::Fp4).is_some();
        assert_eq!(narrow.is_some(), device.name.starts_with("GeForce") && tensor, "{}", device.key);
        let Some(narrow) = narrow else { continue };
        assert!((narrow / wide.unwrap() / 2.0 - 1.0).abs() <= TOLERANCE, "{}: {narrow}", device.key);
        cards += 1;
    }
    assert!(cards >= 40, "{cards}");
}

/// Blackwell Ultra publishes no clock: the clocks that its peaks imply must agree with each other.
#[test]
fn peaks_without_a_clock_imply_one() {
    let rates = [(Math::Tf32, 4096.0), (Math::Bf16, 8192.0), (Math::Fp8, 16_384.0), (Math::Fp4, 49_152.0)];
    for key in ["b300", "gb300"] {
        let device = Registry::builtin().find(key).unwrap().into_owned();
        let units = f64::from(device.units.count().unwrap());
        let clocks = rates.map(|(math, rate)| device.peaks.of(math).unwrap().value() / units / rate);
        let (low, high) =
            clocks.iter().fold((f64::MAX, 0.0f64), |(low, high), clock| (low.min(*clock), high.max(*clock)));
        assert!(high / low < 1.0 + TOLERANCE && (1.5e9..2.5e9).contains(&high), "{key}: {clocks:?}");
    }
}

#[test]
fn ratios_the_architecture_guarantees() {
    for device in builtin() {
        let peak = |math| device.peaks.of(math).map(roofline_core::units::FlopRate::value);
        if let (Some(fp8), Some(fp16), "NVIDIA") = (peak(Math::Fp8), peak(Math::Fp16), device.vendor.as_str()) {
            assert!((fp8 / fp16 / 2.0 - 1.0).abs() <= TOLERANCE, "{}: FP8 is not twice FP16", device.key);
        }
        let Some(measured) = &device.measured else { continue };
        for (math, rate) in measured.rates.iter() {
            // Above the peak by more than clocks explain, either the peak or the measurement is wrong.
            let within = peak(math).is_none_or(|peak| rate.value() <= 1.25 * peak);
            assert!(within, "{} {math}: measured {rate}", device.key);
        }
    }
}

/// The largest mode of a Jetson is what its data sheet quotes, and `KEY@MODE` reproduces each mode's own rates.
#[test]
fn power_modes_agree_with_the_device() {
    let mut modes = 0;
    for device in builtin().iter().filter(|device| !device.power_modes.is_empty()) {
        let key = &device.key;
        let top = device.power_modes.iter().max_by(|a, b| a.fp16.value().total_cmp(&b.fp16.value())).unwrap();
        assert_eq!(top.int8.is_some(), device.peaks.of(Math::Int8).is_some(), "{key}");
        for (math, rate) in [(Math::Fp16, Some(top.fp16)), (Math::Int8, top.int8)] {
            let Some(rate) = rate else { continue };
            let peak = device.peaks.of(math).unwrap();
            assert!((peak / rate - 1.0).abs() <= TOLERANCE, "{key} {math}: {peak} against {rate} in {}", top.name);
        }
        let widest = device.power_modes.iter().map(|mode| mode.bandwidth.value()).fold(0.0, f64::max);
        assert!((device.memory.bandwidth.value() / widest - 1.0).abs() <= TOLERANCE, "{key} bandwidth");
        assert_eq!(device.power_modes.iter().filter(|mode| mode.default).count(), 1, "{key} starts in one mode");
        for mode in &device.power_modes {
            let there = device.in_mode(&mode.name).unwrap();
            let fp16 = there.peaks.of(Math::Fp16).unwrap();
            assert!((fp16 / mode.fp16 - 1.0).abs() <= TOLERANCE, "{key}@{}: {fp16} against {}", mode.name, mode.fp16);
            modes += 1;
        }
    }
    assert_eq!(modes, 50);
}

const MODE: &str = "[[power_modes]]\nname = '7W'\nid = 1\ngpu_clock = '408 MHz'\nsm = 4\nmemory_clock = '2133 MHz'\n\
                    bandwidth = '68.3 GB/s'\nfp16 = '3.34 TFLOP/s'\nint8 = '6.68 TOP/s'\n";

#[test]
fn a_power_mode_needs_something_to_scale_by() {
    let text = format!("name = 'x'\n[memory]\nbandwidth = '60 GB/s'\n[peaks]\nfp16 = '2.7 TFLOP/s'\n{MODE}");
    let error = Device::from_toml(&text, "x.toml").unwrap().in_mode("7W").unwrap_err();
    assert!(error.to_string().contains("`sm` in [units]"), "{error}");
    let zero = format!("{text}[units]\nsm = 0\n[clock]\nboost = '0 Hz'\n");
    assert!(Device::from_toml(&zero, "x.toml").unwrap().in_mode("7W").is_err());
}

const RANGE: &str = "[memory.bandwidth_range]\nlow = '50 GB/s'\nhigh = '68 GB/s'\nsource = 'x'\n";

/// The band of a device: what was measured beside what is rated, else the published range, else none.
#[test]
fn a_bandwidth_has_a_band_where_somebody_gave_one() {
    let band = |name: &str| {
        let device = Registry::builtin().find(name).unwrap().into_owned();
        device.bandwidth_band().map(|(low, high)| (low.value() / 1e9, high.value() / 1e9))
    };
    assert_eq!(band("gb10"), Some((273.0, 301.0)));
    assert_eq!(band("jetson_orin_nano"), Some((60.0, 68.3)));
    // A power mode has other clocks, and nobody said what it reaches.
    assert_eq!(band("jetson_orin_nano@7W"), None);
    assert_eq!(band("jetson_nano"), None);
    let base = "name = 'chip'\n[memory]\nbandwidth = '60 GB/s'\n[peaks]\nfp16 = '2.7 TFLOP/s'\n";
    let device = |text: &str| Device::from_toml(&format!("{base}{text}"), "chip.toml").unwrap();
    let ends = |device: &Device| device.bandwidth_band().map(|(low, high)| (low.value() / 1e9, high.value() / 1e9));
    assert_eq!(ends(&device(RANGE)), Some((50.0, 68.0)));
    // What was measured is better than what was said.
    let measured = device(&format!("{RANGE}[measured]\nbandwidth = '57 GB/s'\nsource = 'x'\n"));
    assert_eq!(ends(&measured), Some((57.0, 60.0)));
    assert_eq!(ends(&device(RANGE).scaled(2.0, 1.0).unwrap()), Some((100.0, 136.0)));
    let other = device(RANGE).modified(Some(roofline_core::units::ByteRate::new(1e12)), &Peaks::default()).unwrap();
    assert_eq!(ends(&other), None);
}

/// One bad file per kind of mistake, and the sentence it must get.
#[test]
fn bad_files_say_what_is_wrong() {
    let base = "name = 'chip'\n[memory]\nbandwidth = '60 GB/s'\n[peaks]\nfp16 = '2.7 TFLOP/s'\n";
    assert_eq!(Device::from_toml(base, "dir/My-Chip.toml").unwrap().key, "my_chip");
    for (text, expected) in [
        (base.replace("60 GB/s", "60"), "`60` has no unit"),
        (base.replace("60 GB/s", "0 GB/s"), "memory bandwidth of 0 B/s is outside"),
        (base.replace("60 GB/s", "60e30 GB/s"), "memory bandwidth of"),
        (base.replace("60 GB/s", "-60 GB/s"), "is negative"),
        (base.replace("fp16", "fp17"), "unknown math unit `fp17`; did you mean `fp16`?"),
        (base.replace("2.7 TFLOP/s", "0 FLOP/s"), "fp16 peak of 0 FLOP/s is outside"),
        (base.replace("2.7 TFLOP/s", "2.7 TB/s"), "not a multiple of FLOP/s"),
        (base.replace("name = 'chip'\n", ""), "missing field `name`"),
        (base.replace("chip", ""), "its name must have"),
        (format!("{base}nvfp4 = '1 TFLOP/s'\nmxfp4 = '2 TFLOP/s'\n"), "the peak `fp4` is given twice"),
        (format!("{base}{MODE}").replace("68.3 GB/s", "0 GB/s"), "power mode 7W: memory bandwidth of 0 B/s is outside"),
        (format!("{base}{MODE}").replace("3.34 TFLOP/s", "0 FLOP/s"), "power mode 7W: fp16 peak of 0 FLOP/s"),
        (
            format!("{base}{RANGE}").replace("50 GB/s", "70 GB/s"),
            "its low end, 70 GB/s, is above its high end, 68 GB/s",
        ),
        (
            format!("{base}{RANGE}").replace("68 GB/s", "0 GB/s"),
            "bandwidth_range: memory bandwidth of 0 B/s is outside",
        ),
        (format!("{base}{RANGE}").replace("source = 'x'", "source = ' '"), "bandwidth_range: it has no source"),
        (format!("{base}{RANGE}").replace("source = 'x'", ""), "missing field `source`"),
        (base.replace("[peaks]", "[sparse_peaks]"), "unknown field `sparse_peaks`"),
        (base.replace("bandwidth = '60 GB/s'", "bandwith = '60 GB/s'"), "unknown field `bandwith`"),
        (base.replace("'60 GB/s'", "60"), "invalid type: integer `60`, expected a string"),
        ("[".repeat(70_000), "too long"),
        (format!("x = {}", "[".repeat(20_000)), "line 1: cannot recurse further"),
        ("\u{0}".to_owned(), "line 1: key with no value"),
    ] {
        let error = Device::from_toml(&text, "chip.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nshould contain {expected}");
    }
}
