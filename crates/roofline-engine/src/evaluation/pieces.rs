//! Long texts into tokens, piece by piece, so that memory holds the tokens and never the text.
//!
//! Pieces overlap. Where a piece was cut, its first and last tokens depend on the cut; further in they are those of the
//! whole text. So both tokenizations of an overlap are laid side by side, and the text goes over from one to the other
//! in the middle of a run of tokens on which both agree.

use crate::{Result, Tokenizer};

/// Bytes of a piece, and of what two neighbours share.
const SIZES: (usize, usize) = (1 << 20, 1 << 14);
/// Tokens on which two pieces must agree.
const RUN: usize = 32;

/// A token, and the byte of the text where it begins.
type Placed = (u32, usize);

/// A text on its way.
pub struct Pieces<'t> {
    tokenizer: &'t Tokenizer,
    sizes: (usize, usize),
    /// Where it is enough.
    most: usize,
    tokens: Vec<u32>,
    /// Tokens of the last piece that begin in what it shares with the next.
    held: Vec<Placed>,
    /// Text that is not settled, and where it begins.
    text: String,
    start: usize,
}

impl<'t> Pieces<'t> {
    /// Nothing yet. What `first` holds stands before all tokens, and no more than `most` are made.
    pub fn new(tokenizer: &'t Tokenizer, first: Option<u32>, most: Option<usize>) -> Self {
        Self::with(tokenizer, first, most, SIZES)
    }

    fn with(tokenizer: &'t Tokenizer, first: Option<u32>, most: Option<usize>, sizes: (usize, usize)) -> Self {
        let most = most.unwrap_or(usize::MAX);
        let tokens = first.into_iter().collect();
        Self { tokenizer, sizes, most, tokens, held: Vec::new(), text: String::new(), start: 0 }
    }

    /// Whether there are as many tokens as are wanted.
    pub fn is_full(&self) -> bool {
        self.tokens.len() >= self.most
    }

    /// More text.
    pub fn push(&mut self, mut text: &str) -> Result<()> {
        while !text.is_empty() && !self.is_full() {
            let mut room = self.sizes.0.saturating_sub(self.text.len()).clamp(1, text.len());
            while !text.is_char_boundary(room) {
                room += 1;
            }
            let (now, later) = text.split_at(room);
            self.text += now;
            text = later;
            if self.text.len() >= self.sizes.0 {
                self.settle(false)?;
            }
        }
        Ok(())
    }

    /// All tokens.
    pub fn finish(mut self) -> Result<Vec<u32>> {
        if !self.is_full() && !self.text.is_empty() {
            self.settle(true)?;
        }
        self.tokens.truncate(self.most);
        Ok(self.tokens)
    }

    /// Makes tokens of the text that there is, but for its end where more is to come.
    fn settle(&mut self, last: bool) -> Result<()> {
        let mut placed = self.placed()?;
        if !self.held.is_empty() {
            let begin = if let Some((before, after)) = meeting(&self.held, &placed) {
                self.tokens.extend(self.held[..before].iter().map(|(token, _)| *token));
                after
            } else {
                // No two cuts agree, as in a line of one letter without end: the text is cut between two tokens.
                let cut = self.held[self.held.len() / 2..].iter().find(|(_, place)| {
                    place.checked_sub(self.start).is_some_and(|at| at > 0 && self.text.is_char_boundary(at))
                });
                let place = cut.map_or(self.start, |(_, place)| *place);
                let before = self.held.iter().take_while(|(_, at)| *at < place);
                self.tokens.extend(before.map(|(token, _)| *token));
                self.text.drain(..place - self.start);
                self.start = place;
                placed = self.placed()?;
                0
            };
            placed.drain(..begin);
        }
        let mut cut = if last { self.text.len() } else { self.text.len() - self.sizes.1.min(self.text.len() / 2) };
        while !self.text.is_char_boundary(cut) {
            cut -= 1;
        }
        let end = self.start + cut;
        let settled = if last { placed.len() } else { placed.partition_point(|(_, place)| *place < end) };
        self.tokens.extend(placed[..settled].iter().map(|(token, _)| *token));
        self.held = placed.split_off(settled);
        self.text.drain(..cut);
        self.start = end;
        Ok(())
    }

