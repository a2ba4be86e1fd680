//! Products of more rows with packed weights: which of `kernels/gemm_wgmma.cu` and `kernels/gemm_mma.cu` runs, how its work
//! is divided, how its weights are packed.

mod division;
mod product;

pub(super) use product::{Addresses, Product};

use division::Division;

use super::{
    codes::Codes,
    compiler::Architecture,
    gemv_packed::{Order, STEP, Stored, TILE},
    gpu::Recipe,
    operand::{DISTINCT, Operand, Part},
};

/// Tiles of 16 rows of W that lie side by side: `BLOCK` in the kernels.
const BLOCK: usize = 4;
/// Units that weights are filled up to: whole stages of every division.
const UNITS: usize = 4;
/// The copy engine's tiles start on this many bytes.
const ALIGNED: usize = 1024;

/// Most matrices of a product: `MATRICES` in `kernels/gemm_groups.cuh`.
pub(super) const MATRICES: usize = 512;

/// The oldest architecture these kernels are for: earlier tensor units multiply by halves of what mma takes here.
pub(super) const OLDEST: Architecture = Architecture { major: 8, minor: 0 };

/// A product's kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiled {
    pub(super) stored: Stored,
    /// IEEE half rather than bfloat16.
    pub(super) half: bool,
    /// Rows of x, of all matrices.
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Matrices of W, each with rows of x of its own; up to [`MATRICES`].
    pub(super) matrices: usize,
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

    /// Bytes of weights, scales and zero points of a tile in a unit.
    pub(super) fn tile_bytes(&self) -> usize {
        let scales = match self.stored {
            Stored::Int4(group) => 2048 / group as usize,
            Stored::Int4Zero(group) => 2560 / group as usize,
            Stored::Nf4 | Stored::Nvfp4 => 64,
            Stored::Mxfp4 => 32,
            _ => 0,
        };
        TILE * self.unit() * self.stored.bits() / 8 + scales
    }

    /// Bytes of one matrix with its scales and zero points.
    pub(super) fn matrix_bytes(&self) -> usize {
        self.n.div_ceil(BLOCK * TILE) * BLOCK * self.units() * self.tile_bytes()
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

    /// What sums are multiplied with at last, and what scales are raised by before.
    pub(super) fn factors(&self, operand: &Operand) -> [f32; 2] {
        let lift = self.lift(operand);
        [self.stored.tensor_scale(operand, self.half) / lift, lift]
    }

    /// A power of two that brings the largest scale near one, where scales are rounded to IEEE half, which holds few.
    fn lift(&self, operand: &Operand) -> f32 {
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
        Stored::BothInt8,
    ];
    let mut all = Vec::new();
    let mut add = |tiled: Tiled, division: Division| {
        let Tiled { stored, half, matrices, .. } = tiled;
        let name = format!("tiled {stored:?} half {half} matrices {matrices}{}", division.words());
        all.push((name, tiled.recipe(division, SHARED)));
    };
    for (at, stored) in stored.into_iter().enumerate() {
        // Half of them with the numbers that the other half are without.
        let half = at % 2 == 1;
        let few = Tiled { stored, half, m: 32, n: 4096, k: 4096, matrices: 1 };
        add(few, few.hopper(32)[0]);
        let some = Tiled { m: 64, ..few };
        add(some, some.hopper(64)[0]);
        // Only Hopper multiplies what both are 8 bit here.
        if !stored.bytes() {
            add(some, Division::mma([64, 2, 4, 2], false));
        }
    }
    let tiled = Tiled { stored: Stored::Int4(128), half: false, m: 256, n: 4096, k: 4096, matrices: 1 };
    add(tiled, Division::mma([16, 2, 4, 4], true));
    for m in [16, 128, 256] {
        tiled.hopper(m).into_iter().for_each(|division| add(Tiled { m, ..tiled }, division));
    }
    // Clusters that share a field.
    let near = Tiled { m: 16, n: 8192, k: 8192, ..tiled };
    let hopper = Architecture { major: 9, minor: 0 };
    near.divisions(hopper, 132, SHARED).into_iter().for_each(|division| add(near, division));
    for stored in [Stored::Sixteen, Stored::Mxfp4] {
        let grouped = Tiled { stored, matrices: 32, ..tiled };
        add(grouped, Division::mma([64, 2, 4, 2], false));
        add(grouped, grouped.hopper(64)[0]);
    }
    let gate = Tiled { stored: Stored::Sixteen, m: 32, ..tiled };
    let mut gated = gate.recipe(gate.hopper(32)[0], SHARED);
    gated.defines.push(("GATED", 1));
    all.push(("tiled gate".to_owned(), gated));
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
            let tiled = Tiled { stored, half: false, m: 64, n, k, matrices: 1 };
            let part = tiled.pack(&Operand::new(format, n, k, 1.0, 3).unwrap());
            assert_eq!(part.bytes as f64, n as f64 * k as f64 * bits / 8.0, "{name}");
            // What the kernel reckons with is what was packed.
            assert_eq!(part.bytes, tiled.matrix_bytes(), "{name}");
        }
    }
}
