//! Products of few rows: which kernel of `kernels/gemv_packed.cu` runs, how its weights are packed, how it is launched.

mod pack;

pub(super) use pack::Order;

use roofline_core::{Format, format::Element};

use super::{gpu::Recipe, named::named, operand::Operand};

/// Most rows of x that these kernels take: two of the tensor unit's eight (`COLUMNS` in the kernel).
pub const THIN_ROWS: usize = 16;
/// Columns of a step.
pub(super) const STEP: usize = 64;
/// Rows of W in a tile.
pub(super) const TILE: usize = 16;

const SOURCE: &str = concat!(
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/chain.cuh"),
    include_str!("../../kernels/packed.cuh"),
    include_str!("../../kernels/narrow.cuh"),
    include_str!("../../kernels/gemv_packed.cu")
);

named! {
    /// [`Stored`] as the kernel's source names it, which has a macro of its own for groups.
    pub(super) enum Kind {
        Sixteen = "SIXTEEN",
        Int8 = "INT8",
        Fp8 = "E4M3",
        Int4 = "INT4",
        Int4Zero = "INT4_ZERO",
        Nf4 = "NF4",
        Mxfp4 = "MXFP4",
        Nvfp4 = "NVFP4",
        BothInt8 = "BOTH_INT8",
        BothFp8 = "BOTH_E4M3",
    }
}

/// How weights are stored, and what they are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// What x is, too.
    Sixteen,
    Int8,
    Fp8,
    /// Columns that share a scale.
    Int4(i64),
    /// The same with zero points.
    Int4Zero(i64),
    Nf4,
    Mxfp4,
    Nvfp4,
    /// x is INT8 as well.
    BothInt8,
    /// x is FP8 as well.
    BothFp8,
}

