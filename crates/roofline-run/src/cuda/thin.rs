//! Products of few rows: which kernel of `kernels/thin.cu` runs, how its weights are packed, how it is launched.

use roofline_core::{Format, format::Element};

use super::{
    codes::Codes,
    gpu::Recipe,
    operand::{DISTINCT, Operand, Part},
};

/// Most rows of x that these kernels take.
pub(super) const MOST_ROWS: usize = 16;
/// Columns of a step.
const STEP: usize = 64;
/// Rows of W in a tile.
const TILE: usize = 16;

const SOURCE: &str = concat!(include_str!("../../kernels/common.cuh"), include_str!("../../kernels/thin.cu"));

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

    fn number(self) -> i64 {
        match self {
            Self::Sixteen => 16,
            Self::Int8 => 8,
            Self::Fp8 => 80,
            Self::Int4(_) => 4,
            Self::Int4Zero(_) => 41,
            Self::Nf4 => 42,
            Self::Mxfp4 => 43,
            Self::Nvfp4 => 44,
            Self::BothInt8 => 88,
            Self::BothFp8 => 89,
        }
    }

    fn group(self) -> i64 {
        match self {
            Self::Int4(group) | Self::Int4Zero(group) => group,
            Self::Nf4 => 64,
            Self::Mxfp4 => 32,
            Self::Nvfp4 => 16,
            _ => 0,
        }
    }

    fn bits(self) -> usize {
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
        if self != Self::Nvfp4 {
            return 1.0;
        }
        let bytes = operand.encoded.tensor.first_chunk::<4>().map_or(1.0, |bytes| f32::from_le_bytes(*bytes));
        // What the kernel's 16-bit factors could not carry.
        bytes * if half { 128.0 } else { 256.0 }
    }
}

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
    division(16, 1, 1, 1),
    division(8, 1, 1, 1),
    division(16, 2, 1, 1),
    division(4, 1, 2, 1),
    division(16, 1, 1, 2),
    division(8, 1, 2, 1),
    division(16, 1, 2, 1),
    division(4, 2, 1, 1),
    division(8, 1, 1, 2),
    division(16, 1, 1, 4),
    division(8, 2, 1, 1),
    division(4, 1, 4, 1),
    division(4, 1, 2, 2),
];
/// The same for more than eight rows of x.
const MORE: [Division; 6] = [
    division(8, 1, 1, 1),
    division(8, 1, 2, 1),
    division(8, 1, 2, 2),
    division(8, 1, 2, 4),
    division(4, 1, 4, 1),
    division(4, 1, 2, 1),
];

const fn division(warps: u32, depth: u32, tiles: u32, split: u32) -> Division {
    Division { warps, depth, tiles, split }
}

