//! How well a model predicts a text, and how far it is from the one it was made of.
//!
//! A text is gone through in [`Windows`]; each gives one [`WindowScore`], and everything that is told is a sum of those.
//! Two models go in step, piece by piece, so that the logits of a window never lie in memory at once.

mod pieces;
pub(crate) mod row;
mod runner;
mod statistics;
mod windows;

use std::{ops::Range, thread};

use roofline_run::cpu::Pool;
use serde::{Deserialize, Serialize};

pub use self::{
    pieces::Pieces,
    row::{Alone, Beside},
    statistics::{Estimate, Spread, ratio},
    windows::Windows,
};
use self::{
    row::{alone, beside},
    runner::Runner,
};
use crate::{Engine, Error, LayerOutput, Result, Wanted};

/// Parts that the positions of a window are told in.
pub const BINS: usize = 16;
/// Tokens that are remembered for how differently they were predicted.
pub const WORST: usize = 10;
/// Logits that a piece may have at most, in bytes, where nobody says how long a piece is.
const LOGITS: usize = 64 << 20;

/// Tokens of a piece, where nobody says: as many as a window has, unless their logits take too much room.
pub fn chunk(vocabulary: usize, window: usize) -> usize {
    (LOGITS / 4 / vocabulary.max(1)).clamp(32, 512).min(window.max(1))
}

/// What a window says of a model, and of another beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowScore {
    /// Which window.
    pub index: usize,
    /// Tokens that were scored.
    pub tokens: usize,
    /// The sum of their negative log-likelihoods, in nats.
    pub nll: f64,
    /// The same of the tokens that llama.cpp scores, where the window is one of its chunks.
    pub chunk: Option<ChunkScore>,
    /// Sums by position in the window.
    pub positions: Vec<PositionScore>,
    /// What the original says, and how far the model is from it.
    pub against: Option<AgainstScore>,
}

/// Sums over a chunk of llama.cpp's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChunkScore {
    /// Tokens.
    pub tokens: usize,
    /// The sum of their negative log-likelihoods.
    pub nll: f64,
    /// The sum of the squares of those.
    pub squares: f64,
}

/// Sums over a part of the positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PositionScore {
    /// Tokens.
    pub tokens: usize,
    /// Their negative log-likelihoods.
    pub nll: f64,
    /// The divergence from the original; zero without one.
    pub kl: f64,
}

/// A window against the original.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgainstScore {
    /// The original's own negative log-likelihood.
    pub nll: f64,
    /// The same of llama.cpp's tokens.
    pub chunk: Option<ChunkScore>,
    /// The sum of the divergences, in nats.
    pub kl: f64,
    /// How they are spread.
    pub spread: Spread,
    /// Tokens for which both think the same most probable.
    pub agree: usize,
    /// Where they differ most.
    pub worst: Vec<Differing>,
    /// For each layer the power of what the original hands on, and that of the difference.
    pub layers: Vec<(f64, f64)>,
}

/// A token that two models see differently.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differing {
    /// Which token of the text.
    pub position: usize,
    /// The divergence, in nats.
    pub kl: f64,
    /// The probability that the model gave it.
    pub probability: f64,
    /// The probability that the original gave it.
    pub original_probability: f64,
    /// What the model thought most probable.
    pub top: u32,
    /// What the original thought most probable.
    pub original_top: u32,
}

/// Scores windows `todo` one after the other; `each` hears of every one as it is done and may end it with an error.
///
/// `sample` says how many tokens share one look at the layers: of every so manieth token, what each layer hands on is
/// compared; of none where it is zero.
pub fn evaluate<E: From<Error>>(
    model: &Engine<'_>,
    original: Option<&Engine<'_>>,
    windows: &Windows<'_>,
    todo: Range<usize>,
    sample: usize,
    each: &mut dyn FnMut(WindowScore) -> Result<(), E>,
) -> Result<(), E> {
    let sample = if original.is_some() { sample } else { 0 };
    let piece = original.map_or(model.chunk, |original| original.chunk.min(model.chunk)).max(1);
    let mut pool = Pool::new(model.settings.threads);
    thread::scope(|scope| {
        let model = Runner::start(scope, model, windows.window(), sample);
        let original = original.map(|original| Runner::start(scope, original, windows.window(), sample));
        for index in todo {
            each(window(&model, original.as_ref(), windows, index, piece, &mut pool)?)?;
        }
        Ok(())
    })
}

