//! Which format at which place, and which unit multiplies.
//!
//! A name such as `w4a16` is a [`PrecisionSpec`]: what was asked for. [`PrecisionSpec::on`] resolves it for a device to
//! a [`Precision`]: "16 bit" becomes BF16 or FP16, and the unit that multiplies is chosen among those the device has.
//! Weight-only formats move fewer bytes and keep the 16-bit ceiling; only narrower *activations* reach a faster unit.
//! Except on a processor, whose kernels may take 16-bit activations and integer weights to its integer units.

mod multiply;
mod table;

pub use table::{NAMED, Named, advisable};

use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::multiply::{fastest, may_run_on, units_for};
use crate::{Device, Error, Format, Math, Result, format::BlockScaling, plan::Mix};

/// A precision as asked for: a name of the table, or `weights/activations[/kv]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrecisionSpec {
    name: String,
    weights: Slot,
    activations: Slot,
    kv: Slot,
    /// Queries, and outputs where nothing else was asked for.
    wide: Slot,
    output: Option<Output>,
    /// The unit, where one was named.
    unit: Option<Math>,
    /// Whether llama.cpp's kernels multiply it, which choose their unit themselves.
    ggml: bool,
}

/// What products write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// This format.
    Format(Format),
    /// What the next product reads.
    Activations,
    /// What the unit accumulates in, unrounded.
    Accumulator,
}

/// A place for a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// BF16 or FP16, whichever the device multiplies faster.
    Sixteen,
    /// This format.
    Fixed(Format),
}

/// A precision on a device: every format known, and the units that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Precision {
    /// Stored weights.
    pub weights: Format,
    /// Inputs of linear layers.
    pub activations: Format,
    /// Cached keys and values.
    pub kv: Format,
    /// Outputs of linear layers.
    pub output: Format,
    /// Queries and outputs of attention.
    pub query: Format,
    /// The unit that multiplies weights and activations.
    pub math: Math,
    /// The unit that multiplies queries, keys and values: attention runs at the queries' precision, whatever the KV cache
    /// is stored in.
    #[serde(rename = "attention_math")]
    pub attention: Math,
}

/// The formats of a [`PrecisionSpec`], as far as it fixes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Stored weights.
    pub weights: Option<Format>,
    /// Inputs of linear layers.
    pub activations: Option<Format>,
    /// Cached keys and values.
    pub kv: Option<Format>,
    /// Outputs of linear layers, and queries.
    pub output: Option<Format>,
}

impl PrecisionSpec {
    /// The name it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The one name of what was asked for: that of the table, where it was asked for by another.
    pub fn canonical(&self) -> &str {
        NAMED.iter().find(|named| named.answers_to(&self.name)).map_or(&self.name, |named| named.name)
    }

    /// The formats it names; none where 16 bit is all it says.
    pub fn formats(&self) -> Formats {
        let named = |slot: Slot| match slot {
            Slot::Sixteen => None,
            Slot::Fixed(format) => Some(format),
        };
        Formats {
            weights: named(self.weights),
            activations: named(self.activations),
            kv: named(self.kv),
            output: named(self.wide),
        }
    }

    /// The same with other outputs of linear layers.
    #[must_use]
    pub fn with_output(self, output: Output) -> Self {
        Self { output: Some(output), ..self }
    }

    /// What this means on `device`. A unit the device lacks is an error: nothing stands in for it.
    pub fn on(&self, device: &Device) -> Result<Precision> {
        self.resolved(device, device.sixteen_bit())
    }

    /// The same with `sixteen` for "16 bit": a part of a model reads and writes what the rest of it does.
    pub(crate) fn resolved(&self, device: &Device, sixteen: Format) -> Result<Precision> {
        let format = |slot: Slot| match slot {
            Slot::Sixteen => sixteen,
            Slot::Fixed(format) => format,
        };
        let (weights, activations) = (format(self.weights), format(self.activations));
        let units = units_for(weights, activations)
            .ok_or_else(|| Error::NoUnit { weights: weights.to_string(), activations: activations.to_string() })?;
        let math = match self.unit {
            Some(unit) if !may_run_on(unit, weights, units) => return Err(self.unfit(unit, units)),
            Some(unit) => device.fastest(&[unit]).ok_or_else(|| self.missing(device, unit, activations))?,
            None => fastest(device, weights, activations, units, self.ggml)
                .ok_or_else(|| self.missing(device, units[0], activations))?,
        };
        if !device.takes(activations) {
            return Err(self.unscaled(device, activations));
        }
        let query = format(self.wide);
        let output = match self.output {
            None => query,
            Some(Output::Format(format)) => format,
            Some(Output::Activations) => activations,
            Some(Output::Accumulator) => math.accumulator(),
        };
        let attention_units = units_for(query, query).unwrap_or(units);
        let attention = fastest(device, query, query, attention_units, false).unwrap_or(attention_units[0]);
        Ok(Precision { weights, activations, kv: format(self.kv), output, query, math, attention })
    }

