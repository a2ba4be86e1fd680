//! Which machines a question is about, by which plans, and which of the two times is spoken of.

use std::borrow::Cow;

use roofline_core::{
    Device, Machine, Model, Plan, Role,
    calibration::{Calibration, Terms},
    device::{Kind, Origin, Peaks},
    machine::Stack,
    model::Stored,
    plan::Assignment,
    precision::{NAMED, Output},
    predict::Tier,
    published::Effects,
};

use crate::{
    Context, Error, Result,
    request::{Rates, Setting},
};

/// The precisions of a comparison nobody specified: a baseline, then what people quantize to.
const COMMON: &[&str] = &["fp8", "int8", "w8a16", "w4a16", "nvfp4"];
/// The same for attention, where the cache is what can be narrower.
const COMMON_KV: &[&str] = &["fp8", "nvfp4"];

/// A machine, the plans to look at on it, and which of its times is spoken of.
pub struct Case {
    /// Where.
    pub machine: Machine,
    /// In which formats.
    pub plans: Vec<Plan>,
    /// Which time.
    pub tier: Tier,
}

/// What a subject's precisions may differ in.
#[derive(Clone, Copy)]
pub enum Varies<'a> {
    /// Weights and activations of products, which write what is said.
    Product(Option<&'a str>),
    /// The cache.
    Cache,
    /// A model's layers; what its checkpoint ships in is among the usual suspects.
    Model(&'a Model),
}

/// Every machine of a setting with the plans to look at.
pub fn cases(context: &Context, setting: &Setting, varies: Varies<'_>) -> Result<Vec<Case>> {
    let case = |device: Device| {
        let (plans, tier) = (plans(&setting.precision, varies, &device)?, spoken(setting.tier, &device));
        let machine = usual(context, device, setting.stack).counting(setting.sizes);
        Ok(Case { machine, plans, tier })
    };
    devices(context, &setting.on, &setting.rates)?.into_iter().map(case).collect()
}

/// `device` under the runtime that was named, else under the usual one, and where that is not ours it is said.
pub fn usual(context: &Context, device: Device, stack: Option<Stack>) -> Machine {
    let usual = Stack::usual(&device);
    if stack.is_none() && usual != Stack::Roofline {
        context.note(format!(
            "roofline has no kernels for {}: expected is what {usual} reaches there (`⟨stack⟩` names another runtime)",
            device.name
        ));
    }
    machine(context, device, stack.unwrap_or(usual))
}

/// `device` with everything that is known of a stack's kernels on it: the user's calibration, that which ships, or what its
/// class has in common.
pub fn machine(context: &Context, device: Device, stack: Stack) -> Machine {
    let own = calibration(context, &device, stack);
    let mut machine = Machine::new(device, stack);
    if let Some(effects) = own_terms(context) {
        machine = machine.reaching(&effects);
    }
    if own.is_some() {
        return machine.calibrated(own);
    }
    if let Some(moved) = machine.calibration().filter(|_| machine.is_moved()) {
        context.note(format!("nobody timed {stack} on {}; {}", machine.device.name, moved.provenance));
    }
    machine
}

/// The folder and the name that the user's own terms of runtimes are kept under.
pub(crate) const OWN_TERMS: (&str, &str) = ("published", "terms");

/// Terms of runtimes that the user fitted; none where those that ship are in use.
pub(crate) fn own_terms(context: &Context) -> Option<Effects> {
    match context.kept::<Effects>(OWN_TERMS.0, OWN_TERMS.1)?.checked() {
        Ok(own) => Some(own),
        Err(error) => {
            context.warn(format!("left out: {error}"));
            None
        }
    }
}

/// The tier that was asked for; left out, the one to expect, but for a chip that is only rates.
pub fn spoken(tier: Option<Tier>, device: &Device) -> Tier {
    tier.unwrap_or(if device.origin == Origin::Flags { Tier::Ideal } else { Tier::Expected })
}

/// The calibration to use for a device and a stack: the user's own, else the one that ships with the program, and then
/// that is said. A device with other rates than its own has none.
pub fn calibration(context: &Context, device: &Device, stack: Stack) -> Option<Cow<'static, Calibration>> {
    own_calibration(context, device, stack).map(Cow::Owned).or_else(|| {
        let shipped = Calibration::builtin(device, stack.name())?;
        context.note(match &shipped.terms {
            Terms::Timed(_) => {
                let (median, p90) = (shipped.quality.median * 100.0, shipped.quality.p90 * 100.0);
                format!(
                    "{stack} on {} by public timings, half of which were forecast within {median:.0} % and nine of ten within \
                     {p90:.0} % without having been seen: {}",
                    device.name, shipped.provenance
                )
            }
            _ => format!("the calibration of {} that ships with roofline is used", device.name),
        });
        Some(Cow::Borrowed(shipped))
    })
}

