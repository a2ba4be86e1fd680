//! Products of experts, cut into blocks.
//!
//! Where few tokens choose, each of their rows is a product of its own, by the kernel of thin products: what two rows have the
//! same expert for comes from memory once and from the cache twice. Where many do, their rows are sorted by expert, and one kernel
//! has the tiles of all. Kernels that choose, sort and gather stand in front of them, and an activation function or the sum over
//! the experts of a token behind: starts, and bytes that are written.

use super::{Cut, packed, products};
use crate::{
    Dim, Precision,
    calibration::terms::Family,
    format::{Shape, Sizes},
    op::{ElementwiseKind, ExpertSide, Experts, Linear},
};

/// What follows sorted rows.
pub(super) fn function(side: ExpertSide) -> Option<ElementwiseKind> {
    match side {
        ExpertSide::GatedUp => Some(ElementwiseKind::GatedActivation),
        ExpertSide::Up => Some(ElementwiseKind::Activation),
        ExpertSide::Down => None,
    }
}

/// Thin products of one row each, of `n` features with those of a gate, as many as there are rows.
pub(super) fn chosen(experts: &Experts, n: f64, precision: &Precision, sizes: Sizes, units: f64) -> Vec<Cut> {
    let rows = experts.rows() as f64;
    let one = Linear { m: Dim::ONE, n: experts.n, k: experts.k };
    let all = |cut: Cut| Cut { blocks: cut.blocks * rows, partial: cut.partial * rows, ..cut };
    products(&one, n, precision, sizes, Family::Thin, units).into_iter().map(all).collect()
}

/// Rows that are sorted by expert.
pub(super) struct Grouped<'a> {
    pub(super) experts: &'a Experts,
    /// Features of an expert, with those of a gate.
    pub(super) n: f64,
    pub(super) precision: &'a Precision,
    pub(super) sizes: Sizes,
}

impl Grouped<'_> {
    pub(super) fn cuts(&self, units: f64) -> Vec<Cut> {
        let Self { experts, n, precision, sizes } = *self;
        let (rows, k) = (experts.rows(), experts.k.float());
        let weight =
            precision.weights.bytes(Shape::matrix(experts.n, experts.k), sizes).value() / (experts.n.float() * k);
        let input = precision.activations.bytes(Shape::new(rows, experts.k), sizes).value() / (rows as f64 * k);
        let product = packed::Product { m: rows as f64, n, k, weight, input, bytes: false };
        packed::grouped(&product, experts.experts.float(), |height| experts.tiles(height), units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Op, Registry,
        calibration::{
            gpu::cut::Task,
            terms::{Family, ThinRows},
        },
        precision::PrecisionSpec,
    };

    const ROWS: ThinRows = ThinRows::all(16).packing(256).sorting(128);

    /// gpt-oss-20b's sizes.
    fn experts(tokens: u64, side: ExpertSide) -> Op {
        let dim = |value| Dim::new("test", value).unwrap();
        let (n, k) = (dim(2880), dim(2880));
        Op::Experts(Experts { tokens: dim(tokens), experts: dim(32), active: dim(4), n, k, side })
    }

    fn task(op: &Op, precision: &str) -> Task {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let precision = precision.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
        let family = Family::of(op, &precision, ROWS).unwrap();
        Task::of(op, &precision, Sizes::Exact, family, 132)
    }

    /// 32 tokens have 128 rows, the last that run as they come.
    #[test]
    fn rows_are_sorted_where_they_are_many() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let of = |tokens, precision: &str, rows| {
            let precision = precision.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
            Family::of(&experts(tokens, ExpertSide::Down), &precision, rows)
        };
        assert_eq!(of(32, "bf16", ROWS), Some(Family::Chosen));
        assert_eq!(of(33, "bf16", ROWS), Some(Family::Grouped));
        assert_eq!(of(33, "mxfp4a16", ROWS), Some(Family::Grouped));
        // Packed weights beside IEEE half are not sorted; 8-bit inputs have no kernels, and no stack has them unless it says so.
        assert_eq!((of(33, "mxfp4/fp16", ROWS), of(33, "fp16", ROWS)), (Some(Family::Chosen), Some(Family::Grouped)));
        assert_eq!(of(33, "fp8", ROWS), None);
        assert_eq!(of(1, "bf16", ThinRows::all(16).packing(256)), None);
    }

    #[test]
    fn every_row_of_few_is_a_thin_product() {
        let few = task(&experts(2, ExpertSide::Down), "bf16");
        assert_eq!((few.lane.family, few.lane.kind), (Family::Chosen, None));
        // Eight rows, each with 180 tiles of 16 features, and 64 columns a step.
        let cut = few.cuts[0];
        assert_eq!((cut.blocks, cut.bytes, cut.steps), (8.0 * 180.0, 2880.0 * 16.0 * 2.0, 45.0));
        // Of 32 experts two tokens meet 7.5, which are read once; 2880 numbers of each row of inputs, whose sums are one for each.
        let read = 7.5 * 2880.0 * 2880.0 * 2.0 + 8.0 * 2880.0 * 2.0;
        assert!((few.read / read - 1.0).abs() < 1e-12, "{} {read}", few.read);
        assert_eq!(few.write, 2.0 * 2880.0 * 2.0);
        // A gate has a matrix of its own.
        let gated = task(&experts(2, ExpertSide::GatedUp), "bf16");
        assert_eq!((gated.cuts[0].blocks, gated.lane.kind), (8.0 * 360.0, None));
        assert!((gated.read / (2.0 * 7.5 * 2880.0 * 2880.0 * 2.0 + 2.0 * 2880.0 * 2.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn sorted_rows_are_cut_by_their_mean_and_by_twice_as_many() {
        // 512 tokens: 64 rows each in the mean, of which about half have more.
        let many = task(&experts(512, ExpertSide::Down), "mxfp4a16");
        assert_eq!((many.lane.family, many.lane.kind), (Family::Grouped, None));
        assert_eq!(many.cuts.len(), 4);
        // Every multiprocessor has a block, and all have as much to do: tiles of 64 rows and 128 features by 3072 columns.
        let cut = many.cuts[0];
        assert_eq!(cut.blocks, 132.0);
        let tiles = cut.flops * cut.blocks / (2.0 * 64.0 * 128.0 * 3072.0) / (2880.0_f64 / 128.0).ceil();
        assert!((47.0..49.0).contains(&tiles), "{tiles}");
        // Tiles of twice the height are fewer, and hold more that nobody has asked for.
        let taller = many.cuts[2];
        let tiles = taller.flops * taller.blocks / (2.0 * 128.0 * 128.0 * 3072.0) / (2880.0_f64 / 128.0).ceil();
        assert!((32.0..32.1).contains(&tiles), "{tiles}");
        assert!(taller.blocks * taller.flops > cut.blocks * cut.flops);
        // Everything is read once, and a gate is followed by its function.
        let weights = 32.0 * 2880.0 * 2880.0 * 4.25 / 8.0;
        assert!((many.read / (weights + 2048.0 * 2880.0 * 2.0) - 1.0).abs() < 1e-9);
        let gated = task(&experts(512, ExpertSide::GatedUp), "mxfp4a16");
        assert_eq!(gated.lane.kind, Some(ElementwiseKind::GatedActivation));
        // Past 256 rows each, tiles grow no further, and two blocks may fetch rows for each other.
        assert_eq!(task(&experts(8192, ExpertSide::Down), "bf16").cuts.len(), 2);
    }
}
