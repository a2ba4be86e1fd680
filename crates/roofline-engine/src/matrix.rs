//! A matrix in memory as it was stored, and what is applied to its products.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use roofline_core::{Dim, Format, Precision, op::Linear};
use roofline_isa::Isa;
use roofline_quant::{
    Checkpoint, Inputs,
    coding::Matrix as Shape,
    kernel_form::{CodesMut, KernelForm},
    observed::Replaced,
    rows::{Rows, Spare},
    stored::StoredTensor,
};
use roofline_run::cpu::{
    Buffer, Pool, Tensor,
    kernels::{
        elementwise::{Elementwise, Target},
        linear::Product,
    },
};

use roofline_run::cuda::model::Source;

use crate::{Error, Result, Settings, arena::Arena, products};

/// Rows that a thread reads at a time.
const BAND: usize = 256;

/// Rows of one tensor, by its name.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    /// Which of its rows; all of them, as a rule.
    pub(crate) rows: Range<usize>,
}

/// The tensors of a checkpoint, by name.
pub(crate) struct Tensors<'a>(BTreeMap<String, Lying<'a>>);

/// A tensor where it lies.
#[derive(Clone)]
struct Lying<'a> {
    scheme: String,
    shape: Vec<usize>,
    rows: Arc<dyn Rows + 'a>,
    /// How the inputs of its product are rounded.
    inputs: Option<Inputs>,
}

/// What is known of a tensor before it is read.
pub(crate) struct Header<'t> {
    pub(crate) name: &'t str,
    /// Whether it has one dimension only.
    pub(crate) vector: bool,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// As in [`Matrix::format`].
    pub(crate) format: Option<Format>,
    pub(crate) row_factors: bool,
    pub(crate) inputs: Option<Inputs>,
}

/// A weight matrix: a row per output.
pub(crate) struct Matrix<'a> {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Rows that are there; they repeat where there are fewer.
    there: usize,
    stored: Stored<'a>,
    /// What outputs are multiplied by, beyond what the format holds.
    pub(crate) factors: Option<Vec<f32>>,
    /// What is added to them.
    pub(crate) bias: Option<Vec<f32>>,
    /// How inputs are rounded before they are multiplied, where the checkpoint says so.
    pub(crate) inputs: Option<Inputs>,
}

enum Stored<'a> {
    /// In the layout of a kernel.
    Codes { format: Format, codes: Buffer, scales: Buffer, zeros: Buffer, tensor: Vec<u8> },
    /// In a layout that no kernel has: rows are decoded each time they are multiplied.
    Rows { scheme: String, bytes: u64, rows: Arc<dyn Rows + 'a>, first: usize },
}

impl<'a> Matrix<'a> {
    /// Whether rows of several tensors are stored alike, so that they can be multiplied together.
    pub(crate) fn alike(tensors: &Tensors<'a>, sources: &[Span], at: &Loading) -> bool {
        let [first, others @ ..] = sources else { return true };
        let Some(one) = tensors.form(&first.name).filter(|form| at.has_kernel(form)) else { return others.is_empty() };
        let same = |other: &KernelForm| {
            let columns = other.matrix.columns == one.matrix.columns;
            columns && other.format == one.format && other.row_factors == one.row_factors
        };
        // What there is once per tensor cannot be there twice.
        let single = others.is_empty() || one.tensor == 0;
        let inputs = |source: &Span| tensors.0.get(&source.name).and_then(|lying| lying.inputs);
        let read = others.iter().all(|source| inputs(source) == inputs(first));
        single && read && others.iter().all(|source| tensors.form(&source.name).is_some_and(|own| same(&own)))
    }

