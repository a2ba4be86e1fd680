//! Which experts tokens choose.

use crate::random::Random;

/// What a chosen expert's score is below that of the one before it, and what the others' are below all of them.
const STEP: f32 = 0.25;
const BELOW: f32 = 30.0;

/// Experts of every token, drawn evenly: each token has `active` different ones.
pub(super) struct Visits {
    pub(super) tokens: usize,
    pub(super) experts: usize,
    pub(super) active: usize,
    /// Those of the first token, best first, and so on.
    pub(super) chosen: Vec<usize>,
}

impl Visits {
    /// Equal seeds draw the same.
    pub(super) fn drawn((tokens, experts, active): (usize, usize, usize), seed: u64) -> Self {
        let mut random = Random(seed);
        let mut all: Vec<usize> = (0..experts).collect();
        let mut chosen = Vec::with_capacity(tokens * active);
        for _ in 0..tokens {
            // The start of a shuffle (Fisher and Yates), whatever the order before it.
            for at in 0..active {
                all.swap(at, at + random.below(experts - at));
            }
            chosen.extend(&all[..active]);
        }
        Self { tokens, experts, active, chosen }
    }

    /// Scores by which a router chooses these.
    pub(super) fn scores(&self) -> Vec<f32> {
        let mut scores = vec![-BELOW; self.tokens * self.experts];
        for (visit, expert) in self.chosen.iter().enumerate() {
            let (token, rank) = (visit / self.active, visit % self.active);
            scores[token * self.experts + expert] = -STEP * rank as f32;
        }
        scores
    }

    /// How much a token takes of its experts: the softmax of their scores.
    pub(super) fn weights(&self) -> Vec<f64> {
        let powers: Vec<f64> = (0..self.active).map(|rank| (-f64::from(STEP) * rank as f64).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(|power| power / sum).collect()
    }

    /// The row of each visit where they are sorted by expert, those of one expert as they come.
    pub(super) fn places(&self) -> Vec<usize> {
        let mut next = vec![0; self.experts + 1];
        self.chosen.iter().for_each(|expert| next[expert + 1] += 1);
        for expert in 0..self.experts {
            next[expert + 1] += next[expert];
        }
        let mut place = |expert: &usize| {
            next[*expert] += 1;
            next[*expert] - 1
        };
        self.chosen.iter().map(&mut place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_choose_different_experts_evenly() {
        let visits = Visits::drawn((4000, 8, 2), 1);
        for chosen in visits.chosen.chunks(2) {
            assert!(chosen[0] != chosen[1] && chosen.iter().all(|expert| *expert < 8));
        }
        for expert in 0..8 {
            let count = visits.chosen.iter().filter(|chosen| **chosen == expert).count();
            assert!((900..1100).contains(&count), "{expert}: {count} of 8000");
        }
        assert_eq!(visits.chosen, Visits::drawn((4000, 8, 2), 1).chosen);
        assert_ne!(visits.chosen, Visits::drawn((4000, 8, 2), 2).chosen);
    }

    #[test]
    fn rows_are_sorted_by_expert() {
        let visits = Visits { tokens: 3, experts: 3, active: 2, chosen: vec![2, 0, 1, 2, 0, 1] };
        // Expert 0 has the second and the fifth, expert 1 the third and the last, expert 2 the others.
        assert_eq!(visits.places(), [4, 0, 2, 5, 1, 3]);
        let scores = visits.scores();
        assert_eq!(scores[..3], [-0.25, -30.0, 0.0]);
        assert!((visits.weights().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
