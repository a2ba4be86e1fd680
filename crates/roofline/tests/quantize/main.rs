//! `roofline quantize` and `roofline inspect` as a user meets them, on checkpoints made here.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod by_data;
#[path = "../common/mod.rs"]
mod common;
mod experts;
mod made;
mod parted;
mod previewed;
mod refused;
mod resumed;
mod words;
mod written;
