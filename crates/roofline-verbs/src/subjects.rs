//! From what was typed to the kernels that are measured.

use roofline_core::{
    Device, Format, Graph, Math, Plan, Precision, format::Sizes, graph::Node, measurement::Subject, plan::Kernel,
    precision::PrecisionSpec, units::Bytes,
};

use crate::{
    Context, Error, Result,
    machine::{Varies, plans},
    predict::{ModelPass, Operator, Unavailable, lowerings, shape, varies, workload},
    request::{Phase, Setting},
};

/// The largest kernel that may be measured from afar.
const GIANT: Bytes = Bytes::new(32e9);

/// Kernels to measure, and what they are together, in words.
pub(crate) struct Subjects {
    pub(crate) words: String,
    pub(crate) all: Vec<Subject>,
}

/// Measuring is done where the program runs, at the sizes that are stored.
pub(crate) fn refuse_theory(setting: &Setting) -> Result<()> {
    if setting.rates.given() {
        let hint = "leave out ⟨bandwidth⟩ and ⟨peak⟩; `⟨roofline predict⟩` takes them";
        return Err(Error::request("a machine cannot be measured at rates it does not have", hint));
    }
    if setting.sizes == Sizes::Nominal {
        let hint = "leave out ⟨sizes nominal⟩; `⟨roofline predict⟩` takes it";
        return Err(Error::request("kernels read what is stored, scales and all", hint));
    }
    Ok(())
}

/// Refuses kernels whose operands would take more memory than anybody who is not at the machine should ask for.
pub(crate) fn refuse_giants(graph: &Graph) -> Result<()> {
    let (wide, math) = (Format::FP32, Math::Fp32);
    let precision =
        Precision { weights: wide, activations: wide, kv: wide, output: wide, query: wide, math, attention: math };
    let size = |node: &Node| node.op.work(&precision, Sizes::Exact).bytes();
    let giant = graph.nodes.iter().find(|node| size(node) > GIANT);
    giant.map_or(Ok(()), |node| {
        let detail = format!("{} reads and writes {} at 32 bit", node.op.words(node.site), size(node));
        Err(Error::request(detail, format!("{GIANT} at most from elsewhere; the command line has no limit")))
    })
}

/// The kernels of an operator at each precision.
pub(crate) fn of_operator(context: &Context, asked: Operator<'_>, device: &Device) -> Result<Subjects> {
    let (operator, words) = shape(asked)?;
    let setting = asked.setting();
    refuse_theory(setting)?;
    let plans = plans(&setting.precision, varies(asked), device)?;
    Ok(Subjects { words, all: at_plans(context, &operator.graph(), &plans, device)? })
}

/// The kernels of a model's passes at each precision: of both, decode first, unless one was asked for.
pub(crate) fn of_model(context: &Context, asked: &ModelPass, device: &Device) -> Result<Subjects> {
    refuse_theory(&asked.setting)?;
    let model = context.model(&asked.model)?;
    let lowering = match lowerings(&asked.lowering)[..] {
        [lowering] if lowering.ranks.get() == 1 => lowering,
        _ => return Err(Error::request("one machine cannot share a layer with itself", "leave out ⟨tp⟩")),
    };
    let (batch, length, phases) = (asked.batch.get(), asked.context.get(), phases(asked));
    let names: Vec<&str> = phases.iter().map(|phase| phase.name()).collect();
    let words = format!("{} {}, batch {batch}, {length} tokens", model.name, names.join(" and "));
    let mut assigned = Vec::new();
    for plan in plans(&asked.setting.precision, Varies::Model(&model), device)? {
        match plan.on(device, Some(&model.anatomy)) {
            Ok(assignment) => assigned.push((plan.label(), assignment)),
            Err(error) => context.warn(Unavailable::new(device, &plan, &error).sentence()),
        }
    }
    let mut all = Vec::new();
    for phase in phases {
        let graph = model.graph(workload(phase, batch, length)?, lowering)?;
        for (name, assignment) in &assigned {
            assignment.kernels(&graph, |Kernel { node, precision }| {
                all.push(Subject::new(&node, name, *precision).of(phase));
            });
        }
    }
    nonempty(&words, all)
}

/// The passes that were asked for: both where none was named, the short one first.
pub(crate) fn phases(asked: &ModelPass) -> Vec<Phase> {
    asked.phase.map_or_else(|| vec![Phase::Decode, Phase::Prefill], |phase| vec![phase])
}

/// Refuses a question whose kernels nobody elsewhere should have measured here.
pub(crate) fn refuse_giant_model(context: &Context, asked: &ModelPass) -> Result<()> {
    let model = context.model(&asked.model)?;
    for phase in phases(asked) {
        let workload = workload(phase, asked.batch.get(), asked.context.get())?;
        for lowering in lowerings(&asked.lowering) {
            refuse_giants(&model.graph(workload, lowering)?)?;
        }
    }
    Ok(())
}

/// The kernels of `graph` at each of `specs`; what the device cannot do is said and left out.
pub(crate) fn at_precisions(
    context: &Context,
    graph: &Graph,
    specs: &[PrecisionSpec],
    device: &Device,
) -> Result<Vec<Subject>> {
    at_plans(context, graph, &specs.iter().cloned().map(Plan::of).collect::<Vec<_>>(), device)
}

/// The kernels of `graph` by each of `plans`; what the device cannot do is said and left out.
pub(crate) fn at_plans(context: &Context, graph: &Graph, plans: &[Plan], device: &Device) -> Result<Vec<Subject>> {
    let mut all = Vec::new();
    let mut first_error = None;
    for plan in plans {
        match plan.on(device, None) {
            Ok(assignment) => assignment.kernels(graph, |Kernel { node, precision }| {
                all.push(Subject::new(&node, &plan.label(), *precision));
            }),
            Err(error) => {
                context.warn(Unavailable::new(device, plan, &error).sentence());
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if all.is_empty() => Err(error.into()),
        _ => Ok(all),
    }
}

fn nonempty(words: &str, all: Vec<Subject>) -> Result<Subjects> {
    if all.is_empty() {
        return Err(Error::request(
            format!("{words}: none of the precisions runs here"),
            "see `⟨roofline precisions⟩`",
        ));
    }
    Ok(Subjects { words: words.to_owned(), all })
}
