//! How kernels can be cut into blocks, and what one block asks for.

mod experts;
mod packed;
mod prefill;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Format, Math, Op, Precision,
    calibration::terms::{Family, is_widened},
    format::{Shape, Sizes},
    op::{Attention, Elementwise, ElementwiseKind, ExpertSide, Linear},
};

/// Kernels that share their terms: a family on a unit, with what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GpuLane")]
pub struct Lane {
    /// Which kernels.
    pub family: Family,
    /// On which unit.
    pub math: Math,
    /// Stored weights, or the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Which element-wise kernel; of a product, the one that follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ElementwiseKind>,
}

/// What an operator asks of a GPU, whatever the terms.
pub(super) struct Task {
    pub(super) lane: Lane,
    /// Binary logarithms of the dimensions, for neighbours.
    pub(super) at: [f64; 4],
    /// Bytes the kernel reads, each once.
    pub(super) read: f64,
    pub(super) write: f64,
    /// Whether what is stored has to be widened.
    pub(super) widened: bool,
    pub(super) cuts: Vec<Cut>,
}

/// One way to cut a kernel: how many blocks, and what each of them does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) blocks: f64,
    pub(super) flops: f64,
    /// What a block reads, from wherever it is.
    pub(super) bytes: f64,
    /// Stored elements among that.
    pub(super) elements: f64,
    /// Steps along its sum.
    pub(super) steps: f64,
    /// Sums it ends with, those of threads that are added up included.
    pub(super) outputs: f64,
    /// Bytes of partial sums of all blocks.
    pub(super) partial: f64,
    /// Bytes that a block asks for when all of the others have come: inputs that wait for the kernel before, partial sums that it
    /// adds up.
    pub(super) late: f64,
    pub(super) split: bool,
    /// The longest block, where they differ, as a multiple of the mean: what a machine that is not full waits for.
    pub(super) longest: f64,
}

/// A tile of the output of a product.
#[derive(Clone, Copy)]
struct Tile {
    tokens: f64,
    features: f64,
}

const fn tile(tokens: f64, features: f64) -> Tile {
    Tile { tokens, features }
}

/// The tiles that libraries of matrix products have (CUTLASS's and cuBLAS's for Hopper are among them; a tile of 256 by 256
/// has no room for its accumulators).
const TILES: [Tile; 15] = [
    tile(32.0, 64.0),
    tile(32.0, 128.0),
    tile(32.0, 256.0),
    tile(64.0, 64.0),
    tile(64.0, 128.0),
    tile(64.0, 192.0),
    tile(64.0, 256.0),
    tile(128.0, 64.0),
    tile(128.0, 128.0),
    tile(128.0, 192.0),
    tile(128.0, 256.0),
    tile(192.0, 64.0),
    tile(192.0, 128.0),
    tile(256.0, 64.0),
    tile(256.0, 128.0),
];
/// The smallest side of a tile where results are scaled by row and column: a library has few kernels that do it.
const SCALED_TILE: f64 = 128.0;
/// Blocks that share a sum over `k`; of thin products no more than four, which are a cluster.
const SPLITS: [u32; 5] = [1, 2, 4, 8, 16];
const THIN_SPLITS: [u32; 3] = [1, 2, 4];
/// The tensor instruction `m16n8k16` with the weights on the side of 16: a block of a thin product has its features once or
/// as often as `THIN_TILES` says, and its tokens in whole steps.
const THIN: Tile = tile(8.0, 16.0);
const THIN_TILES: [f64; 3] = [1.0, 2.0, 4.0];
/// Rows up to which a block on the vector unit has few features, and its features for so many rows and for more. Each block
/// reads the input again.
const VECTOR_ROWS: f64 = 4.0;
const VECTOR_FEATURES: f64 = 2.0;
const VECTOR_FEATURES_OF_MORE: f64 = 4.0;
/// Threads of such a block: each has a sum of its own for every output, and they are added up at the end.
const VECTOR_THREADS: f64 = 256.0;
/// Blocks that share one head's cache.
const CACHE_SPLITS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The least part of a sum over `k`, and of a cache, that is worth a block of its own.
const LEAST_DEPTH: f64 = 256.0;
const LEAST_KEYS: f64 = 64.0;
/// A step of the loop over `k`, or over the cache.
const STEP: f64 = 64.0;
/// Queries of a block of decode attention, where several heads share a cache.
const DECODE_QUERIES: f64 = 16.0;
/// Bytes of a block of an element-wise kernel that does not need whole rows.
const CHUNK: f64 = 8192.0;

