//! Weights of a product on a GPU, in the order that its kernels read.

use cudarc::driver::CudaFunction;
use roofline_core::Format;

use super::{Kernels, Memory};
use crate::{
    Error, Result,
    cuda::{
        backend::{Argument, Launch, launch},
        compiler::Architecture,
        gemm_packed::{MATRICES, OLDEST, Tiled},
        gemv_packed::{STEP, Stored, TILE},
        gpu::Recipe,
    },
};

const SOURCE: &str = concat!(
    include_str!("../../../kernels/common.cuh"),
    include_str!("../../../kernels/packed.cuh"),
    include_str!("../../../kernels/pack.cu")
);
const THREADS: usize = 256;

/// Rows of weights as files have them: what [`crate::cpu::Tensor`] describes. Where there are fewer than the matrix has, they
/// repeat.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// How numbers are stored.
    pub format: Format,
    /// Rows that are there.
    pub rows: usize,
    /// Elements, bit-packed, row by row.
    pub codes: &'a [u8],
    /// Scales, in the order of their blocks.
    pub scales: &'a [u8],
    /// Zero points, in the order of their blocks.
    pub zeros: &'a [u8],
    /// What there is once per tensor.
    pub tensor: &'a [u8],
}

/// In how many orders weights are kept: each costs their bytes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Orders {
    /// That of products of few rows.
    One,
    /// That of many rows beside it.
    Two,
    /// Of 16-bit numbers also the one between: plain rows are for cuBLASLt.
    All,
}

/// The only architecture with products of many rows of 8 bit on both sides, but for what cuBLASLt has of INT8.
const BYTES: Architecture = Architecture { major: 9, minor: 0 };

/// Rows of chosen experts up to which each is a product of its own, in one kernel; beyond, tokens are sorted by expert.
pub const FEW_VISITS: usize = 128;

/// A matrix, or one for each of several experts.
pub struct Matrix {
    /// Rows: outputs of the product.
    pub n: usize,
    /// Columns: its inputs.
    pub k: usize,
    /// Whether tiles of its first half and of its second take turns: a gate, and what it multiplies.
    pub turns: bool,
    /// How many there are.
    pub experts: usize,
    pub(super) packed: Option<Packed>,
    /// Rows of 16-bit numbers.
    pub(super) plain: Option<Memory>,
    pub(super) tiled: Option<Tiles>,
    /// What is of 8 bit on both sides, as many rows read it.
    pub(super) narrow: Option<Narrow>,
}

/// Rows of 8-bit numbers, where inputs are of 8 bit as well, with FP32 scales.
pub(super) struct Narrow {
    pub(super) fp8: bool,
    pub(super) rows: Memory,
    pub(super) scales: Memory,
}

/// As `kernels/gemv_packed.cu` reads it.
pub(super) struct Packed {
    pub(super) stored: Stored,
    pub(super) weights: Memory,
    pub(super) scales: Memory,
    pub(super) zeros: Memory,
    /// Bytes of one expert in each of them.
    pub(super) strides: [usize; 3],
    /// What sums are multiplied with at last.
    pub(super) tensor: f32,
}

/// As `kernels/gemm_parts.cuh` reads it.
pub(super) struct Tiles {
    pub(super) stored: Stored,
    pub(super) weights: Memory,
    /// BF16, of rows, where there are such.
    pub(super) scales: Memory,
    /// What sums are multiplied with at last.
    pub(super) tensor: f32,
}

impl Matrix {
    /// Whether kernels read weights of this format and width as they are stored, beside inputs of `inputs`.
    pub fn packs(format: Format, inputs: Format, columns: usize) -> bool {
        columns.is_multiple_of(STEP) && Stored::of(format, inputs).is_some()
    }

    /// Whether a GPU multiplies 8-bit inputs of this format by as many rows as there may be: those of FP8 have a scale each,
    /// which cuBLASLt takes on 9.0 only.
    pub fn narrows_on(architecture: Architecture, inputs: Format) -> bool {
        inputs != Format::FP8 || architecture == BYTES
    }

