//! Text as it comes, one token at a time.
//!
//! A token's text depends on its neighbours: a character may be spread over several tokens, and a tokenizer of the
//! sentencepiece kind drops the space before the first word of whatever it decodes. So a few tokens from before are
//! decoded with the new ones, and what the new ones add is the difference. What ends in the middle of a character waits.

use super::Tokenizer;
use crate::Result;

/// How many tokens may wait. A character has at most four bytes, so whoever waits longer is not in the middle of one.
const MOST_WAITING: usize = 8;

/// Tokens of the prompt that the first new token is decoded with: enough that one of them has text.
const FROM_BEFORE: usize = 8;

/// Tokens of an unfinished character: one less than its bytes.
const MOST_UNFINISHED: usize = 3;

/// What a replacement character stands for: bytes that are no character, or not yet.
const INCOMPLETE: char = char::REPLACEMENT_CHARACTER;

/// A decoder of one token at a time.
#[derive(Debug, Clone)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens whose text was given out last, then those that wait.
    window: Vec<u32>,
    /// How many of the window are given out.
    settled: usize,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, before: &[u32]) -> Self {
        // Where single bytes are tokens, a run of them that begins or ends within a character is no text at all. So the
        // window begins where a character does, and one that the prompt has begun waits for its end.
        let window = |unfinished: usize, more: usize| {
            let settled = before.len().saturating_sub(unfinished);
            (settled.saturating_sub(FROM_BEFORE + more), settled)
        };
        let whole = |&(start, settled): &(usize, usize)| {
            let text = tokenizer.decode(&before[start..settled]);
            text.is_ok_and(|text| !text.starts_with(INCOMPLETE) && !text.ends_with(INCOMPLETE))
        };
        let (start, settled) = (0..=MOST_UNFINISHED)
            .flat_map(|unfinished| (0..=MOST_UNFINISHED).map(move |more| window(unfinished, more)))
            .find(whole)
            .unwrap_or(window(0, 0));
        Self { tokenizer, window: before[start..].to_vec(), settled: settled - start }
    }

    /// The text that is whole with this token; often none.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.window.push(id);
        let patient = self.window.len() - self.settled < MOST_WAITING;
        self.emit(patient)
    }

    /// What waits still, with replacement characters for what never became one.
    pub fn finish(mut self) -> Result<String> {
        self.emit(false)
    }

    fn emit(&mut self, patient: bool) -> Result<String> {
        let before = self.tokenizer.decode(&self.window[..self.settled])?;
        let now = self.tokenizer.decode(&self.window)?;
        let added = difference(&before, &now);
        if added.is_empty() || (patient && added.ends_with(INCOMPLETE)) {
            if !patient {
                // Special tokens have no text, and a thousand of them are not decoded again and again.
                self.window.truncate(self.settled);
            }
            return Ok(String::new());
        }
        self.window.drain(..self.settled);
        self.settled = self.window.len();
        Ok(added.to_owned())
    }
}

/// What `now` has after all that it shares with `before`. Bytes that are no character may turn into one with the next.
fn difference<'t>(before: &str, now: &'t str) -> &'t str {
    let shared = before.chars().zip(now.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &now[shared..]
}
