//! Models that run: a [`Program`](roofline_core::Program) of steps, the weights of a checkpoint, and a processor.
//!
//! ```text
//! Checkpoint ──▶ Weights ─┐
//! Model ──▶ Program ──────┼──▶ Session ──tokens──▶ logits ──Sampler──▶ tokens ──Tokenizer──▶ text
//! KV cache ───────────────┘
//! ```

mod arena;
mod cache;
pub mod chat;
mod engine;
mod error;
pub mod evaluation;
mod files;
mod gpu;
mod layerwise;
mod matrix;
pub mod memory;
mod names;
mod processor;
mod products;
mod random;
mod routing;
mod samples;
pub mod sampling;
mod session;
mod streams;
mod substitution;
pub mod tokenizer;
mod turns;
mod values;
mod weights;

pub use chat::{Chat, Message};
pub use engine::{Backend, Engine, Settings};
pub use error::Error;
pub use files::NamedFile;
pub use layerwise::Layerwise;
pub use samples::samples;
pub use sampling::{Sampler, Sampling};
pub use session::{LayerOutput, Ran, Session, Wanted};
pub use substitution::Substitution;
pub use tokenizer::Tokenizer;

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
