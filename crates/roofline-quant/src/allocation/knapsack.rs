//! Of several choices for each of several parts, those with the least loss that together take no more than some bytes: a knapsack with
//! one thing from each box.

/// A format for a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    /// Bytes that it takes.
    pub(super) bytes: u64,
    /// What is lost by it.
    pub(super) loss: f64,
}

/// Steps that sizes are counted in, at most. Where bytes are multiples of something larger, as blocks of matrices are, counting is exact;
/// where they are not, sizes are rounded up, and what is found fits all the same.
const STEPS: u64 = 1 << 18;

/// The fewest bytes that any choices take.
pub(super) fn least(parts: &[Vec<Choice>]) -> u64 {
    parts.iter().filter_map(|choices| choices.iter().map(|choice| choice.bytes).min()).sum()
}

/// The choice of each part; nothing where all together take more than `budget`, or a part has none. Of equals the first.
pub(super) fn best(parts: &[Vec<Choice>], budget: u64) -> Option<Vec<usize>> {
    let spare = budget.checked_sub(least(parts))?;
    // What each choice takes beyond the smallest of its part.
    let more: Vec<Vec<u64>> = parts
        .iter()
        .map(|choices| {
            let least = choices.iter().map(|choice| choice.bytes).min()?;
            Some(choices.iter().map(|choice| choice.bytes - least).collect())
        })
        .collect::<Option<_>>()?;
    let common = more.iter().flatten().copied().fold(0, gcd).max(1);
    let step = common.max(spare / STEPS);
    let steps = (spare / step) as usize;
    // The least loss of the parts so far with so many steps at most, and which choice of the last part that takes.
    let mut losses = vec![0.0f64; steps + 1];
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(parts.len());
    for (choices, more) in parts.iter().zip(&more) {
        let mut next = vec![f64::INFINITY; steps + 1];
        let mut of = vec![0u8; steps + 1];
        for (at, (choice, more)) in choices.iter().zip(more).enumerate().take(usize::from(u8::MAX)) {
            let size = more.div_ceil(step);
            let Some(size) = usize::try_from(size).ok().filter(|size| *size <= steps) else { continue };
            for room in size..=steps {
                let loss = losses[room - size] + choice.loss;
                if loss < next[room] {
                    (next[room], of[room]) = (loss, at as u8);
                }
            }
        }
        losses = next;
        taken.push(of);
    }
    let mut room = steps;
    let mut chosen = vec![0; parts.len()];
    for (part, of) in taken.iter().enumerate().rev() {
        chosen[part] = usize::from(of[room]);
        room -= more[part][chosen[part]].div_ceil(step) as usize;
    }
    Some(chosen)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn total(parts: &[Vec<Choice>], chosen: &[usize]) -> (u64, f64) {
        let each = parts.iter().zip(chosen).map(|(choices, at)| choices[*at]);
        each.fold((0, 0.0), |(bytes, loss), choice| (bytes + choice.bytes, loss + choice.loss))
    }

    /// Every set of choices there is.
    fn brute(parts: &[Vec<Choice>], budget: u64) -> Option<f64> {
        let mut all: Vec<(u64, f64)> = vec![(0, 0.0)];
        for choices in parts {
            all = all
                .iter()
                .flat_map(|(bytes, loss)| choices.iter().map(move |one| (bytes + one.bytes, loss + one.loss)))
                .collect();
        }
        all.into_iter().filter(|(bytes, _)| *bytes <= budget).map(|(_, loss)| loss).min_by(f64::total_cmp)
    }

    #[test]
    fn the_best_of_two_parts_by_hand() {
        let part = |losses: [f64; 2]| vec![Choice { bytes: 8, loss: losses[0] }, Choice { bytes: 4, loss: losses[1] }];
        let parts = [part([0.0, 1.0]), part([0.0, 3.0])];
        // Room for one wide part: that which loses more.
        assert_eq!(best(&parts, 12), Some(vec![1, 0]));
        assert_eq!(best(&parts, 16), Some(vec![0, 0]));
        assert_eq!((best(&parts, 8), best(&parts, 7), least(&parts)), (Some(vec![1, 1]), None, 8));
        assert_eq!(best(&[Vec::new()], 100), None);
        assert_eq!(best(&[], 0), Some(Vec::new()));
    }

    /// Bytes without a common measure, and more than there are steps: what is found fits, and is near the best.
    #[test]
    fn sizes_beyond_the_steps_still_fit() {
        let parts: Vec<Vec<Choice>> = (0..20u64)
            .map(|part| {
                let bytes = 1_000_003 + 7919 * part;
                [(16, 0.0), (8, 0.01), (5, 0.1), (4, 0.5)]
                    .map(|(bits, loss)| Choice { bytes: bytes * bits + part, loss: loss * (1 + part) as f64 })
                    .to_vec()
            })
            .collect();
        let budget = 6 * 20 * 1_100_000;
        let (bytes, loss) = total(&parts, &best(&parts, budget).unwrap());
        assert!(bytes <= budget && bytes * 100 > budget * 99, "{bytes} of {budget}");
        // All at five bits is within the budget as well.
        assert!(loss < total(&parts, &[2; 20]).1);
    }

    proptest! {
        /// Where every set of choices can be looked at, none is better.
        #[test]
        fn nothing_is_better(
            parts in prop::collection::vec(prop::collection::vec((0u64..60, 0u32..1000), 1..5), 1..6),
            budget in 0u64..260,
        ) {
            let parts: Vec<Vec<Choice>> = parts
                .iter()
                .map(|own| own.iter().map(|(bytes, loss)| Choice { bytes: *bytes, loss: f64::from(*loss) }).collect())
                .collect();
            match (best(&parts, budget), brute(&parts, budget)) {
                (None, None) => {}
                (Some(chosen), Some(least)) => {
                    let (bytes, loss) = total(&parts, &chosen);
                    prop_assert!(bytes <= budget);
                    prop_assert_eq!(loss, least);
                }
                (found, least) => prop_assert!(false, "{found:?} {least:?}"),
            }
        }
    }
}
