//! Checkpoints: read, quantized, written as the ecosystem's own tools would write them.
//!
//! Data flows one way:
//!
//! ```text
//! Checkpoint ──Plan──▶ QuantizeJob (every output byte has its place) ──stream──▶ files, and the error of every weight
//! ```
//!
//! What is written is known from the input's headers alone, so headers go first and rows follow in any order, from
//! every core, in bounded memory.

#![allow(clippy::inline_always, reason = "what a kernel calls must be compiled with the kernel's instructions")]

pub mod activations;
pub mod allocation;
pub mod checkpoint;
pub mod coding;
pub mod container;
pub mod data;
pub mod disk;
pub mod dtype;
mod error;
mod error_stats;
mod family;
pub mod ggml;
pub mod gguf;
pub mod imatrix;
pub mod inspect;
pub mod job;
pub mod kernel_form;
pub mod layout;
pub mod lora;
mod method;
pub mod model_card;
mod number;
pub mod observed;
pub mod origin;
pub mod part;
pub mod plan;
pub mod preview;
pub mod pytorch;
pub mod quantize;
pub mod ranges;
mod rounding;
mod roundtrip;
pub mod rows;
mod runtime;
pub mod safetensors;
#[cfg(test)]
mod schemas;
#[cfg(test)]
mod scratch;
pub mod site;
pub mod stored;
pub mod stream;
pub mod torchao;
mod verify;
mod workspace;

pub use activations::Inputs;
pub use checkpoint::Checkpoint;
pub use container::Container;
pub use dtype::Dtype;
pub use error::Error;
pub use error_stats::ErrorStats;
pub use imatrix::Imatrix;
pub use job::QuantizeJob;
pub use kernel_form::{CodesMut, KernelForm};
pub use layout::Layout;
pub use method::Method;
pub use part::Part;
pub use quantize::{Request, quantize};
pub use ranges::Ranges;
pub use runtime::Runtime;
pub use workspace::{Manner, Workspace};

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
