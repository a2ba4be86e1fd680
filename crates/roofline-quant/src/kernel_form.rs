//! Stored weights as kernels read them: the layout of [`Encoded`](roofline_core::format::Encoded).
//!
//! Files order codes, scales and zero points as their libraries like them; kernels have one order for each [`Format`].
//! Where a format holds exactly what is stored, its bytes are put into that order as they are read and never become
//! wider numbers in between. Where none does - rows that lie as columns, scales that BF16 cannot say for each group -
//! there is no such form, and rows are decoded.
//!
//! Experts are matrices of their own (`M.experts.3.up_proj.weight`) in GGUF files and MLX's as elsewhere, but for the
//! families whose plain checkpoints stack them the other way round, gpt-oss and Llama 4: [`StoredTensor::turned`] is such a
//! stack with a row for each output of each expert.

use std::ops::Range;

use roofline_core::{
    Dim, Format,
    format::{Layout, Shape},
};

use crate::{
    Dtype, Error, Result,
    coding::{Matrix, Unsuited, packing::pack_nibbles, scales::Span},
    number,
    rows::{Band, Plain, Rows, Stacked, Transposed},
    stored::{Kind, StoredTensor},
};

/// More experts than any layer has.
const MOST_EXPERTS: usize = 1 << 16;

/// How a stored matrix lies in memory for kernels. It follows from headers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelForm {
    /// How numbers are stored.
    pub format: Format,
    /// The matrix: a row per output.
    pub matrix: Matrix,
    /// Whether the outputs of a product are multiplied by a number for each row, which the format has no room for: scales
    /// of FP16 or FP32. The format's own scales of rows are one then.
    pub row_factors: bool,
    /// Bytes of codes in a row.
    pub codes: usize,
    /// Bytes of scales in a row.
    pub scales: usize,
    /// Bytes of zero points in a row.
    pub zeros: usize,
    /// Bytes that there are once for all rows.
    pub tensor: usize,
}

impl KernelForm {
    /// The form of a matrix in that format; nothing for one that is empty or too large to lie in memory, or whose rows
    /// would share blocks.
    pub(crate) fn new(format: Format, matrix: Matrix, row_factors: bool) -> Option<Self> {
        let columns = Dim::new("columns", matrix.columns as u64).ok()?;
        let flat = matches!(format, Format::NF4) || format.gguf().is_some();
        if flat && format.block().is_some_and(|block| !columns.get().is_multiple_of(block)) {
            return None;
        }
        let row = Layout::new(format, Shape::matrix(Dim::ONE, columns));
        let whole = (row.bytes() + 4).checked_mul(matrix.rows as u128)?;
        if matrix.rows == 0 || isize::try_from(whole).is_err() {
            return None;
        }
        let [codes, scales, zeros, tensor] = [row.codes, row.scales, row.zeros, row.tensor].map(|bytes| bytes as usize);
        Some(Self { format, matrix, row_factors, codes, scales, zeros, tensor })
    }

    /// The same for another number of rows.
    pub(crate) fn with_rows(self, rows: usize) -> Option<Self> {
        Self::new(self.format, Matrix { rows, ..self.matrix }, self.row_factors)
    }

    /// The form of plain numbers.
    pub(crate) fn plain(dtype: Dtype, matrix: Matrix) -> Option<Self> {
        let format = match dtype {
            Dtype::Bf16 => Format::BF16,
            Dtype::F16 => Format::FP16,
            Dtype::F32 => Format::FP32,
            _ => return None,
        };
        Self::new(format, matrix, false)
    }

    /// Room for that many rows.
    pub fn room(&self, rows: usize) -> Room {
        let factors = if self.row_factors { rows } else { 0 };
        Room {
            rows,
            codes: vec![0; rows * self.codes],
            scales: vec![0; rows * self.scales],
            zeros: vec![0; rows * self.zeros],
            factors: vec![0.0; factors],
        }
    }
}

/// Memory for rows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Room {
    /// How many rows.
    pub rows: usize,
    /// Codes, row after row.
    pub codes: Vec<u8>,
    /// Scales.
    pub scales: Vec<u8>,
    /// Zero points.
    pub zeros: Vec<u8>,
    /// What outputs are multiplied by; nothing where the form has no such.
    pub factors: Vec<f32>,
}

impl Room {
    /// All of it.
    pub fn all(&mut self) -> CodesMut<'_> {
        let Self { rows, codes, scales, zeros, factors } = self;
        CodesMut { rows: *rows, codes, scales, zeros, factors }
    }
}

/// Where rows go: in each part as many bytes as the [`KernelForm`] says, row after row.
#[derive(Debug)]
pub struct CodesMut<'a> {
    /// How many rows.
    pub rows: usize,
    /// Codes.
    pub codes: &'a mut [u8],
    /// Scales.
    pub scales: &'a mut [u8],
    /// Zero points.
    pub zeros: &'a mut [u8],
    /// What outputs are multiplied by.
    pub factors: &'a mut [f32],
}

