//! Everything a Jetson says of itself at one moment.

use std::collections::BTreeMap;

use roofline_core::units::{Bytes, Hertz, Watts};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{
    board::Board,
    command,
    nvpmodel::{Current, Mode, Table},
    power::{Rail, total},
    release::Release,
    root::Root,
};
use crate::cuda::Gpu;

/// Where the GPU's clocks are, newest kernel first. Before JetPack 6 the GPU was named after its chip.
const GPU_CLOCKS: &[&str] = &[
    "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu",
    "/sys/devices/platform/17000000.gpu/devfreq/17000000.gpu",
    "/sys/devices/platform/17000000.gpu/devfreq_dev",
    "/sys/devices/17000000.ga10b/devfreq/17000000.ga10b",
    "/sys/devices/17000000.ga10b/devfreq_dev",
    "/sys/devices/17000000.gv11b/devfreq/17000000.gv11b",
    "/sys/devices/gpu.0/devfreq/57000000.gpu",
];
/// The folder that lists every such device; a GPU is one with one of these in its name.
const DEVFREQ: &str = "/sys/class/devfreq";
const GPU_NAMES: &[&str] = &["gpu-gpc", ".gpu", "ga10b", "gv11b", "gp10b"];
/// The memory's clock as it is now: debugfs, which only root reads, and Thor's own.
const EMC_RATE: &str = "/sys/kernel/debug/bpmp/debug/clk/emc/rate";
const EMC_THOR: &str = "/sys/class/devfreq/bwmgr/cur_freq";
/// The limit that the power mode sets to it, which everybody may read. 0 stands for none.
const EMC_CAPS: &[&str] = &["/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"];
/// Bits of GPU parts that are off now.
const TPC_MASKS: &[&str] = &["/sys/devices/platform/gpu.0/tpc_pg_mask", "/sys/devices/gpu.0/tpc_pg_mask"];
const CPU: &str = "/sys/devices/system/cpu/cpu0/cpufreq";
const TABLE: &str = "/etc/nvpmodel.conf";
const RELEASE: &str = "/etc/nv_tegra_release";
/// Temperatures that a running chip can have; a sensor that is off says something else.
const TEMPERATURES: std::ops::RangeInclusive<f64> = -40.0..=150.0;

/// What a memory clock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "JetsonMemoryClock")]
pub enum EmcSource {
    /// The clock now.
    Rate,
    /// The highest that the power mode allows.
    Cap,
}

/// One look at a Jetson. What could not be read is missing and named in `errors`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "JetsonStatus")]
pub struct Status {
    /// Whether it is one.
    pub is_jetson: bool,
    /// The device tree's model.
    pub model: Option<String>,
    /// The module's part number.
    pub part_number: Option<String>,
    /// The registry's key for it.
    pub device: Option<String>,
    /// Version of Jetson Linux.
    pub l4t_version: Option<String>,
    /// Generation of JetPack.
    pub jetpack: Option<u32>,
    /// The mode's id, which differs between images.
    pub power_mode_id: Option<u32>,
    /// The mode's name.
    pub power_mode_name: Option<String>,
    /// The power that the mode is made for; none for those without a limit.
    #[serde(rename = "power_budget_w")]
    pub power_budget: Option<Watts>,
    /// GPU clock.
    #[serde(rename = "gpu_freq_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub gpu_clock: Option<Hertz>,
    /// The highest that the mode allows.
    #[serde(rename = "gpu_freq_max_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub gpu_clock_max: Option<Hertz>,
    /// GPU parts that are off, as the driver counts them.
    pub gpu_tpc_mask: Option<i64>,
    /// Memory clock.
    #[serde(rename = "emc_freq_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub emc_clock: Option<Hertz>,
    /// What that clock is.
    pub emc_source: Option<EmcSource>,
    /// Clock of the first core.
    #[serde(rename = "cpu_freq_mhz", serialize_with = "megahertz")]
    #[schemars(with = "Option<f64>")]
    pub cpu_clock: Option<Hertz>,
    /// Memory, shared by GPU and processor.
    #[serde(rename = "mem_total_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub memory: Option<Bytes>,
    /// What programs could still get.
    #[serde(rename = "mem_available_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub memory_available: Option<Bytes>,
    /// The rest.
    #[serde(rename = "mem_used_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub memory_used: Option<Bytes>,
    /// Swap, compressed memory included.
    #[serde(rename = "swap_total_mb", serialize_with = "mebibytes")]
    #[schemars(with = "Option<f64>")]
    pub swap: Option<Bytes>,
    /// Whether clocks are held at their maximum: the lowest that the GPU and the first core may have is the highest.
    pub jetson_clocks_active: Option<bool>,
    /// Power of each rail.
    #[serde(rename = "power_w")]
    pub power: BTreeMap<String, Watts>,
    /// Power of the module, where its rails are known to be all of it.
    #[serde(rename = "power_total_w")]
    pub power_total: Option<Watts>,
    /// Temperature of each zone.
    pub temperatures_c: BTreeMap<String, f64>,
    /// What CUDA calls the GPU; none of a tree of files.
    pub cuda_device_name: Option<String>,
    /// Memory that CUDA sees, in GiB: all of it.
    pub cuda_memory_gb: Option<f64>,
    /// Of that, what is not free, whoever holds it.
    pub cuda_memory_allocated_gb: Option<f64>,
    /// What could not be read, and why.
    pub errors: Vec<String>,
    /// The board's power modes.
    #[serde(skip)]
    pub table: Option<Table>,
}

