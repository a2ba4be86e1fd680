//! A model on disk: `config.json`, weights in one file or in shards, of safetensors or PyTorch's, and what lies beside
//! them.

mod tokenizer;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Container, Error, Result,
    disk::read_exact_at,
    gguf::source::Source,
    lora::{Change, Changes, Merge},
    pytorch,
    safetensors::{Entry, Header},
};

/// The index of a checkpoint in shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The weights of a checkpoint in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The same in PyTorch's files.
const PYTORCH: (&str, &str) = ("pytorch_model.bin", "pytorch_model.bin.index.json");
/// What files of weights end in.
const EXTENSIONS: [&str; 4] = ["safetensors", "bin", "pt", "pth"];
/// What trainers save beside the weights in files that end like theirs.
const OF_TRAINING: [&str; 5] = ["training_args", "optimizer", "scheduler", "scaler", "rng_state"];
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
    /// What was merged into it.
    pub merged: Vec<Merge>,
    /// How weights in codes are changed after they are decoded, by what was merged.
    pub(crate) changes: Changes,
    /// What a GGUF file says, where it is one: its tensors lie there under llama.cpp's names.
    pub gguf: Option<Box<Source>>,
}

/// A file of weights.
#[derive(Debug)]
pub struct Shard {
    /// Its path.
    pub path: PathBuf,
    /// What kind of file it is.
    pub container: Container,
    /// What it holds.
    pub header: Header,
    file: File,
    /// How tensors are changed as they are read, by what was merged into the checkpoint.
    pub(crate) changes: Changes,
}