    /// Reads rows of one tensor, or of several that are stored [alike](Self::alike), one below the other.
    pub(crate) fn read(tensors: &Tensors<'a>, sources: &[Span], at: &Loading) -> Result<Self> {
        let Some(one) = tensors.form(&sources[0].name).filter(|form| at.has_kernel(form)) else {
            return Self::by_rows(tensors, &sources[0]);
        };
        let rows: usize = sources.iter().map(|source| source.rows.len()).sum();
        let name = &sources[0].name;
        let memory = |bytes: usize| at.arena.take(bytes, &format!("the weight `{name}`"));
        let (mut codes, mut scales) = (memory(rows * one.codes)?, memory(rows * one.scales)?);
        let mut zeros = memory(rows * one.zeros)?;
        let mut factors = vec![0.0; if one.row_factors { rows } else { 0 }];
        let mut all =
            CodesMut { rows, codes: &mut codes, scales: &mut scales, zeros: &mut zeros, factors: &mut factors };
        let mut from = 0;
        for source in sources {
            let until = from + source.rows.len();
            read_bands(&*tensors.get(&source.name)?.rows, &source.rows, all.part(from..until), at.threads)?;
            from = until;
        }
        let tensor = if one.tensor > 0 { tensors.get(name)?.rows.tensor_part()? } else { Vec::new() };
        let stored = Stored::Codes { format: one.format, codes, scales, zeros, tensor };
        let factors = one.row_factors.then_some(factors);
        let inputs = tensors.get(name)?.inputs;
        Ok(Self { rows, columns: one.matrix.columns, there: rows, stored, factors, bias: None, inputs })
    }

    /// Rows that are decoded as they are needed.
    fn by_rows(tensors: &Tensors<'a>, source: &Span) -> Result<Self> {
        let Lying { scheme, rows, inputs, .. } = tensors.get(&source.name)?;
        let (scheme, rows) = (scheme.clone(), Arc::clone(rows));
        let (columns, count) = (rows.matrix().columns, source.rows.len());
        let bytes = rows.stored() * count as u64 / rows.matrix().rows.max(1) as u64;
        let stored = Stored::Rows { scheme, bytes, rows, first: source.rows.start };
        Ok(Self { rows: count, columns, there: count, stored, factors: None, bias: None, inputs: *inputs })
    }

    /// A matrix that is there already, in the layout of kernels: all of its rows, or fewer that repeat on a GPU.
    pub(crate) fn of(
        format: Format,
        (rows, there): (usize, usize),
        columns: usize,
        parts: [Buffer; 3],
        tensor: Vec<u8>,
    ) -> Self {
        let [codes, scales, zeros] = parts;
        Self {
            rows,
            columns,
            there,
            stored: Stored::Codes { format, codes, scales, zeros, tensor },
            factors: None,
            bias: None,
            inputs: None,
        }
    }

