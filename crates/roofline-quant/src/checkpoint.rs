//! A model on disk: `config.json`, weights in one safetensors file or in shards, and what lies beside them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Error, Result,
    safetensors::{Entry, Header},
};

/// The index of a checkpoint in shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The weights of a checkpoint in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The longest `config.json` or index that is read.
const LONGEST_JSON: u64 = 256 << 20;

/// An open checkpoint. Nothing but headers has been read.
#[derive(Debug)]
pub struct Checkpoint {
    /// Where it lies.
    pub folder: PathBuf,
    /// `config.json` as it stands; an empty object where there is none.
    pub config: Value,
    /// The files of weights.
    pub shards: Vec<Shard>,
}

/// A file of weights.
#[derive(Debug)]
pub struct Shard {
    /// Its path.
    pub path: PathBuf,
    /// What it holds.
    pub header: Header,
    file: File,
}

impl Shard {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path, "safetensors")?;
        let header = Header::read(&file, path)?;
        Ok(Self { path: path.to_owned(), header, file })
    }

    /// Reads `bytes.len()` bytes of a tensor, from `offset` on.
    pub(crate) fn read(&self, entry: &Entry, offset: u64, bytes: &mut [u8]) -> Result<()> {
        debug_assert!(offset + bytes.len() as u64 <= entry.bytes());
        let at = self.header.start + entry.begin + offset;
        read_exact_at(&self.file, bytes, at).map_err(Error::file("read", &self.path))
    }
}

