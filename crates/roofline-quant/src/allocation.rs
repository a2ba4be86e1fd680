//! A size to aim at: which format each part of a model gets, so that as little as possible is lost within a number of bytes.
//!
//! ```text
//! Portion × format ──bytes: what the layout writes──▶┐
//!                  ──loss: whoever runs the model───▶┴ best() ──▶ one format each ──plan()──▶ Plan
//! ```
//!
//! Losses are taken to add up, which holds where they are small. Bytes of tensors add up exactly. What files hold beside them -
//! headers, a configuration that tells groups of layers apart - depends on all choices together, so it is asked of the layout,
//! and what is left for tensors follows from it.

mod compose;
mod fit;
mod knapsack;
mod parts;
#[cfg(test)]
mod tests;
mod trial;

pub use fit::{Fitted, Goal};
use knapsack::{Choice, best, least};
pub use parts::Portion;
pub use trial::{Offer, Trial};
