//! What a machine really does: the expected tier.
//!
//! The ideal roofline is the speed of light. Real kernels also start, widen what they read, fill a machine in waves and
//! reach a share of each peak. A calibration holds those terms for one device and one stack of kernels, fitted to
//! measurements, each with a name, a unit and a meaning. A processor has the form of [`CpuTerms`], a GPU that of
//! [`GpuTerms`], and kernels that somebody else timed that of [`TimedTerms`].

mod cpu;
mod fit;
mod gap;
mod gpu;
mod quality;
mod shipped;
mod terms;
mod timed;

pub use cpu::{CpuTerms, Pack, Rate, Touch, Unpack};
pub use fit::{Sample, fit};
pub use gap::{Beside, Gap, Pass};
pub use gpu::{FamilyTerms, GpuTerms, Lane, LaneTerms, Remainder};
pub use quality::{FamilyQuality, Quality, Spread};
pub use terms::{Family, Terms, ThinRows};
pub use timed::{
    Dtype, KernelTerms, Library, Regime, Shape, TermSpec, TimedFit, TimedKernel, TimedOp, TimedQuality, TimedTerms,
    Timing, by_library, fit_timings,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::terms::Parts;
pub(crate) use self::terms::Stands;
use crate::{
    Dim, Error, Format, Op, Precision, Result,
    format::Sizes,
    machine::Stack,
    op::{Elementwise, ElementwiseKind},
    predict::Causes,
    units::{Bytes, Seconds},
};

/// Fitted terms with where they come from and how good they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calibration {
    /// The device, as `on` takes it.
    pub device: String,
    /// Whose kernels ran.
    pub stack: String,
    /// When, and on what: a date and a machine in words.
    pub provenance: String,
    /// The terms.
    pub terms: Terms,
    /// How well they predict shapes they were not fitted to.
    pub quality: Quality,
    /// What lies between kernels of a pass, where whole passes ran; nothing is known of it without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
}

impl Calibration {
    /// Refuses terms that no machine has, for a calibration that comes from a file.
    pub fn checked(self) -> Result<Self> {
        if self.terms.sensible() && self.quality.sensible() && self.gap.as_ref().is_none_or(Gap::sensible) {
            return Ok(self);
        }
        let reason = "a rate, a cost, a share or the interval is outside what a machine can have".to_owned();
        Err(Error::Calibration { device: self.device, reason })
    }

    /// The family of a kernel; none for one that this form does not describe.
    pub fn family(&self, op: &Op, precision: &Precision) -> Option<Family> {
        let thin_rows = match &self.terms {
            Terms::Cpu(terms) => ThinRows::all(terms.thin_rows),
            Terms::Gpu(terms) => terms.thin_rows,
            Terms::Timed(_) => ThinRows::all(16),
        };
        Family::of(op, precision, thin_rows)
    }

    /// The time of one kernel by cause, and how sure it is; none where no term covers it.
    pub(crate) fn expect(&self, op: &Op, precision: &Precision, sizes: Sizes, stands: Stands) -> Option<(Causes, f64)> {
        let (Parts { launch, memory, compute, time, .. }, interval) = match &self.terms {
            Terms::Timed(terms) => terms.parts(op, precision)?,
            terms => {
                let parts = terms.parts(op, precision, sizes, stands)?;
                (parts, self.quality.interval_of(parts.family))
            }
        };
        let [time, launch, memory, compute] = [time, launch, memory, compute].map(Seconds::new);
        Some((Causes { time, launch, memory, compute, network: Seconds::ZERO }, interval))
    }

    /// The time of one kernel that stands alone, by cause; none where no term covers it.
    pub fn causes(&self, op: &Op, precision: &Precision, sizes: Sizes) -> Option<Causes> {
        self.expect(op, precision, sizes, Stands::Alone).map(|(causes, _)| causes)
    }

    /// Whether it is of kernels whose gaps in a pass are of interest: our own on a GPU, which a graph starts.
    pub fn has_gaps(&self) -> bool {
        matches!(self.terms, Terms::Gpu(_)) && self.stack == Stack::Roofline.name()
    }

    /// What lies between two kernels of a pass; nothing where it is not known.
    pub(crate) fn between(&self) -> Seconds {
        let own = self.gap.as_ref().filter(|_| self.has_gaps());
        own.map_or(Seconds::ZERO, |gap| gap.kernel)
    }

    /// What element-wise work of a whole pass takes beside a kernel, where that is known.
    pub(crate) fn beside(&self, op: &Op, precision: &Precision) -> Seconds {
        let own = self.gap.as_ref().filter(|_| self.has_gaps()).and_then(|gap| gap.prompts.as_ref());
        own.map_or(Seconds::ZERO, |prompts| prompts.time(self.moved_beside(op, precision)))
    }

    /// Bytes that element-wise work of a whole pass moves beside a kernel. Products of experts that were measured have theirs with
    /// them, but for the norm behind what a token's experts come to.
    pub fn moved_beside(&self, op: &Op, precision: &Precision) -> Bytes {
        match op {
            Op::Experts(experts) if self.covers(op, precision) => gap::behind_experts(experts),
            _ => gap::beside(op),
        }
    }

    /// What rounding the inputs of a product to 8 bit takes in a whole pass, where that is not done within it: a kernel of its own,
    /// which looks for the largest number of a row as a norm adds up its squares. A kernel that stands alone is given rounded inputs.
    pub(crate) fn rounding(&self, op: &Op, precision: &Precision, sizes: Sizes) -> Seconds {
        let linear = match op {
            Op::Linear(linear) => linear,
            Op::ActivatedLinear(activated) => &activated.linear,
            _ => return Seconds::ZERO,
        };
        let (weights, inputs) = (precision.weights, precision.activations);
        if !self.has_gaps() || weights != inputs || ![Format::FP8, Format::INT8].contains(&inputs) {
            return Seconds::ZERO;
        }
        let (tokens, width) = (u128::from(linear.m.get()), linear.k);
        // Codes of INT8, and what codes of FP8 stand for.
        let size = if inputs == Format::INT8 { 1 } else { 2 };
        let within = |terms: &GpuTerms| terms.thin_rows.rounds(linear.m.get(), width.get(), size);
        if matches!(&self.terms, Terms::Gpu(terms) if within(terms)) {
            return Seconds::ZERO;
        }
        let rows = Op::Elementwise(Elementwise { kind: ElementwiseKind::Norm, tokens, vectors: Dim::ONE, width });
        self.causes(&rows, precision, sizes).map_or(Seconds::ZERO, |causes| causes.time + self.between())
    }

    /// Whether a term covers a kernel.
    pub fn covers(&self, op: &Op, precision: &Precision) -> bool {
        self.terms.parts(op, precision, Sizes::Exact, Stands::Alone).is_some()
    }
}