impl Task {
    /// By kernels of a family.
    pub(super) fn of(op: &Op, precision: &Precision, sizes: Sizes, family: Family, units: u32) -> Self {
        let work = op.likely_work(precision, sizes);
        let (read, write, math) = (work.read.value(), work.write.value(), op.math(precision));
        let lane = |format, kind| Lane { family, math, format, kind };
        let task = |lane, widened, at: [f64; 4], cuts| {
            let at = at.map(|dimension: f64| dimension.max(1.0).log2());
            Self { lane, at, read, write, widened, cuts }
        };
        let product = |linear: &Linear, matrices: f64, function: Option<ElementwiseKind>| {
            let (m, n, k) = (linear.m.float(), linear.n.float() * matrices, linear.k.float());
            let cuts = products(linear, n, precision, sizes, family, f64::from(units));
            // Thin products have their function inside; of others a pass of its own may follow.
            let lane = lane(Some(precision.weights), function.filter(|_| family != Family::Thin));
            task(lane, is_widened(precision), [m, n, k, 1.0], cuts)
        };
        match op {
            Op::Linear(linear) => product(linear, 1.0, None),
            Op::ActivatedLinear(activated) => {
                let both = (2.0, Some(ElementwiseKind::GatedActivation));
                let (matrices, function) =
                    if activated.gated { both } else { (1.0, Some(ElementwiseKind::Activation)) };
                product(&activated.linear, matrices, function)
            }
            Op::Experts(experts) => {
                let matrices = if experts.side == ExpertSide::GatedUp { 2.0 } else { 1.0 };
                let (n, k) = (experts.n.float() * matrices, experts.k.float());
                let (function, cuts) = if family == Family::Grouped {
                    let product = experts::Grouped { experts, n, precision, sizes };
                    (experts::function(experts.side), product.cuts(f64::from(units)))
                } else {
                    // A gate is applied within, and what chooses the experts is a kernel in front as is the sum of them one behind.
                    let own = Some(ElementwiseKind::Activation).filter(|_| experts.side == ExpertSide::Up);
                    (own, experts::chosen(experts, n, precision, sizes, f64::from(units)))
                };
                let at = [experts.rows() as f64, n, k, experts.distinct()];
                task(lane(Some(precision.weights), function), is_widened(precision), at, cuts)
            }
            Op::Attention(attention) => {
                let widened = precision.kv.nominal_bits() < precision.query.nominal_bits();
                let lane = lane(Some(precision.kv), None);
                let group = attention.heads.float() / attention.kv_heads.float();
                let (batch, keys) = (attention.batch.float(), attention.keys() as f64);
                if family == Family::Decode {
                    let at = [batch, attention.kv_heads.float(), group, keys];
                    task(lane, widened, at, decode(attention, read, group, keys))
                } else {
                    let at = [batch * attention.heads.float(), attention.queries.float(), keys, 1.0];
                    let query = f64::from(precision.query.nominal_bits()) / 8.0;
                    task(lane, widened, at, prefill::cuts(attention, read, query))
                }
            }
            Op::Elementwise(elementwise) => {
                let at = [elementwise.rows(), elementwise.width.float(), 1.0, 1.0];
                let rows = (elementwise.kind == ElementwiseKind::Norm).then(|| elementwise.rows());
                task(lane(None, Some(elementwise.kind)), false, at, vec![streaming(rows, read + write)])
            }
            _ => task(lane(None, None), false, [read + write, 1.0, 1.0, 1.0], vec![streaming(None, read + write)]),
        }
    }
}

impl Elementwise {
    fn rows(&self) -> f64 {
        self.tokens as f64 * self.vectors.float()
    }
}

/// Whether the library scales results by row and column as it writes them: FP8 times FP8.
fn is_scaled_last(precision: &Precision) -> bool {
    (precision.weights, precision.activations) == (Format::FP8, Format::FP8)
}

