//! The form of kernels that others timed: a serving stack's products and attention, on one device.
//!
//! Somebody else's kernels cannot be cut as ours are, so less is known of them, and more has to be found: which tiles a stack
//! takes for how many rows, whether blocks share a sum, whether heads of a group share a block, how long the host takes to
//! ask. For one cut of a product into `blocks` on `units` multiprocessors:
//!
//! ```text
//! share   = max(1, blocks / units), plus `wave` of what is missing to the next whole number
//! compute = share * flops / (rate / units), slower by `throttle` from 0.1 to 1 ms
//! stream  = share * (bytes / stream + steps * step + block)
//! memory  = bytes that are not in the L2 / read + the others at five times the rate
//! time    = launch + corner(memory, compute, stream) + outputs / write + split + rows * (row + k * element)
//! ```
//!
//! and no less than `host`, the time until the next call can be made. The fastest cut counts, or that of the tile which the
//! stack is seen to take for so many rows. [`attention`] has the same for queries and a cache. Every number has a name, a unit
//! and a sentence ([`TermSpec`]); a term that explains nothing is left out, and no kernel has more than twelve. What they leave
//! is kept as a bounded correction that can be switched off ([`Remainder`]).

mod attention;
mod cross;
mod kernel;
mod least_squares;
mod product;
mod remainder;
mod search;
mod spec;
mod transfer;

pub use cross::{TimedFit, TimedQuality, Timing, fit_timings};
pub use kernel::{Dtype, Regime, Shape, TimedKernel, TimedOp};
pub use spec::TermSpec;
pub(super) use spec::six_digits;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{attention::AttentionChoice, product::ProductChoice, remainder::Remainder, spec::Values};
use super::terms::{Family, Parts};
use crate::{Op, Precision};

/// Kernels of one stack on one device, as somebody timed them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimedTerms {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// What is known of each kind of kernel.
    pub kernels: Vec<KernelTerms>,
}

/// Terms of one kind of kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelTerms {
    /// Which operator.
    pub op: TimedOp,
    /// In which formats.
    pub dtype: Dtype,
    /// How well the terms predict shapes that they were not fitted to.
    pub quality: TimedQuality,
    /// How the stack cuts its kernels.
    pub choice: Choice,
    /// The terms by name.
    pub terms: Values,
    /// What the terms leave.
    #[serde(default, skip_serializing_if = "Remainder::is_empty")]
    pub remainder: Remainder,
}

/// What a stack decides, and a fit has to find.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "TimedChoice")]
pub enum Choice {
    /// For a product.
    Product(ProductChoice),
    /// For attention.
    Attention(AttentionChoice),
}

/// What a prediction is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As whoever timed it had it: what fits the L2 may have been there.
    AsTimed,
    /// In a model, whose weights and caches come from memory.
    InMemory,
}

impl TimedTerms {
    /// The terms of a kernel.
    pub(super) fn of(&self, kernel: &TimedKernel) -> Option<&KernelTerms> {
        let op = kernel.shape.op();
        self.kernels.iter().find(|terms| terms.op == op && terms.dtype == kernel.dtype)
    }

    /// The time of a kernel by cause, and the logarithm of the factor that four of five timings are within.
    pub fn time(&self, kernel: &TimedKernel, found: Found, corrected: bool) -> Option<(Causes, f64)> {
        let terms = self.of(kernel)?;
        let units = f64::from(self.multiprocessors);
        let mut causes = terms.causes(kernel, units, found);
        if corrected {
            let factor = terms.remainder.factor(&kernel.shape, units);
            causes = causes.times(factor);
        }
        Some((causes, terms.quality.interval_of(Regime::of(&kernel.shape))))
    }

