//! A GGUF file made of another: metadata and tokenizer as they are, and every tensor whose type changes decoded and coded again.

use std::{collections::BTreeMap, sync::Arc};

use roofline_core::model::Anatomy;
use serde_json::json;

use super::{DATA, METHOD, file_name, importance, provenance, scale_name, types::Types, views};
use crate::{
    Checkpoint, Dtype, Error, QuantizeJob, Request, Result,
    coding::Coding,
    ggml::{self, Type},
    gguf::{
        self, Value,
        model::{Names, Target},
        source::Source,
    },
    job::{Code, Head, Item, Output, Place, Work},
    origin::Origin,
    plan::Asked,
    site::Site,
    stored::{self, StoredTensor},
};

/// What writing the file again takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, source: &'a Source, request: &Request) -> Result<QuantizeJob<'a>> {
    let (plan, imatrix, target) = (&request.plan, request.imatrix.as_ref(), &request.target);
    let header = &source.header;
    let shard = checkpoint.shards.first().ok_or_else(|| Error::unsupported("a GGUF file without a file", ""))?;
    let sites: Vec<Site> = header.tensors.iter().map(|tensor| Site::of(&tensor.name, tensor.dims.len())).collect();
    let asked = Asked::new(plan, &json!({}), sites.iter());
    let mut notes = asked.notes(&sites.iter().collect::<Vec<_>>());
    let types = Types::new(asked, anatomy(source), source.family, imatrix.is_some())?;
    notes.extend(types.notes());
    let mut kept: Vec<(usize, Type)> = Vec::new();
    let mut twice = None;
    for (at, tensor) in header.tensors.iter().enumerate() {
        // Scales go with what they scale.
        if matches!(tensor.name.rsplit('.').next(), Some("scale" | "input_scale")) {
            continue;
        }
        let goal = Target {
            name: tensor.name.clone(),
            layer: sites[at].layer.and_then(|layer| usize::try_from(layer).ok()),
            conversion: gguf::family::Conversion::Same,
            expert: None,
        };
        let wide = matches!(tensor.ty, Type::F32 | Type::F16 | Type::Bf16);
        let matrix = gguf::model::is_matrix(&tensor.name, tensor.dims.len());
        let ty = if matrix { types.wanted(&sites[at], &goal, &tensor.dims)?.unwrap_or(tensor.ty) } else { tensor.ty };
        if ty != tensor.ty && !wide && twice.is_none() {
            twice = Some(tensor);
        }
        kept.push((at, ty));
    }
    if let Some(tensor) = twice {
        notes.push(format!(
            "the file is quantized already (`{}` is {}), and errors add up: start from the original where you have it",
            tensor.name, tensor.ty
        ));
    }
    let (number, label) = types.file(Dtype::Bf16);
    let mut metadata = metadata(header, number);
    if let Some(imatrix) = imatrix {
        metadata.retain(|(key, _)| !key.starts_with("quantize.imatrix."));
        metadata.extend(imatrix.metadata());
    }
    metadata.retain(|(key, _)| !matches!(key.as_str(), METHOD | DATA));
    metadata.extend(provenance(request));
    let mut tensors: Vec<(String, Vec<u64>, Type)> = Vec::new();
    for (at, ty) in &kept {
        let tensor = &header.tensors[*at];
        tensors.push((tensor.name.clone(), tensor.dims.clone(), *ty));
        let scale = scale_name(&tensor.name);
        match (ty, tensor.ty, header.tensor(&scale)) {
            (Type::Nvfp4, Type::Nvfp4, Some(old)) => tensors.push((scale, old.dims.clone(), old.ty)),
            (Type::Nvfp4, Type::Nvfp4, None) => {}
            (Type::Nvfp4, ..) => tensors.push((scale, vec![1], Type::F32)),
            _ => {}
        }
    }
    let head = gguf::head(&metadata, &tensors)?;
    let place = |name: &str| {
        let at = tensors.iter().position(|(known, ..)| known == name);
        Place { file: 0, offset: at.map_or(0, |at| head.offsets[at]) }
    };
    let mut known = origins(checkpoint, source);
    let mut items = Vec::new();
    for (at, ty) in kept {
        let (tensor, entry) = (&header.tensors[at], &shard.header.tensors[at]);
        let (name, site) = (tensor.name.clone(), sites[at].clone());
        if ty == tensor.ty {
            items.push(Item { name, site, work: Work::Copy { shard, entry, to: place(&tensor.name) } });
            let scale = header.tensors.iter().position(|other| other.name == scale_name(&tensor.name));
            if let Some(scale) = scale.filter(|_| ty == Type::Nvfp4) {
                let (name, entry) = (header.tensors[scale].name.clone(), &shard.header.tensors[scale]);
                let to = place(&name);
                items.push(Item { name, site: sites[scale].clone(), work: Work::Copy { shard, entry, to } });
            }
            continue;
        }
        let rows = stored::gguf::rows(source, shard, at)?;
        let coding: Arc<dyn Coding> = Arc::new(ggml::GgmlCoding(ty));
        let unfit = |reason| Error::Weight { name: name.clone(), reason, hint: None };
        let parts = coding.parts(rows.matrix()).map_err(unfit)?.into_iter().map(|part| {
            let to = if part.name == "scale" { place(&scale_name(&tensor.name)) } else { place(&tensor.name) };
            (part, to)
        });
        let parts = parts.collect();
        let lossy = !matches!(ty, Type::F32 | Type::F16 | Type::Bf16);
        let fused = vec![items.len()];
        let importance = importance(ty, &tensor.name, &tensor.dims, imatrix)?;
        let (scheme, origins) = (ty.name().to_lowercase(), known.remove(&tensor.name).unwrap_or_default());
        let code = Code { rows, coding, scheme, lossy, fused, importance, chosen: None, origins, parts };
        items.push(Item { name, site, work: Work::Code(code) });
    }
    let name = file_name(target, &checkpoint.name(), &label);
    let files = vec![Output { name, head: Head::Bytes(head.bytes), bytes: head.length }];
    Ok(QuantizeJob { files, items, companions: Vec::new(), notes, nearest: Vec::new() })
}

