//! Which precision for one matrix product.

use serde::Serialize;

use super::{
    candidate, quality,
    rank::{DOUBTFUL, SAME, WORTHWHILE},
};
use crate::{
    Device, Error, Graph, Plan, Result,
    calibration::Calibration,
    format::Sizes,
    precision::PrecisionSpec,
    predict::{Bound, Estimate, predict},
    quality::PerplexityChange,
    units::{Bytes, Seconds},
};

/// The answer in short: what a caller of the HTTP interface gets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecommendationResult {
    /// The precision.
    pub precision: String,
    /// How its weights are made: `none`, `PTQ`, or the unit that takes them as they are.
    pub method: &'static str,
    /// Why, with the numbers.
    pub reason: String,
    /// How many times as fast as 16 bit.
    pub predicted_speedup: f64,
    /// Whether 16 bit waits for memory.
    pub memory_bound: bool,
    /// How much smaller the weights are than 16 bit, scales counted.
    pub memory_savings_pct: f64,
}

/// A precision among the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankedPrecision {
    /// Its name.
    pub precision: String,
    /// How its weights are made.
    pub method: &'static str,
    /// The time.
    pub time: Seconds,
    /// How many times as fast as 16 bit.
    pub speedup: f64,
    /// What takes longest.
    pub bound: Bound,
    /// Bytes of the weights.
    pub weights: Bytes,
    /// How much smaller they are than 16 bit.
    pub memory_savings_pct: f64,
    /// Why it was not chosen; none for the choice.
    pub lost: Option<String>,
    #[serde(skip)]
    error: f64,
}

/// The advice for a product.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorAdvice {
    /// "ideal" or "expected".
    pub tier: &'static str,
    /// The answer in short.
    pub recommendation: RecommendationResult,
    /// All precisions the device has, the best first.
    pub ranked: Vec<RankedPrecision>,
    /// What a user should know.
    pub warnings: Vec<String>,
}

impl RankedPrecision {
    /// The largest rise of a model's perplexity that has to be reckoned with; none where it is unknown.
    fn loss(&self) -> Option<f64> {
        PerplexityChange::of(self.error).map(|change| change.high)
    }
}

