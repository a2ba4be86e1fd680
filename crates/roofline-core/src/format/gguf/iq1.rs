//! Less than two bits for eight weights at a time, in points of 2048 whose three levels are -1, 0 and 1, moved by an eighth up or down:
//! `IQ1_S` with a scale and a move to 32 weights, `IQ1_M` with a scale to 16 and a move to each eight.
//!
//! `x = d (2 s + 1) (q ± 1/8)`, with `s` of 3 bits. ggml's search: the weights that share a scale in order of size; of all ways to cut
//! that order in three the one whose levels have the largest `(sum w x q)^2 / sum w q^2`; then points that are kept near those levels.
//!
//! No level is zero, so zeros beside other weights become an eighth of their smallest scale or worse: the first point, whose weights are
//! all -1. ggml has no `IQ1_S` without an importance matrix; here every input then counts the same.

use super::{
    Codec, half,
    importance::{mean_square, weigh},
    iq2_grid::{LEVELS, ONE, POINT},
    lanes::nearest,
};

/// Weights of a block.
const SUPER: usize = 256;
/// How far levels are moved.
const MOVE: f32 = 0.125;
/// What levels stand for, moved up and moved down.
const UP: [f32; LEVELS] = [-1.0 + MOVE, MOVE, 1.0 + MOVE];
const DOWN: [f32; LEVELS] = [-1.0 - MOVE, -MOVE, 1.0 - MOVE];
/// Points of weights that share a scale, at most.
const POINTS: usize = 4;
/// Scales of a block, at most.
const RUNS: usize = 16;

/// What weights that share a scale become.
#[derive(Clone, Copy, Default)]
struct Found {
    scale: f32,
    /// Where the points lie among those that are kept.
    places: [u16; POINTS],
    /// Whether they are moved down.
    down: [bool; POINTS],
}

/// A cut of the weights in order of size.
#[derive(Clone, Copy)]
struct Cut {
    scale: f32,
    gain: f32,
    /// How many are below the first, and below the second.
    at: [usize; 2],
    down: [bool; POINTS],
}

impl Cut {
    /// The other where its gain is larger.
    #[inline(always)]
    fn or(best: &mut Option<Self>, cross: f32, square: f32, at: [usize; 2], down: [bool; POINTS]) {
        if square > 0.0 && best.is_none_or(|best| cross * cross > best.gain * square) {
            let scale = cross / square;
            *best = Some(Self { scale, gain: scale * cross, at, down });
        }
    }
}

/// The best cut where all weights are moved alike: `order` has their places in order of size.
fn one_move(order: &[usize], x: &[f32], weights: &[f32]) -> Option<Cut> {
    let count = order.len();
    let mut sums = [(0.0f32, 0.0f32); 33];
    for (at, i) in order.iter().enumerate() {
        let (cross, square) = sums[at];
        sums[at + 1] = (cross + weights[*i] * x[*i], square + weights[*i]);
    }
    let mut best = None;
    for (first, low) in sums[..=count].iter().enumerate() {
        for (second, high) in sums[..=count].iter().enumerate().skip(first) {
            for (values, down) in [(UP, false), (DOWN, true)] {
                let [a, b, c] = values;
                let all = sums[count];
                let cross = low.0 * a + (high.0 - low.0) * b + (all.0 - high.0) * c;
                let square = low.1 * a * a + (high.1 - low.1) * b * b + (all.1 - high.1) * c * c;
                Cut::or(&mut best, cross, square, [first, second], [down; POINTS]);
            }
        }
    }
    best
}

/// The best cut where each half of 16 weights is moved by itself. Levels are one apart, so a sum over three parts is what all would
/// have at the highest level, less two sums from below.
fn two_moves(order: &[usize], x: &[f32], weights: &[f32]) -> Option<Cut> {
    let count = order.len();
    let mut sums = [[(0.0f32, 0.0f32); 17]; 2];
    for (at, i) in order.iter().enumerate() {
        for (half, sums) in sums.iter_mut().enumerate() {
            let (cross, square) = sums[at];
            let own = *i / POINT == half;
            sums[at + 1] = if own { (cross + weights[*i] * x[*i], square + weights[*i]) } else { (cross, square) };
        }
    }
    let mut best = None;
    for first in 0..=count {
        for second in first..=count {
            // Of each half, its sums moved up and moved down.
            let of = sums.map(|sums| {
                let (all, low, high) = (sums[count], sums[first], sums[second]);
                let below = low.0 + high.0;
                [UP, DOWN].map(|[a, b, c]| {
                    let (lower, upper) = (a * a - b * b, b * b - c * c);
                    (all.0 * c - below, all.1 * c * c + low.1 * lower + high.1 * upper)
                })
            });
            for (left, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (cross, square) = (of[0][left].0 + of[1][right].0, of[0][left].1 + of[1][right].1);
                Cut::or(&mut best, cross, square, [first, second], [left == 1, right == 1, false, false]);
            }
        }
    }
    best
}

