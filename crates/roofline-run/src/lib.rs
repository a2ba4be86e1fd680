//! The half of `roofline` that touches hardware: backends that run operators, the protocol that times them, and what a
//! machine is made of.

pub mod cpu;
pub mod environment;
pub mod reference;
mod stored;
