//! `roofline plot`: predictions as pictures, in a file or in the terminal.

mod data;
mod points;

pub(super) use points::fields;

use std::{io::Write, path::Path};

use roofline_core::{
    Device, Machine, Math, Model, Plan,
    model::Lowering,
    op::Class as OpClass,
    plan::Assignment,
    predict::{Forecast, Tier, forecast},
};

use super::{
    model::{lowerings, phase_name, tokens, workload},
    predict::Unavailable,
    range::range,
    setting::{self, Varies},
    source,
};
use crate::{
    cli::{Phase, PlotArgs, PlotKind, ThemeArg},
    config,
    failure::Failure,
    plot::{Bar, Ceiling, Class, Drawing, Lines, Memory, Picture, Point, Roofline, Series, Shares, Theme},
    report::{Format, emit, style},
};

/// Size of a terminal nobody can ask.
const TERMINAL: (usize, usize) = (100, 32);

pub(crate) fn plot(args: &PlotArgs, form: Format) -> Result<(), Failure> {
    if form != Format::Text {
        if let Some(path) = &args.out {
            let hint = "leave out --out for the points, or the flag for the picture";
            return Err(Failure::usage(format!("{} is a picture, and its points are asked for", path.display()), hint));
        }
        return Ok(emit(&answer(args)?, form)?);
    }
    let picture = picture(args)?;
    let Some(path) = &args.out else {
        let size = terminal_size::terminal_size_of(std::io::stdout());
        let (width, height) =
            size.map_or(TERMINAL, |(width, height)| (width.0.into(), usize::from(height.0).saturating_sub(2)));
        let mut out = anstream::AutoStream::auto(std::io::stdout().lock());
        return Ok(out.write_all(picture.terminal(width.max(40), height.clamp(12, 60), true).as_bytes())?);
    };
    write_picture(&picture.drawing(args.theme.into()), path, args.scale, args.force)
}

impl From<ThemeArg> for Theme {
    fn from(theme: ThemeArg) -> Self {
        match theme {
            ThemeArg::Light => Self::Light,
            ThemeArg::Dark => Self::Dark,
        }
    }
}

/// Writes a picture as what its file is named for.
pub(super) fn write_picture(drawing: &Drawing, path: &Path, scale: u64, force: bool) -> Result<(), Failure> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let bytes = match extension.as_deref() {
        Some("svg") => drawing.svg().into_bytes(),
        Some("png") => {
            drawing.png(scale as f64).map_err(|reason| Failure::usage(reason, "choose a smaller `--scale`"))?
        }
        _ => return Err(Failure::usage(format!("{}: not a picture", path.display()), "write to a .svg or .png file")),
    };
    if path.exists() && !force {
        return Err(Failure::usage(format!("{} is there already", path.display()), "say `--force` to replace it"));
    }
    config::replace(path, &bytes)?;
    style::talk("note", &format!("wrote {}", path.display()));
    Ok(())
}

fn picture(args: &PlotArgs) -> Result<Picture, Failure> {
    let cases = cases(args)?;
    Ok(match args.kind {
        PlotKind::Roofline => Picture::Roofline(roofline(args, &cases)?),
        PlotKind::Batch | PlotKind::Context => Picture::Lines(lines(args, &cases)?),
        PlotKind::Shares => Picture::Shares(shares(args, &cases)?),
    })
}

/// What the picture shows, as numbers.
pub(crate) fn answer(args: &PlotArgs) -> Result<data::Points, Failure> {
    data::points(args, &cases(args)?)
}

/// The picture as SVG.
pub(crate) fn svg(args: &PlotArgs) -> Result<String, Failure> {
    Ok(picture(args)?.svg(args.theme.into()))
}

/// Passes that are predicted for each case.
pub(crate) fn points(args: &PlotArgs) -> Result<usize, Failure> {
    let count = |what: &'static str, text: Option<&str>| -> Result<usize, Failure> {
        text.map_or(Ok(1), |text| Ok(range(what, text)?.len()))
    };
    Ok(count("batch", args.batch.as_deref())?.saturating_mul(count("context", args.context.as_deref())?))
}

/// A model at a precision on a device.
struct Case {
    model: Model,
    machine: Machine,
    plan: Plan,
    assignment: Assignment,
    tier: Tier,
    lowering: Lowering,
    /// What tells it from the other cases.
    label: String,
}

impl Case {
    fn forecast(&self, phase: Phase, batch: u64, context: u64) -> Result<Forecast, Failure> {
        let graph = self.model.graph(workload(phase, batch, context)?, self.lowering)?;
        Ok(forecast(&graph, &self.assignment, &self.machine)?)
    }

    /// Whether it differs from another in its plan alone.
    fn beside(&self, other: &Self) -> bool {
        (&self.model.key, self.machine.device.label(), self.lowering)
            == (&other.model.key, other.machine.device.label(), other.lowering)
    }
}

