//! What a checkpoint stores how, in the words in which plans say it.

use std::collections::HashMap;

use roofline_core::{
    Dim, Format, Model, Role,
    format::{Element, Shape, Sizes},
    plan,
};
use roofline_quant::{Checkpoint, site::Site, stored::StoredTensor};
use serde_json::Value;

use crate::Result;

/// A layout for kernels may repeat scales that a file has once for more numbers; whatever takes so much less than the format
/// says is another one.
const FEWER: f64 = 0.985;

/// What a checkpoint stores how: the [`signature`](roofline_core::plan::Plan::signature) of the plan that it was made by, if
/// the layout that it is in holds just what the plan says.
pub fn signature(checkpoint: &Checkpoint, model: &Model) -> Result<String> {
    let inputs = Inputs::of(&checkpoint.config);
    let mut words: HashMap<(Role, Option<u64>), Vec<String>> = HashMap::new();
    for stored in StoredTensor::all(checkpoint)? {
        let site = Site::of(&stored.name, stored.shape.len());
        if site.role > Role::Embedding {
            continue;
        }
        let word = match format(&stored) {
            Some(weights) if weights.nominal_bits() >= 16 => plan::held(weights, None),
            Some(weights) => match inputs.activations(weights) {
                Ok(activations) => plan::held(weights, activations),
                Err(unknown) => format!("{weights}/{unknown}"),
            },
            None => stored.format().to_owned(),
        };
        let words = words.entry((site.role, site.layer)).or_default();
        // Experts of a layer, and parts of one weight, are one thing where they are stored alike.
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let missing = || "none".to_owned();
    // Queries, keys and values, and gates and ways up, may lie in one tensor.
    let joined = |role: Role| match role {
        Role::Key | Role::Value => Some(Role::Query),
        Role::Up => Some(Role::Gate),
        Role::ExpertUp => Some(Role::ExpertGate),
        _ => None,
    };
    Ok(plan::signature(&model.anatomy, |role, layer, _| {
        let own = words.get(&(role, layer)).or_else(|| words.get(&(joined(role)?, layer)));
        own.map_or_else(missing, |words| words.join("+"))
    }))
}

/// The format of a weight; none where no format holds just what is stored.
fn format(stored: &StoredTensor<'_>) -> Option<Format> {
    let form = match stored.shape[..] {
        [_, _, _] => stored.turned().ok()?.kernel_form()?,
        _ => stored.kernel_form()?,
    };
    let dim = |size: usize| Dim::new("size", size as u64).ok();
    let shape = Shape::matrix(dim(form.matrix.rows)?, dim(form.matrix.columns)?);
    let said = form.format.bytes(shape, Sizes::Exact).value();
    (stored.bytes() as f64 >= FEWER * said).then_some(form.format)
}

/// Bits, and whether they are a float's.
type Number = (u64, bool);

/// What a configuration says of activations.
struct Inputs {
    /// Weights, and the activations that they meet.
    groups: Vec<(Number, Option<Number>)>,
    /// Activations are stored as the weights are.
    alike: bool,
    /// Somebody else's words, which are not read.
    other: bool,
}

impl Inputs {
    fn of(config: &Value) -> Self {
        let said = ["quantization_config", "compression_config"].iter().find_map(|key| config.get(*key));
        let Some(said) = said else { return Self { groups: Vec::new(), alike: false, other: false } };
        let number = |scheme: &Value| Some((scheme["num_bits"].as_u64()?, scheme["type"] == "float"));
        let groups = said["config_groups"].as_object().into_iter().flat_map(serde_json::Map::values);
        let groups = groups
            .filter_map(|group| Some((number(&group["weights"])?, number(&group["input_activations"]))))
            .collect();
        let method = said["quant_method"].as_str().unwrap_or_default();
        let algorithm = said["quant_algo"].as_str().unwrap_or_default();
        Self {
            groups,
            alike: matches!(method, "fp8" | "fbgemm_fp8") || matches!(algorithm, "FP8" | "NVFP4"),
            other: method == "torchao" && said.to_string().contains("Activation"),
        }
    }

    /// The activations that weights in that format meet; none where they have 16 bit, and a word where it is not known.
    fn activations(&self, weights: Format) -> Result<Option<Format>, &'static str> {
        if self.other {
            return Err("unknown");
        }
        let float = !matches!(
            weights.element(),
            Element::Int8 | Element::Int6 | Element::Int5 | Element::Int4 | Element::Int3 | Element::Int2
        );
        let own = (u64::from(weights.nominal_bits()), float);
        let mut found = self.groups.iter().filter(|(group, _)| *group == own).map(|(_, inputs)| *inputs);
        let Some(first) = found.next() else { return Ok(self.alike.then_some(weights)) };
        if found.any(|other| other != first) {
            return Err("several");
        }
        match first {
            None => Ok(None),
            Some(inputs) if inputs == own => Ok(Some(weights)),
            Some((8, false)) => Ok(Some(Format::INT8)),
            Some((8, true)) => Ok(Some(Format::FP8)),
            Some(_) => Err("unknown"),
        }
    }
}
