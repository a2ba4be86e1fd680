//! How many files the weights go into.

use std::{collections::HashMap, fmt, str::FromStr};

use roofline_core::{Error as CoreError, units::FileSize};

use super::folder::Folder;
use crate::{
    Error, Layout, QuantizeJob, Result,
    checkpoint::INDEX,
    job::{Companion, Head, Item, Place, Work},
    safetensors::Entry,
};

/// How the tensors of a result are spread over files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shards {
    /// As many as the source has: each tensor goes into the file that stands where the one it comes from stood.
    #[default]
    AsSource,
    /// One file.
    One,
    /// As few as hold at most this many bytes of tensors each; a weight of more has a file of its own.
    Of(u64),
}

impl FromStr for Shards {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Self, CoreError> {
        let text = text.trim();
        if matches!(text.to_lowercase().as_str(), "0" | "none" | "one") {
            return Ok(Self::One);
        }
        let size = text.parse::<FileSize>().map_err(|error| CoreError::Unknown {
            what: "size of shards",
            name: text.to_owned(),
            nearest: None,
            hint: format!("{}; 0 for one file", error.hint().unwrap_or_default()),
        })?;
        Ok(Self::Of(size.bytes()))
    }
}

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsSource => f.write_str("as the source's"),
            Self::One => f.write_str("one"),
            Self::Of(bytes) => write!(f, "of {bytes} B"),
        }
    }
}

impl Shards {
    /// Spreads the job's tensors over files in the order of names. All that is stored for a weight stays together.
    pub(crate) fn spread(self, layout: Layout, job: &mut QuantizeJob<'_>) -> Result<()> {
        let most = match self {
            Self::AsSource => return Ok(()),
            Self::One => u64::MAX,
            Self::Of(bytes) => bytes,
        };
        if layout == Layout::Gguf {
            return match self {
                Self::One => Ok(()),
                _ => Err(Error::unsupported(
                    "a GGUF file is written whole, not in shards",
                    "leave `⟨max_shard_size⟩` out, and split it with llama.cpp's `llama-gguf-split`",
                )),
            };
        }
        let mut metadata = None;
        let mut entries: Vec<Entry> = Vec::new();
        let mut at: HashMap<(usize, u64), String> = HashMap::new();
        for (file, output) in job.files.iter().enumerate() {
            let Head::Safetensors { metadata: text, tensors } = &output.head else { continue };
            metadata.get_or_insert_with(|| text.clone());
            let start = output.bytes - tensors.last().map_or(0, |last| last.end);
            for entry in tensors.iter().filter(|entry| entry.bytes() > 0) {
                at.insert((file, start + entry.begin), entry.name.clone());
            }
            entries.extend(tensors.iter().cloned());
        }
        let name = |place: &Place| at.get(&(place.file, place.offset)).cloned();
        // Each weight by the name of its first tensor; what holds no number belongs to no weight.
        let mut owner: HashMap<String, String> = HashMap::new();
        for item in &job.items {
            let names: Vec<String> = places(item).iter().filter_map(name).collect();
            let first = names.iter().min().cloned().unwrap_or_default();
            owner.extend(names.into_iter().map(|name| (name, first.clone())));
        }
        entries.sort_by_cached_key(|entry| {
            let owner = owner.get(&entry.name).unwrap_or(&entry.name);
            (owner.clone(), entry.name.clone())
        });
        let mut shards: Vec<(u64, Vec<Entry>)> = Vec::new();
        let together = |a: &Entry, b: &Entry| owner.contains_key(&a.name) && owner.get(&a.name) == owner.get(&b.name);
        for weight in entries.chunk_by(together) {
            let bytes: u64 = weight.iter().map(Entry::bytes).sum();
            match shards.last_mut() {
                Some((used, shard)) if used.saturating_add(bytes) <= most => {
                    *used += bytes;
                    shard.extend_from_slice(weight);
                }
                _ => shards.push((bytes, weight.to_vec())),
            }
        }
        let mut folder = Folder::new(shards.len());
        for (shard, (_, entries)) in shards.iter().enumerate() {
            for entry in entries {
                folder.add(shard, entry.name.clone(), entry.dtype, &entry.shape);
            }
        }
        let laid_out = folder.lay_out(metadata.as_deref().unwrap_or_default())?;
        let moved = |place: &mut Place| {
            let to = name(place).and_then(|name| laid_out.places.get(&name));
            // What has no bytes may stand anywhere.
            *place = to.copied().unwrap_or(Place { file: 0, offset: 0 });
        };
        for item in &mut job.items {
            match &mut item.work {
                Work::Copy { to, .. } | Work::Literal { to, .. } => moved(to),
                Work::Code(code) => code.parts.iter_mut().for_each(|(_, to)| moved(to)),
            }
        }
        job.files = laid_out.files;
        job.companions.retain(|(name, _)| name != INDEX);
        job.companions.extend(laid_out.index.map(|(name, bytes)| (name, Companion::Bytes(bytes))));
        Ok(())
    }
}

/// Where an item is written.
pub(crate) fn places(item: &Item<'_>) -> Vec<Place> {
    match &item.work {
        Work::Copy { to, .. } | Work::Literal { to, .. } => vec![*to],
        Work::Code(code) => code.parts.iter().map(|(_, to)| *to).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        assert_eq!("5 gb".parse::<Shards>().unwrap(), Shards::Of(5_000_000_000));
        for text in ["0", "none", "None"] {
            assert_eq!(text.parse::<Shards>().unwrap(), Shards::One, "{text}");
        }
        let refused = "5".parse::<Shards>().unwrap_err();
        assert!(refused.hint().unwrap().contains("such as 5GB"), "{refused}");
    }
}