/// What is done with sums before they are written; `GATED` in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    None = 0,
    /// `silu(x G^T) * (x W^T)`, with tiles of both in turns.
    Gated = 1,
    /// `silu(x W^T)`.
    Silu = 2,
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

    pub(super) fn recipe(&self, division: Division) -> Recipe {
        let Division { warps, depth, tiles, split } = division;
        let number = |value: u32| i64::from(value);
        let defines = vec![
            ("STORED", self.stored.number()),
            ("GROUP", self.stored.group()),
            ("HALF", i64::from(self.half)),
            ("COLUMNS", number(self.columns())),
            ("TILES", number(tiles)),
            ("WARPS", number(warps)),
            ("DEPTH", number(depth)),
            ("SPLIT", number(split)),
            ("GATED", self.activation as i64),
        ];
        Recipe { source: SOURCE, function: "thin", defines, shared: 0 }
    }

    /// Blocks: one for all of its rows, except that an NF4 block has a table to make (32 KiB, and some for sums), so there
    /// are only as many as fit the GPU at once.
    pub(super) fn blocks(&self, division: Division, multiprocessors: u32) -> u32 {
        let Division { warps, tiles, split, .. } = division;
        let all = (self.row_tiles() as u32).div_ceil(tiles);
        let most = if self.stored == Stored::Nf4 { multiprocessors * (64 / warps).min(5) / split } else { all };
        all.min(most) * split
    }

    /// Weights, scales and zero points as the kernel reads them, of one matrix or of two in turns: a period of [`DISTINCT`]
    /// tiles each, repeated.
    pub(super) fn pack(&self, operands: &[Operand]) -> [Part; 3] {
        let tiles = self.row_tiles();
        let period = tiles.min(DISTINCT * operands.len());
        let whole = |pattern: Vec<u8>| {
            let bytes = pattern.len() / period * tiles;
            Part { pattern, bytes }
        };
        let codes: Vec<Codes<'_>> = operands.iter().map(|operand| Codes::new(&operand.encoded)).collect();
        let mut weights = Vec::with_capacity(period * TILE * self.steps() * STEP * self.stored.bits() / 8);
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        for at in 0..period {
            let (codes, tile) = (&codes[at % codes.len()], at / codes.len());
            for step in 0..self.steps() {
                self.pack_step(codes, tile, step, &mut weights);
                self.pack_scales(codes, tile, step, &mut scales, &mut zeros);
            }
        }
        if matches!(self.stored, Stored::Int8 | Stored::Fp8 | Stored::BothInt8 | Stored::BothFp8) {
            let row = |at: usize| (&codes[at / TILE % codes.len()], at / TILE / codes.len() * TILE + at % TILE);
            let scale = |at: usize| row(at).0.scale(row(at).1, 0, 16) as u16;
            scales = (0..period * TILE).map(scale).flat_map(u16::to_le_bytes).collect();
        }
        [whole(weights), whole(scales), whole(zeros)]
    }

    fn pack_step(&self, codes: &Codes<'_>, tile: usize, step: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + TILE * STEP * self.stored.bits() / 8, 0);
        let words = &mut out[start..];
        // Where a word of a lane is: vectors of 16 bytes, those of a warp side by side.
        let mut put = |vector: usize, lane: usize, word: usize, bits: u32| {
            let at = (vector * 32 + lane) * 16 + word * 4;
            let old = u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
            words[at..at + 4].copy_from_slice(&(old | bits).to_le_bytes());
        };
        for lane in 0..32 {
            let (group, quarter) = (lane / 4, lane % 4);
            if self.stored.bytes() {
                for (at, i) in (0..2).flat_map(|at| (0..4).map(move |i| (at, i))) {
                    let (row, column) =
                        (tile * TILE + group + 8 * (i % 2), step * STEP + 16 * quarter + 8 * at + 4 * (i / 2));
                    let word = (0..4).fold(0, |word, byte| word | codes.at(row, column + byte) << (8 * byte));
                    put(at, lane, i, word);
                }
                continue;
            }
            for (at, i) in (0..4).flat_map(|at| (0..4).map(move |i| (at, i))) {
                let row = tile * TILE + group + 8 * (i % 2);
                let column = step * STEP + self.stored.place(at / 2, quarter) + 4 * (at % 2) + 2 * (i / 2);
                let pair = [codes.at(row, column), codes.at(row, column + 1)];
                let both = |each: fn(u32, usize) -> u32| each(pair[0], i) | each(pair[1], i) << 16;
                match self.stored {
                    Stored::Sixteen => put(at, lane, i, pair[0] | pair[1] << 16),
                    Stored::Int8 => put(at / 2, lane, at % 2 * 2 + i / 2, both(|code, i| code << (8 * (i % 2)))),
                    Stored::Fp8 => put(at / 2, lane, at % 2 * 2 + i / 2, both(spread_e4m3)),
                    Stored::Int4(_) => put(0, lane, at, both(|code, i| (code ^ 8) << (4 * i))),
                    Stored::Int4Zero(_) => put(0, lane, at, both(|code, i| code << (4 * i))),
                    Stored::Nf4 => put(0, lane, at, (pair[0] | pair[1] << 4) << (8 * i)),
                    _ => put(0, lane, at, both(spread_e2m1)),
                }
            }
        }
    }

    fn pack_scales(&self, codes: &Codes<'_>, tile: usize, step: usize, scales: &mut Vec<u8>, zeros: &mut Vec<u8>) {
        let rows = |group: usize| [tile * TILE + group, tile * TILE + group + 8];
        match self.stored {
            Stored::Int4(size) | Stored::Int4Zero(size) => {
                let zero_points = matches!(self.stored, Stored::Int4Zero(_));
                // Groups that start in this step; one of 128 columns starts in every other.
                let (first, count) = match size {
                    128 => (step / 2, usize::from(step.is_multiple_of(2))),
                    64 => (step, 1),
                    _ => (2 * step, 2),
                };
                for group in first..first + count {
                    scales.extend(
                        (0..8)
                            .flat_map(|at| rows(at).map(|row| codes.scale(row, group, 16) as u16))
                            .flat_map(u16::to_le_bytes),
                    );
                }
                for at in 0..if zero_points { 8 } else { 0 } {
                    let [low, high] = rows(at);
                    zeros.extend(
                        (first..first + count)
                            .map(|group| (codes.zero(low, group) | codes.zero(high, group) << 4) as u8),
                    );
                }
            }
            Stored::Nf4 => {
                scales.extend((0..8).flat_map(rows).flat_map(|row| codes.scale(row, step, 32).to_le_bytes()));
            }
            Stored::Mxfp4 => {
                // Powers of two, larger by what the kernel's x and weights leave over.
                let lift = if self.half { 0 } else { 62 };
                let scale = |row: usize, group: usize| (codes.scale(row, group, 8) + lift).min(254) as u8;
                for at in 0..8 {
                    scales.extend((0..2).flat_map(|half| rows(at).map(|row| scale(row, 2 * step + half))));
                }
            }
            Stored::Nvfp4 => {
                for lane in 0..32 {
                    scales.extend(rows(lane / 4).map(|row| codes.scale(row, 4 * step + lane % 4, 8) as u8));
                }
            }
            _ => {}
        }
    }
}

