//! The verbs of `roofline`: one file each, with a `Request`, an `Answer` and the function between them.
//!
//! Every face stands on this crate. The command line parses a request and prints an answer, the server extracts and returns
//! the same two, and the page's types are made from their schemas. Nothing outside computes, and no face goes through
//! another.
//!
//! ```
//! use roofline_verbs::{Context, predict, request};
//!
//! let context = Context::pure();
//! let request: predict::Request = request::from_json(
//!     serde_json::json!({ "subject": "gemv", "n": 4096, "k": 4096, "on": "h200", "precision": "bf16" }),
//! )?;
//! let predict::Answer::Operator(answer) = predict::predict(&context, &request)? else { unreachable!() };
//! assert_eq!(answer.estimates[0].figures.basis.name(), "calibrated");
//! # Ok::<(), roofline_verbs::Error>(())
//! ```

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "fields of answers are named for what they hold; what is not plain has a sentence")]

pub mod analyze;
pub mod analyzer;
pub mod batch;
#[cfg(feature = "hardware")]
pub mod broken;
#[cfg(feature = "hardware")]
pub mod calibrate;
pub mod chart;
#[cfg(feature = "hardware")]
pub mod compare;
pub mod context;
pub mod demo;
pub mod devices;
mod error;
#[cfg(feature = "hardware")]
pub mod evaluate;
pub mod formats;
#[cfg(feature = "hardware")]
pub mod generate;
#[cfg(feature = "hardware")]
pub mod gpu;
#[cfg(feature = "hardware")]
pub mod imatrix;
#[cfg(feature = "files")]
pub mod inspect;
#[cfg(feature = "hardware")]
pub mod jetson;
pub mod machine;
#[cfg(feature = "hardware")]
pub mod measure;
pub mod models;
#[cfg(feature = "hardware")]
pub mod monitor;
pub mod note;
#[cfg(feature = "hardware")]
mod observed;
#[cfg(feature = "hardware")]
pub mod own;
mod passes;
pub mod picture;
#[cfg(feature = "hardware")]
pub mod pipeline;
pub mod plot;
pub mod precisions;
pub mod predict;
#[cfg(feature = "files")]
pub mod quality;
#[cfg(feature = "files")]
pub mod quantize;
pub mod recommend;
pub mod region;
pub mod report;
pub mod request;
#[cfg(feature = "hardware")]
pub mod runner;
#[cfg(feature = "hardware")]
mod running;
#[cfg_attr(not(feature = "hardware"), allow(dead_code, reason = "most of it is for measuring"))]
mod subjects;
pub mod sweep;
pub mod text;
#[cfg(feature = "hardware")]
pub mod this_machine;
pub mod tiling;
pub mod trace;

pub use context::Context;
pub use error::{Error, Result};
pub use note::{Note, Watcher};
