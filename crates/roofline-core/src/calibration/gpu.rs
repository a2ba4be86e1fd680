//! The form of a GPU: a kernel is cut into blocks, and blocks fill the multiprocessors in waves.
//!
//! Of every way to cut a kernel that its family has (see [`cut`]), the fastest is taken: choosing a kernel is part of the
//! model, as it is part of a library. For one cut, with `blocks` blocks on `units` multiprocessors:
//!
//! ```text
//! share   = max(1, blocks / units), plus `wave` of what is missing to the next whole number; no less than the longest block
//! compute = share * (flops / (rate / units) + elements * unpack * units)
//! stream  = share * (bytes / stream + steps * step + block)
//! memory  = bytes the kernel reads / read
//! finish  = bytes written / write + partial sums / sums + late / stream + share * outputs * output * units
//! time    = launches + (compute^4 + stream^4 + memory^4)^(1/4) + finish + split
//! ```
//!
//! `flops`, `bytes`, `elements`, `steps` and `outputs` are those of one block, edges included: a block that is half outside
//! the matrix costs a whole one. `launches` are the family's and what the lane needs on top, where it takes a second kernel.
//! `late` is what a block asks for when all else has come: x, where a kernel fetches its weights while the one before it still runs,
//! and the sums of others that it adds up. `step` is what a block waits for at each of its steps, whatever they hold: where no sum is shared, a long sum is a long
//! chain of waits. `output` is what a lane does to each result after the sum: sums that are first stored as INT32 and then
//! scaled by another kernel are read and written once more. `stream` is what one multiprocessor takes from the L2, where
//! blocks read their operands again and again; `memory` is what has to come from DRAM once. The fourth power is a maximum with
//! a rounded corner. `split` is paid where the sum over `k`, or over the cache, is shared by several blocks; whether a lane's
//! kernels can do that is found by fitting it both ways. A unit that works for long runs into the power limit: between 0.1 ms
//! and 1 ms `compute` grows by up to `throttle`, by the logarithm of the time, and stays there.
//!
//! What the terms cannot explain is kept as points (see [`Remainder`]).

mod cut;
mod followed;
mod remainder;
mod search;

pub use cut::Lane;
pub use remainder::Remainder;
pub(super) use search::search;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::cut::{Cut, Task};
use super::terms::{Family, Parts, Stands, ThinRows};
use crate::{
    Format, Math, Op, Precision,
    format::Sizes,
    units::{ByteRate, FlopRate, Seconds},
};

/// Named terms of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GpuTerms {
    /// Multiprocessors.
    pub units: u32,
    /// Where the stack changes kernels.
    pub thin_rows: ThinRows,
    /// What the kernels of a family share.
    pub families: Vec<FamilyTerms>,
    /// What differs by unit and format.
    pub lanes: Vec<LaneTerms>,
}

/// Terms of a family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GpuFamilyTerms")]
pub struct FamilyTerms {
    /// Which kernels.
    pub family: Family,
    /// Per call: starting, filling and draining.
    #[serde(rename = "launch_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub launch: Seconds,
    /// What reading from memory reaches.
    #[serde(rename = "read_bytes_per_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub read: ByteRate,
    /// What results are written at; they stay in the L2 as far as they fit.
    #[serde(rename = "write_bytes_per_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub write: ByteRate,
    /// What partial sums are left in the L2 and added up at.
    #[serde(rename = "sums_bytes_per_s", with = "crate::units::number", default = "unnoticed_sums")]
    #[schemars(with = "f64")]
    pub sums: ByteRate,
    /// Per block, one after another on a multiprocessor: filling its pipeline.
    #[serde(rename = "block_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub block: Seconds,
    /// Where several blocks share a sum: adding the parts.
    #[serde(rename = "split_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub split: Seconds,
    /// The share of the last wave that is waited for although it is not full, where a lane does not say.
    pub wave: f64,
    /// How much slower a unit gets from 0.1 to 1 ms of work, at the power limit.
    pub throttle: f64,
}

