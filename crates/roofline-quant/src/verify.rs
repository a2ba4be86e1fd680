//! A result read back before it gets its name: opened as a user would open it, every weight decoded and held against the
//! source.
//!
//! What a weight decodes to must have exactly the error that was reported when it was coded, and what was copied must be
//! the same bytes. A byte that a disk or a memory changed on the way is found; what was meant to be written is proven by
//! other tests, not by this.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use crate::{
    Checkpoint, Dtype, Error, ErrorStats, QuantizeJob, Result,
    checkpoint::Shard,
    coding::{Matrix, Part},
    gguf,
    job::{Code, Companion, Head, Place, Work, part_bytes},
    rows::{Rows, Spare},
    safetensors::Entry,
    stored::{Located, StoredTensor, decoded},
    stream::{Crew, Files, Progress, Task},
};

/// How far two sums of the same squares may differ: both are added in the same order, so hardly at all.
const ROUNDING: f64 = 1e-9;

/// Reads what a job wrote into `folder`; `reported` are the errors that were told. `watch` hears of input bytes that are
/// done.
pub(crate) fn verify(
    job: &QuantizeJob<'_>,
    reported: &[Option<ErrorStats>],
    folder: &Path,
    threads: usize,
    watch: &dyn Progress,
) -> Result<()> {
    for (name, companion) in &job.companions {
        same_file(&folder.join(name), name, companion)?;
    }
    let whole = job.files.iter().all(|file| matches!(file.head, Head::Safetensors { .. }));
    let checkpoint = if whole { Some(Checkpoint::open(folder)?) } else { None };
    let others = if whole { Vec::new() } else { raw(job, folder)? };
    let shards: &[Shard] = checkpoint.as_ref().map_or(&others, |checkpoint| &checkpoint.shards);
    shards.iter().for_each(Shard::forget);
    // Files of another format are read through the codings that wrote them.
    let read = checkpoint.as_ref().map_or(Ok(Vec::new()), StoredTensor::all)?;
    let slices = slices(job, folder)?;
    let written = Written::new(job, shards, &slices, read);
    let crew = Crew { job, files: &Files::NOWHERE, threads, watch };
    for (item, stats) in reported.iter().enumerate() {
        let mut tasks = Vec::new();
        match &job.items[item].work {
            Work::Literal { bytes, to } => {
                let mut found = Vec::new();
                if let Some((shard, entry)) = written.at(to, bytes.len() as u64) {
                    found.resize(bytes.len(), 0);
                    shard.read(entry, 0, &mut found)?;
                }
                if found != *bytes {
                    return Err(differs(&job.items[item].name, "its bytes are others"));
                }
            }
            Work::Copy { entry, to, .. } => {
                let found = written.at(to, entry.bytes());
                if found.is_none() && entry.bytes() > 0 {
                    return Err(differs(&entry.name, "it is not where it was put"));
                }
                crew.bytes_of(item, &mut tasks);
                crew.each(&tasks, |task, buffers| {
                    let (Task::Bytes(_, range), Some(found)) = (task, found) else { return Ok(()) };
                    same_bytes(&job.items[item].work, found, range.clone(), &mut buffers.spare)?;
                    watch.advance(range.end - range.start);
                    Ok(())
                })?;
            }
            Work::Code(code) => {
                let rows = written.rows(&job.items[item].name, code)?;
                crew.rows_of(item, &mut tasks);
                let found = crew.each(&tasks, |task, buffers| {
                    let Task::Rows(_, range) = task else { return Ok(ErrorStats::default()) };
                    crew.read(item, range.clone(), buffers)?;
                    buffers.decoded.resize(buffers.values.len(), 0.0);
                    rows.read(range.clone(), &mut buffers.spare, &mut buffers.decoded)?;
                    watch.advance(code.rows.stored() * range.len() as u64 / code.matrix().rows.max(1) as u64);
                    Ok(ErrorStats::of(&buffers.values, &buffers.decoded, 0))
                })?;
                let found: ErrorStats = found.into_iter().sum();
                let expected = stats.unwrap_or_default();
                if !agree(&found, &expected) {
                    let (found, meant) = (found.relative_error(), expected.relative_error());
                    let reason = format!("its relative error is {found}, and was {meant} when it was coded");
                    return Err(differs(&job.items[item].name, reason));
                }
            }
        }
    }
    Ok(())
}

