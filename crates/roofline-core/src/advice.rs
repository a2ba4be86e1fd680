//! What would make it faster, with every gain computed by the same prediction.

mod model;
mod operator;

pub use model::{Pass, Step};
pub use operator::{Advice, Alternative, advise};

/// Gains below this are not worth a sentence, nor a larger change.
const WORTHWHILE: f64 = 1.05;
