//! NVIDIA GPUs: kernels compiled at run time, products of many rows by cuBLASLt, times from graph replay.
//!
//! Nothing of CUDA is needed to build this, and a program that never asks for a GPU never looks for one. The driver, NVRTC
//! and cuBLASLt are opened when they are first needed; each that is missing is an error that says where to get it.

mod asked;
mod attention;
mod backend;
mod ceilings;
mod codes;
mod compiler;
mod cublaslt;
mod elementwise;
mod gemm_packed;
mod gemv_packed;
mod gpu;
mod library;
mod map;
pub mod model;
mod named;
mod operand;
mod prefill;
mod replay;
mod row_format;
mod widen;

pub(crate) use backend::{CONTESTED_ROWS, PACKED_BYTES_ROWS};
pub use gemv_packed::THIN_ROWS;
pub(crate) use model::thin::ROUNDED_BYTES;

pub use backend::Cuda;
pub use compiler::{Architecture, Compiler};
pub use gpu::{Gpu, Recipe, present};

/// Programs of every kernel, in the forms that differ most, for a test that needs no GPU: names and how they are made.
pub fn sources() -> Vec<(String, Recipe)> {
    [
        gemv_packed::sources(),
        gemm_packed::sources(),
        attention::sources(),
        prefill::sources(),
        widen::sources(),
        elementwise::sources(),
        backend::sources(),
        ceilings::sources(),
        model::sources(),
    ]
    .concat()
}
