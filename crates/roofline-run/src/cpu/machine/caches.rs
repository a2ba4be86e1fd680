//! Caches, from sysfs. A cache is shared by the processors of its list, and seen once per processor.

use std::collections::{BTreeMap, BTreeSet};

use roofline_core::units::Bytes;

use super::{Cache, CacheKind, files::Files, list};

/// Caches that one processor can see, at most.
const INDICES: usize = 16;

pub(super) fn read(files: &Files, online: &BTreeSet<usize>) -> Vec<Cache> {
    // (level, kind, size, sharers) to the sets of processors that have one.
    let mut found: BTreeMap<(u8, CacheKind, u64, usize), BTreeSet<String>> = BTreeMap::new();
    for cpu in online {
        for index in 0..INDICES {
            let path = format!("{}/cpu{cpu}/cache/index{index}", list::CPU);
            let text = |name: &str| files.text(&format!("{path}/{name}"));
            let Some(level) = text("level").and_then(|level| level.parse().ok()) else { break };
            let kind = match text("type").as_deref() {
                Some("Data") => CacheKind::Data,
                Some("Instruction") => CacheKind::Instruction,
                _ => CacheKind::Unified,
            };
            // A cache that hides its size (common on ARM) is one we know nothing of.
            let Some(size) = text("size").and_then(|size| bytes(&size)) else { continue };
            let sharers = text("shared_cpu_list").unwrap_or_else(|| cpu.to_string());
            let count = list::parse(&sharers).len().max(1);
            found.entry((level, kind, size, count)).or_default().insert(sharers);
        }
    }
    let cache = |((level, kind, size, shared_by), sets): (_, BTreeSet<String>)| Cache {
        level,
        kind,
        size: Bytes::new(size as f64),
        instances: sets.len(),
        shared_by,
    };
    found.into_iter().map(cache).collect()
}

/// `2048K`, `4M`, `512`.
fn bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(unit).filter(|size| *size > 0)
}