    /// As kernels read it; none where rows have to be decoded.
    pub(crate) fn tensor(&self) -> Option<Tensor<'_>> {
        match &self.stored {
            Stored::Codes { format, codes, scales, zeros, tensor } => {
                let (rows, columns) = (self.there, self.columns);
                Some(Tensor { format: *format, rows, columns, codes, scales, zeros, tensor })
            }
            Stored::Rows { .. } => None,
        }
    }

    /// Decodes some rows of a matrix that is read row by row.
    pub(crate) fn decode(&self, wanted: Range<usize>, out: &mut [f32]) -> Result<()> {
        let Stored::Rows { rows, first, .. } = &self.stored else { return Ok(()) };
        Ok(rows.read(first + wanted.start..first + wanted.end, &mut Spare::default(), out)?)
    }

    /// Rows that are there: fewer than it has where they repeat.
    pub(crate) fn stored_rows(&self) -> usize {
        self.there
    }

    /// As a GPU takes it; none where rows have to be decoded.
    pub(crate) fn source(&self) -> Option<Source<'_>> {
        let rows = self.stored_rows();
        match &self.stored {
            Stored::Codes { format, codes, scales, zeros, tensor } => {
                Some(Source { format: *format, rows, codes, scales, zeros, tensor })
            }
            Stored::Rows { .. } => None,
        }
    }

    /// What there is once per tensor.
    pub(crate) fn tensor_part(&self) -> &[u8] {
        match &self.stored {
            Stored::Codes { tensor, .. } => tensor,
            Stored::Rows { .. } => &[],
        }
    }

    /// Bytes of all rows, those that repeat counted as often as they do.
    pub(crate) fn full_bytes(&self) -> u64 {
        self.bytes() * self.rows as u64 / self.stored_rows().max(1) as u64
    }

    /// One row as numbers.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        match self.tensor() {
            None => self.decode(row..row + 1, out),
            Some(tensor) => {
                let mut bytes = vec![0; 4 * out.len()];
                let target = Target::plain(Format::FP32, &mut bytes);
                Elementwise::default().embedding(&mut Pool::new(1), tensor, &[row], target)?;
                let factor = self.factors.as_ref().map_or(1.0, |factors| factors[row]);
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes) * factor;
                }
                Ok(())
            }
        }
    }

    /// Its format, as predictions know it; that of 16-bit numbers where it is decoded to such.
    pub(crate) fn format(&self) -> Option<Format> {
        match &self.stored {
            Stored::Codes { format, .. } => Some(*format),
            Stored::Rows { .. } => None,
        }
    }

    /// How it is stored, in words, and what its inputs are rounded to.
    pub(crate) fn scheme(&self) -> String {
        let stored = match &self.stored {
            Stored::Codes { format, .. } => format.to_string(),
            Stored::Rows { scheme, .. } => scheme.clone(),
        };
        match self.inputs {
            Some(inputs) => format!("{stored}, inputs rounded to {inputs}"),
            None => stored,
        }
    }

    /// Bytes in memory, or in the file where it stays there.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.stored {
            Stored::Codes { codes, scales, zeros, tensor, .. } => {
                (codes.len() + scales.len() + zeros.len() + tensor.len()) as u64
            }
            Stored::Rows { bytes, .. } => *bytes,
        }
    }
}

/// Reads rows in bands, on several threads.
fn read_bands(stored: &dyn Rows, rows: &Range<usize>, into: CodesMut<'_>, threads: usize) -> Result<()> {
    let work = Mutex::new(into.bands(BAND));
    let failed = Mutex::new(None);
    let take = || loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((band, place)) = next else { return };
        if let Err(error) = stored.read_codes(rows.start + band.start..rows.start + band.end, place) {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            return;
        }
    };
    let threads = threads.min(rows.len().div_ceil(BAND)).max(1);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(take);
        }
        take();
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |error| Err(error.into()))
}

impl<'a> Tensors<'a> {
    /// The tensors of a checkpoint; `rounded` says whether inputs are rounded where it says so.
    pub(crate) fn new(checkpoint: &'a Checkpoint, rounded: bool) -> Result<Self> {
        let stored = StoredTensor::all(checkpoint)?;
        let inputs = if rounded { Inputs::all(checkpoint, &stored)? } else { BTreeMap::new() };
        let mut all = BTreeMap::new();
        for stored in stored {
            let (name, scheme, shape) = (stored.name.clone(), stored.format().to_owned(), stored.shape.clone());
            // Stacks of experts lie with their inputs first, and are multiplied with their outputs first.
            let stack = shape.len() == 3;
            let rows: Arc<dyn Rows + 'a> =
                if stack { Arc::new(Upright::new(stored)?) } else { Arc::from(stored.into_rows()?) };
            let shape = if stack { vec![rows.matrix().rows, rows.matrix().columns] } else { shape };
            let inputs = inputs.get(&name).copied();
            all.insert(name, Lying { scheme, shape, rows, inputs });
        }
        Ok(Self(all))
    }

