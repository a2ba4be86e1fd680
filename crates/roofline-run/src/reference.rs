//! What operators should give: straightforward FP64 on decoded values, for the elements asked for.

pub(crate) mod attention;
#[cfg(test)]
pub(crate) mod deviation;
pub(crate) mod elementwise;
pub(crate) mod linear;
