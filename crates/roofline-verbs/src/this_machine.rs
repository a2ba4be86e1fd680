//! This machine as a device: what it is made of, and what it was measured to do.

use std::sync::OnceLock;

use roofline_core::{Device, device::key_of, hash::fnv1a, units::ByteRate};
use roofline_isa::{Isa, VARIABLE};
use roofline_run::cpu::{
    Cpu, GENERATION,
    ceilings::{Ceilings, Effort, Level, Stream, StreamKind, device as as_device},
    machine::Machine,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Error, Note, Result, runner::now, text::binary};

/// What is kept of a machine.
#[derive(Serialize, Deserialize)]
pub struct This {
    pub measured: String,
    pub effort: Effort,
    /// The instructions that it was measured with.
    pub isa: String,
    pub machine: Machine,
    pub ceilings: Ceilings,
}

/// What this machine is made of, looked at once: kernels that are being timed bind their threads, and a process that is bound
/// to a core sees one.
pub fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(Machine::detect)
}

/// This machine; measured first where nobody did and the caller may have it measured.
pub(crate) fn device(context: &Context) -> Result<Device> {
    This::known(context)?.device()
}

/// The processor, ready to run kernels.
pub(crate) fn backend(context: &Context) -> Result<Cpu> {
    Ok(Cpu::new(machine(), device(context)?))
}

/// This machine as a device file, so that its runs can be analysed elsewhere.
pub(crate) fn description(context: &Context) -> Result<String> {
    Ok(device(context)?.to_toml())
}

/// The machine in a few lines, for the top of a report.
pub(crate) fn facts(context: &Context) -> Result<Vec<(String, String)>> {
    Ok(This::known(context)?.facts())
}

/// A name that tells machines apart which share a home: the processor's, without the vendor's ornaments, its threads, the
/// vectors that kernels use, and a hash of its other parts. A processor that is held back (`ROOFLINE_ISA`) is another machine:
/// neither its ceilings nor its calibration are those of the whole one. So is one whose kernels changed since.
fn key(machine: &Machine, isa: Isa) -> String {
    key_with(machine, isa, GENERATION)
}

/// The same with kernels of some generation; those of before it was counted are of generation 0.
fn key_with(machine: &Machine, isa: Isa, generation: u32) -> String {
    let name = machine.name.as_deref().unwrap_or("processor");
    let plain = name.split('@').next().unwrap_or(name).replace("(R)", " ").replace("(TM)", " ");
    let words: Vec<&str> = plain.split_whitespace().filter(|word| !matches!(*word, "CPU" | "Processor")).collect();
    let name: String = key_of(&words.join("_")).chars().take(40).collect();
    format!("{name}_{}t_{}_{:04x}", machine.threads, isa.level(), parts(machine, isa, generation))
}

/// A hash of what a name does not tell: caches, memory to the GiB, instruction sets and which of them are used, sockets,
/// hypervisor, kernels.
fn parts(machine: &Machine, isa: Isa, generation: u32) -> u16 {
    let memory = machine.memory.map(|memory| (memory.value() / 1024f64.powi(3)).round());
    let Machine { caches, features, sockets, cores, hypervisor, .. } = machine;
    let mut text = format!("{caches:?}{features:?}{sockets:?}{cores:?}{hypervisor:?}{memory:?}{isa}");
    if generation > 0 {
        text.push_str(&format!("kernels {generation}"));
    }
    let hash = fnv1a(text.as_bytes());
    (hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48)) as u16
}

impl This {
    /// What is kept of this machine, else what a few seconds of measuring say.
    pub(crate) fn known(context: &Context) -> Result<Self> {
        match Self::kept(context) {
            Some(kept) => Ok(kept),
            None if context.may_measure() => Self::measure(context, Effort::Quick),
            None => Err(Error::Unmeasured),
        }
    }

    /// What is kept of this machine.
    pub(crate) fn kept(context: &Context) -> Option<Self> {
        let kept = context.kept::<Self>("machines", &key(machine(), Isa::best()));
        kept.filter(|this| this.isa == Isa::best().to_string())
    }

    /// The most and the usual that all cores read per second from each cache, the nearest last.
    pub(crate) fn levels(&self) -> Vec<(&'static str, f64, f64)> {
        let level = |level| {
            let read = self.read(level)?;
            Some((level_name(level), read.best.value(), read.median.value()))
        };
        [Level::L3, Level::L2, Level::L1].into_iter().filter_map(level).collect()
    }

    /// Whether something is kept of `machine` that older kernels reached.
    fn is_outdated(context: &Context, machine: &Machine) -> bool {
        let Some(folder) = context.home().folder("machines") else { return false };
        let name = |generation| key_with(machine, Isa::best(), generation);
        (0..GENERATION).any(|older| folder.join(format!("{}.json", name(older))).exists())
    }

