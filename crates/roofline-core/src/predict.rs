//! The ideal roofline: `time = max(bytes / bandwidth, flops / peak)` per kernel, summed over the graph.
//!
//! Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", CACM 52(4), 2009. It is the speed
//! of light of the data sheet: nothing runs faster, and what runs slower has a reason.

use serde::Serialize;

use crate::{
    Device, Error, Graph, Math, Op, Plan, Precision, Result, Work,
    format::Sizes,
    graph::Node,
    op::AllReduce,
    units::{ByteRate, FlopRate, Flops, Intensity, Seconds},
};

/// What limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    time: Seconds,
    memory_bound: Seconds,
}

impl Estimate {
    /// The estimate of one kernel on a device.
    pub fn of(op: &Op, precision: &Precision, sizes: Sizes, device: &Device) -> Result<Self> {
        if let Op::AllReduce(reduce) = op {
            return Self::exchange(reduce, precision, sizes, device);
        }
        let math = op.math(precision);
        let bandwidth = device.memory.bandwidth;
        let work = op.work(precision, sizes);
        // What only moves bytes needs no multiplying unit.
        let peak = match device.peaks.of(math) {
            Some(peak) => peak,
            None if work.flops == Flops::ZERO => FlopRate::new(f64::INFINITY),
            None => return Err(missing(op, math, device)),
        };
        let (memory, compute) = (work.bytes() / bandwidth, work.flops / peak);
        let time = memory.max(compute);
        let memory_bound = if memory >= compute { time } else { Seconds::ZERO };
        let network = Seconds::ZERO;
        Ok(Self { work, math, critical: peak / bandwidth, memory, compute, network, time, memory_bound })
    }

    /// A ring: each of `n` ranks sends `2 (n-1) / n` of the payload, in `2 (n-1)` steps (Patarasuk and Yuan, "Bandwidth
    /// optimal all-reduce algorithms", 2009).
    fn exchange(reduce: &AllReduce, precision: &Precision, sizes: Sizes, device: &Device) -> Result<Self> {
        let (bandwidth, hop) = device.link()?;
        let ranks = reduce.ranks.float();
        let work = Op::AllReduce(*reduce).work(precision, sizes);
        let sent = reduce.payload(precision, sizes) * (2.0 * (ranks - 1.0) / ranks);
        let network = sent / bandwidth + hop * (2.0 * (ranks - 1.0));
        let memory = work.bytes() / device.memory.bandwidth;
        let (math, compute, time) = (Math::Fp32, Seconds::ZERO, network.max(memory));
        let memory_bound = time - network;
        Ok(Self { work, math, critical: Intensity::ZERO, memory, compute, network, time, memory_bound })
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

    /// The predicted time.
    pub fn time(&self) -> Seconds {
        self.time
    }

    /// The time if all kernels could overlap: what the aggregate intensity would predict.
    pub fn overlapped(&self) -> Seconds {
        self.memory.max(self.compute).max(self.network)
    }

    /// The part of the time that goes to kernels that wait for memory: 0 or 1 for a single kernel.
    pub fn memory_share(&self) -> f64 {
        self.memory_bound / self.time
    }

    /// Whether some kernels wait for memory and others for the units, so that no single ridge describes them.
    pub fn is_mixed(&self) -> bool {
        self.memory_bound > Seconds::ZERO && self.memory_bound < self.time * (1.0 - 1e-9)
    }

    /// What most of the time goes to.
    pub fn bound(&self) -> Bound {
        let compute_bound = self.time - self.memory_bound - self.network;
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
        self.work.flops / self.time
    }

    /// Bytes per second at that time.
    pub fn bandwidth(&self) -> ByteRate {
        self.work.bytes() / self.time
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
        hint: format!("give its peak by `--peak {}=...`", math.key()),
    }
}

/// A graph's estimate: its kernels and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Each kernel, as often as it runs.
    pub nodes: Vec<(Node, Estimate)>,
    /// One after the other.
    pub total: Estimate,
}

/// How long `graph` must take on `device` with the formats of `plan`.
pub fn predict(graph: &Graph, plan: &Plan, sizes: Sizes, device: &Device) -> Result<Forecast> {
    let estimate =
        |node: &Node| Ok((*node, Estimate::of(&node.op, plan.at(node.place), sizes, device)?.times(node.count)));
    let nodes: Vec<(Node, Estimate)> = graph.nodes.iter().map(estimate).collect::<Result<_>>()?;
    let total = nodes.iter().map(|(_, estimate)| *estimate).reduce(Estimate::then);
    let total = total.ok_or_else(|| Error::Shape("a graph without kernels takes no time".to_owned()))?;
    Ok(Forecast { nodes, total })
}

/// Why one estimate is faster than another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speedup {
    /// Times as fast.
    pub factor: f64,
    /// The ratio that explains it.
    pub reason: Reason,
}

/// Which ratio a speed-up comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Both wait for memory: the ratio of the bytes.
    Bytes,
    /// Both wait for the units: the ratio of the peaks.
    Peak,
    /// One waits for memory, the other for the units.
    Crossover,
    /// Several kernels with different reasons.
    Mixed,
}

impl Speedup {
    /// Of `estimate` over `baseline`, for the same computation on one device.
    pub fn of(estimate: &Estimate, baseline: &Estimate) -> Self {
        let reason = match (estimate.bound(), baseline.bound()) {
            _ if estimate.is_mixed() || baseline.is_mixed() => Reason::Mixed,
            (Bound::Memory, Bound::Memory) => Reason::Bytes,
            (Bound::Compute, Bound::Compute) => Reason::Peak,
            _ => Reason::Crossover,
        };
        Self { factor: baseline.time() / estimate.time(), reason }
    }
}
