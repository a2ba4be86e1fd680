//! Which precision for one matrix product: every one that the device multiplies.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    candidate::NARROWEST_BITS,
    quality,
    rank::{DOUBTFUL, SAME, WORTHWHILE},
    runtime::{SIXTEEN, runtimes},
};
use crate::{
    Dim, Error, Graph, Machine, Math, Plan, Precision, Result,
    format::Shape,
    plan::Assignment,
    precision::{NAMED, PrecisionSpec},
    predict::{Bound, Figures, Prediction, Ratios, Tier, forecast},
    quality::PerplexityChange,
    units::{Bytes, Seconds},
};

/// What is asked of a product.
#[derive(Clone, Copy, Debug)]
pub struct OperatorNeed<'a> {
    /// Where it runs.
    pub machine: &'a Machine,
    /// Which times are compared.
    pub tier: Tier,
    /// What its weights may take.
    pub memory: Option<Bytes>,
    /// Whether precisions compete that may lose much.
    pub any_quality: bool,
}

/// The answer in short: what a caller of the HTTP interface gets.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RecommendationResult {
    /// The precision.
    pub precision: String,
    /// How its weights are made: `none`, `PTQ`, or the unit that takes them as they are.
    pub method: &'static str,
    /// Why, with the numbers.
    pub reason: String,
    /// How many times as fast as 16 bit; one where the device has no 16 bit to compare with.
    pub predicted_speedup: f64,
    /// Whether 16 bit waits for memory.
    pub memory_bound: bool,
    /// How much smaller the weights are than 16 bit, scales counted.
    pub memory_savings_pct: f64,
}

/// A precision among the others. The figures are those that `predict` gives.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RankedPrecision {
    /// What every verb takes.
    pub plan: Plan,
    /// The name of the precision.
    pub precision: String,
    /// How its weights are made.
    pub method: &'static str,
    /// Runtimes that load it on this device.
    pub runtimes: Vec<&'static str>,
    /// The estimate.
    #[serde(flatten)]
    pub figures: Figures,
    /// The estimate beside 16 bit; nothing where the device has no 16 bit.
    #[serde(flatten)]
    pub ratios: Ratios,
    /// The time in the tier that is compared.
    pub time: Seconds,
    /// What takes longest.
    #[serde(skip)]
    pub bound: Bound,
    /// Bytes of the weights.
    pub weights: Bytes,
    /// How much smaller they are than 16 bit.
    pub memory_savings_pct: f64,
    /// Why it was not chosen; none for the choice.
    pub lost: Option<String>,
    #[serde(skip)]
    error: f64,
    #[serde(skip)]
    bits: u32,
}

/// The advice for a product.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OperatorAdvice {
    /// The plan to take, as text.
    pub plan: Plan,
    /// Which times were compared.
    pub tier: Tier,
    /// The answer in short.
    pub recommendation: RecommendationResult,
    /// All precisions the device multiplies, the best first.
    pub ranked: Vec<RankedPrecision>,
    /// What a user should know.
    pub warnings: Vec<String>,
}

impl RankedPrecision {
    /// The largest rise of a model's perplexity that has to be reckoned with; none where it is unknown.
    pub fn loss(&self) -> Option<f64> {
        PerplexityChange::of(self.error).map(|change| change.high)
    }

    fn doubtful(&self, need: &OperatorNeed<'_>) -> bool {
        let much = self.loss().is_none_or(|loss| loss > DOUBTFUL) || self.bits < NARROWEST_BITS;
        !need.any_quality && much
    }
}

/// A precision on the machine.
struct Row {
    plan: Plan,
    key: &'static str,
    precision: Precision,
    prediction: Prediction,
    figures: Figures,
    weights: Bytes,
}

