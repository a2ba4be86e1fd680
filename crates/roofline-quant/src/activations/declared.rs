//! What configurations say of inputs, in the words of each library.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Inputs, Number, Scales, pattern};
use crate::{
    Checkpoint, Error, Result, number,
    stored::{Located, StoredTensor},
};

impl Inputs {
    /// Of every product of a checkpoint whose inputs it wants rounded, how: by the name of the weight. Those are products of
    /// weights in codes; what a configuration leaves out of the quantization is none.
    pub fn all(checkpoint: &Checkpoint, stored: &[StoredTensor<'_>]) -> Result<BTreeMap<String, Self>> {
        let tensors = checkpoint.tensors();
        let config = &checkpoint.config;
        let declared = ["quantization_config", "compression_config"].iter().find_map(|key| config.get(*key));
        let declared = declared.unwrap_or(&Value::Null);
        let mut all = BTreeMap::new();
        for one in stored.iter().filter(|one| one.is_coded()) {
            let Some(module) = one.name.strip_suffix(".weight") else { continue };
            let own = Module { name: module, tensors: &tensors, weight: &one.name };
            let inputs = match declared["quant_method"].as_str() {
                Some("compressed-tensors") => own.compressed_tensors(declared)?,
                Some("fp8") => own.fine_grained(declared)?,
                Some("modelopt") => own.modelopt()?,
                Some("torchao") => own.torchao(checkpoint)?,
                _ => None,
            };
            if let Some(inputs) = inputs {
                let columns = one.shape.last().copied().unwrap_or(0);
                if !inputs.fits(columns) {
                    return Err(one.refuse(format!("has {columns} inputs, which are to be rounded to {inputs}"), None));
                }
                all.insert(one.name.clone(), inputs);
            }
        }
        Ok(all)
    }
}

/// A module of a checkpoint.
struct Module<'m, 'a> {
    name: &'m str,
    weight: &'m str,
    tensors: &'m BTreeMap<&'a str, Located<'a>>,
}

impl Module<'_, '_> {
    /// The first of these scalars that is stored beside the weight.
    fn scalar(&self, parts: &[&str]) -> Result<Option<f32>> {
        for part in parts {
            let Some((shard, entry)) = self.tensors.get(format!("{}.{part}", self.name).as_str()) else { continue };
            if entry.shape.iter().product::<usize>() != 1 || !number::is_number(entry.dtype) {
                return Err(self.refuse(format!("has a `{part}` that is no single number")));
            }
            let (mut bytes, mut value) = (vec![0; entry.dtype.bytes()], [0.0]);
            shard.read(entry, 0, &mut bytes)?;
            number::read(entry.dtype, &bytes, &mut value);
            return Ok(Some(value[0]));
        }
        Ok(None)
    }

    /// The same where it must be there, and above zero.
    fn stored(&self, parts: &[&str]) -> Result<f32> {
        let value = self.scalar(parts)?;
        let missing = || self.refuse(format!("wants its inputs rounded with a scale that is missing: `{}`", parts[0]));
        let value = value.ok_or_else(missing)?;
        if value > 0.0 && value.is_finite() {
            return Ok(value);
        }
        Err(self.refuse(format!("wants its inputs rounded with a scale of {value}")))
    }

    fn refuse(&self, reason: impl Into<String>) -> Error {
        Error::Weight { name: self.weight.to_owned(), reason: reason.into(), hint: None }
    }

    fn compressed_tensors(&self, declared: &Value) -> Result<Option<Inputs>> {
        let groups: Vec<&Value> =
            declared["config_groups"].as_object().map(|groups| groups.values().collect()).unwrap_or_default();
        // What is in codes is of one of the groups, and asking which is for where they differ.
        let group = match &groups[..] {
            [] => return Ok(None),
            [first, others @ ..]
                if others.iter().all(|other| other["input_activations"] == first["input_activations"]) =>
            {
                first
            }
            several => self.group(several)?,
        };
        let inputs = &group["input_activations"];
        if inputs.is_null() {
            return Ok(None);
        }
        let unknown = || {
            let what = "wants its inputs rounded in a way that this program does not know";
            self.refuse(format!("{what}: {inputs}"))
        };
        let bits = inputs["num_bits"].as_u64().unwrap_or(8);
        let symmetric = inputs["symmetric"].as_bool().unwrap_or(true);
        let number = match (inputs["type"].as_str().unwrap_or("int"), bits, symmetric) {
            ("int", 2..=8, true) => Number::Int(bits as u8),
            ("int", 2..=8, false) => Number::IntZero(bits as u8),
            ("float", 8, true) => Number::E4m3,
            ("float", 4, true) => Number::E2m1,
            _ => return Err(unknown()),
        };
        let size = inputs["group_size"].as_u64().filter(|size| *size > 0).map(|size| size as usize);
        let usual = if size.is_some() { "group" } else { "tensor" };
        let strategy = inputs["strategy"].as_str().unwrap_or(usual);
        let dynamic = inputs["dynamic"] == true;
        let scales = match (strategy, size) {
            ("tensor_group", Some(size)) => Scales::Local(size, self.stored(&["input_global_scale"])?),
            ("group", Some(32)) if dynamic && inputs["scale_dtype"] == "torch.uint8" => Scales::Powers,
            ("group", Some(size)) if dynamic => Scales::Group(size),
            ("token", _) if dynamic => Scales::Token,
            ("tensor", _) if dynamic => Scales::Pass,
            ("tensor", _) if symmetric => Scales::Stored(self.stored(&["input_scale"])?),
            _ => return Err(unknown()),
        };
        let known = match scales {
            Scales::Local(..) => number == Number::E2m1,
            Scales::Powers => matches!(number, Number::E2m1 | Number::E4m3),
            _ => true,
        };
        if known { Ok(Some(Inputs::new(number, scales))) } else { Err(unknown()) }
    }

