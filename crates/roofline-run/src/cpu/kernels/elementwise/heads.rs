//! Heads inside of wider rows: a fused projection writes queries, keys and values of a token side by side, and kernels
//! read and write each where it lies.

use super::{Target, wide};
use crate::cpu::{kernels::element::Kind, tensor::Tensor, unsupported::Unsupported};

/// Where the heads of each token lie, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Heads of a token.
    pub count: usize,
    /// Features of a head.
    pub width: usize,
    /// From the row of a token to that of the next.
    pub pitch: usize,
    /// From the start of a row to its first head.
    pub offset: usize,
}

impl Heads {
    /// Rows that hold `count` heads of `width` features and nothing else.
    pub fn dense(count: usize, width: usize) -> Self {
        Self { count, width, pitch: count * width, offset: 0 }
    }

    /// The same heads from `offset` on in rows of `pitch` elements.
    #[must_use]
    pub fn within(self, pitch: usize, offset: usize) -> Self {
        Self { pitch, offset, ..self }
    }

    /// The first element of a head; `row` counts heads of all tokens.
    pub(super) fn at(&self, row: usize) -> usize {
        self.place(row / self.count, row % self.count)
    }

    /// The first element of head `head` of token `token`.
    pub(super) fn place(&self, token: usize, head: usize) -> usize {
        token * self.pitch + self.offset + head * self.width
    }

    /// The kind of an input that has these heads, its size checked.
    pub(super) fn input(&self, x: &Tensor<'_>) -> Result<Kind, Unsupported> {
        let kind = super::plain("input", x)?;
        assert_eq!(x.columns, self.pitch, "the heads are of rows of another length");
        self.check(x.rows, x.codes.len(), kind);
        Ok(kind)
    }

    /// The kind of a target that has these heads for `tokens` tokens, its size checked.
    pub(super) fn output(&self, out: &Target<'_>, tokens: usize) -> Result<Kind, Unsupported> {
        let kind = wide("output", out.format)?;
        self.check(tokens, out.codes.len(), kind);
        Ok(kind)
    }

    /// Whether heads end within their rows, and rows with the tensor: kernels reach them through pointers.
    fn check(&self, tokens: usize, bytes: usize, kind: Kind) {
        let end = self.count.checked_mul(self.width).and_then(|heads| heads.checked_add(self.offset));
        assert!(end.is_some_and(|end| end <= self.pitch), "{self:?} do not fit their rows");
        let needed = tokens.checked_mul(self.pitch).and_then(|elements| elements.checked_mul(kind.bytes()));
        assert_eq!(needed, Some(bytes), "{tokens} rows of {} elements have another size", self.pitch);
    }
}
