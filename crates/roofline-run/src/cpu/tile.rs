//! The tile registers of AMX: eight of them, 16 rows of 64 bytes each.

#![allow(unsafe_code)]

use std::{arch::asm, marker::PhantomData};

/// What `ldtilecfg` reads: palette 1, and 64 bytes by 16 rows for each register.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static FULL: Configuration = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut tile = 0;
    while tile < 8 {
        row_bytes[tile] = 64;
        rows[tile] = 16;
        tile += 1;
    }
    Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// This thread's tile registers, in use until dropped: after that a change of threads need not save their 8 KiB.
pub(super) struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// Makes every register full-sized.
    ///
    /// # Safety
    ///
    /// The processor has AMX and the operating system granted it ([`Isa::has_tiles`](roofline_isa::Isa::has_tiles)).
    pub(super) unsafe fn configure() -> Self {
        // SAFETY: a valid configuration; nothing else in this program keeps tiles.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const FULL, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: configured by this thread, which still runs.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
