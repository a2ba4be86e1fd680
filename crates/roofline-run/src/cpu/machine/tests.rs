use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;

/// A folder of files that is gone when the test ends.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("roofline-machine-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn file(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// A processor with its siblings, package and caches: `(level, type, size, shared with)`.
    fn cpu(&self, cpu: usize, siblings: &str, package: usize, caches: &[(u8, &str, &str, &str)]) -> &Self {
        let folder = format!("sys/devices/system/cpu/cpu{cpu}");
        self.file(&format!("{folder}/topology/thread_siblings_list"), format!("{siblings}\n"));
        self.file(&format!("{folder}/topology/physical_package_id"), format!("{package}\n"));
        for (index, (level, kind, size, shared)) in caches.iter().enumerate() {
            let cache = format!("{folder}/cache/index{index}");
            self.file(&format!("{cache}/level"), level.to_string()).file(&format!("{cache}/type"), kind);
            self.file(&format!("{cache}/size"), size).file(&format!("{cache}/shared_cpu_list"), shared);
        }
        self
    }

    fn read(&self) -> Machine {
        Machine::from_root(&self.0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ONLINE: &str = "sys/devices/system/cpu/online";

#[test]
fn a_virtual_machine_of_two_cores() {
    let tree = Tree::new();
    let block = |cpu: usize| {
        format!(
            "processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n\
             model name\t: Intel(R) Xeon(R) Processor @ 2.30GHz\nflags\t\t: fpu avx avx2 hypervisor avx512f amx_tile\n"
        )
    };
    tree.file("proc/cpuinfo", format!("{}\n{}", block(0), block(1))).file(ONLINE, "0-1\n");
    tree.file("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-1\n");
    tree.file("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    900 kB\n");
    tree.file("sys/devices/system/node/online", "0\n");
    for cpu in 0..2 {
        let own = cpu.to_string();
        let caches = [
            (1, "Data", "48K", own.as_str()),
            (1, "Instruction", "32K", &own),
            (2, "Unified", "2048K", &own),
            (3, "Unified", "266240K", "0-1"),
        ];
        tree.cpu(cpu, &own, 0, &caches);
    }
    let machine = tree.read();
    assert_eq!(machine.name.as_deref(), Some("Intel Xeon Processor"));
    assert_eq!(machine.architecture.as_deref(), Some("Emerald Rapids"));
    assert_eq!((machine.sockets, machine.cores, machine.threads), (Some(1), Some(2), 2));
    assert_eq!(machine.features, ["avx", "avx2", "avx512f", "amx_tile"]);
    assert_eq!(machine.caches.len(), 4);
    assert_eq!(machine.cache(2).unwrap().total, Bytes::new(4.0 * 1024.0 * 1024.0));
    assert_eq!(machine.last_level_cache(), Some(Bytes::new(266_240.0 * 1024.0)));
    assert_eq!(machine.memory, Some(Bytes::new(1000.0 * 1024.0)));
    assert_eq!(machine.available, Some(Bytes::new(900.0 * 1024.0)));
    assert_eq!(machine.numa_nodes, Some(1));
    assert_eq!((machine.governor, machine.hypervisor.as_deref()), (None, Some("unnamed")));
}

#[test]
fn a_server_of_two_sockets() {
    let tree = Tree::new();
    tree.file(
        "proc/cpuinfo",
        "processor: 0\nvendor_id: AuthenticAMD\ncpu family: 25\nmodel: 17\nmodel name: AMD EPYC 9654\n",
    );
    tree.file(ONLINE, "0-7").file("sys/devices/system/node/online", "0-1");
    // Four cores of two threads; cpu N and N+4 are siblings, the socket is N / 2.
    for cpu in 0..8 {
        let core = cpu % 4;
        let (siblings, socket) = (format!("{core},{}", core + 4), core / 2);
        let l3 = format!("{}-{},{}-{}", 2 * socket, 2 * socket + 1, 2 * socket + 4, 2 * socket + 5);
        tree.cpu(cpu, &siblings, socket, &[(1, "Data", "32K", &siblings), (3, "Unified", "32M", &l3)]);
        tree.file(&format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), "performance\n");
    }
    let machine = tree.read();
    assert_eq!((machine.sockets, machine.cores, machine.threads), (Some(2), Some(4), 8));
    assert_eq!((machine.vendor.as_deref(), machine.architecture.as_deref()), (Some("AMD"), Some("Zen 4")));
    assert_eq!(machine.numa_nodes, Some(2));
    assert_eq!(machine.governor.as_deref(), Some("performance"));
    let l3 = &machine.caches[1];
    assert_eq!((l3.instances, l3.shared_by), (2, 4));
    assert_eq!(machine.last_level_cache(), Some(Bytes::new(64.0 * 1024.0 * 1024.0)));
    assert_eq!(machine.hypervisor, None);
}

#[test]
fn an_arm_box_of_two_kinds_of_cores() {
    let tree = Tree::new();
    let block = |cpu: usize, part: &str| {
        format!("processor\t: {cpu}\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n")
    };
    let blocks: String = (0..6).map(|cpu| block(cpu, if cpu < 4 { "0xd05" } else { "0xd0b" })).collect();
    tree.file("proc/cpuinfo", blocks).file(ONLINE, "0-5");
    for cpu in 0..6 {
        let own = cpu.to_string();
        // Core numbers repeat in each cluster, siblings do not; big cores have larger caches and hide the last one's size.
        let size = if cpu < 4 { "128K" } else { "512K" };
        tree.cpu(cpu, &own, 0, &[(1, "Data", "32K", &own), (2, "Unified", size, &own)]);
        tree.file(&format!("sys/devices/system/cpu/cpu{cpu}/cache/index2/level"), "3");
    }
    let machine = tree.read();
    assert_eq!(machine.name.as_deref(), Some("2x Cortex-A76 + 4x Cortex-A55"));
    assert_eq!((machine.vendor.as_deref(), machine.architecture.as_deref()), (Some("Arm"), None));
    assert_eq!((machine.cores, machine.threads), (Some(6), 6));
    assert_eq!(machine.features, ["asimd", "asimddp"]);
    let l2 = machine.cache(2).unwrap();
    assert_eq!((l2.smallest, l2.total), (Bytes::new(131_072.0), Bytes::new(4.0 * 131_072.0 + 2.0 * 524_288.0)));
}

#[test]
fn a_container_with_limits() {
    let tree = Tree::new();
    tree.file(ONLINE, "0-63").file("proc/self/cgroup", "0::/pod/box\n");
    tree.file("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 900000 kB\n");
    tree.file("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    tree.file("sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
    tree.file("sys/fs/cgroup/pod/memory.max", "104857600\n").file("sys/fs/cgroup/pod/memory.current", "4857600\n");
    let machine = tree.read();
    assert_eq!(machine.threads, 3);
    assert_eq!((machine.memory, machine.available), (Some(Bytes::new(104_857_600.0)), Some(Bytes::new(1e8))));

    // Version 1, and a mask that is tighter than its quota.
    let tree = Tree::new();
    tree.file(ONLINE, "0-63").file("proc/self/cgroup", "3:memory:/a\n2:cpu,cpuacct:/a\n");
    tree.file("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "800000").file("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000");
    assert_eq!(tree.read().threads, 8);
    tree.file("proc/self/status", "Cpus_allowed_list:\t4-5,9\n");
    assert_eq!(tree.read().threads, 3);
}

#[test]
fn missing_and_hostile_files_are_missing_facts() {
    let empty = Tree::new().read();
    assert_eq!(empty, Machine { threads: 1, ..Machine::default() });

    let tree = Tree::new();
    tree.file(ONLINE, "0-99999999999999999999,3-1,-,7-x,18446744073709551615,2");
    tree.file("proc/cpuinfo", [0xff, 0xfe, 0x00]).file("proc/meminfo", "MemTotal: 99999999999999999999 kB\n");
    tree.file("proc/self/cgroup", "nonsense\n0::/../../etc\n:::::\n").file("sys/fs/cgroup/cpu.max", "0 0");
    tree.file("proc/self/status", "Cpus_allowed_list:\n").file("sys/devices/system/node/online", "x");
    tree.cpu(2, "?", 0, &[(1, "Data", "-4K", "z"), (2, "Odd", "99999999999999999999K", ""), (3, "", "1K", "2")]);
    let machine = tree.read();
    assert_eq!((machine.threads, machine.memory, machine.numa_nodes), (1, None, None));
    assert_eq!(machine.caches.len(), 1);
}

#[test]
fn this_machine_is_described_and_survives_a_file() {
    let machine = Machine::detect();
    assert!(machine.threads >= 1);
    let text = serde_json::to_string(&machine).unwrap();
    assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
}
