//! Kernels, each written once over the vectors of `roofline_isa`.

pub mod attention;
mod convert;
mod element;
pub mod elementwise;
pub mod linear;
