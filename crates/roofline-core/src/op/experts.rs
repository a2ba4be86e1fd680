//! Products of a mixture of experts: each token meets a few of many weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Precision, Work,
    format::{Shape, Sizes},
    units::Flops,
};

/// Standard deviations beyond which a normal distribution has nothing that is counted.
const FAR: f64 = 6.0;

/// One side of the routed experts, for all tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Experts {
    /// Tokens in flight.
    pub tokens: Dim,
    /// Routed experts.
    pub experts: Dim,
    /// How many a token uses.
    pub active: Dim,
    /// Output features.
    pub n: Dim,
    /// Input features.
    pub k: Dim,
    /// Which products.
    pub side: ExpertSide,
}

/// Which products of the experts a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpertSide {
    /// Gate and up with the activation in the epilogue; writes what `Down` reads.
    GatedUp,
    /// Up (or gate) alone, or with a plain activation.
    Up,
    /// Back to the hidden size; outputs of a token's experts are added before they are written.
    Down,
}

impl Experts {
    /// Expected number of distinct experts that `tokens` choose, if each draws `active` of `experts` independently and
    /// evenly: `experts (1 - (1 - active/experts)^tokens)`.
    pub fn distinct(&self) -> f64 {
        let missed = (1.0 - self.active.float() / self.experts.float()).powf(self.tokens.float());
        self.experts.float() * (1.0 - missed)
    }

    /// Rows that the experts see: every token `active` times.
    pub fn rows(&self) -> u128 {
        self.tokens.wide() * self.active.wide()
    }

    /// Rows of an expert that any token chose, in the mean, and how many more others have: tokens that choose at random leave some
    /// experts with more rows than others, by about the square root of their mean.
    pub(crate) fn rows_each(&self) -> (f64, f64) {
        let mean = self.rows() as f64 / self.distinct();
        let spread = if mean > 1.0 && self.active < self.experts { mean.sqrt() } else { 0.0 };
        (mean, spread)
    }

    /// Tiles of `height` rows that hold the rows of all experts, where none has rows of two: an expert has a tile more wherever its
    /// rows, which are spread about their mean as a normal distribution, are more than those before it hold.
    pub(crate) fn tiles(&self, height: f64) -> f64 {
        let (mean, spread) = self.rows_each();
        // Beyond six standard deviations nearly all have them, or nearly none.
        let sure = ((mean - FAR * spread - 1.0) / height).floor().max(0.0);
        let more = |full: f64| {
            let past = full * height + 0.5 - mean;
            if spread > 0.0 {
                libm::erfc(past / (spread * std::f64::consts::SQRT_2)) / 2.0
            } else {
                f64::from(u8::from(past < 0.0))
            }
        };
        let mut tiles = sure.max(1.0);
        let mut full = sure.max(1.0);
        while full * height < mean + FAR * spread {
            tiles += more(full);
            full += 1.0;
        }
        self.distinct() * tiles
    }

    /// The fewest experts that a batch can touch: all its tokens may choose the same.
    pub fn fewest(&self) -> f64 {
        self.active.float()
    }

    /// Work that reads the weights of `touched` experts.
    pub(super) fn work(self, precision: &Precision, sizes: Sizes, touched: f64) -> Work {
        let rows = self.rows();
        // The tokens themselves are read once, whichever experts they go to; between the products there is a row per expert.
        let inputs = if self.side == ExpertSide::Down { rows } else { rows.min(self.tokens.wide()) };
        let matrices = if self.side == ExpertSide::GatedUp { 2.0 } else { 1.0 };
        let weights = precision.weights.bytes(Shape::matrix(self.n, self.k), sizes);
        let written = match self.side {
            ExpertSide::GatedUp => precision.activations.bytes(Shape::new(rows, self.n), sizes),
            ExpertSide::Up => precision.output.bytes(Shape::new(rows, self.n), sizes),
            ExpertSide::Down => precision.output.bytes(Shape::matrix(self.tokens, self.n), sizes),
        };
        Work {
            flops: Flops::new(matrices * 2.0 * rows as f64 * self.n.float() * self.k.float()),
            read: precision.activations.bytes(Shape::new(inputs, self.k), sizes) + weights * (matrices * touched),
            write: written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(tokens: u64, active: u64, experts: u64) -> Experts {
        let dim = |value| Dim::new("test", value).unwrap();
        let (tokens, active, experts) = (dim(tokens), dim(active), dim(experts));
        Experts { tokens, experts, active, n: dim(2880), k: dim(2880), side: ExpertSide::Down }
    }

    #[test]
    fn experts_fill_tiles_of_their_own() {
        // 4 of 32 by one token: four tiles with a row each.
        assert!((experts(1, 4, 32).tiles(16.0) - 4.0).abs() < 1e-9);
        // Every expert has all 100 rows: seven tiles of 16 each, exactly.
        assert!((experts(100, 8, 8).tiles(16.0) - 56.0).abs() < 1e-9);
        assert!((experts(96, 8, 8).tiles(16.0) - 48.0).abs() < 1e-9);
        // 256 rows each in the mean: half of them have more, and need a second tile of 256.
        let half = experts(2048, 4, 32).tiles(256.0);
        assert!((half / 32.0 - 1.5).abs() < 0.02, "{half}");
        // Many rows: half a tile more than they fill.
        let many = experts(1 << 20, 4, 32);
        assert!((many.tiles(256.0) / 32.0 - (512.0 + 0.5)).abs() < 0.02, "{}", many.tiles(256.0));
    }

    /// What was drawn says the same: tokens of a simple generator, each with two of eight experts.
    #[test]
    fn drawn_tokens_fill_as_many() {
        let (tokens, height) = (64, 16);
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut tiles = 0;
        let draws = 400;
        for _ in 0..draws {
            let mut rows = [0_u64; 8];
            for _ in 0..tokens {
                let first = next(8);
                rows[first as usize] += 1;
                rows[((first + 1 + next(7)) % 8) as usize] += 1;
            }
            tiles += rows.iter().map(|rows| rows.div_ceil(height)).sum::<u64>();
        }
        let (counted, told) = (tiles as f64 / f64::from(draws), experts(tokens, 2, 8).tiles(height as f64));
        assert!((told / counted - 1.0).abs() < 0.03, "{told} {counted}");
    }
}
