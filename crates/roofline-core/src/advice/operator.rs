//! What would make one operator faster.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    Dim, Format, Graph, Machine, Op, Precision, Result,
    machine::Basis,
    op::Linear,
    plan::Assignment,
    precision::{PrecisionSpec, advisable},
    predict::{Bound, Estimate, Forecast, Prediction, Tier, forecast},
};

use super::WORTHWHILE;

/// A sentence about one estimate, and the numbers in it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "EstimateAdvice")]
pub struct Advice {
    /// What limits it and what would help.
    pub text: String,
    /// The fastest named precision of at least 4 bits on this device, if another one is faster.
    pub alternative: Option<Alternative>,
    /// For a single memory-bound product: the rows from which it is compute-bound.
    pub ridge_rows: Option<u64>,
}

/// Another precision for the same work.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "AlternativePrecision")]
pub struct Alternative {
    /// The name of the precision.
    pub precision: String,
    /// How many times as fast.
    pub speedup: f64,
}

/// Advice on `forecast`, which must be that of `graph` at `precision`. What limits it is told by its floor, what would help
/// by the times of `tier`.
pub fn advise(
    graph: &Graph,
    forecast: &Forecast,
    precision: &Precision,
    machine: &Machine,
    tier: Tier,
) -> Result<Advice> {
    let total = &forecast.total.ideal;
    let asked = Asked { graph, base: &forecast.total, basis: forecast.basis, precision, machine, tier };
    let distance = total.ridge_distance();
    let attention = graph.nodes.iter().any(|node| matches!(node.op, Op::Attention(_) | Op::Scores(_)));
    let mut text = match total.bound() {
        _ if total.balanced() => "at the ridge: memory and compute take the same time within 2 %".to_owned(),
        _ if total.is_mixed() => {
            format!(
                "{:.0} % of the time in kernels that wait for memory, the rest computes",
                100.0 * total.memory_share()
            )
        }
        Bound::Memory => format!("memory-bound, {}x below the ridge: fewer bytes are what helps", round(distance)),
        Bound::Network => "the exchange between devices takes longest".to_owned(),
        Bound::Launch => "starting kernels takes longest: fewer, larger ones are what helps".to_owned(),
        Bound::Compute => {
            format!("compute-bound, {}x above the ridge: only a faster unit helps", round(1.0 / distance))
        }
    };
    if attention {
        text += &asked.attention()?;
        return Ok(Advice { text, alternative: None, ridge_rows: None });
    }
    let alternative = asked.fastest();
    match &alternative {
        Some(Alternative { precision, speedup }) => {
            text += &format!("; {precision} {} {speedup:.2}x as fast", asked.would());
        }
        None => text += "; no named precision of 4 bits or more is faster here",
    }
    let ridge_rows = match graph.nodes[..] {
        [node] if total.bound() == Bound::Memory && !total.balanced() => match node.op {
            Op::Linear(linear) => ridge_rows(linear, precision, machine)?,
            _ => None,
        },
        _ => None,
    };
    if let Some(rows) = ridge_rows {
        text += &format!("; compute-bound from {rows} rows on");
    }
    Ok(Advice { text, alternative, ridge_rows })
}

/// What is asked about.
struct Asked<'a> {
    graph: &'a Graph,
    base: &'a Prediction,
    basis: Basis,
    precision: &'a Precision,
    machine: &'a Machine,
    tier: Tier,
}

impl Asked<'_> {
    /// The word that goes with a gain: the floor's is the best there can be.
    fn would(&self) -> &'static str {
        match self.tier {
            Tier::Ideal => "would ideally be",
            Tier::Expected => "would be",
        }
    }

    fn gain(&self, graph: &Graph, precision: Precision) -> Result<f64> {
        let other = forecast(graph, &Assignment::uniform(precision), self.machine)?;
        Ok(other.total.speedup(self.base, self.tier))
    }

    /// What fusing and a narrower cache would bring.
    fn attention(&self) -> Result<String> {
        let mut text = String::new();
        let unfused = self.graph.nodes.iter().find_map(|node| match node.op {
            Op::Scores(attention) => Some(attention),
            _ => None,
        });
        if let Some(attention) = unfused {
            let gain = self.gain(&Graph::attention(attention, true), *self.precision)?;
            text += &format!("; one fused kernel {} {}x as fast", self.would(), round(gain));
        }
        let narrow = Precision { kv: Format::FP8, ..*self.precision };
        if narrow.kv.nominal_bits() < self.precision.kv.nominal_bits() {
            let gain = self.gain(self.graph, narrow)?;
            if gain >= WORTHWHILE {
                text += &format!("; an FP8 cache {} {gain:.2}x as fast", self.would());
            }
        }
        Ok(text)
    }

    /// The fastest of the named precisions that this device multiplies, with the same outputs and cache. One that changes
    /// more - activations after weights, narrower after wider - must be faster by a margin to be preferred.
    fn fastest(&self) -> Option<Alternative> {
        let mut best: Option<Alternative> = None;
        for named in advisable() {
            let spec: PrecisionSpec = named.precision();
            let Ok(precision) = spec.on(&self.machine.device) else { continue };
            let Precision { output, kv, query, .. } = *self.precision;
            let precision = Precision { kv, output, query, ..precision };
            let Ok(other) = forecast(self.graph, &Assignment::uniform(precision), self.machine) else { continue };
            // What is less sure is no advice: what was not measured looks as good as what it is told by.
            if self.tier == Tier::Expected && other.basis > self.basis {
                continue;
            }
            let speedup = other.total.speedup(self.base, self.tier);
            if speedup >= WORTHWHILE * best.as_ref().map_or(1.0, |best| best.speedup) {
                best = Some(Alternative { precision: named.name.to_owned(), speedup });
            }
        }
        best
    }
}

/// The smallest `m` at which the product is compute-bound, by bisection: intensity only grows with `m`.
fn ridge_rows(linear: Linear, precision: &Precision, machine: &Machine) -> Result<Option<u64>> {
    let compute_bound = |m: u64| -> Result<bool> {
        let linear = Linear { m: Dim::new("m", m)?, ..linear };
        let Machine { device, sizes, .. } = machine;
        Ok(Estimate::of(&Op::Linear(linear), precision, *sizes, device)?.bound() == Bound::Compute)
    };
    let (mut low, mut high) = (linear.m.get(), Dim::MAX);
    if !compute_bound(high)? {
        return Ok(None);
    }
    while high - low > 1 {
        let middle = u64::midpoint(low, high);
        if compute_bound(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(high))
}

/// Two significant digits below ten, whole numbers above.
fn round(factor: f64) -> String {
    if factor < 10.0 { format!("{factor:.1}") } else { format!("{factor:.0}") }
}