    /// Bytes of `n` rows of `k` numbers in [one order](Orders::One), stored in `format` and multiplied by `inputs`; what no kernel
    /// reads so is of 16 bit there. Where inputs are of 8 bit, [plain rows](Self::rows_room) are there besides.
    pub fn room(format: Option<Format>, inputs: Format, (n, k): (usize, usize)) -> u64 {
        let own = format.filter(|format| Self::packs(*format, inputs, k)).and_then(|format| Stored::of(format, inputs));
        let stored = own.or_else(|| k.is_multiple_of(STEP).then_some(Stored::Sixteen));
        let Some(stored) = stored else { return 2 * n as u64 * k as u64 };
        sizes(stored, n.div_ceil(TILE), k.div_ceil(STEP)).iter().sum::<usize>() as u64
    }

    /// Bytes of as many rows of 8-bit numbers, with their scales in FP32, which cuBLASLt reads.
    pub fn rows_room((n, k): (usize, usize)) -> u64 {
        n as u64 * (k as u64 + 4)
    }

    /// `n` rows of `k` numbers, one source for each expert.
    pub fn new(
        kernels: &Kernels<'_>,
        (n, k): (usize, usize),
        sources: &[Source<'_>],
        inputs: Option<Format>,
        (turns, orders): (bool, Orders),
    ) -> Result<Self> {
        let first = sources.first().ok_or_else(|| unsupported("a matrix of nothing".to_owned()))?;
        let values = if kernels.half { Format::FP16 } else { Format::BF16 };
        let packs = Self::packs(first.format, inputs.unwrap_or(values), k);
        let sixteen = first.format == values;
        if !packs && !sixteen {
            return Err(unsupported(format!("no kernel reads {} rows of {k} numbers", first.format)));
        }
        if sources.iter().any(|source| source.tensor != first.tensor) {
            return Err(unsupported("experts with scales of their own for a whole tensor".to_owned()));
        }
        let mut made =
            Self { n, k, turns, experts: sources.len(), packed: None, plain: None, tiled: None, narrow: None };
        let stored = Stored::of(first.format, inputs.unwrap_or(values)).filter(|_| packs);
        // cuBLASLt multiplies one matrix of 16-bit numbers by many rows, but not those of many experts at once. Experts that
        // there is room for only once have the order of many rows, which few can do with.
        let one = sources.len() == 1;
        let tiled = match (one, sixteen) {
            (true, true) => Orders::All,
            (true, false) => Orders::Two,
            (false, _) => Orders::One,
        };
        if let Some(stored) = stored.filter(|_| orders >= tiled) {
            made.tiled = made.tile(kernels, stored, sources)?;
        }
        let both = one || orders >= Orders::Two || made.tiled.is_none();
        if let Some(stored) = stored.filter(|_| both) {
            // Tensor units that are asked warp by warp widen FP8 themselves, in more instructions than kernels of few rows need.
            let stored = if stored == Stored::BothFp8 { Stored::Fp8 } else { stored };
            made.packed = Some(made.pack(kernels, stored, sources)?);
        }
        if let Some(stored) = stored.filter(|stored| stored.bytes()) {
            let (rows, scales) = (made.repeat(kernels, sources, 1)?, made.row_scales(kernels, sources)?);
            made.narrow = Some(Narrow { fp8: stored == Stored::BothFp8, rows, scales });
        }
        if sixteen && (one || made.tiled.is_none()) && (orders >= Orders::Two || !packs) {
            made.plain = Some(made.repeat(kernels, sources, 2)?);
        }
        Ok(made)
    }

    fn tiles(&self) -> usize {
        if self.turns { 2 * (self.n / 2).div_ceil(TILE) } else { self.n.div_ceil(TILE) }
    }

    fn steps(&self) -> usize {
        self.k.div_ceil(STEP)
    }

    /// Bytes on the GPU.
    pub fn bytes(&self) -> u64 {
        let packed =
            self.packed.iter().map(|packed| packed.weights.bytes() + packed.scales.bytes() + packed.zeros.bytes());
        let tiled = self.tiled.as_ref().map_or(0, |own| own.weights.bytes());
        let narrow = tiled + self.narrow.as_ref().map_or(0, |own| own.rows.bytes());
        (packed.sum::<usize>() + self.plain.as_ref().map_or(0, Memory::bytes) + narrow) as u64
    }

    fn functions(&self, kernels: &Kernels<'_>, stored: Stored, names: &[&'static str]) -> Result<Vec<CudaFunction>> {
        let recipes: Vec<Recipe> = names.iter().map(|name| recipe(stored, kernels.half, self.turns, name)).collect();
        kernels.gpu.functions(&recipes)
    }

