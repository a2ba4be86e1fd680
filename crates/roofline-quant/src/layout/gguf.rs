//! One GGUF file: what llama.cpp, Ollama and LM Studio load.
//!
//! Names, metadata and tokenizer are those of llama.cpp's converter, the types of the tensors those of its quantizer, so
//! that a file is the one those two would have made - without the 16-bit file between them.

mod again;
mod types;
mod views;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use roofline_core::{Format, Role};
use serde_json::Value;

use super::{Scheme, Target, asked, quantized_already, sites};
use crate::{
    Checkpoint, Dtype, Error, Imatrix, Method, QuantizeJob, Request, Result,
    checkpoint::read_bounded,
    coding::Coding,
    ggml::{self, Type},
    gguf::{
        self, Files,
        family::within,
        model::{self, Model, Target as Goal, flat},
    },
    job::{Code, Head, Item, Output, Place, Work},
    origin::Origin,
    rows::{Rows, Stacked},
    site::Site,
    stored::{Kind, StoredTensor},
};
use types::Types;
use views::{View, view};

const fn scheme(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    weights: Format,
    ty: Type,
) -> Scheme {
    Scheme { name, aliases, summary, weights, activations: None, target: Target::Gguf(ty) }
}

/// Every type that is written, of which llama.cpp's recipes are made.
pub(super) const SCHEMES: &[Scheme] = &[
    scheme("q8_0", &[], "INT8 in blocks of 32", Format::Q8_0, Type::Q8_0),
    scheme("q6_k", &[], "INT6 in blocks of 16 with 8-bit scales", Format::Q6_K, Type::Q6K),
    scheme("q5_1", &[], "INT5 in blocks of 32 with minima", Format::Q5_1, Type::Q5_1),
    scheme("q5_0", &[], "INT5 in blocks of 32", Format::Q5_0, Type::Q5_0),
    scheme("q5_k", &[], "INT5 in blocks of 32 with 6-bit scales and minima", Format::Q5_K, Type::Q5K),
    scheme("q4_1", &[], "INT4 in blocks of 32 with minima", Format::Q4_1, Type::Q4_1),
    scheme("q4_0", &[], "INT4 in blocks of 32", Format::Q4_0, Type::Q4_0),
    scheme("q4_k", &[], "INT4 in blocks of 32 with 6-bit scales and minima", Format::Q4_K, Type::Q4K),
    scheme("iq4_nl", &[], "INT4 for uneven values in blocks of 32", Format::IQ4_NL, Type::Iq4Nl),
    scheme("iq4_xs", &[], "INT4 for uneven values in blocks of 32 with 6-bit scales", Format::IQ4_XS, Type::Iq4Xs),
    scheme("q3_k", &[], "INT3 in blocks of 16 with 6-bit scales", Format::Q3_K, Type::Q3K),
    scheme("iq3_s", &[], "INT3 for points of four in blocks of 32 with 4-bit scales", Format::IQ3_S, Type::Iq3S),
    scheme("iq3_xxs", &[], "INT3 for points of four, signs shared, in blocks of 32", Format::IQ3_XXS, Type::Iq3Xxs),
    scheme("q2_k", &[], "INT2 in blocks of 16 with 4-bit scales and minima", Format::Q2_K, Type::Q2K),
    scheme("iq2_s", &[], "INT2 for points of eight in blocks of 16 with 4-bit scales", Format::IQ2_S, Type::Iq2S),
    scheme("iq2_xs", &[], "INT2 for points of eight, signs shared, in blocks of 16", Format::IQ2_XS, Type::Iq2Xs),
    scheme("iq2_xxs", &[], "INT2 for points of eight, signs shared, in blocks of 32", Format::IQ2_XXS, Type::Iq2Xxs),
    scheme(
        "iq1_m",
        &[],
        "three levels for points of eight in blocks of 16 with 3-bit scales",
        Format::IQ1_M,
        Type::Iq1M,
    ),
    scheme(
        "iq1_s",
        &[],
        "three levels for points of eight in blocks of 32 with 3-bit scales",
        Format::IQ1_S,
        Type::Iq1S,
    ),
    scheme("mxfp4a16", &[], "E2M1 in blocks of 32 with powers of two", Format::MXFP4, Type::Mxfp4),
    scheme("nvfp4a16", &[], "E2M1 in blocks of 16 with E4M3 scales and one per tensor", Format::NVFP4, Type::Nvfp4),
    scheme("bf16", &["bfloat16"], "BF16", Format::BF16, Type::Bf16),
    scheme("fp16", &["f16", "float16"], "FP16", Format::FP16, Type::F16),
    scheme("fp32", &["f32", "float32"], "FP32", Format::FP32, Type::F32),
];

