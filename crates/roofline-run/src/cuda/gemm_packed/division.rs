//! How a product's work is divided over a GPU, and the program that divides it so.

use super::{ALIGNED, MATRICES, Tiled};
use crate::cuda::{
    compiler::Architecture,
    gemv_packed::{STEP, Stored, TILE},
    gpu::Recipe,
};

const HOPPER: &str = concat!(
    include_str!("../../../kernels/common.cuh"),
    include_str!("../../../kernels/packed.cuh"),
    include_str!("../../../kernels/wgmma.cuh"),
    include_str!("../../../kernels/gemm_parts.cuh"),
    include_str!("../../../kernels/gemm_groups.cuh"),
    include_str!("../../../kernels/gemm_share.cuh"),
    include_str!("../../../kernels/gemm_wgmma.cu")
);
const MMA: &str = concat!(
    include_str!("../../../kernels/common.cuh"),
    include_str!("../../../kernels/packed.cuh"),
    include_str!("../../../kernels/gemm_parts.cuh"),
    include_str!("../../../kernels/gemm_groups.cuh"),
    include_str!("../../../kernels/gemm_mma.cu")
);
/// Shared memory of a block that is neither the ring nor anything else that is counted: barriers.
const BESIDE: usize = 512 + ALIGNED;
/// Most stages of a ring.
const STAGES: usize = 16;
/// Most blocks that share columns, where they share them evenly.
const MOST: usize = 8;

/// Most blocks of a cluster that share a field. Clusters of three, four and eight were slower than sums through memory on an H200:
/// not all of them run at once.
const NEAR: usize = 2;

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Warpgroups, each with blocks of 64 rows of W: compute capability 9.0 only.
    Wgmma,
    /// Warps, each with blocks of 16 rows of W, on any GPU.
    Mma,
}

/// Who multiplies what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shares {
    /// Every block of rows has this many blocks, each with as many of the columns.
    Columns(usize),
    /// So many clusters each have as many of all stages, but for so many rounds in which each has a field of its own.
    Fields { clusters: usize, whole: usize },
    /// Every field has a cluster of this many blocks, each with as many of the columns, which add up in shared memory.
    Near(usize),
}

/// How a kernel divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) struct Division {
    unit: Unit,
    /// Rows of x per block.
    rows: usize,
    /// Blocks of 64 rows of W per warpgroup, or of 16 per warp.
    tiles: usize,
    /// Warpgroups, or warps.
    teams: usize,
    /// Units of 128 bytes of a row of x per stage.
    steps: usize,
    /// Scales multiply sums instead of weights.
    apart: bool,
    /// Blocks that fetch x for each other.
    cluster: usize,
    /// Warpgroups that have the same rows of W and take units in turns.
    sides: usize,
    shares: Shares,
}

impl Division {
    const fn new(unit: Unit, [rows, tiles, teams, steps]: [usize; 4]) -> Self {
        let shares = Shares::Columns(1);
        Self { unit, rows, tiles, teams, steps, apart: false, cluster: 1, sides: 1, shares }
    }

    const fn wgmma(shape: [usize; 4]) -> Self {
        Self::new(Unit::Wgmma, shape)
    }

    const fn clusters(self) -> Self {
        Self { cluster: 2, ..self }
    }

    /// Two warpgroups have the same rows of W.
    const fn sided(self) -> Self {
        Self { sides: 2, ..self }
    }

    /// Stages whose weights are asked for before x may be. What is asked for first comes first, so that the first product waits for
    /// all of them: few where widening takes longer than memory does, more where memory is what takes long. Of 16 rows and 4 bits
    /// the first stage alone is 12 % faster than all on an H200, of 8 bits three are 2 to 6 %; of 256 rows it makes no difference.
    fn ahead(self, stored: Stored) -> usize {
        match (self.rows, stored.bits()) {
            (256, _) => STAGES,
            (_, 4) => 1,
            (16, _) => 3,
            _ => 2,
        }
    }

    /// Whether sums that are left for others say by themselves that they have come: `MARKED` in the kernel.
    pub(super) fn marks(self) -> bool {
        self.unit == Unit::Wgmma && self.rows <= 32
    }

    pub(super) fn mma(shape: [usize; 4], apart: bool) -> Self {
        Self { apart, ..Self::new(Unit::Mma, shape) }
    }

    /// Rows of W per block.
    fn height(self) -> usize {
        self.tiles * self.teams / self.sides * if self.unit == Unit::Mma { TILE } else { 4 * TILE }
    }

    /// Whether blocks have as many whole warpgroups for a gate as for what it multiplies.
    pub(super) fn gates(self) -> bool {
        self.unit == Unit::Wgmma && self.sides == 1 && self.height().is_multiple_of(128)
    }

