//! The one seam for instruction sets: which a processor has, vectors that kernels are written over once, narrow numbers.
//!
//! Kernels of `roofline-run` and codings of `roofline-quant` stand on it; neither may look at the processor by itself.
//!
//! * [`Isa`]: what this processor has, found when the program runs, and held back by `ROOFLINE_ISA`.
//! * [`Vector`], [`Dot`]: FP32 lanes, the bytes of a register, and sums of integer products; [`launch`] and [`launch_dot`]
//!   run a kernel with the widest of them.
//! * [`widest!`]: a plain loop, compiled once for each width.
//! * [`tile`]: sums of products that stay in registers.
//! * [`number`]: FP16, BF16 and FP8 to FP32 and back, as the core has them.
//!
//! Why not a crate made for it: `wide` takes its width when it is compiled, and one binary must serve every processor;
//! `multiversion` clones functions but has no vectors, and what matters here (`vpmaddwd`, `vpdpbusd`, `sdot`, byte
//! look-ups) no compiler finds in plain loops; `pulp` dispatches as this does, yet its common trait has neither byte
//! look-ups nor sums of products of integers, so that every kernel would be written per instruction set after all.

// Everything is inlined into functions that enable wider vectors; a call that stays a call has none. What an unsafe block
// of an instruction set's file relies on is the contract of the method it is in, which the trait states.
#![allow(unsafe_code, clippy::inline_always, clippy::wildcard_imports)]
// Instruction sets are reached through pointers to stored bytes of any alignment.
#![allow(clippy::cast_ptr_alignment)]
// A vector that is computed and dropped is dead code, which the compiler removes and nobody writes.
#![allow(clippy::return_self_not_must_use)]

/// Declares methods with one contract, and states it for each: the instructions of the type, and what is named beyond them.
macro_rules! with_contract {
    ($more:literal, $($(#[$doc:meta])* unsafe fn $name:ident $(<const $constant:ident: $of:ty>)? ($($argument:tt)*) $(-> $result:ty)?;)+) => {
        $($(#[$doc])*
        #[doc = concat!("\n# Safety\n\nThe processor has the instructions of this type", $more, ".")]
        unsafe fn $name $(<const $constant: $of>)? ($($argument)*) $(-> $result)?;)+
    };
}

mod dot;
mod isa;
pub mod tile;
mod vector;
mod widest;

pub use dot::{Dot, DotKernel, Operands, Words, launch_dot};
pub use isa::{Isa, Level, NoSuchIsa, VARIABLE};
pub use roofline_core::format::number;
pub use vector::Base;
#[cfg(target_arch = "aarch64")]
pub use vector::V128;
pub use vector::{Kernel, Vector, launch};
#[cfg(target_arch = "x86_64")]
pub use vector::{V256, V512};
pub use widest::{at_every_level, current};