/// Scores one window.
fn window(
    model: &Runner,
    original: Option<&Runner>,
    windows: &Windows<'_>,
    index: usize,
    piece: usize,
    pool: &mut Pool,
) -> Result<WindowScore> {
    let tokens = windows.tokens(index);
    let scored = windows.scored(index);
    let mut sums = Sums::new(windows, index, original.is_some());
    // What comes before the first prediction that counts needs no logits of its own.
    let first = scored.start - 1;
    let starts = (0..first).step_by(piece).map(|start| (start..(start + piece).min(first), Wanted::Last));
    // The last token predicts one that the window has not.
    let last = tokens.len() - 1;
    let counted = (first..last).step_by(piece).map(|start| (start..(start + piece).min(last), Wanted::All));
    for (range, wanted) in starts.chain(counted) {
        let ask = |runner: &Runner| runner.ask(tokens[range.clone()].to_vec(), wanted, range.start == 0);
        ask(model)?;
        let own = model.told()?;
        let other = match original {
            Some(original) => {
                ask(original)?;
                Some(original.told()?)
            }
            None => None,
        };
        if let Some(other) = &other {
            sums.layers(&own.layers, &other.layers);
        }
        if wanted == Wanted::All {
            let targets = &tokens[range.start + 1..=range.end];
            match other {
                None => sums.alone(range.start + 1, &alone(pool, &own.logits, targets)?),
                Some(other) => sums.beside(range.start + 1, &beside(pool, &own.logits, &other.logits, targets)?),
            }
        }
    }
    Ok(sums.finish())
}

/// What a window adds up to.
struct Sums<'w> {
    windows: &'w Windows<'w>,
    score: WindowScore,
    chunk: Option<Range<usize>>,
}

impl<'w> Sums<'w> {
    fn new(windows: &'w Windows<'w>, index: usize, pair: bool) -> Self {
        let chunk = windows.chunk(index);
        let sums = chunk.as_ref().map(|_| ChunkScore::default());
        let against = pair.then(|| AgainstScore { chunk: sums, ..AgainstScore::default() });
        let positions = vec![PositionScore::default(); BINS];
        let score = WindowScore { index, chunk: sums, positions, against, ..WindowScore::default() };
        Self { windows, score, chunk }
    }

    /// Predictions of the tokens from position `first` of the window on.
    fn alone(&mut self, first: usize, rows: &[Alone]) {
        for (at, row) in rows.iter().enumerate() {
            self.one(first + at, row.nll, 0.0);
        }
    }

    fn one(&mut self, position: usize, nll: f64, kl: f64) {
        let score = &mut self.score;
        score.tokens += 1;
        score.nll += nll;
        if let Some(chunk) =
            score.chunk.as_mut().filter(|_| self.chunk.as_ref().is_some_and(|own| own.contains(&position)))
        {
            chunk.add(nll);
        }
        let bin = &mut score.positions[position * BINS / self.windows.window()];
        bin.tokens += 1;
        bin.nll += nll;
        bin.kl += kl;
    }

    /// The same of two models.
    fn beside(&mut self, first: usize, rows: &[Beside]) {
        for (at, row) in rows.iter().enumerate() {
            let position = first + at;
            self.one(position, row.own.nll, row.kl);
            let Some(against) = &mut self.score.against else { continue };
            against.nll += row.original.nll;
            if let Some(chunk) =
                against.chunk.as_mut().filter(|_| self.chunk.as_ref().is_some_and(|own| own.contains(&position)))
            {
                chunk.add(row.original.nll);
            }
            against.kl += row.kl;
            against.spread.add(row.kl);
            against.agree += usize::from(row.own.top == row.original.top);
            against.worst.push(Differing {
                position: self.windows.position(self.score.index, position),
                kl: row.kl,
                probability: (-row.own.nll).exp(),
                original_probability: (-row.original.nll).exp(),
                top: row.own.top,
                original_top: row.original.top,
            });
        }
    }

    /// What layers handed on: of the model, and of the original.
    fn layers(&mut self, own: &[LayerOutput], original: &[LayerOutput]) {
        let Some(against) = &mut self.score.against else { return };
        // A piece may have no token that is looked at.
        against.layers.resize(against.layers.len().max(own.len()), (0.0, 0.0));
        for ((power, noise), (own, original)) in against.layers.iter_mut().zip(own.iter().zip(original)) {
            for (own, original) in own.values.iter().zip(&original.values) {
                *power += f64::from(*original).powi(2);
                *noise += (f64::from(*own) - f64::from(*original)).powi(2);
            }
        }
    }

    fn finish(mut self) -> WindowScore {
        if let Some(against) = &mut self.score.against {
            keep_worst(&mut against.worst);
        }
        self.score
    }
}

impl ChunkScore {
    fn add(&mut self, nll: f64) {
        self.tokens += 1;
        self.nll += nll;
        self.squares += nll * nll;
    }
}

/// Keeps those that differ most, the first first.
pub fn keep_worst(worst: &mut Vec<Differing>) {
    worst.sort_by(|one, other| other.kl.total_cmp(&one.kl).then(one.position.cmp(&other.position)));
    worst.truncate(WORST);
}

#[cfg(test)]
mod tests;
