//! Changes at bounds: a shape is on one side of each of two, and what that makes of four values is added.

use serde::{Deserialize, Serialize};

use super::{PLACES, Places, SHRINK, four_places, weight};

/// Steps at most, and the share of each that is taken: the rest is left to later ones.
const MOST: usize = 16;
const SHARE: f64 = 0.4;
/// Bounds that are tried in each dimension.
const BOUNDS: usize = 16;
/// What a step has to explain of the squares that are left.
const WORTH: f64 = 0.01;

/// Two bounds and four values: below both, beyond the second, beyond the first, beyond both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f64; 8]", into = "[f64; 8]")]
pub(super) struct Step {
    bounds: [Bound; 2],
    values: [f64; 4],
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bound {
    dimension: usize,
    place: f64,
}

impl From<[f64; 8]> for Step {
    fn from([first, one, second, two, values @ ..]: [f64; 8]) -> Self {
        let bound = |dimension: f64, place: f64| Bound { dimension: dimension as usize, place };
        Self { bounds: [bound(first, one), bound(second, two)], values }
    }
}

impl From<Step> for [f64; 8] {
    fn from(step: Step) -> Self {
        let ([one, two], [a, b, c, d]) = (step.bounds, step.values);
        [one.dimension as f64, one.place, two.dimension as f64, two.place, a, b, c, d]
    }
}

impl Bound {
    fn beyond(self, places: &Places) -> usize {
        usize::from(places[self.dimension] > self.place)
    }
}

impl Step {
    pub(super) fn sensible(&self) -> bool {
        let bound = |bound: &Bound| bound.dimension < PLACES && bound.place.is_finite();
        self.bounds.iter().all(bound) && self.values.iter().all(|value| value.abs() < 10.0)
    }

    pub(super) fn log(&self, places: &Places) -> f64 {
        self.values[side(self.bounds, places)]
    }
}

fn side([one, two]: [Bound; 2], places: &Places) -> usize {
    2 * one.beyond(places) + two.beyond(places)
}

/// Steps that explain most of what is off, the largest first.
pub(super) fn fit(places: &[Places], mut off: Vec<f64>) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..MOST {
        let weights: Vec<f64> = off.iter().map(|off| weight(*off)).collect();
        let sums = |bounds: [Bound; 2]| {
            let (mut sums, mut all) = ([0.0; 4], [0.0; 4]);
            for ((places, off), weight) in places.iter().zip(&off).zip(&weights) {
                let side = side(bounds, places);
                sums[side] += weight * off;
                all[side] += weight;
            }
            (sums, all)
        };
        let explained = |bounds: [Bound; 2]| {
            let (sums, all) = sums(bounds);
            sums.iter().zip(all).map(|(sum, all)| sum * sum / (all + SHRINK)).sum::<f64>()
        };
        let tried = || {
            let bound = |dimension: usize, at: usize| Bound { dimension, place: at as f64 / BOUNDS as f64 };
            (0..PLACES).flat_map(move |dimension| (1..BOUNDS).map(move |at| bound(dimension, at)))
        };
        let best = |of: &dyn Fn(Bound) -> [Bound; 2]| {
            let all = tried().map(|bound| (bound, explained(of(bound))));
            all.max_by(|one, two| one.1.total_cmp(&two.1))
        };
        let Some((first, _)) = best(&|bound| [bound, bound]) else { break };
        let Some((second, worth)) = best(&|bound| [first, bound]) else { break };
        let left: f64 = off.iter().zip(&weights).map(|(off, weight)| weight * off * off).sum();
        if worth < WORTH * left {
            break;
        }
        let bounds = [first, second];
        let (sums, all) = sums(bounds);
        let values = std::array::from_fn(|side| four_places(SHARE * sums[side] / (all[side] + SHRINK)));
        let step = Step { bounds, values };
        off.iter_mut().zip(places).for_each(|(off, places)| *off -= step.log(places));
        steps.push(step);
    }
    steps
}
