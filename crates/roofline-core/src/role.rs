//! What a kernel or a weight is for: the words in which a plan says what is stored how.

use std::{fmt, str::FromStr};

use crate::{Dim, Error};

/// What a weight, or a kernel without weights, is for. Weights of experts have roles of their own, because there are many
/// of them and few are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// What attention's heads are joined with, and every other product of attention.
    Output,
    /// The gate of a feed-forward block.
    Gate,
    /// The way up of a feed-forward block.
    Up,
    /// The way down of a feed-forward block.
    Down,
    /// The gate of an expert.
    ExpertGate,
    /// The way up of an expert.
    ExpertUp,
    /// The way down of an expert.
    ExpertDown,
    /// Which expert a token goes to.
    Router,
    /// The output head over the vocabulary.
    Head,
    /// The table of token vectors.
    Embedding,
    /// Attention itself: queries over the cache.
    Mix,
    /// Norms, biases, sums, and every other vector.
    Vector,
    /// Anything else: convolutions, vision towers, relative positions.
    Other,
}

use Role as R;

impl Role {
    /// Every role, in the order of a forward pass.
    pub const ALL: [Self; 16] = [
        R::Query,
        R::Key,
        R::Value,
        R::Output,
        R::Gate,
        R::Up,
        R::Down,
        R::ExpertGate,
        R::ExpertUp,
        R::ExpertDown,
        R::Router,
        R::Head,
        R::Embedding,
        R::Mix,
        R::Vector,
        R::Other,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::Output => "output",
            Self::Gate | Self::ExpertGate => "gate",
            Self::Up | Self::ExpertUp => "up",
            Self::Down | Self::ExpertDown => "down",
            Self::Router => "router",
            Self::Head => "head",
            Self::Embedding => "embedding",
            Self::Mix => "mix",
            Self::Vector => "vector",
            Self::Other => "other",
        }
    }

    /// The same in an expert.
    #[must_use]
    pub const fn of_expert(self) -> Self {
        match self {
            Self::Gate => Self::ExpertGate,
            Self::Up => Self::ExpertUp,
            Self::Down => Self::ExpertDown,
            other => other,
        }
    }

    /// Whether it is a product of attention.
    pub const fn is_attention(self) -> bool {
        matches!(self, Self::Query | Self::Key | Self::Value | Self::Output)
    }

    /// Whether it is a product of a feed-forward block, of an expert's too.
    pub const fn is_feed_forward(self) -> bool {
        matches!(self, Self::Gate | Self::Up | Self::Down) || self.is_expert()
    }

    /// Whether it is a product of an expert.
    pub const fn is_expert(self) -> bool {
        matches!(self, Self::ExpertGate | Self::ExpertUp | Self::ExpertDown)
    }

    /// Whether it is a matrix product inside a layer, routers aside: what a precision's name speaks of.
    pub const fn is_layer_product(self) -> bool {
        self.is_attention() || self.is_feed_forward()
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Several roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Roles(u16);

/// The words for roles and for groups of them.
const WORDS: &[(&str, &[Role])] = &[
    ("query", &[R::Query]),
    ("key", &[R::Key]),
    ("value", &[R::Value]),
    ("output", &[R::Output]),
    ("gate", &[R::Gate, R::ExpertGate]),
    ("up", &[R::Up, R::ExpertUp]),
    ("down", &[R::Down, R::ExpertDown]),
    ("router", &[R::Router]),
    ("experts", &[R::ExpertGate, R::ExpertUp, R::ExpertDown]),
    ("head", &[R::Head]),
    ("embedding", &[R::Embedding]),
    ("attention", &[R::Query, R::Key, R::Value, R::Output]),
    ("ffn", &[R::Gate, R::Up, R::Down, R::ExpertGate, R::ExpertUp, R::ExpertDown]),
];

/// Other words for the same.
const ALIASES: &[(&str, &str)] = &[
    ("q", "query"),
    ("k", "key"),
    ("v", "value"),
    ("o", "output"),
    ("feed-forward", "ffn"),
    ("feed_forward", "ffn"),
    ("mlp", "ffn"),
    ("expert", "experts"),
    ("moe", "experts"),
    ("lm_head", "head"),
    ("embeddings", "embedding"),
    ("embed", "embedding"),
    ("attn", "attention"),
];

impl Roles {
    /// Every matrix of a model.
    pub const EVERY: Self = Self((1 << 13) - 1);

    /// Those of a list.
    pub const fn of(roles: &[Role]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < roles.len() {
            bits |= 1 << roles[at] as u16;
            at += 1;
        }
        Self(bits)
    }

    /// Whether `role` is among them.
    pub const fn has(self, role: Role) -> bool {
        self.0 >> role as u16 & 1 == 1
    }

    /// The word for exactly these, where there is one.
    pub fn word(self) -> Option<&'static str> {
        if self == Self::EVERY {
            return Some("*");
        }
        WORDS.iter().find(|(_, roles)| Self::of(roles) == self).map(|(word, _)| *word)
    }
}

impl FromStr for Roles {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let name = text.trim().to_ascii_lowercase();
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, word)| word);
        if name == "*" {
            return Ok(Self::EVERY);
        }
        let known = WORDS.iter().find(|(word, _)| *word == name);
        known.map(|(_, roles)| Self::of(roles)).ok_or_else(|| {
            let words: Vec<&str> = WORDS.iter().map(|(word, _)| *word).collect();
            Error::unknown("role", text, words.iter().copied(), format!("roles: {}, kv, *", words.join(", ")))
        })
    }
}

/// What the weights of one kernel are for: one thing, or several that a fused kernel reads together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// One role.
    One(Role),
    /// Queries, keys and values in one product, with that many features of queries and of keys.
    Qkv {
        /// Features of the queries.
        query: Dim,
        /// Features of the keys, and of the values.
        key: Dim,
    },
    /// Gate and way up in one kernel.
    GateUp,
    /// The same of experts.
    ExpertGateUp,
}

impl Part {
    /// The role of its first weight.
    pub const fn role(self) -> Role {
        match self {
            Self::One(role) => role,
            Self::Qkv { .. } => Role::Query,
            Self::GateUp => Role::Gate,
            Self::ExpertGateUp => Role::ExpertGate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_the_order_of_the_roles() {
        for (at, role) in Role::ALL.iter().enumerate() {
            assert_eq!(*role as usize, at);
        }
        // Matrices first, what has none after.
        assert!(Role::ALL.iter().all(|role| Roles::EVERY.has(*role) == (*role <= Role::Embedding)));
    }

    #[test]
    fn words_stand_for_roles() {
        for (word, roles) in WORDS {
            let read: Roles = word.parse().unwrap();
            assert_eq!((read, read.word()), (Roles::of(roles), Some(*word)));
        }
        for (alias, word) in ALIASES {
            assert_eq!(alias.parse::<Roles>().unwrap(), word.parse().unwrap());
        }
        assert_eq!(Roles::EVERY.word(), Some("*"));
        assert!("querry".parse::<Roles>().unwrap_err().to_string().contains("did you mean `query`?"));
    }
}
