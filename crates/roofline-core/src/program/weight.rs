//! The weights that steps name, whatever a checkpoint calls them.

use crate::Role;

/// A weight of a layer, or of the model. A product's bias goes with its matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Weight {
    /// The table of token vectors.
    Embedding,
    /// The norm before attention.
    InputNorm,
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// To compressed queries.
    QueryDown,
    /// Their norm.
    QueryDownNorm,
    /// From compressed queries.
    QueryUp,
    /// To compressed keys and values.
    KeyValueDown,
    /// Their norm.
    KeyValueDownNorm,
    /// From compressed keys and values.
    KeyValueUp,
    /// The norm of each head's queries.
    QueryNorm,
    /// The norm of each head's keys.
    KeyNorm,
    /// A score per head that no key has.
    Sinks,
    /// What attention's heads are joined with.
    Output,
    /// The norm of what attention adds.
    PostAttentionNorm,
    /// The norm before the feed-forward block.
    FeedForwardNorm,
    /// The gate of a feed-forward block.
    Gate,
    /// Its way up.
    Up,
    /// Its way down.
    Down,
    /// The norm of what it adds.
    PostFeedForwardNorm,
    /// Which expert a token goes to.
    Router,
    /// The gates of experts.
    ExpertGate,
    /// Their ways up.
    ExpertUp,
    /// Their ways down.
    ExpertDown,
    /// The gate of experts that every token meets.
    SharedGate,
    /// Their way up.
    SharedUp,
    /// Their way down.
    SharedDown,
    /// The norm of the stream at the end.
    FinalNorm,
    /// The output head over the vocabulary.
    Head,
}

impl Weight {
    /// What it is for, as plans call it.
    pub const fn role(self) -> Role {
        match self {
            Self::Embedding => Role::Embedding,
            Self::Query | Self::QueryDown | Self::QueryUp => Role::Query,
            Self::Key | Self::KeyValueDown => Role::Key,
            Self::Value | Self::KeyValueUp => Role::Value,
            Self::Output => Role::Output,
            Self::Gate | Self::SharedGate => Role::Gate,
            Self::Up | Self::SharedUp => Role::Up,
            Self::Down | Self::SharedDown => Role::Down,
            Self::Router => Role::Router,
            Self::ExpertGate => Role::ExpertGate,
            Self::ExpertUp => Role::ExpertUp,
            Self::ExpertDown => Role::ExpertDown,
            Self::Head => Role::Head,
            Self::InputNorm
            | Self::QueryDownNorm
            | Self::KeyValueDownNorm
            | Self::QueryNorm
            | Self::KeyNorm
            | Self::Sinks
            | Self::PostAttentionNorm
            | Self::FeedForwardNorm
            | Self::PostFeedForwardNorm
            | Self::FinalNorm => Role::Vector,
        }
    }

    /// Whether it is a matrix, and not a vector.
    pub fn is_matrix(self) -> bool {
        self.role() != Role::Vector
    }
}
