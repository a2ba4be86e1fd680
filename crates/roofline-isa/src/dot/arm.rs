//! The dot products of ARM 8.2.

use std::arch::{aarch64::uint8x16_t, asm};

use super::Dot;
use crate::{V128, Vector};

/// SDOT: signed bytes.
#[derive(Clone, Copy)]
pub(super) struct Sdot;

/// In assembly, so that compilers that do not know the intrinsic build it too.
///
/// # Safety
///
/// The processor has the dot products of ARM 8.2.
#[inline(always)]
unsafe fn sdot(mut sums: uint8x16_t, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(nomem, nostack, preserves_flags, pure),
        );
        sums
    }
}

digits!(Sdot, V128, uint8x16_t, 0, sdot, |bytes| bytes);