/// The matrices of a plain checkpoint that the tensors of the file are, by the names of these: what runs a model knows them so.
/// Nothing of a family that has no names outside of GGUF here, whose models do not run either.
fn origins(checkpoint: &Checkpoint, source: &Source) -> BTreeMap<String, Vec<Origin>> {
    let mut all: BTreeMap<String, Vec<Origin>> = BTreeMap::new();
    let output = source.header.tensor("output.weight").is_some();
    let (Ok(names), Ok(stored)) = (Names::new(&checkpoint.config, output), StoredTensor::all(checkpoint)) else {
        return all;
    };
    let shape = source.shape();
    for stored in stored {
        for target in names.tensor(&stored.name).unwrap_or_default() {
            let Some(tensor) = source.header.tensor(&target.name) else { continue };
            let rows = tensor.weights().unwrap_or(0) / tensor.columns().max(1);
            let experts = if target.expert.is_some() { shape.experts.max(1) } else { 1 };
            let each = usize::try_from(rows).unwrap_or(0) / experts;
            let above = target.expert.unwrap_or(0) * each;
            let own = views::origins(&stored.name, target.conversion, &shape, each);
            all.entry(target.name).or_default().extend(own.into_iter().map(|origin| origin.below(above)));
        }
    }
    // Names come in the order of their text: expert 10 before 2.
    for origins in all.values_mut() {
        origins.sort_by_key(|origin| origin.rows.start);
    }
    all
}

/// What recipes of types go by, as far as the metadata say it.
fn anatomy(source: &Source) -> Anatomy {
    let shape = source.shape();
    let layers = source.whole("block_count").unwrap_or(0).min(10_000) as usize;
    Anatomy {
        order: vec![0; layers],
        columns: Vec::new(),
        hidden: source.whole("embedding_length").unwrap_or(0),
        experts: shape.experts as u64,
        sharing: (shape.heads / shape.kv_heads) as u64,
        tied: source.header.tensor("output.weight").is_none(),
        falcon: source.header.get("general.architecture").and_then(Value::as_str) == Some("falcon"),
    }
}

/// The same keys with the number of the new types.
fn metadata(header: &gguf::Header, number: u32) -> Vec<(String, Value)> {
    let ours = [("general.file_type", number), ("general.quantization_version", gguf::model::QUANTIZATION_VERSION)];
    let other =
        header.metadata.iter().filter(|(key, _)| !key.starts_with("split.") && ours.iter().all(|(our, _)| key != our));
    let mut keys: Vec<(String, Value)> = other.cloned().collect();
    keys.extend(ours.map(|(key, value)| (key.to_owned(), Value::U32(value))));
    keys
}