impl Status {
    /// Reads everything below `root` once. Commands are asked only where those are this machine's files.
    pub fn read(root: &Root) -> Self {
        if !root.has(RELEASE) && !root.has(TABLE) {
            let reason = format!("not a Jetson: neither {RELEASE} nor {TABLE} is there");
            return Self { errors: vec![reason], ..Self::default() };
        }
        let mut errors = Errors::default();
        let mut status = Self { is_jetson: true, ..Self::default() };
        if let Some(release) = errors.keep("l4t_version", root.text(RELEASE).and_then(|text| Release::parse(&text))) {
            (status.l4t_version, status.jetpack) = (Some(release.version()), release.jetpack());
        }
        let table = errors.keep("power modes", root.text(TABLE)).map(|text| Table::parse(&text));
        errors.0.extend(table.iter().flat_map(|table| &table.problems).map(|problem| format!("{TABLE}: {problem}")));
        status.table = table;
        status.mode(root, &mut errors);
        status.memory(root, &mut errors);
        let (board, unread) = Board::read(root);
        errors.0.extend(unread);
        status.device = board.device(status.memory, status.table.as_ref());
        if status.device.is_none() {
            let words = board.part.as_ref().or(board.model.as_ref()).map_or("it names no board", String::as_str);
            errors.0.push(format!("device: no board of the registry ({words})"));
        }
        (status.model, status.part_number) = (board.model, board.part);
        status.clocks(root, &mut errors);
        status.power(root, &mut errors);
        status.temperatures(root, &mut errors);
        if root.is_this_machine() {
            status.cuda(&mut errors);
        }
        status.errors = errors.0;
        status
    }

    /// The mode of the table that it is in.
    pub fn current(&self) -> Option<&Mode> {
        let table = self.table.as_ref()?;
        let by_name = self.power_mode_name.as_deref().and_then(|name| table.find(name));
        by_name.or_else(|| table.with_id(self.power_mode_id?))
    }

    fn mode(&mut self, root: &Root, errors: &mut Errors) {
        let kept = || root.text("/var/lib/nvpmodel/status").and_then(|text| Current::kept(&text));
        let asked =
            || command::asked(command::NVPMODEL, &["-q"], command::QUERY).and_then(|text| Current::printed(&text));
        let current = if root.is_this_machine() {
            asked().or_else(|error| kept().map_err(|other| format!("{error}; {other}")))
        } else {
            kept()
        };
        let Some(current) = errors.keep("power mode", current) else { return };
        (self.power_mode_id, self.power_mode_name) = (current.id, current.name);
        let mode = self.current().cloned();
        if mode.is_none() && self.table.is_some() {
            errors.0.push("power mode: the table has no such mode".to_owned());
        }
        let named = self.power_mode_name.clone().map(|name| Mode { name, ..Mode::default() });
        self.power_budget = mode.as_ref().or(named.as_ref()).and_then(Mode::budget);
        self.power_mode_name = self.power_mode_name.take().or_else(|| mode.as_ref().map(|mode| mode.name.clone()));
        self.power_mode_id = self.power_mode_id.or_else(|| mode.map(|mode| mode.id));
    }

