//! Plans worth looking at: those the device multiplies and some runtime loads.

use std::{collections::BTreeMap, sync::Arc};

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Demand, Goal, Need,
    offer::{LeftOut, Offer, Offers, offers},
    quality::{self, Known, Losses},
    runtime::{Runtime, bare, caches, runtimes},
};
use crate::{
    Device, Dim, Error, Format, Graph, Machine, Op, Plan, Result,
    format::Element,
    machine::Stack,
    model::{Lowering, Workload},
    plan::{Assignment, Kernel, Mix, Selector},
    published::{Effects, Term},
    units::Bytes,
};

/// Fewer bits than this lose a quarter of the weights' norm (`roofline formats`): a last resort.
pub(super) const NARROWEST_BITS: u32 = 4;

/// Sequences that a program for one user takes at a time.
const FEW: u64 = 8;

/// A plan and how runtimes name it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "PlanCandidate")]
pub struct Candidate {
    /// The plan: its text is what every verb takes.
    pub plan: Plan,
    /// What each runtime that loads it on this device calls it.
    pub known_as: BTreeMap<&'static str, String>,
    /// How the codes are chosen: what `roofline quantize` does without data for the narrowest part.
    pub algorithm: &'static str,
    /// What it costs in quality.
    #[serde(flatten)]
    pub losses: Losses,
    /// The share of the bandwidth that the best of its runtimes is known to reach on devices of the class, of what the plan
    /// is judged by; 1 where nothing less is known.
    pub pace: f64,
    /// What it means on the device.
    #[serde(skip)]
    pub(super) assignment: Arc<Assignment>,
    /// What the weights of the whole model take.
    #[serde(skip)]
    pub(super) stored: Bytes,
    /// The fewest bits that a weight of a layer has.
    #[serde(skip)]
    pub(super) bits: u32,
}

/// Every plan for a need, and what was left out.
pub(super) struct Candidates {
    pub(super) all: Vec<Candidate>,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) open: bool,
}

/// Every plan for a need: one precision throughout, or a narrower one for the feed-forward part or the experts, each with
/// every format of the cache; and llama.cpp's recipes. The first is 16 bit throughout, where the device has it.
pub(super) fn candidates(need: &Need<'_>) -> Result<Candidates> {
    let device = &need.machine.device;
    let there = present(need);
    let Offers { all: offers, mut left_out, open } = offers(device)?;
    if there.is_empty() && !(open && need.limits.runtimes.is_empty()) {
        return Err(nobody(need, device));
    }
    let graph = need.model.graph(Workload::decode(1, 1)?, Lowering::default())?;
    let known = Known::of(need.model, need.measured, device, &graph);
    let mut maker = Maker { need, known, graph, caches: formats(device), open, all: Vec::new() };
    for offer in &offers {
        let loads: Vec<_> = there.iter().copied().filter(|runtime| runtime.loads(offer.key, device)).collect();
        maker.add(&Plan::of(offer.spec.clone()), &loads);
    }
    let inner_role: Selector = if need.model.anatomy.experts > 0 { "experts" } else { "ffn" }.parse()?;
    for (offer, inner) in pairs(&offers) {
        let both = |runtime: &&'static Runtime| {
            runtime.mixed && runtime.loads(offer.key, device) && runtime.loads(inner.key, device)
        };
        let loads: Vec<_> = there.iter().copied().filter(both).collect();
        maker.add(&Plan::of(offer.spec.clone()).with(inner_role.clone(), inner.spec.clone()), &loads);
    }
    let mixes: Vec<_> = there.iter().copied().filter(|runtime| runtime.mixes).collect();
    // A chip that llama.cpp does not run on has no use for its recipes.
    for mix in Mix::advised().filter(|_| !mixes.is_empty()) {
        maker.add(&Plan::mixed(mix), &mixes);
    }
    for runtime in &there {
        let for_all = |recipe: &&super::runtime::Recipe| !recipe.experts || need.model.anatomy.experts > 0;
        for recipe in runtime.recipes.iter().filter(for_all) {
            maker.add(&recipe.plan.parse()?, &[runtime]);
        }
    }
    let set_aside = runtimes().iter().filter(|runtime| {
        need.limits.runtimes.is_empty()
            && runtime.runs_on(device)
            && !there.iter().any(|other| other.name == runtime.name)
    });
    left_out.extend(set_aside.map(|runtime| LeftOut {
        plan: format!("what only {} loads", runtime.name),
        reason: match need.devices {
            Some(2..) if !runtime.tensor_parallel => "it does not share layers between devices".to_owned(),
            _ => format!("it is made for few sequences at a time; `⟨runtime {}⟩` lets it compete", runtime.name),
        },
    }));
    Ok(Candidates { all: maker.all, left_out, open })
}

