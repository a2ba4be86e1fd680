//! Tile micro-kernels: 2 x 2 tiles of 16 x 16 sums. The left tiles are packed rows of `W` as they are; the right ones
//! are panels of `x`, whose dwords are the pairs (BF16) or fours (INT8) that a tile instruction sums.

use std::arch::{
    asm,
    x86_64::{_MM_HINT_T0, _mm_prefetch},
};

use super::{micro::Tile, operand::DEPTH};

/// Asks for four lines of packed rows.
macro_rules! fetch {
    ($at:literal) => {
        concat!(
            "prefetcht0 [{left} + ",
            $at,
            "]\n",
            "prefetcht0 [{left} + ",
            $at,
            " + 64]\n",
            "prefetcht0 [{left} + ",
            $at,
            " + 128]\n",
            "prefetcht0 [{left} + ",
            $at,
            " + 192]\n",
        )
    };
}

macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $multiply:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// This thread has its tiles configured; operands and sums are as large as `tile` says, and the sums are the
        /// caller's.
        #[rustfmt::skip]
        pub(super) unsafe fn $name(tile: &Tile) {
            // SAFETY: the caller configured the tiles; operands and sums are as large as the tile says.
            unsafe {
                if tile.first {
                    asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
                } else {
                    asm!(
                        "tileloadd tmm0, [{sums} + {line}]",
                        "tileloadd tmm1, [{sums} + {line} + 1024]",
                        "tileloadd tmm2, [{sums} + {line} + 2048]",
                        "tileloadd tmm3, [{sums} + {line} + 3072]",
                        sums = in(reg) tile.sums,
                        line = in(reg) 64usize,
                        options(nostack, readonly),
                    );
                }
                // The sums that the next call starts from.
                for line in 64..128 {
                    _mm_prefetch::<_MM_HINT_T0>(tile.sums.wrapping_add(16 * line).cast());
                }
                // A tile is loaded as soon as its register was multiplied for the last time. The lines that are asked for
                // belong to later tiles; between the others they also keep loads from crowding out multiplications where
                // another thread shares the core.
                asm!(
                    "tileloadd tmm4, [{left} + {line}]",
                    "tileloadd tmm6, [{right} + {line}]",
                    "tileloadd tmm7, [{right} + {line} + 1024]",
                    "tileloadd tmm5, [{left} + {line} + 1024]",
                    "dec {count}",
                    "jz 3f",
                    "2:",
                    "add {left}, 2048",
                    "add {right}, 2048",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    fetch!(4096),
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    fetch!(4352),
                    "tileloadd tmm4, [{left} + {line}]",
                    fetch!(4608),
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    fetch!(4864),
                    "tileloadd tmm6, [{right} + {line}]",
                    fetch!(5120),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    fetch!(5376),
                    "tileloadd tmm5, [{left} + {line} + 1024]",
                    fetch!(5632),
                    "tileloadd tmm7, [{right} + {line} + 1024]",
                    fetch!(5888),
                    "dec {count}",
                    "jnz 2b",
                    "3:",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    left = inout(reg) tile.left => _,
                    right = inout(reg) tile.right => _,
                    count = inout(reg) tile.steps / DEPTH => _,
                    line = in(reg) 64usize,
                    options(nostack, readonly),
                );
                asm!(
                    "tilestored [{sums} + {line}], tmm0",
                    "tilestored [{sums} + {line} + 1024], tmm1",
                    "tilestored [{sums} + {line} + 2048], tmm2",
                    "tilestored [{sums} + {line} + 3072], tmm3",
                    sums = in(reg) tile.sums,
                    line = in(reg) 64usize,
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