fn cases(args: &PlotArgs) -> Result<Vec<Case>, Failure> {
    let models = args.models.iter().map(|name| source::model(name)).collect::<Result<Vec<Model>, Failure>>()?;
    let places = setting::cases(&args.setting, Varies::Product(None))?;
    let lowerings = lowerings(&args.lowering)?;
    let (many_devices, many_models, many_counts) = (places.len() > 1, models.len() > 1, lowerings.len() > 1);
    let (mut cases, mut first_error) = (Vec::new(), None);
    for setting::Case { machine, plans, tier } in &places {
        for (plan, model) in plans.iter().flat_map(|plan| models.iter().map(move |model| (plan, model))) {
            let assignment = match plan.on(&machine.device, Some(&model.anatomy)) {
                Ok(assignment) => assignment,
                Err(error) => {
                    style::talk("warning", &Unavailable::new(&machine.device, plan, &error).sentence());
                    first_error.get_or_insert(error);
                    continue;
                }
            };
            for lowering in &lowerings {
                let device_name = many_devices.then(|| machine.device.label());
                let count = many_counts.then(|| format!("tp {}", lowering.ranks));
                let parts = [many_models.then(|| model.key.clone()), device_name, count, Some(plan.label())];
                cases.push(Case {
                    model: model.clone(),
                    machine: machine.clone(),
                    plan: plan.clone(),
                    assignment: assignment.clone(),
                    tier: *tier,
                    lowering: *lowering,
                    label: parts.into_iter().flatten().collect::<Vec<_>>().join(" "),
                });
            }
        }
    }
    match first_error {
        Some(error) if cases.is_empty() => Err(error.into()),
        _ => Ok(cases),
    }
}

/// The one value of a range that this picture does not vary.
fn single(what: &'static str, text: Option<&str>, default: u64) -> Result<u64, Failure> {
    let Some(text) = text else { return Ok(default) };
    match range(what, text)?[..] {
        [value] => Ok(value),
        _ => Err(Failure::usage(format!("--{what}: this picture takes one value"), "ranges are for the other axis")),
    }
}

fn roofline(args: &PlotArgs, cases: &[Case]) -> Result<Roofline, Failure> {
    let first = &cases[0];
    if cases.iter().any(|case| case.machine.device != first.machine.device || case.model != first.model) {
        let hint = "name one model and one device; precisions may be several";
        return Err(Failure::usage("a roofline belongs to one model on one device", hint));
    }
    let (batch, context) =
        (single("batch", args.batch.as_deref(), 1)?, single("context", args.context.as_deref(), 4096)?);
    let mut points = Vec::new();
    for case in cases {
        let forecast = case.forecast(args.phase, batch, context)?;
        for kernel in forecast.kernels.iter().filter(|kernel| kernel.prediction.ideal.work.flops.value() > 0.0) {
            let (node, ideal) = (&kernel.node, &kernel.prediction.ideal);
            let class = match node.op.class() {
                OpClass::Attention => Class::Attention,
                OpClass::Elementwise | OpClass::Network => Class::Elementwise,
                OpClass::Gemm => Class::Product,
            };
            let label = if cases.len() > 1 { format!("{} {}", node.site, case.label) } else { node.site.to_owned() };
            let (intensity, rate) = (ideal.intensity(), ideal.work.flops / kernel.prediction.time(case.tier));
            points.push(Point { label, intensity, rate, class, series: case.label.clone(), measured: false });
        }
        let total = forecast.total;
        let (intensity, rate) = (total.ideal.intensity(), total.ideal.work.flops / total.time(case.tier));
        let label = format!("all {}", case.label);
        points.push(Point { label, intensity, rate, class: Class::Total, series: case.label.clone(), measured: false });
    }
    if let Some(path) = &args.measured {
        points.extend(points::read(path)?);
    }
    let device = &first.machine.device;
    Ok(Roofline {
        title: format!("{} on {}", first.model.name, device.name),
        subtitle: format!(
            "{}, batch {batch}, {context} tokens{}, {}",
            phase_name(args.phase),
            manner(args),
            tier_of(cases)
        ),
        memories: vec![Memory { label: "memory".to_owned(), bandwidth: device.memory.bandwidth }],
        ceilings: ceilings(device),
        points,
        brief: false,
    })
}

/// Whether a unit's roof is drawn: no language model uses FP64, and the 16-bit accumulators are too coarse for most.
pub(super) fn shown(math: Math) -> bool {
    !matches!(math, Math::Fp64 | Math::Fp64Tensor | Math::Fp16Acc16 | Math::Fp8Acc16)
}

