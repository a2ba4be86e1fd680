//! Kernels of others: their operands are made here, their results are checked here, and they are timed as ours are.
//!
//! ```text
//! Subject ──Operands──▶ Own ──check──▶ protocol ──▶ Measurement       (a function that somebody calls for us)
//! Manifest ─▶ CudaKernel ──NVRTC──▶ Cuda::measure_own ──▶ Measurement   (a CUDA kernel in a file)
//! ```

mod case;
mod cuda_kernel;
mod expression;
mod manifest;
mod operands;

pub(crate) use case::kernel;
pub use case::{Own, Place, Timer, measure_own, shortest};
pub use cuda_kernel::{Argument, CudaKernel};
pub use manifest::{Kind, Manifest, Shape};
pub use operands::{Dtype, Operands, Part, Written};