impl<'a> CodesMut<'a> {
    /// The place of some of the rows.
    ///
    /// # Panics
    ///
    /// When there are not as many rows.
    pub fn part(&mut self, rows: Range<usize>) -> CodesMut<'_> {
        fn of<'p, T>(part: &'p mut [T], rows: &Range<usize>, all: usize) -> &'p mut [T] {
            let each = part.len() / all.max(1);
            &mut part[rows.start * each..rows.end * each]
        }
        assert!(rows.start <= rows.end && rows.end <= self.rows, "there are {} rows, not {rows:?}", self.rows);
        CodesMut {
            rows: rows.len(),
            codes: of(self.codes, &rows, self.rows),
            scales: of(self.scales, &rows, self.rows),
            zeros: of(self.zeros, &rows, self.rows),
            factors: of(self.factors, &rows, self.rows),
        }
    }

    /// Bands of `height` rows, the last perhaps of fewer, for threads that read at the same time; with each, which rows
    /// it is for.
    pub fn bands(self, height: usize) -> impl Iterator<Item = (Range<usize>, CodesMut<'a>)> {
        let Self { rows: all, mut codes, mut scales, mut zeros, mut factors } = self;
        let height = height.max(1);
        (0..all).step_by(height).map(move |from| {
            let (rows, left) = (height.min(all - from), all - from);
            let band = CodesMut {
                rows,
                codes: codes.split_off_mut(..codes.len() / left * rows).unwrap_or_default(),
                scales: scales.split_off_mut(..scales.len() / left * rows).unwrap_or_default(),
                zeros: zeros.split_off_mut(..zeros.len() / left * rows).unwrap_or_default(),
                factors: factors.split_off_mut(..factors.len() / left * rows).unwrap_or_default(),
            };
            (from..from + rows, band)
        })
    }

    /// The same bytes as `from`, which are of as many rows.
    pub(crate) fn copy_from(&mut self, from: &CodesMut<'_>) {
        self.codes.copy_from_slice(from.codes);
        self.scales.copy_from_slice(from.scales);
        self.zeros.copy_from_slice(from.zeros);
        self.factors.copy_from_slice(from.factors);
    }

    /// Stores scales that a file has in BF16 for runs of groups, for rows or for all; those in another type, which are for
    /// rows or for all, become factors beside scales of one.
    pub(crate) fn scale(&mut self, dtype: Dtype, stored: &[u8]) {
        const ONE: [u8; 2] = [0x80, 0x3f];
        let scales = self.scales.as_chunks_mut::<2>().0;
        if dtype == Dtype::Bf16 {
            return repeat(stored.as_chunks::<2>().0, scales);
        }
        scales.fill(ONE);
        let mut numbers = vec![0.0; stored.len() / dtype.bytes()];
        number::read(dtype, stored, &mut numbers);
        repeat(&numbers, self.factors);
    }
}

/// Fills `to` with each of `from`, as often as there is room for all of them.
pub(crate) fn repeat<T: Copy>(from: &[T], to: &mut [T]) {
    let often = (to.len() / from.len().max(1)).max(1);
    for (to, from) in to.chunks_mut(often).zip(from) {
        to.fill(*from);
    }
}

/// The format of four-bit integers of which `span` share a scale, and that have zero points or not. Where more share one
/// than kernels know, it is there more than once.
pub(crate) fn int4(span: Span, zero: &str) -> Option<Format> {
    let block = match span {
        Span::Row => 128,
        Span::Group(group) => [128, 64, 32].into_iter().find(|block| group.is_multiple_of(*block))?,
    };
    format!("int4-g{block}{zero}").parse().ok()
}

/// Four-bit integers in a byte each, two to a byte; an error where one is wider. `flip` as for
/// [`pack_nibbles`](crate::coding::packing::pack_nibbles).
pub(crate) fn narrow(wide: &[u8], flip: u8, out: &mut [u8]) -> Result<(), Unsuited> {
    if let Some(code) = wide.iter().map(|code| *code as i8).find(|code| !(-8..8).contains(code)) {
        return Err(format!("has {code} among its integers of four bits"));
    }
    pack_nibbles(wide, flip, out);
    Ok(())
}

