//! Three bits for four weights at a time: `IQ3_XXS` in points of 256, `IQ3_S` in points of 512 and with every sign its own.
//!
//! `x = d (2 s + 1) (2 q + 1)` and a sign, with `s` of 4 bits to 32 weights. The signs of eight weights take seven bits in `IQ3_XXS`: a
//! negative one too many is the weight's that matters least. ggml's search: for each 32 weights, scales around that of the largest;
//! for each the nearest points; kept where `(sum w x q)^2 / sum w q^2` grows.
//!
//! The bytes are ggml's but for one case: behind 32 zeros of a block, ggml's `IQ3_S` writes the points and signs that follow in the
//! place of those before them.

use super::{
    Codec, half,
    importance::{mean_square, weigh},
    iq3_grid::{self, Grid, LEVELS, POINT, value},
    lanes::nearest,
};

/// Weights of a block.
const SUPER: usize = 256;
/// Weights that share a scale.
const SUB: usize = 32;
/// Those of a block.
const SUBS: usize = SUPER / SUB;
/// Points of 32 weights.
const POINTS: usize = SUB / POINT;
/// Weights whose signs are in one byte.
const SIGNS: usize = 8;
/// What the largest level stands for.
const LARGEST: f32 = (2 * LEVELS - 1) as f32;

/// What tells the two apart.
struct Kind {
    grid: &'static Grid,
    /// How many scales are tried below and above that of the largest weight, a fifth of a step apart.
    tries: i16,
    /// What is smaller throughout is zero.
    tiny: f32,
    /// Whether the negative signs of eight weights are even in number.
    even: bool,
    /// Whether points that were met are left where the scale is fitted at last.
    keeps: bool,
}

impl Kind {
    fn xxs() -> Self {
        Self { grid: &iq3_grid::XXS, tries: 15, tiny: 1e-8, even: true, keeps: true }
    }

    fn s() -> Self {
        Self { grid: &iq3_grid::S, tries: 9, tiny: f32::MIN_POSITIVE, even: false, keeps: false }
    }
}

/// What 32 weights become.
#[derive(Clone, Copy, Default)]
struct Found {
    scale: f32,
    levels: [[u8; POINT]; POINTS],
    signs: [u8; SUB / SIGNS],
}

/// `sum w x q / sum w q^2`, and `sum w x q`; nothing where no weight counts.
fn fitted(levels: &[[u8; POINT]; POINTS], x: &[f32; SUB], weights: &[f32]) -> Option<(f32, f32, f32)> {
    let (mut cross, mut square) = (0.0, 0.0);
    for ((level, x), w) in levels.as_flattened().iter().zip(x).zip(weights) {
        let q = value(*level);
        cross += w * x * q;
        square += w * q * q;
    }
    (square > 0.0).then(|| (cross / square, cross, square))
}

/// The levels nearest to four magnitudes with that many steps to one.
fn tried(x: &[f32], steps: f32) -> [u8; POINT] {
    let mut levels = [0; POINT];
    for (level, x) in levels.iter_mut().zip(x) {
        *level = nearest(0.5 * (steps * x - 1.0)).clamp(0, LEVELS - 1) as u8;
    }
    levels
}

/// The magnitudes of 32 weights and their signs.
fn apart(kind: &Kind, values: &[f32], weights: &[f32]) -> ([f32; SUB], [u8; SUB / SIGNS]) {
    let (mut x, mut signs) = ([0.0; SUB], [0; SUB / SIGNS]);
    for (run, sign) in signs.iter_mut().enumerate() {
        let own = run * SIGNS..(run + 1) * SIGNS;
        for at in 0..SIGNS {
            let value = values[own.start + at];
            x[own.start + at] = value.abs();
            *sign |= u8::from(value < 0.0) << at;
        }
        if kind.even && sign.count_ones() % 2 == 1 {
            let cost = |at: usize| weights[own.start + at] * values[own.start + at] * values[own.start + at];
            let least = (1..SIGNS).fold(0, |least, at| if cost(at) < cost(least) { at } else { least });
            x[own.start + least] = -x[own.start + least];
            *sign ^= 1 << least;
        }
        if kind.even {
            *sign &= 127;
        }
    }
    (x, signs)
}