    fn pack(&self, kernels: &Kernels<'_>, stored: Stored, sources: &[Source<'_>]) -> Result<Packed> {
        let gpu = kernels.gpu;
        let format = sources[0].format;
        let functions = self.functions(kernels, stored, &["pack_codes", "pack_scales"])?;
        let (tiles, steps) = (self.tiles(), self.steps());
        let groups = format.block().map_or(1, |block| self.k.div_ceil(block as usize));
        let strides = sizes(stored, tiles, steps);
        let experts = sources.len();
        let packed = Packed {
            stored,
            weights: Memory::new(gpu, experts * strides[0])?,
            scales: Memory::new(gpu, experts * strides[1])?,
            zeros: Memory::new(gpu, experts * strides[2])?,
            strides,
            tensor: stored.tensor_factor(sources[0].tensor, kernels.half),
        };
        let integer = |value: usize| Argument::Integer(value as i32);
        for (at, source) in sources.iter().enumerate() {
            let codes = Memory::of(gpu, source.codes)?;
            let (scales, zeros) = (Memory::of(gpu, source.scales)?, Memory::of(gpu, source.zeros)?);
            let place = |memory: &Memory, part: usize| Argument::Address(memory.at(at * strides[part]));
            let blocks = |threads: usize| Launch {
                blocks: threads.div_ceil(THREADS) as u32,
                threads: THREADS as u32,
                shared: 0,
            };
            let address = |memory: &Memory| Argument::Address(memory.address());
            let shape = [integer(source.rows), integer(tiles), integer(steps)];
            let arguments =
                [&[address(&codes), place(&packed.weights, 0), integer(self.n), integer(self.k)][..], &shape].concat();
            launch(gpu, &functions[0], blocks(tiles * steps * 32), &arguments)?;
            if strides[1] > 0 {
                let places = [address(&scales), address(&zeros), place(&packed.scales, 1), place(&packed.zeros, 2)];
                let arguments = [&places[..], &[integer(self.n), integer(groups)], &shape].concat();
                launch(gpu, &functions[1], blocks(tiles * steps), &arguments)?;
            }
            // What was sent is no longer needed when this is done.
            gpu.wait()?;
        }
        Ok(packed)
    }

    /// The order of products of more rows, beside that of few; none where there is no such kernel.
    fn tile(&self, kernels: &Kernels<'_>, stored: Stored, sources: &[Source<'_>]) -> Result<Option<Tiles>> {
        let gpu = kernels.gpu;
        let sixteen = stored == Stored::Sixteen;
        let (n, k) = (self.n, self.k);
        if !tiles_on(gpu.architecture, stored, kernels.half, k, sources.len()) {
            return Ok(None);
        }
        let shape = Tiled { stored, half: kernels.half, m: 64, n, k, matrices: sources.len() };
        let (tiles, units) = (n.div_ceil(TILE).next_multiple_of(4), shape.units());
        let groups = sources[0].format.block().map_or(1, |block| k.div_ceil(block as usize));
        let function = gpu.function(&recipe(stored, kernels.half, false, "pack_tiled"))?;
        let out = Memory::new(gpu, sources.len() * shape.matrix_bytes())?;
        let mut rows = Vec::new();
        for (at, source) in sources.iter().enumerate() {
            let parts = [source.codes, source.scales, source.zeros];
            let parts = parts.into_iter().map(|part| Memory::of(gpu, part)).collect::<Result<Vec<Memory>>>()?;
            let mut arguments: Vec<Argument> = parts.iter().map(|part| Argument::Address(part.address())).collect();
            arguments.push(Argument::Address(out.at(at * shape.matrix_bytes())));
            let integer = |value: usize| Argument::Integer(value as i32);
            arguments.extend([n, k, groups, source.rows, tiles, units].map(integer));
            let blocks = (tiles * units * 32).div_ceil(THREADS) as u32;
            launch(gpu, &function, Launch { blocks, threads: THREADS as u32, shared: 0 }, &arguments)?;
            // What was sent is no longer needed when this is done.
            gpu.wait()?;
            if stored.group() == 0 && !sixteen {
                rows.extend(source.scales.iter().copied().cycle().take(2 * n));
            }
        }
        rows.resize(rows.len().max(16), 0);
        let (scales, tensor) = (Memory::of(gpu, &rows)?, stored.tensor_factor(sources[0].tensor, kernels.half));
        Ok(Some(Tiles { stored, weights: out, scales, tensor }))
    }

    /// All rows, where fewer were given.
    fn repeat(&self, kernels: &Kernels<'_>, sources: &[Source<'_>], bytes: usize) -> Result<Memory> {
        let row = self.k * bytes;
        let mut all = Memory::new(kernels.gpu, sources.len() * self.n * row)?;
        for (expert, source) in sources.iter().enumerate() {
            let start = expert * self.n * row;
            for from in (0..self.n).step_by(source.rows.max(1)) {
                let count = source.rows.min(self.n - from) * row;
                all.write(kernels.gpu, start + from * row, &source.codes[..count])?;
            }
        }
        kernels.gpu.wait()?;
        Ok(all)
    }

    /// FP32 scales of all rows.
    fn row_scales(&self, kernels: &Kernels<'_>, sources: &[Source<'_>]) -> Result<Memory> {
        let scale = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        let of =
            |source: &Source<'_>| source.scales.as_chunks::<2>().0.iter().map(scale).cycle().take(self.n).collect();
        Memory::of_floats(
            kernels.gpu,
            &sources.iter().flat_map(|source| -> Vec<f32> { of(source) }).collect::<Vec<f32>>(),
        )
    }

    /// Whether inputs of its product are of 8 bit.
    pub fn narrows(&self) -> bool {
        self.narrow.is_some()
    }

    /// Whether rows that are sorted by expert have a kernel.
    pub fn sorts(&self) -> bool {
        self.tiled.is_some()
    }

    /// Whether `visits` rows of the experts of `all` are sorted by them: many are where there are kernels for that, and few only
    /// where there are none for rows as they come.
    pub fn sort_visits<'m>(all: impl Iterator<Item = &'m Self>, visits: usize) -> bool {
        let (mut sorts, mut chooses) = (true, true);
        for matrix in all {
            (sorts, chooses) = (sorts && matrix.sorts(), chooses && matrix.chooses());
        }
        sorts && (visits > FEW_VISITS || !chooses)
    }

    /// Whether rows that are sorted by expert have a kernel for weights of this format and width in [two orders](Orders::Two),
    /// beside inputs of `inputs`.
    pub(in crate::cuda) fn sorts_on(
        architecture: Architecture,
        (format, inputs): (Format, Format),
        columns: usize,
        experts: usize,
    ) -> bool {
        let stored = Stored::of(format, inputs).filter(|_| Self::packs(format, inputs, columns));
        stored.is_some_and(|stored| tiles_on(architecture, stored, inputs == Format::FP16, columns, experts))
    }

    /// Whether rows of chosen experts, one by one, have a kernel.
    pub fn chooses(&self) -> bool {
        self.packed.is_some() || self.plain.is_some()
    }

    /// Whether rows of 16-bit numbers are there.
    pub fn has_rows(&self) -> bool {
        self.plain.is_some()
    }

    /// Bytes that rows of 16-bit numbers take, of one expert.
    pub fn plain_bytes(&self) -> usize {
        self.n * self.k * 2
    }

    /// Rows of 16-bit numbers of an expert: kept ones, or made in `scratch`.
    pub(super) fn rows(&self, kernels: &Kernels<'_>, expert: usize, scratch: &Memory) -> Result<u64> {
        if let Some(plain) = &self.plain {
            return Ok(plain.at(expert * self.plain_bytes()));
        }
        let packed = self.packed.as_ref().ok_or_else(|| unsupported("a matrix without weights".to_owned()))?;
        if scratch.bytes() < self.plain_bytes() {
            return Err(unsupported("too little room to widen a matrix".to_owned()));
        }
        let function = self.functions(kernels, packed.stored, &["unpack"])?.remove(0);
        let (tiles, steps) = (self.tiles(), self.steps());
        let integer = |value: usize| Argument::Integer(value as i32);
        let place = |memory: &Memory, part: usize| Argument::Address(memory.at(expert * packed.strides[part]));
        let arguments = [
            place(&packed.weights, 0),
            place(&packed.scales, 1),
            place(&packed.zeros, 2),
            Argument::Address(scratch.address()),
            integer(self.n),
            integer(self.k),
            integer(tiles),
            integer(steps),
            Argument::Real(packed.tensor),
        ];
        let blocks = (tiles * steps * 32).div_ceil(THREADS) as u32;
        launch(kernels.gpu, &function, Launch { blocks, threads: THREADS as u32, shared: 0 }, &arguments)?;
        Ok(scratch.address())
    }
}

