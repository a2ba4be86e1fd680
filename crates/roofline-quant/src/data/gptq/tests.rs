//! GPTQ on matrices small enough to know what is best.

use proptest::prelude::*;

use super::*;
use crate::{
    Dtype, Method,
    coding::{
        Coding,
        compressed_tensors::{Scheme, coding},
    },
    data::moments::tests::moments,
};

fn grid(bits: u8, group: u32, zero: bool) -> Box<dyn Grid> {
    grid_of(&*coding(Scheme::Int { bits, group: Some(group), zero }, Dtype::F32, Method::Rtn).unwrap())
}

fn grid_of(coding: &dyn Coding) -> Box<dyn Grid> {
    coding.grid().unwrap()
}

/// Numbers between -1 and 1, SplitMix64's.
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Inputs that go together: every channel has a part of its neighbour.
fn inputs(columns: usize, tokens: usize) -> Vec<f32> {
    let mut values = random(7, columns * tokens);
    for row in values.chunks_exact_mut(columns) {
        for at in 1..columns {
            row[at] = 0.8 * row[at - 1] + 0.6 * row[at] * (1.0 + at as f32 / columns as f32);
        }
    }
    values
}

/// The squared error of a product's outputs.
fn output_error(weights: &[f32], rounded: &[f32], columns: usize, inputs: &[f32]) -> f64 {
    let mut sum = 0.0;
    for (row, own) in weights.chunks_exact(columns).zip(rounded.chunks_exact(columns)) {
        for x in inputs.chunks_exact(columns) {
            let error: f64 = row.iter().zip(own).zip(x).map(|((w, q), x)| f64::from((w - q) * x)).sum();
            sum += error * error;
        }
    }
    sum
}

fn nearest(weights: &[f32], columns: usize, grid: &dyn Grid) -> Vec<f32> {
    let group = grid.group(columns);
    let groups = weights.chunks_exact(group).flat_map(|weights| {
        let (mut scale, mut zero) = ([0.0], [0.0]);
        grid.reach(weights, weights, &mut scale, &mut zero);
        weights.iter().map(|weight| grid.round(*weight, scale[0], zero[0]).1).collect::<Vec<_>>()
    });
    groups.collect()
}

/// Two channels that always come together: what the first loses the second makes up for, so that their sum is nearly kept, where
/// each rounded to nearest would lose its own.
#[test]
fn channels_that_come_together_share_their_error() {
    let inputs: Vec<f32> =
        random(3, 128).chunks_exact(2).flat_map(|x| [x[0], x[1], x[1] + 1e-3 * x[0], 0.5 * x[0]]).collect();
    let compensation = Compensation::new(&moments(4, &inputs), Order::Activations, 1e-4, 1).unwrap();
    // Steps of one: 0.4 and 0.4 round to 0 and 0, which loses 0.8; they become 0 and 1.
    let grid = grid(4, 4, false);
    let row = [7.0, 0.4, 0.4, -7.5];
    let chosen = compensation.round(&row, &*grid, 1);
    let values = chosen.values(&*grid, 4);
    let rtn = nearest(&row, 4, &*grid);
    let lost = |values: &[f32]| (row[1] + row[2] - values[1] - values[2]).abs();
    assert!(lost(&rtn) > 0.7 && lost(&values) < 0.4 * lost(&rtn), "{values:?} {rtn:?}");
    assert!(output_error(&row, &values, 4, &inputs) < 0.5 * output_error(&row, &rtn, 4, &inputs));
}

/// Inputs of which one is another's copy have no inverse: without damping they are tried with some.
#[test]
fn damping_is_raised_from_nothing() {
    let inputs: Vec<f32> = random(3, 64).iter().flat_map(|x| [*x, *x]).collect();
    let compensation = Compensation::new(&moments(2, &inputs), Order::Natural, 0.0, 1).unwrap();
    assert_eq!(compensation.damping, 10.0 * LEAST);
    let regular = Compensation::new(&moments(2, &random(3, 64)), Order::Natural, 0.0, 1).unwrap();
    assert_eq!(regular.damping, 0.0);
}

/// Beside the best of all codes, which few columns allow to be found by trying: as good as or near it, and better than
/// rounding to nearest.
#[test]
fn it_is_near_the_best_of_all_codes() {
    let (columns, group) = (4, 4);
    let x = inputs(columns, 40);
    let compensation = Compensation::new(&moments(columns, &x), Order::Activations, 0.01, 1).unwrap();
    let grid = grid(4, group, false);
    let (mut ours, mut best, mut rtn) = (0.0, 0.0, 0.0);
    for seed in 0..24 {
        let row = random(seed, columns);
        let chosen = compensation.round(&row, &*grid, 1);
        ours += output_error(&row, &chosen.values(&*grid, columns), columns, &x);
        rtn += output_error(&row, &nearest(&row, columns, &*grid), columns, &x);
        // Every code within two of the nearest, under the same scale.
        let (scale, zero) = (chosen.scales[0], chosen.zeros[0]);
        let near =
            |weight: f32| [-2.0f32, -1.0, 0.0, 1.0, 2.0].map(|by| grid.round(weight + by * scale, scale, zero).1);
        let choices: Vec<[f32; 5]> = row.iter().map(|weight| near(*weight)).collect();
        let tried = (0..5usize.pow(4)).map(|at| {
            let values: Vec<f32> = (0..4).map(|column| choices[column][at / 5usize.pow(column as u32) % 5]).collect();
            output_error(&row, &values, columns, &x)
        });
        best += tried.fold(f64::INFINITY, f64::min);
    }
    assert!(best <= ours + 1e-9 && ours < 1.8 * best, "best {best}, ours {ours}, nearest {rtn}");
    assert!(ours < 0.8 * rtn, "ours {ours}, nearest {rtn}");
}