/// Terms of a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GpuLaneTerms")]
pub struct LaneTerms {
    /// Which kernels on what.
    #[serde(flatten)]
    pub lane: Lane,
    /// What all multiprocessors together reach; none where nothing is multiplied.
    #[serde(rename = "flop_per_s", with = "rate", default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<f64>")]
    pub rate: Option<FlopRate>,
    /// What one multiprocessor takes from the L2.
    #[serde(rename = "stream_bytes_per_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub stream: ByteRate,
    /// Widening, per stored element, all multiprocessors together; zero where what is stored is what multiplies.
    #[serde(rename = "unpack_s", with = "crate::units::number")]
    #[schemars(with = "f64")]
    pub unpack: Seconds,
    /// Per call, on top of the family's: a slower start, or a second kernel.
    #[serde(rename = "launch_s", with = "crate::units::number", default)]
    #[schemars(with = "f64")]
    pub launch: Seconds,
    /// Per step of 64 along a block's sum: what it waits for though bytes and operations are few.
    #[serde(rename = "step_s", with = "crate::units::number", default)]
    #[schemars(with = "f64")]
    pub step: Seconds,
    /// Per output, all multiprocessors together: adding it up, scaling it, passing over it again.
    #[serde(rename = "output_s", with = "crate::units::number", default)]
    #[schemars(with = "f64")]
    pub output: Seconds,
    /// The share of the last wave that these kernels wait for: all of it where blocks are cut before they start, next to
    /// nothing where a library has a kernel for every remainder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<f64>,
    /// Whether these kernels let blocks share a sum.
    #[serde(default = "shared_sums")]
    pub splits: bool,
    /// What these terms leave unexplained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remainder: Vec<Remainder>,
}

/// What one unit of each demand costs a lane, in seconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    units: f64,
    launch: f64,
    byte_read: f64,
    byte_written: f64,
    byte_summed: f64,
    block: f64,
    split: f64,
    wave: f64,
    throttle: f64,
    operation: f64,
    byte_streamed: f64,
    element: f64,
    step: f64,
    output: f64,
    splits: bool,
}

/// Where the power limit begins to show.
const SUSTAINED: f64 = 1e-4;

impl Costs {
    /// The fastest way to run `task`.
    fn parts(&self, task: &Task) -> Parts {
        let usable = task.cuts.iter().filter(|cut| self.splits || !cut.split);
        let mut fastest: Option<Parts> = None;
        for cut in usable {
            let best = fastest.map_or(f64::INFINITY, |fastest| fastest.time);
            let faster = self.cut(task, cut, best).filter(|other| fastest.is_none() || other.time < best);
            fastest = faster.or(fastest);
        }
        fastest.unwrap_or(Parts { family: task.lane.family, launch: 0.0, memory: 0.0, compute: 0.0, time: 0.0 })
    }

    /// What a cut takes; none where a part of that alone is longer than `best`.
    fn cut(&self, task: &Task, cut: &Cut, best: f64) -> Option<Parts> {
        let waves = cut.blocks / self.units;
        let even = waves.max(1.0);
        let share = (even + self.wave * (waves.ceil() - even)).max(cut.longest);
        let mut compute = share * self.units * (cut.flops * self.operation + cut.elements * self.element);
        let stream = share * (cut.bytes * self.byte_streamed + cut.steps * self.step + self.block);
        let memory = task.read * self.byte_read;
        let finish = task.write * self.byte_written
            + cut.partial * self.byte_summed
            + cut.late * self.byte_streamed
            + share * self.units * cut.outputs * self.output;
        let launch = self.launch + if cut.split { self.split } else { 0.0 };
        // The rounded maximum below is no less than the sharp one, but for the last bits.
        if (launch + compute.max(stream).max(memory) + finish) * (1.0 - 1e-9) > best {
            return None;
        }
        if compute > SUSTAINED {
            compute *= 1.0 + self.throttle * (compute / SUSTAINED).log10().min(1.0);
        }
        let fourth = |value: f64| (value * value) * (value * value);
        let body = (fourth(compute) + fourth(stream) + fourth(memory)).sqrt().sqrt();
        let memory = memory.max(stream) + finish;
        Some(Parts { family: task.lane.family, launch, memory, compute, time: launch + body + finish })
    }
}