/// Searches 32 weights.
fn search(kind: &Kind, values: &[f32], weights: &[f32]) -> Found {
    let (x, mut signs) = apart(kind, values, weights);
    let largest = x.iter().fold(x[0], |largest: f32, x| if *x > largest { *x } else { largest });
    if largest < kind.tiny {
        return Found::default();
    }
    let mut roots = [0.0; SUB];
    for (root, w) in roots.iter_mut().zip(weights) {
        *root = w.sqrt();
    }
    let (mut scale, mut gain) = (largest / LARGEST, 0.0);
    let (mut levels, mut met) = ([[0; POINT]; POINTS], [kind.keeps; POINTS]);
    for step in -kind.tries..=kind.tries {
        let steps = (LARGEST + f32::from(step) * 0.2) / largest;
        let (mut new, mut new_met) = ([[0; POINT]; POINTS], [true; POINTS]);
        for (at, (new, met)) in new.iter_mut().zip(&mut new_met).enumerate() {
            let own = at * POINT..(at + 1) * POINT;
            *new = tried(&x[own.clone()], steps);
            *met = kind.grid.place(*new).is_some();
            if !*met {
                *new = kind.grid.nearest(*new, &x[own.clone()], &roots[own], 1.0 / steps);
            }
        }
        if let Some((fit, cross, square)) = fitted(&new, &x, weights)
            && cross * cross > gain * square
        {
            (scale, gain, levels, met) = (fit, fit * cross, new, new_met);
        }
    }
    if met.contains(&false) && scale > 0.0 {
        let steps = 1.0 / scale;
        for (at, levels) in levels.iter_mut().enumerate().filter(|(at, _)| !(kind.keeps && met[*at])) {
            let own = at * POINT..(at + 1) * POINT;
            *levels = tried(&x[own.clone()], steps);
            if kind.grid.place(*levels).is_none() {
                *levels = kind.grid.nearest(*levels, &x[own.clone()], &roots[own], scale);
            }
        }
        scale = fitted(&levels, &x, weights).map_or(scale, |(fit, ..)| fit);
    }
    if !scale.is_finite() {
        // Sums that overflow: the scale that holds the largest weight.
        scale = largest / LARGEST;
    }
    if scale < 0.0 {
        scale = -scale;
        signs = signs.map(|sign| !sign & if kind.even { 127 } else { 255 });
    }
    Found { scale, levels, signs }
}

/// The scales of a block in whole steps, `2 s + 1` of them, and the step.
fn steps(found: &[Found; SUBS]) -> (f32, [u8; SUBS]) {
    let largest = found.iter().fold(0.0, |largest: f32, found| largest.max(found.scale));
    let step = largest / 31.0;
    let inverse = 1.0 / step;
    (step, found.map(|found| nearest(0.5 * (inverse * found.scale - 1.0)).clamp(0, 15) as u8))
}

/// Calls `write` with what the 32 weights of every block become.
fn blocks<C: Codec>(
    kind: &Kind,
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    write: impl Fn(&[Found; SUBS], &mut [u8]),
) {
    for (at, (x, out)) in row.chunks_exact(SUPER).zip(out.chunks_exact_mut(C::BYTES)).enumerate() {
        let mut weights = [0.0; SUPER];
        match importance {
            Some(importance) => weigh(x, &importance[at * SUPER..][..SUPER], 2.0 * mean_square(x), &mut weights),
            None => weights.iter_mut().zip(x).for_each(|(w, x)| *w = x * x),
        }
        let mut found = [Found::default(); SUBS];
        for (found, (x, weights)) in found.iter_mut().zip(x.chunks_exact(SUB).zip(weights.chunks_exact(SUB))) {
            *found = search(kind, x, weights);
        }
        out.fill(0);
        if found.iter().any(|found| found.scale != 0.0) {
            write(&found, out);
        }
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
    const VALUES: [f32; LEVELS as usize] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

    fn write(found: &[Found; SUBS], out: &mut [u8]) {
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
        blocks::<Self>(&Kind::xxs(), values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        blocks::<Self>(&Kind::xxs(), row, Some(importance), out, Self::write);
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
                    let seven = (all >> (7 * (point / 2)) & 127) as u8;
                    // The eighth sign makes the number of negative ones even.
                    let signs = seven | ((seven.count_ones() % 2) as u8) << 7;
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

    fn write(found: &[Found; SUBS], out: &mut [u8]) {
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
        blocks::<Self>(&Kind::s(), values, None, out, Self::write);
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        blocks::<Self>(&Kind::s(), row, Some(importance), out, Self::write);
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
    use super::*;

    fn back<C: Codec>(values: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0; values.len() / SUPER * C::BYTES];
        C::encode(values, &mut bytes);
        let mut back = vec![1.0; values.len()];
        C::decode(&bytes, &mut back);
        back
    }

    /// `||x - y|| / ||x||`.
    fn error(x: &[f32], y: &[f32]) -> f32 {
        let norm = |of: &mut dyn Iterator<Item = f32>| of.map(|x| x * x).sum::<f32>().sqrt();
        norm(&mut x.iter().zip(y).map(|(x, y)| x - y)) / norm(&mut x.iter().copied())
    }

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
        for back in [back::<Iq3S>(&values), back::<Iq3Xxs>(&values)] {
            assert!(values.iter().zip(&back).all(|(x, y)| x.signum() == y.signum()));
            assert!(error(&values, &back) < 0.15, "{}", error(&values, &back));
        }
    }

    #[test]
    fn zeros_are_zeros_and_leave_the_rest_in_its_place() {
        assert!(back::<Iq3S>(&[0.0; SUPER]).iter().all(|x| *x == 0.0));
        assert!(back::<Iq3Xxs>(&[0.0; SUPER]).iter().all(|x| *x == 0.0));
        // Behind 32 zeros the others are what they are without.
        let mut values = [0.0; SUPER];
        values[SUB..].iter_mut().enumerate().for_each(|(at, x)| *x = ((at % 7) as f32 - 3.0) * 0.5);
        let back = back::<Iq3S>(&values);
        let error = error(&values[SUB..], &back[SUB..]);
        assert!(error < 0.2, "{error}");
    }
}
