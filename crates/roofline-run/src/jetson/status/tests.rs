use std::fs;

use super::*;

fn recorded(name: &str) -> Status {
    Status::read(&Root::new(format!("{}/tests/jetson/synthetic-{name}", env!("CARGO_MANIFEST_DIR"))))
}

/// Every tree is the board it was made after, in the mode it was left in, with every clock a clock.
#[test]
fn every_tree_is_recognised() {
    for (tree, device, mode) in [
        ("orin-nano-8gb", "jetson_orin_nano_8gb", (1, "7W", Some(7.0))),
        ("orin-nano-super", "jetson_orin_nano_8gb_super", (1, "25W", Some(25.0))),
        ("orin-nx-16gb", "jetson_orin_nx_16gb", (2, "15W", Some(15.0))),
        ("agx-orin-64gb", "jetson_agx_orin_64gb", (2, "MODE_30W", Some(30.0))),
        ("thor", "jetson_thor_t5000", (1, "120W", Some(120.0))),
    ] {
        let status = recorded(tree);
        assert!(status.is_jetson, "{tree}");
        assert_eq!(status.device.as_deref(), Some(device), "{tree}");
        let now = (status.power_mode_id, status.power_mode_name.as_deref(), status.power_budget.map(Watts::value));
        assert_eq!(now, (Some(mode.0), Some(mode.1), mode.2), "{tree}");
        let clock = status.gpu_clock.unwrap().value();
        assert!((1e8..2e9).contains(&clock), "{tree}: Hz, not kHz: {clock}");
        assert!(status.power_total.is_some() && status.temperatures_c.contains_key("tj-thermal"), "{tree}");
        assert!(status.cuda_device_name.is_none(), "files have no CUDA");
    }
}

#[test]
fn the_names_are_those_of_the_record() {
    let fields = serde_json::to_value(recorded("orin-nano-8gb")).unwrap();
    for name in [
        "is_jetson",
        "power_mode_id",
        "power_mode_name",
        "power_budget_w",
        "gpu_freq_mhz",
        "gpu_freq_max_mhz",
        "emc_freq_mhz",
        "cpu_freq_mhz",
        "mem_total_mb",
        "mem_available_mb",
        "mem_used_mb",
        "jetson_clocks_active",
        "cuda_device_name",
        "cuda_memory_gb",
        "cuda_memory_allocated_gb",
        "errors",
    ] {
        assert!(fields.get(name).is_some(), "{name}");
    }
    assert!(fields["errors"].is_array());
}

#[test]
fn another_machine_is_one_error() {
    let status = Status::read(&Root::new("/nonexistent"));
    assert!(!status.is_jetson);
    assert_eq!(status.errors.len(), 1);
}

/// A tree in which every file is nonsense, each in its own way: nothing is believed, everything is said.
#[test]
fn nonsense_is_said_and_not_believed() {
    let folder = std::env::temp_dir().join(format!("roofline-jetson-nonsense-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let clocks = "sys/class/devfreq/17000000.gpu";
    for (path, text) in [
        ("etc/nv_tegra_release", "R36, no revision"),
        ("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=15W >\nGPU MAX_FREQ 408\n"),
        ("var/lib/nvpmodel/status", "pmode:0007"),
        ("proc/meminfo", "MemTotal: 99999999999999999999 kB\nMemAvailable: -3 kB\nSwapTotal: 0 kB\n"),
        ("proc/device-tree/model", "\u{1b}[2JToaster"),
        (&format!("{clocks}/cur_freq"), "408000"),
        (&format!("{clocks}/max_freq"), "\n"),
        ("sys/class/hwmon/hwmon0/name", "ina3221"),
        ("sys/class/hwmon/hwmon0/in1_label", "VDD_IN"),
        ("sys/class/hwmon/hwmon0/in1_input", "5000000"),
        ("sys/class/hwmon/hwmon0/curr1_input", "5000000"),
        ("sys/class/thermal/thermal_zone0/type", "tj-thermal"),
        ("sys/class/thermal/thermal_zone0/temp", "-256000"),
    ] {
        let place = folder.join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, text).unwrap();
    }
    let status = Status::read(&Root::new(&folder));
    fs::remove_dir_all(&folder).unwrap();
    assert!(status.is_jetson);
    assert_eq!(
        (status.l4t_version.as_ref(), status.memory, status.gpu_clock, status.power_total),
        (None, None, None, None)
    );
    assert!(status.temperatures_c.is_empty() && status.power.is_empty() && status.device.is_none());
    assert_eq!(status.swap, Some(Bytes::ZERO));
    let errors = status.errors.join("\n");
    for part in [
        "l4t_version",
        "`408` is no clock",
        "no such mode",
        "MemTotal",
        "408000 is no clock",
        "no power",
        "tj-thermal",
        "Toaster",
    ] {
        assert!(errors.contains(part), "{part}:\n{errors}");
    }
    assert!(!errors.contains('\u{1b}'));
}
