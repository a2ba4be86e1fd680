//! What runtimes reach of their devices, by the speeds of whole models that people published.
//!
//! Nobody timed every kernel of every runtime on every device, but thousands measured tokens per second. Eighteen terms
//! ([`Term`]) describe how a runtime's kernels stand to the limits of a device, and what it spends beside them. Each term is
//! a product of factors: one of all runtimes, one of the runtime, one of the class of device, one of both together, one of an
//! older release, one of the architecture, one of the device itself ([`Effects`]). A runtime or a device that nobody spoke
//! of has the factors that are left, which is what a guess should be made of; `docs/method.md` derives it.

mod effects;
mod figure;
mod fit;
mod kernel;
mod quality;
mod reach;
mod speed;
mod term;

pub use effects::{Effect, Effects, Known};
pub use figure::Figure;
pub use fit::fit;
pub use kernel::Regime;
pub(crate) use kernel::{Among, Kernel, Shared};
pub use quality::{Judged, Runner, Scored, Validation, judge, scores, validate};
pub use reach::Reach;
pub use speed::{Phase, Speed, plan_of, stack_of};
pub use term::{Level, TERMS, Term};
