//! What is fitted: one of three forms, and the families of kernels both speak of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{cpu::CpuTerms, fit::Sample, gpu::GpuTerms, timed::TimedTerms};
use crate::{Format, Math, Op, Precision, format::Sizes, op::Experts};

/// Kernels that share their code, and so their efficiency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "KernelFamily")]
pub enum Family {
    /// Products of few rows: weights stream through registers.
    Thin,
    /// Products of many rows: weights are packed into tiles.
    Tiled,
    /// Products of many rows by a stack's own kernels, which widen packed weights on their way to the multipliers.
    Packed,
    /// Attention of one new token over a cache.
    Decode,
    /// Attention of many new tokens.
    Prefill,
    /// A few operations per element.
    Elementwise,
    /// Products of few rows with experts that each of them chose: every row is a product of its own.
    Chosen,
    /// Products of many rows that are sorted by expert: those of each are cut into tiles, in one kernel for all.
    Grouped,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Thin => "thin product",
            Self::Tiled => "tiled product",
            Self::Packed => "packed product",
            Self::Decode => "decode attention",
            Self::Prefill => "prefill attention",
            Self::Elementwise => "elementwise",
            Self::Chosen => "chosen experts",
            Self::Grouped => "grouped experts",
        })
    }
}

impl Family {
    /// The kernels of a product, by the first word of what ran: our own have the family's, or the library's.
    pub(super) fn of_kernel(name: &str) -> Option<Self> {
        match name.split(' ').next()? {
            "thin" => Some(Self::Thin),
            "tiled" => Some(Self::Packed),
            "chosen" => Some(Self::Chosen),
            "grouped" => Some(Self::Grouped),
            _ => None,
        }
    }

    /// Whose kernels a sample is of: those that ran, where two were tried.
    pub(super) fn of_sample(sample: &Sample, thin_rows: ThinRows) -> Option<Self> {
        let usual = Self::of(&sample.op, &sample.precision, thin_rows)?;
        let other = Self::other(&sample.op, &sample.precision, thin_rows);
        Some(other.filter(|_| sample.ran == other).unwrap_or(usual))
    }

    /// Those that were tried as well and were slower.
    pub(super) fn lost(sample: &Sample, thin_rows: ThinRows) -> Option<Self> {
        let usual = Self::of(&sample.op, &sample.precision, thin_rows)?;
        let other = Self::other(&sample.op, &sample.precision, thin_rows)?;
        let ran = sample.ran?;
        Some(if ran == other { usual } else { other })
    }

    /// The kernels that are tried beside those of [`Family::of`], where a product stands alone.
    pub(super) fn other(op: &Op, precision: &Precision, thin_rows: ThinRows) -> Option<Self> {
        let Op::Linear(linear) = op else { return None };
        let contested = thin_rows.contested.is_some_and(|least| (least..=thin_rows.widened).contains(&linear.m.get()));
        (contested && is_widened(precision)).then_some(Self::Packed)
    }

    /// The kernels that are tried beside those of [`Family::of`] in a pass of the stack's own: the library's for bytes times bytes.
    pub(super) fn other_in_pass(op: &Op, precision: &Precision, thin_rows: ThinRows) -> Option<Self> {
        let packed = Self::of(op, precision, thin_rows) == Some(Self::Packed);
        (packed && !is_widened(precision)).then_some(Self::Tiled)
    }

    /// None for an operator that neither form describes.
    pub(super) fn of(op: &Op, precision: &Precision, thin_rows: ThinRows) -> Option<Self> {
        let product = |rows: u64| match rows {
            few if few <= thin_rows.of(precision) => Self::Thin,
            many if thin_rows.packs(precision, many) => Self::Packed,
            _ => Self::Tiled,
        };
        match op {
            Op::Linear(linear) => Some(product(linear.m.get())),
            Op::ActivatedLinear(activated) => Some(product(activated.linear.m.get())),
            Op::Attention(attention) if attention.queries.get() == 1 => Some(Self::Decode),
            Op::Attention(_) => Some(Self::Prefill),
            Op::Softmax(_) | Op::Elementwise(_) => Some(Self::Elementwise),
            Op::Experts(experts) => thin_rows.experts(precision, experts),
            Op::Scores(_) | Op::Values(_) | Op::AllReduce(_) => None,
        }
    }
}

