//! Shapes of kernels, spread evenly on a logarithmic scale: by a fixed sequence for the grid, at random for its proof.

mod experts;

use roofline_core::{
    Device, Dim, Graph, Op,
    graph::Ffn,
    measurement::Subject,
    op::{Attention, Cache, Elementwise, ElementwiseKind},
    precision::PrecisionSpec,
    units::FlopRate,
};
use roofline_run::thin_rows;

use crate::{Context, Result, subjects::at_precisions};

/// Where points in the unit cube come from.
pub(crate) enum Points {
    /// A sequence that leaves no gaps, the same every time: `frac(1/2 + n / g^j)` with `g^5 = g + 1` (M. Roberts, "The
    /// unreasonable effectiveness of quasirandom sequences", 2018).
    Even(u64),
    /// Random numbers of a seed (`splitmix64`; Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    Random(u64),
}

/// The root of `g^5 = g + 1`.
const ROOT: f64 = 1.167_303_978_261_418_7;

impl Points {
    pub(crate) fn next(&mut self) -> [f64; 4] {
        match self {
            Self::Even(index) => {
                *index += 1;
                let index = *index as f64;
                [1, 2, 3, 4].map(|power| (0.5 + index / ROOT.powi(power)).fract())
            }
            Self::Random(state) => [0; 4].map(|_: u8| {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
            }),
        }
    }
}

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draw {
    /// Products of so few rows that a GPU has kernels of its own for them.
    Thin,
    /// Products of more.
    Tiled,
    /// The same of packed weights, in kernels of our own.
    Packed,
    /// Products of more rows with so few results that a GPU is full only where blocks share a sum, which is long.
    Deep,
    /// A gate and an up projection of as many rows, with the function that joins them.
    Gated,
    /// Experts of so few tokens that each of their rows is a product of its own.
    Chosen,
    /// Experts of tokens that are sorted by them.
    Grouped,
    /// Attention of one new token.
    Decode,
    /// Attention over a prompt.
    Prefill,
    /// A few operations per element.
    Elementwise(ElementwiseKind),
}

/// Sides of weights.
const SIDES: (f64, f64) = (896.0, 57344.0);
const ANY: [(f64, f64); 2] = [SIDES; 2];
/// Features and sums of products with few results and long sums, and their rows: past those of kernels of our own.
const DEEP: [(f64, f64); 2] = [(896.0, 2048.0), (8192.0, 57344.0)];
const DEEP_ROWS: (f64, f64) = (257.0, 768.0);
/// Most rows of packed weights, and of a gate: what follows only repeats.
const PACKED_ROWS: f64 = 4096.0;
const GATED_ROWS: f64 = 2048.0;
/// New tokens of a chunk of a long prompt, and keys of a window.
const CHUNK: u64 = 512;
const WINDOW: u64 = 1024;
/// Most elements of a weight or a cache: what is prepared on the host has to be quick to make.
const ELEMENTS: f64 = (1_u64 << 28) as f64;
/// Longest time of one call at the peak, in seconds.
const LONGEST: f64 = 8e-3;
/// Query heads and key/value heads that models have.
const HEADS: [(u64, u64); 8] = [(32, 8), (32, 32), (16, 2), (64, 8), (28, 4), (40, 8), (8, 1), (12, 12)];

impl Draw {
    /// The kernel at a point, at a precision.
    pub(crate) fn subject(
        self,
        context: &Context,
        point: [f64; 4],
        spec: &PrecisionSpec,
        device: &Device,
    ) -> Result<Vec<Subject>> {
        let thin = thin_rows(device).native as f64;
        let graph = match self {
            Self::Thin => product(point, (1.0, thin), ANY, spec, device)?,
            Self::Tiled => product(point, (thin + 1.0, 8192.0), ANY, spec, device)?,
            Self::Packed => product(point, (thin + 1.0, PACKED_ROWS), ANY, spec, device)?,
            Self::Deep => product(point, DEEP_ROWS, DEEP, spec, device)?,
            Self::Gated => gated(product(point, (thin + 1.0, GATED_ROWS), ANY, spec, device)?)?,
            Self::Chosen | Self::Grouped => {
                let visits = thin_rows(device).visits.unwrap_or(1) as f64;
                experts::drawn(point, (self == Self::Chosen, visits), spec, device)?
            }
            Self::Decode => attention(point, true, device)?,
            Self::Prefill => attention(point, false, device)?,
            Self::Elementwise(kind) => elementwise(point, kind)?,
        };
        at_precisions(context, &graph, std::slice::from_ref(spec), device)
    }
}

/// `low` to `high`, evenly on a logarithmic scale.
pub(crate) fn between(at: f64, (low, high): (f64, f64)) -> f64 {
    low * (high / low).powf(at)
}

/// The most elements that a kernel reads: no more than it could read in the longest time.
fn elements(device: &Device) -> f64 {
    ELEMENTS.min(device.memory.bandwidth.value() * LONGEST / 2.0)
}

