//! Plain loops over decoded pieces of a row. Compiled as they are, and once more for each level whose vectors the compiler
//! can use by itself.

use std::ops::Range;

use super::{Job, Kernel};

/// Elements that are decoded at a time: a few cache lines of FP32.
const PIECE: usize = 512;
/// Sums that are kept apart, so that they can be vectors.
const LANES: usize = 32;

pub(super) fn kernel() -> Kernel {
    rows
}

/// See [`Kernel`]; needs no instructions beyond the target's own.
unsafe fn rows(job: &Job<'_>, rows: Range<usize>) {
    // SAFETY: the caller owns these columns.
    unsafe { columns(job, rows) }
}

/// The loops. Inlined into functions that enable wider vectors.
///
/// # Safety
///
/// The columns of `y` that `rows` stand for belong to the caller.
#[inline(always)]
pub(super) unsafe fn columns(job: &Job<'_>, rows: Range<usize>) {
    let k = job.w.stored.k;
    let mut piece = [0.0f32; PIECE];
    for row in rows {
        // Few enough x that one pass over the row serves them all.
        for first in (0..job.m).step_by(4) {
            let count = (job.m - first).min(4);
            let mut sums = [[0.0f32; LANES]; 4];
            for start in (0..k).step_by(PIECE) {
                let length = (k - start).min(PIECE);
                let padded = length.next_multiple_of(LANES);
                job.w.decode(row, start, &mut piece[..length]);
                piece[length..padded].fill(0.0);
                for (index, sums) in sums[..count].iter_mut().enumerate() {
                    let x = &job.x[(first + index) * job.pitch + start..][..padded];
                    dot(&piece[..padded], x, sums);
                }
            }
            for (index, sums) in sums[..count].iter().enumerate() {
                // SAFETY: the caller's own column.
                unsafe { job.y.put(first + index, row, sums.iter().sum()) };
            }
        }
    }
}

#[inline(always)]
fn dot(w: &[f32], x: &[f32], sums: &mut [f32; LANES]) {
    for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
        for ((sum, w), x) in sums.iter_mut().zip(w).zip(x) {
            *sum += w * x;
        }
    }
}
