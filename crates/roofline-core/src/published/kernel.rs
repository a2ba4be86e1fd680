//! The time of a kernel by terms: the one formula of forecasts and of the fit.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Reach, TERMS, Term};
use crate::{
    Device, Graph, Math, Op, Precision,
    format::Sizes,
    plan::Assignment,
    predict::Estimate,
    units::{Bytes, Seconds},
};

/// Rows from which on a runtime widens weights for its library instead of multiplying them as they are.
const MANY: f64 = 16.0;

/// What a kernel asks of a device, in seconds at its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kernel {
    kind: Kind,
    stored: Stored,
    unit: Unit,
    /// Rows that meet one weight.
    rows: f64,
    memory: f64,
    compute: f64,
    /// Its operations at the rated power, in seconds for a picojoule each; those of eight bits and less count half.
    power: f64,
    /// Sending bytes to other devices, and the steps that takes.
    network: f64,
    steps: f64,
    /// Whether those go through the host.
    hosted: bool,
    /// Moving its weights once in 16 bits, where they are narrower and a 16-bit unit multiplies.
    widened: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Product,
    Experts,
    /// Attention of one new token a sequence.
    Cache,
    /// Attention of many.
    Prompt,
    Elementwise,
    Exchange,
}

/// Who multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A unit of 16 bits or more.
    Wide,
    /// One of eight bits or less, which is fed what is stored.
    Narrow,
    /// The same, fed what llama.cpp makes of its blocks.
    Blocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    Sixteen,
    Eight,
    Four,
}

/// Kinds of passes whose forecasts are not equally sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PublishedRegime")]
pub enum Regime {
    /// One new token.
    Token,
    /// Several sequences, one new token each.
    Batch,
    /// Prompts.
    Prompt,
    /// Several tokens that choose among experts.
    Experts,
    /// Several devices.
    Exchange,
}

impl Regime {
    /// Every kind.
    pub const ALL: &[Self] = &[Self::Token, Self::Batch, Self::Prompt, Self::Experts, Self::Exchange];

    pub(crate) fn of_op(op: &Op) -> Self {
        match op {
            Op::AllReduce(_) => Self::Exchange,
            Op::Experts(experts) if experts.tokens.get() > 1 => Self::Experts,
            Op::Attention(attention) | Op::Scores(attention) | Op::Softmax(attention) | Op::Values(attention) => {
                match (attention.queries.get(), attention.batch.get()) {
                    (1, 1) => Self::Token,
                    (1, _) => Self::Batch,
                    _ => Self::Prompt,
                }
            }
            op => match rows(op) {
                1.0 => Self::Token,
                few if few <= 64.0 => Self::Batch,
                _ => Self::Prompt,
            },
        }
    }
}

/// What a kernel shares with the others of its pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Among {
    /// Its part of what the pass spends beside its kernels.
    pub(crate) launch: Seconds,
    pub(crate) regime: Regime,
    /// Whether there are others: what was timed alone is then started by them, too.
    pub(crate) whole: bool,
}

/// What the kernels of a model share, whatever the workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shared {
    layers: u64,
    kernels: u64,
    exchange: bool,
    experts: bool,
}

impl Shared {
    pub(crate) fn of(graph: &Graph, assignment: &Assignment) -> Self {
        let (mut kernels, mut exchange, mut experts) = (0, false, false);
        assignment.kernels(graph, |kernel| {
            kernels += kernel.node.count;
            exchange |= matches!(kernel.node.op, Op::AllReduce(_));
            experts |= matches!(kernel.node.op, Op::Experts(_));
        });
        let layers = graph.anatomy.as_ref().map_or(0, |anatomy| anatomy.order.len() as u64);
        Self { layers, kernels: kernels.max(1), exchange, experts }
    }

    /// In a pass of so many sequences, with one or several new tokens each: what it spends beside its kernels is spread over
    /// them, and all are as sure as the least sure.
    pub(crate) fn among(&self, sequences: f64, prompt: bool, reach: &Reach) -> Among {
        let launch = reach.beside(self.layers, sequences) / self.kernels as f64;
        Among { launch, regime: self.regime(sequences, prompt), whole: true }
    }

    pub(super) fn regime(&self, sequences: f64, prompt: bool) -> Regime {
        match (self.exchange, self.experts && (prompt || sequences > 1.0), prompt) {
            (true, ..) => Regime::Exchange,
            (_, true, _) => Regime::Experts,
            (.., true) => Regime::Prompt,
            _ if sequences > 1.0 => Regime::Batch,
            _ => Regime::Token,
        }
    }
}

