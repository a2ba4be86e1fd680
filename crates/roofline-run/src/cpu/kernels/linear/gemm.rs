//! Products with many rows of `x`: blocks that fit the caches, multiplied by micro-kernels in registers.
//!
//! ```text
//! x, packed once by all threads:  panels of `lanes` rows, transposed: [panel][k][lane]
//! each thread, for its rows of W, a few hundred at a time, for 512 rows of x:
//!     for each block along k:
//!         decode those rows' part into packed rows                  (memory -> L2)
//!         for each panel (L1), for a few packed rows (L2):
//!             sums[row][lane] += packed row * panel                 (registers)
//!             ask for a part of the next panel                      (memory -> L2)
//!     turn the sums, scale and store them
//! ```

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod decode;
mod micro;
#[cfg(target_arch = "x86_64")]
mod narrow;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operand;
pub(super) mod pack;

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use roofline_core::Math;
use roofline_isa::{Isa, number::from_bf16};

use self::{
    micro::{Layout, Micro, Tile},
    operand::{DEPTH, SKEW},
    pack::Pack,
};
use super::{
    Unsupported, no_memory,
    output::Output,
    weights::{Code, Rows, Stored},
};
use crate::cpu::{
    buffer::Buffer,
    pool::{Pool, share},
};

/// Rows of `W` in a block: with `STEPS` dwords of each, an eighth of a 2 MiB second-level cache.
const BLOCK_ROWS: usize = 256;
/// Rows of `x` in a block: the sums of both, and the panels, take a quarter each.
const BLOCK_LANES: usize = 512;

/// Where parts of what a thread keeps to itself start.
const PAGE: usize = 4096;
/// What is smaller is not mapped in huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// A planned product.
pub(super) struct Gemm {
    micro: Micro,
    pack: Pack,
    /// How `x` is stored.
    x: Stored,
    /// Rows of `x` at most.
    m: usize,
    /// The sum of each row of `x`, which VNNI's offset of 128 is multiplied by.
    row_sums: Buffer,
    workshop: Arc<Workshop>,
}

/// Memory that products need while they run. Those that never run at the same time may share it.
#[derive(Default)]
pub struct Workshop {
    /// All panels of `x`.
    panels: Mutex<Option<Buffer>>,
    /// Of each thread.
    threads: RwLock<Vec<Mutex<Scratch>>>,
}

/// What a thread keeps to itself.
struct Scratch {
    packed: Buffer,
    /// Rows that are about to be transposed.
    rows: Buffer,
    sums: Buffer,
    turned: Buffer,
    /// The scales of the rows of `W` in a block, in FP32.
    scales: Buffer,
}

impl Workshop {
    /// Makes room for a product: `panels` bytes of `x`, and for each thread as much as `sizes` says. What is there and large
    /// enough stays.
    fn furnish(&self, panels: usize, threads: usize, sizes: [usize; 5]) -> Result<(), Unsupported> {
        let mut all = self.panels.lock().unwrap_or_else(PoisonError::into_inner);
        if all.as_ref().is_none_or(|own| own.len() < panels) {
            *all = None;
            *all = Some(Buffer::zeroed(panels).ok_or_else(no_memory)?);
        }
        let mut own = self.threads.write().unwrap_or_else(PoisonError::into_inner);
        let lacks = |scratch: &mut Mutex<Scratch>| {
            let scratch = scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
            scratch.lengths().iter().zip(sizes).any(|(length, size)| *length < size)
        };
        if own.len() >= threads && !own.iter_mut().any(lacks) {
            return Ok(());
        }
        let (threads, mut sizes) = (threads.max(own.len()), sizes);
        for scratch in own.iter_mut() {
            let lengths = scratch.get_mut().unwrap_or_else(PoisonError::into_inner).lengths();
            sizes = std::array::from_fn(|at| sizes[at].max(lengths[at]));
        }
        own.clear();
        // One mapping for all, so that huge pages serve it and none is half empty; parts start on pages of their own.
        let sizes = sizes.map(|size| size.next_multiple_of(PAGE));
        let total = sizes.iter().sum::<usize>() * threads;
        let mut rest = Buffer::zeroed(total.max(HUGE_PAGE)).ok_or_else(no_memory)?;
        for _ in 0..threads {
            let [packed, rows, sums, turned, scales] = sizes.map(|size| rest.take_front(size));
            own.push(Mutex::new(Scratch { packed, rows, sums, turned, scales }));
        }
        Ok(())
    }
}

