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

mod backend;
pub mod cpu;
pub mod cuda;
pub mod environment;
mod error;
mod exact;
mod interference;
pub mod jetson;
mod measure;
mod null;
pub mod own;
pub mod process;
pub mod protocol;
mod random;
mod reference;
mod run_file;
mod stored;
pub mod telemetry;
mod tolerance;

pub use backend::{Backend, Case, Ceiling, thin_rows};
pub use cpu::Cpu;
pub use cuda::Cuda;
pub use environment::Environment;
pub use error::Error;
pub use interference::Interference;
pub use measure::measure;
pub use null::Null;
pub use protocol::Protocol;
pub use run_file::{Header, Line, Run, RunFile, Skipped};

/// What a call of this crate returns when a machine, a kernel or a file may be in the way.
pub type Result<T> = std::result::Result<T, Error>;
