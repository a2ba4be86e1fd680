//! Which model on which device, in which format, and how that counts.

use std::borrow::Cow;

use roofline_core::{
    Device, Dim, Format, Machine, Math, Model, Plan, Precision, Role,
    device::Origin,
    format::Sizes,
    plan::Assignment,
    units::{Bytes, Intensity},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    Context, Error, Result,
    machine::{self, devices},
    request::{ModelName, Rates},
};

/// The device of a question that names none, where this machine has no GPU that we know.
const USUAL_DEVICE: &str = "t4";
const USUAL_MODEL: &str = "mistral-7b";

/// A model on a device.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Place {
    /// A name of the registry, a path, or the content of a config.json; Mistral 7B when left out
    pub model: Option<ModelName>,
    /// What a model of one's own is called
    pub model_name: Option<String>,
    /// A device of the registry; left out, the chip of these rates, else this machine's GPU, else a T4
    pub on: Option<String>,
    #[serde(flatten)]
    pub rates: Rates,
    /// What a device of one's own is called
    pub device_name: Option<String>,
    /// The memory of a device of one's own, such as 16GB
    #[schemars(with = "Option<String>")]
    pub memory: Option<Bytes>,
    /// A plan, such as w4a16; left out, 16 bit everywhere
    pub precision: Option<String>,
    /// Bytes of every number instead: 4, 2, 1 or 0.5, scales not counted
    pub dtype_bytes: Option<f64>,
    /// The unit whose peak is the roof: fp16, fp32, int8; the one of the precision when left out
    pub dtype: Option<String>,
}

/// The same, found.
pub(super) struct Found {
    pub(super) model: Model,
    pub(super) machine: Machine,
    pub(super) plan: Assignment,
    pub(super) precision: String,
    /// The unit whose peak is the roof.
    pub(super) math: Math,
}

impl Place {
    pub(super) fn model(&self, context: &Context) -> Result<Model> {
        let usual = ModelName::from(USUAL_MODEL);
        let model = context.model(self.model.as_ref().unwrap_or(&usual))?;
        Ok(match &self.model_name {
            Some(name) => Model { name: name.clone(), ..model },
            None => model,
        })
    }

    pub(super) fn device(&self, context: &Context) -> Result<Device> {
        let name = match &self.on {
            Some(name) => Some(Cow::Borrowed(name.as_str())),
            None if self.rates.given() => None,
            None => return usual(context),
        };
        let names: Vec<String> = name.into_iter().map(Cow::into_owned).collect();
        let device = devices(context, &names, &self.rates)?.pop();
        let mut device = device.ok_or_else(|| Error::request("no device was named", "name one: `⟨on t4⟩`"))?;
        if let Some(name) = self.device_name.as_ref().filter(|_| device.origin != Origin::Builtin) {
            device.name.clone_from(name);
        }
        device.memory.capacity = self.memory.or(device.memory.capacity);
        Ok(device)
    }

    pub(super) fn find(&self, context: &Context) -> Result<Found> {
        let (model, device) = (self.model(context)?, self.device(context)?);
        let sixteen = device.sixteen_bit();
        let (plan, precision, sizes) = match (self.dtype_bytes, &self.precision) {
            (Some(_), Some(_)) => {
                let hint = "a plan says how many bytes each number has";
                return Err(Error::request("`⟨dtype_bytes⟩` and `⟨precision⟩` are two answers to one question", hint));
            }
            (Some(bytes), None) => {
                let precision = uniform(width(bytes, sixteen)?, self.unit(&device)?);
                (Assignment::uniform(precision), precision.weights.to_string(), Sizes::Nominal)
            }
            (None, Some(text)) => {
                let plan: Plan = text.parse()?;
                (plan.on(&device, Some(&model.anatomy))?, plan.label(), Sizes::Exact)
            }
            (None, None) => {
                let precision = uniform(sixteen, self.unit(&device)?);
                (Assignment::uniform(precision), sixteen.to_string(), Sizes::Exact)
            }
        };
        let math = if self.precision.is_some() && self.dtype.is_none() {
            plan.at(Role::Output).math
        } else {
            self.unit(&device)?
        };
        let machine = machine::usual(context, with_vectors(context, device, math), None).counting(sizes);
        Ok(Found { model, machine, plan, precision, math })
    }

