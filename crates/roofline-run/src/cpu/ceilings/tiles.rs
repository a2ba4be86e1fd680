//! The matrix unit of Intel's server parts (AMX): tiles of 16 rows of 64 bytes, multiplied in 16 cycles. The kernel lends
//! the 8 KiB of registers only to processes that ask.
//!
//! The tiles hold numbers that look random, two to each side as in a real product: tiles of zeros are multiplied faster,
//! and a ceiling that only zeros reach is none.

#![allow(unsafe_code)]

use std::arch::asm;

use roofline_core::Math;
use roofline_isa::Isa;

use super::peaks::Unit;

/// Products per turn of the loops below, each with a sum of its own: enough to keep the unit busy.
const PRODUCTS: f64 = 4.0;
/// A product is 16 x 16 results of 32 BF16 pairs or 64 INT8 pairs.
const BF16: f64 = 2.0 * 16.0 * 16.0 * 32.0;
const INT8: f64 = 2.0 * BF16;
/// Cycles per product.
const CYCLES: f64 = 16.0;

/// Palette 1: every tile has 16 rows of 64 bytes.
#[repr(align(64))]
struct Config([u8; 64]);

static CONFIG: Config = {
    let mut bytes = [0u8; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Config(bytes)
};

/// Four tiles of operands.
#[repr(align(64))]
struct Operands([u8; 4096]);

static BF16_OPERANDS: Operands = operands(true);
static INT8_OPERANDS: Operands = operands(false);

/// Bytes of a linear congruential generator (Knuth and Lewis), none of them zero. As BF16 they are numbers from 1/8 to 2 of
/// either sign: however often their products are summed, FP32 stays finite.
const fn operands(bf16: bool) -> Operands {
    let mut bytes = [0; 4096];
    let mut state = 1u32;
    let mut at = 0;
    while at < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let byte = (state >> 24) as u8;
        bytes[at] = if bf16 && at % 2 == 1 { byte & 0x81 | 0x3e } else { byte | (byte == 0) as u8 };
        at += 1;
    }
    Operands(bytes)
}

macro_rules! tiles {
    ($name:ident, $product:literal, $operands:ident) => {
        fn $name(turns: u64) {
            // SAFETY: listed only where the processor has the tiles and the kernel lends them; reads the four operands, and
            // releases the tiles at the end.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tileloadd tmm4, [{operands} + {line}]",
                    "tileloadd tmm5, [{operands} + {line} + 1024]",
                    "tileloadd tmm6, [{operands} + {line} + 2048]",
                    "tileloadd tmm7, [{operands} + {line} + 3072]",
                    "2:",
                    concat!($product, " tmm0, tmm4, tmm6"),
                    concat!($product, " tmm1, tmm4, tmm7"),
                    concat!($product, " tmm2, tmm5, tmm6"),
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "dec {turns}",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) &raw const CONFIG.0,
                    operands = in(reg) &raw const $operands.0,
                    line = in(reg) 64usize,
                    turns = inout(reg) turns.max(1) => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

tiles!(bf16, "tdpbf16ps", BF16_OPERANDS);
tiles!(int8, "tdpbssd", INT8_OPERANDS);

/// The tile products of `isa`.
pub(super) fn units(isa: Isa) -> Vec<Unit> {
    let unit = |math, run: fn(Isa, u64), operations: f64| Unit {
        math,
        name: "AMX",
        run,
        isa,
        operations: PRODUCTS * operations,
        per_cycle: Some(operations / CYCLES),
    };
    let all = || vec![unit(Math::Bf16, |_, turns| bf16(turns), BF16), unit(Math::Int8, |_, turns| int8(turns), INT8)];
    if isa.has_tiles() { all() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_numbers_and_none_is_zero() {
        assert!(INT8_OPERANDS.0.iter().all(|byte| *byte != 0));
        for bytes in BF16_OPERANDS.0.as_chunks::<2>().0 {
            let number = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            assert!((0.125..2.0).contains(&number.abs()), "{number}");
        }
    }
}
