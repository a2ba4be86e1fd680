//! The best batch and the fewest devices of each plan.

use std::collections::HashMap;

use super::{
    Candidate, Demand, Goal, Need, Outcome, Prefill,
    passes::{Passes, Promise},
    rank::{DOUBTFUL, refusal},
    runtime::Runtime,
};
use crate::{
    Dim, Result,
    device::{Kind, Room},
    model::{Lowering, Workload},
    predict::forecast,
    units::ByteRate,
};

/// The most sequences that throughput is looked for with, unless more are asked for.
const MOST: u64 = 256;
/// Devices that commonly share a model: those of one machine, in numbers that divide heads.
const SHARING: [u64; 3] = [2, 4, 8];

/// A demand at every batch and number of devices that is looked at, lowered once for all plans.
pub(super) struct Search<'a> {
    need: &'a Need<'a>,
    room: Option<Room>,
    /// 16 bit throughout, where the device has it.
    wide: Option<&'a Candidate>,
    /// By batch and devices; none where they are more than numbers can count, or heads can be shared by.
    passes: HashMap<(u64, u64), Option<Passes>>,
}

impl<'a> Search<'a> {
    /// Refuses a batch or a number of devices that cannot be where they were asked for.
    pub(super) fn new(need: &'a Need<'a>, room: Option<Room>, all: &'a [Candidate]) -> Result<Self> {
        let wide = all.iter().find(|candidate| candidate.is_plain());
        let search = Self { need, room, wide, passes: HashMap::new() };
        Passes::new(need, search.grid()[0], need.devices.unwrap_or(1), None)?;
        if need.devices.is_some_and(|devices| devices > 1) {
            need.machine.device.link(Dim::ONE)?;
        }
        Ok(search)
    }

    /// Whether the goal looks for a batch.
    fn looks(&self) -> bool {
        matches!(self.need.goal, Goal::Throughput | Goal::Cost)
    }

    /// Batches that are tried in any case: the fewest, the most and powers of two between.
    fn grid(&self) -> Vec<u64> {
        let most = self.need.batch.unwrap_or(if self.looks() { MOST } else { 1 });
        if !self.looks() {
            return vec![most];
        }
        let powers = std::iter::successors(Some(1_u64), |batch| batch.checked_mul(2)).take_while(|batch| *batch < most);
        powers.chain([most]).collect()
    }

    fn passes(&mut self, batch: u64, ranks: u64) -> Option<&Passes> {
        let (need, wide) = (self.need, self.wide);
        self.passes.entry((batch, ranks)).or_insert_with(|| Passes::new(need, batch, ranks, wide).ok()).as_ref()
    }

    /// Whether the limit leaves some of the device's memory unused: then it is the limit that is too small, not the device.
    fn is_cut(&self) -> bool {
        let there = self.need.machine.device.memory.usable();
        self.need.limits.memory.zip(there).is_some_and(|(limit, there)| limit < there)
    }

