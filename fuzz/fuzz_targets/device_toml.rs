//! A device file from anywhere: refused, or a device with rates a machine could have.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roofline_core::Device;

fuzz_target!(|text: &str| {
    if let Ok(device) = Device::from_toml(text, "fuzz.toml") {
        assert!((1e6..=1e16).contains(&device.memory.bandwidth.value()));
        assert!(device.peaks.iter().all(|(_, peak)| (1e6..=1e19).contains(&peak.value())));
        for mode in &device.power_modes {
            if let Ok(there) = device.in_mode(&mode.name) {
                assert!((1e6..=1e16).contains(&there.memory.bandwidth.value()));
                assert!(there.peaks.iter().all(|(_, peak)| (1e6..=1e19).contains(&peak.value())));
            }
        }
    }
});
