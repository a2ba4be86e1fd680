//! Micro-kernels: a few packed rows of `W` times a panel of `x`, in registers.
//!
//! `sums[row][lane] += sum over steps of left[row][step] * right[step][lane]`, where a step is a dword (see `operand`):
//! the row's dword is broadcast, the lanes are rows of `x`.

use roofline_core::Math;

use super::operand::{Operand, PITCH, STEPS, TILE_STEPS};
use crate::cpu::simd::{Level, Simd};

/// Arguments of a micro-kernel.
pub(super) struct Tile {
    /// Packed rows: [`PITCH`] bytes apart, or for tiles, 16 x 64 bytes together (see `Micro::tiles`).
    pub(super) left: *const u8,
    /// `steps` times as many dwords as there are lanes.
    pub(super) right: *const u8,
    /// A multiple of the depth of a tile.
    pub(super) steps: usize,
    /// Sums, FP32 or INT32.
    pub(super) sums: *mut f32,
    /// Elements from one row of sums to the next.
    pub(super) pitch: usize,
    /// Whether sums start here rather than continue.
    pub(super) first: bool,
}

/// A micro-kernel and what it takes.
#[derive(Clone, Copy)]
pub(super) struct Micro {
    /// Rows of `W` at a time.
    pub(super) rows: usize,
    /// Rows of `x` at a time.
    pub(super) lanes: usize,
    pub(super) left: Operand,
    pub(super) right: Operand,
    /// Whether packed rows are cut to tiles: of 32 rows, two tiles of 16 rows by 64 bytes, then the next 64 bytes.
    pub(super) tiles: bool,
    /// The caller makes sure of the instructions, and with tiles, of their configuration.
    pub(super) kernel: unsafe fn(&Tile),
    pub(super) unit: &'static str,
    pub(super) math: Math,
}

impl Micro {
    /// Dwords in a block along `k`.
    pub(super) const fn steps(&self) -> usize {
        if self.tiles { TILE_STEPS } else { STEPS }
    }

    /// Bytes that a packed row takes.
    pub(super) const fn row_bytes(&self) -> usize {
        if self.tiles { 4 * TILE_STEPS } else { PITCH }
    }

    /// Where the packed row `row` starts among those of a block.
    pub(super) const fn row_start(&self, row: usize) -> usize {
        if self.tiles { row / 32 * (32 * 4 * TILE_STEPS) + row % 32 * 64 } else { row * PITCH }
    }

    /// The fastest kernel for `math` among those that this processor has; BF16 products without a unit for them, and FP16
    /// ones, run in FP32.
    pub(super) fn choose(simd: Simd, math: Math) -> Self {
        match math {
            Math::Int8 | Math::Int8Dp4a => Self::integers(simd),
            Math::Bf16 => Self::bf16(simd).unwrap_or_else(|| Self::fp32(simd)),
            _ => Self::fp32(simd),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn bf16(simd: Simd) -> Option<Self> {
        use Operand::Bf16;
        let math = Math::Bf16;
        if simd.amx {
            let kernel = super::amx::bf16;
            return Some(Self { rows: 32, lanes: 32, left: Bf16, right: Bf16, kernel, tiles: true, unit: "amx", math });
        }
        let kernel = super::avx512::bf16;
        let rows = super::avx512::ROWS;
        simd.bf16.then_some(Self {
            rows,
            lanes: 32,
            left: Bf16,
            right: Bf16,
            kernel,
            tiles: false,
            unit: "avx512-bf16",
            math,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn bf16(_: Simd) -> Option<Self> {
        None
    }

    fn integers(simd: Simd) -> Self {
        let math = Math::Int8;
        let (left, right) = (Operand::Int16, Operand::Int16);
        match simd.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if simd.amx => {
                let kernel = super::amx::int8;
                Self {
                    rows: 32,
                    lanes: 32,
                    left: Operand::Int8,
                    right: Operand::Int8,
                    kernel,
                    tiles: true,
                    unit: "amx",
                    math,
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if simd.vnni => {
                let (rows, kernel) = (super::avx512::ROWS, super::avx512::int8);
                Self {
                    rows,
                    lanes: 32,
                    left: Operand::Offset8,
                    right: Operand::Int8,
                    kernel,
                    tiles: false,
                    unit: "avx512-vnni",
                    math,
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx2 => {
                let (rows, kernel) = (super::avx2::ROWS, super::avx2::int16);
                Self { rows, lanes: 16, left, right, kernel, tiles: false, unit: "avx2", math }
            }
            _ => Self { rows: 4, lanes: 8, left, right, kernel: int16, tiles: false, unit: level(simd), math },
        }
    }

    fn fp32(simd: Simd) -> Self {
        let (left, right, math) = (Operand::Fp32, Operand::Fp32, Math::Fp32);
        match simd.level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                let (rows, kernel) = (super::avx512::ROWS, super::avx512::fp32);
                Self { rows, lanes: 32, left, right, kernel, tiles: false, unit: "avx512", math }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                let (rows, kernel) = (super::avx2::ROWS, super::avx2::fp32);
                Self { rows, lanes: 16, left, right, kernel, tiles: false, unit: "avx2", math }
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => {
                let (rows, kernel) = (super::neon::ROWS, super::neon::fp32);
                Self { rows, lanes: 8, left, right, kernel, tiles: false, unit: "neon", math }
            }
            _ => Self { rows: 4, lanes: 8, left, right, kernel: fp32, tiles: false, unit: level(simd), math },
        }
    }
}

fn level(simd: Simd) -> &'static str {
    if simd.level == Level::Neon { "neon" } else { "portable" }
}

/// 4 x 8 in plain loops.
unsafe fn fp32(tile: &Tile) {
    let mut sums = [[0f32; 8]; 4];
    // SAFETY: packed operands and sums are as large as the tile says.
    unsafe {
        for step in 0..tile.steps {
            let right = tile.right.cast::<[f32; 8]>().add(step).read_unaligned();
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = tile.left.add(row * PITCH).cast::<f32>().add(step).read();
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += left * right;
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (lane, sum) in sums.iter().enumerate() {
                let at = tile.sums.add(row * tile.pitch + lane);
                at.write(if tile.first { *sum } else { at.read() + sum });
            }
        }
    }
}

/// 4 x 8 in plain loops, pairs of INT16.
unsafe fn int16(tile: &Tile) {
    let mut sums = [[0i32; 8]; 4];
    // SAFETY: packed operands and sums are as large as the tile says.
    unsafe {
        for step in 0..tile.steps {
            let right = tile.right.cast::<[[i16; 2]; 8]>().add(step).read_unaligned();
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = tile.left.add(row * PITCH).cast::<[i16; 2]>().add(step).read();
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum += i32::from(left[0]) * i32::from(right[0]) + i32::from(left[1]) * i32::from(right[1]);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (lane, sum) in sums.iter().enumerate() {
                let at = tile.sums.cast::<i32>().add(row * tile.pitch + lane);
                at.write(if tile.first { *sum } else { at.read() + sum });
            }
        }
    }
}
