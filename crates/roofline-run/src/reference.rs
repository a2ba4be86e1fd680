//! What operators should give: straightforward FP64 on decoded values, for the elements asked for.

pub mod attention;
pub mod elementwise;
pub mod linear;
