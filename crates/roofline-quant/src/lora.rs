//! Adapters merged on the way: `W + scale * (alpha / r) * B A`, computed as weights are read.
//!
//! A checkpoint that adapters were [merged](Checkpoint::merge) into reads as one that holds the merged weights in its own
//! type of numbers, so every layout writes it, and nothing is written between. The factors `A` and `B` are held in
//! memory; they are small where the rank is.
//!
//! Folders are those of PEFT: `adapter_config.json` and `adapter_model.safetensors` or `.bin`. What an adapter has beside
//! factors (whole modules, biases) replaces the model's own. Whatever finds no weight is an error.

mod adapter;
mod change;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    Checkpoint, Dtype, Error, Result,
    checkpoint::Shard,
    number::is_number,
    stored::{Kind, StoredTensor},
};
use adapter::{Adapter, Part};
use change::Delta;
pub(crate) use change::{Change, Changes, Merged};

/// The most bytes of factors that are held, of all adapters together.
const MOST_HELD: u64 = 4 << 30;

/// What was merged, for reports.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MergedAdapter")]
pub struct Merge {
    /// The folder it came from.
    pub adapter: PathBuf,
    /// What `B A` was multiplied with beyond the adapter's own `alpha / r`.
    pub scale: f64,
    /// The weights that were changed.
    pub weights: Vec<String>,
    /// The tensors that were replaced.
    pub replaced: Vec<String>,
    /// Bytes of factors that are held in memory.
    pub bytes_held: u64,
    /// What the adapter is, to notice another one of the same name.
    #[serde(skip)]
    pub(crate) identity: Value,
}

impl Merge {
    /// What it did, in words.
    pub fn words(&self) -> String {
        let replaced = match self.replaced.len() {
            0 => String::new(),
            count => format!(", {count} tensors replaced"),
        };
        format!("added to {} weights{replaced}", self.weights.len())
    }
}

/// What is known of a tensor of the model before anything is merged.
struct Place {
    shape: Vec<usize>,
    dtype: Dtype,
    lies: Lies,
}

/// How a tensor lies in the checkpoint.
#[derive(Clone, Copy)]
enum Lies {
    /// As it is, in that shard.
    Plain(usize),
    Coded,
    /// Within a larger tensor, whose other parts would be changed, too.
    Within,
}