/// Every precision that the device multiplies, 16 bit first where it has it.
fn rows((m, n, k): (u64, u64, u64), need: &OperatorNeed<'_>) -> Result<Vec<Row>> {
    let (machine, device) = (need.machine, &need.machine.device);
    let graph = Graph::gemm(m, n, k)?;
    let sixteen = device.sixteen_bit().to_string();
    let narrow = NAMED.iter().map(|named| named.name);
    let mut rows: Vec<Row> = Vec::new();
    for key in std::iter::once(SIXTEEN).chain(narrow) {
        let spec: PrecisionSpec = if key == SIXTEEN { sixteen.parse()? } else { key.parse()? };
        let Ok(precision) = spec.on(device) else { continue };
        if key != SIXTEEN && precision.weights.nominal_bits() >= 16 {
            continue;
        }
        let whole = forecast(&graph, &Assignment::uniform(precision), machine)?;
        let weights = precision.weights.bytes(Shape::matrix(Dim::new("n", n)?, Dim::new("k", k)?), machine.sizes);
        let figures = Figures::of_forecast(&whole, need.tier, machine);
        rows.push(Row { plan: Plan::of(spec), key, precision, prediction: whole.total, figures, weights });
    }
    if rows.is_empty() {
        let units: Vec<&str> = device.peaks.iter().map(|(math, _)| math.key()).collect();
        let units = if units.is_empty() { "no units".to_owned() } else { units.join(", ") };
        return Err(Error::Shape(format!("{} has {units}, which multiply no precision of a model", device.name)));
    }
    Ok(rows)
}

/// The fastest precision of at least 4 bits for `x[m,k] * W[n,k]^T`; with a memory limit, among those whose weights fit.
pub fn recommend_operator(shape: (u64, u64, u64), need: &OperatorNeed<'_>) -> Result<OperatorAdvice> {
    if need.memory.is_some_and(|memory| memory <= Bytes::ZERO) {
        return Err(Error::Shape("the memory limit must be more than nothing".to_owned()));
    }
    let rows = rows(shape, need)?;
    let (device, tier) = (&need.machine.device, need.tier);
    let wide = rows.first().filter(|row| row.key == SIXTEEN);
    let (baseline, full) = (wide.map(|wide| wide.prediction), Bytes::new(2.0 * shape.1 as f64 * shape.2 as f64));
    let base = baseline.unwrap_or(rows[0].prediction);
    let mut ranked: Vec<RankedPrecision> = rows
        .into_iter()
        .map(|row| RankedPrecision {
            precision: row.plan.base().to_owned(),
            method: method(&row.precision),
            runtimes: runtimes()
                .iter()
                .filter(|runtime| runtime.loads(row.key, device))
                .map(|runtime| runtime.name.as_str())
                .collect(),
            figures: row.figures,
            ratios: Ratios::of(&row.prediction, baseline.as_ref(), tier),
            time: row.prediction.time(tier),
            bound: row.prediction.bound(tier),
            weights: row.weights,
            memory_savings_pct: 100.0 * (1.0 - row.weights / full),
            error: quality::error(&row.precision),
            bits: row.precision.weights.nominal_bits(),
            lost: need
                .memory
                .filter(|limit| row.weights > *limit)
                .map(|limit| format!("its weights take {} of {limit}", row.weights)),
            plan: row.plan,
        })
        .collect();
    rank(&mut ranked, need)?;
    let recommendation = answer(&ranked[0], &base, need);
    let warnings = warnings(&ranked, &base, need);
    Ok(OperatorAdvice { plan: ranked[0].plan.clone(), tier, recommendation, ranked, warnings })
}