    /// Threads of a block: those that multiply, and those that copy where an engine does that.
    pub(super) fn threads(self, architecture: Architecture) -> usize {
        match self.unit {
            Unit::Mma => 32 * (self.teams + usize::from(architecture.major >= 9)),
            Unit::Wgmma => 128 * (self.teams + 1),
        }
    }

    /// Whether the kernel itself waits for the one before it.
    pub(super) fn waits(self) -> bool {
        self.unit == Unit::Wgmma
    }

    /// Rows and units of x that one copy takes: a block of a cluster has a part of the units, or else of the rows.
    pub(super) fn copied(self) -> [usize; 2] {
        if self.steps.is_multiple_of(self.cluster) {
            [self.rows, self.steps / self.cluster]
        } else {
            [self.rows / self.cluster, self.steps]
        }
    }

    /// What the kernel takes last of its integers.
    pub(super) fn argument(self) -> usize {
        match self.shares {
            Shares::Columns(split) => split,
            Shares::Fields { whole, .. } => whole,
            Shares::Near(_) => 1,
        }
    }

    /// Blocks of a cluster that have the same field.
    fn near(self) -> usize {
        if let Shares::Near(split) = self.shares { split } else { 1 }
    }

    /// For a kernel's name.
    pub(in crate::cuda) fn words(self) -> String {
        let Self { rows, steps, cluster, .. } = self;
        let unit = match self.unit {
            Unit::Wgmma => "wgmma",
            Unit::Mma => "mma",
        };
        let shares = match self.shares {
            Shares::Columns(split) => format!("{split}s"),
            Shares::Fields { clusters, whole } => format!("{clusters}b{whole}w"),
            Shares::Near(split) => format!("{split}n"),
        };
        let sides = if self.sides > 1 { format!("{}s", self.sides) } else { String::new() };
        format!(" {unit} {rows}x{}x{steps}u{cluster}c{sides} {shares}", self.height())
    }
}

impl Tiled {
    /// Divisions that suit the shape, by `docs/results/2026-11-17-h200-quantized-products.md`.
    pub(in crate::cuda) fn divisions(
        &self,
        architecture: Architecture,
        multiprocessors: u32,
        shared: u32,
    ) -> Vec<Division> {
        let fits = |division: &Division| self.stages(*division, shared) >= 2;
        if (architecture.major, architecture.minor) == (9, 0) {
            let mut hopper = self.hopper(self.typical());
            if self.matrices > 1 {
                // Some matrices have more rows than others, and a second tile of a matrix costs as much as the first.
                hopper.extend(self.hopper(2 * self.typical()));
            }
            let all = hopper.into_iter().flat_map(|division| self.shared_out(division, multiprocessors as usize));
            return all.filter(fits).collect();
        }
        let steps = if self.stored.bytes() { 1 } else { 2 };
        let rows = self.typical().next_power_of_two().clamp(16, 64);
        let apart = rows <= 32 && self.groups();
        let mut divisions = Vec::new();
        for teams in [4, 8] {
            let division = Division::mma([rows, 2, teams, steps], apart);
            if !fits(&division) {
                continue;
            }
            let most = (multiprocessors as usize / self.fields(division)).min(MOST).min(self.units() / steps);
            divisions.push(division);
            if most > 1 && self.matrices == 1 {
                divisions.push(Division { shares: Shares::Columns(most), ..division });
            }
        }
        divisions
    }

    /// Rows of x that a matrix has in the mean.
    pub(super) fn typical(&self) -> usize {
        self.m.div_ceil(self.matrices)
    }

    /// The same for Hopper and `typical` rows, but for how fields are shared.
    pub(super) fn hopper(&self, typical: usize) -> Vec<Division> {
        let (bytes, four) = (self.stored.bytes(), self.stored.bits() == 4);
        let rows = typical.next_power_of_two().clamp(if bytes { 64 } else { 16 }, 256);
        let wgmma = Division::wgmma;
        // Units of a stage, where weights of four bits have twice as many.
        let steps = |eight: usize| if four { 2 * eight } else { eight };
        match (rows, bytes) {
            (64, true) => vec![wgmma([64, 1, 2, 1])],
            (128, true) => vec![wgmma([128, 1, 2, 1])],
            (_, true) => vec![wgmma([256, 1, 2, 1]).clusters(), wgmma([128, 2, 2, 1]).clusters()],
            (16 | 32, _) => {
                let mut all =
                    vec![wgmma([rows, 1, 2, 4]), wgmma([rows, 1, 4, steps(2)]), wgmma([rows, 1, 2, 4]).sided()];
                if four {
                    all.push(wgmma([rows, 1, 4, 4]).sided());
                }
                all
            }
            (64, _) if four => vec![wgmma([64, 1, 2, 4]), wgmma([64, 2, 2, 2]), wgmma([64, 1, 2, 4]).sided()],
            (64, _) => {
                vec![wgmma([64, 1, 2, 4]), wgmma([64, 1, 2, 2]), wgmma([64, 1, 4, 2]), wgmma([64, 1, 2, 4]).sided()]
            }
            (128, _) => vec![wgmma([128, 1, 2, 2]), wgmma([128, 2, 2, steps(1)])],
            _ => vec![wgmma([256, 1, 2, steps(1)]), wgmma([256, 1, 2, steps(1)]).clusters()],
        }
    }

