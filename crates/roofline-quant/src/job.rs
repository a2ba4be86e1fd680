//! Everything that will be written, decided before the first byte: files with their headers, and for every weight where
//! it is read, how it is coded and where each part of it goes.

use std::{ops::Range, path::PathBuf, sync::Arc};

use crate::{
    Error, Result,
    checkpoint::Shard,
    coding::{Coding, Matrix, Part, Placing},
    number,
    safetensors::{Entry, Header},
    site::Site,
};

/// What a run will do.
pub struct Job<'a> {
    /// Files that weights stream into.
    pub files: Vec<Output>,
    /// What streams into them.
    pub items: Vec<Item<'a>>,
    /// What goes beside them.
    pub companions: Vec<(String, Companion)>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// A file to be written.
#[derive(Clone, Debug)]
pub struct Output {
    /// Its name in the target folder.
    pub name: String,
    /// Its first bytes.
    pub head: Head,
    /// Its length.
    pub bytes: u64,
}

/// The first bytes of a file. Those of safetensors are made when they are needed: torchao repeats the metadata of all
/// tensors in every shard, and together they would be large.
#[derive(Clone, Debug)]
pub enum Head {
    /// These.
    Bytes(Vec<u8>),
    /// A header of safetensors.
    Safetensors {
        /// Free text, the same in every shard.
        metadata: Arc<[(String, String)]>,
        /// The tensors of this one.
        tensors: Vec<Entry>,
    },
}

impl Head {
    /// The bytes themselves.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Safetensors { metadata, tensors } => Header::bytes(metadata, tensors),
        }
    }
}

/// A file that holds no weights.
#[derive(Clone, Debug)]
pub enum Companion {
    /// With this content.
    Bytes(Vec<u8>),
    /// A copy of this file.
    Copy(PathBuf),
}

impl Companion {
    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Copy(path) => std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
        }
    }
}

/// A tensor of the source on its way.
pub struct Item<'a> {
    /// What the source calls it.
    pub name: String,
    /// Where it sits in the model.
    pub site: Site,
    /// What becomes of it.
    pub work: Work<'a>,
}

/// What is done with a tensor.
pub enum Work<'a> {
    /// Its bytes are copied.
    Copy {
        /// The file it lies in.
        shard: &'a Shard,
        /// Its place there.
        entry: &'a Entry,
        /// Its place in the output.
        to: Place,
    },
    /// These bytes are written: the tensor follows from the configuration.
    Literal {
        /// The bytes.
        bytes: Vec<u8>,
        /// Their place in the output.
        to: Place,
    },
    /// Its rows are coded.
    Code(Code<'a>),
}

/// A matrix that is coded.
pub struct Code<'a> {
    /// What is read: matrices of equal shape, one below the other.
    pub sources: Vec<Box<dyn Rows + 'a>>,
    /// The order in which rows are written.
    pub order: Order,
    /// How.
    pub coding: Arc<dyn Coding>,
    /// The scheme's name, for reports.
    pub scheme: String,
    /// Whether it counts as quantized: the report speaks of its error.
    pub lossy: bool,
    /// Items that share what there is once per tensor, itself included.
    pub fused: Vec<usize>,
    /// How much an error in each input channel matters, if activations were seen.
    pub importance: Option<Vec<f32>>,
    /// The stored tensors of the whole, and where they go.
    pub parts: Vec<(Part, Place)>,
}

impl Code<'_> {
    /// The shape of the sources together.
    pub fn matrix(&self) -> Matrix {
        let one = self.sources[0].matrix();
        Matrix { rows: one.rows * self.sources.len(), columns: one.columns }
    }

    /// Reads rows in the order they are written in. `spare` is room for reading.
    pub(crate) fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let each = self.sources[0].matrix().rows;
        let columns = self.matrix().columns;
        let mut from = rows.start;
        while from < rows.end {
            let source = from / each;
            let until = rows.end.min((source + 1) * each);
            let out = &mut out[(from - rows.start) * columns..(until - rows.start) * columns];
            let local = from - source * each..until - source * each;
            match self.order {
                Order::AsIs => self.sources[source].read(local, spare, out)?,
                Order::Interleaved { head } => {
                    let mut plain = std::mem::take(&mut spare.rows);
                    plain.resize(out.len(), 0.0);
                    self.sources[source].read(local, spare, &mut plain)?;
                    for (at, row) in out.chunks_exact_mut(columns).enumerate() {
                        let (first, within) = (at / head * head, at % head);
                        let from = first + within % 2 * (head / 2) + within / 2;
                        row.copy_from_slice(&plain[from * columns..(from + 1) * columns]);
                    }
                    spare.rows = plain;
                }
            }
            from = until;
        }
        Ok(())
    }

    /// How many rows must be read and coded together.
    pub(crate) fn unit(&self) -> usize {
        let head = if let Order::Interleaved { head } = self.order { head } else { 1 };
        let common = |a: usize, b: usize| if a.is_multiple_of(b) { a } else { a * b };
        common(common(self.coding.unit(), self.sources[0].unit()), head)
    }
}

