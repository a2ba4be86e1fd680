//! From what was typed to devices and precisions.

use std::path::Path;

use roofline_core::{
    Device, Format, Math,
    device::Peaks,
    format::Sizes,
    precision::{NAMED, PrecisionSpec},
};

use crate::{
    cli::{RateArgs, Setting, SizesArg},
    config,
    failure::Failure,
};

/// The precisions of a comparison nobody specified: a baseline, then what people quantize to.
const COMMON: &[&str] = &["fp8", "int8", "w8a16", "w4a16", "nvfp4"];
/// The same for attention, where the cache is what can be narrower.
const COMMON_KV: &[&str] = &["fp8", "nvfp4"];

/// Devices, with the precisions to look at on each.
pub(super) struct Job {
    pub(super) cases: Vec<(Device, Vec<PrecisionSpec>)>,
    pub(super) sizes: Sizes,
    /// The output rule that depends on the unit.
    pub(super) accumulator: bool,
}

/// `attention` tells which precisions to compare when none were named.
pub(super) fn job(setting: &Setting, attention: bool) -> Result<Job, Failure> {
    let specs = setting.precision.iter().map(|text| text.parse()).collect::<Result<Vec<PrecisionSpec>, _>>()?;
    let cases = devices(&setting.on, &setting.rates)?
        .into_iter()
        .map(|device| {
            let specs = if specs.is_empty() { common(&device, attention)? } else { specs.clone() };
            let specs = specs.into_iter().map(|spec| adjusted(spec, setting)).collect::<Result<_, Failure>>()?;
            Ok((device, specs))
        })
        .collect::<Result<_, Failure>>()?;
    let sizes = match setting.sizes {
        SizesArg::Exact => Sizes::Exact,
        SizesArg::Nominal => Sizes::Nominal,
    };
    Ok(Job { cases, sizes, accumulator: setting.output.as_deref() == Some("accumulator") })
}

/// `--kv` and `--output` on top of a precision.
fn adjusted(mut spec: PrecisionSpec, setting: &Setting) -> Result<PrecisionSpec, Failure> {
    if let Some(kv) = &setting.kv {
        spec = spec.with_kv(kv.parse()?);
    }
    Ok(match setting.output.as_deref() {
        None | Some("accumulator") => spec,
        Some("activations") => spec.with_activation_output(),
        Some(format) => spec.with_output(format.parse()?),
    })
}

/// What a unit accumulates in, and so what a product writes when nothing rounds it first.
pub(super) fn accumulator(math: Math) -> Format {
    match math {
        Math::Fp64 | Math::Fp64Tensor => Format::FP64,
        Math::Fp16Acc16 | Math::Fp8Acc16 => Format::FP16,
        // INT32 has the size of FP32, and size is what counts here.
        _ => Format::FP32,
    }
}

/// The baseline this device multiplies fastest, and the common quantized precisions it has units for.
fn common(device: &Device, attention: bool) -> Result<Vec<PrecisionSpec>, Failure> {
    let sixteen = device.sixteen_bit().to_string();
    let names: Vec<String> = if attention {
        COMMON_KV.iter().map(|kv| format!("{sixteen}/{sixteen}/{kv}")).collect()
    } else {
        COMMON.iter().map(ToString::to_string).collect()
    };
    let names = std::iter::once(sixteen).chain(names);
    let specs: Vec<PrecisionSpec> = names.map(|name| name.parse()).collect::<Result<_, _>>()?;
    let usable: Vec<PrecisionSpec> = specs.into_iter().filter(|spec| spec.on(device).is_ok()).collect();
    if usable.is_empty() {
        let known: Vec<&str> = NAMED.iter().map(|named| named.name).collect();
        let message = format!("{} has no peak for any common precision", device.name);
        return Err(Failure::usage(
            message,
            format!("give one by `--peak`, or say which by `--precision`: {}", known.join(", ")),
        ));
    }
    Ok(usable)
}

fn devices(names: &[String], rates: &RateArgs) -> Result<Vec<Device>, Failure> {
    let RateArgs { bandwidth, peak, memory } = rates;
    let peaks: Peaks = peak.iter().copied().collect();
    if names.is_empty() {
        let missing = |what: &str| {
            Failure::usage(
                what,
                "name a device (`--on h200`), or describe one (`--bandwidth 60GB/s --peak fp16=2.7TFLOP/s`)",
            )
        };
        let bandwidth = bandwidth.ok_or_else(|| {
            missing(if peak.is_empty() { "no device was named" } else { "the device has no bandwidth" })
        })?;
        return Ok(vec![Device::custom("custom", bandwidth, peaks, *memory)?]);
    }
    let changed = bandwidth.is_some() || memory.is_some() || !peak.is_empty();
    names
        .iter()
        .map(|name| {
            let device = device(name)?;
            Ok(if changed { device.modified(*bandwidth, &peaks, *memory)? } else { device })
        })
        .collect()
}

/// A device by name, or a file.
pub(super) fn device(name: &str) -> Result<Device, Failure> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "toml") {
        return config::read_device(path);
    }
    Ok(config::registry().find(name)?.into_owned())
}
