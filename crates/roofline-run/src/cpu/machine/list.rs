//! Lists of processors, and what sysfs says about each of them.

use std::collections::BTreeSet;

use super::files::Files;

/// More processors than Linux supports are a broken file.
const MOST: usize = 8192;

pub(super) const CPU: &str = "/sys/devices/system/cpu";

/// `0-3,8,10-11` as numbers; what does not parse is left out.
pub(super) fn parse(text: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        (first <= last && last < MOST).then(|| first..last + 1)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The processors that are online; empty where sysfs does not say.
pub(super) fn online(files: &Files) -> BTreeSet<usize> {
    files.text(&format!("{CPU}/online")).map(|text| parse(&text)).unwrap_or_default()
}

/// Memory nodes.
pub(super) fn nodes(files: &Files) -> Option<usize> {
    let nodes = parse(&files.text("/sys/devices/system/node/online")?);
    (!nodes.is_empty()).then_some(nodes.len())
}

/// The clock governors in use.
pub(super) fn governor(files: &Files, online: &BTreeSet<usize>) -> Option<String> {
    let of = |cpu: &usize| files.text(&format!("{CPU}/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<String> = online.iter().filter_map(of).collect();
    let joined = governors.into_iter().collect::<Vec<_>>().join(", ");
    (!joined.is_empty()).then_some(joined)
}

/// How processors share cores and packages.
pub(super) struct Topology {
    pub(super) sockets: Option<usize>,
    pub(super) cores: Option<usize>,
}

impl Topology {
    /// Cores are counted by their sets of siblings: core numbers repeat between packages and, on ARM, between clusters.
    pub(super) fn read(files: &Files, online: &BTreeSet<usize>) -> Self {
        let distinct = |names: [&str; 2]| {
            let of = |cpu: &usize| names.iter().find_map(|name| files.text(&format!("{CPU}/cpu{cpu}/topology/{name}")));
            let values: BTreeSet<String> = online.iter().filter_map(of).collect();
            (!values.is_empty()).then_some(values.len())
        };
        let sockets = distinct(["physical_package_id", "physical_package_id"]);
        Self { sockets, cores: distinct(["core_cpus_list", "thread_siblings_list"]) }
    }
}
