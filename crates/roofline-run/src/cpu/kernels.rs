//! Kernels, each written once over the vectors of `roofline_isa`: what [`Cpu`](super::Cpu) runs, and what is here for those
//! who call them by themselves, with the threads they run on and the tensors they read.
//!
//! ```
//! use roofline_core::Format;
//! use roofline_run::cpu::{Pool, Tensor, kernels::elementwise::{Elementwise, Target}};
//!
//! let x: Vec<u8> = [3f32, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
//! let mut sum = vec![0; x.len()];
//! let x = Tensor::plain(Format::FP32, 1, 2, &x);
//! Elementwise::default().residual(&mut Pool::all(), x, x, Target::plain(Format::FP32, &mut sum))?;
//! assert_eq!(sum[4..], 8f32.to_le_bytes());
//! # Ok::<(), roofline_run::cpu::Unsupported>(())
//! ```

pub mod attention;
mod cap;
mod convert;
mod element;
pub mod elementwise;
pub mod linear;

pub use super::{
    affinity::{Binding, bound},
    buffer::Buffer,
    pool::Pool,
    tensor::Tensor,
    unsupported::Unsupported,
};