    /// The same with other numbers in the place of some.
    pub(crate) fn with(&self, replaced: &Replaced) -> Result<Self> {
        let mut all = self.0.clone();
        for (name, numbers) in replaced {
            let lying = all.get_mut(name).ok_or_else(|| Error::missing(name))?;
            let Shape { rows, columns } = numbers.matrix();
            if lying.shape.iter().product::<usize>() != rows * columns {
                return Err(Error::shape(name, &lying.shape, &format!("{rows} x {columns} in its place")));
            }
            "numbers in its place".clone_into(&mut lying.scheme);
            lying.rows = Arc::clone(numbers) as Arc<dyn Rows + 'a>;
        }
        Ok(Self(all))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The shape of a tensor: that of a plain checkpoint, but that a stack of experts is one matrix, outputs first.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize]> {
        Ok(&self.get(name)?.shape)
    }

    /// What is known of each.
    pub(crate) fn headers<'s>(&'s self, at: &'s Loading) -> impl Iterator<Item = Header<'s>> {
        self.0.iter().map(|(name, lying)| {
            let Shape { rows, columns } = lying.rows.matrix();
            let form = lying.rows.kernel_form().filter(|form| at.has_kernel(form));
            let (format, row_factors) = (form.map(|form| form.format), form.is_some_and(|form| form.row_factors));
            Header { name, vector: lying.shape.len() == 1, rows, columns, format, row_factors, inputs: lying.inputs }
        })
    }

    /// Bytes of everything.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|lying| lying.rows.stored()).sum()
    }

    fn get(&self, name: &str) -> Result<&Lying<'a>> {
        self.0.get(name).ok_or_else(|| Error::missing(name))
    }

    fn form(&self, name: &str) -> Option<KernelForm> {
        self.0.get(name)?.rows.kernel_form()
    }

    /// All numbers of a small tensor.
    pub(crate) fn vector(&self, name: &str) -> Result<Vec<f32>> {
        let rows = &self.get(name)?.rows;
        let Shape { rows: count, columns } = rows.matrix();
        let mut numbers = vec![0.0; count * columns];
        rows.read(0..count, &mut Spare::default(), &mut numbers)?;
        Ok(numbers)
    }
}

/// A stack of experts with its outputs first.
struct Upright<'a> {
    stored: StoredTensor<'a>,
    matrix: Shape,
}

impl<'a> Upright<'a> {
    fn new(stored: StoredTensor<'a>) -> Result<Self> {
        let matrix = stored.turned()?.matrix();
        Ok(Self { stored, matrix })
    }
}

impl Rows for Upright<'_> {
    fn matrix(&self) -> Shape {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> roofline_quant::Result<()> {
        self.stored.turned()?.read(rows, spare, out)
    }

    fn stored(&self) -> u64 {
        self.stored.bytes()
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        self.stored.turned().ok()?.kernel_form()
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> roofline_quant::Result<()> {
        self.stored.turned()?.read_codes(rows, into)
    }

    fn tensor_part(&self) -> roofline_quant::Result<Vec<u8>> {
        self.stored.turned()?.tensor_part()
    }
}

/// What decides how weights are read.
pub(crate) struct Loading {
    pub(crate) arena: Arena,
    /// Whether everything is decoded row by row.
    pub(crate) decode: bool,
    pub(crate) isa: Isa,
    pub(crate) threads: usize,
    /// The numbers that products read and write.
    pub(crate) values: Precision,
}

impl Loading {
    /// As settings say.
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let Settings { decode, isa, threads, values, kv, .. } = *settings;
        Ok(Self { arena: Arena::new()?, decode, isa, threads, values: products::numbers(values, kv) })
    }

    /// Whether there is a kernel for weights of that form.
    fn has_kernel(&self, form: &KernelForm) -> bool {
        if self.decode {
            return false;
        }
        let (Ok(n), Ok(k)) =
            (Dim::new("rows", form.matrix.rows.min(64) as u64), Dim::new("columns", form.matrix.columns as u64))
        else {
            return false;
        };
        let precision = Precision { weights: form.format, ..self.values };
        Product::plan(self.isa, Linear { m: Dim::ONE, n, k }, &precision, 1).is_ok()
    }
}