    /// What to use where a unit is missing: the table's word, or 16-bit activations if they are not already.
    fn instead(&self, activations: Format) -> Option<String> {
        let named = NAMED.iter().find(|named| named.answers_to(&self.name));
        let listed = named.and_then(|named| named.instead).map(|instead| format!("use {instead}"));
        let narrow = activations.nominal_bits() < 16;
        listed.or_else(|| narrow.then(|| "keep the activations at 16 bit".to_owned()))
    }

    fn missing(&self, device: &Device, math: Math, activations: Format) -> Error {
        let units: Vec<&str> = device.peaks.iter().map(|(math, _)| math.key()).collect();
        let known = if units.is_empty() { "no peaks".to_owned() } else { units.join(", ") };
        let peak = format!("it has {known}; a peak you know goes in by `⟨peak {}=...⟩`", math.key());
        let hint = self.instead(activations).map_or_else(|| peak.clone(), |instead| format!("{instead}; {peak}"));
        Error::MissingPeak {
            what: format!("`{}`", self.name),
            math: math.to_string(),
            device: device.name.clone(),
            hint,
        }
    }

    /// A unit was named that cannot multiply these operands.
    fn unfit(&self, unit: Math, units: &[Math]) -> Error {
        let known: Vec<&str> = Math::ALL.iter().filter(|math| units.contains(math)).map(|math| math.key()).collect();
        Error::Unknown {
            what: "unit for this precision",
            name: unit.key().to_owned(),
            nearest: None,
            hint: format!("`{}` is multiplied by {}", self.name, known.join(", ")),
        }
    }

    /// The device has the rate, but not for operands stored so.
    fn unscaled(&self, device: &Device, activations: Format) -> Error {
        let hint = self.instead(activations).unwrap_or_default();
        let math = match activations.block_scaling() {
            Some(BlockScaling::Mx) => "MX block-scaled",
            Some(BlockScaling::Nvfp4) => "NVFP4 block-scaled",
            None => "FP6",
        };
        let math = math.to_owned();
        Error::MissingPeak { what: format!("`{}`", self.name), math, device: device.name.clone(), hint }
    }
}

impl FromStr for PrecisionSpec {
    type Err = Error;

    /// A name of the table, a format of weights, or `weights/activations[/kv]`; after an `@`, the unit that multiplies.
    fn from_str(text: &str) -> Result<Self> {
        let whole = text.trim().to_ascii_lowercase();
        if let Some((name, unit)) = whole.split_once('@') {
            let (spec, unit) = (name.parse::<Self>()?, unit.parse::<Math>()?);
            return Ok(Self { name: format!("{}@{}", spec.name, unit.key()), unit: Some(unit), ..spec });
        }
        let name = whole.replace('_', "-");
        if name.contains('/') {
            return long_form(&name);
        }
        if let Some(named) = NAMED.iter().find(|named| named.answers_to(&name)) {
            return Ok(Self { name, ..named.precision() });
        }
        if let Some((_, meant)) = table::PRESETS.iter().find(|(preset, _)| *preset == name) {
            let spec: Self = meant.parse()?;
            return Ok(if meant.contains('/') { Self { name, ..spec } } else { spec });
        }
        if let Ok(format) = name.parse::<Format>() {
            return Ok(Self::weights_only(format));
        }
        if let Some(mix) = Mix::named(&name) {
            return Ok(Self { name: mix.name().to_owned(), ..Self::weights_only(mix.base()) });
        }
        let known = NAMED.iter().flat_map(|named| named.aliases.iter().copied().chain([named.name]));
        let known = known.chain(Mix::ALL.iter().map(|mix| mix.name()));
        let hint = "`⟨roofline precisions⟩` lists them; `weights/activations/kv` says everything, \
                    for instance `int4-g128/bf16/fp8`";
        Err(Error::unknown("precision", text, known, hint))
    }
}