/// Rows up to which a stack runs its kernel for thin products, and whose kernels follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThinRows {
    /// Of weights that multiply as they are stored.
    pub native: u64,
    /// Of weights that are stored narrower than what they multiply.
    pub widened: u64,
    /// Where the stack has kernels of its own for more rows of packed weights: rows up to which they also take bytes
    /// (FP8, INT8) that multiply as they are stored. None where a library takes all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<u64>,
    /// Rows from which those are tried beside the kernel for thin products, where a product stands alone: the faster one runs.
    /// In a pass of the stack's own, what comes before and behind a thin product is a part of it, and it always runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contested: Option<u64>,
    /// Bytes up to which thin products of bytes times bytes round 16-bit inputs themselves, in a pass of the stack's own. Of more,
    /// and where there is none, a kernel in front of the product does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounded: Option<u64>,
    /// Rows of experts, of which a token has as many as it chooses, up to which each is a product of its own; more are sorted by
    /// expert, where the stack has the kernel for their format. None where it has no kernels for experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visits: Option<u64>,
}

/// Columns that rows of experts are whole multiples of, in kernels for them.
const EXPERT_COLUMNS: u64 = 64;

impl ThinRows {
    /// The same for all weights.
    pub const fn all(rows: u64) -> Self {
        Self { native: rows, widened: rows, packed: None, contested: None, rounded: None, visits: None }
    }

    /// The same with kernels of the stack's own for more rows of packed weights, and of bytes times bytes up to `native` rows.
    #[must_use]
    pub const fn packing(self, native: u64) -> Self {
        Self { packed: Some(native), ..self }
    }

    /// The same with kernels for more rows of packed weights that are tried from `least` rows on.
    #[must_use]
    pub const fn contested(self, least: u64) -> Self {
        Self { contested: Some(least), ..self }
    }

    /// The same with thin products that round up to so many bytes of inputs themselves.
    #[must_use]
    pub const fn rounding(self, bytes: u64) -> Self {
        Self { rounded: Some(bytes), ..self }
    }

    /// Whether inputs of bytes times bytes are rounded within the product, to `size` bytes each.
    pub(super) fn rounds(self, rows: u64, width: u64, size: u64) -> bool {
        rows <= self.native && self.rounded.is_some_and(|most| rows * width * size <= most)
    }

    /// The same with kernels for experts, which sort more than `visits` rows.
    #[must_use]
    pub const fn sorting(self, visits: u64) -> Self {
        Self { visits: Some(visits), ..self }
    }

    /// The kernels of experts. Inputs are of 16 bit in all of them; packed weights beside IEEE half have none for sorted rows.
    fn experts(self, precision: &Precision, experts: &Experts) -> Option<Family> {
        let sixteen = matches!(precision.activations, Format::BF16 | Format::FP16);
        let visits = self.visits.filter(|_| sixteen && experts.k.get().is_multiple_of(EXPERT_COLUMNS))?;
        let sorts = precision.activations == Format::BF16 || !is_widened(precision);
        let few = experts.rows() <= u128::from(visits);
        Some(if few || !sorts { Family::Chosen } else { Family::Grouped })
    }

    /// TF32 has no kernel for few rows: they are the library's at any number.
    fn of(self, precision: &Precision) -> u64 {
        if precision.math == Math::Tf32 {
            return 0;
        }
        if is_widened(precision) { self.widened } else { self.native }
    }

    /// Whether products of so many rows run in the stack's own kernels for packed weights.
    fn packs(self, precision: &Precision, rows: u64) -> bool {
        let both = [Format::FP8, Format::INT8]
            .map(|format| (format, format))
            .contains(&(precision.weights, precision.activations));
        self.packed.is_some_and(|native| is_widened(precision) || (both && rows <= native))
    }
}

/// Whether weights are stored narrower than what they multiply.
pub(super) fn is_widened(precision: &Precision) -> bool {
    precision.weights.nominal_bits() < precision.activations.nominal_bits()
}

/// Where a kernel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    /// By itself.
    Alone,
    /// Among the others of a pass of the stack's own.
    InPass,
}

