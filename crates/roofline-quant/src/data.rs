//! Methods that go by data: what a text brings to the products of a model decides how their weights are rounded.
//!
//! ```text
//! Observed ──layer by layer──▶ Moments ──Method──▶ Chosen codes, or factors ──▶ a file per layer ──▶ the job's items
//!     ▲                                                       │
//!     └───────────── the layer runs with what was made of it ─┘
//! ```
//!
//! Nothing of this changes what is stored or how: a layout that rounds to nearest writes the codes that are chosen here.

mod awq;
mod chosen;
mod factor;
mod fold;
mod gptq;
mod layer;
mod moments;
mod panels;
mod sequential;
pub(crate) mod share;
mod smooth;

pub use chosen::{Chosen, ChosenRows};
pub use layer::KeptChosen;
pub(crate) use sequential::{Sequence, memory};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{Error, Layout, Method, QuantizeJob, Result, job::Work};

/// The text that a method went by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "CalibrationText")]
pub struct Text {
    /// What it is called: its file's name, or the demo's.
    pub name: String,
    /// The 64-bit FNV-1a hash of all of it, in hexadecimal.
    pub hash: String,
    /// Pieces that were taken of it.
    pub samples: usize,
    /// Tokens of each.
    pub length: usize,
    /// Which pieces those are: the same number takes the same.
    pub seed: u64,
}

/// How methods go by data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tuning {
    /// GPTQ: whether inputs that matter most are rounded first.
    pub act_order: bool,
    /// GPTQ: what is added to the diagonal of `X^T X`, as a part of its mean.
    pub damping: f64,
    /// SmoothQuant: how much of the difficulty goes from activations to weights.
    pub alpha: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { act_order: true, damping: 0.01, alpha: 0.5 }
    }
}

/// Refuses a method that chooses codes where a layout stores others than it knows.
pub(crate) fn check(job: &QuantizeJob<'_>, method: Method, layout: Layout) -> Result<()> {
    if method == Method::SmoothQuant && layout != Layout::CompressedTensors {
        return Err(Error::unsupported(
            format!("{layout} rounds no inputs of products, and `{method}` makes them easy to round"),
            "use `⟨as compressed-tensors⟩` with `int8` or `fp8`, or the method `awq` for weights alone",
        ));
    }
    if !matches!(method, Method::Gptq | Method::Awq) {
        return Ok(());
    }
    for item in &job.items {
        let Work::Code(code) = &item.work else { continue };
        if !code.lossy || !item.site.is_layer_product() {
            continue;
        }
        if code.coding.grid().is_none() {
            return Err(Error::unsupported(
                format!("`{}` would be {}, which the method `{method}` does not round to", item.name, code.scheme),
                "it rounds to integers with scales: `w4a16`, `w8a16`, `int8` and the like, as compressed-tensors, gptq, awq, \
                 torchao or mlx",
            ));
        }
        // What an expert is given is seen of it alone, and goes to a matrix of its own.
        if item.site.role.is_expert() && (item.site.is_stack() || item.site.experts().is_none()) {
            return Err(Error::unsupported(
                format!(
                    "`{}` is written as one tensor of all experts, and `{method}` chooses for each of them",
                    item.site.module
                ),
                "use `⟨as compressed-tensors⟩`, which has experts apart where the model does, or the method `rtn`",
            ));
        }
    }
    Ok(())
}