/// Runtimes that are asked for and run on the device. Many sequences, and prompts alone, are for those that serve, where one
/// does.
fn present(need: &Need<'_>) -> Vec<&'static Runtime> {
    let asked = &need.limits.runtimes;
    let wanted = |runtime: &&'static Runtime| {
        asked.is_empty() || asked.iter().any(|name| name.eq_ignore_ascii_case(&runtime.name))
    };
    let alone = need.devices.is_none_or(|devices| devices == 1);
    let runs = |runtime: &&'static Runtime| runtime.runs_on(&need.machine.device) && (alone || runtime.tensor_parallel);
    let there: Vec<&'static Runtime> = runtimes().iter().filter(wanted).filter(runs).collect();
    let serving: Vec<&'static Runtime> = there.iter().copied().filter(|runtime| runtime.serves).collect();
    if is_many(need) && asked.is_empty() && !serving.is_empty() { serving } else { there }
}

/// Whether many tokens are in flight at a time.
fn is_many(need: &Need<'_>) -> bool {
    matches!(need.goal, Goal::Throughput | Goal::Cost)
        || matches!(need.demand, Demand::Prefill { .. })
        || need.batch.is_some_and(|batch| batch > FEW)
}

/// Formats of the cache: 16 bit and what runtimes have.
fn formats(device: &Device) -> Vec<Format> {
    std::iter::once(device.sixteen_bit()).chain(caches()).collect()
}

/// Precisions for attention with narrower ones for the rest.
fn pairs(offers: &[Offer]) -> impl Iterator<Item = (&Offer, &Offer)> {
    let narrower = |offer: &Offer, inner: &Offer| inner.bits() < offer.bits() && inner.bits() >= NARROWEST_BITS;
    offers.iter().flat_map(move |offer| {
        offers.iter().filter(move |inner| narrower(offer, inner)).map(move |inner| (offer, inner))
    })
}

fn nobody(need: &Need<'_>, device: &Device) -> Error {
    let names = if need.limits.runtimes.is_empty() { "no runtime".to_owned() } else { need.limits.runtimes.join(", ") };
    let others: Vec<&str> =
        runtimes().iter().filter(|runtime| runtime.runs_on(device)).map(|runtime| runtime.name.as_str()).collect();
    let others = if others.is_empty() { "no runtime that we know".to_owned() } else { others.join(", ") };
    Error::Shape(format!("{names} does not run on {}: {others} does", device.name))
}

/// What the fastest of some runtimes reaches of the machine's bandwidth, by published speeds. Where a stack was named, its
/// kernels are what all plans are judged by.
fn pace<'n>(machine: &Machine, names: impl Iterator<Item = &'n &'static str>) -> f64 {
    let own = machine.reach().value(Term::Bandwidth);
    let of = |name: &&'static str| match *name {
        "llama.cpp" => Some(Stack::LlamaCpp),
        "vLLM" => Some(Stack::Vllm),
        "transformers" => Some(Stack::Torch),
        _ => None,
    };
    let share =
        |stack: Stack| (Effects::builtin().reach(&machine.device, stack, None).value(Term::Bandwidth) / own).min(1.0);
    let shares = names.map(|name| of(name).map_or(1.0, share));
    let best = shares.fold(0.0, f64::max);
    if machine.stack == Stack::Roofline && best > 0.0 { best } else { 1.0 }
}

struct Maker<'a> {
    need: &'a Need<'a>,
    known: Known<'a>,
    graph: Graph,
    caches: Vec<Format>,
    open: bool,
    all: Vec<Candidate>,
}

