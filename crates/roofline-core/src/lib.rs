//! The pure centre of `roofline`: quantities, number formats, devices, operators and the roofline itself.
//!
//! Data flows one way:
//!
//! ```text
//! Graph of Op ──work(precision)──▶ Work ──roof(device)──▶ Estimate
//! ```
//!
//! Nothing here reads a file, a clock or an environment variable, so the same code answers on the command line, over
//! HTTP, in a browser (`wasm32-unknown-unknown`) and in Python. The formulas, with their derivations and sources, are
//! collected in `docs/method.md`.
//!
//! ```
//! use roofline_core::{Graph, Plan, Registry, format::Sizes, precision::PrecisionSpec, predict::predict};
//!
//! let registry = Registry::builtin();
//! let h200 = registry.find("h200")?;
//! let precision = "bf16".parse::<PrecisionSpec>()?.on(&h200)?;
//! let forecast = predict(&Graph::gemv(4096, 4096)?, &Plan::uniform(precision), Sizes::Exact, &h200)?;
//! assert_eq!(forecast.total.time().to_string(), "6.994 µs");
//! # Ok::<(), roofline_core::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod advice;
pub mod calibration;
pub mod compare;
pub mod device;
pub mod dim;
pub mod energy;
mod error;
pub mod format;
pub mod graph;
pub mod math;
pub mod measurement;
pub mod model;
mod nearest;
pub mod op;
pub mod plan;
pub mod precision;
pub mod predict;
pub mod quality;
pub mod recommend;
pub mod registry;
pub mod request;
pub mod tiling;
pub mod units;
pub mod work;

pub use device::Device;
pub use dim::Dim;
pub use error::Error;
pub use format::Format;
pub use graph::Graph;
pub use math::Math;
pub use model::Model;
pub use op::Op;
pub use plan::Plan;
pub use precision::Precision;
pub use registry::Registry;
pub use work::Work;

/// What a call of this crate returns when its input may be wrong.
pub type Result<T> = std::result::Result<T, Error>;
