//! The pure centre of `roofline`: quantities, number formats, devices, operators and the roofline itself.
//!
//! Data flows one way:
//!
//! ```text
//! Graph of Op ──work(plan)──▶ Work ──machine──▶ Forecast: the floor, and what to expect
//! ```
//!
//! Nothing here reads a file, a clock or an environment variable, so the same code answers on the command line, over
//! HTTP, in a browser (`wasm32-unknown-unknown`) and in Python. The formulas, with their derivations and sources, are
//! collected in `docs/method.md`.
//!
//! ```
//! use roofline_core::{Graph, Machine, Plan, Registry, machine::{Basis, Stack}, predict};
//!
//! let h200 = Machine::new(Registry::builtin().find("h200")?.into_owned(), Stack::Roofline);
//! let plan: Plan = "bf16".parse()?;
//! let forecast = predict(&Graph::gemv(4096, 4096)?, &plan, &h200)?;
//! assert_eq!(forecast.total.ideal.time().to_string(), "6.994 µs");
//! assert!(forecast.total.expected.time.seconds() > forecast.total.ideal.time().seconds());
//! assert_eq!(forecast.basis, Basis::Calibrated);
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
pub mod golden;
pub mod graph;
pub mod hash;
pub mod machine;
pub mod math;
pub mod measurement;
pub mod model;
mod nearest;
pub mod op;
pub mod plan;
pub mod precision;
pub mod predict;
pub mod program;
pub mod published;
pub mod quality;
pub mod range;
pub mod recommend;
pub mod registry;
pub mod request;
pub mod role;
pub mod soundness;
mod text;
pub mod tiling;
pub mod units;
pub mod wording;
pub mod work;

// The verbs: functions beside the modules of the same names.
pub use compare::compare;
pub use predict::predict;
pub use program::Program;
pub use recommend::recommend;

pub use device::Device;
pub use dim::Dim;
pub use error::Error;
pub use format::Format;
pub use graph::Graph;
pub use machine::Machine;
pub use math::Math;
pub use model::Model;
pub use op::Op;
pub use plan::Plan;
pub use precision::Precision;
pub use range::Range;
pub use registry::Registry;
pub use role::Role;
pub use work::Work;

/// The example of the README, which must compile as it is printed.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// What a call of this crate returns when its input may be wrong.
pub type Result<T> = std::result::Result<T, Error>;