    /// The unit that is named, else the one for 16 bit.
    pub(super) fn unit(&self, device: &Device) -> Result<Math> {
        let Some(name) = &self.dtype else {
            let wide = [Math::Bf16, Math::Fp16];
            return device.fastest(&wide).or_else(|| device.fastest(&[Math::Fp32])).ok_or_else(|| {
                let hint = "give one, such as `⟨peak fp16=65TFLOP/s⟩`";
                Error::request(format!("{} has no 16-bit peak", device.name), hint)
            });
        };
        let math: Math = name.parse()?;
        if device.peaks.of(math).is_some() {
            return Ok(math);
        }
        let units: Vec<&str> = device.peaks.iter().map(|(math, _)| math.key()).collect();
        Err(Error::request(
            format!("{} has no {} peak", device.name, math.label()),
            format!("it has {}", units.join(", ")),
        ))
    }
}

/// The device with a rate for element-wise kernels, where it is only rates and nobody gave that one: such kernels wait for
/// memory, so any rate of the chip's size does.
fn with_vectors(context: &Context, mut device: Device, math: Math) -> Device {
    if device.origin == Origin::Flags
        && device.peaks.of(Math::Fp32).is_none()
        && let Some(peak) = device.peaks.of(math)
    {
        context.note(format!(
            "{} has no FP32 peak: element-wise kernels, which wait for memory, are taken to run at its {} peak",
            device.name,
            math.label()
        ));
        device.peaks.set(Math::Fp32, peak);
    }
    device
}

/// One format for every number.
fn uniform(format: Format, math: Math) -> Precision {
    let (weights, activations, kv, output, query) = (format, format, format, format, format);
    Precision { weights, activations, kv, output, query, math, attention: math }
}

fn width(bytes: f64, sixteen: Format) -> Result<Format> {
    match bytes {
        4.0 => Ok(Format::FP32),
        2.0 => Ok(sixteen),
        1.0 => Ok(Format::INT8),
        0.5 => Ok(Format::INT4_G128),
        _ => Err(Error::request(format!("no number has {bytes} bytes"), "4, 2, 1 or 0.5")),
    }
}

/// This machine's GPU, where it has one that the registry knows; else one that everybody can borrow, and that is said.
fn usual(context: &Context) -> Result<Device> {
    #[cfg(feature = "hardware")]
    if context.is_local() && roofline_run::cuda::present() {
        match crate::gpu::device(context, 0) {
            Ok(device) => return Ok(device),
            Err(error) => context.warn(format!("{error}: a T4 stands in for it")),
        }
    }
    let device = context.device(USUAL_DEVICE)?;
    context.note(format!("no device was named: the {} is taken", device.name));
    Ok(device)
}

impl Found {
    pub(super) fn device(&self) -> &Device {
        &self.machine.device
    }

    /// The roof's height and the place of its ridge.
    pub(super) fn ridge(&self) -> Result<Intensity> {
        ridge(self.device(), self.math)
    }
}

pub(super) fn ridge(device: &Device, math: Math) -> Result<Intensity> {
    device.critical_intensity(math).ok_or_else(|| {
        let hint = "name a unit that it has: `⟨dtype⟩`";
        Error::request(format!("{} has no {} peak", device.name, math.label()), hint)
    })
}

/// One, for batches that are left out.
pub(super) fn one() -> Dim {
    Dim::ONE
}

/// Lengths that everybody looks at.
pub(super) fn lengths() -> Vec<Dim> {
    [128, 256, 512, 1024, 2048].into_iter().filter_map(|length| Dim::new("tokens", length).ok()).collect()
}
