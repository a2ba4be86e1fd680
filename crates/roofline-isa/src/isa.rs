//! Which instructions this processor has, found at run time so that one binary runs everywhere at full width.

use std::{env, fmt, str::FromStr, sync::OnceLock};

/// The environment variable that holds the program back: `portable`, `neon`, `avx2`, `avx512` or `amx`.
pub const VARIABLE: &str = "ROOFLINE_ISA";

/// The vectors that kernels use, narrowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// What every processor of the target has: SSE2 on x86-64, elsewhere what the compiler makes of plain loops.
    Portable,
    /// ARM: 128-bit vectors.
    Neon,
    /// x86: 256-bit vectors with FMA and F16C.
    Avx2,
    /// x86: 512-bit vectors (F, BW, DQ, VL).
    Avx512,
}

/// Vectors, and the units for narrow numbers beside them. A value never holds what this processor lacks, so whoever has one
/// may run its instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa {
    level: Level,
    dot: bool,
    bf16: bool,
    tiles: bool,
}

impl Isa {
    /// What kernels use: the widest that this processor has and the operating system lets this process use, held back by
    /// [`VARIABLE`].
    ///
    /// # Panics
    ///
    /// Where the variable asks for what is not there; programs call [`Isa::from_environment`] first.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Self::from_environment().unwrap_or_else(|error| panic!("{error}")))
    }

    /// The same, with what is wrong with the variable as an error.
    pub fn from_environment() -> Result<Self, NoSuchIsa> {
        match env::var(VARIABLE) {
            Ok(name) if !name.trim().is_empty() => Self::named(&name),
            _ => Ok(Self::detect()),
        }
    }

    /// The restriction called `name`.
    pub fn named(name: &str) -> Result<Self, NoSuchIsa> {
        let has = Self::detect();
        let wanted = name.trim().to_ascii_lowercase();
        let found = match wanted.as_str() {
            "amx" => has.tiles.then_some(has),
            other => other.parse().ok().and_then(|level| has.at(level)),
        };
        found.ok_or_else(|| NoSuchIsa { name: name.to_owned(), has })
    }

    /// What the processor has, whatever the environment says.
    pub fn detect() -> Self {
        detect()
    }

    /// What every processor has.
    pub const fn portable() -> Self {
        Self { level: Level::Portable, dot: false, bf16: false, tiles: false }
    }

    /// Everything up to `level`, without tiles; none where the processor has no such vectors.
    pub fn at(self, level: Level) -> Option<Self> {
        match (self.level, level) {
            (_, Level::Portable) => Some(Self::portable()),
            (has, wanted) if has == wanted => Some(Self { tiles: false, ..self }),
            (Level::Avx512, Level::Avx2) => Some(Self { level, ..Self::portable() }),
            _ => None,
        }
    }

    /// The widest vectors.
    pub const fn level(self) -> Level {
        self.level
    }

    /// Sums of four INT8 products in one instruction: AVX512_VNNI, or SDOT of ARM.
    pub const fn has_dot(self) -> bool {
        self.dot
    }

    /// Sums of two BF16 products in one instruction: AVX512_BF16.
    pub const fn has_bf16(self) -> bool {
        self.bf16
    }

    /// AMX: tiles of INT8 and BF16.
    pub const fn has_tiles(self) -> bool {
        self.tiles
    }

    /// FP32 numbers in a vector.
    pub const fn lanes(self) -> usize {
        match self.level {
            Level::Avx512 => 16,
            Level::Avx2 | Level::Portable => 8,
            Level::Neon => 4,
        }
    }

    /// The same without tiles.
    #[must_use]
    pub const fn without_tiles(self) -> Self {
        Self { tiles: false, ..self }
    }

    /// Everything this processor can be restricted to, widest first, down from [`Isa::best`]: what tests run through.
    pub fn restrictions() -> Vec<Self> {
        let all = Self::best();
        let mut found = vec![all, all.without_tiles(), Self { dot: false, bf16: false, tiles: false, ..all }];
        found.extend([Level::Avx2, Level::Portable].into_iter().filter_map(|level| all.at(level)));
        found.dedup();
        found
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if !avx512 {
        return Isa { level: if avx2 { Level::Avx2 } else { Level::Portable }, ..Isa::portable() };
    }
    Isa {
        level: Level::Avx512,
        dot: is_x86_feature_detected!("avx512vnni"),
        bf16: is_x86_feature_detected!("avx512bf16"),
        tiles: tiles(),
    }
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Isa {
    let dot = std::arch::is_aarch64_feature_detected!("dotprod");
    Isa { level: Level::Neon, dot, bf16: false, tiles: false }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Isa {
    Isa::portable()
}

/// Whether the processor has tiles (CPUID leaf 7: AMX-BF16 bit 22, AMX-TILE bit 24, AMX-INT8 bit 25 of EDX) and Linux
/// grants their 8 KiB of state, which a process must ask for before its first tile instruction.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles() -> bool {
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

/// A name that stands for nothing this processor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSuchIsa {
    name: String,
    has: Isa,
}

impl fmt::Display for NoSuchIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut known = vec![Level::Portable.to_string()];
        known.extend(
            [Level::Neon, Level::Avx2, Level::Avx512]
                .into_iter()
                .filter_map(|level| self.has.at(level).map(|_| level.to_string())),
        );
        known.extend(self.has.tiles.then(|| "amx".to_owned()));
        write!(f, "{VARIABLE} is `{}`; this processor can be held to {}", self.name, known.join(", "))
    }
}

impl std::error::Error for NoSuchIsa {}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512].into_iter().find(|level| level.name() == text).ok_or(())
    }
}

impl Level {
    /// For names of kernels, and the environment.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = self.level.to_string();
        let dot = if self.level == Level::Neon { "+dot" } else { "+vnni" };
        for (has, unit) in [(self.dot, dot), (self.bf16, "+bf16"), (self.tiles, "+amx")] {
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
        let found = Isa::restrictions();
        assert_eq!(found[0], Isa::best());
        assert_eq!(found.last(), Some(&Isa::portable()));
    }

    #[test]
    fn a_server_can_be_held_to_a_laptop() {
        let all = Isa { level: Level::Avx512, dot: true, bf16: true, tiles: true };
        assert_eq!(all.to_string(), "avx512+vnni+bf16+amx");
        assert_eq!(all.without_tiles().to_string(), "avx512+vnni+bf16");
        assert_eq!(all.at(Level::Avx512).unwrap().to_string(), "avx512+vnni+bf16");
        assert_eq!(all.at(Level::Avx2).unwrap().to_string(), "avx2");
        assert_eq!(all.at(Level::Portable), Some(Isa::portable()));
        assert_eq!(all.at(Level::Neon), None);
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        assert_eq!(Isa::named(" Portable "), Ok(Isa::portable()));
        let error = Isa::named("avx9").unwrap_err().to_string();
        assert!(error.starts_with("ROOFLINE_ISA is `avx9`; this processor can be held to portable"), "{error}");
        let elsewhere = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
        assert!(Isa::named(elsewhere).is_err());
    }
}
