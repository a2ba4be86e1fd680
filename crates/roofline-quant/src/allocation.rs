//! A size to aim at: which format each part of a model gets, so that as little as possible is lost within a number of bytes.
//!
//! ```text
//! Part × format ──bytes: what the layout writes──▶┐
//!               ──loss: whoever runs the model───▶┴ best() ──▶ one format each ──plan()──▶ Plan
//! ```
//!
//! Losses are taken to add up, which holds where they are small. Bytes add up exactly but for what a file's header says of them, so
//! what a plan takes is asked of the layout in the end.

mod compose;
mod knapsack;
mod parts;
mod trial;

pub use compose::plan;
pub use knapsack::{Choice, best, least};
pub use parts::Portion;
pub use trial::Trial;
