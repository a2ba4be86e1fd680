//! `/proc/cpuinfo`, whose fields differ between architectures: x86 has a name, ARM has numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::{files::Files, names};

/// The extensions that decide how fast numbers are multiplied, as Linux spells them.
const SIMD: &[&str] = &[
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx_vnni_int8",
    "avx_ne_convert",
    "avx512f",
    "avx512dq",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "avx10",
    "neon",
    "asimd",
    "fphp",
    "asimdhp",
    "asimddp",
    "asimdfhm",
    "i8mm",
    "bf16",
    "sve",
    "sve2",
    "svei8mm",
    "svebf16",
    "sme",
    "sme2",
    "v",
    "zvfh",
    "vsx",
];

/// What the first processor says, and how many of which part there are.
#[derive(Default)]
pub(super) struct CpuInfo {
    first: BTreeMap<String, String>,
    /// ARM: implementer and part of each kind of core, with the number of cores.
    parts: BTreeMap<(u32, u32), usize>,
    pub(super) processors: usize,
    pub(super) sockets: Option<usize>,
    pub(super) cores: Option<usize>,
}

impl CpuInfo {
    pub(super) fn read(files: &Files) -> Self {
        let text = files.text("/proc/cpuinfo").unwrap_or_default();
        let mut info = Self::default();
        let (mut packages, mut cores) = (BTreeSet::new(), BTreeSet::new());
        for block in text.split("\n\n") {
            let fields: BTreeMap<&str, &str> = block
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(key, value)| (key.trim(), value.trim()))
                .collect();
            info.processors += usize::from(fields.contains_key("processor"));
            if let Some(package) = fields.get("physical id") {
                packages.insert((*package).to_owned());
                cores.extend(fields.get("core id").map(|core| format!("{package}/{core}")));
            }
            if let (Some(maker), Some(part)) = (number(fields.get("CPU implementer")), number(fields.get("CPU part"))) {
                *info.parts.entry((maker, part)).or_default() += 1;
            }
            for (key, value) in fields {
                info.first.entry(key.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        info.sockets = (!packages.is_empty()).then_some(packages.len());
        info.cores = (!cores.is_empty()).then_some(cores.len());
        info
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.first.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// x86 and POWER name the processor; on ARM the parts do, `4x Cortex-A76 + 4x Cortex-A55`.
    pub(super) fn name(&self) -> Option<String> {
        let given = self.field("model name").or_else(|| self.field("cpu"));
        given.map(names::cleaned).filter(|name| !name.is_empty()).or_else(|| {
            let one = |(part, count): (&(u32, u32), &usize)| {
                let name = names::arm_part(part.0, part.1);
                if self.parts.len() > 1 { format!("{count}x {name}") } else { name }
            };
            let parts: Vec<String> = self.parts.iter().rev().map(one).collect();
            (!parts.is_empty()).then(|| parts.join(" + "))
        })
    }

    pub(super) fn vendor(&self) -> Option<String> {
        let arm = || self.parts.keys().next().and_then(|(maker, _)| names::arm_maker(*maker)).map(str::to_owned);
        self.field("vendor_id").map(names::vendor).or_else(arm)
    }

    pub(super) fn architecture(&self) -> Option<String> {
        let number = |name: &str| self.field(name)?.parse::<u32>().ok();
        let known = names::architecture(self.field("vendor_id")?, number("cpu family")?, number("model")?);
        known.map(str::to_owned)
    }

    fn flags(&self) -> BTreeSet<&str> {
        let flags = self.field("flags").or_else(|| self.field("Features")).unwrap_or_default();
        flags.split_whitespace().collect()
    }

    /// In the order of the table, which is that of their invention.
    pub(super) fn features(&self) -> Vec<String> {
        let flags = self.flags();
        SIMD.iter().filter(|name| flags.contains(*name)).map(|name| (*name).to_owned()).collect()
    }

    /// x86 has a flag; elsewhere the firmware or the kernel may know.
    pub(super) fn hypervisor(&self, files: &Files) -> Option<String> {
        let typed = files.text("/sys/hypervisor/type");
        let firmware = files.text("/sys/class/dmi/id/sys_vendor").and_then(|vendor| names::virtual_vendor(&vendor));
        let flag = self.flags().contains("hypervisor").then(|| "unnamed".to_owned());
        typed.or(firmware).or(flag)
    }
}

/// `0x41` and `8` alike.
fn number(text: Option<&&str>) -> Option<u32> {
    let text = text?;
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
}