/// Whether products of many rows have a kernel of ours, for each of so many matrices.
fn tiles_on(architecture: Architecture, stored: Stored, half: bool, columns: usize, matrices: usize) -> bool {
    // Rows of codes are whole units of the copy engine.
    let codes = architecture == BYTES && columns.is_multiple_of(2 * STEP);
    let fits = stored == Stored::Sixteen || if stored.bytes() { codes } else { !half };
    fits && matrices <= MATRICES && architecture >= OLDEST
}

/// Bytes of weights, scales and zero points.
fn sizes(stored: Stored, tiles: usize, steps: usize) -> [usize; 3] {
    let weights = tiles * steps * TILE * STEP * stored.bits() / 8;
    let groups = |group: i64| match group {
        128 => steps.div_ceil(2),
        64 => steps,
        _ => 2 * steps,
    };
    let (scales, zeros) = match stored {
        Stored::Sixteen => (0, 0),
        Stored::Int4(group) => (tiles * groups(group) * 32, 0),
        Stored::Int4Zero(group) => (tiles * groups(group) * 32, tiles * groups(group) * 8),
        Stored::Nf4 | Stored::Nvfp4 => (tiles * steps * 64, 0),
        Stored::Mxfp4 => (tiles * steps * 32, 0),
        Stored::Int8 | Stored::Fp8 | Stored::BothInt8 | Stored::BothFp8 => (tiles * TILE * 2, 0),
    };
    [weights, scales, zeros]
}