/// `sum w q x` and `sum w q^2` of points.
fn fitted(places: &[u16], down: &[bool], steps: f32, x: &[f32], weights: &[f32], sums: &mut (f32, f32)) {
    for ((place, down), (x, weights)) in
        places.iter().zip(down).zip(x.chunks_exact(POINT).zip(weights.chunks_exact(POINT)))
    {
        let values = if *down { DOWN } else { UP };
        for ((level, x), w) in ONE.levels(*place).iter().zip(x).zip(weights) {
            let q = values[usize::from(*level)] * steps;
            sums.0 += w * q * x;
            sums.1 += w * q * q;
        }
    }
}

/// Searches weights that share a scale. What is smaller than `tiny` throughout is nothing.
fn search<const RUN: usize>(
    x: &[f32],
    weights: &[f32],
    tiny: f32,
    cut: impl Fn(&[usize], &[f32], &[f32]) -> Option<Cut>,
) -> Found {
    let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    if largest < tiny {
        return Found::default();
    }
    let mut order: [usize; RUN] = std::array::from_fn(|at| at);
    order.sort_by(|a, b| x[*a].partial_cmp(&x[*b]).unwrap_or(std::cmp::Ordering::Equal));
    let Some(Cut { mut scale, at, mut down, .. }) = cut(&order, x, weights) else { return Found::default() };
    let mut levels = [0; RUN];
    for (place, i) in order.into_iter().enumerate() {
        levels[i] = u8::from(place >= at[0]) + u8::from(place >= at[1]);
    }
    if !scale.is_finite() {
        // Sums that overflow: the scale that holds the largest weight.
        scale = largest;
    }
    if scale < 0.0 {
        levels = levels.map(|level| 2 - level);
        (scale, down) = (-scale, down.map(|down| !down));
    }
    let (mut places, mut met) = ([0; POINTS], true);
    let points = levels.chunks_exact(POINT).zip(x.chunks_exact(POINT).zip(weights.chunks_exact(POINT)));
    for (at, (levels, (x, weights))) in points.enumerate() {
        let mut tried = [0; POINT];
        tried.copy_from_slice(levels);
        places[at] = ONE.place(tried).unwrap_or_else(|| {
            met = false;
            let values = if down[at] { DOWN } else { UP };
            let kept = ONE.nearest(tried, |level| values[usize::from(level)], x, weights, scale);
            ONE.place(kept).unwrap_or(0)
        });
    }
    if !met {
        let mut sums = (0.0, 0.0);
        fitted(&places, &down, 1.0, x, weights, &mut sums);
        if sums.0 > 0.0 && sums.1 > 0.0 && (sums.0 / sums.1).is_finite() {
            scale = sums.0 / sums.1;
        }
    }
    Found { scale, places, down }
}

/// The step of a block's scales, and how many of them each is: `2 s + 1`.
fn steps(found: &[Found]) -> (f32, [u8; RUNS]) {
    let largest = found.iter().fold(0.0, |largest: f32, found| largest.max(found.scale));
    let step = largest / 15.0;
    let inverse = 1.0 / step;
    let mut scales = [0; RUNS];
    for (scale, found) in scales.iter_mut().zip(found) {
        *scale = nearest(0.5 * (inverse * found.scale - 1.0)).clamp(0, 7) as u8;
    }
    (step, scales)
}

