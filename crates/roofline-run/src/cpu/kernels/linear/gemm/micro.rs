//! Micro-kernels: a few packed rows of `W` times a panel of `x`, in registers.
//!
//! `sums[row][lane] += sum over steps of left[row][step] * right[step][lane]`, where a step is a dword (see `operand`):
//! the row's dword is broadcast, the lanes are rows of `x`.

use roofline_core::Math;

use super::{
    BLOCK_ROWS,
    operand::{COLUMNS_PITCH, Operand, PITCH, SKEW, STEPS, TILE_STEPS},
};
use roofline_isa::{Base, Isa, Level, Vector};

/// Arguments of a micro-kernel.
pub(super) struct Tile {
    /// Packed rows (see [`Layout`]).
    pub(super) left: *const u8,
    /// `steps` times as many dwords as there are lanes; for tiles, 16 steps of 16 lanes, then of the next 16.
    pub(super) right: *const u8,
    /// A multiple of the depth of a tile.
    pub(super) steps: usize,
    /// Sums, FP32 or INT32; for tiles, four of them together, side by side first.
    pub(super) sums: *mut f32,
    /// Elements from one row of sums to the next, but for tiles.
    pub(super) pitch: usize,
    /// Whether sums start here rather than continue.
    pub(super) first: bool,
}

/// How packed rows of `W` lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One after the other, [`PITCH`] bytes apart.
    Rows,
    /// The rows of one call side by side: of every step a cache line, so that one stream feeds the broadcasts.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Columns,
    /// Of 32 rows, two tiles of 16 rows by 64 bytes, then the next 64 bytes. Panels and sums are cut to tiles, too: each is
    /// then a kilobyte that is read from its start to its end.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    Tiles,
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
    pub(super) layout: Layout,
    /// The caller makes sure of the instructions, and with tiles, of their configuration.
    pub(super) kernel: unsafe fn(&Tile),
    pub(super) unit: &'static str,
    pub(super) math: Math,
}

impl Micro {
    /// Dwords in a block along `k`.
    pub(super) const fn steps(&self) -> usize {
        match self.layout {
            Layout::Rows | Layout::Columns => STEPS,
            Layout::Tiles => TILE_STEPS,
        }
    }

    /// Bytes that the packed rows of one call take.
    pub(super) const fn group_bytes(&self) -> usize {
        match self.layout {
            Layout::Rows => self.rows * PITCH,
            Layout::Columns => STEPS * COLUMNS_PITCH,
            Layout::Tiles => self.rows * 4 * TILE_STEPS,
        }
    }

    /// Rows of `W` in a block, where a thread has `rows`: blocks of equal size, rather than full ones and a remainder.
    pub(super) const fn piece(&self, rows: usize) -> usize {
        let most = BLOCK_ROWS / self.rows * self.rows;
        rows.div_ceil(rows.div_ceil(most)).next_multiple_of(self.rows)
    }

    /// Where the sums of a row and a lane are among those of a block of `height` rows and `width` lanes, both whole calls,
    /// and how far it is to the next row; in elements. Asked for every sixteenth lane, and every sixteenth row of tiles.
    pub(super) const fn sums_at(&self, (height, width): (usize, usize), row: usize, lane: usize) -> (usize, usize) {
        match self.layout {
            Layout::Rows | Layout::Columns => (row * (width + SKEW) + lane, width + SKEW),
            Layout::Tiles => {
                let call = lane / 32 * (height / 32) + row / 32;
                (call * 1024 + row % 32 / 16 * 512 + lane % 32 / 16 * 256, 16)
            }
        }
    }

