//! Products of more rows with packed weights: which of `kernels/gemm_wgmma.cu` and `kernels/gemm_mma.cu` runs, how its work
//! is divided, how its weights are packed.

use super::{
    codes::Codes,
    compiler::Architecture,
    gemv_packed::{Order, STEP, Stored, TILE},
    gpu::Recipe,
    operand::{DISTINCT, Operand, Part},
};

const WGMMA: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/packed.cuh"),
    include_str!("../../kernels/wgmma.cuh"),
    include_str!("../../kernels/gemm_parts.cuh"),
    include_str!("../../kernels/gemm_wgmma.cu")
);
const MMA: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/packed.cuh"),
    include_str!("../../kernels/gemm_parts.cuh"),
    include_str!("../../kernels/gemm_mma.cu")
);
/// Tiles of 16 rows of W that lie side by side: `BLOCK` in the kernels.
const BLOCK: usize = 4;
/// Units that weights are filled up to: whole stages of every division.
const UNITS: usize = 4;
/// Shared memory of a block that is neither the ring nor NF4's table, and what aligning the ring may cost.
const BESIDE: usize = 512 + ALIGNED;
const ALIGNED: usize = 1024;
const STAGES: usize = 8;
/// Most blocks that share columns.
const MOST: usize = 8;

/// The oldest architecture these kernels are for: earlier tensor units multiply by halves of what mma takes here.
pub(super) const OLDEST: Architecture = Architecture { major: 8, minor: 0 };

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Warpgroups, each with blocks of 64 rows of W: compute capability 9.0 only.
    Wgmma,
    /// Warps, each with blocks of 16 rows of W.
    Mma,
}

/// How a kernel divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    unit: Unit,
    /// Rows of x per block.
    pub(super) rows: usize,
    tiles: usize,
    /// Warpgroups, or warps.
    teams: usize,
    /// Units of 128 bytes of a row of x per stage.
    pub(super) steps: usize,
    /// Scales multiply sums instead of weights.
    apart: bool,
    /// Blocks that share the columns of the same rows.
    pub(super) split: usize,
}

impl Division {
    const fn wgmma(rows: usize, tiles: usize, teams: usize, steps: usize) -> Self {
        Self { unit: Unit::Wgmma, rows, tiles, teams, steps, apart: false, split: 1 }
    }

    const fn mma(rows: usize, tiles: usize, teams: usize, steps: usize, apart: bool) -> Self {
        Self { unit: Unit::Mma, rows, tiles, teams, steps, apart, split: 1 }
    }

    /// Rows of W per block.
    pub(super) fn height(self) -> usize {
        self.tiles * self.teams * if self.unit == Unit::Wgmma { 4 * TILE } else { TILE }
    }

    /// Threads of a block: those that multiply, and those that copy where an engine does that.
    pub(super) fn threads(self, architecture: Architecture) -> usize {
        match self.unit {
            Unit::Wgmma => 128 * (self.teams + 1),
            Unit::Mma => 32 * (self.teams + usize::from(architecture.major >= 9)),
        }
    }

    /// For a kernel's name.
    pub(super) fn words(self) -> String {
        let unit = if self.unit == Unit::Wgmma { "wgmma" } else { "mma" };
        let Self { rows, steps, split, .. } = self;
        format!(" {unit} {rows}x{}x{steps}u{split}s", self.height())
    }
}