/// The calibration that was made here.
fn own_calibration(context: &Context, device: &Device, stack: Stack) -> Option<Calibration> {
    if device.origin == Origin::Modified {
        return None;
    }
    let kept = context.kept::<Calibration>("calibrations", &calibration_name(device, stack))?;
    match kept.checked() {
        Ok(kept) if kept.device == device.label() && kept.stack == stack.name() => Some(kept),
        Ok(_) => None,
        Err(error) => {
            context.warn(format!("left out: {error}"));
            None
        }
    }
}

/// The name that a calibration is kept under.
pub fn calibration_name(device: &Device, stack: Stack) -> String {
    format!("{}.{}", device.label(), stack.name())
}

/// The plans that were asked for, else the usual ones of `device`.
pub fn plans(texts: &[String], varies: Varies<'_>, device: &Device) -> Result<Vec<Plan>> {
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
pub fn is_native(plan: &Plan, device: &Device) -> bool {
    let native = |plan: Assignment| plan.at(Role::Output).weights == plan.at(Role::Output).activations;
    plan.on(device, None).is_ok_and(native)
}

fn output(text: &str) -> Result<Output> {
    match text {
        "activations" | "activation" | "same" => Ok(Output::Activations),
        "accumulator" => Ok(Output::Accumulator),
        format => format.parse().map(Output::Format).map_err(|error| {
            let hint = "`activations`, `accumulator`, or a format of `⟨roofline formats⟩`";
            Error::request(format!("`⟨output⟩`: {error}"), hint)
        }),
    }
}

/// The baseline this device multiplies fastest, and the common quantized precisions it has units for.
fn common(device: &Device, varies: Varies<'_>) -> Result<Vec<Plan>> {
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
    let plans: Vec<Plan> = all.map(|name| name.parse()).collect::<std::result::Result<_, _>>()?;
    let usable: Vec<Plan> = plans.into_iter().filter(|plan| plan.on(device, None).is_ok()).collect();
    if usable.is_empty() {
        let known: Vec<&str> = NAMED.iter().map(|named| named.name).collect();
        let hint = format!("give one by `⟨peak⟩`, or say which by `⟨precision⟩`: {}", known.join(", "));
        return Err(Error::request(format!("{} has no peak for any common precision", device.name), hint));
    }
    Ok(usable)
}

/// The devices that were named, with other rates where those are given; a chip of its rates alone where none was.
pub fn devices(context: &Context, names: &[String], rates: &Rates) -> Result<Vec<Device>> {
    let Rates { bandwidth, peak } = rates;
    let peaks = Peaks::distinct(peak.iter().map(|peak| (peak.math, peak.rate)))?;
    if names.is_empty() {
        let bandwidth = bandwidth.ok_or_else(|| {
            let what = if peak.is_empty() { "no device was named" } else { "the device has no bandwidth" };
            let hint = "name one (`⟨on h200⟩`), or describe one (`⟨bandwidth 60GB/s⟩ ⟨peak fp16=2.7TFLOP/s⟩`)";
            Error::request(what, hint)
        })?;
        return Ok(vec![Device::custom("custom", bandwidth, peaks, None)?]);
    }
    let one = |name: &String| {
        let device = context.device(name)?;
        Ok(if rates.given() { device.modified(*bandwidth, &peaks)? } else { device })
    };
    names.iter().map(one).collect()
}