    /// The fastest kernel for `math` among those that this processor has; BF16 products without a unit for them, and FP16
    /// ones, run in FP32.
    pub(super) fn choose(isa: Isa, math: Math) -> Self {
        match math {
            Math::Int8 | Math::Int8Dp4a => Self::integers(isa),
            Math::Bf16 => Self::bf16(isa).unwrap_or_else(|| Self::fp32(isa)),
            _ => Self::fp32(isa),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn bf16(isa: Isa) -> Option<Self> {
        use Operand::Bf16;
        let math = Math::Bf16;
        if isa.has_tiles() {
            let kernel = super::amx::bf16;
            return Some(Self {
                rows: 32,
                lanes: 32,
                left: Bf16,
                right: Bf16,
                kernel,
                layout: Layout::Tiles,
                unit: "amx",
                math,
            });
        }
        let kernel = super::avx512::bf16;
        let rows = super::avx512::ROWS;
        isa.has_bf16().then_some(Self {
            rows,
            lanes: 32,
            left: Bf16,
            right: Bf16,
            kernel,
            layout: Layout::Columns,
            unit: "avx512-bf16",
            math,
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn bf16(_: Isa) -> Option<Self> {
        None
    }

    fn integers(isa: Isa) -> Self {
        let math = Math::Int8;
        let (left, right) = (Operand::Int16, Operand::Int16);
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if isa.has_tiles() => {
                let kernel = super::amx::int8;
                Self {
                    rows: 32,
                    lanes: 32,
                    left: Operand::Int8,
                    right: Operand::Int8,
                    kernel,
                    layout: Layout::Tiles,
                    unit: "amx",
                    math,
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if isa.has_dot() => {
                let (rows, kernel) = (super::avx512::ROWS, super::avx512::int8);
                Self {
                    rows,
                    lanes: 32,
                    left: Operand::Offset8,
                    right: Operand::Int8,
                    kernel,
                    layout: Layout::Columns,
                    unit: "avx512-vnni",
                    math,
                }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Avx2 => {
                let (rows, kernel) = (super::avx2::ROWS, super::avx2::int16);
                Self { rows, lanes: 16, left, right, kernel, layout: Layout::Rows, unit: "avx2", math }
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => {
                let kernel = int16::<roofline_isa::V128>;
                Self { rows: 4, lanes: 8, left, right, kernel, layout: Layout::Rows, unit: "neon", math }
            }
            _ => {
                let kernel = int16::<Base>;
                Self { rows: 4, lanes: 8, left, right, kernel, layout: Layout::Rows, unit: "portable", math }
            }
        }
    }

    fn fp32(isa: Isa) -> Self {
        let (left, right, math) = (Operand::Fp32, Operand::Fp32, Math::Fp32);
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                let (rows, kernel) = (super::avx512::ROWS, super::avx512::fp32);
                Self { rows, lanes: 32, left, right, kernel, layout: Layout::Columns, unit: "avx512", math }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                let (rows, kernel) = (super::avx2::ROWS, super::avx2::fp32);
                Self { rows, lanes: 16, left, right, kernel, layout: Layout::Rows, unit: "avx2", math }
            }
            #[cfg(target_arch = "aarch64")]
            Level::Neon => {
                let (rows, kernel) = (super::neon::ROWS, super::neon::fp32);
                Self { rows, lanes: 8, left, right, kernel, layout: Layout::Rows, unit: "neon", math }
            }
            _ => Self { rows: 4, lanes: 8, left, right, kernel: fp32, layout: Layout::Rows, unit: "portable", math },
        }
    }
}

/// 4 x 8 in plain loops.
///
/// # Safety
///
/// Operands and sums are as large as `tile` says, and the sums are the caller's.
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

/// 4 x 8, pairs of INT16.
///
/// # Safety
///
/// The processor has the instructions of `V`; operands and sums are as large as `tile` says, and the sums are the caller's.
unsafe fn int16<V: Vector>(tile: &Tile) {
    // Registers that hold the eight lanes.
    let parts = 8 / V::LANES;
    // SAFETY: packed operands and sums are as large as the tile says.
    unsafe {
        let mut sums = [[V::no_sums(); 2]; 4];
        for step in 0..tile.steps {
            let mut right = [V::splat32(0); 2];
            for (part, right) in right.iter_mut().enumerate().take(parts) {
                *right = V::bits(tile.right.add(32 * step + part * V::BYTES));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = V::splat32(tile.left.add(row * PITCH).cast::<u32>().add(step).read());
                for (sum, right) in sums.iter_mut().zip(right).take(parts) {
                    *sum = V::multiply16(*sum, left, right);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (part, sum) in sums.iter().enumerate().take(parts) {
                let at = tile.sums.cast::<u8>().add(4 * (row * tile.pitch + part * V::LANES));
                let sum = V::totals(*sum);
                V::store_bits(if tile.first { sum } else { V::add32(sum, V::bits(at)) }, at);
            }
        }
    }
}
