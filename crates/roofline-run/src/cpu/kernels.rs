//! Kernels, each written once over the vectors of `roofline_isa`: what [`Cpu`](super::Cpu) runs, and what is here for those
//! who call them by themselves, with the threads they run on and the tensors they read.

pub mod attention;
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
