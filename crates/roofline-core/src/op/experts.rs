//! Products of a mixture of experts: each token meets a few of many weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Dim, Precision, Work,
    format::{Shape, Sizes},
    units::Flops,
};

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
    fn rows(&self) -> u128 {
        self.tokens.wide() * self.active.wide()
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
