//! Two ways to count what is stored.

use crate::text::named;

/// Whether scales and padding count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// Everything that is stored.
    #[default]
    Exact,
    /// Element bits only, as text books count.
    Nominal,
}

impl Sizes {
    /// Both ways to count.
    pub const ALL: &[Self] = &[Self::Exact, Self::Nominal];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Nominal => "nominal",
        }
    }
}

named!(Sizes, "way to count sizes", "sizes", "Whether scales and padding count.");
