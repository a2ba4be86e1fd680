//! The form of a processor: every kernel uses all cores, so there are no waves.
//!
//! ```text
//! memory  = read / read_rate + write / write_rate
//! compute = flops / rate(family, unit) + stored elements * unpack(family, format, unit) + elements of x * pack(family, unit)
//! time    = launch + ramp + max(memory, compute) + (1 - overlap) * min(memory, compute)
//! ```
//!
//! The unit is the one that a family's kernels were seen to multiply with, given what is stored and what it meets: kernels
//! choose by rules of their own, and a calibration remembers what they chose. An element-wise kernel has a cost per element of
//! its kind and format in place of a rate: how fast one does its few operations has little to do with their number.
//!
//! A bandwidth that saturates as `bytes / (bytes + half)` is the same thing as a fixed cost of `half / rate` per call: that is
//! the ramp, of kernels that read weights or a cache. They also have a stage before, for their inputs, and so a second start.

mod search;

pub(super) use search::search;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::terms::{Family, Parts, ThinRows};
use crate::{
    Format, Math, Op, Precision,
    format::Sizes,
    op::{Elementwise, ElementwiseKind, Linear},
    units::{ByteRate, FlopRate, Flops, Seconds},
};

/// The rate a family reaches on a unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CpuRate")]
pub struct Rate {
    /// Which kernels.
    pub family: Family,
    /// On which unit.
    pub math: Math,
    /// What they reach.
    #[serde(rename = "flop_per_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub rate: FlopRate,
}

/// How a family multiplies a stored format, and what widening it costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CpuUnpack")]
pub struct Unpack {
    /// Which kernels.
    pub family: Family,
    /// What they read.
    pub format: Format,
    /// What that is multiplied with: activations, or queries.
    pub inputs: Format,
    /// The unit that their kernels use.
    pub math: Math,
    /// Time per stored element, all cores together.
    #[serde(rename = "seconds_per_element", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub cost: Seconds,
}

/// What laying out the rows of `x` for a unit costs a product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CpuPack")]
pub struct Pack {
    /// Which products.
    pub family: Family,
    /// On which unit.
    pub math: Math,
    /// Time per element of `x`, all cores together.
    #[serde(rename = "seconds_per_element", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub cost: Seconds,
}

/// What an element-wise kernel costs beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CpuTouch")]
pub struct Touch {
    /// What it does.
    pub kind: ElementwiseKind,
    /// To what.
    pub format: Format,
    /// Time per element, all cores together.
    #[serde(rename = "seconds_per_element", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub cost: Seconds,
}

/// Named terms of a processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CpuTerms {
    /// Per call: starting all cores, and waiting for the last.
    #[serde(rename = "launch_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub launch: Seconds,
    /// Per call that reads weights or a cache: starting a second stage, and filling the pipes of memory.
    #[serde(rename = "ramp_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub ramp: Seconds,
    /// What reading from memory reaches.
    #[serde(rename = "read_bytes_per_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub read: ByteRate,
    /// What writing to memory reaches; a processor reads a line before it writes to it, so it is about half.
    #[serde(rename = "write_bytes_per_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub write: ByteRate,
    /// The share of the shorter of memory and compute that hides behind the longer.
    pub overlap: f64,
    /// Rows up to which products are thin.
    pub thin_rows: u64,
    /// Rates reached.
    pub rates: Vec<Rate>,
    /// Costs of widening.
    pub unpack: Vec<Unpack>,
    /// Costs of laying out `x`.
    pub pack: Vec<Pack>,
    /// Costs of element-wise kernels; a kind without one only moves its bytes.
    #[serde(default)]
    pub touch: Vec<Touch>,
}

/// What an operator asks of the terms, whatever their values.
#[derive(Clone, Copy)]
pub(super) struct Demand {
    pub(super) read: f64,
    pub(super) write: f64,
    pub(super) flops: f64,
    /// What is stored, or touched by an element-wise kernel.
    pub(super) elements: f64,
    /// What is laid out of `x`.
    pub(super) inputs: f64,
    pub(super) family: Family,
    /// The fastest unit there is for it.
    pub(super) math: Math,
    pub(super) each: Option<Each>,
}

/// What the cost of an element depends on.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Each {
    /// What is stored, and what it is multiplied with.
    Stored(Family, Format, Format),
    Touched(ElementwiseKind, Format),
}

/// What one unit of each demand costs, in seconds.
#[derive(Clone, Copy)]
pub(super) struct Costs {
    pub(super) launch: f64,
    pub(super) ramp: f64,
    pub(super) byte_read: f64,
    pub(super) byte_written: f64,
    pub(super) operation: f64,
    pub(super) element: f64,
    pub(super) input: f64,
    /// A share, not a cost.
    pub(super) overlap: f64,
}

