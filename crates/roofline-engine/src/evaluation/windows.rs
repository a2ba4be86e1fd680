//! Which tokens are seen together, and which of them count.

use std::ops::Range;

/// Windows of equal length over the tokens of a text, each `stride` after the one before.
///
/// Every token counts at most once, in the first window that predicts it: in the first window all but its first token, in
/// the others the last `stride`, so that each has at least `window - stride` tokens before it. Tokens behind the last
/// whole window do not count.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'t> {
    tokens: &'t [u32],
    window: usize,
    stride: usize,
    bos: Option<u32>,
}

impl<'t> Windows<'t> {
    /// Over `tokens`, which start with `bos` where there is one; every window starts with it, in place of its first token.
    /// None where there is no whole window, where a window has nothing to predict, or where windows would leave gaps.
    pub fn new(tokens: &'t [u32], window: usize, stride: usize, bos: Option<u32>) -> Option<Self> {
        let possible = window >= 2 && (1..=window).contains(&stride) && tokens.len() >= window;
        possible.then_some(Self { tokens, window, stride, bos })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        (self.tokens.len() - self.window) / self.stride + 1
    }

    /// Tokens of each.
    pub fn window(&self) -> usize {
        self.window
    }

    /// The tokens of one.
    pub(super) fn tokens(&self, index: usize) -> Vec<u32> {
        let start = index * self.stride;
        let mut own = self.tokens[start..start + self.window].to_vec();
        if let (Some(bos), Some(first)) = (self.bos, own.first_mut()) {
            *first = bos;
        }
        own
    }

    /// Which of its tokens count, by their position in it.
    pub(super) fn scored(&self, index: usize) -> Range<usize> {
        let first = if index == 0 { 1 } else { (self.window - self.stride).max(1) };
        first..self.window
    }

    /// Those that llama.cpp's `perplexity` counts, where the window is one of its chunks: it cuts the text into chunks
    /// without overlap and scores what follows the middle of each.
    pub(super) fn chunk(&self, index: usize) -> Option<Range<usize>> {
        let chunk = self.has_chunks() && index.is_multiple_of(2);
        chunk.then(|| self.window / 2 + 1..self.window)
    }

    /// Whether every other window is a chunk of llama.cpp's.
    pub fn has_chunks(&self) -> bool {
        2 * self.stride == self.window && self.window > 2
    }

    /// Which token of the text one of a window's is.
    pub(super) fn position(&self, index: usize, within: usize) -> usize {
        index * self.stride + within
    }

    /// Tokens that count, of all windows.
    pub fn scored_tokens(&self) -> usize {
        let others = self.stride.min(self.window - 1);
        self.window - 1 + (self.count() - 1) * others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every token but the first, and those behind the last whole window, counts once; with a stride as long as the window
    /// the first of each has nothing before it and does not count.
    #[test]
    fn tokens_count_once() {
        let tokens: Vec<u32> = (100..123).collect();
        for (window, stride) in [(8, 4), (8, 3), (8, 1), (8, 8), (2, 1), (23, 23)] {
            let windows = Windows::new(&tokens, window, stride, Some(1)).unwrap();
            let mut counted = vec![0; tokens.len()];
            for index in 0..windows.count() {
                let own = windows.tokens(index);
                assert_eq!((own[0], own.len()), (1, window));
                for within in windows.scored(index) {
                    let position = windows.position(index, within);
                    assert_eq!(own[within], tokens[position]);
                    counted[position] += 1;
                }
            }
            let end = (windows.count() - 1) * stride + window;
            let expected =
                |at: usize| usize::from(at != 0 && at < end && !(stride == window && at.is_multiple_of(window)));
            let wanted: Vec<usize> = (0..tokens.len()).map(expected).collect();
            assert_eq!(counted, wanted, "{window} {stride}");
            assert_eq!(windows.scored_tokens(), counted.iter().sum::<usize>());
        }
    }

    /// 23 tokens have two chunks of 8; a chunk of 8 predicts positions 5, 6 and 7: n_ctx - n_ctx / 2 - 1 = 3 of them.
    #[test]
    fn every_other_window_is_a_chunk() {
        let tokens: Vec<u32> = (0..23).collect();
        let windows = Windows::new(&tokens, 8, 4, None).unwrap();
        let chunks: Vec<_> = (0..windows.count()).map(|index| windows.chunk(index)).collect();
        assert_eq!(chunks, [Some(5..8), None, Some(5..8), None]);
        assert_eq!(windows.tokens(2), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert!(!Windows::new(&tokens, 8, 3, None).unwrap().has_chunks());
    }

    #[test]
    fn what_cannot_be_gone_through() {
        let tokens = [1, 2, 3];
        assert!(Windows::new(&tokens, 4, 2, None).is_none());
        assert!(Windows::new(&tokens, 1, 1, None).is_none());
        assert!(Windows::new(&tokens, 2, 0, None).is_none());
        assert!(Windows::new(&tokens, 2, 3, None).is_none());
        assert_eq!(Windows::new(&tokens, 3, 1, None).unwrap().count(), 1);
    }
}
