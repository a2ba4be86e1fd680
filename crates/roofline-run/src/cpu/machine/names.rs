//! Names of processors: what vendors wrap them in, and what the numbers of ARM parts and x86 models stand for.
//!
//! Sources: Linux `arch/x86/include/asm/intel-family.h`, `arch/arm64/include/asm/cputype.h`; AMD's processor programming
//! references for the family and model ranges.

/// `Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz` without trademarks and clock.
pub(super) fn cleaned(name: &str) -> String {
    let name = name.split(" @ ").next().unwrap_or(name);
    let name = name.replace("(R)", "").replace("(TM)", "").replace("(tm)", "");
    let words = name.split_whitespace().filter(|word| !matches!(*word, "CPU"));
    words.collect::<Vec<_>>().join(" ").chars().filter(|letter| !letter.is_control()).take(128).collect()
}

/// The maker behind a CPUID vendor string.
pub(super) fn vendor(id: &str) -> String {
    match id {
        "GenuineIntel" => "Intel",
        "AuthenticAMD" => "AMD",
        "HygonGenuine" => "Hygon",
        other => other,
    }
    .to_owned()
}

/// The microarchitecture of an x86 family and model.
pub(super) fn architecture(vendor: &str, family: u32, model: u32) -> Option<&'static str> {
    Some(match (vendor, family, model) {
        ("GenuineIntel", 6, model) => match model {
            0x3c | 0x3f | 0x45 | 0x46 => "Haswell",
            0x3d | 0x47 | 0x4f | 0x56 => "Broadwell",
            0x4e | 0x5e => "Skylake",
            0x55 => "Skylake-SP or Cascade Lake",
            0x8e | 0x9e => "Kaby Lake or Coffee Lake",
            0xa5 | 0xa6 => "Comet Lake",
            0x6a | 0x6c => "Ice Lake-SP",
            0x7d | 0x7e => "Ice Lake",
            0x8c | 0x8d => "Tiger Lake",
            0xa7 => "Rocket Lake",
            0x8f => "Sapphire Rapids",
            0xcf => "Emerald Rapids",
            0xad | 0xae => "Granite Rapids",
            0xaf => "Sierra Forest",
            0x97 | 0x9a => "Alder Lake",
            0xb7 | 0xba | 0xbf => "Raptor Lake",
            0xaa | 0xac => "Meteor Lake",
            0xbd => "Lunar Lake",
            0xc5 | 0xc6 => "Arrow Lake",
            _ => return None,
        },
        ("AuthenticAMD", 0x17, 0x00..=0x2f) => "Zen or Zen+",
        ("AuthenticAMD", 0x17, _) => "Zen 2",
        ("AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0xaf) => "Zen 4",
        ("AuthenticAMD", 0x19, _) => "Zen 3",
        ("AuthenticAMD", 0x1a, _) => "Zen 5",
        _ => return None,
    })
}

/// Who made an ARM core.
pub(super) fn arm_maker(implementer: u32) -> Option<&'static str> {
    Some(match implementer {
        0x41 => "Arm",
        0x42 => "Broadcom",
        0x46 => "Fujitsu",
        0x48 => "HiSilicon",
        0x4e => "NVIDIA",
        0x51 => "Qualcomm",
        0x53 => "Samsung",
        0x61 => "Apple",
        0xc0 => "Ampere",
        _ => return None,
    })
}

/// The name of an ARM core.
pub(super) fn arm_part(implementer: u32, part: u32) -> String {
    let known = match (implementer, part) {
        (0x41, 0xd03) => "Cortex-A53",
        (0x41, 0xd05) => "Cortex-A55",
        (0x41, 0xd07) => "Cortex-A57",
        (0x41, 0xd08) => "Cortex-A72",
        (0x41, 0xd09) => "Cortex-A73",
        (0x41, 0xd0b) => "Cortex-A76",
        (0x41, 0xd0c) => "Neoverse-N1",
        (0x41, 0xd0d) => "Cortex-A77",
        (0x41, 0xd40) => "Neoverse-V1",
        (0x41, 0xd41) => "Cortex-A78",
        (0x41, 0xd42) => "Cortex-A78AE",
        (0x41, 0xd44) => "Cortex-X1",
        (0x41, 0xd46) => "Cortex-A510",
        (0x41, 0xd47) => "Cortex-A710",
        (0x41, 0xd48) => "Cortex-X2",
        (0x41, 0xd49) => "Neoverse-N2",
        (0x41, 0xd4d) => "Cortex-A715",
        (0x41, 0xd4e) => "Cortex-X3",
        (0x41, 0xd4f) => "Neoverse-V2",
        (0x41, 0xd80) => "Cortex-A520",
        (0x41, 0xd81) => "Cortex-A720",
        (0x41, 0xd82) => "Cortex-X4",
        (0x41, 0xd84) => "Neoverse-V3",
        (0x41, 0xd8e) => "Neoverse-N3",
        (0x46, 0x001) => "A64FX",
        (0x48, 0xd01) => "Kunpeng 920",
        (0x4e, 0x004) => "Carmel",
        (0x51, 0x001) => "Oryon",
        (0xc0, 0xac3) => "Ampere-1",
        (0xc0, 0xac4) => "Ampere-1A",
        _ => "",
    };
    match (known, arm_maker(implementer)) {
        ("", Some(maker)) => format!("{maker} part {part:#05x}"),
        ("", None) => format!("implementer {implementer:#04x} part {part:#05x}"),
        (known, _) => known.to_owned(),
    }
}

/// Firmware vendors that exist only in virtual machines.
pub(super) fn virtual_vendor(vendor: &str) -> Option<String> {
    let names =
        ["QEMU", "VMware", "Xen", "innotek", "Amazon EC2", "Google", "Parallels", "KubeVirt", "OpenStack", "Alibaba"];
    names.iter().find(|name| vendor.contains(*name)).map(|name| (*name).to_owned())
}
