//! Which experts each token goes to, and in which order they see their tokens.

use roofline_core::model::arithmetic::Routing;

/// A token's visit to an expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Visit {
    pub(crate) expert: usize,
    pub(crate) token: usize,
    /// How much of its output the token takes.
    pub(crate) weight: f32,
}

/// The visits of all tokens, those of one expert together, by the scores of the router: a row of `experts` for each token.
/// Of equal scores the first wins.
pub(crate) fn visits(scores: &[f32], experts: usize, active: usize, routing: Routing, all: &mut Vec<Visit>) {
    all.clear();
    let mut order: Vec<usize> = Vec::with_capacity(experts);
    for (token, scores) in scores.chunks_exact(experts).enumerate() {
        order.clear();
        order.extend(0..experts);
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let largest = scores[order[0]];
        let power = |expert: &usize| (scores[*expert] - largest).exp();
        let among = match routing {
            Routing::OfAll => &order[..],
            Routing::OfChosen => &order[..active],
        };
        let sum: f32 = among.iter().map(power).sum();
        all.extend(order[..active].iter().map(|expert| Visit { expert: *expert, token, weight: power(expert) / sum }));
    }
    all.sort_by_key(|visit| (visit.expert, visit.token));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_experts_share_what_their_scores_say() {
        let scores = [0.0, 2f32.ln(), 4f32.ln(), 0.0, 1.0, 0.0, 0.0, 1.0];
        let mut found = Vec::new();
        visits(&scores, 4, 2, Routing::OfChosen, &mut found);
        let of = |token| found.iter().filter(|one| one.token == token).map(|one| one.expert).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![1, 2], vec![0, 3]));
        assert!(found.windows(2).all(|pair| pair[0].expert <= pair[1].expert));
        // 2 and 4 of 6; of all four, 2 and 4 of 8.
        let weight =
            |all: &[Visit], expert| all.iter().find(|one| one.expert == expert && one.token == 0).unwrap().weight;
        assert!((weight(&found, 1) - 1.0 / 3.0).abs() < 1e-6 && (weight(&found, 2) - 2.0 / 3.0).abs() < 1e-6);
        visits(&scores, 4, 2, Routing::OfAll, &mut found);
        assert!((weight(&found, 1) - 0.25).abs() < 1e-6 && (weight(&found, 2) - 0.5).abs() < 1e-6);
    }
}
