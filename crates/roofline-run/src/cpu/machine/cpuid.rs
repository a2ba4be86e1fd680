//! What the processor says of itself, where the system is silent: containers often hide sysfs, none hides CPUID.

use super::Machine;

/// Fills in what is missing.
#[cfg(target_arch = "x86_64")]
pub(super) fn complete(machine: &mut Machine) {
    if machine.name.is_none() {
        machine.name = brand();
    }
    if machine.caches.is_empty() {
        machine.caches = caches(machine.threads);
    }
    if machine.features.is_empty() {
        machine.features = features();
    }
    if machine.hypervisor.as_deref().is_none_or(|name| name == "unnamed") {
        machine.hypervisor = hypervisor().or_else(|| machine.hypervisor.take());
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn complete(_machine: &mut Machine) {}

#[cfg(target_arch = "x86_64")]
use x86::{brand, caches, features, hypervisor};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    use roofline_core::units::Bytes;

    use super::super::{Cache, CacheKind, names};

    /// Leaves `0x8000_0002` to `4` hold 48 letters.
    pub(super) fn brand() -> Option<String> {
        if __cpuid(0x8000_0000).eax < 0x8000_0004 {
            return None;
        }
        let letters = (0x8000_0002..=0x8000_0004u32).flat_map(|leaf| {
            let parts = __cpuid(leaf);
            [parts.eax, parts.ebx, parts.ecx, parts.edx].map(u32::to_le_bytes).concat()
        });
        let text: Vec<u8> = letters.take_while(|letter| *letter != 0).collect();
        Some(names::cleaned(&String::from_utf8_lossy(&text))).filter(|name| !name.is_empty())
    }

    /// Leaf 4 (Intel) or `0x8000_001d` (AMD): ways, partitions, line and sets, each less one.
    pub(super) fn caches(threads: usize) -> Vec<Cache> {
        let leaf = if __cpuid(0).ebx == u32::from_le_bytes(*b"Auth") { 0x8000_001d } else { 4 };
        let last = if leaf == 4 { __cpuid(0).eax } else { __cpuid(0x8000_0000).eax };
        if last < leaf {
            return Vec::new();
        }
        let described = (0..8).map(|index| __cpuid_count(leaf, index)).take_while(|parts| parts.eax & 31 != 0);
        described
            .map(|parts| {
                let field = |low: u32, bits: u32| u64::from((parts.ebx >> low) & ((1 << bits) - 1)) + 1;
                let size = field(22, 10) * field(12, 10) * field(0, 12) * (u64::from(parts.ecx) + 1);
                let shared_by = ((parts.eax >> 14 & 0xfff) + 1) as usize;
                Cache {
                    level: (parts.eax >> 5 & 7) as u8,
                    kind: match parts.eax & 31 {
                        1 => CacheKind::Data,
                        2 => CacheKind::Instruction,
                        _ => CacheKind::Unified,
                    },
                    size: Bytes::new(size as f64),
                    instances: threads.div_ceil(shared_by).max(1),
                    shared_by: shared_by.min(threads),
                }
            })
            .collect()
    }

    /// The few that kernels here choose by.
    pub(super) fn features() -> Vec<String> {
        let found = [
            ("avx", is_x86_feature_detected!("avx")),
            ("f16c", is_x86_feature_detected!("f16c")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("avx_vnni", is_x86_feature_detected!("avxvnni")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512bw", is_x86_feature_detected!("avx512bw")),
            ("avx512_vnni", is_x86_feature_detected!("avx512vnni")),
            ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
        ];
        found.iter().filter(|(_, there)| *there).map(|(name, _)| (*name).to_owned()).collect()
    }

    /// Leaf `0x4000_0000` is the hypervisor's, and has its name.
    pub(super) fn hypervisor() -> Option<String> {
        if __cpuid(1).ecx >> 31 == 0 {
            return None;
        }
        let parts = __cpuid(0x4000_0000);
        let bytes = [parts.ebx, parts.ecx, parts.edx].map(u32::to_le_bytes).concat();
        let signature = String::from_utf8_lossy(&bytes);
        let name = match signature.trim_matches(['\0', ' ']) {
            "KVMKVMKVM" => "KVM",
            "Microsoft Hv" => "Hyper-V",
            "VMwareVMware" => "VMware",
            "XenVMMXenVMM" => "Xen",
            "TCGTCGTCGTCG" => "QEMU",
            "bhyve bhyve" => "bhyve",
            _ => "unnamed",
        };
        Some(name.to_owned())
    }
}
