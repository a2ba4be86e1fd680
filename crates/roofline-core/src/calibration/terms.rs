//! The fitted terms.

use serde::{Deserialize, Serialize};

use crate::{
    Format, Math, Op, Precision,
    format::Sizes,
    units::{ByteRate, FlopRate, Seconds},
};

/// Kernels that share their code, and so their efficiency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Products of few rows: weights stream through registers.
    Thin,
    /// Products of many rows: weights are packed into tiles.
    Tiled,
    /// Attention of one new token over a cache.
    Decode,
    /// Attention of many new tokens.
    Prefill,
    /// A few operations per element.
    Elementwise,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Thin => "thin product",
            Self::Tiled => "tiled product",
            Self::Decode => "decode attention",
            Self::Prefill => "prefill attention",
            Self::Elementwise => "elementwise",
        })
    }
}

/// The rate a family reaches on a unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Which kernels.
    pub family: Family,
    /// On which unit.
    pub math: Math,
    /// What they reach.
    #[serde(rename = "flop_per_s", with = "crate::units::number")]
    pub rate: FlopRate,
}

/// What widening a stored format costs a family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unpack {
    /// Which kernels.
    pub family: Family,
    /// What they read.
    pub format: Format,
    /// Time per stored element, all cores together.
    #[serde(rename = "seconds_per_element", with = "crate::units::number")]
    pub cost: Seconds,
}

/// Named terms; see the formula in [`crate::calibration`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Per call: starting all cores, waiting for the last, filling the pipes of memory.
    #[serde(rename = "launch_s", with = "crate::units::number")]
    pub launch: Seconds,
    /// What reading from memory reaches.
    #[serde(rename = "read_bytes_per_s", with = "crate::units::number")]
    pub read: ByteRate,
    /// What writing to memory reaches; a processor reads a line before it writes to it, so it is about half.
    #[serde(rename = "write_bytes_per_s", with = "crate::units::number")]
    pub write: ByteRate,
    /// The share of the shorter of memory and compute that hides behind the longer.
    pub overlap: f64,
    /// Rows up to which products are thin.
    pub thin_rows: u64,
    /// Rates reached.
    pub rates: Vec<Rate>,
    /// Costs of widening.
    pub unpack: Vec<Unpack>,
}

/// One kernel's time by cause, in seconds.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    pub(super) launch: f64,
    pub(super) memory: f64,
    pub(super) compute: f64,
}

impl Parts {
    pub(super) fn time(&self, overlap: f64) -> f64 {
        self.launch + self.memory.max(self.compute) + (1.0 - overlap) * self.memory.min(self.compute)
    }
}

/// What an operator asks of the terms, whatever their values.
#[derive(Clone, Copy)]
pub(super) struct Demand {
    pub(super) read: f64,
    pub(super) write: f64,
    pub(super) flops: f64,
    pub(super) elements: f64,
    pub(super) family: Family,
    pub(super) math: Math,
    pub(super) format: Option<Format>,
}

/// What one unit of each demand costs, in seconds.
#[derive(Clone, Copy)]
pub(super) struct Costs {
    pub(super) launch: f64,
    pub(super) byte_read: f64,
    pub(super) byte_written: f64,
    pub(super) operation: f64,
    pub(super) element: f64,
}

impl Demand {
    pub(super) fn parts(&self, costs: &Costs) -> Parts {
        Parts {
            launch: costs.launch,
            memory: self.read * costs.byte_read + self.write * costs.byte_written,
            compute: self.flops * costs.operation + self.elements * costs.element,
        }
    }

    /// None for an operator that this form does not describe.
    pub(super) fn of(op: &Op, precision: &Precision, sizes: Sizes, thin_rows: u64) -> Option<Self> {
        let product = |rows: u64| if rows <= thin_rows { Family::Thin } else { Family::Tiled };
        let (family, stored) = match op {
            Op::Linear(linear) => {
                (product(linear.m.get()), Some((precision.weights, linear.n.float() * linear.k.float())))
            }
            Op::ActivatedLinear(activated) => {
                let linear = activated.linear;
                let matrices = if activated.gated { 2.0 } else { 1.0 };
                (product(linear.m.get()), Some((precision.weights, matrices * linear.n.float() * linear.k.float())))
            }
            Op::Attention(attention) => {
                let family = if attention.queries.get() == 1 { Family::Decode } else { Family::Prefill };
                (family, Some((precision.kv, attention.cached_elements())))
            }
            Op::Softmax(_) | Op::Elementwise(_) => (Family::Elementwise, None),
            Op::Experts(_) | Op::Scores(_) | Op::Values(_) | Op::AllReduce(_) => return None,
        };
        let work = op.work(precision, sizes);
        Some(Self {
            read: work.read.value(),
            write: work.write.value(),
            flops: work.flops.value(),
            elements: stored.map_or(0.0, |(_, elements)| elements),
            family,
            math: op.math(precision),
            format: stored.map(|(format, _)| format),
        })
    }
}

impl Terms {
    pub(super) fn parts(&self, op: &Op, precision: &Precision, sizes: Sizes) -> Option<Parts> {
        let demand = Demand::of(op, precision, sizes, self.thin_rows)?;
        let rate = self.rates.iter().find(|rate| (rate.family, rate.math) == (demand.family, demand.math));
        // What only moves bytes needs no rate.
        let operation = if demand.flops == 0.0 { 0.0 } else { 1.0 / rate?.rate.value() };
        let element = match demand.format {
            None => 0.0,
            Some(format) => {
                let covers = |unpack: &&Unpack| (unpack.family, unpack.format) == (demand.family, format);
                self.unpack.iter().find(covers)?.cost.value()
            }
        };
        let (byte_read, byte_written) = (1.0 / self.read.value(), 1.0 / self.write.value());
        Some(demand.parts(&Costs { launch: self.launch.value(), byte_read, byte_written, operation, element }))
    }
}