/// A product's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiled {
    pub(super) stored: Stored,
    /// IEEE half rather than bfloat16.
    pub(super) half: bool,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Tiled {
    /// Columns of a unit, which is 128 bytes of x.
    pub(super) fn unit(&self) -> usize {
        if self.stored.bytes() { 2 * STEP } else { STEP }
    }

    /// Units of x.
    pub(super) fn x_units(&self) -> usize {
        self.k.div_ceil(self.unit())
    }

    /// Units of W, the last of which may be zeros.
    pub(super) fn units(&self) -> usize {
        if self.stored.bytes() { self.x_units() } else { self.x_units().next_multiple_of(UNITS) }
    }

    /// Divisions that suit the shape on an H200, by `docs/results/2026-11-17-h200-quantized-products.md`: once for all
    /// columns, and once with as many blocks as the GPU has multiprocessors.
    pub(super) fn divisions(&self, architecture: Architecture, multiprocessors: u32, shared: u32) -> Vec<Division> {
        let bytes = self.stored.bytes();
        let steps = |many: usize| if bytes { 1 } else { many };
        let rows = self.m.next_power_of_two().clamp(if bytes { 64 } else { 16 }, 256);
        let wgmma = Division::wgmma;
        let all = if (architecture.major, architecture.minor) == (9, 0) {
            match rows {
                16 => vec![wgmma(16, 1, 2, 4), wgmma(16, 2, 2, 4), Division::mma(16, 2, 4, 4, self.apart())],
                32 => vec![wgmma(32, 1, 2, 4), wgmma(32, 2, 2, 4), wgmma(32, 2, 2, 2)],
                64 => vec![wgmma(64, 1, 2, steps(4)), wgmma(64, 1, 2, steps(2)), wgmma(64, 2, 2, steps(2))],
                _ => vec![wgmma(128, 1, 2, steps(2)), wgmma(128, 2, 2, steps(2)), wgmma(256, 1, 2, steps(2))],
            }
        } else {
            let (rows, apart) = (rows.min(64), rows <= 32 && self.apart());
            vec![Division::mma(rows, 2, 4, steps(2), apart), Division::mma(rows, 2, 8, steps(2), apart)]
        };
        let mut divisions = Vec::new();
        for division in all.into_iter().filter(|division| self.stages(*division, shared) >= 2) {
            // A tile of 256 rows is worth having only where there are that many.
            if division.rows > rows {
                continue;
            }
            let blocks = self.blocks(division);
            let most = (multiprocessors as usize / blocks).min(MOST).min(self.units() / division.steps);
            divisions.push(division);
            if most > 1 {
                divisions.push(Division { split: most, ..division });
            }
        }
        divisions
    }

    /// Whether scales may multiply sums: groups of whole units.
    fn apart(&self) -> bool {
        self.stored.group() >= STEP as i64
    }

    fn stages(&self, division: Division, shared: u32) -> usize {
        let table = if self.stored == Stored::Nf4 { 32 << 10 } else { 0 };
        ((shared as usize).saturating_sub(BESIDE + table) / self.stage_bytes(division)).min(STAGES)
    }

    /// Bytes of weights, scales and zero points of a tile in a unit.
    fn tile_bytes(&self) -> usize {
        let scales = match self.stored {
            Stored::Int4(group) => 2048 / group as usize,
            Stored::Int4Zero(group) => 2560 / group as usize,
            Stored::Nf4 | Stored::Nvfp4 => 64,
            Stored::Mxfp4 => 32,
            _ => 0,
        };
        TILE * self.unit() * self.stored.bits() / 8 + scales
    }

    fn stage_bytes(&self, division: Division) -> usize {
        let Division { rows, steps, .. } = division;
        (steps * (rows * 128 + division.height() / TILE * self.tile_bytes())).next_multiple_of(ALIGNED)
    }

    /// Blocks, but for those that share columns.
    pub(super) fn blocks(&self, division: Division) -> usize {
        self.n.div_ceil(division.height()) * self.m.div_ceil(division.rows)
    }

    /// Bytes of the sums that blocks which share columns leave for each other.
    pub(super) fn partial_bytes(&self, division: Division) -> usize {
        let shared = if division.split > 1 { self.blocks(division) * division.split } else { 0 };
        (shared * division.height() * division.rows * 4).max(16)
    }

    pub(super) fn recipe(&self, division: Division, shared: u32) -> Recipe {
        let number = |value: usize| value as i64;
        let stages = self.stages(division, shared);
        let mut defines = self.stored.kind().defines("STORED");
        defines.extend([
            ("TILED", 1),
            ("GROUP", self.stored.group()),
            ("HALF", i64::from(self.half)),
            ("ROWS", number(division.rows)),
            ("HEIGHT", number(division.height())),
            ("TILES", number(division.tiles)),
            (if division.unit == Unit::Wgmma { "GROUPS" } else { "WARPS" }, number(division.teams)),
            ("STEPS", number(division.steps)),
            ("STAGES", number(stages)),
            ("APART", i64::from(division.apart)),
        ]);
        let sums = division.rows * (division.height() + 4) * 4;
        let shared = (stages * self.stage_bytes(division)).max(sums) + ALIGNED;
        let source = if division.unit == Unit::Wgmma { WGMMA } else { MMA };
        Recipe { source, function: "gemm_packed", defines, shared: shared as u32 }
    }

    /// Weights with their scales and zero points, block after block: a period of [`DISTINCT`] blocks, repeated.
    pub(super) fn pack(&self, operand: &Operand) -> Part {
        let codes = Codes::new(&operand.encoded);
        let blocks = self.n.div_ceil(BLOCK * TILE);
        let period = blocks.min(DISTINCT);
        // Units side by side, and steps of each.
        let (pair, steps) = if self.stored.bytes() { (1, 2) } else { (2, 1) };
        let mut pattern = Vec::with_capacity(period * BLOCK * self.units() * self.tile_bytes());
        for (block, first) in (0..period).flat_map(|block| (0..self.units()).step_by(pair).map(move |at| (block, at))) {
            let (mut scales, mut zeros) = (Vec::new(), Vec::new());
            for (unit, tile) in (first..first + pair).flat_map(|unit| (0..BLOCK).map(move |tile| (unit, tile))) {
                let tile = block * BLOCK + tile;
                for step in unit * steps..(unit + 1) * steps {
                    self.stored.pack_step(&codes, Order::Plain, tile, step, &mut pattern);
                }
                let plain = (Order::Plain, self.half);
                self.stored.pack_scales(&codes, plain, (tile, unit), &mut scales, &mut zeros);
            }
            pattern.append(&mut scales);
            pattern.append(&mut zeros);
        }
        let bytes = pattern.len() / period * blocks;
        Part { pattern, bytes }
    }

    /// A power of two that brings the largest scale near one, where scales are rounded to IEEE half, which holds few.
    pub(super) fn lift(&self, operand: &Operand) -> f32 {
        let scales = &operand.encoded.scales;
        let largest = match self.stored {
            _ if !self.half => return 1.0,
            Stored::Int4(_) | Stored::Int4Zero(_) => scales
                .as_chunks::<2>()
                .0
                .iter()
                .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16))
                .fold(0.0, f32::max),
            Stored::Nf4 => scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).fold(0.0, f32::max),
            Stored::Mxfp4 => (f32::from(scales.iter().copied().max().unwrap_or(127)) - 127.0).exp2(),
            _ => return 1.0,
        };
        if largest > 0.0 { (-largest.log2().floor()).exp2() } else { 1.0 }
    }
}