/// Of larger matrices, in every order, with and without zero points.
#[test]
fn outputs_lose_less_than_by_rounding_to_nearest() {
    let (columns, rows) = (256, 40);
    let (x, weights) = (inputs(columns, 600), random(11, columns * rows));
    let moments = moments(columns, &x);
    for (order, group, zero) in [
        (Order::Activations, 128, false),
        (Order::Natural, 128, false),
        (Order::Activations, 64, true),
        (Order::Natural, 32, true),
    ] {
        let grid = grid(4, group, zero);
        let compensation = Compensation::new(&moments, order, 0.01, 2).unwrap();
        let chosen = compensation.round(&weights, &*grid, 2);
        let ours = output_error(&weights, &chosen.values(&*grid, columns), columns, &x);
        let rtn = output_error(&weights, &nearest(&weights, columns, &*grid), columns, &x);
        assert!(ours < 0.6 * rtn, "{order:?} {group} {zero}: {ours} of {rtn}");
        // Threads change nothing.
        assert!(compensation.round(&weights, &*grid, 5) == chosen);
    }
}

/// Panels and bands change nothing: the same as one channel after the other, written down plainly.
#[test]
fn panels_are_the_plain_algorithm() {
    let (columns, rows) = (192, 3);
    let (x, weights) = (inputs(columns, 400), random(5, columns * rows));
    let moments = moments(columns, &x);
    let compensation = Compensation::new(&moments, Order::Activations, 0.01, 1).unwrap();
    let grid = grid(4, 64, false);
    let chosen = compensation.round(&weights, &*grid, 1);
    let importance = moments.importance();
    assert!(compensation.order.windows(2).all(|pair| importance[pair[0]] >= importance[pair[1]]));
    let mut differing = 0;
    for (at, row) in weights.chunks_exact(columns).enumerate() {
        let mut left: Vec<f64> = compensation.order.iter().map(|channel| f64::from(row[*channel])).collect();
        for i in 0..columns {
            let channel = compensation.order[i];
            let group = at * 3 + channel / 64;
            let (code, value) = grid.round(left[i] as f32, chosen.scales[group], chosen.zeros[group]);
            differing += usize::from(code != chosen.codes[at * columns + channel]);
            let error = (left[i] - f64::from(value)) / f64::from(compensation.factor.at(i, i));
            for (j, left) in left.iter_mut().enumerate().skip(i + 1) {
                *left -= error * f64::from(compensation.factor.at(i, j));
            }
        }
    }
    // A weight half way between two codes may go either way by the last bit of a sum.
    assert!(differing <= columns * rows / 50, "{differing} differ");
}

/// Inputs that are zero, or that repeat, are no reason to fail; without any input there is nothing to go by.
#[test]
fn singular_moments() {
    let columns = 32;
    // Two channels are the same, and one is dead.
    let mut x = inputs(columns, 8);
    for row in x.chunks_exact_mut(columns) {
        (row[5], row[9]) = (0.0, row[4]);
    }
    let compensation = Compensation::new(&moments(columns, &x), Order::Activations, 0.01, 1).unwrap();
    assert_eq!((compensation.dead, compensation.damping), (1, 0.01));
    let (weights, grid) = (random(2, columns), grid(4, 32, false));
    let chosen = compensation.round(&weights, &*grid, 1);
    let values = chosen.values(&*grid, columns);
    // What nothing comes through is rounded to nearest.
    assert_eq!(values[5], grid.round(weights[5], chosen.scales[0], chosen.zeros[0]).1);
    assert!(values.iter().all(|value| value.is_finite()));
    assert!(Compensation::new(&moments(columns, &vec![0.0; columns]), Order::Natural, 0.01, 1).is_none());
}

proptest! {
    /// Whatever weights and inputs are, codes are of the grid and values are numbers.
    #[test]
    fn codes_are_always_of_the_grid(
        seed in any::<u64>(), rows in 1usize..20, scale in -6i32..6, zero in any::<bool>(), order in any::<bool>()
    ) {
        let columns = 64;
        let factor = 10f32.powi(scale);
        let weights: Vec<f32> = random(seed, rows * columns).iter().map(|w| w * factor).collect();
        let order = if order { Order::Activations } else { Order::Natural };
        let compensation = Compensation::new(&moments(columns, &random(!seed, 20 * columns)), order, 0.01, 1).unwrap();
        let grid = grid(4, 32, zero);
        let chosen = compensation.round(&weights, &*grid, 1);
        prop_assert!(chosen.codes.iter().all(|code| (-8..8).contains(&(*code as i8))));
        let values = chosen.values(&*grid, columns);
        prop_assert!(values.iter().all(|value| value.is_finite()));
    }
}