impl Stored {
    /// None where there is no kernel.
    pub(super) fn of(weights: Format, activations: Format) -> Option<Self> {
        let sixteen = matches!(activations, Format::FP16 | Format::BF16);
        match weights {
            Format::INT8 if activations == Format::INT8 => Some(Self::BothInt8),
            Format::FP8 if activations == Format::FP8 => Some(Self::BothFp8),
            _ if !sixteen => None,
            weights if weights == activations => Some(Self::Sixteen),
            Format::INT8 => Some(Self::Int8),
            Format::FP8 => Some(Self::Fp8),
            Format::NF4 => Some(Self::Nf4),
            Format::MXFP4 => Some(Self::Mxfp4),
            Format::NVFP4 => Some(Self::Nvfp4),
            weights if weights.element() == Element::Int4 => {
                let group = weights.block().filter(|group| [32, 64, 128].contains(group))?;
                // The only formats of this element and group: symmetric, integer zero points, and float ones.
                let named = |suffix: &str| format!("int4-g{group}{suffix}").parse() == Ok(weights);
                match (named(""), named("-zp")) {
                    (true, _) => Some(Self::Int4(group as i64)),
                    (_, true) => Some(Self::Int4Zero(group as i64)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Sixteen => Kind::Sixteen,
            Self::Int8 => Kind::Int8,
            Self::Fp8 => Kind::Fp8,
            Self::Int4(_) => Kind::Int4,
            Self::Int4Zero(_) => Kind::Int4Zero,
            Self::Nf4 => Kind::Nf4,
            Self::Mxfp4 => Kind::Mxfp4,
            Self::Nvfp4 => Kind::Nvfp4,
            Self::BothInt8 => Kind::BothInt8,
            Self::BothFp8 => Kind::BothFp8,
        }
    }

    pub(super) fn group(self) -> i64 {
        match self {
            Self::Int4(group) | Self::Int4Zero(group) => group,
            Self::Nf4 => 64,
            Self::Mxfp4 => 32,
            Self::Nvfp4 => 16,
            _ => 0,
        }
    }

    pub(super) fn bits(self) -> usize {
        match self {
            Self::Sixteen => 16,
            Self::Int8 | Self::Fp8 | Self::BothInt8 | Self::BothFp8 => 8,
            _ => 4,
        }
    }

    pub(super) fn bytes(self) -> bool {
        matches!(self, Self::BothInt8 | Self::BothFp8)
    }

    /// First of the 8 columns that half `half` of a lane's numbers stand for; `place` in the kernel.
    fn place(self, half: usize, quarter: usize) -> usize {
        if self == Self::Nvfp4 { 16 * quarter + 8 * half } else { 32 * half + 8 * quarter }
    }

    /// What the sums are multiplied with at last.
    pub(super) fn tensor_scale(self, operand: &Operand, half: bool) -> f32 {
        self.tensor_factor(&operand.encoded.tensor, half)
    }

    /// The same for what a file has once per tensor.
    pub(super) fn tensor_factor(self, tensor: &[u8], half: bool) -> f32 {
        if self != Self::Nvfp4 {
            return 1.0;
        }
        let bytes = tensor.first_chunk::<4>().map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
        // E2M1 read as 16 bit is too small by a power of two; the kernel's 16-bit factors carry a part of it, this is the rest.
        bytes * if half { 128.0 } else { 256.0 }
    }
}

/// Bytes of shared memory that a block's sums take at most, and with what a kernel knows of its rows besides. A kernel may declare
/// 48 KiB.
const OWN_SHARED: u32 = 32 << 10;
pub(super) const DECLARED: u32 = OWN_SHARED + 1024;

/// How a kernel divides its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) warps: u32,
    depth: u32,
    tiles: u32,
    split: u32,
}

impl Division {
    /// For a kernel's name.
    pub(super) fn words(self) -> String {
        let Self { warps, depth, tiles, split } = self;
        format!(" {warps}w{depth}d{tiles}t{split}s")
    }
}

/// Divisions worth trying, by how much each adds over formats and shapes on an H200; together they come within 0.3 % of the
/// best of 40 in the mean.
const FEW: [Division; 13] = [
    Division { warps: 16, depth: 1, tiles: 1, split: 1 },
    Division { warps: 8, depth: 1, tiles: 1, split: 1 },
    Division { warps: 16, depth: 2, tiles: 1, split: 1 },
    Division { warps: 4, depth: 1, tiles: 2, split: 1 },
    Division { warps: 16, depth: 1, tiles: 1, split: 2 },
    Division { warps: 8, depth: 1, tiles: 2, split: 1 },
    Division { warps: 16, depth: 1, tiles: 2, split: 1 },
    Division { warps: 4, depth: 2, tiles: 1, split: 1 },
    Division { warps: 8, depth: 1, tiles: 1, split: 2 },
    Division { warps: 16, depth: 1, tiles: 1, split: 4 },
    Division { warps: 8, depth: 2, tiles: 1, split: 1 },
    Division { warps: 4, depth: 1, tiles: 4, split: 1 },
    Division { warps: 4, depth: 1, tiles: 2, split: 2 },
];
/// Divisions worth trying as well where every block rounds x itself: fewer blocks, with more rows of W, as far as a kernel may have
/// room of its own for their sums.
const ROUNDING: [Division; 2] =
    [Division { warps: 8, depth: 1, tiles: 4, split: 1 }, Division { warps: 16, depth: 1, tiles: 4, split: 1 }];
/// The same for more than eight rows of x.
const MORE: [Division; 11] = [
    Division { warps: 8, depth: 1, tiles: 1, split: 1 },
    Division { warps: 8, depth: 1, tiles: 2, split: 1 },
    Division { warps: 8, depth: 1, tiles: 2, split: 2 },
    Division { warps: 8, depth: 1, tiles: 2, split: 4 },
    Division { warps: 4, depth: 1, tiles: 4, split: 1 },
    Division { warps: 4, depth: 1, tiles: 2, split: 1 },
    Division { warps: 4, depth: 1, tiles: 8, split: 1 },
    Division { warps: 4, depth: 1, tiles: 8, split: 2 },
    Division { warps: 4, depth: 1, tiles: 8, split: 4 },
    Division { warps: 4, depth: 1, tiles: 4, split: 2 },
    Division { warps: 8, depth: 1, tiles: 4, split: 1 },
];

named! {
    /// What is done with sums before they are written.
    pub(super) enum Activation {
        None = "IDENTITY",
        /// `silu(x W^T)`.
        Silu = "SILU",
        /// `silu(x G^T) * (x W^T)`, with tiles of both in turns.
        Gated = "GATED",
    }
}

/// A product's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thin {
    pub(super) activation: Activation,
    pub(super) stored: Stored,
    /// IEEE half rather than bfloat16.
    pub(super) half: bool,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Thin {
    pub(super) fn steps(&self) -> usize {
        self.k.div_ceil(STEP)
    }

    fn row_tiles(&self) -> usize {
        self.n.div_ceil(TILE) * self.matrices()
    }

    /// Matrices whose tiles take turns.
    pub(super) fn matrices(&self) -> usize {
        if self.activation == Activation::Gated { 2 } else { 1 }
    }

    fn columns(&self) -> u32 {
        if self.m > 8 { 2 } else { 1 }
    }

    /// Divisions that suit the shape: blocks of a cluster share rows only where rows alone do not fill the GPU many times.
    pub(super) fn divisions(&self, multiprocessors: u32, clusters: bool) -> Vec<Division> {
        let all: &[Division] = if self.m > 8 { &MORE } else { &FEW };
        let suits = |division: &&Division| {
            let blocks = self.row_tiles() * division.split as usize;
            let whole = (division.tiles as usize).is_multiple_of(self.matrices());
            whole && (division.split == 1 || (clusters && blocks < 14 * multiprocessors as usize))
        };
        all.iter().filter(suits).copied().collect()
    }

    /// The same where blocks round x themselves.
    pub(super) fn rounding_divisions(&self, multiprocessors: u32, clusters: bool) -> Vec<Division> {
        let mut all = self.divisions(multiprocessors, clusters);
        let fits = |division: &Division| self.sums(*division) <= OWN_SHARED;
        let more: Vec<Division> = ROUNDING.iter().filter(|more| fits(more) && !all.contains(more)).copied().collect();
        all.extend(more);
        all
    }

    /// Bytes of a block's sums: four of each lane for every tile and eight rows of x.
    pub(super) fn sums(&self, division: Division) -> u32 {
        division.warps * division.tiles * self.columns() * 4 * 32 * 4
    }

    pub(super) fn recipe(&self, division: Division) -> Recipe {
        let Division { warps, depth, tiles, split } = division;
        let number = |value: u32| i64::from(value);
        let mut defines = self.stored.kind().defines("STORED");
        defines.extend(self.activation.defines("FUNCTION"));
        defines.extend([
            ("GROUP", self.stored.group()),
            ("HALF", i64::from(self.half)),
            ("COLUMNS", number(self.columns())),
            ("TILES", number(tiles)),
            ("WARPS", number(warps)),
            ("DEPTH", number(depth)),
            ("SPLIT", number(split)),
        ]);
        Recipe { source: SOURCE, function: "gemv_packed", defines, shared: 0 }
    }

    /// Blocks: one for all of its rows, except that an NF4 block has a table to make (32 KiB, and some for sums), so there
    /// are only as many as fit the GPU at once.
    pub(super) fn blocks(&self, division: Division, multiprocessors: u32) -> u32 {
        let Division { warps, tiles, split, .. } = division;
        let all = (self.row_tiles() as u32).div_ceil(tiles);
        let most = if self.stored == Stored::Nf4 { multiprocessors * (64 / warps).min(5) / split } else { all };
        all.min(most) * split
    }
}

/// Every program that may be compiled here, for a test that needs no GPU: name, text, function and macros.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    let mut all = Vec::new();
    let stored = [
        Stored::Sixteen,
        Stored::Int8,
        Stored::Fp8,
        Stored::Int4(32),
        Stored::Int4(64),
        Stored::Int4(128),
        Stored::Int4Zero(32),
        Stored::Int4Zero(128),
        Stored::Nf4,
        Stored::Mxfp4,
        Stored::Nvfp4,
        Stored::BothInt8,
        Stored::BothFp8,
    ];
    for (stored, half) in stored.into_iter().flat_map(|stored| [(stored, false), (stored, true)]) {
        let m = if half { 8 } else { 16 };
        let thin = Thin { activation: Activation::None, stored, half, m, n: 4096, k: 4096 };
        let division = if m > 8 { MORE[0] } else { FEW[0] };
        all.push((format!("thin {stored:?} half {half} m {m}"), thin.recipe(division)));
    }
    // More columns at once, and clusters.
    for (stored, division) in [(Stored::Int4Zero(64), FEW[2]), (Stored::Int4(128), FEW[4]), (Stored::Nf4, FEW[4])] {
        let thin = Thin { activation: Activation::None, stored, half: false, m: 1, n: 4096, k: 4096 };
        all.push((format!("thin {stored:?}{}", division.words()), thin.recipe(division)));
    }
    for activation in [Activation::Gated, Activation::Silu] {
        let thin = Thin { activation, stored: Stored::Int4(128), half: false, m: 1, n: 4096, k: 4096 };
        all.push((format!("thin {activation:?}"), thin.recipe(FEW[3])));
    }
    all
}