impl Demand {
    pub(super) fn parts(&self, costs: &Costs) -> Parts {
        let streams = matches!(self.each, Some(Each::Stored(..)));
        let launch = costs.launch + if streams { costs.ramp } else { 0.0 };
        let memory = self.read * costs.byte_read + self.write * costs.byte_written;
        let compute = self.flops * costs.operation + self.elements * costs.element + self.inputs * costs.input;
        let time = launch + memory.max(compute) + (1.0 - costs.overlap) * memory.min(compute);
        Parts { family: self.family, launch, memory, compute, time }
    }

    /// None for an operator that this form does not describe.
    pub(super) fn of(op: &Op, precision: &Precision, sizes: Sizes, thin_rows: u64) -> Option<Self> {
        let family = Family::of(op, precision, ThinRows::all(thin_rows))?;
        let mut work = op.work(precision, sizes);
        let weights = Each::Stored(family, precision.weights, precision.activations);
        let each = match op {
            Op::Linear(linear) => Some((weights, linear.n.float() * linear.k.float())),
            Op::ActivatedLinear(activated) => {
                let linear = activated.linear;
                let matrices = if activated.gated { 2.0 } else { 1.0 };
                Some((weights, matrices * linear.n.float() * linear.k.float()))
            }
            Op::Attention(attention) => {
                Some((Each::Stored(family, precision.kv, precision.query), attention.cached_elements()))
            }
            Op::Elementwise(Elementwise { kind, tokens, vectors, width }) => {
                work.flops = Flops::ZERO;
                Some((Each::Touched(*kind, precision.query), *tokens as f64 * vectors.float() * width.float()))
            }
            _ => None,
        };
        let rows = |linear: &Linear| linear.m.float() * linear.k.float();
        let inputs = match op {
            Op::Linear(linear) => rows(linear),
            // A kernel for each matrix, and each lays out its own.
            Op::ActivatedLinear(activated) => rows(&activated.linear) * if activated.gated { 2.0 } else { 1.0 },
            _ => 0.0,
        };
        Some(Self {
            read: work.read.value(),
            write: work.write.value(),
            flops: work.flops.value(),
            elements: each.map_or(0.0, |(_, elements)| elements),
            inputs,
            family,
            math: op.math(precision),
            each: each.map(|(each, _)| each),
        })
    }
}

impl CpuTerms {
    pub(super) fn parts(&self, op: &Op, precision: &Precision, sizes: Sizes) -> Option<Parts> {
        let demand = Demand::of(op, precision, sizes, self.thin_rows)?;
        let (math, element) = match demand.each {
            None => (demand.math, 0.0),
            Some(Each::Stored(family, format, inputs)) => {
                let covers =
                    |unpack: &&Unpack| (unpack.family, unpack.format, unpack.inputs) == (family, format, inputs);
                let unpack = self.unpack.iter().find(covers)?;
                (unpack.math, unpack.cost.value())
            }
            Some(Each::Touched(kind, format)) => {
                let covers = |touch: &&Touch| (touch.kind, touch.format) == (kind, format);
                (demand.math, self.touch.iter().find(covers).map_or(0.0, |touch| touch.cost.value()))
            }
        };
        let rate = self.rates.iter().find(|rate| (rate.family, rate.math) == (demand.family, math));
        // What only moves bytes needs no rate.
        let operation = if demand.flops == 0.0 { 0.0 } else { 1.0 / rate?.rate.value() };
        let pack = self.pack.iter().find(|pack| (pack.family, pack.math) == (demand.family, math));
        let input = pack.map_or(0.0, |pack| pack.cost.value());
        let (byte_read, byte_written) = (1.0 / self.read.value(), 1.0 / self.write.value());
        let (launch, ramp, overlap) = (self.launch.value(), self.ramp.value(), self.overlap);
        Some(demand.parts(&Costs { launch, ramp, byte_read, byte_written, operation, element, input, overlap }))
    }

    /// Whether a machine can have these values.
    pub(super) fn sensible(&self) -> bool {
        let Self { launch, ramp, read, write, overlap, rates, unpack, pack, touch, .. } = self;
        let rates = rates.iter().map(|rate| rate.rate.value());
        let positive = rates.chain([read.value(), write.value()]).all(|rate| (1.0..1e20).contains(&rate));
        let each = unpack.iter().map(|unpack| unpack.cost).chain(pack.iter().map(|pack| pack.cost));
        let each = each.chain(touch.iter().map(|touch| touch.cost)).map(Seconds::value);
        let mut costs = each.chain([launch.value(), ramp.value()]);
        positive && costs.all(|cost| (0.0..1.0).contains(&cost)) && (0.0..=1.0).contains(overlap)
    }
}
