//! 128-bit micro-kernels: 8 rows by 8 lanes, 16 of 32 registers for sums.

use std::arch::aarch64::{vaddq_f32, vdupq_n_f32, vfmaq_n_f32, vld1q_f32, vst1q_f32};

use super::{micro::Tile, operand::PITCH};

pub(super) const ROWS: usize = 8;

/// FP32.
///
/// # Safety
///
/// Operands and sums are as large as `tile` says, and the sums are the caller's.
pub(super) unsafe fn fp32(tile: &Tile) {
    // SAFETY: every 64-bit ARM has NEON; packed operands and sums are as large as the tile says.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 2]; ROWS];
        for step in 0..tile.steps {
            let right = tile.right.cast::<f32>().add(8 * step);
            let (low, high) = (vld1q_f32(right), vld1q_f32(right.add(4)));
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = tile.left.add(row * PITCH).cast::<f32>().add(step).read();
                sums[0] = vfmaq_n_f32(sums[0], low, left);
                sums[1] = vfmaq_n_f32(sums[1], high, left);
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                let at = tile.sums.add(row * tile.pitch + 4 * half);
                vst1q_f32(at, if tile.first { *sum } else { vaddq_f32(vld1q_f32(at), *sum) });
            }
        }
    }
}