    fn memory(&mut self, root: &Root, errors: &mut Errors) {
        let Some(text) = errors.keep("memory", root.text("/proc/meminfo")) else { return };
        let mut line = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let count = value.and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u32>().ok());
            let bytes = count.map(|count| Bytes::new(f64::from(count) * 1024.0));
            errors.keep("memory", bytes.ok_or_else(|| format!("/proc/meminfo has no {name} in kB")))
        };
        (self.memory, self.memory_available, self.swap) = (line("MemTotal"), line("MemAvailable"), line("SwapTotal"));
        let used = self.memory.zip(self.memory_available).map(|(all, free)| all - free);
        self.memory_used = used.filter(|used| *used >= Bytes::ZERO);
    }

    fn clocks(&mut self, root: &Root, errors: &mut Errors) {
        let mut pinned = None;
        if let Some(gpu) = errors.keep("gpu_freq_mhz", gpu_clocks(root)) {
            self.gpu_clock = errors.keep("gpu_freq_mhz", root.hertz(&format!("{gpu}/cur_freq")));
            self.gpu_clock_max = errors.keep("gpu_freq_max_mhz", root.hertz(&format!("{gpu}/max_freq")));
            let least = root.hertz(&format!("{gpu}/min_freq")).ok();
            pinned = least.zip(self.gpu_clock_max).map(|(least, most)| least >= most);
        }
        self.cpu_clock = errors.keep("cpu_freq_mhz", root.kilohertz(&format!("{CPU}/scaling_cur_freq")));
        let bounds = ["scaling_min_freq", "scaling_max_freq"].map(|name| root.kilohertz(&format!("{CPU}/{name}")).ok());
        let cores = bounds[0].zip(bounds[1]).map(|(least, most)| least >= most);
        self.jetson_clocks_active = pinned.map(|gpu| gpu && cores.unwrap_or(true));
        let mask = TPC_MASKS.iter().find(|path| root.has(path));
        self.gpu_tpc_mask = mask.and_then(|path| errors.keep("gpu_tpc_mask", root.number(path)));
        let emc = errors.keep("emc_freq_mhz", emc_clock(root, self.current()));
        (self.emc_clock, self.emc_source) = emc.unzip();
    }

    fn power(&mut self, root: &Root, errors: &mut Errors) {
        let rails = Rail::all(root);
        if rails.is_empty() {
            errors.0.push("power_w: no INA3221 under /sys/class/hwmon has labels".to_owned());
        }
        let read: Vec<(String, Watts)> = rails
            .iter()
            .filter_map(|rail| Some((rail.name.clone(), errors.keep("power_w", rail.read(root))?)))
            .collect();
        self.power_total = total(&read);
        self.power = read.into_iter().collect();
    }

    fn temperatures(&mut self, root: &Root, errors: &mut Errors) {
        let mut off = Vec::new();
        for zone in root.names("/sys/class/thermal").iter().filter(|name| name.starts_with("thermal_zone")) {
            let folder = format!("/sys/class/thermal/{zone}");
            let Ok(name) = root.text(&format!("{folder}/type")) else { continue };
            let sound = !name.is_empty() && name.len() <= 64 && !name.contains(char::is_control);
            let name = if sound { name } else { zone.clone() };
            let degrees = root.number(&format!("{folder}/temp")).map(|thousandths| thousandths as f64 / 1000.0);
            match degrees.ok().filter(|degrees| TEMPERATURES.contains(degrees)) {
                Some(degrees) => drop(self.temperatures_c.insert(name, degrees)),
                None => off.push(name),
            }
        }
        if !off.is_empty() {
            errors.0.push(format!("temperatures_c: no reading of {}", off.join(", ")));
        } else if self.temperatures_c.is_empty() {
            errors.0.push("temperatures_c: /sys/class/thermal has no zones".to_owned());
        }
    }

    fn cuda(&mut self, errors: &mut Errors) {
        let gib = |bytes: Bytes| bytes.value() / 1024f64.powi(3);
        let Some(gpu) = errors.keep("cuda_device_name", Gpu::open(0, None).map_err(|error| error.to_string())) else {
            return;
        };
        self.cuda_device_name = Some(gpu.name.clone());
        // One memory: what the processor has is what CUDA sees.
        self.cuda_memory_gb = self.memory.map(gib);
        let free = errors.keep("cuda_memory_allocated_gb", gpu.free().map_err(|error| error.to_string()));
        self.cuda_memory_allocated_gb = self.memory.zip(free).map(|(all, free)| gib(all - free));
    }
}

/// The folder with the GPU's clocks.
pub(super) fn gpu_clocks(root: &Root) -> Result<String, String> {
    if let Some(known) = GPU_CLOCKS.iter().find(|path| root.has_folder(path)) {
        return Ok((*known).to_owned());
    }
    let names = root.names(DEVFREQ);
    let found = GPU_NAMES.iter().find_map(|part| names.iter().find(|name| name.contains(part)));
    found.map(|name| format!("{DEVFREQ}/{name}")).ok_or_else(|| format!("no GPU under {DEVFREQ} or /sys/devices"))
}

/// The memory's clock, or else the limit that is set to it.
fn emc_clock(root: &Root, mode: Option<&Mode>) -> Result<(Hertz, EmcSource), String> {
    let now = root.hertz(EMC_RATE).or_else(|error| root.hertz(EMC_THOR).map_err(|_| error));
    now.map(|clock| (clock, EmcSource::Rate)).or_else(|error| {
        // `nvpmodel` writes its marker for no limit as a 32-bit number, which could pass for a clock.
        let limit = |clock: &Hertz| *clock != Hertz::new(f64::from(i32::MAX));
        let cap = EMC_CAPS.iter().find_map(|path| root.hertz(path).ok().filter(limit));
        let cap = cap.or_else(|| match mode?.emc {
            super::nvpmodel::Cap::At(clock) => Some(clock),
            _ => None,
        });
        cap.map(|clock| (clock, EmcSource::Cap)).ok_or_else(|| format!("{error}, and no limit is set"))
    })
}

/// What went wrong, reading by reading.
#[derive(Default)]
struct Errors(Vec<String>);

impl Errors {
    fn keep<T>(&mut self, field: &str, reading: Result<T, String>) -> Option<T> {
        reading.map_err(|reason| self.0.push(format!("{field}: {reason}"))).ok()
    }
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn megahertz<S: Serializer>(clock: &Option<Hertz>, serializer: S) -> Result<S::Ok, S::Error> {
    clock.map(|clock| clock / 1e6).serialize(serializer)
}

#[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
fn mebibytes<S: Serializer>(size: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    size.map(|size| size / (1024.0 * 1024.0)).serialize(serializer)
}

#[cfg(test)]
mod tests;
