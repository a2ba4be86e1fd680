//! Everything that will be written, decided before the first byte: files with their headers, and for every weight where
//! it is read, how it is coded and where each part of it goes.

use std::{path::PathBuf, sync::Arc};

use crate::{
    checkpoint::Shard,
    coding::{Coding, Matrix, Part, Placing},
    data::KeptChosen,
    origin::Origin,
    rows::Rows,
    safetensors::{Entry, Header},
    site::Site,
};

/// What is to be done about a weight that is no number.
pub(crate) const DAMAGED: &str = "the checkpoint is damaged or its training failed; no format can hold this";

/// What a run will do.
pub struct QuantizeJob<'a> {
    /// Files that weights stream into.
    pub files: Vec<Output>,
    /// What streams into them.
    pub items: Vec<Item<'a>>,
    /// What goes beside them.
    pub companions: Vec<(String, Companion)>,
    /// What a user should know.
    pub notes: Vec<String>,
    /// Matrices that a method that goes by data has left to rounding to nearest, because the text says too little of them.
    pub nearest: Vec<String>,
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
    pub(crate) fn len(&self) -> u64 {
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
    /// What is read, in the order in which it is written.
    pub rows: Box<dyn Rows + 'a>,
    /// How.
    pub coding: Arc<dyn Coding>,
    /// The scheme's name, for reports.
    pub scheme: String,
    /// Whether it counts as quantized: the report speaks of its error.
    pub lossy: bool,
    /// Items that share what there is once per tensor, itself included.
    pub fused: Vec<usize>,
    /// How much an error in each input channel matters, if activations were seen: of all rows, or of each of a stack.
    pub importance: Option<Vec<f32>>,
    /// What a method has chosen for it, in the place of what the coding would.
    pub chosen: Option<Box<KeptChosen>>,
    /// The matrices of the source that its rows come from, one after the other. None is the tensor of its name, as it lies.
    pub origins: Vec<Origin>,
    /// The stored tensors of the whole, and where they go.
    pub parts: Vec<(Part, Place)>,
}

impl Code<'_> {
    /// The shape of what is coded.
    pub fn matrix(&self) -> Matrix {
        self.rows.matrix()
    }

    /// Rows that are coded alike, their errors weighed by the same: all of them, or those of one of a stack.
    pub(crate) fn weighed_alike(&self) -> usize {
        let matrix = self.matrix();
        let weighed = self.importance.as_ref().map_or(1, |importance| importance.len() / matrix.columns.max(1));
        let chosen = self.chosen.as_ref().map_or(1, |chosen| chosen.pieces());
        (matrix.rows / weighed.max(chosen).max(1)).max(1)
    }

    /// How much an error in each input channel of a row matters.
    pub(crate) fn importance_of(&self, row: usize) -> Option<&[f32]> {
        let matrix = self.matrix();
        let columns = matrix.columns;
        let stacked = self.importance.as_ref()?.len() / columns.max(1);
        let from = row / (matrix.rows / stacked.max(1)).max(1) * columns;
        self.importance.as_ref().and_then(|importance| importance.get(from..from + columns))
    }

    /// Bytes that are stored for it.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |part: &Part| (part.shape.iter().product::<usize>() * part.dtype.bytes()) as u64;
        self.parts.iter().map(|(part, _)| bytes(part)).sum()
    }

    /// How many rows must be read and coded together.
    pub(crate) fn unit(&self) -> usize {
        let (a, b) = (self.coding.unit(), self.rows.unit());
        match (a.is_multiple_of(b), b.is_multiple_of(a)) {
            (true, _) => a,
            (false, true) => b,
            (false, false) => a * b,
        }
    }
}

/// Bytes of an output file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub file: usize,
    /// From which byte on.
    pub offset: u64,
}

/// Bytes of a stored tensor of `rows` rows of the matrix.
pub(crate) fn part_bytes(part: &Part, rows: usize) -> usize {
    match part.placing {
        Placing::Rows { rows: unit, bytes } => rows.div_ceil(unit) * bytes,
        Placing::Columns { lines, rows: unit, bytes } => lines * rows.div_ceil(unit) * bytes,
        Placing::Flat { columns, run, bytes } => (rows * columns).div_ceil(run) * bytes,
        Placing::Once { bytes } => bytes,
    }
}

impl Item<'_> {
    /// The matrices of the source that its rows come from.
    pub(crate) fn origins(&self) -> Vec<Origin> {
        match &self.work {
            Work::Code(code) if !code.origins.is_empty() => code.origins.clone(),
            Work::Code(code) => vec![Origin::whole(&self.name, code.matrix().rows)],
            Work::Copy { entry, .. } => vec![Origin::whole(&self.name, entry.shape.first().copied().unwrap_or(0))],
            Work::Literal { .. } => Vec::new(),
        }
    }

    /// How many numbers it holds.
    pub fn weights(&self) -> u64 {
        match &self.work {
            Work::Copy { entry, .. } => entry.elements(),
            Work::Literal { .. } => 0,
            Work::Code(code) => (code.matrix().rows * code.matrix().columns) as u64,
        }
    }

    /// The bytes that are written for it.
    pub(crate) fn spans(&self) -> Vec<(Place, u64)> {
        match &self.work {
            Work::Copy { entry, to, .. } => vec![(*to, entry.bytes())],
            Work::Literal { bytes, to } => vec![(*to, bytes.len() as u64)],
            Work::Code(code) => {
                let rows = code.matrix().rows;
                code.parts.iter().map(|(part, to)| (*to, part_bytes(part, rows) as u64)).collect()
            }
        }
    }

    /// Bytes that are read for it.
    pub fn input(&self) -> u64 {
        match &self.work {
            Work::Copy { entry, .. } => entry.bytes(),
            Work::Literal { .. } => 0,
            Work::Code(code) => code.rows.stored(),
        }
    }
}

impl QuantizeJob<'_> {
    /// Bytes that will be written.
    pub fn bytes(&self) -> u64 {
        let files = self.files.iter().map(|file| file.bytes);
        files.chain(self.companions.iter().map(|(_, companion)| companion.len())).sum()
    }
}
