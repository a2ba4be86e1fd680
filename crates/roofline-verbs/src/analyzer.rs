//! The analyzer: a model on a device counted as text books count it, component by component, beside what its kernels do.
//!
//! The counting is the one that circulates: every token's logits, every pair of tokens in a prompt, four hidden vectors
//! per layer as activations, and the whole table of token vectors among the weights. Operations come from the same graph
//! as every other verb's, lowered that way; what the kernels of a real pass move stands beside it, and an answer says
//! where the two differ.

mod advice;
mod batches;
mod benchmark;
mod charts;
mod counted;
mod pass;
mod place;
mod quantization;
mod roof;
mod run;
mod sheet;
mod speed;
mod table;
mod torchao;

pub use advice::{Advice, Finding};
pub use batches::{Batched, Batches, BatchesAnswer};
pub use benchmark::{Benchmark, BenchmarkAnswer, Benchmarked, Timed};
pub use charts::{Chart, ChartAnswer, MeasuredPoint, TheoryPoint};
pub use counted::{Components, Traffic};
pub use pass::{KernelFigures, Pass, PassAnswer};
pub use place::Place;
pub use quantization::{Quantization, QuantizationAnswer};
pub use roof::{Roof, RoofAnswer};
pub use run::{Run, RunAnswer};
pub use sheet::{DeviceSheet, ModelSheet, Sheet, SheetAnswer};
pub use speed::{Speed, SpeedAnswer, TimedWay, Way};
pub use table::{Row, Table, TableAnswer};
pub use torchao::{Torchao, TorchaoAnswer};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Context, Result};

/// What the analyzer is asked.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "subject", rename_all = "lowercase")]
#[schemars(rename = "AnalyzerRequest")]
pub enum Request {
    /// The data sheet of the device and the dimensions of the model
    Sheet(Sheet),
    /// What work of an intensity can reach on the device
    Roof(Roof),
    /// One pass: a prompt, or one more token of each sequence
    Pass(Pass),
    /// A prompt and its answer, beside the time they took
    Run(Run),
    /// Prompts and contexts of several lengths, what that means, and what to do about it
    Table(Table),
    /// How batches scale
    Batches(Batches),
    /// Times that somebody measured, as rates
    Benchmark(Benchmark),
    /// The roofline with those passes and measured points
    Chart(Chart),
    /// Times of one thing done in several ways, as rates
    Speed(Speed),
    /// Which format for one product, in short
    Quantization(Quantization),
    /// What torchao makes of a precision
    Torchao(Torchao),
}

/// What the analyzer tells.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "AnalyzerAnswer")]
pub enum Answer {
    Sheet(Box<SheetAnswer>),
    Roof(Box<RoofAnswer>),
    Pass(Box<PassAnswer>),
    Run(Box<RunAnswer>),
    Table(Box<TableAnswer>),
    Batches(Box<BatchesAnswer>),
    Benchmark(Box<BenchmarkAnswer>),
    Chart(Box<ChartAnswer>),
    Speed(SpeedAnswer),
    Quantization(Box<QuantizationAnswer>),
    Torchao(TorchaoAnswer),
}

/// Answers a question to the analyzer.
pub fn analyzer(context: &Context, request: &Request) -> Result<Answer> {
    Ok(match request {
        Request::Sheet(asked) => Answer::Sheet(Box::new(asked.answer(context)?)),
        Request::Roof(asked) => Answer::Roof(Box::new(asked.answer(context)?)),
        Request::Pass(asked) => Answer::Pass(Box::new(asked.answer(context)?)),
        Request::Run(asked) => Answer::Run(Box::new(asked.answer(context)?)),
        Request::Table(asked) => Answer::Table(Box::new(asked.answer(context)?)),
        Request::Batches(asked) => Answer::Batches(Box::new(asked.answer(context)?)),
        Request::Benchmark(asked) => Answer::Benchmark(Box::new(asked.answer(context)?)),
        Request::Chart(asked) => Answer::Chart(Box::new(asked.answer(context)?)),
        Request::Speed(asked) => Answer::Speed(asked.answer()?),
        Request::Quantization(asked) => Answer::Quantization(Box::new(asked.answer(context)?)),
        Request::Torchao(asked) => Answer::Torchao(asked.answer()),
    })
}

#[cfg(test)]
mod tests;