impl Maker<'_> {
    /// A plan with every cache that one of `loads` has.
    fn add(&mut self, plan: &Plan, loads: &[&'static Runtime]) {
        let (device, model) = (&self.need.machine.device, self.need.model);
        let sixteen = device.sixteen_bit();
        for kv in self.caches.clone() {
            let wide = kv.nominal_bits() >= 16;
            let names: BTreeMap<&'static str, String> = loads
                .iter()
                .filter(|runtime| runtime.caches(kv, device))
                .filter_map(|runtime| Some((runtime.name.as_str(), runtime.calls(plan, sixteen)?)))
                .collect();
            let open = self.open && loads.is_empty() && (wide || kv == Format::FP8);
            if names.is_empty() && !open {
                continue;
            }
            let plan = if wide { plan.clone() } else { plan.clone().with_kv(kv) };
            let Ok(assignment) = plan.on(device, Some(&model.anatomy)) else { continue };
            if !divides(&self.graph, &assignment) {
                continue;
            }
            let (algorithm, bits) = (algorithm(&plan, &assignment, &names), narrowest(&plan, &assignment));
            let losses = quality::losses(&self.known, (&plan, algorithm), &assignment, &self.graph);
            let stored = model.weights_of(&self.graph, Dim::ONE, &assignment, self.need.machine.sizes);
            let (assignment, pace) = (Arc::new(assignment), pace(self.need.machine, names.keys()));
            self.all.push(Candidate { plan, known_as: names, algorithm, losses, pace, assignment, stored, bits });
        }
    }
}

/// The scale that leaves the least squared error where it is worth the time; wider codes gain nothing by it, and files with
/// several schemes and llama.cpp's are rounded to nearest.
fn algorithm(plan: &Plan, assignment: &Assignment, names: &BTreeMap<&str, String>) -> &'static str {
    let weights = assignment.at(crate::Role::Query).weights;
    let gains = weights.element() == Element::Int4 && weights.gguf().is_none() || weights == Format::NVFP4;
    if assignment.is_wide() || bare(plan) == plan.base() && weights.nominal_bits() >= 16 {
        "none"
    } else if gains && plan.rules().is_empty() && names.contains_key("vLLM") {
        "mse"
    } else {
        "rtn"
    }
}

/// The fewest bits of what the layers mostly are, and of what differs.
fn narrowest(plan: &Plan, assignment: &Assignment) -> u32 {
    let base = plan.mix().map_or(assignment.at(crate::Role::Query).weights, Mix::base).nominal_bits();
    let rules = plan.rules().iter().filter_map(|rule| rule.precision.formats().weights).map(Format::nominal_bits);
    rules.fold(base, u32::min)
}

/// Whether blocks divide what is stored: rows of weights, and heads of the cache. No runtime has kernels for the rest;
/// llama.cpp's recipes take another type there.
fn divides(graph: &Graph, assignment: &Assignment) -> bool {
    let whole = |format: Format, length: Dim| format.block().is_none_or(|block| length.get().is_multiple_of(block));
    let (kv, mut all) = (assignment.kv(), true);
    assignment.kernels(graph, |Kernel { node, precision }| {
        all &= node.op.weights().is_none_or(|weights| whole(precision.weights, weights.k));
        if let Op::Attention(attention) = node.op {
            all &= whole(kv, attention.head_dim) && whole(kv, attention.value_dim);
        }
    });
    all
}

impl Candidate {
    /// Runtimes that load it.
    pub(super) fn loaders(&self) -> impl Iterator<Item = &'static Runtime> {
        runtimes().iter().filter(|runtime| self.known_as.contains_key(runtime.name.as_str()))
    }

    /// What it means on the device.
    pub fn assignment(&self) -> &Assignment {
        &self.assignment
    }

    /// The format of the cache.
    pub fn kv(&self) -> Format {
        self.assignment.kv()
    }

    /// Whether it is 16 bit throughout.
    pub fn is_plain(&self) -> bool {
        self.assignment.is_wide()
    }

    /// Whether its layers have fewer than four bits.
    pub fn is_narrow(&self) -> bool {
        self.bits < NARROWEST_BITS
    }

    /// How many choices it takes: the fewer, the simpler to make and to serve.
    pub(super) fn parts(&self) -> usize {
        usize::from(!self.is_plain()) + self.plan.rules().len() + usize::from(self.plan.kv().is_some())
    }

    /// Whether the device has units for its narrowest weights as they are stored.
    pub(super) fn is_native(&self, device: &Device) -> bool {
        let layers = crate::Role::ALL.into_iter().filter(|role| role.is_layer_product());
        let narrowest = layers.map(|role| self.assignment.at(role).weights).min_by_key(|format| format.nominal_bits());
        let has = |format: Format| format.native_units().is_some_and(|units| device.fastest(units).is_some());
        narrowest.is_some_and(|format| has(format) && device.takes(format))
    }

    /// Whether some weights of the layers are narrower than the activations they meet.
    pub fn weight_only(&self) -> bool {
        let narrow = |role: crate::Role| {
            let precision = self.assignment.at(role);
            precision.weights.nominal_bits() < precision.activations.nominal_bits()
        };
        crate::Role::ALL.into_iter().filter(|role| role.is_layer_product()).any(narrow)
    }
}
