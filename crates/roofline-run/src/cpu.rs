//! The processor as a backend: every core, the widest vectors it has, weights read at their stored size.

mod affinity;
mod backend;
mod buffer;
pub mod ceilings;
mod clock;
pub mod kernels;
pub mod machine;
mod operands;
mod pool;
mod tensor;
#[cfg(target_arch = "x86_64")]
mod tile;
mod unsupported;

pub use affinity::Binding;
pub use backend::Cpu;
pub use buffer::Buffer;
pub use pool::Pool;
pub use tensor::Tensor;
pub use unsupported::Unsupported;
