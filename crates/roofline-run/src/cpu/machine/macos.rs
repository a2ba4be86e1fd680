//! macOS, by the `sysctl` program. Not run on such a machine yet.

use std::process::Command;

use roofline_core::units::Bytes;

use super::{Cache, CacheKind, Machine, names};

fn text(name: &str) -> Option<String> {
    let output = Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn number(name: &str) -> Option<u64> {
    text(name)?.parse().ok()
}

fn cache(level: u8, kind: CacheKind, name: &str, instances: usize, shared_by: usize) -> Option<Cache> {
    let size = number(name).filter(|size| *size > 0)?;
    Some(Cache { level, kind, size: Bytes::new(size as f64), instances, shared_by })
}

pub(super) fn detect() -> Machine {
    let cores = number("hw.physicalcpu").map(|count| count as usize);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all = cores.unwrap_or(threads);
    let cluster = number("hw.perflevel0.cpusperl2").map_or(1, |count| count.max(1) as usize);
    // Performance cores; the efficiency cores' caches are smaller.
    let level = |name: &str| format!("hw.perflevel0.{name}");
    let caches = [
        cache(1, CacheKind::Data, &level("l1dcachesize"), all, 1)
            .or_else(|| cache(1, CacheKind::Data, "hw.l1dcachesize", all, 1)),
        cache(2, CacheKind::Unified, &level("l2cachesize"), all.div_ceil(cluster), cluster)
            .or_else(|| cache(2, CacheKind::Unified, "hw.l2cachesize", all, 1)),
        cache(3, CacheKind::Unified, "hw.l3cachesize", 1, all),
    ];
    let features =
        [("neon", "hw.optional.neon"), ("i8mm", "hw.optional.arm.FEAT_I8MM"), ("bf16", "hw.optional.arm.FEAT_BF16")];
    let features = features.iter().filter(|(_, name)| number(name) == Some(1)).map(|(name, _)| (*name).to_owned());
    let name = text("machdep.cpu.brand_string").map(|name| names::cleaned(&name));
    let memory = number("hw.memsize").map(|size| Bytes::new(size as f64));
    Machine {
        vendor: name.as_deref().and_then(|name| name.split(' ').next()).map(str::to_owned),
        name,
        sockets: number("hw.packages").map(|count| count as usize),
        cores,
        threads,
        features: features.collect(),
        caches: caches.into_iter().flatten().collect(),
        memory,
        available: memory.map(|size| size / 2.0),
        hypervisor: (number("kern.hv_vmm_present") == Some(1)).then(|| "unnamed".to_owned()),
        ..Machine::default()
    }
}