    /// The group of a module: names go before patterns, and those before classes.
    fn group<'g>(&self, groups: &[&'g Value]) -> Result<&'g Value> {
        let targets = |group: &'g Value| group["targets"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let of = |wanted: &dyn Fn(&str) -> bool| groups.iter().copied().find(|group| targets(group).any(wanted));
        // Some families have a module under other names when they run than in files.
        let layer = |name: &str| name.find("layers.").map(|at| name[at..].to_owned());
        let same = |target: &str| target == self.name || layer(target).is_some_and(|own| Some(own) == layer(self.name));
        if let Some(named) = of(&same) {
            return Ok(named);
        }
        for target in groups.iter().flat_map(|group| targets(group)).filter_map(|target| target.strip_prefix("re:")) {
            if pattern::matches(target, self.name).is_none() {
                return Err(
                    self.refuse(format!("is coded in one of several ways, and `re:{target}` is not understood"))
                );
            }
        }
        let pattern = |target: &str| {
            target.strip_prefix("re:").is_some_and(|pattern| pattern::matches(pattern, self.name) == Some(true))
        };
        let class = |target: &str| target == "Linear";
        let found = of(&pattern).or_else(|| of(&class));
        found.ok_or_else(|| self.refuse("is in codes, and no group of the quantization has it"))
    }

    /// Hugging Face's FP8, whose kernels compute scales in FP32.
    fn fine_grained(&self, declared: &Value) -> Result<Option<Inputs>> {
        let scales = match declared["activation_scheme"].as_str() {
            Some("static") => Scales::Stored(self.stored(&["activation_scale", "input_scale"])?),
            Some("dynamic") | None => match declared["weight_block_size"][1].as_u64() {
                Some(group) => Scales::Group(group as usize),
                None => Scales::Token,
            },
            Some(other) => {
                return Err(self.refuse(format!("wants its inputs rounded by an unknown activation scheme, `{other}`")));
            }
        };
        Ok(Some(Inputs::new(Number::E4m3, scales).in_single()))
    }

    /// ModelOpt's FP8 and NVFP4: `input_scale` multiplies, and where there is none, inputs stay as they are.
    fn modelopt(&self) -> Result<Option<Inputs>> {
        if self.scalar(&["input_scale"])?.is_none() {
            return Ok(None);
        }
        let scale = self.stored(&["input_scale"])?;
        let four = self.tensors.contains_key(format!("{}.weight_scale_2", self.name).as_str());
        let inputs = if four {
            Inputs::new(Number::E2m1, Scales::Local(16, 1.0 / scale))
        } else {
            Inputs::new(Number::E4m3, Scales::Stored(scale))
        };
        Ok(Some(inputs.in_single()))
    }

    /// torchao's, which are told with each weight.
    fn torchao(&self, checkpoint: &Checkpoint) -> Result<Option<Inputs>> {
        let mut told = checkpoint.shards.iter().flat_map(|shard| &shard.header.metadata);
        let Some((_, text)) = told.find(|(name, _)| name == self.weight) else { return Ok(None) };
        let described: Value = serde_json::from_str(text).unwrap_or_default();
        let data = &described["_data"];
        let unknown = |what: &Value| {
            self.refuse(format!("wants its inputs rounded in a way that this program does not know: {what}"))
        };
        let coded = &data["activation_quantization"];
        match coded.as_str().or_else(|| coded["_data"].as_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("int8_asym_per_token") => {
                return Ok(Some(Inputs::new(Number::IntZero(8), Scales::Token).in_single()));
            }
            None if coded.is_null() => {}
            _ => return Err(unknown(coded)),
        }
        let inputs = &data["act_quant_kwargs"];
        if inputs.is_null() {
            return Ok(None);
        }
        let scales = match inputs["_data"]["granularity"]["_type"].as_str() {
            Some("PerRow" | "PerToken") => Scales::Token,
            Some("PerTensor") => Scales::Pass,
            _ => return Err(unknown(inputs)),
        };
        let number = match described["_type"].as_str() {
            Some("Float8Tensor") => Number::E4m3,
            Some("Int8Tensor") if inputs["_data"]["mapping_type"].to_string().contains("ASYMMETRIC") => {
                Number::IntZero(8)
            }
            Some("Int8Tensor") => Number::Int(8),
            _ => return Err(unknown(inputs)),
        };
        Ok(Some(Inputs::new(number, scales).in_single()))
    }
}