/// Tiles of the output, each alone or with its sum over `k` shared by several blocks.
fn products(linear: &Linear, n: f64, precision: &Precision, sizes: Sizes, family: Family, units: f64) -> Vec<Cut> {
    let thin = family == Family::Thin;
    let (m, k) = (linear.m.float(), linear.k.float());
    let weight = precision.weights.bytes(Shape::matrix(linear.n, linear.k), sizes).value() / (linear.n.float() * k);
    let input = precision.activations.bytes(Shape::matrix(linear.m, linear.k), sizes).value() / (m * k);
    if family == Family::Packed {
        return packed::cuts(&packed::Product { m, n, k, weight, input, bytes: !is_widened(precision) }, units);
    }
    let vector = thin && precision.math == Math::Fp32;
    // Blocks on the vector unit are small, so a multiprocessor has several at once. Here they are one block of as many features
    // as a thin tile has, which reads its input as often as they do, for a number of rows that is a power of two.
    let (tiles, again): (Vec<Tile>, f64) = if vector {
        let rows = linear.m.get().next_power_of_two() as f64;
        let features = if rows > VECTOR_ROWS { VECTOR_FEATURES_OF_MORE } else { VECTOR_FEATURES };
        (vec![Tile { tokens: rows, ..THIN }], THIN.features / features)
    } else if thin {
        let tokens = (m / THIN.tokens).ceil() * THIN.tokens;
        (THIN_TILES.map(|tiles| tile(tokens, tiles * THIN.features)).to_vec(), 1.0)
    } else if is_scaled_last(precision) {
        (TILES.into_iter().filter(|tile| tile.tokens.min(tile.features) >= SCALED_TILE).collect(), 1.0)
    } else {
        (TILES.to_vec(), 1.0)
    };
    let sums = if vector { VECTOR_THREADS } else { 1.0 };
    // Weights are asked for while the kernel before still runs, and x when it has ended.
    let ahead = thin && !vector;
    let splits: &[u32] = match (vector, thin) {
        (true, _) => &[1],
        (_, true) => &THIN_SPLITS,
        // A scale for every row of a result is applied where its sum ends, so that one block has all of it.
        _ if is_scaled_last(precision) => &[1],
        _ => &SPLITS,
    };
    let mut cuts = Vec::with_capacity(tiles.len() * splits.len());
    for Tile { tokens, features } in tiles {
        for split in splits.iter().copied().map(f64::from) {
            if split > 1.0 && k / split < LEAST_DEPTH {
                break;
            }
            let depth = (k / split / STEP).ceil() * STEP;
            let x = depth * tokens.min(m) * input;
            cuts.push(Cut {
                blocks: (m / tokens).ceil() * (n / features).ceil() * split,
                flops: 2.0 * tokens * features * depth,
                bytes: depth * features * weight + if ahead { 0.0 } else { x * again },
                elements: depth * features,
                steps: depth / STEP,
                outputs: if thin { tokens } else { tokens.min(m) } * features * sums,
                partial: if split > 1.0 { 4.0 * m * n * split } else { 0.0 },
                late: if ahead { x } else { 0.0 },
                split: split > 1.0,
                longest: 1.0,
            });
        }
    }
    cuts
}

/// A block for each cache of a head and sequence, or several that share it and merge their softmax (split-KV,
/// "Flash-Decoding", Dao et al. 2023).
fn decode(attention: &Attention, read: f64, group: f64, keys: f64) -> Vec<Cut> {
    let caches = attention.batch.float() * attention.kv_heads.float();
    let (width, value) = (attention.head_dim.float() + attention.value_dim.float(), attention.value_dim.float());
    let queries = (group / DECODE_QUERIES).ceil() * DECODE_QUERIES;
    let useful = |split: &f64| *split == 1.0 || keys / split >= LEAST_KEYS;
    let cut = |split: f64| Cut {
        blocks: caches * split,
        flops: 2.0 * (keys / split).ceil() * width * queries,
        bytes: read / caches / split,
        elements: attention.cached_elements() / caches / split,
        steps: (keys / split / STEP).ceil(),
        outputs: 0.0,
        partial: if split > 1.0 { 4.0 * caches * group * value * split } else { 0.0 },
        late: 0.0,
        split: split > 1.0,
        longest: 1.0,
    };
    CACHE_SPLITS.map(f64::from).into_iter().take_while(useful).map(cut).collect()
}

