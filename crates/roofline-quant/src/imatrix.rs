//! llama.cpp's importance matrix: for every matrix of a model, the sums of the squares of its inputs on some text, channel by
//! channel, and of how many tokens they are. Quantizers weigh the error of a weight by the mean: how much its input matters.
//!
//! The file is a GGUF of F32 tensors `NAME.in_sum2`, with a row for each expert, and `NAME.counts`; before 2025 it was a list of names
//! and means, the `.dat` (`tools/imatrix` and `common/imatrix-loader.cpp` of llama.cpp, as llama-cpp-python 0.3.36 has them). Both are
//! read, the first is written.

mod collect;
mod legacy;
mod weighed;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    checkpoint::open_regular,
    ggml::Type,
    gguf::{self, Array, Value},
    workspace::put,
};

pub use collect::collect;
pub(crate) use weighed::{check, importance_of, weigh};

/// What files are called in errors.
const FORMAT: &str = "importance matrix";
/// The largest file that is read: more than the largest model's.
const LONGEST: u64 = 4 << 30;
/// What to do about a file that does not fit.
const OF_ANOTHER_MODEL: &str = "it is of another model: make one of this model with `⟨roofline imatrix⟩`";
/// The ends of the names of tensors.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// How much the inputs of a model's matrices matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    entries: BTreeMap<String, Entry>,
    /// What its file is called; nothing where it was just made.
    pub file: Option<String>,
    /// The texts that it is of.
    pub datasets: Vec<String>,
    /// How many pieces of them were run.
    pub chunks: u32,
    /// Tokens of a piece; zero where the file does not say.
    pub chunk_size: u32,
}

/// What a matrix was given.
#[derive(Clone, Debug, Default, PartialEq)]
struct Entry {
    /// The sums of squares of each input channel; of experts, one after the other.
    sums: Vec<f32>,
    /// Of how many tokens they are: once, or for each expert.
    counts: Vec<f32>,
}

impl Entry {
    /// The mean square of each channel. What no token came to counts as one, as llama.cpp has it.
    fn means(&self) -> Vec<f32> {
        let columns = self.sums.len() / self.counts.len().max(1);
        let mut means = Vec::with_capacity(self.sums.len());
        for (sums, count) in self.sums.chunks(columns.max(1)).zip(&self.counts) {
            means.extend(sums.iter().map(|sum| if *count > 0.0 { sum / count } else { 1.0 }));
        }
        means
    }

    /// What is wrong with it, in words that follow its name.
    fn check(&self) -> Result<(), String> {
        let (sums, counts) = (self.sums.len(), self.counts.len());
        if counts == 0 || sums == 0 || !sums.is_multiple_of(counts) {
            return Err(format!("has {sums} sums and {counts} counts, no whole number of channels each"));
        }
        let wrong = |x: &&f32| !(x.is_finite() && **x >= 0.0);
        if let Some(sum) = self.sums.iter().find(wrong) {
            return Err(format!("has the sum {sum}, and sums of squares are finite and not below zero"));
        }
        match self.counts.iter().find(wrong) {
            Some(count) => Err(format!("has the count {count}, and counts are finite and not below zero")),
            None => Ok(()),
        }
    }
}

