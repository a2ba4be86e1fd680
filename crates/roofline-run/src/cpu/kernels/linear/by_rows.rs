//! Products with weights that somebody else decodes: stored formats without a kernel of their own. A thread has some rows
//! of `W` decoded to FP32, as many as its second cache holds, and multiplies them before it asks for the next.

use std::{ops::Range, sync::Mutex};

use roofline_core::{Format, Math, Precision, op::Linear};
use roofline_isa::Isa;

use super::{Product, Unsupported, no_memory, output::Output};
use crate::cpu::{buffer::Buffer, pool::Pool, tensor::Tensor};

/// Bytes of decoded rows: half of a second cache of 1 MiB, which `x` and the sums share.
const NEAR: usize = 512 << 10;
/// Rows that are decoded at a time come in multiples of this, as kernels take them.
const STEP: usize = 16;

/// Writes some rows of `W` as numbers, one after the other, for the thread that asks.
pub type Decode<'a> = dyn Fn(usize, Range<usize>, &mut [f32]) + Sync + 'a;

/// A planned product of rows that are decoded on the way.
pub struct ByRows {
    n: usize,
    k: usize,
    /// Rows of `W` that are decoded at a time.
    block: usize,
    workers: Vec<Mutex<Worker>>,
}

/// What a thread keeps to itself.
struct Worker {
    /// Of a block, on this thread alone.
    product: Product,
    alone: Pool,
    rows: Buffer,
}

impl ByRows {
    /// For up to `m` rows of `x` in `activations`, `n` rows of `W`, and at most `threads` threads; `y` is written in
    /// `output`.
    pub fn plan(
        isa: Isa,
        shape: Linear,
        activations: Format,
        output: Format,
        threads: usize,
    ) -> Result<Self, Unsupported> {
        let (n, k) = (shape.n.get() as usize, shape.k.get() as usize);
        let threads = threads.max(1);
        let even = n.div_ceil(threads).next_multiple_of(STEP);
        let block = (NEAR / (4 * k) / STEP * STEP).clamp(STEP, even.max(STEP));
        let formats = Precision {
            weights: Format::FP32,
            activations,
            kv: Format::FP32,
            output,
            query: Format::FP32,
            math: Math::Fp32,
            attention: Math::Fp32,
        };
        let part = Linear::new(shape.m.get(), block as u64, shape.k.get());
        let part = part.map_err(|error| Unsupported(error.to_string()))?;
        let worker = || {
            let product = Product::plan(isa, part, &formats, 1)?;
            let rows = Buffer::zeroed(block * k * 4).ok_or_else(no_memory)?;
            Ok(Mutex::new(Worker { product, alone: Pool::new(1), rows }))
        };
        Ok(Self { n, k, block, workers: (0..threads).map(|_| worker()).collect::<Result<_, Unsupported>>()? })
    }

    /// Computes `y`, row-major, of `W` as `decode(thread, rows, values)` has it.
    ///
    /// # Panics
    ///
    /// When an operand is not what was planned for, or the pool has more threads.
    pub fn run(&mut self, pool: &mut Pool, x: Tensor<'_>, decode: &Decode<'_>, y: &mut [u8]) {
        assert!(pool.threads() <= self.workers.len(), "the pool has more threads than were planned for");
        let output = {
            let first = self.workers[0].get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            first.product.check_input(&x);
            first.product.output
        };
        assert_eq!(y.len(), x.rows * self.n * output.bytes(), "y is not what was planned for");
        let y = Output::new(y, self.n, output);
        let this = &*self;
        pool.deal(self.n, STEP, self.block, |thread, rows| {
            let mut worker = this.workers[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let Worker { product, alone, rows: memory } = &mut *worker;
            decode(thread, rows.clone(), floats(&mut memory[..rows.len() * this.k * 4]));
            let codes = &memory[..rows.len() * this.k * 4];
            let stored = product.stored;
            let decoded = stored.rows(&Tensor::plain(Format::FP32, rows.len(), this.k, codes));
            product.multiply(alone, &x, decoded, &mut [], y.beside(rows.start));
        });
    }
}

/// Bytes of a buffer as the numbers that they are.
fn floats(bytes: &mut [u8]) -> &mut [f32] {
    // SAFETY: any bits are a number, and a buffer starts on a cache line.
    #[allow(unsafe_code)]
    let (before, values, after) = unsafe { bytes.align_to_mut::<f32>() };
    assert!(before.is_empty() && after.is_empty(), "a buffer starts on a cache line");
    values
}