    /// A division with the ways of sharing fields that are worth trying.
    fn shared_out(&self, division: Division, multiprocessors: usize) -> Vec<Division> {
        let fields = self.fields(division);
        let stages = self.units() / division.steps;
        let most = (multiprocessors / division.cluster).min(fields * stages);
        let shares =
            |clusters: usize, whole: usize| Division { shares: Shares::Fields { clusters, whole }, ..division };
        if division.sides > 1 {
            // As many blocks near each other as fill most of the GPU, or none.
            let each = most / fields;
            let fills = self.matrices == 1 && (1..=NEAR).contains(&each) && each * fields * 4 >= multiprocessors * 3;
            let near = Division { shares: Shares::Near(each), ..division };
            return if fills && each <= stages { vec![near] } else { Vec::new() };
        }
        if self.matrices > 1 {
            // Only the GPU knows how many fields there are.
            return vec![shares(most, 0)];
        }
        if fields <= most {
            // Each field is one cluster's, or that of as many as there is room for; or else all stages are shared evenly.
            let each = (most / fields).min(stages);
            let mut all = vec![shares(fields * each, usize::from(each == 1))];
            if each * fields * 8 < most * 7 {
                all.push(shares(most, 0));
            }
            // Of stages with one unit the compiler makes products that wait for each other, if their sums are left near.
            if (2..=NEAR).contains(&each) && division.cluster == 1 && division.steps > 1 {
                all.push(Division { shares: Shares::Near(each), ..division });
            }
            return all;
        }
        let rounds = fields / most;
        if fields.is_multiple_of(most) {
            return vec![shares(most, rounds)];
        }
        // All shared; or all but some whole rounds; or rounds of which the last does not fill the GPU; or as many blocks as
        // share nothing.
        let mut all = if division.cluster == 1 {
            vec![shares(most, 0)]
        } else {
            vec![shares(most, rounds - 1), shares(fields, 1)]
        };
        if division.cluster == 1 && fields.is_multiple_of(rounds + 1) {
            all.push(shares(fields / (rounds + 1), rounds + 1));
        }
        all
    }

    /// Whether groups are of whole units, so that scales may multiply sums.
    fn groups(&self) -> bool {
        self.stored.group() >= STEP as i64
    }

    /// Stages that a block has room for.
    fn stages(&self, division: Division, shared: u32) -> usize {
        let x_scales = if self.stored.bytes() { 4 * division.rows } else { 0 };
        let groups = if self.matrices > 1 { 4 * (MATRICES + 1) } else { 0 };
        let beside = BESIDE + self.table() + Self::results(division) + x_scales + groups;
        ((shared as usize).saturating_sub(beside) / self.stage_bytes(division)).min(STAGES)
    }

    /// Bytes of NF4's table.
    fn table(&self) -> usize {
        if self.stored == Stored::Nf4 { 32 << 10 } else { 0 }
    }

    /// Bytes of results on their way out, and of sums of others: `OUT_BYTES` in the kernel, and `left`.
    fn results(division: Division) -> usize {
        if division.unit == Unit::Mma {
            return 0;
        }
        division.teams * 16 * 144 + (division.near() * division.sides - 1) * division.height() * division.rows * 4
    }

    fn stage_bytes(&self, division: Division) -> usize {
        let Division { rows, steps, .. } = division;
        (steps * (rows * 128 + division.height() / TILE * self.tile_bytes())).next_multiple_of(ALIGNED)
    }

    /// Fields: what a cluster of blocks multiplies at a time. Of several matrices, the most that there may be: each may have a
    /// tile of x that is not full.
    fn fields(&self, division: Division) -> usize {
        let full =
            if self.matrices > 1 { self.m / division.rows + self.matrices } else { self.m.div_ceil(division.rows) };
        self.n.div_ceil(division.height() * division.cluster) * full
    }

    /// Blocks of a launch.
    pub(in crate::cuda) fn blocks(&self, division: Division) -> usize {
        match division.shares {
            Shares::Columns(split) | Shares::Near(split) => self.fields(division) * split,
            Shares::Fields { clusters, .. } => clusters * division.cluster,
        }
    }

