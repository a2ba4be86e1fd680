//! Pieces of a text that a model is observed on.

use roofline_core::hash::fnv1a;

/// `count` pieces of `length` tokens, or as many as there are: the text is cut one behind the other, each piece begins with
/// `first` where there is one, and the `seed` says which of them are taken. They come in the order of the text.
pub fn samples(tokens: &[u32], first: Option<u32>, count: usize, length: usize, seed: u64) -> Vec<Vec<u32>> {
    let own = length.saturating_sub(usize::from(first.is_some())).max(1);
    let pieces = tokens.chunks_exact(own);
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    // A hash of seed and place is as good as a shuffle, and nobody's generator has to stay as it is.
    order.sort_by_key(|at| (fnv1a(format!("{seed} {at}").as_bytes()), *at));
    order.truncate(count);
    order.sort_unstable();
    order.iter().map(|at| first.iter().chain(&tokens[at * own..(at + 1) * own]).copied().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_the_text_and_by_the_seed() {
        let text: Vec<u32> = (1..=100).collect();
        let all = samples(&text, Some(0), 50, 10, 1);
        // Nine of the text to each; one token is left over.
        assert_eq!(all.len(), 11);
        assert!(all.iter().all(|own| own.len() == 10 && own[0] == 0));
        assert_eq!(all[1][1..], (10..=18).collect::<Vec<u32>>());
        let (some, others) = (samples(&text, Some(0), 4, 10, 1), samples(&text, Some(0), 4, 10, 2));
        assert_eq!(some, samples(&text, Some(0), 4, 10, 1));
        assert!(some != others && some.iter().all(|own| all.contains(own)));
        assert!(some.windows(2).all(|pair| pair[0][1] < pair[1][1]));
        assert_eq!(samples(&text, None, 1, 100, 7), std::slice::from_ref(&text));
        assert!(samples(&text, Some(0), 1, 102, 7).is_empty());
    }
}