/// Calls `write` with the weights of every block, what they count, and what those that share a scale become.
fn blocks<C: Codec, const RUN: usize>(
    row: &[f32],
    out: &mut [u8],
    weigh: impl Fn(usize, &[f32], &mut [f32; SUPER]),
    search: impl Fn(&[f32], &[f32]) -> Found,
    write: impl Fn(&[Found], &[f32], &[f32], &mut [u8]),
) {
    for (at, (x, out)) in row.chunks_exact(SUPER).zip(out.chunks_exact_mut(C::BYTES)).enumerate() {
        let mut weights = [0.0; SUPER];
        weigh(at * SUPER, x, &mut weights);
        let mut found = [Found::default(); RUNS];
        for (found, (x, weights)) in found.iter_mut().zip(x.chunks_exact(RUN).zip(weights.chunks_exact(RUN))) {
            *found = search(x, weights);
        }
        out.fill(0);
        // What has no scale at all is all zero, points and all.
        if found.iter().any(|found| found.scale != 0.0) {
            write(&found[..SUPER / RUN], x, &weights, out);
        }
    }
}

/// What eight weights stand for.
#[inline(always)]
fn point(d: f32, place: u16, down: bool, out: &mut [f32]) {
    let values = if down { DOWN } else { UP };
    for (x, level) in out.iter_mut().zip(ONE.levels(place)) {
        *x = d * values[usize::from(level)];
    }
}

/// `f16 d | u8 point[32] | u16 further bits, scale and move[8]`.
#[derive(Clone, Copy, Debug)]
pub struct Iq1S;

impl Iq1S {
    /// Weights that share a scale.
    const RUN: usize = 32;
    /// What ggml found to be better than the scale itself.
    const MORE: f32 = 1.125;
    /// Where the further bits begin.
    const HIGH: usize = 2 + SUPER / POINT;

    fn write(found: &[Found], _: &[f32], _: &[f32], out: &mut [u8]) {
        let (step, scales) = steps(found);
        half::write(step * Self::MORE, out);
        for (run, (found, scale)) in found.iter().zip(scales).enumerate() {
            let mut high = u16::from(scale) << 12 | u16::from(found.down[0]) << 15;
            for (at, place) in found.places.into_iter().enumerate() {
                out[2 + run * POINTS + at] = place as u8;
                high |= place >> 8 << (3 * at);
            }
            out[Self::HIGH + 2 * run..][..2].copy_from_slice(&high.to_le_bytes());
        }
    }

    fn blocks(row: &[f32], out: &mut [u8], weigh: impl Fn(usize, &[f32], &mut [f32; SUPER])) {
        let search = |x: &[f32], weights: &[f32]| search::<{ Self::RUN }>(x, weights, 1e-12, one_move);
        blocks::<Self, { Self::RUN }>(row, out, weigh, search, Self::write);
    }
}

impl Codec for Iq1S {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 50;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::blocks(values, out, |_, x, weights| weigh(x, &[1.0; SUPER], 2.0 * mean_square(x), weights));
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::blocks(row, out, |from, x, weights| weigh(x, &importance[from..], 2.0 * mean_square(x), weights));
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let d = half::read(block);
            for (run, out) in out.chunks_exact_mut(Self::RUN).enumerate() {
                let high = u16::from_le_bytes([block[Self::HIGH + 2 * run], block[Self::HIGH + 2 * run + 1]]);
                let d = d * f32::from(2 * (high >> 12 & 7) + 1);
                for (at, out) in out.chunks_exact_mut(POINT).enumerate() {
                    let place = u16::from(block[2 + run * POINTS + at]) | (high >> (3 * at) & 7) << 8;
                    point(d, place, high >> 15 == 1, out);
                }
            }
        }
    }
}

/// `u8 point[32] | u8 further bits and moves[16] | u16 scales[4]`, in whose highest four bits each is a part of `f16 d`.
#[derive(Clone, Copy, Debug)]
pub struct Iq1M;

impl Iq1M {
    /// Weights that share a scale.
    const RUN: usize = 16;
    /// What ggml found to be better than the scale itself.
    const MORE: f32 = 1.1125;
    /// Where the further bits and the scales begin.
    const HIGH: usize = SUPER / POINT;
    const SCALES: usize = Self::HIGH + SUPER / Self::RUN;