impl Shard {
    /// Opens a file and reads what it says it holds.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path, "safetensors")?;
        let container = Container::of(&file, path)?;
        let header = match container {
            Container::Safetensors => Header::read(&file, path)?,
            Container::Pytorch => pytorch::read(&file, path)?,
            Container::OldPytorch => {
                return Err(Error::unsupported(
                    format!("`{}` is a pickle as PyTorch wrote it before 1.6", path.display()),
                    format!(
                        "save it again, with a PyTorch that loads nothing but weights: `python -c \"import torch; \
                         torch.save(torch.load('{0}', weights_only=True), '{0}')\"`",
                        path.display()
                    ),
                ));
            }
            Container::Gguf => {
                return Err(Error::unsupported(
                    format!(
                        "`{}` is a GGUF file, and a checkpoint of safetensors or PyTorch's is asked for",
                        path.display()
                    ),
                    "give the file itself in place of its folder",
                ));
            }
        };
        Ok(Self { path: path.to_owned(), container, header, file, changes: Changes::new() })
    }

    /// A GGUF file, in which tensors lie at these places from its start on.
    pub(crate) fn of(path: &Path, tensors: Vec<Entry>) -> Result<Self> {
        Self::with(path, Container::Gguf, Header { metadata: Vec::new(), tensors, start: 0 })
    }

    /// A file that is known to hold this.
    fn with(path: &Path, container: Container, header: Header) -> Result<Self> {
        let file = open_regular(path, "file of weights")?;
        Ok(Self { path: path.to_owned(), container, header, file, changes: Changes::new() })
    }

    /// How long the file is.
    pub fn length(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(Error::file("read", &self.path))?.len())
    }

    /// Asks the system to forget what it holds of the file, so that what is read next comes from the disk.
    pub(crate) fn forget(&self) {
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// Reads `bytes.len()` bytes of a tensor, from `offset` on: whole numbers of it.
    pub(crate) fn read(&self, entry: &Entry, offset: u64, bytes: &mut [u8]) -> Result<()> {
        debug_assert!(offset + bytes.len() as u64 <= entry.bytes());
        let at = self.header.start + entry.begin + offset;
        read_exact_at(&self.file, bytes, at).map_err(Error::file("read", &self.path))?;
        match self.changes.get(&entry.name) {
            None => Ok(()),
            Some(changes) => Change::apply_to_bytes(changes, entry, offset, bytes),
        }
    }
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
        if file.is_some() && Container::of(&open_regular(path, "checkpoint")?, path)? == Container::Gguf {
            let (source, header, config) = Source::open(path)?;
            let shard = Shard::with(path, Container::Gguf, header)?;
            return Ok(Self { gguf: Some(Box::new(source)), ..Self::new(folder, config, vec![shard]) });
        }
        let mut shards = match file {
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
        if config["tie_word_embeddings"] == true {
            shards.iter_mut().for_each(Shard::without_tied_head);
        }
        Ok(Self::new(folder, config, shards))
    }

    /// Of files that are open already.
    pub(crate) fn new(folder: PathBuf, config: Value, shards: Vec<Shard>) -> Self {
        Self { folder, config, shards, merged: Vec::new(), changes: Changes::new(), gguf: None }
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

    /// What the model is called: the name of its folder, or of its GGUF file.
    pub fn name(&self) -> String {
        if let (Some(_), [shard]) = (&self.gguf, &self.shards[..]) {
            return shard
                .path
                .file_stem()
                .map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        }
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

    /// The file of that name beside the weights, if there is one and it is the model's.
    pub(crate) fn own(&self, name: &str) -> Option<PathBuf> {
        let path = self.folder.join(name);
        (path.is_file() && self.is_own(&path)).then_some(path)
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
        // What lies beside a GGUF file is not known to be its own.
        if self.gguf.is_some() {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(Error::file("read", &self.folder))? {
            paths.push(entry.map_err(Error::file("read", &self.folder))?.path());
        }
        // Code that transformers does not have - of the model, its tokenizer or its processor - which is run only by who
        // trusts it.
        let code = self.config["auto_map"].is_object() || paths.iter().any(|path| names_code(path));
        let mut files = Vec::new();
        for path in paths {
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
    /// Leaves out a head that is the embedding once more: PyTorch saves the same bytes under both names, and loaders that
    /// are told they are one look for the embedding alone.
    fn without_tied_head(&mut self) {
        let tensors = &self.header.tensors;
        let head = tensors.iter().position(|entry| entry.name == "lm_head.weight");
        let shared = |head: &Entry| tensors.iter().any(|entry| entry.name != head.name && entry.begin == head.begin);
        if let Some(head) = head.filter(|head| shared(&tensors[*head])) {
            self.header.tensors.remove(head);
        }
    }

    fn entries(&self) -> std::slice::Iter<'_, Entry> {
        self.header.tensors.iter()
    }
}

/// The weights in a folder, as transformers looks for them: one file, or shards with their index, and safetensors before
/// PyTorch's.
fn weights_in(folder: &Path) -> Result<Vec<Shard>> {
    for (single, index) in [(SINGLE, INDEX), PYTORCH] {
        let (single, index) = (folder.join(single), folder.join(index));
        if single.exists() {
            return Ok(vec![Shard::open(&single)?]);
        }
        if index.exists() {
            return sharded(folder, &index);
        }
    }
    let mut found: [Vec<PathBuf>; EXTENSIONS.len()] = Default::default();
    let mut gguf = None;
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let path = entry.map_err(Error::file("read", folder))?.path();
        let extension = path.extension().unwrap_or_default();
        let of_training = path
            .file_stem()
            .is_some_and(|stem| OF_TRAINING.iter().any(|known| stem.to_string_lossy().starts_with(known)));
        match EXTENSIONS.iter().position(|known| extension == *known) {
            Some(at) if !of_training => found[at].push(path),
            _ if extension == "gguf" => gguf = Some(path),
            _ => {}
        }
    }
    let [safetensors, others @ ..] = found;
    let found = if safetensors.is_empty() { others.concat() } else { safetensors };
    match (found.as_slice(), gguf) {
        ([one], _) => Ok(vec![Shard::open(one)?]),
        ([], Some(gguf)) => Shard::open(&gguf).map(|shard| vec![shard]),
        ([], None) => {
            let reason = format!("it holds no {SINGLE}, no {INDEX}, and neither of PyTorch's files");
            Err(Error::malformed(folder, "checkpoint", reason))
        }
        (several, _) => {
            let reason = format!("it holds {} files of weights and no {INDEX} that says which belong", several.len());
            Err(Error::malformed(folder, "checkpoint", reason))
        }
    }
}

/// Whether a file beside the weights is a configuration that names classes in files of code: a tokenizer's or a processor's.
fn names_code(path: &Path) -> bool {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    name.ends_with("_config.json")
        && read_json::<Value>(path, "configuration").is_ok_and(|config| config["auto_map"].is_object())
}

/// How many shards there are, if the file of that name is one: by the index beside it, or else by its name.
fn shards_beside(folder: &Path, name: &str) -> Result<Option<usize>> {
    for index in [INDEX, PYTORCH.1] {
        let index = folder.join(index);
        if index.exists() {
            let index: Index = read_json(&index, "index of shards")?;
            let files: BTreeSet<&String> = index.weight_map.values().collect();
            if files.iter().any(|file| *file == name) {
                return Ok(Some(files.len()));
            }
        }
    }
    let stem = Path::new(name).file_stem().and_then(|stem| stem.to_str()).filter(|_| has_weights(name));
    let count = stem.and_then(|stem| stem.rsplit_once("-of-"));
    Ok(count.and_then(|(_, count)| count.parse().ok()))
}

/// Whether a file of that name holds weights.
fn has_weights(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

/// The shards an index names, if they hold exactly what it says.
fn sharded(folder: &Path, path: &Path) -> Result<Vec<Shard>> {
    let refuse = |reason: String| Error::malformed(path, "index of shards", reason);
    let index: Index = read_json(path, "index of shards")?;
    let mut files = BTreeSet::new();
    for file in index.weight_map.values() {
        // A name from outside must not lead outside.
        if file.contains(['/', '\\']) || file.starts_with('.') || !has_weights(file) {
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
        return Err(Error::malformed(
            path,
            format,
            format!("it has more than {limit} bytes, the most that are read of one"),
        ));
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
