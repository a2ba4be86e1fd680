//! A folder of safetensors: every stored tensor gets its place, every file its header.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Map, Value, json};

use super::{Decision, items};
use crate::{
    Checkpoint, Dtype, Error, QuantizeJob, Result,
    checkpoint::{INDEX, SINGLE},
    job::{Companion, Head, Item, Output, Place, Work},
    safetensors::{Entry, Header, customary},
    site::Site,
};

/// Stored tensors, by the shard they go to.
pub(super) struct Folder {
    shards: Vec<Vec<Entry>>,
}

/// A folder in which everything has its place.
pub(super) struct LaidOut {
    pub(super) files: Vec<Output>,
    pub(super) places: HashMap<String, Place>,
    /// The index, where there are several shards.
    pub(super) index: Option<(String, Vec<u8>)>,
}

impl Folder {
    pub(super) fn new(shards: usize) -> Self {
        Self { shards: vec![Vec::new(); shards] }
    }

    pub(super) fn add(&mut self, shard: usize, name: String, dtype: Dtype, shape: &[usize]) {
        let bytes = (shape.iter().product::<usize>() * dtype.bytes()) as u64;
        self.shards[shard].push(Entry { name, dtype, shape: shape.to_vec(), begin: 0, end: bytes });
    }

    /// Places for all, with the same metadata in every shard. Two tensors of one name are refused.
    pub(super) fn lay_out(mut self, metadata: &[(String, String)]) -> Result<LaidOut> {
        let metadata: Arc<[(String, String)]> = metadata.into();
        let count = self.shards.len();
        let (mut files, mut places) = (Vec::new(), HashMap::new());
        let (mut map, mut total) = (Map::new(), 0);
        for (file, entries) in self.shards.iter_mut().enumerate() {
            let name =
                if count == 1 { SINGLE.to_owned() } else { format!("model-{:05}-of-{count:05}.safetensors", file + 1) };
            entries.sort_by(|a, b| customary(a.dtype, &a.name).cmp(&customary(b.dtype, &b.name)));
            let mut begin = 0;
            for entry in entries.iter_mut() {
                (entry.begin, entry.end) = (begin, begin + entry.end);
                begin = entry.end;
            }
            let start = Header::bytes(&metadata, entries).len() as u64;
            for entry in entries.iter() {
                let place = Place { file, offset: start + entry.begin };
                if places.insert(entry.name.clone(), place).is_some() {
                    let reason = "would be written twice: the checkpoint has a tensor of that name already".to_owned();
                    return Err(Error::Weight { name: entry.name.clone(), reason, hint: None });
                }
                map.insert(entry.name.clone(), name.clone().into());
            }
            total += begin;
            let head = Head::Safetensors { metadata: Arc::clone(&metadata), tensors: std::mem::take(entries) };
            files.push(Output { name, bytes: start + begin, head });
        }
        let index = (count > 1).then(|| {
            map.sort_keys();
            (INDEX.to_owned(), pretty(&json!({ "metadata": { "total_size": total }, "weight_map": map })))
        });
        Ok(LaidOut { files, places, index })
    }
}

/// A tensor that follows from something other than a weight.
pub(super) struct Literal {
    pub(super) shard: usize,
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// What it takes to write a folder in which the parts of a weight are named after its module.
pub(super) fn job<'a>(
    checkpoint: &Checkpoint,
    decisions: Vec<Decision<'a>>,
    literals: Vec<Literal>,
    config: &Value,
    notes: Vec<String>,
) -> Result<QuantizeJob<'a>> {
    let mut folder = Folder::new(checkpoint.shards.len());
    for Decision { shard, stored, site, coded } in &decisions {
        match coded {
            None => folder.add(*shard, stored.name.clone(), stored.dtype, &stored.shape),
            Some((_, _, parts)) => {
                for part in parts {
                    folder.add(*shard, format!("{}.{}", site.module, part.name), part.dtype, &part.shape);
                }
            }
        }
    }
    for Literal { shard, name, dtype, shape, .. } in &literals {
        folder.add(*shard, name.clone(), *dtype, shape);
    }
    let laid_out = folder.lay_out(&[("format".to_owned(), "pt".to_owned())])?;
    let mut items = items(decisions, &laid_out.places, |_, site, part| format!("{}.{}", site.module, part.name))?;
    items.extend(literals.into_iter().filter_map(|Literal { name, bytes, .. }| {
        let to = laid_out.places.get(&name).copied()?;
        Some(Item { site: Site::of(&name, 1), work: Work::Literal { bytes, to }, name })
    }));
    let companions = companions(checkpoint, config, laid_out.index)?;
    Ok(QuantizeJob { files: laid_out.files, items, companions, notes, nearest: Vec::new() })
}

/// JSON as the transformers library writes it.
pub(super) fn pretty(value: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The source's companions with `config.json` as given, and what the folder adds.
pub(super) fn companions(
    checkpoint: &Checkpoint,
    config: &Value,
    index: Option<(String, Vec<u8>)>,
) -> Result<Vec<(String, Companion)>> {
    let mut all = Vec::new();
    for path in checkpoint.companions()? {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        // The second describes ModelOpt's codes, which the result does not have; loaders believe it before the first.
        if name != "config.json" && name != "hf_quant_config.json" {
            all.push((name, Companion::Copy(path)));
        }
    }
    let made = checkpoint.gguf.iter().flat_map(|source| &source.files);
    all.extend(made.map(|(name, bytes)| (name.clone(), Companion::Bytes(bytes.clone()))));
    all.push(("config.json".to_owned(), Companion::Bytes(pretty(config))));
    all.extend(index.map(|(name, bytes)| (name, Companion::Bytes(bytes))));
    Ok(all)
}

/// The configuration with its quantization.
pub(super) fn with_quantization(config: &Value, quantization: Value) -> Value {
    let mut config = config.clone();
    if let Some(map) = config.as_object_mut() {
        map.insert("quantization_config".to_owned(), quantization);
    }
    config
}
