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
mod library;
mod product;
mod remainder;
mod search;
mod spec;
mod transfer;

pub use cross::{TimedFit, TimedQuality, Timing, fit_timings};
pub use kernel::{Dtype, Regime, Shape, TimedKernel, TimedOp};
pub use library::{Library, by_library};
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
    /// Whose, where the stack calls several libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub library: Option<Library>,
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
    /// The terms of a kernel: of the library that is named, else of that which the stack calls for it, else of the largest.
    pub(super) fn of(&self, kernel: &TimedKernel, library: Option<&str>) -> Option<&KernelTerms> {
        let op = kernel.shape.op();
        let known = || self.kernels.iter().filter(|terms| terms.op == op && terms.dtype == kernel.dtype);
        let first = known().next()?;
        if first.library.is_none() {
            return Some(first);
        }
        let of = |wanted: &dyn Fn(&Library) -> bool| known().find(|terms| terms.library.as_ref().is_some_and(wanted));
        let named = library.and_then(|name| of(&|library| library.name == name));
        named.or_else(|| of(&|library| library.serves(&kernel.shape))).or(Some(first))
    }

    /// The time of a kernel as it was timed, in seconds, uncorrected.
    pub fn as_timed(&self, kernel: &TimedKernel, library: Option<&str>) -> Option<f64> {
        self.time(kernel, library, Found::AsTimed, false).map(|(causes, _)| causes.time)
    }

    /// The time of a kernel as it was timed, uncorrected, with each of its terms left out in turn: costs nothing, rates without
    /// bound. What a term explains is what changes.
    pub fn without_each(&self, kernel: &TimedKernel, library: Option<&str>) -> Vec<(&'static str, f64)> {
        let Some(terms) = self.of(kernel, library) else { return Vec::new() };
        let units = f64::from(self.multiprocessors);
        let without = |(spec, _): (&'static TermSpec, f64)| {
            let left = KernelTerms { terms: terms.terms.without(spec.name), ..terms.clone() };
            (spec.name, left.causes(kernel, units, Found::AsTimed).time)
        };
        terms.terms.present().map(without).collect()
    }

    /// The time of a kernel by cause, and the logarithm of the factor that four of five timings are within.
    pub fn time(
        &self,
        kernel: &TimedKernel,
        library: Option<&str>,
        found: Found,
        corrected: bool,
    ) -> Option<(Causes, f64)> {
        let terms = self.of(kernel, library)?;
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
        let (Causes { time, launch, memory, compute }, interval) = self.time(&kernel, None, Found::InMemory, true)?;
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
                && terms.library.as_ref().is_none_or(Library::sensible)
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

/// The next whole number, of those that a count can be. Processors of the baseline have no instruction for it, and this is
/// asked a hundred times for a product.
#[inline]
fn whole(value: f64) -> f64 {
    let below = value as i64 as f64;
    if below < value { below + 1.0 } else { below }
}

/// What of `bytes` is still in a cache that holds about `room`.
fn kept(bytes: f64, room: f64) -> f64 {
    if room <= 0.0 {
        return 0.0;
    }
    let square = (bytes / room) * (bytes / room);
    1.0 / (1.0 + square * square)
}

/// The second-level caches of the devices that were timed are read at least so much faster than their memory.
const CACHE_RATE: f64 = 5.0;
/// Where the power limit begins to show.
const SUSTAINED: f64 = 1e-4;

/// How much slower long work gets, `throttle` at ten times the time at which it begins.
fn throttled(time: f64, throttle: f64) -> f64 {
    if time > SUSTAINED { time * (1.0 + throttle * libm::log10(time / SUSTAINED).min(1.0)) } else { time }
}