/// What the tokenizer of a checkpoint may hold at most.
const LONGEST_TOKENIZER: u64 = 256 << 20;

/// A tensor of the file to be: its sources one below the other, and what it becomes.
struct Draft<'a> {
    target: Goal,
    ty: Type,
    dims: Vec<u64>,
    sources: Vec<Source<'a>>,
}

/// A tensor of the checkpoint on its way into a draft.
struct Source<'a> {
    name: String,
    rows: Box<dyn Rows + 'a>,
    /// Where they come from.
    origins: Vec<Origin>,
    site: Site,
    /// Which of a stack it is.
    expert: Option<usize>,
}

/// What writing the checkpoint takes.
pub(super) fn job<'a>(checkpoint: &'a Checkpoint, request: &Request) -> Result<QuantizeJob<'a>> {
    request.method.without_data().among(&[Method::Rtn], "a GGUF type")?;
    if let Some(source) = &checkpoint.gguf {
        return again::job(checkpoint, source, request);
    }
    let (plan, imatrix, target) = (&request.plan, request.imatrix.as_ref(), &request.target);
    let all = sites(checkpoint)?;
    let (asked, mut notes) = asked(plan, checkpoint, &all);
    let family = Model::family(&checkpoint.config)?;
    // What the family calls llama.cpp's tensor of that name.
    let end = |gguf: &str| {
        let line = family.whole.iter().find(|line| line.gguf == gguf)?;
        all.iter().find(|(stored, _)| within(&stored.name).strip_suffix(".weight") == Some(line.hf))
    };
    let (embedding, head) = (end("token_embd"), end("output").is_some());
    let Some(vocabulary) = embedding.and_then(|(stored, _)| stored.shape.first().copied()) else {
        let reason = "is not in the checkpoint".to_owned();
        return Err(Error::Weight { name: format!("{}.weight", family.whole[0].hf), reason, hint: None });
    };
    let model = model(checkpoint, head, vocabulary)?;
    notes.extend(model.notes());
    let types = Types::new(asked, model.anatomy(), Some(model.family), imatrix.is_some())?;
    notes.extend(types.notes());
    let source = embedding.map_or(Dtype::Bf16, |(stored, _)| stored.dtype);
    let (number, label) = types.file(source);
    let name = file_name(target, &checkpoint.name(), &label);
    let mut drafts: BTreeMap<String, Draft<'a>> = BTreeMap::new();
    let (mut shared, mut experts) = (0, 0);
    for (stored, site) in all {
        for target in model.tensor(&stored.name)? {
            let source = source_of(checkpoint, &model, &stored, &site, &target)?;
            let elements = source.1.iter().product::<u64>();
            if target.name.contains("_exps.") {
                experts += elements;
            } else {
                shared += elements;
            }
            draft(&mut drafts, source, target, |site, target, dims| types.of(site, target, dims, stored.dtype))?;
        }
    }
    if let Some(draft) = drafts.values().find(|draft| is_scaled_too_late(draft, &drafts)) {
        return Err(Error::Weight {
            name: draft.sources[0].name.clone(),
            reason: "has a bias, and llama.cpp stops where an NVFP4 matrix of the feed-forward has one".to_owned(),
            hint: Some("keep it with a rule of the plan, or take `mxfp4a16`".to_owned()),
        });
    }
    let mut drafts: Vec<Draft<'a>> = drafts.into_values().collect();
    drafts.iter_mut().try_for_each(|draft| stack(draft, model.shape.experts))?;
    let count = model.shape.experts.max(1) as u64;
    let mut metadata = model.metadata(number, &model::size_label(shared, experts / count, model.shape.experts));
    metadata.extend(imatrix.into_iter().flat_map(Imatrix::metadata));
    metadata.extend(provenance(request));
    let (files, items) = lay_out(drafts, &model, &metadata, imatrix, name)?;
    Ok(QuantizeJob { files, items, companions: Vec::new(), notes, nearest: Vec::new() })
}

