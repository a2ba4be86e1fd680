//! Weights of a product on a GPU, in the order that its kernels read.

use cudarc::driver::CudaFunction;
use roofline_core::Format;

use super::{Kernels, Memory};
use crate::{
    Error, Result,
    cuda::{
        backend::{Argument, Launch, launch},
        gemm_packed::{OLDEST, Tiled},
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
    /// As `kernels/gemm_parts.cuh` has it, with BF16 scales of rows where there are such.
    pub(super) tiled: Option<[Memory; 2]>,
    /// Rows of 8-bit numbers, where inputs are of 8 bit as well, with FP32 scales.
    pub(super) narrow: Option<[Memory; 2]>,
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

impl Matrix {
    /// Whether kernels read weights of this format and width as they are stored, beside inputs of `inputs`.
    pub fn packs(format: Format, inputs: Format, columns: usize) -> bool {
        columns.is_multiple_of(STEP) && Stored::of(format, inputs).is_some()
    }

    /// `n` rows of `k` numbers, one source for each expert. `plain` says whether rows of 16-bit numbers, which products of
    /// many rows read, are kept beside the order of products of few.
    pub fn new(
        kernels: &Kernels<'_>,
        (n, k): (usize, usize),
        sources: &[Source<'_>],
        inputs: Option<Format>,
        (turns, plain): (bool, bool),
    ) -> Result<Self> {
        let first = sources.first().ok_or_else(|| unsupported("a matrix of nothing".to_owned()))?;
        let values = if kernels.half { Format::FP16 } else { Format::BF16 };
        let packs = Self::packs(first.format, inputs.unwrap_or(values), k);
        let sixteen = first.format == values;
        if !packs && !sixteen {
            return Err(unsupported(format!("no kernel reads {} rows of {k} numbers", first.format)));
        }
        let mut made =
            Self { n, k, turns, experts: sources.len(), packed: None, plain: None, tiled: None, narrow: None };
        if packs {
            made.packed = Some(made.pack(kernels, inputs.unwrap_or(values), sources)?);
        }
        if made.packed.as_ref().is_some_and(|packed| packed.stored.bytes()) {
            made.narrow = Some([made.repeat(kernels, sources, 1)?, made.row_scales(kernels, sources)?]);
        }
        if plain {
            made.tiled = made.tile(kernels, sources)?;
        }
        if sixteen && (plain || !packs) {
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
        let tiled = self.tiled.as_ref().map_or(0, |[own, _]| own.bytes());
        let narrow = tiled + self.narrow.as_ref().map_or(0, |[codes, _]| codes.bytes());
        (packed.sum::<usize>() + self.plain.as_ref().map_or(0, Memory::bytes) + narrow) as u64
    }

    fn functions(&self, kernels: &Kernels<'_>, stored: Stored, names: &[&'static str]) -> Result<Vec<CudaFunction>> {
        let recipes: Vec<Recipe> = names.iter().map(|name| recipe(stored, kernels.half, self.turns, name)).collect();
        kernels.gpu.functions(&recipes)
    }

    fn pack(&self, kernels: &Kernels<'_>, inputs: Format, sources: &[Source<'_>]) -> Result<Packed> {
        let gpu = kernels.gpu;
        let format = sources[0].format;
        let stored = Stored::of(format, inputs).ok_or_else(|| unsupported(format!("no kernel reads {format}")))?;
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
            if source.tensor != sources[0].tensor {
                return Err(unsupported("experts with scales of their own for a whole tensor".to_owned()));
            }
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
    fn tile(&self, kernels: &Kernels<'_>, sources: &[Source<'_>]) -> Result<Option<[Memory; 2]>> {
        let gpu = kernels.gpu;
        let ([source], Some(packed)) = (sources, &self.packed) else { return Ok(None) };
        let fits = packed.stored != Stored::Sixteen && !packed.stored.bytes() && !kernels.half;
        if !fits || gpu.architecture < OLDEST {
            return Ok(None);
        }
        let shape = Tiled { stored: packed.stored, half: kernels.half, m: 64, n: self.n, k: self.k };
        let (tiles, units) = (self.n.div_ceil(TILE).next_multiple_of(4), shape.units());
        let groups = source.format.block().map_or(1, |block| self.k.div_ceil(block as usize));
        let function = gpu.function(&recipe(packed.stored, kernels.half, false, "pack_tiled"))?;
        let out = Memory::new(gpu, tiles * units * shape.tile_bytes())?;
        let parts = [source.codes, source.scales, source.zeros];
        let parts = parts.into_iter().map(|part| Memory::of(gpu, part)).collect::<Result<Vec<Memory>>>()?;
        let integer = |value: usize| Argument::Integer(value as i32);
        let mut arguments: Vec<Argument> = parts.iter().map(|part| Argument::Address(part.address())).collect();
        arguments.push(Argument::Address(out.address()));
        arguments.extend([self.n, self.k, groups, source.rows, tiles, units].map(integer));
        let blocks = (tiles * units * 32).div_ceil(THREADS) as u32;
        launch(gpu, &function, Launch { blocks, threads: THREADS as u32, shared: 0 }, &arguments)?;
        gpu.wait()?;
        let rows: Vec<u8> = if packed.stored.group() == 0 {
            source.scales.iter().copied().cycle().take(2 * self.n).collect()
        } else {
            vec![0; 16]
        };
        Ok(Some([out, Memory::of(gpu, &rows)?]))
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
    stored.into_iter().enumerate().map(of).collect()
}

pub(super) fn unsupported(reason: String) -> Error {
    Error::Unsupported { backend: "cuda", reason }
}