impl Scratch {
    fn lengths(&self) -> [usize; 5] {
        [&self.packed, &self.rows, &self.sums, &self.turned, &self.scales].map(|part| part.len())
    }
}

/// A thread's own.
fn lock(scratch: &Mutex<Scratch>) -> MutexGuard<'_, Scratch> {
    scratch.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where threads write disjoint parts of a buffer.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: threads write parts of their own and read only after all have written.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// The pointer, by a method so that closures capture the whole.
    fn start(self) -> *mut u8 {
        self.0
    }
}

impl Gemm {
    pub(super) fn plan(
        isa: Isa,
        math: Math,
        (m, n): (usize, usize),
        x: Stored,
        threads: usize,
        workshop: &Arc<Workshop>,
    ) -> Result<Self, Unsupported> {
        let micro = Micro::choose(isa, math);
        let steps = x.k.div_ceil(micro.left.per_dword()).next_multiple_of(DEPTH);
        let rows = n.min(BLOCK_ROWS).next_multiple_of(micro.rows);
        let lanes = m.min(BLOCK_LANES).next_multiple_of(micro.lanes);
        // Packed rows are kept only where another block of `x` meets them.
        let blocks = if m > BLOCK_LANES { steps.div_ceil(micro.steps()) } else { 1 };
        let zeroed = |bytes: usize| Buffer::zeroed(bytes).ok_or_else(no_memory);
        let sizes = [
            blocks * rows / micro.rows * micro.group_bytes(),
            // What is transposed on its way: rows of one call, or of one panel.
            micro.lanes.max(16) * (4 * micro.steps() + 4 * SKEW),
            rows * (lanes + SKEW) * 4,
            16 * (rows.next_multiple_of(16) + SKEW) * 4,
            4 * rows,
        ];
        workshop.furnish(m.next_multiple_of(micro.lanes) * steps * 4, threads, sizes)?;
        let (pack, row_sums) = (Pack::choose(isa), zeroed(m * 4)?);
        Ok(Self { micro, pack, x, m, row_sums, workshop: Arc::clone(workshop) })
    }

    pub(super) fn unit(&self) -> &'static str {
        self.micro.unit
    }

    pub(super) fn math(&self) -> Math {
        self.micro.math
    }

    pub(super) fn is_native(&self, code: Code) -> bool {
        self.micro.left.is_native(code)
    }

    /// `x` is stored as was planned; `scales` are those of its rows, where it has any.
    pub(super) fn run(&mut self, pool: &mut Pool, x: &crate::cpu::tensor::Tensor<'_>, w: Rows<'_>, y: Output) {
        let workshop = Arc::clone(&self.workshop);
        let mut panels = workshop.panels.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(panels) = panels.as_mut() else { return };
        let scratch = workshop.threads.read().unwrap_or_else(PoisonError::into_inner);
        let (packed, row_sums) = (Shared(panels.as_mut_ptr()), Shared(self.row_sums.as_mut_ptr()));
        let this = &*self;
        let stored = this.x;
        let rows = stored.rows(x);
        pool.split(x.rows, this.micro.lanes, |index, lanes| {
            this.pack_panels(&rows, lanes, &mut lock(&scratch[index]), packed, row_sums);
        });
        let panels: &[u8] = panels;
        let row_groups = w.count.div_ceil(this.micro.rows);
        let threads = pool.threads();
        // Threads side by side along n; what n cannot feed goes along m.
        let across = (1..=threads).rev().find(|across| threads.is_multiple_of(*across) && *across <= row_groups);
        let across = across.unwrap_or(1);
        if across == threads {
            pool.deal(w.count, this.micro.rows, this.micro.piece(w.count.div_ceil(threads)), |index, columns| {
                let part = Part { gemm: this, panels, w, x_scales: x.scales, y };
                part.multiply(columns, 0..x.rows, &mut lock(&scratch[index]));
            });
            return;
        }
        pool.run(|index| {
            let columns = share(w.count, this.micro.rows, index % across, across);
            let lanes = share(x.rows, this.micro.lanes, index / across, threads / across);
            if !columns.is_empty() && !lanes.is_empty() {
                let part = Part { gemm: this, panels, w, x_scales: x.scales, y };
                part.multiply(columns, lanes, &mut lock(&scratch[index]));
            }
        });
    }

    /// Dwords along `k`, padded.
    fn steps(&self) -> usize {
        self.x.k.div_ceil(self.micro.left.per_dword()).next_multiple_of(DEPTH)
    }

    fn blocks(&self) -> usize {
        self.steps().div_ceil(self.micro.steps())
    }

    /// Packs and transposes the panels of some rows of `x`.
    fn pack_panels(&self, x: &Rows<'_>, lanes: Range<usize>, scratch: &mut Scratch, panels: Shared, row_sums: Shared) {
        let width = self.micro.lanes;
        for first in lanes.clone().step_by(width) {
            let used = (x.count - first).min(width);
            for block in 0..self.blocks() {
                let pitch = 4 * self.micro.steps() + 4 * SKEW;
                let packed = &mut scratch.rows[..width * pitch];
                packed[used * pitch..].fill(0);
                self.pack.pack_right(x, first..first + used, block, &self.micro, (packed, pitch));
                let steps = (self.steps() - block * self.micro.steps()).min(self.micro.steps());
                let to = (first * self.steps() + block * self.micro.steps() * width) * 4;
                for step in (0..steps).step_by(16) {
                    for lane in (0..width).step_by(16) {
                        // SAFETY: this panel is this thread's, and steps come in sixteens.
                        unsafe {
                            let from = packed.as_ptr().add(lane * pitch + 4 * step);
                            let (at, stride) = match self.micro.layout {
                                Layout::Rows | Layout::Columns => (4 * lane, 4 * width),
                                Layout::Tiles => (64 * lane, 64),
                            };
                            let to = panels.start().add(to + 4 * step * width + at);
                            (self.pack.transpose)(from, pitch, to, stride, (width - lane).min(16));
                        }
                    }
                }
            }
            if self.micro.left == operand::Operand::Offset8 {
                for row in first..first + used {
                    let sum: i32 = x.codes(row).iter().map(|code| i32::from(*code as i8)).sum();
                    // SAFETY: this row is this thread's.
                    unsafe { row_sums.start().cast::<i32>().add(row).write(sum) };
                }
            }
        }
    }
}

