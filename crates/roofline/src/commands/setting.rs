//! From what was typed to devices and precisions.

use std::path::Path;

use roofline_core::{
    Device, Machine, Model, Plan, Registry, Role,
    device::{Kind, Peaks},
    format::Sizes,
    model::Stored,
    plan::Assignment,
    precision::{NAMED, Output},
    predict::Tier,
};

use super::{this, tier};
use crate::{
    cli::{RateArgs, Setting, SizesArg},
    config,
    failure::Failure,
};

/// The precisions of a comparison nobody specified: a baseline, then what people quantize to.
const COMMON: &[&str] = &["fp8", "int8", "w8a16", "w4a16", "nvfp4"];
/// The same for attention, where the cache is what can be narrower.
const COMMON_KV: &[&str] = &["fp8", "nvfp4"];

/// A machine, the plans to look at on it, and which of its times is spoken of.
pub(super) struct Case {
    pub(super) machine: Machine,
    pub(super) plans: Vec<Plan>,
    pub(super) tier: Tier,
}

/// What a subject's precisions may differ in.
#[derive(Clone, Copy)]
pub(super) enum Varies<'a> {
    /// Weights and activations of products, which write what `--output` says.
    Product(Option<&'a str>),
    /// The cache.
    Cache,
    /// A model's layers; what its checkpoint ships in is among the usual suspects.
    Model(&'a Model),
}

pub(super) fn cases(setting: &Setting, varies: Varies<'_>) -> Result<Vec<Case>, Failure> {
    let case = |device: Device| {
        let (plans, tier) = (plans(&setting.precision, varies, &device)?, tier::spoken(setting.tier, &device));
        Ok(Case { machine: tier::machine(setting, device), plans, tier })
    };
    devices(&setting.on, &setting.rates)?.into_iter().map(case).collect()
}

pub(super) fn sizes(sizes: SizesArg) -> Sizes {
    match sizes {
        SizesArg::Exact => Sizes::Exact,
        SizesArg::Nominal => Sizes::Nominal,
    }
}

/// The plans that were asked for, else the usual ones of `device`.
pub(super) fn plans(texts: &[String], varies: Varies<'_>, device: &Device) -> Result<Vec<Plan>, Failure> {
    let mut plans = Vec::new();
    for text in texts {
        plans.extend(Plan::list(text)?);
    }
    let plans = if plans.is_empty() { common(device, varies)? } else { plans };
    let Varies::Product(Some(text)) = varies else { return Ok(plans) };
    let output = output(text)?;
    Ok(plans.into_iter().map(|plan| plan.with_output(output)).collect())
}

/// Whether a unit of `device` multiplies a plan's weights as they are stored.
pub(super) fn is_native(plan: &Plan, device: &Device) -> bool {
    let native = |plan: Assignment| plan.at(Role::Output).weights == plan.at(Role::Output).activations;
    plan.on(device, None).is_ok_and(native)
}

fn output(text: &str) -> Result<Output, Failure> {
    match text {
        "activations" | "activation" | "same" => Ok(Output::Activations),
        "accumulator" => Ok(Output::Accumulator),
        format => format.parse().map(Output::Format).map_err(|error| {
            let hint = "`activations`, `accumulator`, or a format of `roofline formats`";
            Failure::usage(format!("--output: {error}"), hint)
        }),
    }
}

/// The baseline this device multiplies fastest, and the common quantized precisions it has units for.
fn common(device: &Device, varies: Varies<'_>) -> Result<Vec<Plan>, Failure> {
    let sixteen = device.sixteen_bit().to_string();
    // A processor's own number is FP32; what is narrower is there to move fewer bytes.
    let wide = (device.kind == Kind::Cpu && !matches!(varies, Varies::Cache)).then(|| "fp32".to_owned());
    let narrow: Vec<String> = match varies {
        Varies::Product(_) => COMMON.iter().map(ToString::to_string).collect(),
        Varies::Model(model) => {
            let stored = model.stored.as_ref().and_then(Stored::precision);
            let common = COMMON.iter().copied().filter(|name| Some(*name) != stored);
            stored.into_iter().chain(common).map(str::to_owned).collect()
        }
        Varies::Cache => COMMON_KV.iter().map(|kv| format!("{sixteen}/{sixteen}/{kv}")).collect(),
    };
    let all = wide.into_iter().chain([sixteen]).chain(narrow);
    let plans: Vec<Plan> = all.map(|name| name.parse()).collect::<Result<_, _>>()?;
    let usable: Vec<Plan> = plans.into_iter().filter(|plan| plan.on(device, None).is_ok()).collect();
    if usable.is_empty() {
        let known: Vec<&str> = NAMED.iter().map(|named| named.name).collect();
        let hint = format!("give one by `--peak`, or say which by `--precision`: {}", known.join(", "));
        return Err(Failure::usage(format!("{} has no peak for any common precision", device.name), hint));
    }
    Ok(usable)
}

pub(super) fn devices(names: &[String], rates: &RateArgs) -> Result<Vec<Device>, Failure> {
    let RateArgs { bandwidth, peak } = rates;
    let peaks = Peaks::distinct(peak.iter().copied())?;
    if names.is_empty() {
        let bandwidth = bandwidth.ok_or_else(|| {
            let what = if peak.is_empty() { "no device was named" } else { "the device has no bandwidth" };
            let hint = "name one (`--on h200`), or describe one (`--bandwidth 60GB/s --peak fp16=2.7TFLOP/s`)";
            Failure::usage(what, hint)
        })?;
        return Ok(vec![Device::custom("custom", bandwidth, peaks, None)?]);
    }
    let registry = config::registry();
    let changed = bandwidth.is_some() || !peak.is_empty();
    names
        .iter()
        .map(|name| {
            let device = device(&registry, name)?;
            Ok(if changed { device.modified(*bandwidth, &peaks)? } else { device })
        })
        .collect()
}

/// A device by name, or a file; `@MODE` for a power mode of either.
pub(super) fn device(registry: &Registry, name: &str) -> Result<Device, Failure> {
    if name == "this" {
        return this::device();
    }
    let (file, mode) = name.split_once('@').map_or((name, None), |(file, mode)| (file, Some(mode)));
    if Path::new(file).extension().is_none_or(|extension| extension != "toml") {
        return Ok(registry.find(name)?.into_owned());
    }
    let device = config::read_device(Path::new(file))?;
    Ok(match mode {
        Some(mode) => device.in_mode(mode)?,
        None => device,
    })
}
