//! How many files the weights go into.

use std::{collections::HashMap, fmt, str::FromStr};

use roofline_core::{Error as CoreError, units::Bytes};

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
        size(text, "size of shards", "a size with its unit, such as 5GB, 500MB or 4GiB; 0 for one file").map(Self::Of)
    }
}

/// Bytes as people write them, with a unit; an error of `what` was asked for where they are none.
pub fn size(text: &str, what: &'static str, hint: &str) -> Result<u64, CoreError> {
    let text = text.trim();
    let refuse = || CoreError::Unknown { what, name: text.to_owned(), nearest: None, hint: hint.to_owned() };
    // `5G` and `5gb` are what people write, too; a number alone is as likely meant in gigabytes as in bytes.
    let end = text.find(|letter: char| letter.is_ascii_alphabetic()).ok_or_else(refuse)?;
    let (number, unit) = text.split_at(end);
    let unit = match unit.to_lowercase().as_str() {
        "b" => "B",
        "k" | "kb" => "kB",
        "m" | "mb" => "MB",
        "g" | "gb" => "GB",
        "t" | "tb" => "TB",
        "ki" | "kib" => "KiB",
        "mi" | "mib" => "MiB",
        "gi" | "gib" => "GiB",
        "ti" | "tib" => "TiB",
        _ => return Err(refuse()),
    };
    let bytes: Bytes = format!("{} {unit}", number.trim()).parse().map_err(|_| refuse())?;
    let bytes = bytes.value();
    if !(1.0..=1e18).contains(&bytes) {
        return Err(refuse());
    }
    Ok(bytes as u64)
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
        for (text, bytes) in [
            ("5GB", 5_000_000_000),
            ("5 gb", 5_000_000_000),
            ("5G", 5_000_000_000),
            ("0.5GB", 500_000_000),
            ("500MB", 500_000_000),
            ("4GiB", 4 << 30),
            ("100kb", 100_000),
            ("4096B", 4096),
        ] {
            assert_eq!(text.parse::<Shards>().unwrap(), Shards::Of(bytes), "{text}");
        }
        for text in ["0", "none", "None"] {
            assert_eq!(text.parse::<Shards>().unwrap(), Shards::One, "{text}");
        }
        for text in ["", "5", "GB", "-5GB", "5XB", "0GB", "nanGB", "1e30GB", "5GB5"] {
            let refused = text.parse::<Shards>().unwrap_err();
            assert!(refused.hint().unwrap().contains("such as 5GB"), "{text}: {refused}");
        }
    }
}