/// A roof per unit, units of equal peak together.
pub(super) fn ceilings(device: &Device) -> Vec<Ceiling> {
    let mut ceilings: Vec<Ceiling> = Vec::new();
    for (math, peak) in device.peaks.iter().filter(|(math, _)| shown(*math)) {
        match ceilings.iter_mut().find(|ceiling| ceiling.peak == peak) {
            Some(ceiling) => ceiling.label += &format!(", {}", math.label()),
            None => ceilings.push(Ceiling { label: math.label().to_owned(), peak }),
        }
    }
    ceilings
}

/// Batches and contexts of a picture, in order: one of both varies where it has lines.
fn grid(args: &PlotArgs) -> Result<Vec<(u64, u64)>, Failure> {
    let (batch, context) = (args.batch.as_deref(), args.context.as_deref());
    Ok(match args.kind {
        PlotKind::Batch => {
            let fixed = single("context", context, 4096)?;
            range("batch", batch.unwrap_or("1..512"))?.into_iter().map(|batch| (batch, fixed)).collect()
        }
        PlotKind::Context => {
            let fixed = single("batch", batch, 1)?;
            range("context", context.unwrap_or("512..131072"))?.into_iter().map(|context| (fixed, context)).collect()
        }
        PlotKind::Roofline | PlotKind::Shares => vec![(single("batch", batch, 1)?, single("context", context, 4096)?)],
    })
}

fn lines(args: &PlotArgs, cases: &[Case]) -> Result<Lines, Failure> {
    let over_batch = args.kind == PlotKind::Batch;
    let grid = grid(args)?;
    let fixed = grid.first().map_or(1, |(batch, context)| if over_batch { *context } else { *batch });
    let mut series = Vec::new();
    for case in cases {
        let mut line = Vec::new();
        for (batch, context) in grid.iter().copied() {
            let value = if over_batch { batch } else { context };
            let time = case.forecast(args.phase, batch, context)?.total.time(case.tier);
            let tokens = tokens(args.phase, batch, context);
            line.push((value as f64, time.value() * 1e3 / tokens));
        }
        series.push(Series { label: case.label.clone(), points: line });
    }
    let first = &cases[0];
    let (axis, other) =
        if over_batch { ("batch", format!("{fixed} tokens")) } else { ("context", format!("batch {fixed}")) };
    Ok(Lines {
        title: format!("{} time per token against {axis}", title(cases)),
        subtitle: format!(
            "{}, {other}, on {}{}, {}",
            phase_name(args.phase),
            places(cases, first),
            manner(args),
            tier_of(cases)
        ),
        x_label: if over_batch { "sequences".to_owned() } else { "tokens of context".to_owned() },
        y_label: "ms per token of the batch (step time / tokens)".to_owned(),
        log_x: true,
        log_y: true,
        series,
    })
}

fn shares(args: &PlotArgs, cases: &[Case]) -> Result<Shares, Failure> {
    let (batch, context) =
        (single("batch", args.batch.as_deref(), 1)?, single("context", args.context.as_deref(), 4096)?);
    let mut bars = Vec::new();
    for case in cases {
        let forecast = case.forecast(args.phase, batch, context)?;
        let mut parts: Vec<(String, f64)> = Vec::new();
        for kernel in forecast.by_site(case.tier, &case.machine) {
            parts.push((kernel.site.to_owned(), kernel.share));
        }
        bars.push(Bar { label: case.label.clone(), parts });
    }
    Ok(Shares {
        title: format!("{} share of the time", title(cases)),
        subtitle: format!(
            "{}, batch {batch}, {context} tokens, on {}{}, {}",
            phase_name(args.phase),
            places(cases, &cases[0]),
            manner(args),
            tier_of(cases)
        ),
        bars,
    })
}

/// How the model runs, where that is not the usual way.
fn manner(args: &PlotArgs) -> String {
    let shared = match args.lowering.tp[..] {
        [count] if count > 1 => format!(", shared by {count}"),
        _ => String::new(),
    };
    format!("{shared}{}", if args.lowering.unfused { ", unfused" } else { "" })
}

/// Which times are drawn.
fn tier_of(cases: &[Case]) -> &'static str {
    let first = cases[0].tier;
    match first {
        _ if cases.iter().any(|case| case.tier != first) => "expected, or ideal of chips that are only rates",
        Tier::Ideal => "ideal roofline",
        Tier::Expected => "expected",
    }
}

/// The model, or what several are.
fn title(cases: &[Case]) -> String {
    let first = &cases[0];
    let same = cases.iter().all(|case| case.model == first.model);
    if same { format!("{}:", first.model.name) } else { "Models:".to_owned() }
}

/// The device, or how many.
fn places(cases: &[Case], first: &Case) -> String {
    let mut names: Vec<&str> = cases.iter().map(|case| case.machine.device.name.as_str()).collect();
    names.dedup();
    if names.len() == 1 { first.machine.device.name.clone() } else { names.join(" and ") }
}
