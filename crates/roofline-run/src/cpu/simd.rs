//! Which vector instructions this processor has, found at run time so that one binary runs everywhere at full width.

#![allow(unsafe_code)]

use std::fmt;

/// The widest vectors that kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// No intrinsics: what the compiler makes of plain loops.
    Portable,
    /// x86: 256-bit vectors with FMA and F16C.
    Avx2,
    /// x86: 512-bit vectors (F, BW, DQ, VL).
    Avx512,
    /// ARM: 128-bit vectors.
    Neon,
}

/// Vectors, and the units for narrow numbers beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simd {
    /// The widest vectors.
    pub level: Level,
    /// AVX512_VNNI: dot products of four INT8 pairs.
    pub vnni: bool,
    /// AVX512_BF16: dot products of two BF16 pairs.
    pub bf16: bool,
    /// AMX: tiles of INT8 and BF16.
    pub amx: bool,
}

impl Simd {
    /// What this processor has and the operating system lets this process use.
    pub fn detect() -> Self {
        detect()
    }

    /// Plain loops only.
    pub const fn portable() -> Self {
        Self::only(Level::Portable)
    }

    /// 256-bit vectors; none where the processor has no such.
    pub fn avx2() -> Option<Self> {
        matches!(Self::detect().level, Level::Avx2 | Level::Avx512).then(|| Self::only(Level::Avx2))
    }

    /// 512-bit vectors without the units for narrow numbers; none where the processor has no such.
    pub fn avx512() -> Option<Self> {
        (Self::detect().level == Level::Avx512).then(|| Self::only(Level::Avx512))
    }

    /// The same without tiles.
    #[must_use]
    pub const fn without_tiles(self) -> Self {
        Self { amx: false, ..self }
    }

    /// Everything this processor can be restricted to, widest first: what tests run through.
    pub fn restrictions() -> Vec<Self> {
        let all = Self::detect();
        let mut found = vec![all, all.without_tiles()];
        found.extend(Self::avx512());
        found.extend(Self::avx2());
        found.push(Self::portable());
        found.dedup();
        found
    }

    const fn only(level: Level) -> Self {
        Self { level, vnni: false, bf16: false, amx: false }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Simd {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if !avx512 {
        return Simd::only(if avx2 { Level::Avx2 } else { Level::Portable });
    }
    Simd {
        level: Level::Avx512,
        vnni: is_x86_feature_detected!("avx512vnni"),
        bf16: is_x86_feature_detected!("avx512bf16"),
        amx: tiles(),
    }
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Simd {
    Simd::only(Level::Neon)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Simd {
    Simd::portable()
}

/// Whether the processor has tiles (CPUID leaf 7: AMX-BF16 bit 22, AMX-TILE bit 24, AMX-INT8 bit 25 of EDX) and Linux
/// grants their 8 KiB of state, which a process must ask for before its first tile instruction.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles() -> bool {
    use std::sync::OnceLock;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        let has =
            std::arch::x86_64::__cpuid(0).eax >= 7 && std::arch::x86_64::__cpuid_count(7, 0).edx & NEEDED == NEEDED;
        // SAFETY: this call of arch_prctl changes nothing but the permission of this process.
        has && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
    })
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles() -> bool {
    false
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        })
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = self.level.to_string();
        for (has, unit) in [(self.vnni, "+vnni"), (self.bf16, "+bf16"), (self.amx, "+amx")] {
            name.push_str(if has { unit } else { "" });
        }
        f.pad(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restrictions_end_at_plain_loops() {
        let found = Simd::restrictions();
        assert_eq!(found[0], Simd::detect());
        assert_eq!(found.last(), Some(&Simd::portable()));
    }

    #[test]
    fn names_say_what_is_there() {
        assert_eq!(Simd::portable().to_string(), "portable");
        let all = Simd { level: Level::Avx512, vnni: true, bf16: true, amx: true };
        assert_eq!(all.to_string(), "avx512+vnni+bf16+amx");
        assert_eq!(all.without_tiles().to_string(), "avx512+vnni+bf16");
    }
}
