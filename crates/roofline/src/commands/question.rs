//! What can be asked of the program, by whichever way it comes in: the arguments of a command, and its answer as JSON.
//!
//! A request over HTTP is parsed by the same argument definitions as a command line, so that both take the same names, the
//! same defaults and the same limits, and answer alike.

use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};

use roofline_core::Graph;

use super::{
    analyze, chart, compare, devices, formats, measure, model, models, plot, precisions, predict,
    range::range,
    recommend, shapes, source,
    subjects::{phases, refuse_giants},
    sweep, tiling,
};
use crate::{
    cli::{
        AnalyzeArgs, CompareArgs, CompareSubject, DevicesArgs, FormatsArgs, MeasureArgs, ModelArgs, ModelsArgs,
        OperatorSubject, PlotArgs, PrecisionsArgs, RecommendSubject, RunArgs, Setting, Subject, SweepArgs, TilingArgs,
    },
    failure::Failure,
    report::json,
};

/// Sizes of one comparison.
const SIDES: usize = 64;

/// A command with its arguments.
pub(crate) enum Question {
    Predict(Subject),
    Roofline(Subject),
    Recommend(RecommendSubject),
    Sweep(SweepArgs),
    Measure(MeasureArgs),
    Compare(Box<CompareArgs>),
    Plot(PlotArgs),
    Analyze(AnalyzeArgs),
    Tiling(TilingArgs),
    Models(ModelsArgs),
    Formats(FormatsArgs),
    Precisions(PrecisionsArgs),
    Devices(DevicesArgs),
}

/// How a command's arguments are written, and what they become.
#[derive(Clone, Copy)]
pub(crate) struct Verb {
    pub(crate) name: &'static str,
    command: fn(Command) -> Command,
    question: fn(&mut ArgMatches) -> Result<Question, clap::Error>,
}

macro_rules! verbs {
    ($($name:literal $kind:ident $question:expr;)*) => {
        /// Every command that answers with JSON.
        pub(crate) const VERBS: &[Verb] = &[$(Verb {
            name: $name,
            command: verbs!(@ $kind),
            question: |matches| FromArgMatches::from_arg_matches_mut(matches).map($question),
        }),*];
    };
    (@ subject) => { Subject::augment_subcommands };
    (@ recommend) => { RecommendSubject::augment_subcommands };
    (@ $args:ident) => { <$args as Args>::augment_args };
}

verbs! {
    "predict" subject Question::Predict;
    "roofline" subject Question::Roofline;
    "recommend" recommend Question::Recommend;
    "sweep" SweepArgs Question::Sweep;
    "measure" MeasureArgs Question::Measure;
    "compare" CompareArgs |args| Question::Compare(Box::new(args));
    "plot" PlotArgs Question::Plot;
    "analyze" AnalyzeArgs Question::Analyze;
    "tiling" TilingArgs Question::Tiling;
    "models" ModelsArgs Question::Models;
    "formats" FormatsArgs Question::Formats;
    "precisions" PrecisionsArgs Question::Precisions;
    "devices" DevicesArgs Question::Devices;
}

impl Verb {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        VERBS.iter().find(|verb| verb.name == name)
    }

    /// The definition of its arguments; parsing starts at the first of them.
    pub(crate) fn command(&self) -> Command {
        (self.command)(Command::new(self.name)).no_binary_name(true).disable_help_flag(true)
    }

    /// Takes the values out of `matches`: a copy of them costs more than parsing did.
    pub(crate) fn question(&self, matches: &mut ArgMatches) -> Result<Question, Failure> {
        (self.question)(matches).map_err(Failure::from)
    }
}

/// What a question names, and how much it asks for.
#[derive(Default)]
pub(crate) struct Extent<'a> {
    pub(crate) devices: Vec<&'a str>,
    pub(crate) models: Vec<&'a str>,
    /// Results at most, where lists multiply.
    pub(crate) results: usize,
    /// Decode steps that are summed one by one for each of them.
    pub(crate) steps: u64,
}