/// Whether llama.cpp would multiply by the scale after it has added a bias, and therefore stops.
fn is_scaled_too_late(draft: &Draft<'_>, all: &BTreeMap<String, Draft<'_>>) -> bool {
    let stem = draft.target.name.strip_suffix(".weight").filter(|stem| stem.contains(".ffn_"));
    draft.ty == Type::Nvfp4 && stem.is_some_and(|stem| all.contains_key(&format!("{stem}.bias")))
}

/// The model in llama.cpp's words, with its tokenizer. The embedding has a row for every token of the `vocabulary`, which
/// is what llama.cpp asks for, and the one number that a file must have the bytes for.
fn model(checkpoint: &Checkpoint, head: bool, vocabulary: usize) -> Result<Model> {
    let mut described = flat(&checkpoint.config, Model::family(&checkpoint.config)?);
    match &described["vocab_size"] {
        Value::Null => described["vocab_size"] = vocabulary.into(),
        stated if stated.as_u64() == Some(vocabulary as u64) => {}
        stated => {
            let reason = format!("it has a vocab_size of {stated}, and the embedding has {vocabulary} rows");
            return Err(Error::malformed(&checkpoint.folder.join("config.json"), "config.json", reason));
        }
    }
    let beside = checkpoint.companions()?;
    let read = |name: &str| {
        let path = beside.iter().find(|path| path.file_name().is_some_and(|file| file == name));
        path.map(|path| read_bounded(path, LONGEST_TOKENIZER, "tokenizer")).transpose()
    };
    let (tokenizer, config) = (read("tokenizer.json")?, read("tokenizer_config.json")?);
    let (sentencepiece, added) = (read("tokenizer.model")?, read("added_tokens.json")?);
    let template = read("chat_template.jinja")?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let files = Files {
        tokenizer: tokenizer.as_deref(),
        config: config.as_deref(),
        sentencepiece: sentencepiece.as_deref(),
        added: added.as_deref(),
        chat_template: template.as_deref(),
    };
    Model::new(&checkpoint.name(), &described, &files, head)
}

/// A tensor of the checkpoint in llama.cpp's order, and its dimensions.
fn source_of<'a>(
    checkpoint: &Checkpoint,
    model: &Model,
    stored: &StoredTensor<'a>,
    site: &Site,
    target: &Goal,
) -> Result<(Source<'a>, Vec<u64>)> {
    let Kind::Plain(located) = stored.kind else { return Err(quantized_already(checkpoint, stored)) };
    let name = stored.name.clone();
    if let Some(rows) = model.rows(target).filter(|rows| stored.shape.first() != Some(rows)) {
        let reason = format!("has the shape {:?}, and config.json says {rows} rows", stored.shape);
        return Err(Error::Weight { name, reason, hint: None });
    }
    let View { dims, rows, origins } = view(located, target.conversion, &model.shape)?;
    // What transformers' names do not say, llama.cpp's do; a stack is here what it holds.
    let written = Site::of(&target.name, dims.len());
    let mut site = site.clone();
    if site.is_stack() {
        site.module.clone_from(&written.module);
    }
    if matches!(site.role, Role::Other | Role::Vector) || dims.len() > stored.shape.len() {
        site.role = written.role;
    }
    site.layer = site.layer.or(written.layer);
    Ok((Source { name, rows, origins, site, expert: target.expert }, dims))
}

