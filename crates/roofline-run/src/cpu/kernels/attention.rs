//! Attention over a KV cache: `softmax(Q * K^T / sqrt(d)) * V`, with scores that never leave the first cache.
//!
//! The softmax is computed in one pass over blocks of keys (Milakov and Gimelshein, arXiv 1805.02867): with the largest
//! score so far `m`, the sum `l` of `2^(s - m)` and the weighted sum of values `o`, a block that raises `m` to `m'` scales
//! `l` and `o` by `2^(m - m')`. Scores are in powers of two, with `log2(e)` folded into the queries' scale.
//!
//! Decode (`decode`) reads the cache once and is bound by it: heads of a group share each key, and threads share the
//! keys evenly, whatever the number of heads. Prefill (`prefill`) blocks queries, so that keys and values are converted
//! once per block and multiplied many times.
//!
//! Queries and outputs are `[batch][query][head][feature]`, as projections write and read them; keys and values are
//! `[batch][kv head][context][feature]`, as a cache keeps them.

#![allow(unsafe_code)]

mod decode;
mod prefill;
#[cfg(test)]
mod tests;

use roofline_core::{
    Format, Math, Precision,
    op::{self, Cache},
};

use roofline_isa::Isa;

use super::element::Kind;
use crate::cpu::{pool::Pool, tensor::Tensor, unsupported::Unsupported};

/// Keys per block: scores of a block stay in registers and the first cache.
const BLOCK: usize = 64;
/// What masked scores are set to, and what the largest score starts from. Finite, so that no difference is NaN.
const NOTHING: f32 = -1e30;

/// A planned attention: its kernel and its scratch memory.
pub struct Attention {
    shape: Shape,
    query: Kind,
    cache: Kind,
    query_format: Format,
    cache_format: Format,
    isa: Isa,
    scratch: Scratch,
}

enum Scratch {
    Decode(decode::Scratch),
    Prefill(prefill::Scratch),
}

/// The operator's dimensions as indices.
#[derive(Clone, Copy, Debug)]
struct Shape {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    /// Query heads per KV head.
    group: usize,
    dim: usize,
    value_dim: usize,
    queries: usize,
    context: usize,
    causal: bool,
    window: usize,
}

impl Shape {
    fn of(op: &op::Attention) -> Option<Self> {
        let size = |dim: roofline_core::Dim| dim.get() as usize;
        let shape = Self {
            batch: size(op.batch),
            heads: size(op.heads),
            kv_heads: size(op.kv_heads),
            group: size(op.heads) / size(op.kv_heads),
            dim: size(op.head_dim),
            value_dim: size(op.value_dim),
            queries: size(op.queries),
            context: size(op.context),
            causal: op.causal,
            window: op.window.filter(|_| op.causal).map_or(usize::MAX, size),
        };
        let features = shape.dim.max(shape.value_dim).checked_mul(8)?;
        let rows = shape.batch.checked_mul(shape.heads)?;
        rows.checked_mul(shape.queries.max(shape.context))?.checked_mul(features)?;
        Some(shape)
    }

    /// The keys that query `index` sees.
    fn visible(&self, index: usize) -> std::ops::Range<usize> {
        let end = if self.causal { self.context - self.queries + index + 1 } else { self.context };
        end.saturating_sub(self.window)..end
    }

    /// What queries are multiplied by, so that scores are powers of two.
    fn scale(&self) -> f32 {
        std::f32::consts::LOG2_E / (self.dim as f32).sqrt()
    }

    /// The row of a query: of head `head` for query `index` of sequence `batch`.
    fn row(&self, batch: usize, index: usize, head: usize) -> usize {
        (batch * self.queries + index) * self.heads + head
    }
}

impl Attention {
    /// Chooses a kernel for `op` at `precision` on `threads` threads, with the widest vectors there are.
    pub fn plan(op: &op::Attention, precision: &Precision, threads: usize) -> Result<Self, Unsupported> {
        Self::plan_on(op, precision, threads, Isa::best())
    }

