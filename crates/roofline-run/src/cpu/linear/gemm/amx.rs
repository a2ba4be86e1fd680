//! Tile micro-kernels: 2 x 2 tiles of 16 x 16 sums. The left tiles are packed rows of `W` as they are; the right ones
//! are panels of `x`, whose dwords are the pairs (BF16) or fours (INT8) that a tile instruction sums.

use std::arch::{
    asm,
    x86_64::{_MM_HINT_T0, _mm_prefetch},
};

use super::{micro::Tile, operand::DEPTH};

macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $multiply:literal) => {
        $(#[$doc])*
        pub(super) unsafe fn $name(tile: &Tile) {
            // SAFETY: the caller configured the tiles; operands and sums are as large as the tile says.
            unsafe {
                let below = tile.sums.add(16 * tile.pitch);
                if tile.first {
                    asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
                } else {
                    asm!(
                        "tileloadd tmm0, [{above} + {pitch}]",
                        "tileloadd tmm1, [{above} + {pitch} + 64]",
                        "tileloadd tmm2, [{below} + {pitch}]",
                        "tileloadd tmm3, [{below} + {pitch} + 64]",
                        above = in(reg) tile.sums,
                        below = in(reg) below,
                        pitch = in(reg) 4 * tile.pitch,
                        options(nostack, readonly),
                    );
                }
                // The sums that the next call starts from.
                for row in 32..64 {
                    let at = tile.sums.wrapping_add(row * tile.pitch).cast();
                    _mm_prefetch::<_MM_HINT_T0>(at);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64));
                }
                asm!(
                    "2:",
                    "tileloadd tmm6, [{right} + {lanes}]",
                    "tileloadd tmm4, [{left} + {line}]",
                    "tileloadd tmm7, [{right} + {lanes} + 64]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{left} + {line} + 1024]",
                    "prefetcht0 [{left} + 4096]",
                    "prefetcht0 [{left} + 4160]",
                    "prefetcht0 [{left} + 4224]",
                    "prefetcht0 [{left} + 4288]",
                    "prefetcht0 [{left} + 4352]",
                    "prefetcht0 [{left} + 4416]",
                    "prefetcht0 [{left} + 4480]",
                    "prefetcht0 [{left} + 4544]",
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    "prefetcht0 [{left} + 4608]",
                    "prefetcht0 [{left} + 4672]",
                    "prefetcht0 [{left} + 4736]",
                    "prefetcht0 [{left} + 4800]",
                    "prefetcht0 [{left} + 4864]",
                    "prefetcht0 [{left} + 4928]",
                    "prefetcht0 [{left} + 4992]",
                    "prefetcht0 [{left} + 5056]",
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    "prefetcht0 [{left} + 5120]",
                    "prefetcht0 [{left} + 5184]",
                    "prefetcht0 [{left} + 5248]",
                    "prefetcht0 [{left} + 5312]",
                    "prefetcht0 [{left} + 5376]",
                    "prefetcht0 [{left} + 5440]",
                    "prefetcht0 [{left} + 5504]",
                    "prefetcht0 [{left} + 5568]",
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "prefetcht0 [{left} + 5632]",
                    "prefetcht0 [{left} + 5696]",
                    "prefetcht0 [{left} + 5760]",
                    "prefetcht0 [{left} + 5824]",
                    "prefetcht0 [{left} + 5888]",
                    "prefetcht0 [{left} + 5952]",
                    "prefetcht0 [{left} + 6016]",
                    "prefetcht0 [{left} + 6080]",
                    "add {left}, 2048",
                    "add {right}, 2048",
                    "dec {count}",
                    "jnz 2b",
                    left = inout(reg) tile.left => _,
                    right = inout(reg) tile.right => _,
                    count = inout(reg) tile.steps / DEPTH => _,
                    line = in(reg) 64usize,
                    lanes = in(reg) 128usize,
                    options(nostack, readonly),
                );
                asm!(
                    "tilestored [{above} + {pitch}], tmm0",
                    "tilestored [{above} + {pitch} + 64], tmm1",
                    "tilestored [{below} + {pitch}], tmm2",
                    "tilestored [{below} + {pitch} + 64], tmm3",
                    above = in(reg) tile.sums,
                    below = in(reg) below,
                    pitch = in(reg) 4 * tile.pitch,
                    options(nostack),
                );
            }
        }
    };
}

kernel!(
    /// BF16 into FP32.
    bf16, "tdpbf16ps"
);
kernel!(
    /// Signed INT8 into INT32.
    int8, "tdpbssd"
);
