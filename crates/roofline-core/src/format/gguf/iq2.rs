//! Two bits for eight weights at a time: `IQ2_XXS` in points of 256, `IQ2_XS` in points of 512, and `IQ2_S` in points of 1024 and with
//! every sign its own.
//!
//! ggml has no `IQ2_XXS` and no `IQ2_XS` without an importance matrix; here every input then counts the same.

use super::{
    Codec, half,
    iq2_grid::{self, LEVELS, POINT},
    point_search::{Again, Found, Kind, SUPER, Start, eighth, steps},
};

/// What a level stands for: eight times the odd numbers, about.
const VALUES: [f32; LEVELS] = [8.0, 25.0, 43.0];

fn kind(grid: &'static iq2_grid::Grid) -> Kind<POINT, LEVELS> {
    Kind {
        grid,
        tries: 9,
        apart: 0.1,
        tiny: 1e-15,
        even: true,
        start: Start::Largest,
        again: Again::Unmet,
        spread: 1.0,
        plain: |x, mean| (mean + x * x).sqrt(),
    }
}

/// What eight weights stand for.
#[inline(always)]
fn point(d: f32, levels: [u8; POINT], signs: u8, out: &mut [f32]) {
    for (at, (x, level)) in out.iter_mut().zip(levels).enumerate() {
        let value = d * VALUES[usize::from(level)];
        *x = if signs >> at & 1 == 1 { -value } else { value };
    }
}

/// `(s + 1/2) d / 4`.
#[inline(always)]
fn scaled(d: f32, s: u8) -> f32 {
    d * (0.5 + f32::from(s)) * 0.25
}

/// `f16 d`, and for each 32 weights `u8 point[4] | u32 signs and scale`.
#[derive(Clone, Copy, Debug)]
pub struct Iq2Xxs;

impl Iq2Xxs {
    /// Weights that share a scale, and their points.
    const SUB: usize = 32;
    const POINTS: usize = Self::SUB / POINT;

    fn kind() -> Kind<POINT, LEVELS> {
        Kind { tries: 6, start: Start::Whole, again: Again::All, ..kind(&iq2_grid::XXS) }
    }

    fn write(found: &[Found<POINT, { Self::POINTS }>], out: &mut [u8]) {
        let grid = &*iq2_grid::XXS;
        let (step, scales) = steps(found);
        half::write(step, out);
        for ((found, scale), out) in found.iter().zip(scales).zip(out[2..].chunks_exact_mut(8)) {
            for (out, levels) in out.iter_mut().zip(found.levels) {
                *out = grid.place(levels).unwrap_or(0) as u8;
            }
            let signs = found.signs.iter().rev().fold(0, |all, sign| all << 7 | u32::from(*sign));
            out[4..].copy_from_slice(&(signs | u32::from(scale) << 28).to_le_bytes());
        }
    }
}

impl Codec for Iq2Xxs {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 66;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, { Self::POINTS }>(values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, { Self::POINTS }>(row, Some(importance), out, Self::write);
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        let grid = &*iq2_grid::XXS;
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let d = half::read(block);
            for (own, out) in block[2..].chunks_exact(8).zip(out.chunks_exact_mut(Self::SUB)) {
                let all = u32::from_le_bytes([own[4], own[5], own[6], own[7]]);
                let d = scaled(d, (all >> 28) as u8);
                for (at, out) in out.chunks_exact_mut(POINT).enumerate() {
                    point(d, grid.levels(u16::from(own[at])), eighth((all >> (7 * at) & 127) as u8), out);
                }
            }
        }
    }
}

/// Weights that share a scale in the two wider types, and their points.
const SUB: usize = 16;
const POINTS: usize = SUB / POINT;
/// Scales of a block, two to a byte.
const SCALES: usize = SUPER / SUB / 2;

/// Two scales to a byte.
fn pack(scales: &[u8], out: &mut [u8]) {
    for (out, pair) in out.iter_mut().zip(scales.chunks_exact(2)) {
        *out = pair[0] | pair[1] << 4;
    }
}

/// `f16 d | u16 point and signs[32] | u8 scales[8]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq2Xs;

impl Iq2Xs {
    fn kind() -> Kind<POINT, LEVELS> {
        kind(&iq2_grid::XS)
    }

    fn write(found: &[Found<POINT, POINTS>], out: &mut [u8]) {
        let grid = &*iq2_grid::XS;
        let (step, scales) = steps(found);
        half::write(step, out);
        let places = found.iter().flat_map(|found| found.levels.into_iter().zip(found.signs));
        for ((levels, signs), out) in places.zip(out[2..].chunks_exact_mut(2)) {
            out.copy_from_slice(&(grid.place(levels).unwrap_or(0) | u16::from(signs) << 9).to_le_bytes());
        }
        pack(&scales, &mut out[Self::BYTES - SCALES..]);
    }
}

