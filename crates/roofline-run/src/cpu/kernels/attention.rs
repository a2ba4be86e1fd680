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
//! `[batch][kv head][capacity][feature]`, as a cache keeps them, of which the first `context` rows count. One plan serves
//! while the context grows ([`Attention::run_at`]).

#![allow(unsafe_code)]

mod decode;
mod manner;
mod prefill;
#[cfg(test)]
mod tests;

use roofline_core::{
    Format, Math, Precision,
    op::{self, Cache},
};

use roofline_isa::Isa;

pub use self::manner::Manner;
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
    /// In powers of two, as scores are.
    soft_cap: Option<f32>,
    /// The same, one per query head.
    sinks: Option<Vec<f32>>,
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
    /// Rows that the cache has for each KV head, of which the first `context` are keys.
    capacity: usize,
    causal: bool,
    window: usize,
    /// What queries are multiplied by, so that scores are powers of two.
    scale: f32,
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
            capacity: size(op.context),
            causal: op.causal,
            window: op.window.filter(|_| op.causal).map_or(usize::MAX, size),
            scale: std::f32::consts::LOG2_E / (op.head_dim.get() as f32).sqrt(),
        };
        shape.addressable().then_some(shape)
    }

    /// Whether no tensor is larger than indices reach.
    fn addressable(&self) -> bool {
        let features = self.dim.max(self.value_dim).checked_mul(8);
        let rows = self.batch.checked_mul(self.heads);
        let rows = rows.and_then(|rows| rows.checked_mul(self.queries.max(self.context).max(self.capacity)));
        rows.zip(features).is_some_and(|(rows, features)| rows.checked_mul(features).is_some())
    }

    /// The keys that query `index` sees.
    fn visible(&self, index: usize) -> std::ops::Range<usize> {
        let end = if self.causal { self.context - self.queries + index + 1 } else { self.context };
        end.saturating_sub(self.window)..end
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
            return Err(too_large());
        };
        let scratch = if shape.queries == 1 {
            decode::Scratch::new(&shape, threads, isa.lanes()).map(Scratch::Decode)
        } else {
            prefill::Scratch::new(&shape, threads, isa.lanes()).map(Scratch::Prefill)
        };
        let Some(scratch) = scratch else {
            return refuse("there is no memory for the scratch of this attention".to_owned());
        };
        let query_format = precision.query;
        Ok(Self { shape, query, cache, query_format, cache_format, isa, soft_cap: None, sinks: None, scratch })
    }

    /// The same attention in a manner of its own.
    pub fn with(mut self, manner: &Manner) -> Result<Self, Unsupported> {
        manner.check(self.shape.heads, self.shape.context)?;
        let log2e = std::f32::consts::LOG2_E;
        if let Some(scale) = manner.scale {
            self.shape.scale = scale * log2e;
        }
        self.shape.capacity = manner.capacity.unwrap_or(self.shape.context);
        if !self.shape.addressable() {
            return Err(too_large());
        }
        self.soft_cap = manner.soft_cap.map(|cap| cap * log2e);
        self.sinks = manner.sinks.as_ref().map(|sinks| sinks.iter().map(|sink| sink * log2e).collect());
        Ok(self)
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

    /// Runs over the planned context, on at most as many threads as were planned for.
    ///
    /// # Panics
    ///
    /// When a tensor does not have the planned shape or format.
    pub fn run(&mut self, pool: &mut Pool, q: Tensor<'_>, k: Tensor<'_>, v: Tensor<'_>, out: &mut [u8]) {
        let rows = self.shape.batch * self.shape.queries * self.shape.heads;
        assert_eq!(q.rows, rows, "the queries have another shape");
        self.run_at(pool, self.shape.context, q, k, v, out);
    }

    /// Runs over the first `context` rows of the cache, no more than were planned for; there may be fewer queries than
    /// were planned for, too. The new tokens are the last of the context.
    ///
    /// # Panics
    ///
    /// When the context is longer than planned or has no room for the queries, or a tensor does not have the planned
    /// shape or format.
    pub fn run_at(
        &mut self,
        pool: &mut Pool,
        context: usize,
        q: Tensor<'_>,
        k: Tensor<'_>,
        v: Tensor<'_>,
        out: &mut [u8],
    ) {
        let planned = self.shape;
        let queries = q.rows / (planned.batch * planned.heads);
        assert!((1..=planned.context).contains(&context), "a context of {context} was not planned for");
        assert!((1..=planned.queries).contains(&queries), "{queries} queries were not planned for");
        assert!(!planned.causal || queries <= context, "{queries} queries do not fit a context of {context}");
        let shape = Shape { queries, context, ..planned };
        let rows = shape.batch * shape.queries * shape.heads;
        let keys = shape.batch * shape.kv_heads * shape.capacity;
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
            soft_cap: self.soft_cap,
            sinks: self.sinks.as_deref(),
        };
        match &mut self.scratch {
            Scratch::Decode(scratch) => decode::run(pool, self.isa, &call, scratch),
            Scratch::Prefill(scratch) => prefill::run(pool, self.isa, &call, scratch),
        }
    }
}

fn too_large() -> Unsupported {
    Unsupported("the attention is larger than this machine can address".to_owned())
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
struct Call<'a> {
    shape: Shape,
    query: Kind,
    cache: Kind,
    q: *const u8,
    k: Side,
    v: Side,
    out: *mut u8,
    soft_cap: Option<f32>,
    sinks: Option<&'a [f32]>,
}

// SAFETY: inputs are only read, and every thread writes rows of the output of its own.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    /// What the weighted values of a query head are multiplied by in the end: one by the sum of the weights, to which a
    /// sink adds its own, at the base that suits the larger of them.
    fn factor(&self, head: usize, largest: f32, sum: f32) -> f32 {
        let Some(sinks) = self.sinks else { return 1.0 / sum };
        let base = largest.max(sinks[head]);
        let weight = |score: f32| (score - base).max(-126.0).exp2();
        weight(largest) / (sum * weight(largest) + weight(sinks[head]))
    }
}

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
