//! What was timed: a shape, and the formats it was computed in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Format, Math, Op, Precision,
    format::Element,
    hash::Fnv1a,
    op::{Attention, Cache},
    text::named,
};

/// Operators that files of timings have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimedOp {
    /// A matrix product.
    Gemm,
    /// Attention of one new token over a cache.
    GenerationAttention,
    /// Attention of a prompt.
    ContextAttention,
}

impl TimedOp {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Gemm, Self::GenerationAttention, Self::ContextAttention];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::GenerationAttention => "generation_attention",
            Self::ContextAttention => "context_attention",
        }
    }
}

named!(TimedOp, "operator", "operators", "Operators that files of timings have.");

/// Formats of a kernel, as files of timings name them: of products `gemm_dtype`, of attention what multiplies and what is
/// cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// 16 bit.
    Bfloat16,
    /// E4M3 weights and activations, a scale for each tensor.
    Fp8,
    /// E4M3 weights and activations, a scale for each block of 128.
    Fp8Block,
    /// NVFP4 weights and activations.
    Nvfp4,
    /// INT8 weights, 16-bit activations.
    Int8Wo,
    /// INT4 weights, 16-bit activations.
    Int4Wo,
    /// INT8 weights and activations (SmoothQuant).
    Sq,
    /// 16-bit attention over an FP8 cache.
    Bfloat16OverFp8,
    /// FP8 attention over an FP8 cache.
    Fp8OverFp8,
}

impl Dtype {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Bfloat16,
        Self::Fp8,
        Self::Fp8Block,
        Self::Nvfp4,
        Self::Int8Wo,
        Self::Int4Wo,
        Self::Sq,
        Self::Bfloat16OverFp8,
        Self::Fp8OverFp8,
    ];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bfloat16 => "bfloat16",
            Self::Fp8 => "fp8",
            Self::Fp8Block => "fp8_block",
            Self::Nvfp4 => "nvfp4",
            Self::Int8Wo => "int8_wo",
            Self::Int4Wo => "int4_wo",
            Self::Sq => "sq",
            Self::Bfloat16OverFp8 => "bfloat16/fp8",
            Self::Fp8OverFp8 => "fp8/fp8",
        }
    }

    /// Bytes of an element of the weights, or of the cache, and of the input, or of a query; scales included.
    pub(super) const fn bytes(self) -> (f64, f64) {
        match self {
            Self::Bfloat16 => (2.0, 2.0),
            Self::Fp8 | Self::Fp8Block | Self::Sq | Self::Fp8OverFp8 => (1.0, 1.0),
            Self::Nvfp4 => (0.5625, 0.5625),
            Self::Int8Wo | Self::Bfloat16OverFp8 => (1.0, 2.0),
            Self::Int4Wo => (0.5, 2.0),
        }
    }

    /// The unit that multiplies.
    pub const fn math(self) -> Math {
        match self {
            Self::Bfloat16 | Self::Int8Wo | Self::Int4Wo | Self::Bfloat16OverFp8 => Math::Bf16,
            Self::Fp8 | Self::Fp8Block | Self::Fp8OverFp8 => Math::Fp8,
            Self::Nvfp4 => Math::Fp4,
            Self::Sq => Math::Int8,
        }
    }

    /// Of a product's formats; none where nobody timed such.
    fn of_product(weights: Format, activations: Format, math: Math) -> Option<Self> {
        let sixteen = |format: Format| matches!(format, Format::BF16 | Format::FP16);
        let is = |format: Format, element: Element| format.element() == element;
        match math {
            Math::Bf16 | Math::Fp16 if sixteen(weights) && sixteen(activations) => Some(Self::Bfloat16),
            Math::Bf16 | Math::Fp16 if is(weights, Element::Int8) && sixteen(activations) => Some(Self::Int8Wo),
            Math::Bf16 | Math::Fp16 if is(weights, Element::Int4) && sixteen(activations) => Some(Self::Int4Wo),
            Math::Fp8 if is(weights, Element::Fp8E4M3) && is(activations, Element::Fp8E4M3) => {
                Some(if weights.shares_squares() { Self::Fp8Block } else { Self::Fp8 })
            }
            Math::Int8 if is(weights, Element::Int8) && is(activations, Element::Int8) => Some(Self::Sq),
            Math::Fp4 if weights == Format::NVFP4 && activations == Format::NVFP4 => Some(Self::Nvfp4),
            _ => None,
        }
    }

    /// Of attention's formats.
    fn of_attention(cache: Format, math: Math) -> Option<Self> {
        let eight = cache.element() == Element::Fp8E4M3;
        match math {
            Math::Bf16 | Math::Fp16 if matches!(cache, Format::BF16 | Format::FP16) => Some(Self::Bfloat16),
            Math::Bf16 | Math::Fp16 if eight => Some(Self::Bfloat16OverFp8),
            Math::Fp8 if eight => Some(Self::Fp8OverFp8),
            _ => None,
        }
    }
}

