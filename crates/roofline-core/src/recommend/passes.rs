//! What a plan promises for a demand.

use super::{Candidate, Demand, Need, Occupancy, Offload, Outcome};
use crate::{
    Dim, Graph, Result,
    device::Room,
    energy::{Energy, energy},
    format::Shape,
    machine::Basis,
    model::{Footprint, Lowering, Workload},
    plan::{Assignment, Kernel},
    predict::{Bound, Figures, Prediction, Ratios, Tier, forecast},
    units::{ByteRate, Bytes, Seconds},
};

/// The passes of a demand, lowered once for all plans.
pub(super) struct Passes {
    pub(super) batch: u64,
    pub(super) ranks: Dim,
    graphs: Vec<Graph>,
    /// How often each runs.
    counts: Vec<f64>,
    /// One prompt alone, where one is read.
    first: Option<Graph>,
    /// The state in which most memory is needed.
    fullest: Workload,
    /// Tokens that come out of the demand.
    tokens: f64,
    /// What 16 bit takes.
    wide: Option<Wide>,
}

/// 16 bit, which plans are compared with.
#[derive(Clone, Copy)]
struct Wide {
    typical: Prediction,
    time: Seconds,
}

/// What a plan takes, in numbers.
#[derive(Clone, Copy)]
pub(super) struct Promise {
    pub(super) batch: u64,
    pub(super) tp: u64,
    typical: Prediction,
    basis: Basis,
    bound: Bound,
    pub(super) time: Seconds,
    pub(super) first_token: Option<Seconds>,
    pub(super) tokens_per_s: f64,
    energy: Option<Energy>,
    pub(super) memory: Occupancy,
    pub(super) offload: Option<Offload>,
}

impl Passes {
    pub(super) fn new(need: &Need<'_>, batch: u64, ranks: u64, wide: Option<&Candidate>) -> Result<Self> {
        let ranks = Dim::new("devices", ranks)?;
        let lower = |workload| need.model.graph(workload, Lowering { ranks, ..Lowering::default() });
        let one = |prompt| if batch == 1 { Ok(None) } else { lower(Workload::prefill(1, prompt)?).map(Some) };
        let mut passes = match need.demand {
            Demand::Decode { context } => {
                let workload = Workload::decode(batch, context)?;
                let (graphs, counts) = (vec![lower(workload)?], vec![1.0]);
                let tokens = batch as f64;
                Self { batch, ranks, graphs, counts, first: None, fullest: workload, tokens, wide: None }
            }
            Demand::Prefill { prompt } => {
                let workload = Workload::prefill(batch, prompt)?;
                let (graphs, counts) = (vec![lower(workload)?], vec![1.0]);
                let (first, tokens) = (one(prompt)?, batch as f64 * prompt as f64);
                Self { batch, ranks, graphs, counts, first, fullest: workload, tokens, wide: None }
            }
            Demand::Request { prompt, generate } => {
                // The typical pass comes last.
                let graphs = vec![lower(Workload::prefill(batch, prompt)?)?, lower(need.demand.typical(batch)?)?];
                let fullest = Workload::chunk(batch, prompt, prompt.saturating_add(generate))?;
                let counts = vec![1.0, generate.saturating_sub(1) as f64];
                let (first, tokens) = (one(prompt)?, batch as f64 * generate as f64);
                Self { batch, ranks, graphs, counts, first, fullest, tokens, wide: None }
            }
        };
        if let Some(wide) = wide {
            let promise = passes.promise(need, wide, None, None)?;
            passes.wide = Some(Wide { typical: promise.typical, time: promise.time });
        }
        Ok(passes)
    }

    /// What a plan takes of each device's memory.
    pub(super) fn footprint(&self, need: &Need<'_>, candidate: &Candidate) -> Footprint {
        let graph = &self.graphs[0];
        need.model.footprint_of(graph, self.fullest, self.ranks, &candidate.assignment, need.machine.sizes)
    }