    /// Bytes of the sums that blocks leave for each other.
    pub(super) fn left_bytes(&self, division: Division) -> usize {
        let left = match division.shares {
            Shares::Columns(1) | Shares::Near(_) => 0,
            Shares::Fields { clusters, whole } if clusters * whole == self.fields(division) => 0,
            // Of a field's part: that of the columns, or of those that others have begun.
            _ => self.blocks(division),
        };
        (left * division.height() * division.rows * 4).max(16)
    }

    /// Bytes of what says who has left theirs, a number per block of rows or a flag per block: zeros before the first call, and
    /// again after each.
    pub(in crate::cuda) fn counter_bytes(&self, division: Division) -> usize {
        match division.shares {
            Shares::Columns(_) => 4 * self.fields(division),
            Shares::Fields { .. } | Shares::Near(_) => 4 * self.blocks(division),
        }
    }

    pub(in crate::cuda) fn recipe(&self, division: Division, shared: u32) -> Recipe {
        let number = |value: usize| value as i64;
        let stages = self.stages(division, shared);
        let mma = division.unit == Unit::Mma;
        let mut defines = self.stored.kind().defines("STORED");
        defines.extend([
            ("TILED", 1),
            ("GROUPED", i64::from(self.matrices > 1)),
            ("GROUP", self.stored.group()),
            ("HALF", i64::from(self.half)),
            ("ROWS", number(division.rows)),
            ("HEIGHT", number(division.height())),
            ("TILES", number(division.tiles)),
            (if mma { "WARPS" } else { "GROUPS" }, number(division.teams)),
            ("STEPS", number(division.steps)),
            ("STAGES", number(stages)),
            ("APART", i64::from(mma && division.apart)),
        ]);
        let ring = stages * self.stage_bytes(division);
        if mma {
            let sums = division.rows * (division.height() + 4) * 4;
            let shared = (ring.max(sums) + ALIGNED) as u32;
            return Recipe { source: MMA, function: "gemm_packed", defines, shared };
        }
        defines.extend([
            ("CLUSTER", number(division.cluster)),
            ("SPLIT", number(division.near())),
            ("SIDES", number(division.sides)),
        ]);
        defines.push(("AHEAD", number(division.ahead(self.stored).min(stages))));
        let shared = (ring + Self::results(division) + ALIGNED) as u32;
        Recipe { source: HOPPER, function: "gemm_packed", defines, shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_a_division_wherever_the_kernels_run() {
        let architectures = [(8, 0, 163), (8, 6, 99), (8, 9, 99), (9, 0, 227), (10, 0, 227), (12, 0, 99)];
        for (major, minor, kilobytes) in architectures {
            for (stored, m) in [Stored::Int4(128), Stored::Int8, Stored::Nf4]
                .into_iter()
                .flat_map(|one| [16, 17, 64, 100, 500].map(|m| (one, m)))
            {
                let tiled = Tiled { stored, half: false, m, n: 4096, k: 4096, matrices: 1 };
                let divisions = tiled.divisions(Architecture { major, minor }, 108, kilobytes << 10);
                assert!((1..=8).contains(&divisions.len()), "{stored:?} with {m} rows on {major}.{minor}");
                for division in divisions {
                    assert!(tiled.recipe(division, kilobytes << 10).is_for(Architecture { major, minor }));
                }
            }
        }
    }

    #[test]
    fn every_stage_is_somebodys() {
        for (m, n, k) in
            [(16, 28672, 4096), (16, 8192, 8192), (64, 200, 520), (256, 5120, 13824), (1024, 14336, 4096), (17, 64, 64)]
        {
            let tiled = Tiled { stored: Stored::Int4(128), half: false, m, n, k, matrices: 1 };
            for division in tiled.divisions(Architecture { major: 9, minor: 0 }, 132, 227 << 10) {
                let (clusters, whole) = match division.shares {
                    Shares::Fields { clusters, whole } => (clusters, whole),
                    // Every block has a stage, and all run at once.
                    Shares::Near(split) => {
                        assert!(split <= tiled.units() / division.steps && tiled.blocks(division) <= 132);
                        continue;
                    }
                    Shares::Columns(_) => panic!("{division:?}"),
                };
                let (fields, stages) = (tiled.fields(division), tiled.units() / division.steps);
                // No whole rounds beyond the fields, and no cluster without a stage among those that share.
                assert!(whole * clusters <= fields, "{division:?} of {m} x {n} x {k}");
                let shared = (fields - whole * clusters) * stages;
                assert!(shared == 0 || shared >= clusters, "{division:?} of {m} x {n} x {k}");
                // Every block has a place for what it leaves to others, and a flag.
                let sums = if shared == 0 { 0 } else { division.height() * division.rows };
                assert!(tiled.left_bytes(division) >= tiled.blocks(division) * sums * 4);
                assert!(tiled.counter_bytes(division) >= tiled.blocks(division) * 4);
            }
        }
    }
}