/// Every program that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    const SHARED: u32 = 227 << 10;
    let stored = [
        Stored::Int8,
        Stored::Fp8,
        Stored::Int4(32),
        Stored::Int4(128),
        Stored::Int4Zero(64),
        Stored::Int4Zero(128),
        Stored::Nf4,
        Stored::Mxfp4,
        Stored::Nvfp4,
        Stored::BothFp8,
    ];
    let mut all = Vec::new();
    for (at, stored) in stored.into_iter().enumerate() {
        // Half of them with the numbers that the other half are without.
        let (half, steps) = (at % 2 == 1, if stored.bytes() { 1 } else { 2 });
        let tiled = Tiled { stored, half, m: 64, n: 4096, k: 4096 };
        let recipe = |division: Division| {
            (format!("tiled {stored:?} half {half}{}", division.words()), tiled.recipe(division, SHARED))
        };
        all.push(recipe(Division::wgmma(64, 1, 2, steps)));
        // Only Hopper multiplies what both are 8 bit here.
        if !stored.bytes() {
            all.push(recipe(Division::mma(64, 2, 4, steps, false)));
        }
    }
    let tiled = Tiled { stored: Stored::Int4(128), half: false, m: 256, n: 4096, k: 4096 };
    for division in [
        Division::mma(16, 2, 4, 4, true),
        Division::wgmma(16, 2, 2, 4),
        Division::wgmma(128, 2, 2, 2),
        Division::wgmma(256, 1, 2, 2),
    ] {
        all.push((format!("tiled{}", division.words()), tiled.recipe(division, SHARED)));
    }
    all
}

#[cfg(test)]
mod tests {
    use roofline_core::Format;

    use super::*;

    #[test]
    fn packing_keeps_the_stored_size() {
        for (name, bits) in [
            ("int8", 8.0),
            ("fp8", 8.0),
            ("int4-g128", 4.125),
            ("int4-g32-zp", 4.625),
            ("nf4", 4.5),
            ("mxfp4", 4.25),
            ("nvfp4", 4.5),
        ] {
            let format: Format = name.parse().unwrap();
            let (n, k) = (320, 512);
            let stored = Stored::of(format, Format::BF16).unwrap();
            let tiled = Tiled { stored, half: false, m: 64, n, k };
            let part = tiled.pack(&Operand::new(format, n, k, 1.0, 3).unwrap());
            assert_eq!(part.bytes as f64, n as f64 * k as f64 * bits / 8.0, "{name}");
            // What the kernel reckons with is what was packed.
            assert_eq!(part.bytes, n / TILE * tiled.units() * tiled.tile_bytes(), "{name}");
        }
    }

    #[test]
    fn every_shape_has_a_division_wherever_the_kernels_run() {
        let architectures = [(8, 0, 163), (8, 6, 99), (8, 9, 99), (9, 0, 227), (10, 0, 227), (12, 0, 99)];
        for (major, minor, kilobytes) in architectures {
            for (stored, m) in [Stored::Int4(128), Stored::Int8, Stored::Nf4]
                .into_iter()
                .flat_map(|one| [17, 64, 500].map(|m| (one, m)))
            {
                let tiled = Tiled { stored, half: false, m, n: 4096, k: 4096 };
                let divisions = tiled.divisions(Architecture { major, minor }, 108, kilobytes << 10);
                assert!(!divisions.is_empty(), "{stored:?} with {m} rows on {major}.{minor}");
                for division in divisions {
                    assert!(tiled.recipe(division, kilobytes << 10).is_for(Architecture { major, minor }));
                }
            }
        }
    }
}