impl Codec for Iq2Xs {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 74;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(row, Some(importance), out, Self::write);
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        let grid = &*iq2_grid::XS;
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let (d, scales) = (half::read(block), &block[Self::BYTES - SCALES..]);
            for (at, (own, out)) in block[2..].chunks_exact(2).zip(out.chunks_exact_mut(POINT)).enumerate() {
                let own = u16::from_le_bytes([own[0], own[1]]);
                let d = scaled(d, scales[at / 4] >> (at / 2 % 2 * 4) & 15);
                point(d, grid.levels(own & 511), eighth((own >> 9) as u8), out);
            }
        }
    }
}

/// `f16 d | u8 point[32] | u8 signs[32] | u8 further bits[8] | u8 scales[8]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq2S;

impl Iq2S {
    /// What ggml found to be better than the scale itself.
    const MORE: f32 = 0.9875;

    /// Where the signs and the ninth and tenth bits begin.
    const SIGNS: usize = 2 + SUPER / POINT;
    const HIGH: usize = Self::SIGNS + SUPER / POINT;

    fn kind() -> Kind<POINT, LEVELS> {
        Kind {
            tiny: 1e-8,
            even: false,
            spread: 2.0,
            // A quarter of twice the mean.
            plain: |x, mean| 0.25 * (2.0 * mean) + x * x,
            ..kind(&iq2_grid::S)
        }
    }

    fn write(found: &[Found<POINT, POINTS>], out: &mut [u8]) {
        let grid = &*iq2_grid::S;
        let (step, scales) = steps(found);
        half::write(step * Self::MORE, out);
        let places = found.iter().flat_map(|found| found.levels.into_iter().zip(found.signs));
        for (at, (levels, signs)) in places.enumerate() {
            let place = grid.place(levels).unwrap_or(0);
            out[2 + at] = place as u8;
            out[Self::SIGNS + at] = signs;
            out[Self::HIGH + at / 4] |= ((place >> 8) as u8) << (at % 4 * 2);
        }
        pack(&scales, &mut out[Self::BYTES - SCALES..]);
    }
}

impl Codec for Iq2S {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 82;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::kind().blocks::<Self, POINTS>(row, Some(importance), out, Self::write);
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        let grid = &*iq2_grid::S;
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let (d, scales) = (half::read(block), &block[Self::BYTES - SCALES..]);
            for (at, out) in out.chunks_exact_mut(POINT).enumerate() {
                let high = block[Self::HIGH + at / 4] >> (at % 4 * 2) & 3;
                let d = scaled(d, scales[at / 4] >> (at / 2 % 2 * 4) & 15);
                let place = u16::from(block[2 + at]) | u16::from(high) << 8;
                point(d, grid.levels(place), block[Self::SIGNS + at], out);
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

    /// Points of all grids come back with their signs, but for what a level stands for and for the factor on the scale. The scales that
    /// `IQ2_XXS` tries are around one of even steps, and further from theirs.
    #[test]
    fn points_come_back() {
        let points = [[0, 0, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]];
        let values: Vec<f32> = (0..SUPER)
            .map(|at| {
                let level: u8 = points[at / POINT % 3][at % POINT];
                // An even number of negative ones to eight.
                let sign = if at % 8 < 2 { -1.0 } else { 1.0 };
                sign * f32::from(2 * level + 1)
            })
            .collect();
        let all = [
            (back(GgufBlock::Iq2Xxs, &values), 0.35),
            (back(GgufBlock::Iq2Xs, &values), 0.15),
            (back(GgufBlock::Iq2S, &values), 0.15),
        ];
        for (back, allowed) in all {
            assert!(values.iter().zip(&back).all(|(x, y)| x.signum() == y.signum()));
            assert!(error(&values, &back) < allowed, "{}", error(&values, &back));
        }
    }

    #[test]
    fn zeros_are_zeros_and_leave_the_rest_in_its_place() {
        let mut values = [0.0; 2 * SUPER];
        values[32..SUPER].iter_mut().enumerate().for_each(|(at, x)| *x = ((at % 7) as f32 - 3.0) * 0.5);
        for back in [back(GgufBlock::Iq2Xxs, &values), back(GgufBlock::Iq2Xs, &values), back(GgufBlock::Iq2S, &values)]
        {
            assert!(back[SUPER..].iter().all(|x| *x == 0.0));
            let error = error(&values[32..SUPER], &back[32..SUPER]);
            assert!(error < 0.35, "{error}");
        }
    }
}