/// The fastest precision of at least 4 bits for `x[m,k] * W[n,k]^T`; with a memory limit, among those whose weights fit.
pub fn recommend_operator(
    (m, n, k): (u64, u64, u64),
    device: &Device,
    calibration: Option<&Calibration>,
    memory: Option<Bytes>,
) -> Result<OperatorAdvice> {
    if memory.is_some_and(|memory| memory <= Bytes::ZERO) {
        return Err(Error::Shape("the memory limit must be more than nothing".to_owned()));
    }
    let graph = Graph::gemm(m, n, k)?;
    let plans: Vec<(PrecisionSpec, Plan)> = candidate::offers(device)?
        .into_iter()
        // Group sizes are a choice of a model's plan.
        .filter(|offer| !offer.key.contains('/'))
        .map(|offer| {
            let plan = Plan::uniform(offer.spec.on(device)?);
            Ok((offer.spec, plan))
        })
        .collect::<Result<_>>()?;
    // Times are compared with times of the same kind: where the calibration knows 16 bit, plans it does not know are out.
    let covers = |known: &Calibration, plan: &Plan| known.forecast(&graph, plan, Sizes::Exact).is_ok();
    let expected = calibration.filter(|known| plans.first().is_some_and(|(_, plan)| covers(known, plan)));
    let mut rows = Vec::new();
    for (spec, plan) in plans.iter().filter(|(_, plan)| expected.is_none_or(|known| covers(known, plan))) {
        let ideal = predict(&graph, plan, Sizes::Exact, device)?.total;
        let total = expected.and_then(|known| Calibration::total(&known.forecast(&graph, plan, Sizes::Exact).ok()?));
        let (time, bound) = total.map_or((ideal.time(), ideal.bound()), |total| (total.time, total.bound()));
        let shape = crate::format::Shape::matrix(crate::Dim::new("n", n)?, crate::Dim::new("k", k)?);
        let weights = plan.layers.weights.bytes(shape, Sizes::Exact);
        rows.push((spec, plan, ideal, time, bound, weights));
    }
    let Some((_, _, base, base_time, ..)) = rows.first().copied() else {
        return Err(Error::Shape(format!("{} has no 16-bit units to compare with", device.name)));
    };
    let full = rows[0].5;
    let ranked = rows.iter().map(|(spec, plan, _, time, bound, weights)| RankedPrecision {
        precision: spec.name().to_owned(),
        method: method(plan),
        time: *time,
        speedup: base_time / *time,
        bound: *bound,
        weights: *weights,
        memory_savings_pct: 100.0 * (1.0 - *weights / full),
        error: quality::error(&plan.layers),
        lost: memory.filter(|limit| weights > limit).map(|limit| format!("its weights take {weights} of {limit}")),
    });
    let mut ranked: Vec<RankedPrecision> = ranked.collect();
    ranked.sort_by(|a, b| {
        let class = |row: &RankedPrecision| (row.lost.is_some(), row.loss().is_none_or(|loss| loss > DOUBTFUL));
        class(a).cmp(&class(b)).then(a.time.value().total_cmp(&b.time.value())).then(a.error.total_cmp(&b.error))
    });
    // Of those that are the same, the one that loses least; 16 bit where nothing is gained.
    let (fastest, doubtful) = (ranked[0].time, ranked[0].loss().is_none_or(|loss| loss > DOUBTFUL));
    let same = |row: &&RankedPrecision| {
        row.lost.is_none() && row.time <= fastest * SAME && row.loss().is_none_or(|loss| loss > DOUBTFUL) == doubtful
    };
    let equals = ranked.iter().take_while(same).count();
    if let Some(best) = (0..equals).min_by(|a, b| ranked[*a].error.total_cmp(&ranked[*b].error)) {
        ranked[..=best].rotate_right(1);
    }
    let best = ranked[0].clone();
    let smallest = ranked.iter().min_by(|a, b| a.weights.value().total_cmp(&b.weights.value()));
    if let (Some(_), Some(smallest)) = (&best.lost, smallest) {
        let lost = smallest.lost.as_deref().unwrap_or_default();
        return Err(Error::Shape(format!("no precision fits: {} is the smallest, and {lost}", smallest.precision)));
    }
    for row in ranked.iter_mut().skip(1).filter(|row| row.lost.is_none()) {
        let slower = 100.0 * (row.time / best.time - 1.0);
        row.lost = Some(match slower {
            _ if row.loss().is_none() && best.loss().is_some() => "its cost in quality is unknown".to_owned(),
            _ if row.loss() > Some(DOUBTFUL) && best.loss() <= Some(DOUBTFUL) => {
                format!("may raise the perplexity by {:.0} %", 100.0 * row.loss().unwrap_or_default())
            }
            0.05.. => format!("{slower:.1} % slower"),
            ..-0.05 => format!("{:.1} % faster, but loses more quality", -slower),
            _ if row.error > best.error => "as fast, and loses more quality".to_owned(),
            _ => "as fast".to_owned(),
        });
    }
    let recommendation = answer(&best, &base, memory);
    let warnings = warnings(&ranked, &base);
    let tier = if expected.is_some() { "expected" } else { "ideal" };
    Ok(OperatorAdvice { tier, recommendation, ranked, warnings })
}

/// How weights of a plan are made. Which algorithm - round to nearest, AWQ, GPTQ - is another choice.
fn method(plan: &Plan) -> &'static str {
    let precision = &plan.layers;
    let (weights, activations) = (precision.weights.nominal_bits(), precision.activations.nominal_bits());
    match (weights, activations) {
        (16.., _) => "none",
        (8, 8) if precision.weights.block().is_some() => "native_mxfp8",
        (8, 8) if precision.math == crate::Math::Fp8 => "native_fp8",
        (4, 4) => "native_fp4",
        _ => "PTQ",
    }
}

fn answer(best: &RankedPrecision, base: &Estimate, memory: Option<Bytes>) -> RecommendationResult {
    let memory_bound = base.bound() == Bound::Memory;
    let (ai, critical) = (base.intensity().value(), base.critical.value());
    let bound = if memory_bound { "memory-bound" } else { "compute-bound" };
    let limit = memory.map_or_else(String::new, |memory| format!(", within {memory}"));
    let reason = if best.method == "none" {
        format!("{bound} (AI {ai:.1}, critical {critical:.0}): no narrower precision is worthwhile{limit}")
    } else {
        format!(
            "{bound} (AI {ai:.1}, critical {critical:.0}): {} is {:.1}x as fast and its weights {:.0} % smaller{limit}",
            best.precision, best.speedup, best.memory_savings_pct
        )
    };
    RecommendationResult {
        precision: best.precision.clone(),
        method: best.method,
        reason,
        predicted_speedup: best.speedup,
        memory_bound,
        memory_savings_pct: best.memory_savings_pct,
    }
}

fn warnings(ranked: &[RankedPrecision], base: &Estimate) -> Vec<String> {
    let useless = ranked.iter().any(|row| row.method == "PTQ" && row.speedup < WORTHWHILE);
    let compute = base.bound() == Bound::Compute;
    (useless && compute)
        .then(|| "this product waits for multipliers: weight-only formats save memory here and no time".to_owned())
        .into_iter()
        .collect()
}
