//! 256-bit kernels.

use std::ops::Range;

use super::{super::stored::Stored, Job, Kernel, plain};

pub(super) fn kernel(_: &Stored) -> Kernel {
    columns
}

/// See [`Kernel`]; needs AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns(job: &Job<'_>, rows: Range<usize>) {
    // SAFETY: the columns are the caller's.
    unsafe { plain::columns(job, rows) }
}
