//! What a plan promises for a demand.

use super::{Candidate, Demand, Need, Outcome, Quality, RESERVE, quality::Shares, rank::refusal};
use crate::{
    Dim, Graph, Result,
    calibration::Calibration,
    energy::{Energy, energy},
    format::Sizes,
    model::{Lowering, Workload},
    predict::{Bound, predict},
    units::{Bytes, Intensity, Seconds},
};

/// The passes of a demand, lowered once for all plans.
pub(super) struct Passes {
    batch: u64,
    graphs: Vec<Graph>,
    /// How often each runs.
    counts: Vec<f64>,
    /// The state in which most memory is needed.
    fullest: Workload,
    /// Tokens that come out of the demand.
    tokens: f64,
    /// Whether the first pass reads a prompt.
    prompted: bool,
}

/// One pass of a plan.
struct Pass {
    time: Seconds,
    bound: Bound,
    intensity: Intensity,
    critical: Intensity,
    energy: Option<Energy>,
}

impl Passes {
    pub(super) fn new(need: &Need<'_>, batch: u64) -> Result<Self> {
        let lower = |workload| need.model.graph(workload, Lowering::default());
        Ok(match need.demand {
            Demand::Decode { context } => {
                let workload = Workload::decode(batch, context)?;
                let (graphs, counts) = (vec![lower(workload)?], vec![1.0]);
                Self { batch, graphs, counts, fullest: workload, tokens: batch as f64, prompted: false }
            }
            Demand::Prefill { prompt } => {
                let workload = Workload::prefill(batch, prompt)?;
                let tokens = batch as f64 * prompt as f64;
                let (graphs, counts) = (vec![lower(workload)?], vec![1.0]);
                Self { batch, graphs, counts, fullest: workload, tokens, prompted: true }
            }
            Demand::Request { prompt, generate } => {
                let prefill = Workload::prefill(batch, prompt)?;
                let step = need.demand.typical(batch)?;
                let last = Workload::chunk(batch, prompt, prompt.saturating_add(generate))?;
                let counts = vec![1.0, generate.saturating_sub(1) as f64];
                let tokens = batch as f64 * generate as f64;
                let graphs = vec![lower(prefill)?, lower(step)?];
                Self { batch, graphs, counts, fullest: last, tokens, prompted: true }
            }
        })
    }

    /// Whether the calibration knows every kernel of a plan.
    pub(super) fn covered(&self, need: &Need<'_>, candidate: &Candidate) -> bool {
        let covers =
            |calibration: &Calibration, graph| calibration.forecast(graph, &candidate.plan, Sizes::Exact).is_ok();
        need.calibration.is_some_and(|calibration| self.graphs.iter().all(|graph| covers(calibration, graph)))
    }

    /// How many weights lie where.
    pub(super) fn shares(&self) -> Shares {
        Shares::of(&self.graphs[0])
    }

    fn pass(need: &Need<'_>, graph: &Graph, candidate: &Candidate, expected: bool) -> Result<Pass> {
        let ideal = predict(graph, &candidate.plan, Sizes::Exact, need.device)?.total;
        let known = need.calibration.filter(|_| expected);
        let total =
            known.and_then(|known| Calibration::total(&known.forecast(graph, &candidate.plan, Sizes::Exact).ok()?));
        let (time, bound) = total.map_or((ideal.time(), ideal.bound()), |total| (total.time, total.bound()));
        let (intensity, critical) = (ideal.intensity(), ideal.critical);
        let energy = energy(graph, &candidate.plan, Sizes::Exact, need.device, time);
        Ok(Pass { time, bound, intensity, critical, energy })
    }

    pub(super) fn outcome(
        &self,
        need: &Need<'_>,
        candidate: &Candidate,
        expected: bool,
        quality: Quality,
        capacity: Option<Bytes>,
    ) -> Result<Outcome> {
        let mut passes = Vec::new();
        for graph in &self.graphs {
            passes.push(Self::pass(need, graph, candidate, expected)?);
        }
        let weighted = |at: usize| passes[at].time * self.counts[at];
        let time = (0..passes.len()).map(weighted).fold(Seconds::ZERO, |sum, time| sum + time);
        let longest =
            (0..passes.len()).max_by(|a, b| weighted(*a).value().total_cmp(&weighted(*b).value())).unwrap_or(0);
        let energies = passes.iter().zip(&self.counts).map(|(pass, count)| Some(pass.energy?.times(*count)));
        let energy = energies.reduce(|sum, next| sum?.plus(next?)).flatten();
        let first = &self.graphs[0];
        let footprint = need.model.footprint_of(first, self.fullest, Dim::ONE, &candidate.plan, Sizes::Exact);
        let reserve = capacity.map_or(Bytes::ZERO, |capacity| capacity * RESERVE);
        let tokens_per_s = self.tokens / time.value();
        let mut outcome = Outcome {
            candidate: candidate.clone(),
            batch: self.batch,
            time,
            first_token: self.prompted.then_some(passes[0].time),
            tokens_per_s,
            speedup: 1.0,
            bound: passes[longest].bound,
            intensity: passes[longest].intensity,
            critical: passes[longest].critical,
            energy_per_token: energy.map(|energy| energy.times(1.0 / self.tokens)),
            dollars_per_million_tokens: need.dollars_per_hour.map(|price| price / 3600.0 / tokens_per_s * 1e6),
            footprint,
            memory: footprint.total() + reserve,
            quality,
            refused: None,
            lost: None,
            pareto: false,
        };
        outcome.refused = refusal(need, &outcome, capacity);
        Ok(outcome)
    }
}