fn differs(name: &str, reason: impl Into<String>) -> Error {
    Error::Verify { name: name.to_owned(), reason: reason.into() }
}

fn agree(found: &ErrorStats, expected: &ErrorStats) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= ROUNDING * a.abs().max(b.abs());
    // A number that is none is near nothing.
    found.weights == expected.weights
        && near(found.power, expected.power)
        && near(found.noise, expected.noise)
        && found.largest_error == expected.largest_error
}

/// What was written, by where it lies.
struct Written<'a> {
    /// The tensors that the files say they hold, by file and first byte.
    tensors: BTreeMap<(usize, u64), Located<'a>>,
    /// The bytes that the job meant, wherever files say tensors are.
    slices: HashMap<(usize, u64), Located<'a>>,
    /// What a reader makes of it: the weights in the order of names, by the places of their tensors.
    weights: Vec<Option<Box<dyn Rows + 'a>>>,
    of: HashMap<(usize, u64), usize>,
}

impl<'a> Written<'a> {
    fn new(job: &QuantizeJob<'_>, shards: &'a [Shard], slices: &'a [Shard], read: Vec<StoredTensor<'a>>) -> Self {
        let mut files = HashMap::new();
        for (file, output) in job.files.iter().enumerate() {
            files.insert(output.name.as_str(), file);
        }
        let number = |shard: &Shard| {
            let name = shard.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            files.get(name).copied()
        };
        let place = |(shard, entry): &Located<'_>| Some((number(shard)?, shard.header.start + entry.begin));
        let each = |shard: &'a Shard| shard.header.tensors.iter().map(move |entry| (shard, entry));
        let by_place = |all: &'a [Shard]| {
            let all = all.iter().flat_map(each).filter(|(_, entry)| entry.bytes() > 0);
            all.filter_map(|located| Some((place(&located)?, located))).collect::<Vec<_>>()
        };
        let tensors = by_place(shards).into_iter().collect();
        let slices = by_place(slices).into_iter().collect();
        let (mut weights, mut of) = (Vec::new(), HashMap::new());
        for stored in read {
            let first = place(&stored.first());
            let parts: Vec<(usize, u64)> = match &stored.kind {
                crate::stored::Kind::Coded(coded) => coded.parts.iter().filter_map(place).collect(),
                _ => first.into_iter().collect(),
            };
            of.extend(parts.into_iter().map(|place| (place, weights.len())));
            weights.push(stored.into_rows().ok());
        }
        Self { tensors, slices, weights, of }
    }

    /// The first byte of the tensor that holds these, as the file has it.
    fn holder(&self, place: &Place, bytes: u64) -> Option<(usize, u64)> {
        let key = (place.file, place.offset);
        let (found, (_, entry)) = self.tensors.range(..=key).next_back()?;
        (found.0 == place.file && place.offset + bytes <= found.1 + entry.bytes()).then_some(*found)
    }

    /// These bytes, if they are inside a tensor.
    fn at(&self, place: &Place, bytes: u64) -> Option<Located<'a>> {
        self.holder(place, bytes)?;
        let found = self.slices.get(&(place.file, place.offset)).copied();
        found.filter(|(_, entry)| entry.bytes() == bytes)
    }

    /// A weight as a reader decodes it; where no reader is at hand, as its own coding does.
    fn rows(&self, name: &str, code: &Code<'_>) -> Result<Reading<'_, 'a>> {
        let matrix: Matrix = code.matrix();
        let bytes = |part: &Part| part_bytes(part, matrix.rows) as u64;
        let known = code.parts.iter().find_map(|(part, to)| self.of.get(&self.holder(to, bytes(part))?));
        if let Some(rows) = known.and_then(|at| self.weights[*at].as_ref())
            && rows.matrix() == matrix
        {
            return Ok(Reading::Known(rows));
        }
        if known.is_none() && !self.weights.is_empty() {
            return Err(differs(name, "no reader finds it in the files"));
        }
        let parts = code.parts.iter().map(|(part, to)| {
            let found = self.at(to, bytes(part));
            found
                .map(|found| (part.clone(), found))
                .ok_or_else(|| differs(name, "its codes are not where they were put"))
        });
        let parts = parts.collect::<Result<_>>()?;
        Ok(Reading::Own(decoded(matrix, std::sync::Arc::clone(&code.coding), parts)))
    }
}