    /// Measures this machine, and keeps the best of it and of what was kept before: a busy neighbour takes nothing away from
    /// what the machine was seen to do.
    fn measure(context: &Context, effort: Effort) -> Result<Self> {
        context.home().can_keep("machines")?;
        let machine = machine().clone();
        if Self::kept(context).is_none() && Self::is_outdated(context, &machine) {
            context.note(
                "kernels changed since this machine was measured: its ceilings are measured again, and a calibration of it no \
                 longer counts (`⟨roofline calibrate⟩` makes another)",
            );
        }
        let long = if effort == Effort::Full { "about half a minute" } else { "a few seconds" };
        context.note(format!("measuring this machine's ceilings takes {long}, once"));
        let measure = || Ceilings::measure(&machine, effort, &mut |_| {});
        // Neighbours come and go in seconds: the quick look is taken twice.
        let first = measure();
        let ceilings = if effort == Effort::Quick { first.or_better(&measure()) } else { first };
        let ceilings = Self::kept(context).map_or(ceilings.clone(), |kept| ceilings.or_better(&kept.ceilings));
        let isa = Isa::best();
        let this = Self { measured: now(), effort, isa: isa.to_string(), machine, ceilings };
        this.device()?;
        context.home().keep("machines", &key(&this.machine, isa), &this)?;
        Ok(this)
    }

    /// For `roofline devices this`: the thorough numbers, measured again where that is asked for.
    pub fn thorough(context: &Context, again: bool) -> Result<Self> {
        match Self::kept(context).filter(|this| !again && this.effort == Effort::Full) {
            Some(this) => Ok(this),
            None => Self::measure(context, Effort::Full),
        }
    }

    pub fn device(&self) -> Result<Device> {
        let key = key(&self.machine, Isa::best());
        Ok(Device { key, ..as_device(&self.machine, &self.ceilings)? })
    }

    fn read(&self, level: Level) -> Option<&Stream> {
        self.ceilings.stream(StreamKind::Read, level)
    }

    /// What it is made of, and what it was measured to do, in a few lines.
    pub fn facts(&self) -> Vec<(String, String)> {
        let Machine { name, architecture, sockets, cores, threads, hypervisor, memory, governor, .. } = &self.machine;
        let mut facts = Vec::new();
        let mut fact = |name: &str, value: String| facts.push((name.to_owned(), value));
        let family = architecture.as_ref().map(|family| format!(" ({family})")).unwrap_or_default();
        fact("machine", format!("{}{family}", name.as_deref().unwrap_or("unnamed processor")));
        let some = |count: Option<usize>, what: &str| {
            let many = |count: usize| if count == 1 { "" } else { "s" };
            count.map(|count| format!("{count} {what}{}, ", many(count))).unwrap_or_default()
        };
        let host = hypervisor.as_ref().map(|host| format!(", virtual ({host})")).unwrap_or_default();
        fact("cores", format!("{}{}{threads} threads used{host}", some(*sockets, "socket"), some(*cores, "core")));
        fact("vectors", self.vectors());
        let has = Isa::detect().to_string();
        let held = if self.isa == has { String::new() } else { format!(", held back by {VARIABLE} from {has}") };
        fact("kernels", format!("{}{held}", self.isa));
        if let Some(clock) = self.ceilings.clock {
            let governor = governor.as_ref().map(|governor| format!(", governor {governor}")).unwrap_or_default();
            fact("clock", format!("{clock} measured{governor}"));
        }
        let caches: Vec<String> = [1, 2, 3]
            .into_iter()
            .filter_map(|level| Some(format!("L{level} {}", binary(self.machine.cache(level)?.total.value()))))
            .collect();
        let room = memory.map(|memory| format!(", memory {}", binary(memory.value()))).unwrap_or_default();
        fact("caches", format!("{}{room}", caches.join(", ")));
        if let Some(read) = self.read(Level::Memory) {
            let one = self.single(StreamKind::Read).map(|one| format!(", {one} by one core")).unwrap_or_default();
            let copy = self.ceilings.stream(StreamKind::Copy, Level::Memory);
            let copy = copy.map(|copy| format!(", copy {}", copy.best)).unwrap_or_default();
            fact("memory", format!("read {}{one}{copy} (measured)", read.best));
        }
        let peaks: Vec<String> =
            self.ceilings.peaks.iter().map(|peak| format!("{} {} ({})", peak.math, peak.best, peak.unit)).collect();
        fact("peaks", format!("{} (measured)", peaks.join(", ")));
        let effort = if self.effort == Effort::Full { "thoroughly" } else { "quickly" };
        fact("measured", format!("{effort}, {}", self.measured));
        facts
    }