/// Fitted terms. A file with the fields of either form is read as that form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "CalibrationTerms")]
pub enum Terms {
    /// A processor: every kernel uses all cores.
    Cpu(CpuTerms),
    /// A GPU: kernels are cut into blocks that fill its multiprocessors in waves.
    Gpu(GpuTerms),
    /// Kernels that others timed.
    Timed(TimedTerms),
}

/// One kernel's time by cause, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) family: Family,
    pub(super) launch: f64,
    pub(super) memory: f64,
    pub(super) compute: f64,
    /// Not their sum: some of it overlaps.
    pub(super) time: f64,
}

impl Terms {
    /// Of a kernel that stands alone, or in a pass.
    pub(super) fn parts(&self, op: &Op, precision: &Precision, sizes: Sizes, stands: Stands) -> Option<Parts> {
        match self {
            Self::Cpu(terms) => terms.parts(op, precision, sizes),
            Self::Gpu(terms) => terms.parts(op, precision, sizes, stands),
            Self::Timed(terms) => terms.parts(op, precision).map(|(parts, _)| parts),
        }
    }

    /// Reads and writes, and multiplies, that much faster.
    pub(crate) fn scale(&mut self, memory: f64, compute: f64) {
        match self {
            Self::Cpu(terms) => {
                (terms.read, terms.write) = (terms.read * memory, terms.write * memory);
                terms.rates.iter_mut().for_each(|rate| rate.rate = rate.rate * compute);
            }
            Self::Gpu(terms) => {
                for shared in &mut terms.families {
                    (shared.read, shared.write) = (shared.read * memory, shared.write * memory);
                    shared.sums = shared.sums * memory.max(compute);
                }
                for lane in &mut terms.lanes {
                    lane.rate = lane.rate.map(|rate| rate * compute);
                    lane.stream = lane.stream * memory.max(compute);
                }
            }
            Self::Timed(terms) => terms.scale(memory, compute),
        }
    }

    /// Whether a machine can have these values.
    pub(super) fn sensible(&self) -> bool {
        match self {
            Self::Cpu(terms) => terms.sensible(),
            Self::Gpu(terms) => terms.sensible(),
            Self::Timed(terms) => terms.sensible(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Registry, precision::PrecisionSpec};

    /// By itself a product of bytes has the stack's kernel; in a pass the library's is tried beside it, and other weights have no
    /// choice there.
    #[test]
    fn a_pass_tries_other_kernels_than_a_product_alone() {
        let device = Registry::builtin().find("h200").unwrap().into_owned();
        let rows = ThinRows::all(16).packing(256).contested(9);
        let families = |m: u64, name: &str| {
            let precision = name.parse::<PrecisionSpec>().unwrap().on(&device).unwrap();
            let op = Graph::gemm(m, 4096, 4096).unwrap().nodes[0].op;
            [Family::of, Family::other, Family::other_in_pass].map(|family| family(&op, &precision, rows))
        };
        let (thin, packed, tiled) = (Some(Family::Thin), Some(Family::Packed), Some(Family::Tiled));
        for both in ["fp8", "int8"] {
            assert_eq!(families(16, both), [thin, None, None]);
            assert_eq!([17, 256].map(|m| families(m, both)), [[packed, None, tiled]; 2]);
            assert_eq!(families(257, both), [tiled, None, None]);
        }
        assert_eq!(families(12, "w4a16"), [thin, packed, None]);
        assert_eq!(families(64, "w4a16"), [packed, None, None]);
        assert_eq!(families(64, "bf16"), [tiled, None, None]);
    }

    /// Inputs that fit are rounded within the product: 80 KiB are 20 rows of 4096, of which a thin product has 16, and 5 of 14336.
    #[test]
    fn few_inputs_are_rounded_within() {
        let rows = ThinRows::all(16).rounding(80 << 10);
        assert_eq!([1, 16, 17].map(|m| rows.rounds(m, 4096, 1)), [true, true, false]);
        assert_eq!([5, 6].map(|m| rows.rounds(m, 14336, 1)), [true, false]);
        assert_eq!([10, 11].map(|m| rows.rounds(m, 4096, 2)), [true, false]);
        assert!(!ThinRows::all(16).rounds(1, 64, 1));
    }
}