/// Adds a tensor of the source to the file: as a new one, or as one more expert of a stack.
fn draft<'a>(
    drafts: &mut BTreeMap<String, Draft<'a>>,
    (source, dims): (Source<'a>, Vec<u64>),
    target: Goal,
    ty: impl Fn(&Site, &Goal, &[u64]) -> Result<Type>,
) -> Result<()> {
    let refuse = |reason: String| Error::Weight { name: source.name.clone(), reason, hint: None };
    let ty = ty(&source.site, &target, &dims)?;
    if ty == Type::Nvfp4 && target.name.contains("_exps.") {
        let reason = "is an expert, and the scales of stacked NVFP4 experts are not written".to_owned();
        let hint = Some("mxfp4a16 or q4_k_m can be".to_owned());
        return Err(Error::Weight { name: source.name, reason, hint });
    }
    match drafts.get_mut(&target.name) {
        None => {
            drafts.insert(target.name.clone(), Draft { target, ty, dims, sources: vec![source] });
        }
        // `experts.07` is a number, too.
        Some(draft) if draft.sources.iter().any(|other| other.expert == source.expert) => {
            return Err(refuse(format!("would be written as `{}` a second time", target.name)));
        }
        Some(draft) if target.expert.is_some() && draft.dims == dims && draft.ty == ty => draft.sources.push(source),
        Some(_) => return Err(refuse(format!("does not fit the others of `{}`", target.name))),
    }
    Ok(())
}

/// Brings a stack of experts into their order; a stack with a hole is refused.
fn stack(draft: &mut Draft<'_>, experts: usize) -> Result<()> {
    if draft.target.expert.is_none() {
        return Ok(());
    }
    draft.sources.sort_by_key(|source| source.expert);
    if draft.sources.len() != experts {
        let reason = format!("has {} of {experts} experts", draft.sources.len());
        return Err(Error::Weight { name: draft.target.name.clone(), reason, hint: None });
    }
    draft.dims.push(experts as u64);
    Ok(())
}

/// Places for everything: the file's head, and an item for every tensor.
fn lay_out<'a>(
    drafts: Vec<Draft<'a>>,
    model: &Model,
    metadata: &[(String, gguf::Value)],
    imatrix: Option<&Imatrix>,
    name: String,
) -> Result<(Vec<Output>, Vec<Item<'a>>)> {
    let mut tensors: Vec<(String, Vec<u64>, Type)> = Vec::new();
    let factors = model.rope_factors();
    for (name, factors) in &factors {
        tensors.push(((*name).to_owned(), vec![factors.len() as u64], Type::F32));
    }
    for draft in &drafts {
        tensors.push((draft.target.name.clone(), draft.dims.clone(), draft.ty));
        if draft.ty == Type::Nvfp4 {
            tensors.push((scale_name(&draft.target.name), vec![1], Type::F32));
        }
    }
    let head = gguf::head(metadata, &tensors)?;
    let places: BTreeMap<&str, Place> = tensors
        .iter()
        .zip(&head.offsets)
        .map(|((name, ..), offset)| (name.as_str(), Place { file: 0, offset: *offset }))
        .collect();
    let place = |name: &str| places.get(name).copied().unwrap_or(Place { file: 0, offset: 0 });
    let mut items = Vec::new();
    for (name, factors) in factors {
        let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
        let work = Work::Literal { bytes, to: place(name) };
        items.push(Item { name: name.to_owned(), site: Site::of(name, 1), work });
    }
    let offset = items.len();
    let at: BTreeMap<String, (usize, Type)> = drafts
        .iter()
        .enumerate()
        .map(|(at, draft)| (draft.sources[0].site.module.clone(), (offset + at, draft.ty)))
        .collect();
    for draft in drafts {
        items.push(item(draft, &at, imatrix, place)?);
    }
    Ok((vec![Output { name, head: Head::Bytes(head.bytes), bytes: head.length }], items))
}

fn scale_name(name: &str) -> String {
    name.strip_suffix(".weight").map_or_else(|| format!("{name}.scale"), |stem| format!("{stem}.scale"))
}

