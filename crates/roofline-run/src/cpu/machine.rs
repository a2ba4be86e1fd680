//! What the processor is: read from the system, never assumed. Each fact may be missing alone.
//!
//! On Linux everything comes from files below a root folder, so that tests describe other machines as folders; the
//! CPUID instruction fills in what a silent sysfs leaves open. Counts are those of this process: a container's quota and
//! a `taskset` mask limit [`Machine::threads`], because that is how many threads can run at once.

mod caches;
mod cpuid;
mod cpuinfo;
mod files;
mod limits;
mod list;
#[cfg(target_os = "macos")]
mod macos;
mod names;
#[cfg(test)]
mod tests;

use std::path::Path;

use roofline_core::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stored;
use files::Files;

/// A processor and its memory, as far as this process can see and use them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Processor")]
pub struct Machine {
    /// The name the processor gives itself, without trademarks and clocks.
    pub name: Option<String>,
    /// Who makes it.
    pub vendor: Option<String>,
    /// Microarchitecture, where family and model say so.
    pub architecture: Option<String>,
    /// Packages.
    pub sockets: Option<usize>,
    /// Physical cores that are online.
    pub cores: Option<usize>,
    /// Threads that this process can run at once: affinity and cgroup quota respected. At least one.
    pub threads: usize,
    /// Vector and matrix extensions, as the kernel spells them.
    pub features: Vec<String>,
    /// Caches, lowest level first.
    pub caches: Vec<Cache>,
    /// Memory of the machine, or of the container where that is less.
    #[serde(deserialize_with = "stored::optional")]
    pub memory: Option<Bytes>,
    /// Memory that could be taken without swapping.
    #[serde(deserialize_with = "stored::optional")]
    pub available: Option<Bytes>,
    /// Memory nodes.
    pub numa_nodes: Option<usize>,
    /// How the kernel chooses the clock; several where cores differ.
    pub governor: Option<String>,
    /// The hypervisor's name, `unnamed` where there is one that does not say; none on bare metal, as far as one can tell.
    pub hypervisor: Option<String>,
}

/// The caches of one level, kind and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ProcessorCache")]
pub struct Cache {
    /// 1 is the nearest to the core.
    pub level: u8,
    /// What it holds.
    pub kind: CacheKind,
    /// Size of one.
    #[serde(deserialize_with = "stored::number")]
    pub size: Bytes,
    /// How many there are.
    pub instances: usize,
    /// Hardware threads that share one.
    pub shared_by: usize,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ProcessorCacheKind")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

impl Machine {
    /// This machine.
    pub fn detect() -> Self {
        #[cfg(target_os = "macos")]
        return macos::detect();
        #[cfg(not(target_os = "macos"))]
        {
            let mut machine = Self::from_root(Path::new("/"));
            cpuid::complete(&mut machine);
            // Where there is no /proc to say which processors are ours.
            if machine.cores.is_none() && machine.threads == 1 {
                machine.threads = std::thread::available_parallelism().map_or(1, usize::from);
            }
            machine
        }
    }

    /// The machine that the files of a Linux system below `root` describe.
    pub fn from_root(root: &Path) -> Self {
        let files = Files::below(root);
        let online = list::online(&files);
        let info = cpuinfo::CpuInfo::read(&files);
        let topology = list::Topology::read(&files, &online);
        let memory = limits::Memory::read(&files);
        let processors = if online.is_empty() { info.processors } else { online.len() };
        Self {
            name: info.name(),
            vendor: info.vendor(),
            architecture: info.architecture(),
            sockets: topology.sockets.or(info.sockets),
            cores: topology.cores.or(info.cores),
            threads: limits::threads(&files, processors),
            features: info.features(),
            caches: caches::read(&files, &online),
            memory: memory.total,
            available: memory.available,
            numa_nodes: list::nodes(&files),
            governor: list::governor(&files, &online),
            hypervisor: info.hypervisor(&files),
        }
    }

    /// Data caches of a level: the size of the smallest one, and all of them together.
    pub fn cache(&self, level: u8) -> Option<CacheSize> {
        let data = || self.caches.iter().filter(|cache| cache.level == level && cache.kind != CacheKind::Instruction);
        let smallest = data().map(|cache| cache.size).reduce(|a, b| if b < a { b } else { a })?;
        Some(CacheSize { smallest, total: data().map(|cache| cache.size * cache.instances as f64).sum() })
    }

    /// All caches of the highest level together: what a working set must exceed to be read from memory.
    pub fn last_level_cache(&self) -> Option<Bytes> {
        let data = self.caches.iter().filter(|cache| cache.kind != CacheKind::Instruction);
        let level = data.map(|cache| cache.level).max()?;
        Some(self.cache(level)?.total)
    }
}

/// How large the data caches of a level are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheSize {
    /// The smallest of them.
    pub smallest: Bytes,
    /// All together.
    pub total: Bytes,
}
