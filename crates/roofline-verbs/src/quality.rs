//! Quality that was measured here: what evaluations found, kept by the weights of the original.
//!
//! Each record is a file of its own in the home's `quality/`, so that a broken one takes none with it.

mod stored;

pub use stored::signature;

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use roofline_core::{hash::fnv1a, recommend::Measured};
use roofline_quant::{Checkpoint, checkpoint::Shard, safetensors::Entry};

use crate::{Context, Error, Result};

/// Where records lie.
const FOLDER: &str = "quality";
/// Bytes of a tensor that are looked at in one place: enough that weights which were trained on differ in some.
const SAMPLE: u64 = 64;
/// Places of a tensor that are looked at.
const PLACES: u64 = 8;

/// Which weights a checkpoint has: a hash of names, types and shapes of its tensors and of some bytes of each. It is the same
/// wherever the files lie, in one file or in shards, and reads less than a kilobyte of each tensor.
pub fn fingerprint(checkpoint: &Checkpoint) -> Result<String> {
    let mut bytes = Vec::new();
    let mut files: Vec<(&Path, File)> = Vec::new();
    for (name, (shard, entry)) in checkpoint.tensors() {
        bytes.extend(format!("{name} {} {:?}\n", entry.dtype, entry.shape).into_bytes());
        let known = files.iter().position(|(path, _)| *path == shard.path);
        let at = known.unwrap_or(files.len());
        if known.is_none() {
            files.push((&shard.path, File::open(&shard.path).map_err(Error::file(&shard.path))?));
        }
        sample(&mut files[at].1, shard, entry, &mut bytes).map_err(Error::file(&shard.path))?;
    }
    Ok(format!("{:016x}", fnv1a(&bytes)))
}

/// Bytes of a tensor from places that are evenly apart, the first and the last among them.
fn sample(file: &mut File, shard: &Shard, entry: &Entry, into: &mut Vec<u8>) -> std::io::Result<()> {
    let length = entry.bytes();
    let (places, each) = if length <= SAMPLE * PLACES { (1, length) } else { (PLACES, SAMPLE) };
    for place in 0..places {
        let offset = if place == 0 { 0 } else { (length - each) / (places - 1) * place };
        file.seek(SeekFrom::Start(shard.header.start + entry.begin + offset))?;
        let from = into.len();
        into.resize(from + each as usize, 0);
        file.read_exact(&mut into[from..])?;
    }
    Ok(())
}

/// Keeps what an evaluation found; the same measured again replaces it. Of the text only its name is kept.
pub fn keep(context: &Context, found: &Measured) -> Result<PathBuf> {
    let text = Path::new(&found.text).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let found = Measured { text, ..found.clone() };
    let Measured { signature, method, cache, text, .. } = &found;
    let what = format!("{signature}\n{method:?}\n{cache:?}\n{text}");
    let name = format!("{}.{:016x}", found.fingerprint, fnv1a(what.as_bytes()));
    context.home().keep(FOLDER, &name, &found)
}

/// What is kept of the weights with that fingerprint, in the order of the files' names. A file that is broken is said and left
/// out.
pub fn known(context: &Context, fingerprint: &str) -> Vec<Measured> {
    let Some(entries) = context.home().folder(FOLDER).and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let own = |name: String| {
        let name = name.strip_suffix(".json")?;
        name.strip_prefix(fingerprint)?.starts_with('.').then(|| name.to_owned())
    };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| own(entry.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    names.iter().filter_map(|name| record(context, name, fingerprint)).collect()
}

fn record(context: &Context, name: &str, fingerprint: &str) -> Option<Measured> {
    match context.kept::<Measured>(FOLDER, name)?.checked() {
        Ok(found) if found.fingerprint == fingerprint => Some(found),
        Ok(_) => None,
        Err(error) => {
            context.warn(format!("left out: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests;
