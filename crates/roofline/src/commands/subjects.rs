//! From what was typed to the kernels that are measured.

use roofline_core::{
    Device, Format, Graph, Math, Plan, Precision,
    format::Sizes,
    graph::Node,
    measurement::{Phase as Part, Subject},
    plan::Kernel,
    precision::PrecisionSpec,
    units::Bytes,
};

use super::{
    model::{lowerings, phase_name, workload},
    predict::{Unavailable, operator, varies},
    setting::{Varies, plans},
    source,
};
use crate::{
    cli::{ModelArgs, OperatorSubject, Phase, RateArgs, Setting, SizesArg},
    failure::Failure,
    report::style,
};

/// The largest kernel that may be measured from afar.
const GIANT: Bytes = Bytes::new(32e9);

/// Kernels to measure, and what they are together, in words.
pub(super) struct Subjects {
    pub(super) words: String,
    pub(super) all: Vec<Subject>,
}

/// Measuring is done where the program runs, at the sizes that are stored.
pub(super) fn refuse_theory(setting: &Setting) -> Result<(), Failure> {
    let RateArgs { bandwidth, peak } = &setting.rates;
    if bandwidth.is_some() || !peak.is_empty() {
        let hint = "leave out --bandwidth and --peak; `roofline predict` takes them";
        return Err(Failure::usage("a machine cannot be measured at rates it does not have", hint));
    }
    if matches!(setting.sizes, SizesArg::Nominal) {
        let hint = "leave out --sizes nominal; `roofline predict` takes it";
        return Err(Failure::usage("kernels read what is stored, scales and all", hint));
    }
    Ok(())
}

/// Refuses kernels whose operands would take more memory than anybody who is not at the machine should ask for.
pub(super) fn refuse_giants(graph: &Graph) -> Result<(), Failure> {
    let (wide, math) = (Format::FP32, Math::Fp32);
    let precision =
        Precision { weights: wide, activations: wide, kv: wide, output: wide, query: wide, math, attention: math };
    let size = |node: &Node| node.op.work(&precision, Sizes::Exact).bytes();
    let giant = graph.nodes.iter().find(|node| size(node) > GIANT);
    giant.map_or(Ok(()), |node| {
        let detail = format!("{} reads and writes {} at 32 bit", node.op.words(node.site), size(node));
        Err(Failure::usage(detail, format!("{GIANT} at most over HTTP; the command line has no limit")))
    })
}

/// The kernels of an operator at each precision.
pub(super) fn of_operator(subject: &OperatorSubject, device: &Device) -> Result<Subjects, Failure> {
    let (operator, words, setting) = operator(subject)?;
    refuse_theory(setting)?;
    let plans = plans(&setting.precision, varies(subject), device)?;
    Ok(Subjects { words, all: at_plans(&operator.graph(), &plans, device)? })
}

/// The kernels of a model's passes at each precision: of both, decode first, unless one was asked for.
pub(super) fn of_model(args: &ModelArgs, device: &Device) -> Result<Subjects, Failure> {
    refuse_theory(&args.setting)?;
    let model = source::model(&args.model)?;
    let lowering = match lowerings(&args.lowering)?[..] {
        [lowering] if lowering.ranks.get() == 1 => lowering,
        _ => return Err(Failure::usage("one machine cannot share a layer with itself", "leave out --tp")),
    };
    let phases = phases(args);
    let names: Vec<&str> = phases.iter().map(|phase| phase_name(*phase)).collect();
    let words = format!("{} {}, batch {}, {} tokens", model.name, names.join(" and "), args.batch, args.context);
    let mut assigned = Vec::new();
    for plan in plans(&args.setting.precision, Varies::Model(&model), device)? {
        match plan.on(device, Some(&model.anatomy)) {
            Ok(assignment) => assigned.push((plan.label(), assignment)),
            Err(error) => style::talk("warning", &Unavailable::new(device, &plan, &error).sentence()),
        }
    }
    let mut all = Vec::new();
    for phase in phases {
        let graph = model.graph(workload(phase, args.batch, args.context)?, lowering)?;
        for (name, assignment) in &assigned {
            assignment.kernels(&graph, |Kernel { node, precision }| {
                all.push(Subject::new(&node, name, *precision).of(part(phase)));
            });
        }
    }
    nonempty(&words, all)
}

/// The passes that were asked for: both where none was named, the short one first.
pub(super) fn phases(args: &ModelArgs) -> Vec<Phase> {
    args.phase.map_or_else(|| vec![Phase::Decode, Phase::Prefill], |phase| vec![phase])
}

fn part(phase: Phase) -> Part {
    match phase {
        Phase::Decode => Part::Decode,
        Phase::Prefill => Part::Prefill,
    }
}

/// The kernels of `graph` at each of `specs`; what the device cannot do is said and left out.
pub(super) fn at_precisions(graph: &Graph, specs: &[PrecisionSpec], device: &Device) -> Result<Vec<Subject>, Failure> {
    at_plans(graph, &specs.iter().cloned().map(Plan::of).collect::<Vec<_>>(), device)
}

/// The kernels of `graph` by each of `plans`; what the device cannot do is said and left out.
pub(super) fn at_plans(graph: &Graph, plans: &[Plan], device: &Device) -> Result<Vec<Subject>, Failure> {
    let mut all = Vec::new();
    let mut first_error = None;
    for plan in plans {
        match plan.on(device, None) {
            Ok(assignment) => assignment.kernels(graph, |Kernel { node, precision }| {
                all.push(Subject::new(&node, &plan.label(), *precision));
            }),
            Err(error) => {
                style::talk("warning", &Unavailable::new(device, plan, &error).sentence());
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if all.is_empty() => Err(error.into()),
        _ => Ok(all),
    }
}

fn nonempty(words: &str, all: Vec<Subject>) -> Result<Subjects, Failure> {
    if all.is_empty() {
        return Err(Failure::usage(format!("{words}: none of the precisions runs here"), "see `roofline precisions`"));
    }
    Ok(Subjects { words: words.to_owned(), all })
}
