//! Three bits for four weights at a time: `IQ3_XXS` in points of 256, `IQ3_S` in points of 512 and with every sign its own.
//!
//! The bytes are ggml's but for one case: behind 32 zeros of a block, ggml's `IQ3_S` writes the points and signs that follow in the
//! place of those before them.

use super::{
    Codec, half,
    iq3_grid::{self, LEVELS, POINT},
    point_search::{Again, Found, Kind, SIGNS, SUPER, Start, eighth, steps},
    points::value,
};

/// Weights that share a scale.
const SUB: usize = 32;
/// Those of a block.
const SUBS: usize = SUPER / SUB;
/// Points of 32 weights.
const POINTS: usize = SUB / POINT;

fn kind(grid: &'static iq3_grid::Grid) -> Kind<POINT, LEVELS> {
    Kind {
        grid,
        tries: 15,
        apart: 0.2,
        tiny: 1e-8,
        even: true,
        start: Start::Largest,
        again: Again::Unmet,
        spread: 2.0,
        plain: |x, _| x * x,
    }
}

/// `f16 d | u8 point[64] | u32 signs and scale[8]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq3Xxs;

impl Iq3Xxs {
    /// What ggml found to be better than the scale itself.
    const MORE: f32 = 1.0125;

    /// Where signs and scales begin.
    const SIGNS: usize = 2 + SUPER / POINT;

    /// What a level stands for: four times the odd numbers, but for the last.
    const VALUES: [f32; LEVELS] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

    fn kind() -> Kind<POINT, LEVELS> {
        kind(&iq3_grid::XXS)
    }

    fn write(found: &[Found<POINT, POINTS>], out: &mut [u8]) {
        let grid = &*iq3_grid::XXS;
        let (step, scales) = steps(found);
        half::write(step * Self::MORE, out);
        for (sub, (found, scale)) in found.iter().zip(scales).enumerate() {
            for (at, levels) in found.levels.iter().enumerate() {
                out[2 + sub * POINTS + at] = grid.place(*levels).unwrap_or(0) as u8;
            }
            let signs = found.signs.iter().rev().fold(0, |all, sign| all << 7 | u32::from(*sign));
            let all = signs | u32::from(scale) << 28;
            out[Self::SIGNS + 4 * sub..][..4].copy_from_slice(&all.to_le_bytes());
        }
    }
}

impl Codec for Iq3Xxs {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 98;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(row, Some(importance), out, Self::write);
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        let grid = &*iq3_grid::XXS;
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let d = half::read(block);
            for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
                let at = Self::SIGNS + 4 * sub;
                let all = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
                let d = d * (0.5 + (all >> 28) as f32) * 0.5;
                for (point, out) in out.chunks_exact_mut(POINT).enumerate() {
                    let signs = eighth((all >> (7 * (point / 2)) & 127) as u8);
                    let levels = grid.levels(u16::from(block[2 + sub * POINTS + point]));
                    for (at, (x, level)) in out.iter_mut().zip(levels).enumerate() {
                        let value = d * Self::VALUES[usize::from(level)];
                        *x = if signs >> (point % 2 * POINT + at) & 1 == 1 { -value } else { value };
                    }
                }
            }
        }
    }
}

/// `f16 d | u8 point[64] | u8 ninth bits[8] | u8 signs[32] | u8 scales[4]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq3S;

impl Iq3S {
    /// What ggml found to be better than the scale itself.
    const MORE: f32 = 1.033;

    /// Where the ninth bits, the signs and the scales begin.
    const NINTH: usize = 2 + SUPER / POINT;
    const SIGNS: usize = Self::NINTH + SUBS;
    const SCALES: usize = Self::SIGNS + SUPER / SIGNS;

    fn kind() -> Kind<POINT, LEVELS> {
        Kind { tries: 9, tiny: f32::MIN_POSITIVE, even: false, again: Again::AllOfUnmet, ..kind(&iq3_grid::S) }
    }

    fn write(found: &[Found<POINT, POINTS>], out: &mut [u8]) {
        let grid = &*iq3_grid::S;
        let (step, scales) = steps(found);
        half::write(step * Self::MORE, out);
        for (sub, (found, scale)) in found.iter().zip(scales).enumerate() {
            for (at, levels) in found.levels.iter().enumerate() {
                let place = grid.place(*levels).unwrap_or(0);
                out[2 + sub * POINTS + at] = place as u8;
                out[Self::NINTH + sub] |= ((place >> 8) as u8) << at;
            }
            out[Self::SIGNS + sub * 4..][..4].copy_from_slice(&found.signs);
            out[Self::SCALES + sub / 2] |= scale << (sub % 2 * 4);
        }
    }
}

impl Codec for Iq3S {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 110;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(row, Some(importance), out, Self::write);
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        let grid = &*iq3_grid::S;
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let d = half::read(block);
            for (sub, out) in out.chunks_exact_mut(SUB).enumerate() {
                let d = d * f32::from(1 + 2 * (block[Self::SCALES + sub / 2] >> (sub % 2 * 4) & 15));
                for (point, out) in out.chunks_exact_mut(POINT).enumerate() {
                    let ninth = block[Self::NINTH + sub] >> point & 1;
                    let levels = grid.levels(u16::from(block[2 + sub * POINTS + point]) | u16::from(ninth) << 8);
                    let signs = block[Self::SIGNS + sub * 4 + point / 2];
                    for (at, (x, level)) in out.iter_mut().zip(levels).enumerate() {
                        let value = d * value(level);
                        *x = if signs >> (point % 2 * POINT + at) & 1 == 1 { -value } else { value };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            GgufBlock,
            tests::{back, error},
        },
        *,
    };

    /// Points of the grid come back with their signs, but for what the factors on the scale change.
    #[test]
    fn points_come_back() {
        let levels = [[0u8; 4], [2, 0, 0, 0], [1, 1, 0, 0], [7, 1, 7, 0], [0, 2, 0, 0], [1, 2, 0, 0], [0; 4], [0; 4]];
        let values: Vec<f32> = (0..SUPER)
            .map(|at| {
                let level = levels[at % SUB / POINT][at % POINT];
                // An even number of negative ones to eight.
                if at % SIGNS < 2 { -value(level) } else { value(level) }
            })
            .collect();
        for back in [back(GgufBlock::Iq3S, &values), back(GgufBlock::Iq3Xxs, &values)] {
            assert!(values.iter().zip(&back).all(|(x, y)| x.signum() == y.signum()));
            assert!(error(&values, &back) < 0.15, "{}", error(&values, &back));
        }
    }

    #[test]
    fn zeros_are_zeros_and_leave_the_rest_in_its_place() {
        assert!(back(GgufBlock::Iq3S, &[0.0; SUPER]).iter().all(|x| *x == 0.0));
        assert!(back(GgufBlock::Iq3Xxs, &[0.0; SUPER]).iter().all(|x| *x == 0.0));
        // Behind 32 zeros the others are what they are without.
        let mut values = [0.0; SUPER];
        values[SUB..].iter_mut().enumerate().for_each(|(at, x)| *x = ((at % 7) as f32 - 3.0) * 0.5);
        let back = back(GgufBlock::Iq3S, &values);
        let error = error(&values[SUB..], &back[SUB..]);
        assert!(error < 0.2, "{error}");
    }
}
