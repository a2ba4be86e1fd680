//! The processor as a backend: every core, the widest vectors it has, weights read at their stored size.

pub mod affinity;
pub mod backend;
pub mod buffer;
pub mod ceilings;
pub mod clock;
pub mod kernels;
pub mod machine;
mod operands;
pub mod pool;
pub mod tensor;
#[cfg(target_arch = "x86_64")]
mod tile;
pub mod unsupported;