    /// Numbers of devices that a plan may be shared by beyond one, where nobody asked for a number.
    fn sharing(&self, candidate: &Candidate) -> &'static [u64] {
        let device = &self.need.machine.device;
        let cards =
            matches!(device.kind, Kind::Gpu | Kind::Npu | Kind::Tpu | Kind::Custom) && device.link(Dim::ONE).is_ok();
        let mut loaders = candidate.loaders().peekable();
        let shared = loaders.peek().is_none() || loaders.any(|runtime| runtime.tensor_parallel);
        if self.need.devices.is_none() && cards && shared && !self.is_cut() { &SHARING } else { &[] }
    }

    /// The plan on as few devices as hold it, at the batch that suits the goal.
    pub(super) fn best(&mut self, candidate: &Candidate) -> Result<Outcome> {
        let least = self.grid()[0];
        let first = self.need.devices.unwrap_or(1);
        let fits = |search: &mut Self, ranks: u64| {
            let (need, room) = (search.need, search.room);
            search.passes(least, ranks).is_some_and(|passes| {
                let total = passes.footprint(need, candidate).total();
                room.is_none_or(|room| total <= room.for_models())
            })
        };
        let mut ranks = first;
        if !fits(self, first) {
            let found = self.sharing(candidate).iter().find(|ranks| fits(self, **ranks));
            ranks = found.copied().unwrap_or(first);
        }
        self.best_on(candidate, ranks)
    }

    fn promise(&mut self, candidate: &Candidate, batch: u64, ranks: u64) -> Option<Result<Promise>> {
        let (need, room) = (self.need, self.room);
        Some(self.passes(batch, ranks)?.promise(need, candidate, room, None))
    }

    /// The plan at the batch that suits the goal: of those that keep the limits, the one with the most tokens per second.
    fn best_on(&mut self, candidate: &Candidate, ranks: u64) -> Result<Outcome> {
        let need = self.need;
        let mut best: Option<(Promise, bool)> = None;
        let mut consider = |promise: Promise| {
            let allowed = refusal(need, candidate, &promise).is_none();
            let better = |best: &(Promise, bool)| allowed && (!best.1 || promise.tokens_per_s > best.0.tokens_per_s);
            if best.as_ref().is_none_or(better) {
                best = Some((promise, allowed));
            }
            allowed
        };
        // More sequences need more memory and make each slower, so what is allowed ends somewhere between two of the grid.
        let (mut last, mut first_refused) = (0, None);
        for batch in self.grid() {
            let allowed = match self.promise(candidate, batch, ranks) {
                Some(promise) => consider(promise?),
                None => false,
            };
            if !allowed {
                first_refused = Some(batch);
                break;
            }
            last = batch;
        }
        if let (1.., Some(mut high)) = (last, first_refused) {
            let mut low = last;
            while high - low > 1 {
                let middle = u64::midpoint(low, high);
                let promise = self.promise(candidate, middle, ranks).transpose()?;
                if promise.is_some_and(&mut consider) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
        }
        let promise = match best {
            Some((promise, _)) => promise,
            // Not even the fewest can be counted.
            None => Passes::new(need, self.grid()[0], ranks, None)?.promise(need, candidate, self.room, None)?,
        };
        self.outcome(candidate, &promise)
    }

    fn outcome(&mut self, candidate: &Candidate, promise: &Promise) -> Result<Outcome> {
        let need = self.need;
        let mut outcome = match self.passes(promise.batch, promise.tp) {
            Some(passes) => passes.outcome(need, candidate, promise),
            None => Passes::new(need, promise.batch, promise.tp, None)?.outcome(need, candidate, promise),
        };
        // Not every runtime shares layers, or leaves them to the host.
        let able = |runtime: &Runtime| {
            (outcome.tp == 1 || runtime.tensor_parallel) && (outcome.offload.is_none() || runtime.offload.is_some())
        };
        let names: Vec<&str> =
            candidate.loaders().filter(|runtime| able(runtime)).map(|runtime| runtime.name.as_str()).collect();
        outcome.candidate.known_as.retain(|name, _| names.contains(name));
        outcome.refused = refusal(need, candidate, promise);
        outcome.last_resort = super::words::last_resort(&outcome);
        Ok(outcome)
    }

    /// The rate of the link that weights of the host's memory cross; none where the device has no memory of its own.
    fn host_rate(&self) -> Option<ByteRate> {
        let device = &self.need.machine.device;
        let link = device.host_link.as_ref().filter(|_| device.kind == Kind::Gpu && !self.is_cut())?;
        link.per_direction.or(link.total.map(|total| total / 2.0))
    }

    /// Plans of one precision or recipe with the layers that do not fit in the host's memory.
    pub(super) fn offloaded(&mut self, all: &[Candidate]) -> Result<Vec<Outcome>> {
        let (Some(rate), Some(room)) = (self.host_rate(), self.room) else { return Ok(Vec::new()) };
        let (need, least, ranks) = (self.need, self.grid()[0], self.need.devices.unwrap_or(1));
        let mut outcomes = Vec::new();
        // One compromise is enough: what loses much besides does not compete.
        let sound = |candidate: &&Candidate| {
            let little = candidate.losses.worst.is_some_and(|loss| loss <= DOUBTFUL);
            candidate.plan.is_uniform() && (need.limits.any_quality || little && !candidate.is_narrow())
        };
        for candidate in all.iter().filter(sound) {
            if !candidate.loaders().any(|runtime| runtime.offload.is_some()) {
                continue;
            }
            let Some(passes) = self.passes(least, ranks) else { continue };
            let Some(offload) = passes.offload(need, candidate, room) else { continue };
            let promise = passes.promise(need, candidate, Some(room), Some((offload, rate)))?;
            outcomes.push(self.outcome(candidate, &promise)?);
        }
        Ok(outcomes)
    }

    /// What the choice does to a prompt, where the demand is not one alone.
    pub(super) fn prefill(&self, best: &Outcome) -> Option<Prefill> {
        let need = self.need;
        // Weights that cross the host's link are told apart.
        if matches!(need.demand, Demand::Prefill { .. }) || best.candidate.is_plain() || best.offload.is_some() {
            return None;
        }
        let prompt = need.demand.prompt();
        let lowering = Lowering { ranks: Dim::new("devices", best.tp).ok()?, ..Lowering::default() };
        let graph = need.model.graph(Workload::prefill(1, prompt).ok()?, lowering).ok()?;
        let machine = need.machine;
        let of = |candidate: &Candidate| forecast(&graph, &candidate.assignment, machine).ok();
        let own = of(&best.candidate)?.total;
        let speedup = self.wide.and_then(of).map(|wide| own.speedup(&wide.total, need.tier));
        let (time, plan) = (own.time(need.tier), &best.candidate.plan);
        Some(Prefill { prompt, time, speedup, sentence: super::words::prompts(prompt, time, speedup, plan) })
    }
}