named!(Dtype, "dtype", "dtypes", "Formats of a kernel, as files of timings name them.");

/// The shape of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// `y[m,n] = x[m,k] * W[n,k]^T`.
    Product {
        /// Rows of the input.
        m: f64,
        /// Outputs.
        n: f64,
        /// Inputs.
        k: f64,
    },
    /// Queries over keys and values, causal.
    Attention {
        /// Sequences.
        batch: f64,
        /// New tokens of each.
        queries: f64,
        /// Keys of each, the new ones included.
        context: f64,
        /// Query heads.
        heads: f64,
        /// Key and value heads.
        kv_heads: f64,
        /// Features of a head.
        head_dim: f64,
        /// How many keys a token sees; zero where it sees all.
        window: f64,
        /// Whether it is the step of a token after a prompt, which stacks have other kernels for.
        decode: bool,
    },
}

impl Shape {
    /// Which operator it is of.
    pub fn op(&self) -> TimedOp {
        match self {
            Self::Product { .. } => TimedOp::Gemm,
            Self::Attention { decode: true, .. } => TimedOp::GenerationAttention,
            Self::Attention { .. } => TimedOp::ContextAttention,
        }
    }

    /// A number that is the same for the same shape, for splits that must repeat.
    pub(super) fn hash(&self) -> u64 {
        let mut hash = Fnv1a::default();
        let mut add = |value: f64| hash.add(&value.to_le_bytes());
        match *self {
            Self::Product { m, n, k } => [m, n, k].into_iter().for_each(&mut add),
            Self::Attention { batch, queries, context, heads, kv_heads, head_dim, window, .. } => {
                [batch, queries, context, heads, kv_heads, head_dim, window].into_iter().for_each(&mut add);
            }
        }
        let value = hash.value();
        value ^ (value >> 29)
    }
}

/// A kernel of a file of timings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedKernel {
    /// Its formats.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Shape,
}

impl TimedKernel {
    /// That of an operator; none for one that nobody timed.
    pub fn of(op: &Op, precision: &Precision) -> Option<Self> {
        let product = |m: f64, n: f64, k: f64| {
            let dtype = Dtype::of_product(precision.weights, precision.activations, precision.math)?;
            Some(Self { dtype, shape: Shape::Product { m, n, k } })
        };
        match op {
            Op::Linear(linear) => product(linear.m.float(), linear.n.float(), linear.k.float()),
            Op::ActivatedLinear(activated) => {
                let linear = activated.linear;
                let matrices = if activated.gated { 2.0 } else { 1.0 };
                product(linear.m.float(), matrices * linear.n.float(), linear.k.float())
            }
            Op::Attention(attention) if attention.causal && attention.cache == Cache::Separate => {
                let dtype = Dtype::of_attention(precision.kv, precision.attention)?;
                Some(Self { dtype, shape: attention_shape(attention) })
            }
            _ => None,
        }
    }
}

fn attention_shape(attention: &Attention) -> Shape {
    Shape::Attention {
        batch: attention.batch.float(),
        queries: attention.queries.float(),
        context: attention.context.float(),
        heads: attention.heads.float(),
        kv_heads: attention.kv_heads.float(),
        head_dim: attention.head_dim.float(),
        window: attention.window.map_or(0.0, crate::Dim::float),
        decode: attention.queries.get() == 1,
    }
}

/// Shapes that are about as hard to predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "TimedRegime")]
pub enum Regime {
    /// Products of up to 16 rows; attention over up to 64 keys.
    Thin,
    /// Up to 128 rows; up to 1024 keys.
    Few,
    /// Up to 1024 rows; up to 8192 keys.
    Many,
    /// More.
    Large,
}

impl Regime {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Thin, Self::Few, Self::Many, Self::Large];

    /// That of a shape.
    pub fn of(shape: &Shape) -> Self {
        let (size, bounds) = match *shape {
            Shape::Product { m, .. } => (m, [16.0, 128.0, 1024.0]),
            Shape::Attention { context, .. } => (context, [64.0, 1024.0, 8192.0]),
        };
        Self::ALL[bounds.iter().filter(|bound| size > **bound).count()]
    }

    /// In words, for an operator.
    pub fn words(self, op: TimedOp) -> &'static str {
        match (op, self) {
            (TimedOp::Gemm, Self::Thin) => "up to 16 rows",
            (TimedOp::Gemm, Self::Few) => "17 to 128 rows",
            (TimedOp::Gemm, Self::Many) => "129 to 1024 rows",
            (TimedOp::Gemm, Self::Large) => "more rows",
            (_, Self::Thin) => "up to 64 keys",
            (_, Self::Few) => "65 to 1024 keys",
            (_, Self::Many) => "1025 to 8192 keys",
            (_, Self::Large) => "more keys",
        }
    }
}