/// A file that is written before it gets its name, beside `path`; one that a killed run left is in nobody's way.
fn draft(path: &Path) -> Result<(PathBuf, File)> {
    let mut at = 0;
    loop {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{at}.part"));
        let beside = path.with_file_name(name);
        match File::create_new(&beside) {
            Ok(file) => return Ok((beside, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => at += 1,
            Err(error) => return Err(Error::File { action: "create", path: beside, error }),
        }
    }
}

impl Imatrix {
    /// What to know of experts that no token reached: all of their inputs count alike.
    pub fn unreached(&self) -> Option<String> {
        let of = |entry: &Entry| entry.counts.iter().filter(|count| **count == 0.0).count();
        let experts = self.entries.iter().filter(|(_, entry)| entry.counts.len() > 1 && of(entry) > 0);
        let (name, first) = experts.clone().max_by_key(|(_, entry)| of(entry))?;
        let more = match experts.count() - 1 {
            0 => String::new(),
            others => format!(", nor some of {others} more tensors"),
        };
        let (missed, all) = (of(first), first.counts.len());
        Some(format!("no token reached {missed} of {all} experts of `{name}`{more}: all inputs of theirs count alike"))
    }

    /// Reads a file of either form.
    pub fn read(path: &Path) -> Result<Self> {
        let mut file = open_regular(path, FORMAT)?;
        let length = file.metadata().map_err(Error::file("read", path))?.len();
        if length > LONGEST {
            let reason = format!("it has {length} bytes, and {LONGEST} are the most that are read of one");
            return Err(Error::malformed(path, FORMAT, reason));
        }
        let mut magic = [0; 4];
        let found = file.read(&mut magic).map_err(Error::file("read", path))?;
        let mut read = if &magic[..found] == b"GGUF" { Self::from_gguf(path) } else { legacy::read(path) }?;
        read.file = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if read.entries.is_empty() {
            return Err(Error::malformed(path, FORMAT, "it has no entries; a model is no importance matrix"));
        }
        for (name, entry) in &read.entries {
            entry.check().map_err(|reason| Error::malformed(path, FORMAT, format!("`{name}` {reason}")))?;
        }
        Ok(read)
    }

    fn from_gguf(path: &Path) -> Result<Self> {
        let file = gguf::File::open(path)?;
        let number = |key: &str| file.header.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let datasets = match file.header.get("imatrix.datasets") {
            Some(Value::Array(Array::String(datasets))) => datasets.clone(),
            _ => Vec::new(),
        };
        let numbers = |name: &str| -> Result<Option<Vec<f32>>> {
            let Some(tensor) = file.header.tensor(name) else { return Ok(None) };
            if tensor.ty != Type::F32 {
                let reason = format!("`{name}` is {}, and an importance matrix is in F32", tensor.ty);
                return Err(Error::malformed(path, FORMAT, reason));
            }
            let weights = tensor.weights().unwrap_or(0);
            let mut out = vec![0.0; weights as usize];
            file.read(tensor, 0..weights / tensor.columns().max(1), &mut out)?;
            Ok(Some(out))
        };
        let mut entries = BTreeMap::new();
        for tensor in &file.header.tensors {
            let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
            let sums = numbers(&tensor.name)?.unwrap_or_default();
            let counts = numbers(&format!("{name}{COUNTS}"))?.ok_or_else(|| {
                Error::malformed(path, FORMAT, format!("`{}` has no `{name}{COUNTS}` beside it", tensor.name))
            })?;
            entries.insert(name.to_owned(), Entry { sums, counts: counts.iter().map(|count| count.round()).collect() });
        }
        let (chunks, chunk_size) = (number("imatrix.chunk_count"), number("imatrix.chunk_size"));
        Ok(Self {
            entries,
            file: None,
            datasets,
            chunks: chunks.unwrap_or_default(),
            chunk_size: chunk_size.unwrap_or_default(),
        })
    }

    /// The bytes of the file that llama.cpp would write.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let metadata = [
            ("general.type".to_owned(), Value::from("imatrix")),
            ("imatrix.datasets".to_owned(), Value::Array(Array::String(self.datasets.clone()))),
            ("imatrix.chunk_count".to_owned(), Value::U32(self.chunks)),
            ("imatrix.chunk_size".to_owned(), Value::U32(self.chunk_size)),
        ];
        let (mut tensors, mut numbers) = (Vec::new(), Vec::new());
        for (name, Entry { sums, counts }) in &self.entries {
            // ggml leaves trailing dimensions of one out.
            let (columns, experts) = ((sums.len() / counts.len().max(1)) as u64, counts.len() as u64);
            let dims = |first: u64| if experts > 1 { vec![first, experts] } else { vec![first] };
            tensors.push((format!("{name}{SUMS}"), dims(columns), Type::F32));
            tensors.push((format!("{name}{COUNTS}"), dims(1), Type::F32));
            numbers.extend([sums, counts]);
        }
        let head = gguf::head(&metadata, &tensors)?;
        let mut bytes = head.bytes;
        for (numbers, offset) in numbers.into_iter().zip(&head.offsets) {
            bytes.resize(*offset as usize, 0);
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        }
        bytes.resize(head.length as usize, 0);
        Ok(bytes)
    }

    /// Refuses a place that no file can be written to, before there is one; leaves nothing there.
    pub fn admits(path: &Path, replace: bool) -> Result<()> {
        let taken = |state, hint| Err(Error::Exists { path: path.to_owned(), state, hint });
        if path.is_dir() {
            return taken("is a folder", "name a file");
        }
        if path.exists() && !replace {
            return taken("is there already", "replace it with `⟨force⟩`, or choose another name");
        }
        let (beside, _) = draft(path)?;
        fs::remove_file(&beside).map_err(Error::file("create", &beside))
    }

    /// Writes the file; one that is there only where it may be replaced.
    pub fn write(&self, path: &Path, replace: bool) -> Result<()> {
        Self::admits(path, replace)?;
        let bytes = self.bytes()?;
        let (beside, mut file) = draft(path)?;
        let written = file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(Error::file("write", &beside));
        let named =
            || if replace { fs::rename(&beside, path).map_err(Error::file("write", path)) } else { put(&beside, path) };
        written.and_then(|()| named()).inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })
    }

    /// How many matrices it speaks of.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it speaks of none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it speaks of the matrix that llama.cpp calls so.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// How much each input channel of a matrix, or of a stack of so many, matters: once, or once for each of the stack. Nothing where
    /// it does not speak of it; an error where it speaks of one of another shape.
    pub(crate) fn importance(&self, name: &str, columns: usize, stack: usize) -> Result<Option<Vec<f32>>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        let means = entry.means();
        // The older form counts the tokens of a stack together.
        let (all, counts) = (means.len(), entry.counts.len());
        let fits = |times: usize| all == times * columns && (counts == times || counts == 1);
        if !fits(1) && !fits(stack) {
            let of = if stack > 1 { format!("{stack} experts of {columns}") } else { columns.to_string() };
            return Err(Error::Weight {
                name: name.to_owned(),
                reason: format!("has {of} input channels, and the importance matrix speaks of {all}"),
                hint: Some(OF_ANOTHER_MODEL.to_owned()),
            });
        }
        Ok(Some(means))
    }

    /// The same of one of a stack of experts.
    pub(crate) fn importance_of_expert(
        &self,
        name: &str,
        columns: usize,
        expert: usize,
        experts: usize,
    ) -> Result<Option<Vec<f32>>> {
        let all = self.importance(name, columns, experts)?;
        Ok(all.map(|all| {
            let from = if all.len() > columns { expert * columns } else { 0 };
            all[from..from + columns].to_vec()
        }))
    }

    /// What it is of, in words.
    pub(crate) fn words(&self) -> String {
        let file = self.file.as_deref().map_or_else(String::new, |file| format!("{file}, "));
        let of = if self.datasets.is_empty() { "a text".to_owned() } else { self.datasets.join(", ") };
        format!("{file}an importance matrix of {of} ({} pieces, {} matrices)", self.chunks, self.entries.len())
    }

    /// What it holds, as a number: two with the same weigh alike.
    pub(crate) fn hash(&self) -> u64 {
        let mut hash = roofline_core::hash::Fnv1a::default();
        for (name, entry) in &self.entries {
            hash.add(name.as_bytes());
            for number in entry.means() {
                hash.add(&number.to_le_bytes());
            }
        }
        hash.value()
    }

    /// What llama.cpp's quantizer says of it in a file that it makes.
    pub(crate) fn metadata(&self) -> Vec<(String, Value)> {
        let mut metadata = Vec::new();
        if let Some(file) = &self.file {
            metadata.push(("quantize.imatrix.file".to_owned(), Value::from(file.as_str())));
        }
        if let Some(dataset) = self.datasets.first() {
            metadata.push(("quantize.imatrix.dataset".to_owned(), Value::from(dataset.as_str())));
        }
        metadata.push(("quantize.imatrix.entries_count".to_owned(), Value::U32(self.entries.len() as u32)));
        metadata.push(("quantize.imatrix.chunks_count".to_owned(), Value::U32(self.chunks)));
        metadata
    }
}

#[cfg(test)]
mod tests;