impl PrecisionSpec {
    /// Weights of a format, all else 16 bit. A format alone may be the name of a precision whose activations are in it, too.
    pub fn weights_only(format: Format) -> Self {
        Self {
            name: Named::of_weights(format).map_or_else(|| format.to_string(), str::to_owned),
            weights: Slot::Fixed(format),
            activations: Slot::Sixteen,
            kv: Slot::Sixteen,
            wide: Slot::Sixteen,
            output: None,
            unit: None,
            ggml: format.gguf().is_some(),
        }
    }

    /// 16 bit throughout: BF16 or FP16, whichever a device multiplies faster.
    pub fn sixteen() -> Self {
        let slot = Slot::Sixteen;
        let name = "16bit".to_owned();
        Self { name, weights: slot, activations: slot, kv: slot, wide: slot, output: None, unit: None, ggml: false }
    }
}

/// `weights/activations[/kv]`.
fn long_form(name: &str) -> Result<PrecisionSpec> {
    let parts: Vec<&str> = name.split('/').collect();
    let (weights, activations, kv) = match parts[..] {
        [weights, activations] => (weights, activations, None),
        [weights, activations, kv] => (weights, activations, Some(kv)),
        _ => {
            let hint = "write `weights/activations` or `weights/activations/kv`, for instance `int4-g128/bf16/fp8`";
            return Err(Error::unknown("precision", name, [], hint));
        }
    };
    // `_` has become `-` by now; ggml's names are written with `_`.
    let spelled = |part: &&str| match part.parse::<Format>() {
        Ok(format) if format.gguf().is_some() => format.to_string(),
        _ => (*part).to_owned(),
    };
    let name = parts.iter().map(spelled).collect::<Vec<_>>().join("/");
    let activations: Format = activations.parse()?;
    // Wide activations stay what they are; narrow ones are the inputs of products that write 16 bit.
    let wide = if activations.nominal_bits() >= 16 { Slot::Fixed(activations) } else { Slot::Sixteen };
    Ok(PrecisionSpec {
        name,
        weights: Slot::Fixed(weights.parse()?),
        activations: Slot::Fixed(activations),
        kv: kv.map(|kv| kv.parse().map(Slot::Fixed)).transpose()?.unwrap_or(wide),
        wide,
        output: None,
        unit: None,
        ggml: false,
    })
}

