//! What this process takes of the machine's memory.

use std::{fs, path::Path};

use roofline_core::units::Bytes;

/// The most memory that this process held at once (`VmHWM`), since it began or since [`forget_peak`]; none where the
/// system does not say.
pub fn peak_memory() -> Option<Bytes> {
    peak_below(Path::new("/"))
}

fn peak_below(root: &Path) -> Option<Bytes> {
    let text = fs::read_to_string(root.join("proc/self/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    // The kernel's kB are 1024 bytes.
    Some(Bytes::new(kilobytes * 1024.0))
}

/// Starts the peak anew at what is held now, so that the next thing measured has one of its own; whether that is possible.
pub fn forget_peak() -> bool {
    // 5 resets the peak alone (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_as_the_kernel_writes_it() {
        let root = std::env::temp_dir().join(format!("roofline-status-{}", std::process::id()));
        fs::create_dir_all(root.join("proc/self")).unwrap();
        let read = |text: &str| {
            fs::write(root.join("proc/self/status"), text).unwrap();
            peak_below(&root).map(Bytes::value)
        };
        assert_eq!(read("Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 7 kB\n"), Some(2_097_152.0));
        for broken in ["", "VmHWM:", "VmHWM: x kB", "VmHWM: 5", "VmRSS: 5 kB"] {
            assert_eq!(read(broken), None, "{broken}");
        }
        fs::remove_dir_all(root).unwrap();
    }

    /// Memory that is written to is held, and what was held once is no peak any more after it is forgotten.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_holds_what_was_touched() {
        let size = 64 << 20;
        let before = peak_memory().unwrap().value();
        let block = std::hint::black_box(vec![1_u8; size]);
        let with = peak_memory().unwrap().value();
        assert!(with >= before.max(size as f64), "{before} then {with}");
        drop(block);
        if forget_peak() {
            assert!(peak_memory().unwrap().value() < with, "{with}");
        }
    }
}