/// A block per row where a row has one sum, else a block per chunk.
fn streaming(rows: Option<f64>, bytes: f64) -> Cut {
    let blocks = rows.unwrap_or((bytes / CHUNK).ceil()).max(1.0);
    let bytes = bytes / blocks;
    Cut {
        blocks,
        flops: 0.0,
        bytes,
        elements: 0.0,
        steps: 0.0,
        outputs: 0.0,
        partial: 0.0,
        late: 0.0,
        split: false,
        longest: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Registry, calibration::terms::ThinRows, precision::PrecisionSpec};

    fn task(m: u64, n: u64, k: u64, precision: &str) -> Task {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let precision = precision.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
        let op = Graph::gemm(m, n, k).unwrap().nodes[0].op;
        let thin_rows = ThinRows { widened: 64, ..ThinRows::all(16) };
        let family = Family::of(&op, &precision, thin_rows).unwrap();
        Task::of(&op, &precision, Sizes::Exact, family, 132)
    }

    #[test]
    fn a_thin_product_has_a_block_per_16_features() {
        let task = task(9, 4096, 1024, "bf16");
        assert_eq!(task.lane.family, Family::Thin);
        // 4096 / 16 blocks; nine tokens take two instructions of eight; 16 rows of 1024 weights, and behind them nine tokens.
        let cut = task.cuts[0];
        assert_eq!((cut.blocks, cut.flops), (256.0, 2.0 * 16.0 * 16.0 * 1024.0));
        assert_eq!((cut.bytes, cut.late), (1024.0 * 16.0 * 2.0, 1024.0 * 9.0 * 2.0));
        assert!(!cut.split && cut.partial == 0.0);
    }

    #[test]
    fn a_thin_product_may_take_more_features_or_share_its_sum() {
        let task = task(4, 4096, 8192, "w4a16");
        let blocks: Vec<f64> = task.cuts.iter().map(|cut| cut.blocks).collect();
        // 16, 32 or 64 features; alone, by two or by four.
        assert_eq!(blocks, [256.0, 512.0, 1024.0, 128.0, 256.0, 512.0, 64.0, 128.0, 256.0]);
        assert_eq!((task.cuts[0].steps, task.cuts[2].steps), (128.0, 32.0));
        assert_eq!(task.cuts[3].outputs, 8.0 * 32.0);
    }

    #[test]
    fn the_vector_unit_reads_its_input_again_for_every_few_features() {
        // Three rows are four; blocks of two features, so 16 features read the three rows eight times.
        let few = task(3, 4096, 1024, "fp32");
        assert_eq!((few.lane.family, few.cuts.len()), (Family::Thin, 1));
        assert_eq!(few.cuts[0].bytes, 1024.0 * 4.0 * (8.0 * 3.0 + 16.0));
        assert_eq!((few.cuts[0].flops, few.cuts[0].outputs), (2.0 * 4.0 * 16.0 * 1024.0, 4.0 * 16.0 * 256.0));
        // Five are eight; blocks of four features.
        assert_eq!(task(5, 4096, 1024, "fp32").cuts[0].bytes, 1024.0 * 4.0 * (4.0 * 5.0 + 16.0));
    }

    #[test]
    fn edges_cost_a_whole_block_and_splits_are_counted() {
        let task = task(129, 4096, 4096, "bf16");
        assert_eq!(task.lane.family, Family::Tiled);
        let whole = task.cuts.iter().find(|cut| cut.flops == 2.0 * 128.0 * 256.0 * 4096.0).unwrap();
        assert_eq!(whole.blocks, 2.0 * 16.0);
        let halves = task.cuts.iter().find(|cut| cut.split && cut.flops == 2.0 * 128.0 * 256.0 * 2048.0).unwrap();
        assert_eq!((halves.blocks, halves.partial), (64.0, 4.0 * 129.0 * 4096.0 * 2.0));
        // 4096 / 16 is the least worth sharing: no more than 16 blocks share a sum.
        assert_eq!(task.cuts.len(), TILES.len() * 5);
    }

    #[test]
    fn narrow_weights_stay_thin_for_longer() {
        assert_eq!(task(64, 4096, 4096, "w4a16").lane.family, Family::Thin);
        assert_eq!(task(65, 4096, 4096, "w4a16").lane.family, Family::Tiled);
        assert_eq!(task(17, 4096, 4096, "int8").lane.family, Family::Tiled);
        assert_eq!(task(1, 4096, 4096, "tf32").lane.family, Family::Tiled);
        assert!(task(1, 4096, 4096, "w4a16").widened && !task(1, 4096, 4096, "fp8").widened);
    }
}
