//! The half of `roofline` that touches hardware: backends that run operators, the protocol that times them, and what a
//! machine is made of.
//!
//! ```text
//! Subject ──Backend::prepare──▶ Case ──check──▶ Check ──protocol──▶ Measurement ──▶ run file
//! ```
//!
//! A result that does not match its float64 reference is never timed, a finished measurement is on disk before the next
//! one starts, and every doubt travels with the number as a typed warning. [`telemetry`] is what a GPU says of itself
//! meanwhile.

pub mod backend;
mod closeness;
pub mod cpu;
pub mod cuda;
pub mod environment;
mod error;
pub mod interference;
pub mod jetson;
mod measure;
pub mod null;
pub mod protocol;
mod random;
pub mod reference;
mod run_file;
mod stored;
pub mod telemetry;

pub use backend::{Backend, Case};
pub use cuda::Cuda;
pub use environment::Environment;
pub use error::Error;
pub use measure::measure;
pub use null::Null;
pub use protocol::Protocol;
pub use run_file::{Header, Line, Run, RunFile, Skipped};

/// What a call of this crate returns when a machine, a kernel or a file may be in the way.
pub type Result<T> = std::result::Result<T, Error>;