/// One thread's part of a product.
struct Part<'a> {
    gemm: &'a Gemm,
    /// All panels of `x`.
    panels: &'a [u8],
    w: Rows<'a>,
    x_scales: &'a [u8],
    y: Output,
}

impl Part<'_> {
    /// The columns of `y` that belong to rows `columns` of `W`, for rows `lanes` of `x`.
    fn multiply(&self, columns: Range<usize>, lanes: Range<usize>, scratch: &mut Scratch) {
        let gemm = self.gemm;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: asked for only where there are tiles.
        let _tiles = (gemm.micro.layout == Layout::Tiles).then(|| unsafe { crate::cpu::tile::Tiles::configure() });
        let size = gemm.micro.piece(columns.len());
        for start in columns.clone().step_by(size) {
            let rows = start..(start + size).min(columns.end);
            self.scales(rows.clone(), scratch);
            for first in lanes.clone().step_by(BLOCK_LANES) {
                let block = first..(first + BLOCK_LANES).min(lanes.end);
                // Already packed for the block of `x` before.
                let again = first > lanes.start;
                self.block(rows.clone(), block.clone(), again, scratch);
                self.store(rows.clone(), block, scratch);
            }
        }
    }

    /// The sums of a block of rows with a block of `x`.
    fn block(&self, rows: Range<usize>, lanes: Range<usize>, again: bool, scratch: &mut Scratch) {
        let (gemm, micro) = (self.gemm, self.gemm.micro);
        let height = rows.len().next_multiple_of(micro.rows);
        let width = lanes.len().next_multiple_of(micro.lanes);
        let groups = height / micro.rows;
        let bytes = groups * micro.group_bytes();
        for block in 0..gemm.blocks() {
            let kept = if gemm.m > BLOCK_LANES { block } else { 0 };
            let packed = &mut scratch.packed[kept * bytes..][..bytes];
            if !again {
                gemm.pack.pack_left(&self.w, rows.clone(), block, &micro, (packed, &mut scratch.rows));
            }
            let steps = (gemm.steps() - block * micro.steps()).min(micro.steps());
            let calls = groups * width / micro.lanes;
            for (panel, lane) in lanes.clone().step_by(micro.lanes).enumerate() {
                let right = &self.panels[(lane * gemm.steps() + block * micro.steps() * micro.lanes) * 4..];
                for group in 0..groups {
                    let (at, pitch) = micro.sums_at((height, width), group * micro.rows, lane - lanes.start);
                    let tile = Tile {
                        left: packed[group * micro.group_bytes()..].as_ptr(),
                        right: right[..steps * micro.lanes * 4].as_ptr(),
                        steps,
                        sums: scratch.sums[at * 4..].as_mut_ptr().cast(),
                        pitch,
                        first: block == 0,
                    };
                    // Tiles read so many lines by themselves that asking for more of them only delays those.
                    if micro.layout != Layout::Tiles {
                        // The same steps of the panel that comes next, a part of it with each call.
                        let part = (steps * micro.lanes * 4).div_ceil(groups);
                        ask(right.as_ptr().wrapping_add(gemm.steps() * micro.lanes * 4 + group * part), part);
                        // What is packed next comes from memory, which has all of this block's time to bring it.
                        if !again {
                            let part = share(rows.len(), 1, panel * groups + group, calls);
                            self.ask_rows(rows.start + part.start..rows.start + part.end, block + 1, rows.len());
                        }
                    }
                    // SAFETY: chosen by what the processor has; the slices above are as large as the tile needs.
                    unsafe { (micro.kernel)(&tile) };
                }
            }
        }
    }

    /// Asks for block `block` of some rows of `W`; after the last, for the first one of rows `next` further on.
    fn ask_rows(&self, rows: Range<usize>, block: usize, next: usize) {
        let (gemm, stored) = (self.gemm, self.w.stored);
        let bytes = stored.row_bytes * gemm.micro.steps() * gemm.micro.left.per_dword() / stored.k;
        let (down, start) = if block < gemm.blocks() { (0, block * bytes) } else { (next, 0) };
        for row in rows.map(|row| row + down).filter(|row| *row < self.w.count) {
            ask(self.w.codes(row).as_ptr().wrapping_add(start), bytes);
        }
    }

    /// Turns the sums to rows of `y`, scales integers, and writes them.
    fn store(&self, rows: Range<usize>, lanes: Range<usize>, scratch: &mut Scratch) {
        let (gemm, micro) = (self.gemm, self.gemm.micro);
        let lanes_padded = lanes.len().next_multiple_of(micro.lanes);
        let width = rows.len().next_multiple_of(16) + SKEW;
        let padded = rows.len().next_multiple_of(micro.rows);
        for lane in (0..lanes.len()).step_by(16) {
            let count = (lanes_padded - lane).min(16);
            for row in (0..padded).step_by(16) {
                let height = (padded - row).min(16);
                let (at, pitch) = micro.sums_at((padded, lanes_padded), row, lane);
                let from = scratch.sums[at * 4..].as_ptr();
                let to = scratch.turned[row * 4..].as_mut_ptr();
                // SAFETY: sums of `height` rows by `count` lanes, turned to `count` rows.
                unsafe { gemm.pack.block(from, 4 * pitch, to, 4 * width, (height, count)) };
            }
            for index in 0..(lanes.len() - lane).min(16) {
                let values = scratch.turned[index * width * 4..][..rows.len() * 4].as_mut_ptr();
                // SAFETY: FP32 values, or INT32 sums of the same size, of this thread.
                let values = unsafe { std::slice::from_raw_parts_mut(values.cast::<f32>(), rows.len()) };
                let x_row = lanes.start + lane + index;
                if micro.left.is_integer() {
                    // SAFETY: FP32 scales, as many as values; chosen by what the processor has.
                    unsafe {
                        let scales = std::slice::from_raw_parts(scratch.scales.as_ptr().cast::<f32>(), rows.len());
                        let (offset, scale) = self.x_scale(x_row);
                        (gemm.pack.scale)(values, offset, scale, scales);
                    }
                }
                // SAFETY: these columns of these rows are this thread's.
                unsafe { (gemm.pack.put)(&self.y, x_row, rows.start, values) };
            }
        }
    }

    /// What integer sums of a row of `x` have too much, and what they are multiplied by.
    fn x_scale(&self, x_row: usize) -> (i32, f32) {
        let scale = from_bf16(u16::from_le_bytes([self.x_scales[2 * x_row], self.x_scales[2 * x_row + 1]]));
        if self.gemm.micro.left == operand::Operand::Offset8 {
            let sum = [0, 1, 2, 3].map(|byte| self.gemm.row_sums[4 * x_row + byte]);
            (i32::from_le_bytes(sum).wrapping_mul(128), scale)
        } else {
            (0, scale)
        }
    }

    /// The scales of some rows of `W`, which integer sums are multiplied by.
    fn scales(&self, rows: Range<usize>, scratch: &mut Scratch) {
        if self.gemm.micro.left.is_integer() {
            for (row, scale) in rows.zip(scratch.scales.as_chunks_mut::<4>().0) {
                *scale = self.w.row_scale(row).to_le_bytes();
            }
        }
    }
}

/// Asks for `bytes` bytes to be brought to the second-level cache.
#[inline(always)]
fn ask(start: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of anything is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, bytes);
}
