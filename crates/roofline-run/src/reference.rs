//! What kernels are checked against: the plainest code there is, in FP64, on the decoded inputs.

pub mod attention;
pub mod elementwise;
