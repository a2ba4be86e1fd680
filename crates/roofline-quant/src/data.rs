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
mod pieces;
mod sequential;
pub(crate) mod share;
mod smooth;

pub use chosen::{Chosen, ChosenRows};
pub use layer::KeptChosen;
pub(crate) use sequential::{Sequence, kept, memory};

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Checkpoint, Error, Layout, Method, QuantizeJob, Result,
    job::{Code, Item, Work},
    layout::Scheme,
};

/// The text that a method went by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "CalibrationText")]
pub struct Text {
    /// What it is called: its file's name, or the demo's.
    pub name: String,
    /// The 64-bit FNV-1a hash of all of it, in hexadecimal.
    pub hash: String,
    /// The same of the numbers of the tokens that were taken: another tokenizer takes others.
    pub tokens: String,
    /// Pieces that were taken of it.
    pub samples: usize,
    /// Tokens of each.
    pub length: usize,
    /// Which pieces those are: the same number takes the same.
    pub seed: u64,
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, hash, samples, length, seed, .. } = self;
        write!(f, "{name} (FNV-1a {hash}): {samples} samples of {length} tokens, seed {seed}")
    }
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

impl Tuning {
    /// What of it a method goes by, in words; nothing where it is told nothing.
    pub fn words(&self, method: Method) -> Option<String> {
        let order = if self.act_order { "inputs that matter most first" } else { "inputs as they lie" };
        match method {
            Method::Gptq => Some(format!("{order}, damping {}", self.damping)),
            Method::SmoothQuant => Some(format!("alpha {}", self.alpha)),
            _ => None,
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self { act_order: true, damping: 0.01, alpha: 0.5 }
    }
}

/// Refuses a method that chooses codes where a layout stores others than it knows, and says what it leaves to others.
pub(crate) fn check(checkpoint: &Checkpoint, job: &mut QuantizeJob<'_>, method: Method, layout: Layout) -> Result<()> {
    if method == Method::SmoothQuant && layout != Layout::CompressedTensors {
        return Err(Error::unsupported(
            format!("`{method}` makes inputs easy to round, and is written as compressed-tensors, not as {layout}"),
            "use `⟨as compressed-tensors⟩` with `int8` or `fp8`, or the method `awq` for weights alone",
        ));
    }
    if method == Method::SmoothQuant {
        return check_inputs(job);
    }
    if !matches!(method, Method::Gptq | Method::Awq) {
        return Ok(());
    }
    if checkpoint.gguf.is_some() && layout == Layout::Gguf && method == Method::Awq {
        return Err(Error::unsupported(
            "`awq` makes no GGUF file of another, whose norms stay as they are",
            "start from the checkpoint that the file was made of, or take the method `gptq`",
        ));
    }
    let (mut chosen, mut searched) = (0, Vec::new());
    for item in &job.items {
        let Work::Code(code) = &item.work else { continue };
        if !code.lossy || !item.site.is_layer_product() {
            continue;
        }
        match code.coding.grid() {
            Some(_) => chosen += 1,
            // Its own search goes by the same inputs.
            None if code.coding.weighs() => searched.push((item, &code.scheme)),
            None => return Err(no_grid(item, &code.scheme, method)),
        }
        // Each expert of a tensor of many is chosen for by itself.
        let each = code.matrix().rows / item.origins().len().max(1);
        if !each.is_multiple_of(code.coding.unit()) {
            return Err(Error::unsupported(
                format!(
                    "`{}` has experts of {each} rows, and {} codes {} together: `{method}` chooses for each expert",
                    item.site.module,
                    code.scheme,
                    code.coding.unit()
                ),
                "choose a scheme whose rows are coded one by one, or the method `rtn`",
            ));
        }
    }
    let note = match &searched[..] {
        [] if chosen == 0 => {
            return Err(Error::unsupported(
                format!("this plan quantizes no product of a layer, and `{method}` chooses codes of those"),
                "leave `⟨method⟩` out, or name a plan that does, such as `w4a16`",
            ));
        }
        [] => return Ok(()),
        [(item, scheme), ..] if chosen == 0 => return Err(no_grid(item, scheme, method)),
        [(item, scheme), others @ ..] => {
            let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
            format!(
                "`{method}` chooses the codes of {chosen} matrices; {} have none to choose: {scheme} of `{}`{more} is found by \
                 the type's own search, weighed by the inputs that the text brings",
                searched.len(),
                item.site.module
            )
        }
    };
    job.notes.push(note);
    Ok(())
}

/// Refuses a method for inputs where none are rounded, and where their scales are stored: those are of inputs as they were.
fn check_inputs(job: &QuantizeJob<'_>) -> Result<()> {
    let products = job.items.iter().filter(|item| item.site.is_layer_product());
    let codes = products.filter_map(|item| match &item.work {
        Work::Code(code) => Some((item, code)),
        _ => None,
    });
    let rounded: Vec<_> = codes.filter(|(_, code)| rounds_inputs(code)).collect();
    if rounded.is_empty() {
        return Err(Error::unsupported(
            format!("this plan rounds no inputs of layers, and `{}` makes them easy to round", Method::SmoothQuant),
            "choose one that does, as `int8` or `fp8`, or the method `awq` for weights alone",
        ));
    }
    match rounded.iter().find(|(_, code)| scheme_of(code).is_some_and(Scheme::needs_ranges)) {
        None => Ok(()),
        Some((item, code)) => Err(Error::unsupported(
            format!(
                "`{}` would be {}, whose scales of inputs are stored, and `{}` changes the inputs",
                item.name,
                code.scheme,
                Method::SmoothQuant
            ),
            "choose `int8` or `fp8`, whose inputs are scaled while the model runs",
        )),
    }
}

/// The scheme of a matrix that is written as compressed-tensors.
fn scheme_of(code: &Code<'_>) -> Option<&'static Scheme> {
    Layout::CompressedTensors.schemes().iter().find(|scheme| scheme.name == code.scheme)
}

/// Whether the inputs of a matrix that is written as compressed-tensors are rounded, too.
fn rounds_inputs(code: &Code<'_>) -> bool {
    code.lossy && scheme_of(code).is_some_and(|scheme| scheme.activations.is_some())
}

/// That a method does not round to what an item would be.
fn no_grid(item: &Item<'_>, scheme: &str, method: Method) -> Error {
    Error::unsupported(
        format!("`{}` would be {scheme}, which the method `{method}` does not round to", item.name),
        "it rounds to integers with scales: `w4a16`, `w8a16`, `int8` and the like, as compressed-tensors, gptq, awq, torchao \
         or mlx, and `q2_k` to `q8_0`, `iq4_nl` and `iq4_xs` as gguf; other iq types go by data with `⟨imatrix⟩`",
    )
}