/// Results that are made between two requests.
const FEW: usize = 32;

impl Question {
    /// The answer, as `--json` prints it.
    pub(crate) fn answer(&self) -> Result<String, Failure> {
        Ok(match self {
            Self::Predict(Subject::Operator(subject)) => json(&predict::predict(subject)?)?,
            Self::Predict(Subject::Model(args)) => json(&model::predict_model(args)?)?,
            Self::Roofline(subject) => json(&chart::chart(subject)?)?,
            Self::Recommend(subject) => recommend::answer(subject)?,
            Self::Sweep(args) if args.models.is_empty() => json(&shapes::answer(args)?)?,
            Self::Sweep(args) => sweep::answer(args)?,
            Self::Measure(args) => json(&measure::measure(args)?)?,
            Self::Compare(args) => json(&compare::answer(args)?)?,
            Self::Plot(args) => plot::svg(args)?,
            Self::Analyze(args) => json(&analyze::analyze(args)?)?,
            Self::Tiling(args) => json(&tiling::tiling(args)?)?,
            Self::Models(args) => json(&models::models(args)?)?,
            Self::Formats(args) => json(&formats::formats(args)?)?,
            Self::Precisions(args) => json(&precisions::precisions(args)?)?,
            Self::Devices(args) => json(&devices::select(args)?)?,
        })
    }

    /// How it is to be measured, where answering means measuring.
    pub(crate) fn run(&mut self) -> Option<&mut RunArgs> {
        match self {
            Self::Measure(args) => Some(&mut args.run),
            Self::Compare(args) => Some(&mut args.run),
            Self::Sweep(args) if args.measure => Some(&mut args.run),
            _ => None,
        }
    }

    /// Refuses to measure what would fill the memory of the machine.
    pub(crate) fn measurable(&self) -> Result<(), Failure> {
        match self {
            Self::Measure(MeasureArgs { subject: Some(Subject::Operator(subject)), .. }) => operator(subject),
            Self::Measure(MeasureArgs { subject: Some(Subject::Model(args)), .. }) => whole(args),
            Self::Compare(args) => match &args.subject {
                Some(CompareSubject::Operator(subject)) => operator(subject),
                Some(CompareSubject::Model(args)) => whole(args),
                Some(CompareSubject::Sizes(args)) => {
                    let sides = range("n", &args.n)?;
                    if sides.len() > SIDES {
                        let hint = format!("{SIDES} at most over HTTP");
                        return Err(Failure::usage(format!("{} sizes are asked for", sides.len()), hint));
                    }
                    let largest = sides.into_iter().max().unwrap_or(1);
                    refuse_giants(&Graph::gemv(largest, largest)?)
                }
                None => Ok(()),
            },
            Self::Sweep(args) => args.shapes.iter().try_for_each(|(m, n, k)| refuse_giants(&Graph::gemm(*m, *n, *k)?)),
            _ => Ok(()),
        }
    }

    /// Whether an answer takes microseconds: one operator, few precisions and devices, nothing searched.
    pub(crate) fn quick(&self) -> bool {
        match self {
            Self::Predict(Subject::Operator(_)) | Self::Roofline(Subject::Operator(_)) => {
                self.extent().is_ok_and(|extent| extent.results <= FEW)
            }
            Self::Tiling(_) => true,
            Self::Recommend(subject) => !matches!(subject, RecommendSubject::Model(_)),
            _ => false,
        }
    }

