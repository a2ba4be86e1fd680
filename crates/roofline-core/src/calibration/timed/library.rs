//! Libraries of a stack: who timed a kernel says which one ran, and which a stack calls follows the class of a shape.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    cross::{FEWEST, Timing},
    kernel::{Shape, TimedOp},
};

/// Classes of shapes that stacks tell apart.
const CLASSES: [&str; 10] =
    ["64", "64 windowed", "128", "128 windowed", "192", "192 windowed", "256", "256 windowed", "512", "512 windowed"];

/// One of several libraries that a stack calls for an operator in some formats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "TimedLibrary")]
pub struct Library {
    /// As files of timings name it.
    pub name: String,
    /// Classes of shapes that it is called for: by width of the heads and whether a window limits what is seen.
    pub serves: Vec<String>,
}

impl Library {
    /// Whether the stack calls it for a shape.
    pub(super) fn serves(&self, shape: &Shape) -> bool {
        let class = CLASSES[class(shape)];
        self.serves.iter().any(|served| served == class)
    }

    pub(super) fn sensible(&self) -> bool {
        !self.name.is_empty() && self.serves.iter().all(|served| CLASSES.contains(&served.as_str()))
    }
}

fn class(shape: &Shape) -> usize {
    match *shape {
        Shape::Product { .. } => 0,
        Shape::Attention { head_dim, window, .. } => {
            let width = [64.0, 128.0, 192.0, 256.0].iter().filter(|width| head_dim > **width).count();
            2 * width + usize::from(window > 0.0)
        }
    }
}

/// Timings of one operator in one format, by the library that was timed; the largest first. A library of which there are too
/// few to say anything is one with the largest.
pub fn by_library(timings: Vec<(Timing, String)>) -> Vec<(Option<Library>, Vec<Timing>)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, name) in &timings {
        *counts.entry(name.clone()).or_default() += 1;
    }
    let mut names: Vec<(String, usize)> = counts.into_iter().collect();
    names.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(&two.0)));
    names.retain(|(name, count)| *count >= FEWEST && !name.is_empty());
    // Libraries of products take turns by size, which terms know, and share more than they differ by.
    let of_products = timings.iter().any(|(timing, _)| timing.kernel.shape.op() == TimedOp::Gemm);
    if names.len() < 2 || of_products {
        return vec![(None, timings.into_iter().map(|(timing, _)| timing).collect())];
    }
    let mut classes = vec![vec![0_usize; CLASSES.len()]; names.len()];
    let mut parts: Vec<Vec<Timing>> = vec![Vec::new(); names.len()];
    for (timing, name) in timings {
        let at = names.iter().position(|(known, _)| *known == name).unwrap_or(0);
        classes[at][class(&timing.kernel.shape)] += 1;
        parts[at].push(timing);
    }
    let serves = |at: usize| {
        let most = |class: &usize| {
            let own = classes[at][*class];
            own > 0
                && (0..names.len()).all(|other| classes[other][*class] < own || other >= at)
                && (0..names.len()).all(|other| classes[other][*class] <= own)
        };
        (0..CLASSES.len()).filter(most).map(|class| CLASSES[class].to_owned()).collect()
    };
    let libraries = names.iter().enumerate().map(|(at, (name, _))| Library { name: name.clone(), serves: serves(at) });
    libraries.map(Some).zip(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        calibration::{Dtype, TimedKernel},
        units::Seconds,
    };

    #[test]
    fn a_library_serves_the_classes_where_it_was_timed_most() {
        let timing = |head_dim: f64, window: f64| {
            let shape = Shape::Attention {
                batch: 1.0,
                queries: 1.0,
                context: 100.0,
                heads: 8.0,
                kv_heads: 8.0,
                head_dim,
                window,
                decode: true,
            };
            Timing { kernel: TimedKernel { dtype: Dtype::Bfloat16, shape }, time: Seconds::new(1e-5) }
        };
        let mut rows: Vec<(Timing, String)> = (0..100).map(|_| (timing(128.0, 0.0), "one".to_owned())).collect();
        rows.extend((0..50).map(|_| (timing(64.0, 128.0), "other".to_owned())));
        rows.extend((0..5).map(|_| (timing(256.0, 0.0), "rare".to_owned())));
        let parts = by_library(rows.clone());
        let told: Vec<(&str, usize)> = parts
            .iter()
            .map(|(library, rows)| (library.as_ref().map_or("", |it| it.name.as_str()), rows.len()))
            .collect();
        assert_eq!(told, [("one", 105), ("other", 50)]);
        let other = parts[1].0.as_ref().unwrap();
        assert_eq!(other.serves, ["64 windowed"]);
        assert!(other.serves(&timing(64.0, 128.0).kernel.shape) && !other.serves(&timing(64.0, 0.0).kernel.shape));
        // One library needs no name.
        rows.truncate(100);
        assert_eq!(by_library(rows), vec![(None, vec![timing(128.0, 0.0); 100])]);
    }
}