impl GpuTerms {
    /// By the kernels that run: where two are tried, the faster ones.
    pub(super) fn parts(&self, op: &Op, precision: &Precision, sizes: Sizes, stands: Stands) -> Option<Parts> {
        let other = match stands {
            Stands::Alone => Family::other,
            Stands::InPass => Family::other_in_pass,
        };
        let kernels = [Family::of, other].map(|family| family(op, precision, self.thin_rows));
        // Few rows of FP8 on both sides are multiplied there as what their codes stand for.
        let both = (precision.weights, precision.activations) == (Format::FP8, Format::FP8);
        let few = stands == Stands::InPass && both && kernels[0] == Some(Family::Thin);
        let sixteen = Precision { activations: Format::BF16, math: Math::Bf16, ..*precision };
        let precision = if few { &sixteen } else { precision };
        let by = |family| self.parts_by(op, precision, sizes, family);
        kernels.into_iter().flatten().filter_map(by).min_by(|a, b| a.time.total_cmp(&b.time))
    }

    fn parts_by(&self, op: &Op, precision: &Precision, sizes: Sizes, family: Family) -> Option<Parts> {
        let task = Task::of(op, precision, sizes, family, self.units);
        let shared = self.families.iter().find(|shared| shared.family == task.lane.family)?;
        let lane = |lane: Lane| self.lanes.iter().find(|terms| terms.lane == lane);
        // A product whose activation function was never measured takes what the product itself takes.
        let plain = || lane(Lane { kind: None, ..task.lane }).filter(|_| task.lane.format.is_some());
        let terms = lane(task.lane).or_else(plain)?;
        let parts = Self::costs(self.units, shared, terms).parts(&task);
        let factor = Remainder::factor(&terms.remainder, &task.at);
        let Parts { family, launch, mut memory, mut compute, time } = parts;
        if family == Family::Chosen {
            // One row multiplies as much as it reads, so that a fit cannot tell the two apart; reading is what a block waits for.
            (memory, compute) = (memory.max(compute), 0.0);
        }
        let [launch, memory, compute, time] = [launch, memory, compute, time].map(|part| part * factor);
        Some(Parts { family, launch, memory, compute, time })
    }

    fn costs(units: u32, shared: &FamilyTerms, terms: &LaneTerms) -> Costs {
        Costs {
            units: f64::from(units),
            launch: shared.launch.value() + terms.launch.value(),
            byte_read: 1.0 / shared.read.value(),
            byte_written: 1.0 / shared.write.value(),
            byte_summed: 1.0 / shared.sums.value(),
            block: shared.block.value(),
            split: shared.split.value(),
            wave: terms.wave.unwrap_or(shared.wave),
            throttle: shared.throttle,
            operation: terms.rate.map_or(0.0, |rate| 1.0 / rate.value()),
            byte_streamed: 1.0 / terms.stream.value(),
            element: terms.unpack.value(),
            step: terms.step.value(),
            output: terms.output.value(),
            splits: terms.splits,
        }
    }

    /// Whether a machine can have these values.
    pub(super) fn sensible(&self) -> bool {
        let rate = |rate: f64| (1.0..1e20).contains(&rate);
        let cost = |cost: Seconds| (0.0..1.0).contains(&cost.value());
        let share = |share: f64| (0.0..=1.0).contains(&share);
        let family = |shared: &FamilyTerms| {
            rate(shared.read.value())
                && rate(shared.write.value())
                && rate(shared.sums.value())
                && [shared.launch, shared.block, shared.split].into_iter().all(cost)
                && share(shared.wave)
                && share(shared.throttle)
        };
        let lane = |terms: &LaneTerms| {
            terms.rate.is_none_or(|flops| rate(flops.value()))
                && rate(terms.stream.value())
                && terms.wave.is_none_or(share)
                && [terms.unpack, terms.launch, terms.step, terms.output].into_iter().all(cost)
                && terms.remainder.iter().all(Remainder::sensible)
        };
        self.units > 0 && self.families.iter().all(family) && self.lanes.iter().all(lane)
    }
}

/// Calibrations that do not say were made when every lane shared sums.
fn shared_sums() -> bool {
    true
}

/// Calibrations that do not say had no term for partial sums.
fn unnoticed_sums() -> ByteRate {
    ByteRate::new(1e15)
}

/// A rate as a plain number, where there is one.
mod rate {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::units::FlopRate;

    #[expect(clippy::ref_option, reason = "serde hands over a reference to the field")]
    pub(super) fn serialize<S: Serializer>(rate: &Option<FlopRate>, serializer: S) -> Result<S::Ok, S::Error> {
        rate.map(FlopRate::value).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FlopRate>, D::Error> {
        Ok(Option::<f64>::deserialize(deserializer)?.map(FlopRate::new))
    }
}