    /// The same with an instruction set of one's choice.
    pub fn plan_on(op: &op::Attention, precision: &Precision, threads: usize, isa: Isa) -> Result<Self, Unsupported> {
        let refuse = |why: String| Err(Unsupported(why));
        let op = op.checked().map_err(|error| Unsupported(error.to_string()))?;
        let cache_format = match op.cache {
            Cache::Separate => precision.kv,
            Cache::Expanded => precision.query,
            Cache::Latent => {
                return refuse("the CPU backend has no kernel for attention over a latent cache".to_owned());
            }
        };
        let Some(query) = Kind::plain(precision.query) else {
            return refuse(format!("queries in {} have no CPU kernel: use fp32, bf16 or fp16", precision.query));
        };
        let Some(cache) = Kind::of(cache_format) else {
            return refuse(format!(
                "a KV cache in {cache_format} has no CPU kernel: use fp32, bf16, fp16, int8, fp8-e4m3 or fp8-e5m2"
            ));
        };
        let Some(shape) = Shape::of(&op) else {
            return refuse("the attention is larger than this machine can address".to_owned());
        };
        let scratch = if shape.queries == 1 {
            decode::Scratch::new(&shape, threads, isa.lanes()).map(Scratch::Decode)
        } else {
            prefill::Scratch::new(&shape, threads, isa.lanes()).map(Scratch::Prefill)
        };
        let Some(scratch) = scratch else {
            return refuse("there is no memory for the scratch of this attention".to_owned());
        };
        Ok(Self { shape, query, cache, query_format: precision.query, cache_format, isa, scratch })
    }

    /// The kernel's name.
    pub fn kernel_name(&self) -> String {
        let path = match self.scratch {
            Scratch::Decode(_) => "decode",
            Scratch::Prefill(_) => "prefill",
        };
        format!("attention-{path}-{}-{}", self.isa.level(), self.cache_format)
    }

    /// What it multiplies with: everything is widened to FP32.
    pub fn math(&self) -> Math {
        Math::Fp32
    }

    /// Runs on at most as many threads as were planned for.
    ///
    /// # Panics
    ///
    /// When a tensor does not have the planned shape or format.
    pub fn run(&mut self, pool: &mut Pool, q: Tensor<'_>, k: Tensor<'_>, v: Tensor<'_>, out: &mut [u8]) {
        let shape = self.shape;
        let rows = shape.batch * shape.queries * shape.heads;
        let keys = shape.batch * shape.kv_heads * shape.context;
        check("queries", &q, rows, shape.dim, self.query_format, self.query);
        check("keys", &k, keys, shape.dim, self.cache_format, self.cache);
        check("values", &v, keys, shape.value_dim, self.cache_format, self.cache);
        assert_eq!(out.len(), rows * shape.value_dim * self.query.bytes(), "the output has another size");
        let call = Call {
            shape,
            query: self.query,
            cache: self.cache,
            q: q.codes.as_ptr(),
            k: Side { codes: k.codes.as_ptr(), scales: k.scales.as_ptr() },
            v: Side { codes: v.codes.as_ptr(), scales: v.scales.as_ptr() },
            out: out.as_mut_ptr(),
        };
        match &mut self.scratch {
            Scratch::Decode(scratch) => decode::run(pool, self.isa, &call, scratch),
            Scratch::Prefill(scratch) => prefill::run(pool, self.isa, &call, scratch),
        }
    }
}

fn check(what: &str, tensor: &Tensor<'_>, rows: usize, columns: usize, format: Format, kind: Kind) {
    assert_eq!((tensor.rows, tensor.columns), (rows, columns), "the {what} have another shape");
    assert_eq!(tensor.format, format, "the {what} have another format");
    assert_eq!(tensor.codes.len(), rows * columns * kind.bytes(), "the {what} have another size");
    assert!(!kind.scaled() || tensor.scales.len() == 2 * rows, "the {what} have another number of scales");
}

/// Keys or values.
#[derive(Clone, Copy)]
struct Side {
    codes: *const u8,
    scales: *const u8,
}

/// One call's tensors.
#[derive(Clone, Copy)]
struct Call {
    shape: Shape,
    query: Kind,
    cache: Kind,
    q: *const u8,
    k: Side,
    v: Side,
    out: *mut u8,
}

// SAFETY: inputs are only read, and every thread writes rows of the output of its own.
unsafe impl Sync for Call {}

/// A pointer to scratch memory of which each thread uses its own part.
#[derive(Clone, Copy)]
struct Parts {
    start: *mut f32,
    stride: usize,
}

// SAFETY: a thread takes the part of its own index.
unsafe impl Sync for Parts {}

impl Parts {
    fn of(self, thread: usize) -> *mut f32 {
        self.start.wrapping_add(thread * self.stride)
    }
}