fn recipe(stored: Stored, half: bool, turns: bool, function: &'static str) -> Recipe {
    let mut defines = stored.kind().defines("STORED");
    defines.extend([("GROUP", stored.group()), ("HALF", i64::from(half)), ("TURNS", i64::from(turns))]);
    Recipe { source: SOURCE, function, defines, shared: 0 }
}

pub(super) fn sources() -> Vec<(String, Recipe)> {
    let stored = [
        Stored::Sixteen,
        Stored::Int8,
        Stored::Fp8,
        Stored::Int4(128),
        Stored::Int4Zero(32),
        Stored::Nf4,
        Stored::Mxfp4,
        Stored::Nvfp4,
    ];
    let of = |(at, stored): (usize, Stored)| {
        (format!("pack {stored:?}"), recipe(stored, at % 2 == 1, at % 2 == 0, "unpack"))
    };
    let bytes = ("pack BothInt8".to_owned(), recipe(Stored::BothInt8, false, false, "pack_tiled"));
    stored.into_iter().enumerate().map(of).chain([bytes]).collect()
}

pub(super) fn unsupported(reason: String) -> Error {
    Error::Unsupported { backend: "cuda", reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 64 rows of 128 numbers: 16 bit where no kernel reads them, and twice where both sides are of 8 bit.
    #[test]
    fn a_matrix_takes_what_its_kernels_read() {
        let room = |name: &str, inputs: Format, k| Matrix::room(name.parse().ok(), inputs, (64, k));
        assert_eq!(room("bf16", Format::BF16, 128), 64 * 256);
        assert_eq!(room("q4_k", Format::BF16, 128), 64 * 256);
        assert_eq!(room("fp32", Format::BF16, 128), 64 * 256);
        assert_eq!(Matrix::room(None, Format::FP16, (64, 128)), 64 * 256);
        // A scale of 16 bit for each row, or for each group.
        assert_eq!(room("int8", Format::BF16, 128), 64 * (128 + 2));
        assert_eq!(room("int4-g128", Format::BF16, 128), 64 * (64 + 2));
        assert_eq!((room("int8", Format::INT8, 128), Matrix::rows_room((64, 128))), (64 * (128 + 2), 64 * (128 + 4)));
        // Rows that are no whole steps lie as they are, those that fill no tile are filled up.
        assert_eq!(room("int8", Format::BF16, 60), 64 * 120);
        assert_eq!(Matrix::room(Some(Format::BF16), Format::BF16, (63, 128)), 64 * 256);
    }

    /// INT8 is scaled behind the product; FP8 by the library, where that can.
    #[test]
    fn fp8_inputs_are_of_one_architecture() {
        let on = |major, minor, inputs| Matrix::narrows_on(Architecture { major, minor }, inputs);
        assert!(on(9, 0, Format::FP8));
        for (major, minor) in [(8, 0), (8, 9), (10, 0), (12, 0)] {
            assert!(!on(major, minor, Format::FP8) && on(major, minor, Format::INT8), "{major}.{minor}");
        }
    }
}
