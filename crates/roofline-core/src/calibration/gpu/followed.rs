//! Products with the activation function that follows them: the terms of the product, but for what follows.
//!
//! A gate and an up projection multiply as one product of both does. What differs is what comes after the sum: a function in
//! the kernel, or another pass over both results and another start. Two terms say that, which a few measurements can show; six
//! of their own they could not.

use super::{FamilyTerms, GpuTerms, Lane, LaneTerms, Remainder, Task};
use crate::units::Seconds;

/// Fewest measurements that say something of two terms.
const FEWEST: usize = 3;
/// Starts and outputs that are tried first: a function inside the kernel, and one or two kernels behind it.
const STARTS: [f64; 3] = [0.0, 2e-6, 6e-6];
const OUTPUTS: [f64; 3] = [0.0, 1e-12, 5e-12];
/// The least that is told apart from nothing.
const LEAST: [f64; 2] = [1e-9, 1e-15];

/// Whether a kernel is such a product.
pub(super) fn is_followed(lane: &Lane) -> bool {
    lane.format.is_some() && lane.kind.is_some()
}

/// The lanes of `tasks`, by those of their products. One whose product was not measured has none.
pub(super) fn lanes(tasks: &[(Task, f64)], shared: &FamilyTerms, products: &[LaneTerms], units: u32) -> Vec<LaneTerms> {
    let mut found: Vec<Lane> = Vec::new();
    for (task, _) in tasks {
        if !found.contains(&task.lane) {
            found.push(task.lane);
        }
    }
    let terms = |lane: Lane| {
        let product = products.iter().find(|other| other.lane == Lane { kind: None, ..lane })?;
        let own: Vec<&(Task, f64)> = tasks.iter().filter(|(task, _)| task.lane == lane).collect();
        (own.len() >= FEWEST).then(|| fitted(&own, shared, &LaneTerms { lane, ..product.clone() }, units))
    };
    found.into_iter().filter_map(terms).collect()
}

fn fitted(own: &[&(Task, f64)], shared: &FamilyTerms, product: &LaneTerms, units: u32) -> LaneTerms {
    let with = |[launch, output]: [f64; 2]| LaneTerms {
        launch: Seconds::new(launch),
        output: Seconds::new(output),
        remainder: Vec::new(),
        ..product.clone()
    };
    let log = |terms: &LaneTerms, (task, time): &(Task, f64)| {
        let costs = GpuTerms::costs(units, shared, terms);
        (time / costs.parts(task).time).ln()
    };
    let error = |terms: [f64; 2]| {
        let terms = with(terms);
        own.iter().map(|one| log(&terms, one).abs()).sum::<f64>()
    };
    let base = [product.launch.value(), product.output.value()];
    let mut best = (error(base), base);
    for start in STARTS {
        for output in OUTPUTS {
            let mut here = [(base[0] + start).max(LEAST[0]), (base[1] + output).max(LEAST[1])];
            let (mut least, mut step) = (error(here), 0.5_f64);
            while step > 0.005 {
                let before = least;
                for (term, factor) in [(0, step.exp()), (0, (-step).exp()), (1, step.exp()), (1, (-step).exp())] {
                    let mut next = here;
                    next[term] = (next[term] * factor).max(LEAST[term]);
                    let there = error(next);
                    if there < least {
                        (least, here) = (there, next);
                    }
                }
                if before - least < 1e-3 * before {
                    step /= 2.0;
                }
            }
            if least < best.0 {
                best = (least, here);
            }
        }
    }
    let terms = with(best.1);
    let remainder = own.iter().map(|one| Remainder::new(one.0.at, log(&terms, one))).collect();
    LaneTerms { remainder, ..terms }
}
