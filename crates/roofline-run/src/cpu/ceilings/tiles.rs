//! The matrix unit of Intel's server parts (AMX): tiles of 16 rows of 64 bytes, multiplied in 16 cycles. The kernel lends
//! the 8 KiB of registers only to processes that ask.

#![allow(unsafe_code)]

use std::{
    arch::{asm, x86_64::__cpuid_count},
    sync::OnceLock,
};

use roofline_core::Math;

use super::peaks::Unit;

/// Products per turn of the loops below.
const PRODUCTS: f64 = 6.0;
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

/// Whether this process may use the tiles: asks the kernel once.
fn permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| {
        #[cfg(target_os = "linux")]
        {
            const REQUEST: libc::c_int = 0x1023; // ARCH_REQ_XCOMP_PERM
            const TILE_DATA: libc::c_int = 18;
            // SAFETY: asks for a permission; changes nothing else.
            unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) == 0 }
        }
        #[cfg(not(target_os = "linux"))]
        false
    })
}

macro_rules! tiles {
    ($name:ident, $product:literal) => {
        fn $name(turns: u64) {
            // SAFETY: listed only where the processor has the tiles and the kernel lends them; registers only, and the
            // tiles are released at the end.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                    "2:",
                    concat!($product, " tmm0, tmm6, tmm7"),
                    concat!($product, " tmm1, tmm6, tmm7"),
                    concat!($product, " tmm2, tmm6, tmm7"),
                    concat!($product, " tmm3, tmm6, tmm7"),
                    concat!($product, " tmm4, tmm6, tmm7"),
                    concat!($product, " tmm5, tmm6, tmm7"),
                    "dec {turns}",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) &raw const CONFIG.0,
                    turns = inout(reg) turns.max(1) => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

tiles!(bf16, "tdpbf16ps");
tiles!(int8, "tdpbssd");

/// The tile products that this processor has and the kernel allows.
pub(super) fn units() -> Vec<Unit> {
    let flags = __cpuid_count(7, 0).edx;
    let (has_bf16, has_tiles, has_int8) = (flags >> 22 & 1 == 1, flags >> 24 & 1 == 1, flags >> 25 & 1 == 1);
    if !has_tiles || !permitted() {
        return Vec::new();
    }
    let unit = |math, run: fn(u64), operations: f64| Unit {
        math,
        name: "AMX",
        run,
        operations: PRODUCTS * operations,
        per_cycle: Some(operations / CYCLES),
    };
    let bf16 = has_bf16.then(|| unit(Math::Bf16, bf16, BF16));
    let int8 = has_int8.then(|| unit(Math::Int8, int8, INT8));
    bf16.into_iter().chain(int8).collect()
}