/// The bits of an E4M3 number in half a word, the first of two that share it or the second.
fn spread_e4m3(code: u32, i: usize) -> u32 {
    let (sign, rest) = (code >> 7, code & 0x7f);
    if i.is_multiple_of(2) { sign << 15 | rest << 4 } else { sign << 11 | (rest >> 4) << 12 | rest & 15 }
}

/// The bits of an E2M1 number in half a word that it shares with three others.
fn spread_e2m1(code: u32, i: usize) -> u32 {
    let (sign, magnitude) = (code >> 3 & 1, code & 7);
    magnitude << [6, 3, 0, 9][i] | sign << [15, 12, 14, 13][i]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_the_stored_size() {
        for (name, bits) in [
            ("bf16", 16.0),
            ("int8", 8.0),
            ("fp8", 8.0),
            ("int4-g128", 4.125),
            ("int4-g32-zp", 4.625),
            ("nf4", 4.5),
            ("mxfp4", 4.25),
            ("nvfp4", 4.5),
        ] {
            let format: Format = name.parse().unwrap();
            let (n, k) = (320, 256);
            let stored = Stored::of(format, Format::BF16).unwrap();
            let operand = Operand::new(format, n, k, 1.0, 3).unwrap();
            let thin = Thin { activation: Activation::None, stored, half: false, m: 1, n, k };
            let parts = thin.pack(&[operand]);
            let bytes: usize = parts.iter().map(|part| part.bytes).sum();
            let per_row = if matches!(name, "int8" | "fp8") { 2.0 * n as f64 } else { 0.0 };
            assert_eq!(bytes as f64, n as f64 * k as f64 * bits / 8.0 + per_row, "{name}");
        }
    }

    #[test]
    fn no_two_numbers_share_a_bit() {
        let e2m1: Vec<u32> = (0..4).map(|i| spread_e2m1(15, i)).collect();
        assert_eq!((e2m1.iter().sum::<u32>(), e2m1.iter().fold(0, |all, bits| all | bits)), (0xffff, 0xffff));
        assert_eq!((spread_e4m3(255, 0) ^ spread_e4m3(255, 1), spread_e4m3(255, 0) & spread_e4m3(255, 1)), (0xffff, 0));
    }
}