    fn write(found: &[Found], x: &[f32], weights: &[f32], out: &mut [u8]) {
        let (mut step, scales) = steps(found);
        let mut packed = [0u16; 4];
        let mut sums = (0.0, 0.0);
        let runs = found.iter().zip(scales).zip(x.chunks_exact(Self::RUN).zip(weights.chunks_exact(Self::RUN)));
        for (run, ((found, scale), (x, weights))) in runs.enumerate() {
            packed[run / 4] |= u16::from(scale) << (3 * (run % 4));
            for at in 0..Self::RUN / POINT {
                let (place, down) = (found.places[at], found.down[at]);
                out[2 * run + at] = place as u8;
                out[Self::HIGH + run] |= ((place >> 8) as u8 | u8::from(down) << 3) << (4 * at);
            }
            fitted(&found.places, &found.down, f32::from(2 * scale + 1), x, weights, &mut sums);
        }
        if sums.1 > 0.0 && (sums.0 / sums.1).is_finite() {
            step = sums.0 / sums.1;
        }
        let mut d = [0; 2];
        half::write(step * Self::MORE, &mut d);
        let d = u16::from_le_bytes(d);
        for (part, scales) in packed.into_iter().enumerate() {
            let own = scales | (d >> (4 * part) & 15) << 12;
            out[Self::SCALES + 2 * part..][..2].copy_from_slice(&own.to_le_bytes());
        }
    }

    fn blocks(row: &[f32], out: &mut [u8], weigh: impl Fn(usize, &[f32], &mut [f32; SUPER])) {
        let search = |x: &[f32], weights: &[f32]| search::<{ Self::RUN }>(x, weights, 1e-7, two_moves);
        blocks::<Self, { Self::RUN }>(row, out, weigh, search, Self::write);
    }
}

impl Codec for Iq1M {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 56;

    fn encode(values: &[f32], out: &mut [u8]) {
        Self::blocks(values, out, |_, x, weights| weights.iter_mut().zip(x).for_each(|(w, x)| *w = x * x));
    }

    fn encode_weighted(row: &[f32], importance: &[f32], out: &mut [u8]) {
        Self::blocks(row, out, |from, x, weights| weigh(x, &importance[from..], 2.0 * mean_square(x), weights));
    }

    fn decode(bytes: &[u8], out: &mut [f32]) {
        for (block, out) in bytes.chunks_exact(Self::BYTES).zip(out.chunks_exact_mut(SUPER)) {
            let scales: [u16; 4] = std::array::from_fn(|part| {
                u16::from_le_bytes([block[Self::SCALES + 2 * part], block[Self::SCALES + 2 * part + 1]])
            });
            let d = (0..4).fold(0, |d, part| d | scales[part] >> 12 << (4 * part));
            let d = half::read(&d.to_le_bytes());
            for (run, out) in out.chunks_exact_mut(Self::RUN).enumerate() {
                let d = d * f32::from(2 * (scales[run / 4] >> (3 * (run % 4)) & 7) + 1);
                for (at, out) in out.chunks_exact_mut(POINT).enumerate() {
                    let high = block[Self::HIGH + run] >> (4 * at);
                    point(d, u16::from(block[2 * run + at]) | u16::from(high & 7) << 8, high & 8 != 0, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{GgufBlock, tests::back},
        *,
    };

    /// Points that are kept come back, but for the factor on the scale: both moves, the second in every other 32 weights.
    #[test]
    fn points_come_back() {
        let levels = [[2u8, 0, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], [0; POINT], [0, 2, 0, 0, 0, 0, 0, 0]];
        assert!(levels.iter().all(|levels| ONE.place(*levels).is_some()));
        let value =
            |at: usize| if at / 32 % 2 == 1 { DOWN } else { UP }[usize::from(levels[at / POINT % 4][at % POINT])];
        let values: Vec<f32> = (0..SUPER).map(value).collect();
        for (y, more) in [(back(GgufBlock::Iq1S, &values), Iq1S::MORE), (back(GgufBlock::Iq1M, &values), Iq1M::MORE)] {
            for (x, y) in values.iter().zip(y) {
                assert!((y / x / more - 1.0).abs() < 2e-3, "{x} became {y}");
            }
        }
    }

    #[test]
    fn zeros_alone_are_zeros() {
        assert!(
            back(GgufBlock::Iq1S, &[0.0; SUPER]).iter().chain(&back(GgufBlock::Iq1M, &[0.0; SUPER])).all(|x| *x == 0.0)
        );
    }
}