/// The nearest multiple of `step` that is not below it.
pub(crate) fn multiple(value: f64, step: f64) -> u64 {
    ((value / step).round().max(1.0) * step) as u64
}

/// Sides are multiples of 16 to 128, odd ones included; `k` is one of 128 where weights have groups.
fn product(
    point: [f64; 4],
    rows: (f64, f64),
    sides: [(f64, f64); 2],
    spec: &PrecisionSpec,
    device: &Device,
) -> Result<Graph> {
    let precision = spec.on(device)?;
    let steps = [16.0, 64.0, 128.0, 32.0];
    let step = steps[(point[3] * 4.0) as usize % 4];
    let grouped = precision.weights.nominal_bits() < precision.activations.nominal_bits();
    let (n, k) = (between(point[1], sides[0]), between(point[2], sides[1]));
    let k = k.min(elements(device) / n);
    let flops = device.peaks.of(precision.math).map_or(1e12, FlopRate::value) * LONGEST;
    let m = between(point[0], rows).min(flops / (2.0 * n * k)).max(rows.0).round();
    let k = k.min(flops / (2.0 * m * n));
    Ok(Graph::gemm(m as u64, multiple(n, step), multiple(k, if grouped { 128.0 } else { 32.0_f64.max(step) }))?)
}

/// A product as the two of a gate and its partner, of half as many features each.
fn gated(product: Graph) -> Result<Graph> {
    let Some(Op::Linear(linear)) = product.nodes.first().map(|node| node.op) else { return Ok(product) };
    let inner = Dim::new("inner", (linear.n.get() / 2).next_multiple_of(16))?;
    let mut graph = Graph::ffn(Ffn { tokens: linear.m, hidden: linear.k, inner, gated: true }, true);
    // What leads back is a product like any other.
    graph.nodes.truncate(1);
    Ok(graph)
}

/// Of prompts, half are whole, some are the last chunk of a longer one, and some see a window.
fn attention([one, two, three, four]: [f64; 4], decode: bool, device: &Device) -> Result<Graph> {
    let (heads, kv_heads) = HEADS[(three * HEADS.len() as f64) as usize % HEADS.len()];
    let head_dim: u64 = if four < 0.25 { 64 } else { 128 };
    let (batch, context) = if decode {
        let context = multiple(between(two, (512.0, 32768.0)), 16.0);
        let room = elements(device) / (2 * context * kv_heads * head_dim) as f64;
        (between(one, (1.0, 64.0)).min(room).max(1.0) as u64, context)
    } else {
        let most = if elements(device) < ELEMENTS { 1024.0 } else { 8192.0 };
        let context = multiple(between(two, (128.0, most)), 16.0);
        (between(one, (1.0, 8.0)).min(most / context as f64).max(1.0) as u64, context)
    };
    let chunk = (0.25..0.5).contains(&four) && context > CHUNK;
    let queries = match (decode, chunk) {
        (true, _) => 1,
        (_, true) => CHUNK,
        _ => context,
    };
    let windowed = !decode && (0.5..0.6).contains(&four) && context > WINDOW;
    let attention = Attention {
        batch: Dim::new("batch", batch)?,
        heads: Dim::new("heads", heads)?,
        kv_heads: Dim::new("kv-heads", kv_heads)?,
        head_dim: Dim::new("head-dim", head_dim)?,
        value_dim: Dim::new("head-dim", head_dim)?,
        queries: Dim::new("queries", queries)?,
        context: Dim::new("context", context)?,
        causal: true,
        window: windowed.then(|| Dim::new("window", WINDOW)).transpose()?,
        cache: Cache::Separate,
    };
    Ok(Graph::attention(attention.checked()?, true))
}

fn elementwise([one, two, three, _]: [f64; 4], kind: ElementwiseKind) -> Result<Graph> {
    use ElementwiseKind as K;
    let per_head = matches!(kind, K::Rope | K::KvWrite);
    let width = if per_head { 128 } else { multiple(between(two, (896.0, 16384.0)), 64.0) };
    let vectors = if per_head { multiple(between(three, (2.0, 64.0)), 1.0) } else { 1 };
    let tokens = between(one, (1.0, 8192.0)).round();
    Ok(Graph::elementwise(Elementwise {
        kind,
        tokens: tokens as u128,
        vectors: Dim::new("vectors", vectors)?,
        width: Dim::new("width", width)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each half of each axis gets its share, from the start.
    #[test]
    fn the_sequence_leaves_no_gaps() {
        let mut points = Points::Even(0);
        let all: Vec<[f64; 4]> = (0..32).map(|_| points.next()).collect();
        for axis in 0..4 {
            let low = all.iter().filter(|point| point[axis] < 0.5).count();
            assert!((12..=20).contains(&low), "{axis}: {low} of 32");
        }
    }

    #[test]
    fn random_points_are_those_of_their_seed() {
        let draw = |seed: u64| {
            (0..100)
                .fold(Points::Random(seed), |mut points, _| {
                    points.next();
                    points
                })
                .next()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(3).iter().all(|value| (0.0..1.0).contains(value)));
    }
}
