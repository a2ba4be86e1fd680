//! How a kernel is timed: one small part per hazard.
//!
//! | hazard | part |
//! |---|---|
//! | the first calls fault pages, wake threads and raise the clock | `warmup` |
//! | a second call finds its operands in the cache | `rotation` |
//! | too few samples to trust, or more than anyone waits for | `stop` |
//! | the clock falls, or a neighbour takes the core | `clock` |
//! | the instrument takes time itself | `overhead` |
//! | a GPU's events are coarse | `replay` |

pub(crate) mod clock;
pub(crate) mod overhead;
pub(crate) mod replay;
pub(crate) mod rotation;
mod stop;
mod warmup;

use roofline_core::{measurement::Residency, units::Seconds};

pub use clock::Look;
pub use stop::Stop;
pub use warmup::Warmup;

/// How long to look, and at what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// Where operands are before each sample.
    pub residency: Residency,
    /// What comes before the first sample.
    pub warmup: Warmup,
    /// When to stop.
    pub stop: Stop,
    /// How long to watch the power of a kernel that is called again and again; none for not at all.
    pub watch: Option<Seconds>,
}

impl Default for Protocol {
    fn default() -> Self {
        Self { residency: Residency::Cold, warmup: Warmup::default(), stop: Stop::default(), watch: None }
    }
}

impl Protocol {
    /// For tours and grids, where many shapes matter more than the last percent of one.
    #[must_use]
    pub fn quick() -> Self {
        let stop = Stop { confidence: 0.03, budget: Seconds::new(0.25), ..Stop::default() };
        Self { stop, ..Self::default() }
    }
}