    fn placed(&self) -> Result<Vec<Placed>> {
        let placed = self.tokenizer.places(&self.text)?;
        Ok(placed.into_iter().map(|(token, place)| (token, self.start + place)).collect())
    }
}

/// Where two tokenizations agree: how many tokens of the one come before that, and how many of the other.
fn meeting(one: &[Placed], other: &[Placed]) -> Option<(usize, usize)> {
    let run = RUN.min(one.len() / 2).max(1);
    (0..(one.len() + 1).saturating_sub(run)).find_map(|at| {
        let begins = at == 0 || one[at - 1].1 < one[at].1;
        let beside = other.partition_point(|(_, place)| *place < one[at].1);
        let agree = begins && other.len() >= beside + run && one[at..at + run] == other[beside..beside + run];
        agree.then_some((at + run / 2, beside + run / 2))
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn tokenizers() -> Vec<(String, Tokenizer)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers");
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let of = |folder: std::path::PathBuf| {
            let files = [("tokenizer.json".to_owned(), fs::read(folder.join("tokenizer.json")).unwrap())];
            (folder.display().to_string(), Tokenizer::from_files(&files).unwrap().unwrap())
        };
        entries.map(of).collect()
    }

    /// A text with words, numbers, indentation, letters of several bytes and lines without a space.
    fn text() -> String {
        let line = "The quick brown fox jumps over 13 lazy dogs; größere 2.5e-3 — 漢字かな交じり文 🦀🦀.\n\n    if x == 0:\n\t\treturn \"ok\"\n";
        let lines: Vec<String> = (0..40).map(|at| format!("{at} {line}{}", "=".repeat(at % 7 * 5))).collect();
        lines.concat()
    }

    /// Whatever the pieces, the tokens are those of the whole text, for every family of tokenizers.
    #[test]
    fn pieces_make_the_same_tokens() {
        let text = text();
        for (name, tokenizer) in tokenizers() {
            let whole = tokenizer.encode(&text, false).unwrap();
            for sizes in [(900, 400), (1501, 600), (1 << 20, 100)] {
                for step in [7, 1000, text.len()] {
                    let mut pieces = Pieces::with(&tokenizer, Some(1), None, sizes);
                    let mut rest = text.as_str();
                    while !rest.is_empty() {
                        let mut step = step.min(rest.len());
                        while !rest.is_char_boundary(step) {
                            step += 1;
                        }
                        pieces.push(&rest[..step]).unwrap();
                        rest = &rest[step..];
                    }
                    let tokens = pieces.finish().unwrap();
                    assert_eq!(tokens[0], 1);
                    assert_eq!(tokens[1..], whole, "{name} {sizes:?}");
                }
            }
        }
    }

    /// No more than are asked for, and no more text is looked at than these need.
    #[test]
    fn enough_is_enough() {
        let text = text();
        let (_, tokenizer) = tokenizers().remove(0);
        let whole = tokenizer.encode(&text, false).unwrap();
        let mut pieces = Pieces::with(&tokenizer, None, Some(100), (900, 400));
        pieces.push(&text).unwrap();
        assert!(pieces.is_full());
        assert_eq!(pieces.finish().unwrap(), whole[..100]);
    }

    /// One letter without end has no place at which pieces agree; the text comes back all the same.
    #[test]
    fn what_has_no_seam_is_cut() {
        for (name, tokenizer) in tokenizers() {
            let text = "a".repeat(5000);
            let mut pieces = Pieces::with(&tokenizer, None, None, (900, 400));
            pieces.push(&text).unwrap();
            let tokens = pieces.finish().unwrap();
            let back = tokenizer.decode(&tokens).unwrap();
            assert_eq!(back.chars().filter(|letter| *letter == 'a').count(), 5000, "{name}");
        }
    }
}