impl StoredTensor<'_> {
    /// How it lies in memory for kernels; nothing where no layout of theirs holds exactly what is stored, and
    /// [`StoredTensor::into_rows`] decodes it row by row.
    pub fn kernel_form(&self) -> Option<KernelForm> {
        self.with_rows(|rows| Ok(rows.kernel_form())).ok().flatten()
    }

    /// Reads these rows in the form that there is. There must be room for just them; several threads may read at the same
    /// time, best in bands of some hundred rows.
    pub fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        self.with_rows(|all| {
            check(all.kernel_form(), &rows, &into)?;
            all.read_codes(rows, into)
        })
    }

    /// What the form has once for all rows, as many bytes as [`KernelForm::tensor`] says: the FP32 scale of NVFP4.
    pub fn tensor_part(&self) -> Result<Vec<u8>> {
        self.with_rows(|rows| rows.tensor_part())
    }

    /// A stack of `[experts, inputs, outputs]` as products want it: one expert below the other, a row for each output.
    /// Where files hold it that way, in codes or as numbers, it has a form for kernels; else it is transposed as it is
    /// decoded.
    pub fn turned(&self) -> Result<Box<dyn Rows + '_>> {
        let [experts, inputs, outputs] = self.shape[..] else {
            return Err(
                self.refuse(format!("has the shape {:?}, and a stack of experts has three sizes", self.shape), None)
            );
        };
        // Each is something that is kept.
        if !(1..=MOST_EXPERTS).contains(&experts) {
            return Err(self.refuse(format!("has {experts} experts, and 1 to {MOST_EXPERTS} are taken apart"), None));
        }
        let misshapen = || self.refuse(format!("has the shape {:?}, and other rows", self.shape), None);
        let fits = |rows: &dyn Rows| rows.matrix() == Matrix { rows: experts.saturating_mul(inputs), columns: outputs };
        let all: &dyn Rows = match &self.kind {
            Kind::Plain((shard, entry)) => {
                return Plain::new(shard, entry)?.turned(experts).ok_or_else(misshapen);
            }
            Kind::Within(plain, _) => plain,
            Kind::Rearranged(rows, _) => &**rows,
            Kind::Coded(coded) => &*coded.rows,
        };
        if !fits(all) {
            return Err(misshapen());
        }
        if let Some(turned) = all.turned(experts) {
            return Ok(turned);
        }
        let one =
            |expert: usize| -> Box<dyn Rows + '_> { Box::new(Transposed(Band::new(all, expert * inputs, inputs))) };
        Ok(Stacked::of((0..experts).map(one).collect()))
    }

    fn with_rows<T>(&self, then: impl FnOnce(&dyn Rows) -> Result<T>) -> Result<T> {
        match &self.kind {
            Kind::Plain((shard, entry)) => then(&Plain::new(shard, entry)?),
            Kind::Within(plain, _) => then(plain),
            Kind::Rearranged(rows, _) => then(&**rows),
            Kind::Coded(coded) => then(&*coded.rows),
        }
    }
}

/// Reads row `sources[i]` of a matrix as row `i`. Those that are neighbours there are read at once, in whatever order they
/// are wanted: heads and experts that take turns would be a read for each row.
pub(crate) fn gather(rows: &dyn Rows, sources: &[usize], mut into: CodesMut<'_>) -> Result<()> {
    let form = rows.kernel_form().ok_or_else(has_none)?;
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|at| sources[*at]);
    for run in order.chunk_by(|one, next| sources[*one] + 1 == sources[*next]) {
        let from = sources[run[0]]..sources[run[0]] + run.len();
        if run.is_sorted() && run[run.len() - 1] - run[0] + 1 == run.len() {
            rows.read_codes(from, into.part(run[0]..run[0] + run.len()))?;
            continue;
        }
        let mut room = form.room(run.len());
        rows.read_codes(from, room.all())?;
        for (row, at) in run.iter().enumerate() {
            into.part(*at..at + 1).copy_from(&room.all().part(row..row + 1));
        }
    }
    Ok(())
}

/// That a matrix was asked for in a form that it does not have.
pub(crate) fn has_none() -> Error {
    Error::unsupported("no kernel's layout holds the matrix as it is stored", "decode it row by row")
}

/// Whether there is room for just these rows.
pub(crate) fn check(form: Option<KernelForm>, rows: &Range<usize>, into: &CodesMut<'_>) -> Result<KernelForm> {
    let form = form.ok_or_else(has_none)?;
    let factors = if form.row_factors { rows.len() } else { 0 };
    let fits = rows.len() == into.rows
        && rows.end <= form.matrix.rows
        && into.codes.len() == rows.len() * form.codes
        && into.scales.len() == rows.len() * form.scales
        && into.zeros.len() == rows.len() * form.zeros
        && into.factors.len() == factors;
    if fits {
        return Ok(form);
    }
    let Matrix { rows: all, .. } = form.matrix;
    Err(Error::unsupported(
        format!("there is no room of the right size for rows {} to {} of {all}", rows.start, rows.end),
        "take the room that the form itself gives",
    ))
}

#[cfg(test)]
pub(crate) mod tests;
