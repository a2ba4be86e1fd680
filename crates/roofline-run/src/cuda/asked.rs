//! What a call of attention is asked for beside what its kernel is compiled for.

/// Where operands are in the GPU's memory, and what may differ from call to call. Addresses of what there is not are zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Of every sequence.
    pub(super) sequences: usize,
    pub(super) new: usize,
    /// Queries: `[sequence][new token]`, each a row of heads.
    pub(super) queries: u64,
    /// Numbers from one token's queries to the next one's, a multiple of 8.
    pub(super) query_pitch: usize,
    /// Keys and values, `[sequence][kv head][capacity][feature]` or, in pages, `[page][kv head][row][feature]`; the new
    /// tokens' are among them. All addresses are multiples of 16.
    pub(super) keys: u64,
    pub(super) values: u64,
    /// BF16 scales of their rows, where they are of 8 bit.
    pub(super) key_scales: u64,
    pub(super) value_scales: u64,
    /// Keys that a sequence may have.
    pub(super) capacity: usize,
    /// An `i32` per sequence: keys that it had before the new tokens.
    pub(super) starts: u64,
    /// Where the cache has pages, how many, and an `i32` for each of a sequence's: `[sequence][capacity / rows of a page]`.
    pub(super) pages: usize,
    pub(super) table: u64,
    /// A float per query head.
    pub(super) sinks: u64,
    /// `[token][head][feature]`.
    pub(super) out: u64,
    /// What blocks leave for each other, as large as the plan says; its contents do not matter.
    pub(super) shares: u64,
    /// Zeros, as many as the plan says, which are zeros again afterwards.
    pub(super) counters: u64,
    /// Keys that a token sees at most, itself included.
    pub(super) window: Option<usize>,
    /// What products are multiplied with to be scores.
    pub(super) scale: f32,
    /// What bounds scores.
    pub(super) cap: Option<f32>,
    /// What is done with `queries` first, which are then a row of query, key and value heads for each token.
    pub(super) turn: Option<Turn>,
}

/// A way of queries, keys and values into the cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// What is added to them, and weights of the norms of queries and of keys: FP32.
    pub(super) bias: u64,
    pub(super) norms: [u64; 2],
    /// Cosines and sines by position.
    pub(super) table: u64,
    /// What norms add to a mean square.
    pub(super) epsilon: f32,
}
