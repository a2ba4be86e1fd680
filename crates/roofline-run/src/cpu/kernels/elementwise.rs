//! Kernels that touch each element a few times: norms, rotations, activations, casts. Memory bounds them all, so what
//! matters is one pass over the data at its stored size; numbers are widened to FP32 in pieces that stay in the first
//! cache.
//!
//! Small calls run on the calling thread: handing work to others costs a few microseconds, which is as long as 128 KiB
//! take from the second cache.

#![allow(unsafe_code)]

mod activation;
mod cache;
mod columns;
mod flat;
mod heads;
mod rope;
mod rows;
#[cfg(test)]
mod tests;

pub use activation::Activation;
pub use flat::Pairs;
pub use heads::Heads;
pub use rope::Rotations;

use std::ops::Range;

use roofline_core::Format;

use roofline_isa::Isa;

use super::element::Kind;
use crate::cpu::{pool::Pool, tensor::Tensor, unsupported::Unsupported};

/// Bytes below which a call stays on the calling thread.
const ALONE: usize = 128 << 10;
/// Elements that are widened at a time.
const PIECE: usize = 1024;

/// The kernels, with the instruction set they run on.
#[derive(Clone, Copy, Debug)]
pub struct Elementwise {
    isa: Isa,
}

impl Default for Elementwise {
    fn default() -> Self {
        Self::on(Isa::best())
    }
}

/// Where rows of numbers are written, in the layout of `roofline_core::format::Encoded`.
pub struct Target<'a> {
    /// How they are stored.
    pub format: Format,
    /// Elements.
    pub codes: &'a mut [u8],
    /// A BF16 scale per row, where the format has one.
    pub scales: &'a mut [u8],
}

impl<'a> Target<'a> {
    /// Without scales.
    pub fn plain(format: Format, codes: &'a mut [u8]) -> Self {
        Self { format, codes, scales: &mut [] }
    }
}

impl Elementwise {
    /// With an instruction set of one's choice.
    pub fn on(isa: Isa) -> Self {
        Self { isa }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// The kind of a tensor that must have no scales, its size checked.
fn plain(what: &str, tensor: &Tensor<'_>) -> Result<Kind, Unsupported> {
    let kind = wide(what, tensor.format)?;
    assert_eq!(tensor.codes.len(), tensor.rows * tensor.columns * kind.bytes(), "the {what} has another size");
    Ok(kind)
}

/// The kind of a target that must have no scales and room for `elements`.
fn target(out: &Target<'_>, elements: usize) -> Result<Kind, Unsupported> {
    let kind = wide("output", out.format)?;
    assert_eq!(out.codes.len(), elements * kind.bytes(), "the output has another size");
    Ok(kind)
}

fn wide(what: &str, format: Format) -> Result<Kind, Unsupported> {
    Kind::plain(format).ok_or_else(|| {
        Unsupported(format!("an {what} in {format} has no element-wise CPU kernel: use fp32, bf16 or fp16"))
    })
}

/// Runs `job` on parts of `items` that start at multiples of `step`: on all threads, or here where `bytes` are few.
fn split(pool: &mut Pool, items: usize, step: usize, bytes: usize, job: impl Fn(Range<usize>) + Sync) {
    if bytes < ALONE || pool.threads() == 1 {
        job(0..items);
    } else {
        pool.split(items, step, |_, part| job(part));
    }
}

/// Pointers of a call, of which each thread uses its own part.
#[derive(Clone, Copy)]
struct Pointers {
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    scales: *mut u8,
}

// SAFETY: inputs are only read, and threads write parts of the output that do not overlap.
unsafe impl Sync for Pointers {}