/// The best first, and why the others are not.
fn rank(ranked: &mut [RankedPrecision], need: &OperatorNeed<'_>) -> Result<()> {
    let class = |row: &RankedPrecision| (row.lost.is_some(), row.doubtful(need));
    // What a product loses says little of what a model does, so time decides alone.
    let time = |row: &RankedPrecision| row.time.value();
    ranked.sort_by(|a, b| class(a).cmp(&class(b)).then(time(a).total_cmp(&time(b))).then(a.error.total_cmp(&b.error)));
    // Of those that take the same time, the one that loses least; 16 bit where nothing is gained.
    let (least, leading) = (time(&ranked[0]), class(&ranked[0]));
    let same = |row: &&RankedPrecision| class(row) == leading && time(row) <= least * SAME;
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
    let certain = !best.doubtful(need);
    for row in ranked.iter_mut().skip(1).filter(|row| row.lost.is_none()) {
        let slower = 100.0 * (row.time / best.time - 1.0);
        row.lost = Some(match slower {
            _ if certain && row.doubtful(need) => match row.loss() {
                None => "its cost in quality is unknown".to_owned(),
                Some(loss) => format!("may raise the perplexity by {:.0} %", 100.0 * loss),
            },
            0.05.. => format!("{slower:.1} % slower"),
            ..-0.05 => format!("{:.1} % faster, but loses more quality", -slower),
            _ if row.error > best.error => "as fast, and loses more quality".to_owned(),
            _ => "as fast".to_owned(),
        });
    }
    Ok(())
}

/// How weights of a precision are made. Which algorithm - round to nearest, AWQ, GPTQ - is another choice.
fn method(precision: &Precision) -> &'static str {
    let (weights, activations) = (precision.weights.nominal_bits(), precision.activations.nominal_bits());
    match (weights, activations) {
        (16.., _) => "none",
        (8, 8) if precision.weights.block().is_some() => "native_mxfp8",
        (8, 8) if precision.math == Math::Fp8 => "native_fp8",
        (4, 4) => "native_fp4",
        _ => "PTQ",
    }
}

fn answer(best: &RankedPrecision, base: &Prediction, need: &OperatorNeed<'_>) -> RecommendationResult {
    let memory_bound = base.ideal.bound() == Bound::Memory;
    let (ai, critical) = (base.ideal.intensity().value(), base.ideal.critical.value());
    let bound = if memory_bound { "memory-bound" } else { "compute-bound" };
    let limit = need.memory.map_or_else(String::new, |memory| format!(", within {memory}"));
    let speedup = best.ratios.speedup.unwrap_or(1.0);
    let reason = if best.method == "none" {
        format!("{bound} (AI {ai:.1}, critical {critical:.0}): no narrower precision is worthwhile{limit}")
    } else {
        format!(
            "{bound} (AI {ai:.1}, critical {critical:.0}): {} is {speedup:.1}x as fast and its weights {:.0} % smaller{limit}",
            best.precision, best.memory_savings_pct
        )
    };
    RecommendationResult {
        precision: best.precision.clone(),
        method: best.method,
        reason,
        predicted_speedup: speedup,
        memory_bound,
        memory_savings_pct: best.memory_savings_pct,
    }
}

fn warnings(ranked: &[RankedPrecision], base: &Prediction, need: &OperatorNeed<'_>) -> Vec<String> {
    let slow = |row: &RankedPrecision| row.ratios.speedup.is_some_and(|speedup| speedup < WORTHWHILE);
    let useless = ranked.iter().any(|row| row.method == "PTQ" && slow(row));
    let mut warnings = Vec::new();
    if useless && base.ideal.bound() == Bound::Compute {
        warnings
            .push("this product waits for multipliers: weight-only formats save memory here and no time".to_owned());
    }
    let (best, device) = (&ranked[0], &need.machine.device);
    let faster = |row: &&RankedPrecision| {
        row.bits >= NARROWEST_BITS && row.doubtful(need) && row.time * SAME < best.time && !best.doubtful(need)
    };
    let rival = ranked.iter().filter(faster).min_by(|a, b| a.time.value().total_cmp(&b.time.value()));
    if let Some(rival) = rival {
        let doubt = rival.loss().map_or_else(
            || "what it costs in quality is unknown".to_owned(),
            |loss| format!("it may raise the perplexity by {:.0} %", 100.0 * loss),
        );
        warnings.push(format!(
            "{} would be {:.1}x as fast as {}, but {doubt}; `⟨any_quality⟩` lets it compete",
            rival.plan,
            best.time / rival.time,
            best.plan
        ));
    }
    if best.runtimes.is_empty() {
        warnings.push(format!("no runtime that we know loads {} on {}", best.plan, device.name));
    }
    warnings
}