fn rows(op: &Op) -> f64 {
    match op {
        Op::Linear(linear) => linear.m.float(),
        Op::ActivatedLinear(activated) => activated.linear.m.float(),
        Op::Experts(experts) => (experts.tokens.float() * experts.active.float() / experts.distinct()).max(1.0),
        Op::Elementwise(elementwise) => elementwise.tokens as f64,
        _ => 1.0,
    }
}

/// What two limits that are felt together come to: clocks drop before the power is all used.
fn both(one: f64, two: f64) -> f64 {
    (one * one + two * two).sqrt()
}

impl Kernel {
    /// One operator of a device, by the work that is likely.
    pub(crate) fn of(op: &Op, precision: &Precision, sizes: Sizes, device: &Device, likely: &Estimate) -> Self {
        let kind = match op {
            Op::Linear(_) | Op::ActivatedLinear(_) => Kind::Product,
            Op::Experts(_) => Kind::Experts,
            Op::Attention(attention) | Op::Scores(attention) | Op::Values(attention) => {
                if attention.queries.get() == 1 { Kind::Cache } else { Kind::Prompt }
            }
            Op::Softmax(_) | Op::Elementwise(_) => Kind::Elementwise,
            Op::AllReduce(_) => Kind::Exchange,
        };
        let bits = precision.weights.nominal_bits();
        let stored = match bits {
            0..=6 => Stored::Four,
            7..=8 => Stored::Eight,
            _ => Stored::Sixteen,
        };
        let math = op.math(precision);
        let wide = matches!(math, Math::Fp16 | Math::Bf16 | Math::Fp16Acc16 | Math::Fp32);
        let narrow = matches!(math, Math::Fp8 | Math::Fp8Acc16 | Math::Fp6 | Math::Fp4 | Math::Int8 | Math::Int4);
        let unit = match (narrow, precision.weights.gguf().is_some()) {
            (false, _) => Unit::Wide,
            (true, false) => Unit::Narrow,
            (true, true) => Unit::Blocks,
        };
        let widened = if wide && bits < 16 {
            let stored = op.weight_bytes(precision, sizes);
            Bytes::new(stored.value() * 16.0 / f64::from(bits)) / device.memory.bandwidth
        } else {
            Seconds::ZERO
        };
        let power = device.tdp.map_or(0.0, |watts| likely.work.flops.value() * 1e-12 / watts.value());
        let (steps, hosted) = match op {
            Op::AllReduce(reduce) => device
                .link(reduce.ranks)
                .map_or((0.0, false), |link| (Estimate::steps(reduce, link.hop).value(), link.hosted)),
            _ => (0.0, false),
        };
        Self {
            kind,
            stored,
            unit,
            rows: rows(op),
            memory: likely.memory.value(),
            compute: likely.compute.value(),
            power: if narrow { power / 2.0 } else { power },
            network: (likely.network.value() - steps).max(0.0),
            steps,
            hosted,
            widened: widened.value(),
        }
    }

    /// Seconds: in all, of memory, of units, of links.
    pub(crate) fn times(&self, terms: &[f64; TERMS]) -> [f64; 4] {
        let value = |term: Term| terms[term as usize];
        let of_stored = match self.stored {
            Stored::Sixteen => 1.0,
            Stored::Eight => value(Term::Eight),
            Stored::Four => value(Term::Four),
        };
        let share = match self.kind {
            Kind::Product => of_stored,
            Kind::Experts => of_stored * value(Term::Experts),
            Kind::Cache => value(Term::Cache),
            _ => 1.0,
        };
        let memory = self.memory / (value(Term::Bandwidth) * share).min(1.0);
        let peak = value(Term::Peak)
            * match self.unit {
                Unit::Wide => 1.0,
                Unit::Narrow => value(Term::Narrow),
                Unit::Blocks => value(Term::Blocks),
            };
        let compute = match self.kind {
            Kind::Product | Kind::Experts if self.rows > 1.0 => {
                let tile = value(Term::Rows) / self.rows;
                both(self.compute / peak.min(1.0), self.power * value(Term::Energy)) * (1.0 + tile * tile).sqrt()
            }
            Kind::Prompt => {
                let attention = value(Term::Attention);
                both(self.compute / (peak * attention).min(1.0), self.power * value(Term::Energy) / attention)
            }
            // One row meets no matrix unit; its floor holds all the same.
            _ => self.compute,
        };
        let widening = if self.rows > MANY { self.widened * value(Term::Widening) } else { 0.0 };
        let network = match self.kind {
            Kind::Exchange => {
                let host = if self.hosted { value(Term::Host) } else { 1.0 };
                self.network / value(Term::Link) + self.steps * value(Term::Exchange) * host
            }
            _ => 0.0,
        };
        // The slower of the two, softened: near the ridge neither hides the other whole.
        let body = (memory.powi(4) + compute.powi(4)).sqrt().sqrt();
        [body.max(network) + widening, memory + widening, compute, network]
    }
}
