//! The processor as a backend: every core, the widest vectors it has, weights read at their stored size.

pub mod affinity;
pub mod attention;
pub mod buffer;
pub mod ceilings;
pub mod clock;
pub mod elementwise;
pub mod interference;
pub mod machine;
pub mod pool;
pub mod tensor;
pub mod unsupported;
pub mod vector;