/// Positioned reads leave no mapped pages behind, so memory stays bounded whatever the size of the file, and a file that
/// another process cuts short is an error instead of a signal.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, at)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => {
                bytes = &mut bytes[read..];
                at += read as u64;
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`: its folder, its one file of weights or its index. One shard of several is refused,
    /// since what is made of it would pass for the whole model.
    pub fn open(path: &Path) -> Result<Self> {
        let checkpoint = Self::open_part(path)?;
        let [shard] = &checkpoint.shards[..] else { return Ok(checkpoint) };
        if path.is_dir() || path.to_string_lossy().ends_with(".index.json") {
            return Ok(checkpoint);
        }
        let name = shard.path.file_name().unwrap_or_default().to_string_lossy();
        match shards_beside(&checkpoint.folder, &name)? {
            None | Some(1) => Ok(checkpoint),
            Some(count) => Err(Error::unsupported(
                format!("`{}` is one of {count} shards", path.display()),
                format!("give the folder: `{}`", checkpoint.folder.display()),
            )),
        }
    }

    /// Opens what is at `path`, be it one shard of several: for looking.
    pub fn open_part(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(Error::file("open", path))?;
        let (folder, file) = if metadata.is_dir() {
            (path.to_owned(), None)
        } else {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            (folder.unwrap_or(Path::new(".")).to_owned(), path.file_name().and_then(|name| name.to_str()))
        };
        let shards = match file {
            Some(name) if name.ends_with(".index.json") => sharded(&folder, path)?,
            Some(_) => vec![Shard::open(path)?],
            None => weights_in(&folder)?,
        };
        let config = folder.join("config.json");
        let config = if config.exists() {
            read_json(&config, "config.json")?
        } else {
            Value::Object(serde_json::Map::default())
        };
        if !config.is_object() {
            return Err(Error::malformed(&folder.join("config.json"), "config.json", "it is no object"));
        }
        Ok(Self { folder, config, shards })
    }

    /// Every tensor, with the shard it lies in, in the order of names.
    pub fn tensors(&self) -> BTreeMap<&str, (&Shard, &Entry)> {
        let of = |shard| Shard::entries(shard).map(move |entry| (entry.name.as_str(), (shard, entry)));
        self.shards.iter().flat_map(of).collect()
    }

    /// Bytes of all tensors together.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().flat_map(Shard::entries).map(Entry::bytes).sum()
    }

    /// What the model is called: the name of its folder.
    pub fn name(&self) -> String {
        let folder = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        folder.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Files that belong to the model and hold no weights: configuration, tokenizer, templates, licence, and code where
    /// the configuration asks for it. In the order of names.
    pub fn companions(&self) -> Result<Vec<PathBuf>> {
        Ok(self.beside()?.into_iter().filter(|path| self.is_own(path)).collect())
    }

    /// What would be among the [companions](Self::companions), were it not a link that leads out of the model: whoever
    /// made the folder must not choose which of this machine's files are copied.
    pub fn outsiders(&self) -> Result<Vec<PathBuf>> {
        Ok(self.beside()?.into_iter().filter(|path| !self.is_own(path)).collect())
    }

    /// A word about files that are left out.
    pub(crate) fn left_out(&self) -> Result<Option<String>> {
        let paths = self.outsiders()?;
        let names: Vec<_> =
            paths.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
        Ok((!names.is_empty())
            .then(|| format!("not copied, being links that lead out of the model: {}", names.join(", "))))
    }

    /// Whether a path leads to a file of the model: in its folder, or among the blobs of a Hugging Face cache, whose
    /// `snapshots/REVISION` is this folder and holds nothing but links to `../../blobs/HASH`.
    fn is_own(&self, path: &Path) -> bool {
        let (Ok(folder), Ok(target)) = (fs::canonicalize(&self.folder), fs::canonicalize(path)) else { return false };
        let snapshots = folder.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
        let blobs = snapshots.and_then(Path::parent).map(|model| model.join("blobs"));
        target.starts_with(&folder) || blobs.is_some_and(|blobs| target.starts_with(blobs))
    }

    /// Files that, by their names, belong to the model and hold no weights.
    fn beside(&self) -> Result<Vec<PathBuf>> {
        // Code of a model that transformers does not have; it is run only by who trusts it.
        let code = self.config["auto_map"].is_object();
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(Error::file("read", &self.folder))? {
            let path = entry.map_err(Error::file("read", &self.folder))?.path();
            let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
            let extension = Path::new(&name).extension().map_or("", |extension| extension.to_str().unwrap_or(""));
            let belongs = match extension {
                "json" => !name.ends_with(".index.json"),
                "model" | "jinja" | "txt" | "tiktoken" => true,
                "py" => code,
                _ => name.starts_with("license") || name.starts_with("notice") || name.starts_with("use_policy"),
            };
            if belongs && !name.starts_with('.') && path.is_file() {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

impl Shard {
    fn entries(&self) -> std::slice::Iter<'_, Entry> {
        self.header.tensors.iter()
    }
}

/// The weights in a folder: one file, or shards with their index, as transformers looks for them.
fn weights_in(folder: &Path) -> Result<Vec<Shard>> {
    let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
    if single.exists() {
        return Ok(vec![Shard::open(&single)?]);
    }
    if index.exists() {
        return sharded(folder, &index);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let path = entry.map_err(Error::file("read", folder))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            found.push(path);
        }
    }
    match found.as_slice() {
        [one] => Ok(vec![Shard::open(one)?]),
        [] => Err(Error::malformed(folder, "checkpoint", format!("it holds no {SINGLE} and no {INDEX}"))),
        several => {
            let reason = format!("it holds {} files of weights and no {INDEX} that says which belong", several.len());
            Err(Error::malformed(folder, "checkpoint", reason))
        }
    }
}

/// How many shards there are, if the file of that name is one: by the index beside it, or else by its name.
fn shards_beside(folder: &Path, name: &str) -> Result<Option<usize>> {
    let index = folder.join(INDEX);
    if index.exists() {
        let index: Index = read_json(&index, "index of shards")?;
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        return Ok(files.iter().any(|file| *file == name).then_some(files.len()));
    }
    let count = name.strip_suffix(".safetensors").and_then(|stem| stem.rsplit_once("-of-"));
    Ok(count.and_then(|(_, count)| count.parse().ok()))
}

/// The shards an index names, if they hold exactly what it says.
fn sharded(folder: &Path, path: &Path) -> Result<Vec<Shard>> {
    let refuse = |reason: String| Error::malformed(path, "index of shards", reason);
    let index: Index = read_json(path, "index of shards")?;
    let mut files = BTreeSet::new();
    for file in index.weight_map.values() {
        // A name from outside must not lead outside.
        if file.contains(['/', '\\']) || file.starts_with('.') || !file.ends_with(".safetensors") {
            return Err(refuse(format!("`{file}` is no name of a shard")));
        }
        files.insert(file.clone());
    }
    if files.is_empty() {
        return Err(refuse("it names no shard".to_owned()));
    }
    let mut shards = Vec::new();
    let mut seen = BTreeMap::new();
    for file in files {
        let shard = Shard::open(&folder.join(&file))?;
        for entry in shard.entries() {
            if let Some(other) = seen.insert(entry.name.clone(), file.clone()) {
                return Err(refuse(format!("tensor `{}` is in `{other}` and again in `{file}`", entry.name)));
            }
            match index.weight_map.get(&entry.name) {
                Some(named) if *named == file => {}
                Some(named) => {
                    return Err(refuse(format!("it puts tensor `{}` into `{named}`, but `{file}` has it", entry.name)));
                }
                None => return Err(refuse(format!("`{file}` has tensor `{}`, which it does not name", entry.name))),
            }
        }
        shards.push(shard);
    }
    if let Some((name, file)) = index.weight_map.iter().find(|(name, _)| !seen.contains_key(*name)) {
        return Err(refuse(format!("it puts tensor `{name}` into `{file}`, which does not have it")));
    }
    Ok(shards)
}

/// Reads a JSON file of bounded size.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path, format: &'static str) -> Result<T> {
    let text = read_bounded(path, LONGEST_JSON, format)?;
    serde_json::from_slice(&text).map_err(|error| Error::malformed(path, format, error.to_string()))
}

/// All of a file of at most `limit` bytes. Its metadata are not believed: devices say they are empty and never end, and
/// a file may grow while it is read.
pub(crate) fn read_bounded(path: &Path, limit: u64, format: &'static str) -> Result<Vec<u8>> {
    let file = open_regular(path, format)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(Error::file("read", path))?;
    if bytes.len() as u64 > limit {
        return Err(Error::malformed(path, format, format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

/// Opens what is a file, and not a device or a pipe, where reading may have no end or never begin.
pub(crate) fn open_regular(path: &Path, format: &'static str) -> Result<File> {
    let refuse = || Error::malformed(path, format, "it is no regular file");
    // Opening a pipe waits for a writer, so what is there is asked for first; what was opened is asked again, because
    // the two need not be the same.
    if !fs::metadata(path).map_err(Error::file("read", path))?.is_file() {
        return Err(refuse());
    }
    let file = File::open(path).map_err(Error::file("open", path))?;
    if file.metadata().map_err(Error::file("read", path))?.is_file() { Ok(file) } else { Err(refuse()) }
}

#[cfg(test)]
pub(crate) mod tests;
