//! The processor as a backend: every core, the widest vectors it has, weights read at their stored size.

mod affinity;
pub(crate) mod backend;
mod buffer;
pub mod ceilings;
pub(crate) mod clock;
pub mod kernels;
pub mod machine;
pub(crate) mod operands;
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

/// The generation of the kernels, and of the loops that ceilings are measured with. It is raised when they become faster or
/// slower: what is kept of a machine was reached by those that there were, and says nothing of others.
pub const GENERATION: u32 = 1;