/// The order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they are.
    AsIs,
    /// Rotary halves of every head of that many rows made neighbours: row `2i` comes from row `i` of the head, row
    /// `2i + 1` from row `head / 2 + i`. llama.cpp rotates neighbours where transformers rotates halves.
    Interleaved {
        /// Rows of a head.
        head: usize,
    },
}

/// Bytes of an output file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub file: usize,
    /// From which byte on.
    pub offset: u64,
}

/// Room that reading needs, kept between calls.
#[derive(Default)]
pub struct Spare {
    /// Bytes as stored.
    pub bytes: Vec<u8>,
    /// Rows in the source's order.
    pub rows: Vec<f32>,
}

/// A matrix whose rows can be read as numbers.
pub trait Rows: Send + Sync {
    /// Its shape.
    fn matrix(&self) -> Matrix;

    /// Reads these rows.
    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()>;

    /// Bytes it takes where it is stored.
    fn stored(&self) -> u64;

    /// How many rows are decoded together, so that reading fewer costs as much.
    fn unit(&self) -> usize {
        1
    }
}

/// The longest row: whole rows are held in memory.
const MOST_COLUMNS: usize = 1 << 24;

/// A matrix stored as plain numbers.
pub struct Plain<'a> {
    shard: &'a Shard,
    entry: &'a Entry,
    matrix: Matrix,
}

impl<'a> Plain<'a> {
    /// A tensor of one dimension is one row; of more than two, as many rows as all but the last give.
    pub fn new(shard: &'a Shard, entry: &'a Entry) -> Result<Self> {
        if !number::is_number(entry.dtype) {
            let reason = format!("is stored as {}, which is not a floating-point number", entry.dtype);
            return Err(Error::Weight { name: entry.name.clone(), reason, hint: None });
        }
        let columns = entry.shape.last().copied().unwrap_or(1);
        if columns > MOST_COLUMNS {
            let reason = format!("has rows of {columns} numbers, more than the {MOST_COLUMNS} that are held at once");
            return Err(Error::Weight { name: entry.name.clone(), reason, hint: None });
        }
        let rows = entry.elements() as usize / columns.max(1);
        Ok(Self { shard, entry, matrix: Matrix { rows, columns } })
    }
}

impl Plain<'_> {
    /// The same numbers, one to a row.
    pub(crate) fn upright(self) -> Self {
        let matrix = Matrix { rows: self.matrix.rows * self.matrix.columns, columns: 1 };
        Self { matrix, ..self }
    }
}

impl Rows for Plain<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let row = self.matrix.columns * self.entry.dtype.bytes();
        spare.bytes.resize(rows.len() * row, 0);
        self.shard.read(self.entry, (rows.start * row) as u64, &mut spare.bytes)?;
        number::read(self.entry.dtype, &spare.bytes, out);
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.entry.bytes()
    }
}

/// Bytes of a stored tensor of `rows` rows of the matrix.
pub(crate) fn part_bytes(part: &Part, rows: usize) -> usize {
    match part.placing {
        Placing::Rows { rows: unit, bytes } => rows.div_ceil(unit) * bytes,
        Placing::Columns { lines, bytes } => lines * rows * bytes,
        Placing::Once { bytes } => bytes,
    }
}

impl Item<'_> {
    /// How many numbers it holds.
    pub fn weights(&self) -> u64 {
        match &self.work {
            Work::Copy { entry, .. } => entry.elements(),
            Work::Literal { .. } => 0,
            Work::Code(code) => (code.matrix().rows * code.matrix().columns) as u64,
        }
    }

    /// Bytes that are read for it.
    pub fn input(&self) -> u64 {
        match &self.work {
            Work::Copy { entry, .. } => entry.bytes(),
            Work::Literal { .. } => 0,
            Work::Code(code) => code.sources.iter().map(|source| source.stored()).sum(),
        }
    }
}

impl Job<'_> {
    /// Bytes that will be written.
    pub fn bytes(&self) -> u64 {
        let files = self.files.iter().map(|file| file.bytes);
        files.chain(self.companions.iter().map(|(_, companion)| companion.len())).sum()
    }
}