fn item<'a>(
    draft: Draft<'a>,
    at: &BTreeMap<String, (usize, Type)>,
    imatrix: Option<&Imatrix>,
    place: impl Fn(&str) -> Place,
) -> Result<Item<'a>> {
    let Draft { target, ty, dims, sources } = draft;
    let (site, source) = (sources[0].site.clone(), sources[0].name.clone());
    let mut origins: Vec<Origin> = Vec::new();
    for source in &sources {
        let first = origins.last().map_or(0, |above| above.rows.end);
        origins.extend(source.origins.iter().map(|origin| origin.clone().below(first)));
    }
    let rows = Stacked::of(sources.into_iter().map(|source| source.rows).collect());
    let coding: Arc<dyn Coding> = Arc::new(ggml::GgmlCoding(ty));
    let hint = Some("keep it with `⟨keep⟩`, or choose a type with smaller blocks".to_owned());
    let unfit = |reason| Error::Weight { name: source.clone(), reason, hint };
    let parts = coding.parts(rows.matrix()).map_err(unfit)?.into_iter().map(|part| {
        let to = if part.name == "scale" { place(&scale_name(&target.name)) } else { place(&target.name) };
        (part, to)
    });
    let parts = parts.collect();
    let family = site.fused().into_iter().filter_map(|module| at.get(&module));
    let fused = family.filter(|(_, other)| *other == ty).map(|(at, _)| *at).collect();
    let lossy = !matches!(ty, Type::F32 | Type::F16 | Type::Bf16);
    let importance = importance(ty, &target.name, &dims, imatrix)?;
    let scheme = ty.name().to_lowercase();
    let code = Code { rows, coding, scheme, lossy, fused, importance, chosen: None, origins, parts };
    Ok(Item { name: source, site, work: Work::Code(code) })
}

/// How much the inputs of a tensor matter, where that is known. Some types are no good without, says llama.cpp, but for what data say
/// nothing of; and some it cannot write at all then.
fn importance(ty: Type, name: &str, dims: &[u64], imatrix: Option<&Imatrix>) -> Result<Option<Vec<f32>>> {
    let dim = |at: usize| dims.get(at).map_or(1, |dim| *dim as usize);
    let found = imatrix.map(|imatrix| imatrix.importance(name, dim(0), dim(2))).transpose()?.flatten();
    let end = matches!(name, "token_embd.weight" | "output.weight");
    if found.is_none() && ty.depends_on_importance() && end {
        return Err(Error::Weight {
            name: name.to_owned(),
            reason: format!(
                "would be {ty}, which needs an importance matrix, and there is none for the ends of a model"
            ),
            hint: Some("give it another type, as `embedding=q2_k` or `head=q5_k`".to_owned()),
        });
    }
    if found.is_none() && ty.asks_for_importance() && !end {
        return Err(Error::Weight {
            name: name.to_owned(),
            reason: format!("would be {ty}, which is poor without an importance matrix, and there is none for it"),
            hint: Some(
                "say `⟨imatrix FILE⟩` with one that `⟨roofline imatrix⟩` made; `iq3_s` and `q2_k` need none".to_owned(),
            ),
        });
    }
    Ok(found)
}

/// The keys of what a method that goes by data went by.
const METHOD: &str = "quantize.method";
const DATA: &str = "quantize.data";

/// What a method that goes by data went by, for whoever finds the file later: it has no card beside it.
fn provenance(request: &Request) -> Vec<(String, gguf::Value)> {
    let Some(data) = &request.data else { return Vec::new() };
    [(METHOD, request.method.to_string()), (DATA, data.to_string())]
        .map(|(key, value)| (key.to_owned(), gguf::Value::from(value.as_str())))
        .into()
}

/// That types without a search are written as without an importance matrix.
pub(super) fn unweighed(job: &QuantizeJob<'_>) -> Option<String> {
    let deaf = |item: &Item<'_>| match &item.work {
        Work::Code(code) if code.lossy && code.importance.is_some() && !code.coding.weighs() => {
            Some(code.scheme.clone())
        }
        _ => None,
    };
    let deaf: Vec<String> = job.items.iter().filter_map(deaf).collect();
    let first = deaf.first()?;
    Some(format!(
        "the importance matrix changes nothing of {} matrices: {first} has no search that it could weigh",
        deaf.len()
    ))
}

/// What the file of a model is called where only a folder was named.
fn file_name(target: &Path, model: &str, label: &str) -> String {
    let named = target.extension().is_some_and(|extension| extension == "gguf");
    let own = target.file_name().filter(|_| named).map(|name| name.to_string_lossy().into_owned());
    own.unwrap_or_else(|| format!("{model}-{label}.gguf"))
}

#[cfg(test)]
mod tests;
