//! The ideal roofline: `time = max(bytes / bandwidth, flops / peak)` per kernel, summed over the graph.
//!
//! Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", CACM 52(4), 2009. It is the speed
//! of light of the data sheet: nothing runs faster, and what runs slower has a reason.

use schemars::JsonSchema;
use serde::Serialize;

use super::time::Floor;
use crate::{
    Device, Error, Math, Op, Precision, Result, Work,
    device::Between,
    format::Sizes,
    op::AllReduce,
    units::{ByteRate, FlopRate, Flops, Intensity, Seconds},
};

/// What limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Bound {
    /// Moving bytes; also when both take equally long.
    Memory,
    /// Multiplying.
    Compute,
    /// Exchanging with other devices.
    Network,
    /// Starting kernels; only the expected tier knows it.
    Launch,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Network => "network",
            Self::Launch => "launch",
        })
    }
}

/// How long work must take, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// What is to be done.
    pub work: Work,
    /// The unit that does it; of several kernels, that of the one with most operations.
    pub math: Math,
    /// Peak over bandwidth of that unit.
    pub critical: Intensity,
    /// `bytes / bandwidth`.
    pub memory: Seconds,
    /// `flops / peak`.
    pub compute: Seconds,
    /// Exchange with other devices.
    pub network: Seconds,
    time: Floor,
    memory_bound: Seconds,
}

impl Estimate {
    /// The estimate of one kernel on a device.
    pub fn of(op: &Op, precision: &Precision, sizes: Sizes, device: &Device) -> Result<Self> {
        if let Op::AllReduce(reduce) = op {
            return Self::exchange(reduce, precision, sizes, device);
        }
        Self::of_work(op, op.work(precision, sizes), precision, device)
    }

    /// The same with the work that is likely instead of the least.
    pub fn likely(op: &Op, precision: &Precision, sizes: Sizes, device: &Device) -> Result<Self> {
        if let Op::AllReduce(reduce) = op {
            return Self::exchange(reduce, precision, sizes, device);
        }
        Self::of_work(op, op.likely_work(precision, sizes), precision, device)
    }

    fn of_work(op: &Op, work: Work, precision: &Precision, device: &Device) -> Result<Self> {
        let math = op.math(precision);
        let bandwidth = device.memory.bandwidth;
        // What only moves bytes needs no multiplying unit.
        let peak = match device.peaks.of(math) {
            Some(peak) => peak,
            None if work.flops == Flops::ZERO => FlopRate::new(f64::INFINITY),
            None => return Err(missing(op, math, device)),
        };
        let (memory, compute) = (work.bytes() / bandwidth, work.flops / peak);
        let time = memory.max(compute);
        let memory_bound = if memory >= compute { time } else { Seconds::ZERO };
        let time = Floor::new(time);
        let network = Seconds::ZERO;
        Ok(Self { work, math, critical: peak / bandwidth, memory, compute, network, time, memory_bound })
    }

    /// A ring: each of `n` ranks sends `2 (n-1) / n` of the payload, in `2 (n-1)` steps (Patarasuk and Yuan, "Bandwidth
    /// optimal all-reduce algorithms", 2009).
    fn exchange(reduce: &AllReduce, precision: &Precision, sizes: Sizes, device: &Device) -> Result<Self> {
        let Between { rate, hop, .. } = device.link(reduce.ranks)?;
        let ranks = reduce.ranks.float();
        let work = Op::AllReduce(*reduce).work(precision, sizes);
        let sent = reduce.payload(precision, sizes) * (2.0 * (ranks - 1.0) / ranks);
        let network = sent / rate + Self::steps(reduce, hop);
        let memory = work.bytes() / device.memory.bandwidth;
        let (math, compute, time) = (Math::Fp32, Seconds::ZERO, network.max(memory));
        let (memory_bound, time) = (time - network, Floor::new(time));
        Ok(Self { work, math, critical: Intensity::ZERO, memory, compute, network, time, memory_bound })
    }

    /// What the steps of a ring take, however little is sent.
    pub(crate) fn steps(reduce: &AllReduce, hop: Seconds) -> Seconds {
        hop * (2.0 * (reduce.ranks.float() - 1.0))
    }

    /// The same kernel `count` times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        let count = count as f64;
        Self {
            work: self.work * count,
            memory: self.memory * count,
            compute: self.compute * count,
            network: self.network * count,
            time: self.time * count,
            memory_bound: self.memory_bound * count,
            ..self
        }
    }

    /// Kernels one after the other.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let largest = if next.work.flops > self.work.flops { next } else { self };
        Self {
            work: self.work + next.work,
            math: largest.math,
            critical: largest.critical,
            memory: self.memory + next.memory,
            compute: self.compute + next.compute,
            network: self.network + next.network,
            time: self.time + next.time,
            memory_bound: self.memory_bound + next.memory_bound,
        }
    }

    /// The least time.
    pub fn time(&self) -> Floor {
        self.time
    }

    /// The time if all kernels could overlap: what the aggregate intensity would predict.
    pub fn overlapped(&self) -> Seconds {
        self.memory.max(self.compute).max(self.network)
    }

    /// The part of the time that goes to kernels that wait for memory: 0 or 1 for a single kernel.
    pub fn memory_share(&self) -> f64 {
        self.memory_bound / self.time.seconds()
    }

    /// Whether some kernels wait for memory and others for the units, so that no single ridge describes them.
    pub fn is_mixed(&self) -> bool {
        self.memory_bound > Seconds::ZERO && self.memory_bound < self.time.seconds() * (1.0 - 1e-9)
    }

    /// What most of the time goes to.
    pub fn bound(&self) -> Bound {
        let compute_bound = self.time.seconds() - self.memory_bound - self.network;
        if self.network > self.memory_bound && self.network > compute_bound {
            Bound::Network
        } else if self.memory_bound >= compute_bound {
            Bound::Memory
        } else {
            Bound::Compute
        }
    }

    /// Operations per second at that time.
    pub fn rate(&self) -> FlopRate {
        self.work.flops / self.time.seconds()
    }

    /// Bytes per second at that time.
    pub fn bandwidth(&self) -> ByteRate {
        self.work.bytes() / self.time.seconds()
    }

    /// Operations per byte.
    pub fn intensity(&self) -> Intensity {
        self.work.intensity()
    }

    /// How many times the intensity would have to grow to reach the ridge; below 1 it is past it. For one kernel
    /// `AI* / AI = (P / W) / (F / B) = (B / W) / (F / P)`, and in that form it holds for several.
    pub fn ridge_distance(&self) -> f64 {
        self.memory / self.compute
    }

    /// Whether memory and compute take the same time within 2 %, so that either label would mislead.
    pub fn balanced(&self) -> bool {
        !self.is_mixed() && (self.ridge_distance() - 1.0).abs() <= 0.02
    }
}

fn missing(op: &Op, math: Math, device: &Device) -> Error {
    let what = match op {
        Op::Softmax(_) | Op::Elementwise(_) => "an element-wise kernel",
        _ => "attention",
    };
    Error::MissingPeak {
        what: what.to_owned(),
        math: math.to_string(),
        device: device.name.clone(),
        hint: format!("give its peak by `⟨peak {}=...⟩`", math.key()),
    }
}
