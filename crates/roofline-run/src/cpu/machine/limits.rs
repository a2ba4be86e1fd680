//! What of the machine this process may use: its affinity mask and the limits of its control groups, both versions.

use roofline_core::units::Bytes;

use super::{files::Files, list};

/// Threads that can run at once: processors of the affinity mask, or of the machine, but no more than the quota rounded
/// up. A quota of 1.5 processors runs two threads for three quarters of the time, which still beats one.
pub(super) fn threads(files: &Files, processors: usize) -> usize {
    let allowed = files.text("/proc/self/status").and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(list::parse(line.trim()).len()).filter(|count| *count > 0)
    });
    // The mask of a process that was never bound may name more processors than there are.
    let mut count = match (allowed, processors) {
        (Some(allowed), 0) => allowed,
        (Some(allowed), processors) => allowed.min(processors),
        (None, processors) => processors,
    };
    if let Some(quota) = quota(files) {
        count = count.min(quota.ceil() as usize);
    }
    count.max(1)
}

/// The tightest processor quota among this process's control groups and their parents, in processors.
fn quota(files: &Files) -> Option<f64> {
    let second = groups(files, "").into_iter().filter_map(|group| {
        let text = files.text(&format!("/sys/fs/cgroup{group}/cpu.max"))?;
        let (quota, period) = text.split_once(' ')?;
        ratio(quota, period)
    });
    let first = groups(files, "cpu").into_iter().filter_map(|group| {
        let text = |name: &str| {
            let folders = ["cpu", "cpu,cpuacct"];
            folders.iter().find_map(|folder| files.text(&format!("/sys/fs/cgroup/{folder}{group}/{name}")))
        };
        ratio(&text("cpu.cfs_quota_us")?, &text("cpu.cfs_period_us")?)
    });
    second.chain(first).reduce(f64::min)
}

/// `max` and `-1` are no limit.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.trim().parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period).filter(|ratio| ratio.is_finite())
}

/// This process's group for a controller and the groups above it, down from its own to the root, as paths without a
/// slash at the end. Version 2 has one hierarchy, whose controller list is empty.
fn groups(files: &Files, controller: &str) -> Vec<String> {
    let Some(text) = files.text("/proc/self/cgroup") else { return vec![String::new()] };
    let path = text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    let Some(path) = path.filter(|path| !path.contains("..")) else { return Vec::new() };
    let mut group = path.trim_end_matches('/');
    let mut groups = vec![group.to_owned()];
    while let Some((parent, _)) = group.rsplit_once('/') {
        group = parent;
        groups.push(group.to_owned());
    }
    groups
}

/// Memory of the machine, or of the container where that is less.
pub(super) struct Memory {
    pub(super) total: Option<Bytes>,
    pub(super) available: Option<Bytes>,
}

impl Memory {
    pub(super) fn read(files: &Files) -> Self {
        let text = files.text("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let limit = limit(files);
        let lesser = |size: Option<u64>, other: Option<u64>| match (size, other) {
            (Some(size), Some(other)) => Some(size.min(other)),
            (size, other) => size.or(other),
        };
        let total = field("MemTotal");
        let within = limit.filter(|limit| total.is_none_or(|total| limit.0 < total));
        let free = within.map(|(most, used)| most.saturating_sub(used));
        let bytes = |size: u64| Bytes::new(size as f64);
        Self {
            total: lesser(total, within.map(|limit| limit.0)).map(bytes),
            available: lesser(field("MemAvailable"), free).map(bytes),
        }
    }
}

/// The tightest memory limit among the control groups, and how much of it is used. Version 1 says "none" by a number
/// larger than any machine.
fn limit(files: &Files) -> Option<(u64, u64)> {
    let second = groups(files, "").into_iter().filter_map(|group| {
        let folder = format!("/sys/fs/cgroup{group}");
        Some((files.number(&format!("{folder}/memory.max"))?, files.number(&format!("{folder}/memory.current"))))
    });
    let first = groups(files, "memory").into_iter().filter_map(|group| {
        let folder = format!("/sys/fs/cgroup/memory{group}");
        let limit = files.number(&format!("{folder}/memory.limit_in_bytes"))?;
        Some((limit, files.number(&format!("{folder}/memory.usage_in_bytes"))))
    });
    let tightest = second.chain(first).min_by_key(|(limit, _)| *limit)?;
    Some((tightest.0, tightest.1.unwrap_or(0)))
}