    /// What a plan takes; with some layers in the host's memory, where they are.
    pub(super) fn promise(
        &self,
        need: &Need<'_>,
        candidate: &Candidate,
        room: Option<Room>,
        offload: Option<(Offload, ByteRate)>,
    ) -> Result<Promise> {
        let machine = need.machine;
        let plan = &*candidate.assignment;
        let mut passes: Vec<(Prediction, Seconds, Seconds)> = Vec::with_capacity(self.graphs.len());
        let (mut basis, mut energies) = (Basis::Calibrated, Some(None));
        let crossing = |graph: &Graph| {
            offload.map_or(Seconds::ZERO, |(offload, rate)| Self::read(graph, plan, need) * offload.share() / rate)
        };
        for (graph, count) in self.graphs.iter().zip(&self.counts) {
            let whole = forecast(graph, plan, machine)?;
            let link = crossing(graph);
            let time = with_link(whole.total.time(need.tier), link, need.tier);
            // That of the typical pass, which comes last.
            basis = whole.basis;
            let own = energy(graph, plan, machine.sizes, &machine.device, time);
            energies = energies.and_then(|sum: Option<Energy>| {
                let own = own?.times(*count * self.ranks.float());
                sum.map_or(Some(Some(own)), |sum| sum.plus(own).map(Some))
            });
            passes.push((whole.total, time, link));
        }
        let weighted = |at: usize| passes[at].1 * self.counts[at];
        let time = (0..passes.len()).map(weighted).fold(Seconds::ZERO, |sum, time| sum + time);
        let longest =
            (0..passes.len()).max_by(|a, b| weighted(*a).value().total_cmp(&weighted(*b).value())).unwrap_or(0);
        let first_token = match (&self.first, need.demand) {
            (_, Demand::Decode { .. }) => None,
            (None, _) => Some(passes[0].1),
            (Some(graph), _) => {
                let alone = forecast(graph, plan, machine)?.total.time(need.tier);
                Some(with_link(alone, crossing(graph), need.tier))
            }
        };
        let mut footprint = self.footprint(need, candidate);
        if let Some((offload, _)) = offload {
            footprint.weights = footprint.weights - offload.host_memory;
        }
        let typical = passes[passes.len() - 1];
        let offload = offload.map(|(offload, _)| Offload { link_time: typical.2, ..offload });
        let network = offload.is_some_and(|offload| offload.link_time > typical.0.time(need.tier));
        Ok(Promise {
            batch: self.batch,
            tp: self.ranks.get(),
            typical: typical.0,
            basis,
            bound: if network { Bound::Network } else { passes[longest].0.bound(need.tier) },
            time,
            first_token,
            tokens_per_s: self.tokens / time.value(),
            energy: energies.flatten().map(|energy| energy.times(1.0 / self.tokens)),
            memory: Occupancy::new(&footprint, room),
            offload,
        })
    }

    /// The layers that must stay in the host's memory so that the rest fits `room`; none where not even that helps.
    pub(super) fn offload(&self, need: &Need<'_>, candidate: &Candidate, room: Room) -> Option<Offload> {
        let (mut stored, sizes) = (Bytes::ZERO, need.machine.sizes);
        candidate.assignment.kernels(&self.graphs[0], |Kernel { node, precision }| {
            if let Some(weights) = node.op.weights().filter(|_| node.groups != 0) {
                let all = weights.count as f64 * node.count as f64;
                stored += precision.weights.bytes(Shape::matrix(weights.n, weights.k), sizes) * all;
            }
        });
        let of: u64 = need.model.layers.iter().map(|layer| layer.count).sum();
        let missing = self.footprint(need, candidate).total() - room.for_models();
        let each = stored / of as f64;
        let layers = (missing / each).ceil() as u64;
        let fits = (1..=of).contains(&layers);
        fits.then(|| Offload { layers, of, host_memory: each * layers as f64, link_time: Seconds::ZERO })
    }

    /// Bytes of the layers' weights that a pass reads.
    fn read(graph: &Graph, plan: &Assignment, need: &Need<'_>) -> Bytes {
        let mut read = Bytes::ZERO;
        plan.kernels(graph, |Kernel { node, precision }| {
            if let Some(weights) = node.op.weights().filter(|_| node.groups != 0) {
                let matrix = precision.weights.bytes(Shape::matrix(weights.n, weights.k), need.machine.sizes);
                read += matrix * (weights.read * node.count as f64);
            }
        });
        read
    }

    /// A promise in full.
    pub(super) fn outcome(&self, need: &Need<'_>, candidate: &Candidate, promise: &Promise) -> Outcome {
        let Promise { batch, tp, typical, basis, bound, time, first_token, tokens_per_s, energy, memory, offload } =
            *promise;
        let (machine, wide) = (need.machine, self.wide);
        let baseline = wide.map(|wide| wide.typical);
        let price = need.dollars_per_hour.map(|price| price * tp as f64);
        Outcome {
            candidate: candidate.clone(),
            batch,
            tp,
            figures: Figures::of(&typical, basis, need.tier, machine),
            ratios: Ratios::of(&typical, baseline.as_ref(), need.tier),
            bound,
            time,
            first_token,
            tokens_per_s,
            // 16 bit with all of its weights on the device would not fit either.
            gain: wide.filter(|_| offload.is_none()).map(|wide| wide.time / time),
            energy_per_token: energy,
            dollars_per_million_tokens: price.map(|price| price / 3600.0 / tokens_per_s * 1e6),
            memory,
            offload,
            last_resort: None,
            refused: None,
            lost: None,
            pareto: false,
        }
    }
}

impl Offload {
    fn share(&self) -> f64 {
        self.layers as f64 / self.of as f64
    }
}

/// A pass that also waits for weights from the host: at best both run side by side, and likely one waits for the other.
fn with_link(time: Seconds, link: Seconds, tier: Tier) -> Seconds {
    match tier {
        Tier::Ideal => time.max(link),
        Tier::Expected => time + link,
    }
}