    pub(super) fn parts(&self, op: &Op, precision: &Precision) -> Option<(Parts, f64)> {
        let kernel = TimedKernel::of(op, precision)?;
        let (Causes { time, launch, memory, compute }, interval) = self.time(&kernel, Found::InMemory, true)?;
        let family = match kernel.shape {
            Shape::Product { .. } => Family::Tiled,
            Shape::Attention { queries, .. } if queries <= 1.0 => Family::Decode,
            Shape::Attention { .. } => Family::Prefill,
        };
        Some((Parts { family, launch, memory, compute, time }, interval))
    }

    /// Whether a machine can have these values.
    pub(super) fn sensible(&self) -> bool {
        let kernel = |terms: &KernelTerms| {
            terms.terms.sensible(terms.op)
                && terms.quality.sensible()
                && terms.remainder.sensible()
                && terms.choice.sensible(terms.op)
        };
        self.multiprocessors > 0 && self.kernels.iter().all(kernel)
    }

    /// Reads, and multiplies, that much faster.
    pub(super) fn scale(&mut self, memory: f64, compute: f64) {
        for kernel in &mut self.kernels {
            kernel.terms.scale("read", memory);
            kernel.terms.scale("rate", compute);
            kernel.terms.scale("vector", compute);
        }
    }
}

impl KernelTerms {
    fn causes(&self, kernel: &TimedKernel, units: f64, found: Found) -> Causes {
        match (&self.choice, &kernel.shape) {
            (Choice::Product(choice), Shape::Product { .. }) => {
                let asked = product::Asked::of(kernel);
                product::causes(self.terms.all(), choice, &asked, units, found)
            }
            (Choice::Attention(choice), Shape::Attention { .. }) => {
                let asked = attention::Asked::of(kernel);
                attention::causes(self.terms.all(), choice, &asked, units, found)
            }
            _ => Causes::NONE,
        }
    }
}

impl Choice {
    /// Whether it is one for the operator.
    fn sensible(&self, op: TimedOp) -> bool {
        match self {
            Self::Product(choice) => op == TimedOp::Gemm && choice.sensible(),
            Self::Attention(choice) => op != TimedOp::Gemm && choice.sensible(),
        }
    }
}

/// A time by cause, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Causes {
    /// All of it.
    pub time: f64,
    /// Starting, and what the host takes.
    pub launch: f64,
    /// Moving bytes.
    pub memory: f64,
    /// Multiplying.
    pub compute: f64,
}

impl Causes {
    const NONE: Self = Self { time: f64::INFINITY, launch: 0.0, memory: 0.0, compute: 0.0 };

    fn times(self, factor: f64) -> Self {
        let Self { time, launch, memory, compute } = self;
        Self { time: time * factor, launch: launch * factor, memory: memory * factor, compute: compute * factor }
    }
}

/// `(a^p + b^p + ...)^(1/p)` for a power of 2, 4 or 8: a maximum whose corner is rounded.
#[inline]
fn corner(power: u8, values: &[f64]) -> f64 {
    let squares: f64 = match power {
        2 => return values.iter().map(|value| value * value).sum::<f64>().sqrt(),
        4 => values.iter().map(|value| (value * value) * (value * value)).sum(),
        _ => {
            let eighth = |value: &f64| {
                let fourth = (value * value) * (value * value);
                fourth * fourth
            };
            return values.iter().map(eighth).sum::<f64>().sqrt().sqrt().sqrt();
        }
    };
    squares.sqrt().sqrt()
}

/// What of `bytes` is still in a cache that holds about `room`.
fn kept(bytes: f64, room: f64) -> f64 {
    if room <= 0.0 {
        return 0.0;
    }
    let fourth = (bytes / room).powi(4);
    1.0 / (1.0 + fourth)
}

/// The second-level caches of the devices that were timed are read at least so much faster than their memory.
const CACHE_RATE: f64 = 5.0;
/// Where the power limit begins to show.
const SUSTAINED: f64 = 1e-4;

/// How much slower long work gets, `throttle` at ten times the time at which it begins.
fn throttled(time: f64, throttle: f64) -> f64 {
    if time > SUSTAINED { time * (1.0 + throttle * libm::log10(time / SUSTAINED).min(1.0)) } else { time }
}