    fn vectors(&self) -> String {
        let shown = ["AVX2", "FMA", "AVX-512", "VNNI", "BF16", "FP16", "AMX", "NEON", "SVE", "I8MM"];
        let plain = |text: &str| text.to_lowercase().replace(['-', '_'], "");
        let known: Vec<&str> = self
            .machine
            .features
            .iter()
            .map(String::as_str)
            .filter(|feature| shown.iter().any(|name| plain(feature).contains(&plain(name))))
            .collect();
        if known.is_empty() { "none known".to_owned() } else { known.join(", ") }
    }

    /// What one core streams from memory.
    fn single(&self, kind: StreamKind) -> Option<ByteRate> {
        let one = |stream: &&Stream| stream.kind == kind && stream.level == Level::Memory && stream.threads == 1;
        self.ceilings.streams.iter().find(one).filter(|_| self.machine.threads > 1).map(|stream| stream.best)
    }
}

/// The word for a level.
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::L1 => "L1",
        Level::L2 => "L2",
        Level::L3 => "L3",
        Level::Memory => "memory",
    }
}

/// Everything that was measured of this machine.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ThisMachine")]
pub struct Answer {
    pub measured: String,
    pub device: Device,
    pub machine: Machine,
    #[serde(flatten)]
    pub ceilings: Ceilings,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    #[serde(skip)]
    pub this: This,
}

/// What this machine is made of, and what it was thoroughly measured to do; measured again where that is asked for.
pub fn this_machine(context: &Context, again: bool) -> Result<Answer> {
    let this = This::thorough(context, again)?;
    let (measured, machine, ceilings) = (this.measured.clone(), this.machine.clone(), this.ceilings.clone());
    Ok(Answer { measured, device: this.device()?, machine, ceilings, notes: context.notes(), this })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{context::Home, note::Nobody};

    #[test]
    fn keys_tell_machines_apart() {
        let isa = Isa::portable();
        let key = |name: &str, threads| {
            super::key(&Machine { name: Some(name.to_owned()), threads, ..Machine::default() }, isa)
        };
        assert!(key("Intel(R) Xeon(R) Processor", 2).starts_with("intel_xeon_2t_portable_"));
        assert!(key("Intel(R) Core(TM) i9-13900K CPU @ 3.00GHz", 32).starts_with("intel_core_i9_13900k_32t_portable_"));
        let plain =
            Machine { name: Some("AMD EPYC 9654 96-Core Processor".to_owned()), threads: 192, ..Machine::default() };
        let roomy = Machine { memory: Some(roofline_core::units::Bytes::new(1e12)), ..plain.clone() };
        assert!(super::key(&plain, isa).starts_with("amd_epyc_9654_96_core_192t_portable_"));
        assert_ne!(super::key(&plain, isa), super::key(&roomy, isa));
        assert!(key(&"x".repeat(500), 1024).len() <= 64);
    }

    /// Ceilings and calibrations are found by this key, so that none is read that other instructions reached.
    #[test]
    fn a_processor_that_is_held_back_is_another_machine() {
        let machine = Machine { name: Some("one".to_owned()), threads: 2, ..Machine::default() };
        let mut keys: Vec<String> = Isa::restrictions().into_iter().map(|isa| key(&machine, isa)).collect();
        let all = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), all, "{keys:?}");
    }

    #[test]
    fn a_processor_whose_kernels_changed_is_another_machine() {
        let machine = Machine { name: Some("one".to_owned()), threads: 2, ..Machine::default() };
        let name = |generation| key_with(&machine, Isa::portable(), generation);
        assert_eq!(key(&machine, Isa::portable()), name(GENERATION));
        assert!((0..GENERATION).all(|older| name(older) != name(GENERATION)));
    }

    /// What older kernels reached is not read, and that there was something is known.
    #[test]
    fn what_older_kernels_reached_is_outdated() {
        let folder = std::env::temp_dir().join(format!("roofline-outdated-{}", std::process::id()));
        let context = Context::local(Arc::new(Home::at(&folder)), Arc::new(Nobody));
        assert!(!This::is_outdated(&context, machine()));
        context.home().keep("machines", &key_with(machine(), Isa::best(), GENERATION - 1), &"ceilings").unwrap();
        assert!(This::is_outdated(&context, machine()) && This::kept(&context).is_none());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sizes() {
        assert_eq!(binary(98_304.0), "96 KiB");
        assert_eq!(binary(272_629_760.0), "260 MiB");
        assert_eq!(binary(25_292_177_408.0), "23.6 GiB");
    }
}