impl Checkpoint {
    /// Merges the adapter in a folder, times `scale`. Nothing but the adapter is read.
    pub fn merge(&mut self, folder: &Path, scale: f64) -> Result<()> {
        if self.gguf.is_some() {
            return Err(Error::unsupported(
                "an adapter is merged into the safetensors of a model, and this is a GGUF file",
                "write it as safetensors first, with `⟨plan bf16⟩ ⟨to FOLDER⟩`, and merge it there",
            ));
        }
        let adapter = Adapter::open(folder)?;
        let places = places(self)?;
        let find = |module: &str, rest: &str| {
            let found = spellings(module).into_iter().map(|module| format!("{module}{rest}"));
            found.into_iter().find(|name| places.contains_key(name))
        };
        let mut merge = Merge {
            adapter: folder.to_owned(),
            scale,
            weights: Vec::new(),
            replaced: Vec::new(),
            bytes_held: 0,
            identity: json!([adapter.identity()?, scale]),
        };
        let held: u64 = self.merged.iter().map(|merge| merge.bytes_held).sum();
        let mut changes: BTreeMap<String, Vec<Change>> = BTreeMap::new();
        for (module, part) in adapter.parts()? {
            let rest = if let Part::Whole(_, rest) = &part { rest.as_str() } else { ".weight" };
            let name = find(&module, rest).ok_or_else(|| adapter.homeless(&module, rest))?;
            let place = &places[&name];
            let refuse = |reason: String| Error::Weight { name: name.clone(), reason, hint: None };
            if !matches!(place.dtype, Dtype::Bf16 | Dtype::F16 | Dtype::F32) {
                return Err(refuse(format!("is stored as {}, which an adapter cannot be added to", place.dtype)));
            }
            if matches!(place.lies, Lies::Within) {
                return Err(refuse("is a part of a larger tensor, which adapters are not merged into".to_owned()));
            }
            match part {
                Part::Factors(factors) => {
                    let alpha = adapter.alpha(&module, factors.rank);
                    let bytes = factors.bytes();
                    merge.bytes_held += bytes;
                    if held + merge.bytes_held > MOST_HELD {
                        return Err(Error::unsupported(
                            format!(
                                "the factors of the adapters take more than {MOST_HELD} bytes, which are held in memory"
                            ),
                            "merge them one after the other, with `⟨plan bf16⟩` for all but the last",
                        ));
                    }
                    let delta: Delta = factors.read(&adapter, (alpha * scale) as f32)?;
                    if place.shape != delta.shape() {
                        return Err(refuse(format!(
                            "has the shape {:?}, and the adapter in `{}` is for {:?}",
                            place.shape,
                            folder.display(),
                            delta.shape()
                        )));
                    }
                    merge.weights.push(name.clone());
                    changes.entry(name).or_default().push(Change::Add(Arc::new(delta)));
                }
                Part::Whole(entry, _) => {
                    if self.is_changed(&name) {
                        return Err(refuse("is replaced by one adapter and changed by another".to_owned()));
                    }
                    let entry = &adapter.shard.header.tensors[entry];
                    if place.shape != entry.shape || !is_number(entry.dtype) {
                        return Err(refuse(format!(
                            "has the shape {:?}, and the adapter in `{}` replaces it by {} {:?}",
                            place.shape,
                            folder.display(),
                            entry.dtype,
                            entry.shape
                        )));
                    }
                    merge.replaced.push(name.clone());
                    // What replaces a weight is there before anything is added to it.
                    let replacement = Shard::open(&adapter.shard.path)?;
                    changes.entry(name).or_default().insert(0, Change::Replace(Arc::new((replacement, entry.clone()))));
                }
            }
        }
        for (name, more) in changes {
            let all = match places[&name].lies {
                Lies::Plain(shard) => &mut self.shards[shard].changes,
                _ => &mut self.changes,
            };
            all.entry(name).or_default().extend(more);
        }
        merge.weights.sort();
        merge.replaced.sort();
        self.merged.push(merge);
        Ok(())
    }

    fn is_changed(&self, name: &str) -> bool {
        self.changes.contains_key(name) || self.shards.iter().any(|shard| shard.changes.contains_key(name))
    }
}

/// Every tensor of a model, codes under the name of what they stand for.
fn places(checkpoint: &Checkpoint) -> Result<HashMap<String, Place>> {
    let mut places = HashMap::new();
    for stored in StoredTensor::all(checkpoint)? {
        let lies = match &stored.kind {
            Kind::Plain((shard, _)) => {
                let shard = checkpoint.shards.iter().position(|other| std::ptr::eq(other, *shard));
                shard.map_or(Lies::Within, Lies::Plain)
            }
            Kind::Coded(_) => Lies::Coded,
            Kind::Within(..) | Kind::Rearranged(..) => Lies::Within,
        };
        places.insert(stored.name, Place { shape: stored.shape, dtype: stored.dtype, lies });
    }
    Ok(places)
}

/// What a module may be called in a checkpoint: as in the program that trained the adapter, with or without the head of
/// the model around it, or as models that see were stored before they were renamed.
fn spellings(module: &str) -> Vec<String> {
    let mut all = vec![module.to_owned(), format!("model.{module}")];
    all.extend(module.strip_prefix("model.").map(str::to_owned));
    all.extend(module.strip_prefix("model.language_model.").map(|rest| format!("language_model.model.{rest}")));
    all.extend(module.strip_prefix("language_model.model.").map(|rest| format!("model.language_model.{rest}")));
    all
}

#[cfg(test)]
mod tests;