    pub(crate) fn extent(&self) -> Result<Extent<'_>, Failure> {
        Ok(match self {
            Self::Predict(subject) | Self::Roofline(subject) => Extent::of_subject(subject),
            Self::Recommend(RecommendSubject::Gemv(args) | RecommendSubject::Gemm(args)) => {
                Extent { devices: args.place.on.iter().map(String::as_str).collect(), results: 1, ..Extent::default() }
            }
            Self::Recommend(RecommendSubject::Model(args)) => Extent {
                devices: args.place.on.iter().map(String::as_str).collect(),
                models: vec![&args.model],
                results: 1,
                steps: args.generate.unwrap_or(0),
            },
            Self::Sweep(args) => {
                let points = if args.models.is_empty() { args.shapes.len().max(1) } else { sweep::points(args)? };
                let mut extent = Extent::of_setting(&args.setting);
                // Shapes without a device are those of this machine, which would have to be measured to be known.
                if args.models.is_empty() && args.setting.on.is_empty() && !args.measure {
                    extent.devices.push("this");
                }
                extent.models = args.models.iter().map(String::as_str).collect();
                extent.results = extent.results.saturating_mul(points).saturating_mul(args.lowering.tp.len());
                extent
            }
            Self::Measure(args) => match &args.subject {
                Some(subject) => Extent::of_subject(subject),
                None => Extent {
                    devices: args.on.iter().map(String::as_str).collect(),
                    results: args.precision.len(),
                    ..Extent::default()
                },
            },
            Self::Compare(args) => Extent::of_compare(args),
            Self::Plot(args) => {
                let mut extent = Extent::of_setting(&args.setting);
                extent.models = args.models.iter().map(String::as_str).collect();
                extent.results = extent.results.saturating_mul(args.lowering.tp.len() * args.models.len());
                extent.results = extent.results.saturating_mul(plot::points(args)?);
                extent
            }
            Self::Analyze(args) => {
                let mut extent = Extent::of_setting(&args.setting);
                extent.models = vec![&args.model];
                extent.results = extent.results.saturating_mul(args.lowering.tp.len());
                extent.steps = args.generate;
                extent
            }
            Self::Tiling(args) => Extent { devices: vec![&args.on], results: 1, ..Extent::default() },
            Self::Models(args) => {
                Extent { models: strings(&args.names), results: args.names.len(), ..Extent::default() }
            }
            Self::Formats(args) => Extent { results: args.names.len(), ..Extent::default() },
            Self::Precisions(args) => {
                Extent { devices: args.on.iter().map(String::as_str).collect(), results: 1, ..Extent::default() }
            }
            Self::Devices(args) => {
                Extent { devices: strings(&args.names), results: args.names.len(), ..Extent::default() }
            }
        })
    }
}

fn operator(subject: &OperatorSubject) -> Result<(), Failure> {
    refuse_giants(&predict::operator(subject)?.0.graph())
}

fn whole(args: &ModelArgs) -> Result<(), Failure> {
    let model = source::model(&args.model)?;
    for phase in phases(args) {
        let workload = model::workload(phase, args.batch, args.context)?;
        for lowering in model::lowerings(&args.lowering)? {
            refuse_giants(&model.graph(workload, lowering)?)?;
        }
    }
    Ok(())
}

fn strings(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

impl<'a> Extent<'a> {
    fn of_setting(setting: &'a Setting) -> Self {
        let results = setting.on.len().max(1).saturating_mul(setting.precision.len().max(1));
        Self { devices: strings(&setting.on), results, ..Self::default() }
    }

    fn of_operator(subject: &'a OperatorSubject) -> Self {
        Self::of_setting(subject.setting())
    }

    fn of_model(args: &'a ModelArgs) -> Self {
        let mut extent = Self::of_setting(&args.setting);
        extent.models = vec![&args.model];
        extent.results = extent.results.saturating_mul(args.lowering.tp.len());
        extent.steps = args.generate.unwrap_or(0);
        extent
    }

    fn of_subject(subject: &'a Subject) -> Self {
        match subject {
            Subject::Operator(subject) => Self::of_operator(subject),
            Subject::Model(args) => Self::of_model(args),
        }
    }

    fn of_compare(args: &'a CompareArgs) -> Self {
        match &args.subject {
            Some(CompareSubject::Operator(subject)) => Self::of_operator(subject),
            Some(CompareSubject::Model(args)) => Self::of_model(args),
            Some(CompareSubject::Sizes(args)) => Self::of_setting(&args.setting),
            None => Self { devices: args.on.iter().map(String::as_str).collect(), ..Self::default() },
        }
    }
}