/// Who decodes a weight.
enum Reading<'w, 'a> {
    Known(&'w dyn Rows),
    Own(Box<dyn Rows + 'a>),
}

impl Reading<'_, '_> {
    fn read(&self, rows: std::ops::Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        match self {
            Self::Known(known) => known.read(rows, spare, out),
            Self::Own(own) => own.read(rows, spare, out),
        }
    }
}

/// The bytes that each item of a job was to write, as if they were tensors.
fn slices(job: &QuantizeJob<'_>, folder: &Path) -> Result<Vec<Shard>> {
    let mut entries: Vec<Vec<Entry>> = job.files.iter().map(|_| Vec::new()).collect();
    let mut add = |name: &str, to: &Place, bytes: u64| entries[to.file].push(raw_entry(name, to.offset, bytes));
    for item in &job.items {
        item.spans().iter().for_each(|(to, bytes)| add(&item.name, to, *bytes));
    }
    let files = job.files.iter().zip(entries);
    files.map(|(file, entries)| Shard::of(&folder.join(&file.name), entries)).collect()
}

/// Bytes of a file.
fn raw_entry(name: &str, begin: u64, bytes: u64) -> Entry {
    Entry { name: name.to_owned(), dtype: Dtype::U8, shape: vec![bytes as usize], begin, end: begin + bytes }
}

/// The files of a job that are no safetensors: GGUF, by what their own heads say.
fn raw(job: &QuantizeJob<'_>, folder: &Path) -> Result<Vec<Shard>> {
    let shards = job.files.iter().map(|file| {
        let path = folder.join(&file.name);
        let header = gguf::Header::read(&path)?;
        let entries = header
            .tensors
            .iter()
            .map(|tensor| raw_entry(&tensor.name, header.data_start + tensor.offset, tensor.bytes().unwrap_or(0)));
        Shard::of(&path, entries.collect())
    });
    shards.collect()
}

/// Holds copied bytes against the source's.
fn same_bytes(work: &Work<'_>, found: Located<'_>, range: std::ops::Range<u64>, spare: &mut Spare) -> Result<()> {
    let Work::Copy { shard, entry, .. } = work else { return Ok(()) };
    let length = (range.end - range.start) as usize;
    // Both halves of one buffer.
    spare.bytes.resize(2 * length, 0);
    let (source, written) = spare.bytes.split_at_mut(length);
    shard.read(entry, range.start, source)?;
    found.0.read(found.1, range.start, written)?;
    match source.iter().zip(written.iter()).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(differs(&entry.name, format!("byte {} of it is another", range.start + at as u64))),
    }
}

/// Holds a file without weights against what it was to be.
fn same_file(path: &Path, name: &str, companion: &Companion) -> Result<()> {
    let open = |path: &Path| File::open(path).map(BufReader::new).map_err(Error::file("read", path));
    let mut written = open(path)?;
    let same = match companion {
        Companion::Bytes(bytes) => equal(&mut written, &mut bytes.as_slice()),
        Companion::Copy(source) => equal(&mut written, &mut open(source)?),
    };
    if same.map_err(Error::file("read", path))? { Ok(()) } else { Err(differs(name, "its content is another")) }
}

/// Whether two readers give the same to their ends.
fn equal(one: &mut impl Read, other: &mut impl Read) -> std::io::Result<bool> {
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let (read, also) = (full(one, &mut a)?, full(other, &mut b)?);
        if a[..read] != b[..also] {
            return Ok(false);
        }
        if read < a.len() {
            return Ok(true);
        }
    }
}

/// As much as there is, up to all of `bytes`.
fn full(reader: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match reader.read(&mut bytes[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

#[cfg(test)]
pub(crate) mod tests;