impl fmt::Display for PrecisionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Registry,
        device::{Kind, Peaks},
        units::{ByteRate, FlopRate},
    };

    fn on(precision: &str, device: &str) -> Result<Precision> {
        precision.parse::<PrecisionSpec>()?.on(&*Registry::builtin().find(device)?)
    }

    #[test]
    fn sixteen_bit_is_what_the_device_multiplies() {
        assert_eq!(on("w4a16", "h200").unwrap().math, Math::Bf16);
        assert_eq!(on("w4a16", "t4").unwrap().math, Math::Fp16); // no BF16 on Turing
        assert_eq!(on("w4a16", "t4").unwrap().output, Format::FP16);
        assert_eq!(on("w4a16", "tpu_v5e").unwrap().math, Math::Bf16); // no FP16 on TPUs
        assert_eq!(on("w4a16", "mi100").unwrap().math, Math::Fp16); // BF16 at half the rate
    }

    /// Pascal cards multiply FP16 at 1/64 of the FP32 rate: cuBLAS widens, and llama.cpp takes dot products of INT8.
    #[test]
    fn a_slow_sixteen_bit_unit_is_not_used() {
        assert_eq!(on("fp16", "p40").unwrap().math, Math::Fp32);
        assert_eq!(on("fp16", "p40").unwrap().attention, Math::Fp32);
        assert_eq!(on("w4a16", "gtx_1080_ti").unwrap().math, Math::Fp32);
        assert_eq!(on("q4_0", "p40").unwrap().math, Math::Int8Dp4a);
        assert_eq!(on("fp16", "p100").unwrap().math, Math::Fp16);
        assert_eq!(on("fp16", "apple_m1").unwrap().math, Math::Fp16);
        // What a card has no unit for at all is still an error.
        assert!(on("bf16", "t4").is_err() && on("bf16", "p40").is_err());
    }

    #[test]
    fn a_processor_widens_what_it_cannot_multiply() {
        let peaks = Peaks::distinct([(Math::Fp32, FlopRate::new(1e11))]).unwrap();
        let device = Device::custom("plain", ByteRate::new(1e10), peaks, None).unwrap();
        let on = |name: &str, kind: Kind| {
            name.parse::<PrecisionSpec>()
                .unwrap()
                .on(&Device { kind, ..device.clone() })
                .map(|precision| precision.math)
        };
        for name in ["bf16", "fp16", "w4a16", "nf4", "fp8a16"] {
            assert_eq!(on(name, Kind::Cpu), Ok(Math::Fp32), "{name}");
            assert!(on(name, Kind::Gpu).is_err(), "{name}");
        }
        assert!(on("int8", Kind::Cpu).is_err());
        assert!(on("fp8", Kind::Cpu).is_err());
    }

    /// A kernel that multiplies 16-bit numbers as integers at twice the rate of FP32 would else be faster than light.
    #[test]
    fn a_processor_multiplies_few_levels_as_integers() {
        let device = |kind, rates: &[(Math, f64)]| {
            let peaks = rates.iter().map(|(math, rate)| (*math, FlopRate::new(*rate)));
            let device = Device::custom("plain", ByteRate::new(1e10), Peaks::distinct(peaks).unwrap(), None).unwrap();
            Device { kind, ..device }
        };
        let math = |name: &str, device: &Device| name.parse::<PrecisionSpec>().unwrap().on(device).unwrap().math;
        let laptop = [(Math::Fp32, 1e11), (Math::Int16, 2e11)];
        let few = ["w8a16", "w4a16", "int3", "int2", "nf4", "nvfp4a16", "mxfp4a16", "int4-g128-zp/bf16", "int4/fp16"];
        let blocks = ["q8_0/bf16", "q6_k/bf16", "q5_k/fp16", "q4_k/bf16", "q4_0/bf16"];
        for name in few.iter().chain(&blocks) {
            assert_eq!(math(name, &device(Kind::Cpu, &laptop)), Math::Int16, "{name}");
        }
        // FP8 spans more powers of two than an integer has bits, 16-bit weights are no integers, and 32-bit activations
        // take twice the products.
        for name in ["bf16", "fp16", "fp32", "fp8a16", "int8/fp32", "mxfp6/bf16"] {
            assert_eq!(math(name, &device(Kind::Cpu, &laptop)), Math::Fp32, "{name}");
        }
        let attention = |name: &str| name.parse::<PrecisionSpec>().unwrap().on(&device(Kind::Cpu, &laptop)).unwrap();
        assert_eq!(attention("w4a16").attention, Math::Fp32);
        // The fastest counts: tiles of BF16 where a server has them.
        let server = device(Kind::Cpu, &[laptop[0], laptop[1], (Math::Bf16, 3e12)]);
        assert_eq!((math("w4a16", &server), math("bf16", &server)), (Math::Bf16, Math::Bf16));
        let early = device(Kind::Cpu, &[laptop[0], (Math::Bf16, 0.9e11)]);
        assert_eq!((math("w4a16", &early), math("bf16", &early)), (Math::Fp32, Math::Fp32));
        // A graphics card's library multiplies what it was given.
        let card = device(Kind::Gpu, &[laptop[0], laptop[1], (Math::Bf16, 0.9e11)]);
        assert_eq!((math("w4a16", &card), math("bf16", &card)), (Math::Bf16, Math::Bf16));
    }

    #[test]
    fn only_narrow_activations_reach_a_narrow_unit() {
        assert_eq!(on("int8", "h200").unwrap().math, Math::Int8);
        assert_eq!(on("w8a16", "h200").unwrap().math, Math::Bf16);
        assert_eq!(on("w4a8", "h200").unwrap().math, Math::Fp8);
        assert_eq!(on("nvfp4", "b200").unwrap().math, Math::Fp4);
        assert_eq!(on("nvfp4a16", "b200").unwrap().math, Math::Bf16);
        assert_eq!(on("nvfp4/fp8/fp8", "b200").unwrap().math, Math::Fp8);
        assert_eq!(on("mxfp6", "mi355x").unwrap().math, Math::Fp6);
        assert_eq!(on("mxfp6", "b200").unwrap().math, Math::Fp8);
        assert_eq!(on("mxfp8", "gb10").unwrap().math, Math::Fp8);
        assert_eq!(on("int8", "v100").unwrap().math, Math::Int8Dp4a);
        assert_eq!(on("int4/int4", "t4").unwrap().math, Math::Int4);
        assert_eq!(on("bf16/fp8", "h200").unwrap().math, Math::Bf16);
        assert_eq!(on("fp32", "mi250x").unwrap().math, Math::Fp32Matrix);
        assert_eq!(on("fp8", "h200").unwrap().attention, Math::Bf16);
        assert_eq!(on("fp32", "h200").unwrap().attention, Math::Fp32);
    }

    #[test]
    fn blocks_of_ggml_are_weights_and_caches() {
        let spec: PrecisionSpec = "Q4_K/BF16/q8-0".parse().unwrap();
        assert_eq!(spec.to_string(), "q4_k/bf16/q8_0");
        let precision = on("Q4_K/BF16/q8-0", "h200").unwrap();
        assert_eq!((precision.weights, precision.activations), (Format::Q4_K, Format::BF16));
        assert_eq!((precision.kv, precision.output, precision.math), (Format::Q8_0, Format::BF16, Math::Bf16));
        for name in ["q8_0", "q6_k", "q5_k", "q5_0", "q4_k", "q4_0"] {
            assert_eq!(on(&format!("{name}/bf16"), "h200").unwrap().math, Math::Bf16, "{name}");
            assert_eq!(on(&format!("{name}/fp16"), "t4").unwrap().math, Math::Fp16, "{name}");
            assert_eq!(on(&format!("{name}/int8"), "h200").unwrap().math, Math::Int8, "{name}");
        }
        assert_eq!(on("q6_k/int4", "t4").unwrap().math, Math::Int8);
        assert!(matches!(on("bf16/q4_k", "h200"), Err(Error::NoUnit { .. })));
        assert_eq!(Format::Q8_0.native_units(), Some(&[Math::Int8, Math::Int8Dp4a][..]));
        assert!(Format::Q4_0.native_units().is_none() && Format::Q6_K.native_units().is_none());
    }

    #[test]
    fn a_missing_unit_is_an_error_with_a_way_out() {
        let error = on("fp8", "a100").unwrap_err();
        assert_eq!(error.to_string(), "`fp8` needs FP8 math, which A100 SXM4 80GB does not have");
        assert!(error.hint().unwrap().starts_with("use w8a16 or fp8a16;"), "{:?}", error.hint());
        assert!(on("bf16", "t4").unwrap_err().hint().unwrap().starts_with("use fp16;"));
        assert!(on("nvfp4", "h200").unwrap_err().hint().unwrap().starts_with("use nvfp4a16;"));
        assert!(matches!(on("int8/nf4", "h200"), Err(Error::NoUnit { .. })));
        assert!(matches!(on("nf4/fp8", "h200"), Err(Error::NoUnit { .. })));
        // 16-bit activations need no such advice.
        assert!(on("fp64", "tpu_v5e").unwrap_err().hint().unwrap().starts_with("it has bf16, int8;"));
        assert!(matches!(on("mxint8/mxint8", "h200"), Err(Error::NoUnit { .. })));
    }

    /// Hopper has an FP8 rate, but its units apply no block scales and know no FP6; CDNA4 applies the MX ones only.
    #[test]
    fn block_scales_need_units_that_apply_them() {
        for precision in ["mxfp8", "mxfp6", "fp6/fp6", "mxfp4/mxfp6/fp8"] {
            let error = on(precision, "h200").unwrap_err();
            assert!(error.to_string().contains("math, which H200"), "{error}");
        }
        assert!(on("nvfp4", "mi355x").is_err());
        assert_eq!(on("mxfp4", "mi355x").unwrap().math, Math::Fp4);
        // As weights they are converted on the fly anywhere.
        assert_eq!(on("mxfp8/bf16", "h200").unwrap().math, Math::Bf16);
        assert_eq!(on("nvfp4/fp8", "h200").unwrap().math, Math::Fp8);
    }

    #[test]
    fn outputs_leave_attention_alone() {
        let base = on("int8", "h200").unwrap();
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        let with = |output| "int8".parse::<PrecisionSpec>().unwrap().with_output(output).on(&h200).unwrap();
        assert_eq!(with(Output::Accumulator).output, Format::INT32);
        assert_eq!(with(Output::Activations).output, Format::INT8);
        assert_eq!(with(Output::Format(Format::FP32)), Precision { output: Format::FP32, ..base });
    }

    #[test]
    fn bad_names_are_refused() {
        let why = |text: &str| text.parse::<PrecisionSpec>().unwrap_err();
        assert_eq!(why("w4a61").to_string(), "unknown precision `w4a61`; did you mean `w4a16`?");
        assert!(why("bf16/bf16/bf16/bf16").hint().unwrap().contains("weights/activations"));
        assert!(why("bf16/").to_string().contains("unknown format ``"));
        assert!(why("").to_string().contains("unknown precision ``"));
    }
}
