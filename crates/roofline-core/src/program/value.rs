//! What steps hand to each other.

/// A tensor that lives for a pass: rows of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// The ids of the new tokens.
    Tokens,
    /// The residual stream.
    Stream,
    /// What a norm makes of it, and what products of a layer read.
    Normed,
    /// Queries of all heads.
    Query,
    /// Keys of the new tokens.
    Key,
    /// Values of the new tokens.
    Value,
    /// Compressed queries, where they are compressed.
    QueryLatent,
    /// Scores of queries with keys, written out.
    Scores,
    /// Their softmax.
    Probabilities,
    /// Values mixed by attention.
    Mixed,
    /// What attention adds to the stream.
    Attended,
    /// Scores of the experts.
    Choice,
    /// The gate of a feed-forward block.
    Gate,
    /// Its way up.
    Up,
    /// What its way down reads.
    Inner,
    /// What a feed-forward block adds to the stream.
    Fed,
    /// What experts that every token meets add to it.
    Shared,
    /// Scores of the vocabulary.
    Logits,
}

/// What a step does with the keys and values of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// Adds those of the new tokens.
    Write,
    /// Reads those of the context.
    Read,
}
