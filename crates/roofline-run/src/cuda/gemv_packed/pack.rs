//! Weights as `kernels/gemv_packed.cu` reads them.

use super::{STEP, Stored, TILE, Thin};
use crate::cuda::{
    codes::Codes,
    operand::{DISTINCT, Operand, Part},
};

impl Thin {
    /// Weights, scales and zero points as the kernel reads them, of one matrix or of two in turns: a period of [`DISTINCT`]
    /// tiles each, repeated.
    pub(in crate::cuda) fn pack(&self, operands: &[Operand]) -> [Part; 3] {
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
                self.stored.pack_step(codes, Order::Lanes, tile, step, &mut weights);
                let lanes = (Order::Lanes, self.half);
                self.stored.pack_scales(codes, lanes, (tile, step), &mut scales, &mut zeros);
            }
        }
        if matches!(self.stored, Stored::Int8 | Stored::Fp8 | Stored::BothInt8 | Stored::BothFp8) {
            let row = |at: usize| (&codes[at / TILE % codes.len()], at / TILE / codes.len() * TILE + at % TILE);
            let scale = |at: usize| row(at).0.scale(row(at).1, 0, 16) as u16;
            scales = (0..period * TILE).map(scale).flat_map(u16::to_le_bytes).collect();
        }
        [whole(weights), whole(scales), whole(zeros)]
    }
}

/// Which column a number of a lane stands for, within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cuda) enum Order {
    /// Eight side by side, so that a lane reads x in 16 bytes.
    Lanes,
    /// As mma orders them, so that x is taken as it lies.
    Plain,
}

impl Stored {
    /// Appends the weights of a tile in a step.
    pub(in crate::cuda) fn pack_step(
        self,
        codes: &Codes<'_>,
        order: Order,
        tile: usize,
        step: usize,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        out.resize(start + TILE * STEP * self.bits() / 8, 0);
        let words = &mut out[start..];
        // Where a word of a lane is: vectors of 16 bytes, those of a warp side by side.
        let mut put = |vector: usize, lane: usize, word: usize, bits: u32| {
            let at = (vector * 32 + lane) * 16 + word * 4;
            let old = u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
            words[at..at + 4].copy_from_slice(&(old | bits).to_le_bytes());
        };
        for lane in 0..32 {
            let (group, quarter) = (lane / 4, lane % 4);
            if self.bytes() {
                for (at, i) in (0..2).flat_map(|at| (0..4).map(move |i| (at, i))) {
                    let within = match order {
                        Order::Lanes => 16 * quarter + 8 * at + 4 * (i / 2),
                        Order::Plain => 32 * at + 4 * quarter + 16 * (i / 2),
                    };
                    let (row, column) = (tile * TILE + group + 8 * (i % 2), step * STEP + within);
                    let word = (0..4).fold(0, |word, byte| word | codes.at(row, column + byte) << (8 * byte));
                    put(at, lane, i, word);
                }
                continue;
            }
            for (at, i) in (0..4).flat_map(|at| (0..4).map(move |i| (at, i))) {
                let row = tile * TILE + group + 8 * (i % 2);
                let within = match order {
                    Order::Lanes => self.place(at / 2, quarter) + 4 * (at % 2) + 2 * (i / 2),
                    Order::Plain => 16 * at + 2 * quarter + 8 * (i / 2),
                };
                let column = step * STEP + within;
                let pair = [codes.at(row, column), codes.at(row, column + 1)];
                let both = |each: fn(u32, usize) -> u32| each(pair[0], i) | each(pair[1], i) << 16;
                match self {
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

    /// Appends the scales and zero points of the groups that start in a step of a tile.
    pub(in crate::cuda) fn pack_scales(
        self,
        codes: &Codes<'_>,
        (order, half): (Order, bool),
        (tile, step): (usize, usize),
        scales: &mut Vec<u8>,
        zeros: &mut Vec<u8>,
    ) {
        let rows = |group: usize| [tile * TILE + group, tile * TILE + group + 8];
        match self {
            Stored::Int4(size) | Stored::Int4Zero(size) => {
                let zero_points = matches!(self, Stored::Int4Zero(_));
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
                let lift = if half { 0 } else { 62 };
                let scale = |row: usize, group: usize| (codes.scale(row, group, 8) + lift).min(254) as u8;
                for at in 0..8 {
                    scales.extend((0..2).flat_map(|half| rows(at).map(|row| scale(row, 2 * step + half))));
                }
            }
            Stored::Nvfp4 if order == Order::Plain => {
                let four = |row: usize| (0..4).map(move |at| codes.scale(row, 4 * step + at, 8) as u8);
                scales.extend((0..8).flat_map(rows).flat_map(four));
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

#[cfg(test)]
mod tests {
    use roofline_core::Format;

    use super::{super::Activation, *};

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
