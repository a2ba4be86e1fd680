//! From what was typed to the kernels that are measured.

use roofline_core::{
    Device, Format, Graph, Math, Plan, Precision, format::Sizes, graph::Node, measurement::Subject,
    precision::PrecisionSpec, units::Bytes,
};

use super::{
    model::{lowerings, phase_name, workload},
    predict::{Unavailable, operator, varies},
    setting::{Varies, precisions},
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
    let specs = precisions(&setting.precision, varies(subject), device)?;
    Ok(Subjects { words, all: at_precisions(&operator.graph(), &specs, device)? })
}

/// The kernels of a model's pass, decode unless prefill was asked for, at each precision.
pub(super) fn of_model(args: &ModelArgs, device: &Device) -> Result<Subjects, Failure> {
    refuse_theory(&args.setting)?;
    let model = source::model(&args.model)?;
    let phase = args.phase.unwrap_or(Phase::Decode);
    let lowering = match lowerings(&args.lowering)?[..] {
        [lowering] if lowering.ranks.get() == 1 => lowering,
        _ => return Err(Failure::usage("one machine cannot share a layer with itself", "leave out --tp")),
    };
    let graph = model.graph(workload(phase, args.batch, args.context)?, lowering)?;
    let specs = precisions(&args.setting.precision, Varies::Model(&model), device)?;
    let words = format!("{} {}, batch {}, {} tokens", model.name, phase_name(phase), args.batch, args.context);
    let mut all = Vec::new();
    for spec in &specs {
        let plan = match Plan::model(spec, device) {
            Ok(plan) => plan,
            Err(error) => {
                style::talk("warning", &Unavailable::new(device, spec, &error).sentence());
                continue;
            }
        };
        all.extend(graph.nodes.iter().map(|node| Subject::new(node, spec.name(), *plan.at(node.place))));
    }
    nonempty(&words, all)
}

/// The kernels of `graph` at each of `specs`; what the device cannot do is said and left out.
pub(super) fn at_precisions(graph: &Graph, specs: &[PrecisionSpec], device: &Device) -> Result<Vec<Subject>, Failure> {
    let mut all = Vec::new();
    let mut first_error = None;
    for spec in specs {
        match spec.on(device) {
            Ok(formats) => {
                all.extend(graph.nodes.iter().map(|node: &Node| Subject::new(node, spec.name(), formats)));
            }
            Err(error) => {
                style::talk("warning", &Unavailable::new(device, spec, &error).sentence());
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
