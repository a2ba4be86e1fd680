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
pub(crate) mod tests {
    use super::*;
    use crate::{Dtype, scratch::Scratch};

    /// Writes a safetensors file with tensors of these names, types, shapes and bytes.
    pub(crate) fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
        let mut begin = 0;
        let entries: Vec<Entry> = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| {
                let end = begin + bytes.len() as u64;
                let entry = Entry { name: (*name).to_owned(), dtype: *dtype, shape: shape.to_vec(), begin, end };
                begin = end;
                entry
            })
            .collect();
        let mut all = Header::bytes(&[("format".to_owned(), "pt".to_owned())], &entries);
        for (.., bytes) in tensors {
            all.extend(bytes);
        }
        fs::write(path, all).unwrap();
    }

    fn tensor(name: &str) -> (&str, Dtype, &'static [usize], Vec<u8>) {
        (name, Dtype::Bf16, &[2], vec![1, 2, 3, 4])
    }

    #[test]
    fn shards_must_agree_with_their_index() {
        let scratch = Scratch::new("shards");
        let folder = scratch.path();
        let index = |text: &str| fs::write(folder.join(INDEX), text).unwrap();
        let why = || Checkpoint::open(folder).unwrap_err().to_string();
        write(&folder.join("a.safetensors"), &[tensor("x")]);
        write(&folder.join("b.safetensors"), &[tensor("y")]);
        assert!(
            why().ends_with("it holds 2 files of weights and no model.safetensors.index.json that says which belong")
        );
        index(r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#);
        let checkpoint = Checkpoint::open(folder).unwrap();
        assert_eq!(checkpoint.tensors().keys().collect::<Vec<_>>(), [&"x", &"y"]);
        assert_eq!(checkpoint.bytes(), 8);
        for (text, reason) in [
            (r#"{"weight_map":{"x":"a.safetensors"}}"#, None),
            (r#"{"weight_map":{}}"#, Some("it names no shard")),
            (r#"{"weight_map":{"x":"../a.safetensors"}}"#, Some("`../a.safetensors` is no name of a shard")),
            (
                r#"{"weight_map":{"x":"a.safetensors","z":"a.safetensors"}}"#,
                Some("it puts tensor `z` into `a.safetensors`, which does not have it"),
            ),
            (
                r#"{"weight_map":{"x":"b.safetensors","y":"b.safetensors"}}"#,
                Some("it puts tensor `x` into `b.safetensors`, which does not have it"),
            ),
            (
                r#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#,
                Some("it puts tensor `x` into `b.safetensors`, but `a.safetensors` has it"),
            ),
            (r#"{"weight_map":{"z":"a.safetensors"}}"#, Some("`a.safetensors` has tensor `x`, which it does not name")),
            (r#"{"weight_map":{"x":"c.safetensors"}}"#, Some("(os error 2)")),
        ] {
            index(text);
            match reason {
                Some(reason) => assert!(why().ends_with(reason), "{}", why()),
                // A shard that the index does not name is none of its business.
                None => assert_eq!(Checkpoint::open(folder).unwrap().shards.len(), 1),
            }
        }
        write(&folder.join("b.safetensors"), &[tensor("x"), tensor("y")]);
        index(r#"{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#);
        assert!(why().ends_with("tensor `x` is in `a.safetensors` and again in `b.safetensors`"), "{}", why());
    }

    #[test]
    fn companions_hold_no_weights() {
        let scratch = Scratch::new("companions");
        let folder = scratch.path();
        let all = ["config.json", "tokenizer.model", INDEX, "x.bin", "README.md", "LICENSE", "merges.txt", ".x.json"];
        for name in all {
            fs::write(folder.join(name), "{}").unwrap();
        }
        write(&folder.join(SINGLE), &[tensor("x")]);
        let companions = Checkpoint::open(folder).unwrap().companions().unwrap();
        assert_eq!(names(&companions), ["LICENSE", "config.json", "merges.txt", "tokenizer.model"]);
    }

    fn names(paths: &[PathBuf]) -> Vec<&str> {
        paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect()
    }

    #[test]
    fn code_comes_along_where_the_configuration_asks_for_it() {
        let scratch = Scratch::new("code");
        let folder = scratch.path();
        write(&folder.join(SINGLE), &[tensor("x")]);
        fs::write(folder.join("modeling_x.py"), "").unwrap();
        for (config, expected) in [
            ("{}", &["config.json"][..]),
            (r#"{"auto_map": {"AutoModel": "modeling_x.X"}}"#, &["config.json", "modeling_x.py"]),
        ] {
            fs::write(folder.join("config.json"), config).unwrap();
            assert_eq!(names(&Checkpoint::open(folder).unwrap().companions().unwrap()), expected);
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_to_the_models_own_files_or_nowhere() {
        use std::os::unix::fs::symlink;
        let scratch = Scratch::new("links");
        // A Hugging Face cache, with another model beside it.
        let (model, other) = (scratch.path().join("models--a--b"), scratch.path().join("models--a--c"));
        let folder = model.join("snapshots/0123");
        for path in [&folder, &model.join("blobs"), &other.join("blobs")] {
            fs::create_dir_all(path).unwrap();
        }
        for path in [model.join("blobs/aa"), other.join("blobs/bb"), scratch.path().join("secret.json")] {
            fs::write(path, "{}").unwrap();
        }
        write(&model.join("blobs/weights"), &[tensor("x")]);
        symlink("../../blobs/weights", folder.join(SINGLE)).unwrap();
        symlink("../../blobs/aa", folder.join("config.json")).unwrap();
        symlink("config.json", folder.join("again.json")).unwrap();
        symlink("../../../models--a--c/blobs/bb", folder.join("other.json")).unwrap();
        symlink(scratch.path().join("secret.json"), folder.join("tokenizer.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        assert_eq!(names(&checkpoint.companions().unwrap()), ["again.json", "config.json"]);
        assert_eq!(names(&checkpoint.outsiders().unwrap()), ["other.json", "tokenizer.json"]);
    }

    #[test]
    fn a_shard_is_not_the_model() {
        let scratch = Scratch::new("shard");
        let folder = scratch.path();
        let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        write(&folder.join(first), &[tensor("x")]);
        write(&folder.join("x.safetensors"), &[tensor("y")]);
        let why = |name: &str| Checkpoint::open(&folder.join(name)).unwrap_err();
        // By its name, and by the index.
        assert!(why(first).to_string().ends_with("is one of 2 shards"));
        for map in [format!(r#"{{"x":"{first}","y":"{second}"}}"#), format!(r#"{{"x":"{first}","y":"x.safetensors"}}"#)]
        {
            fs::write(folder.join(INDEX), format!(r#"{{"weight_map":{map}}}"#)).unwrap();
            assert!(why(first).to_string().ends_with("is one of 2 shards"));
            assert_eq!(why(first).hint().unwrap(), format!("give the folder: `{}`", folder.display()));
        }
        assert!(why("x.safetensors").to_string().ends_with("is one of 2 shards"));
        assert_eq!(Checkpoint::open_part(&folder.join(first)).unwrap().shards.len(), 1);
        // The whole, by any name, and what the index does not know.
        assert_eq!(Checkpoint::open(folder).unwrap().shards.len(), 2);
        assert_eq!(Checkpoint::open(&folder.join(INDEX)).unwrap().shards.len(), 2);
        fs::write(folder.join(INDEX), format!(r#"{{"weight_map":{{"x":"{first}"}}}}"#)).unwrap();
        assert!(Checkpoint::open(&folder.join(first)).is_ok());
        assert!(Checkpoint::open(&folder.join("x.safetensors")).is_ok());
    }

    #[test]
    fn what_is_longer_than_it_may_be_is_refused() {
        let scratch = Scratch::new("bounded");
        let path = scratch.path().join("text");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_bounded(&path, 5, "text").unwrap(), b"12345");
        let said = read_bounded(&path, 4, "text").unwrap_err().to_string();
        assert!(said.ends_with("is no usable text: it has more than 4 bytes"), "{said}");
        let said = read_bounded(scratch.path(), 4, "text").unwrap_err().to_string();
        assert!(said.ends_with("it is no regular file"), "{said}");
    }

    /// Each of these would never return.
    #[cfg(unix)]
    #[test]
    fn devices_and_pipes_are_not_read() {
        let scratch = Scratch::new("devices");
        let folder = scratch.path();
        write(&folder.join(SINGLE), &[tensor("x")]);
        let config = folder.join("config.json");
        std::os::unix::fs::symlink("/dev/zero", &config).unwrap();
        let said = Checkpoint::open(folder).unwrap_err().to_string();
        assert!(said.ends_with("is no usable config.json: it is no regular file"), "{said}");
        fs::remove_file(&config).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&config).status().unwrap();
        assert!(made.success());
        let said = Checkpoint::open(folder).unwrap_err().to_string();
        assert!(said.ends_with("is no usable config.json: it is no regular file"), "{said}");
        fs::remove_file(&config).unwrap();
        fs::remove_file(folder.join(SINGLE)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.join(SINGLE)).unwrap();
        let said = Checkpoint::open(folder).unwrap_err().to_string();
        assert!(said.ends_with("is no usable safetensors: it is no regular file"), "{said}");
    }
}
