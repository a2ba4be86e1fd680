//! 128-bit kernels.

use std::ops::Range;

use super::{super::stored::Stored, Job, Kernel, plain};

pub(super) fn kernel(_: &Stored) -> Kernel {
    columns
}

/// See [`Kernel`]; every 64-bit ARM has NEON.
unsafe fn columns(job: &Job<'_>, rows: Range<usize>) {
    // SAFETY: the columns are the caller's.
    unsafe { plain::columns(job, rows) }
}
