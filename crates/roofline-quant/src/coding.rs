//! How a weight matrix becomes stored tensors: the seam between quantizers and files.
//!
//! A [`Coding`] says which tensors a matrix of a given shape is stored as - so that a file's header can be written
//! first - and turns blocks of rows into their bytes, in any order and from several threads.

pub mod awq;
pub mod bitsandbytes;
pub mod compressed_tensors;
pub(crate) mod element;
pub mod fine_grained;
mod float8;
#[cfg(test)]
pub(crate) mod golden;
pub mod gptq;
pub(crate) mod grid;
mod integer;
pub(crate) mod micro;
pub mod mlx;
mod numbers;
mod nvfp4;
pub(crate) mod packing;
#[cfg(test)]
mod packings;
#[cfg(test)]
mod properties;
mod row;
pub(crate) mod scales;
mod shifted;
pub mod torchao;

pub use grid::Grid;
pub(crate) use numbers::Numbers;

use std::sync::Arc;

use crate::{
    Dtype,
    data::ChosenRows,
    kernel_form::{CodesMut, KernelForm},
};

/// A row-major weight matrix: `rows` outputs of `columns` inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Output channels.
    pub rows: usize,
    /// Input channels; scales run along them.
    pub columns: usize,
}

/// One stored tensor of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What the layout calls it: `weight_packed`, `weight_scale`, `qdata`, ...
    pub name: &'static str,
    /// The stored type.
    pub dtype: Dtype,
    /// The stored shape.
    pub shape: Vec<usize>,
    /// Where a block of rows goes.
    pub placing: Placing,
}

/// Where the bytes of a block of rows go within a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// In order: `bytes` for every `rows` rows of the matrix; a last, shorter run of rows takes as much.
    Rows {
        /// Rows that share these bytes.
        rows: usize,
        /// How many bytes they take.
        bytes: usize,
    },
    /// Transposed: `lines` lines, in each of which every `rows` rows of the matrix have `bytes`.
    Columns {
        /// Lines of the stored tensor.
        lines: usize,
        /// Rows that share these bytes.
        rows: usize,
        /// How many bytes they take in one line.
        bytes: usize,
    },
    /// In the order of the flattened matrix: `bytes` for every `run` of its numbers, be they of one row or of several.
    /// A last, shorter run takes as much.
    Flat {
        /// Numbers of a row of the matrix.
        columns: usize,
        /// Numbers that share these bytes.
        run: usize,
        /// How many bytes they take.
        bytes: usize,
    },
    /// Once for the matrix, from [`Coding::constants`].
    Once {
        /// How many bytes.
        bytes: usize,
    },
}

/// Why a matrix of some shape cannot be stored, in words that follow the weight's name.
pub type Unsuited = String;

/// Rows of a matrix to be coded.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The weights, finite, row-major. A whole number of [`Coding::unit`]s of rows, except at the matrix's end.
    pub values: &'a [f32],
    /// Elements of a row.
    pub columns: usize,
    /// The largest magnitude of the matrix and of those that are fused with it, or what [`Coding::conclude`] makes of it;
    /// zero unless [`Coding::needs_peak`].
    pub peak: f32,
    /// How much an error in each input channel matters: the mean square of its activations. Nothing without data.
    pub importance: Option<&'a [f32]>,
    /// What a method has chosen for these rows, in the place of what the coding would; only where it has a [`Coding::grid`].
    pub chosen: Option<ChosenRows<'a>>,
}

impl Block<'_> {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }
}

impl<C: Coding + ?Sized> Coding for Arc<C> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        (**self).parts(matrix)
    }

    fn unit(&self) -> usize {
        (**self).unit()
    }

    fn needs_peak(&self) -> bool {
        (**self).needs_peak()
    }

    fn gather(&self, values: &[f32], peak: f32) -> f64 {
        (**self).gather(values, peak)
    }

    fn conclude(&self, matrix: Matrix, gathered: &[f64]) -> f32 {
        (**self).conclude(matrix, gathered)
    }

    fn shares_peak(&self) -> bool {
        (**self).shares_peak()
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        (**self).encode(block, out, decoded)
    }

    fn constants(&self, matrix: Matrix, peak: f32) -> Vec<Vec<u8>> {
        (**self).constants(matrix, peak)
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        (**self).decode(columns, parts, decoded);
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        (**self).grid()
    }

    fn weighs(&self) -> bool {
        (**self).weighs()
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        (**self).kernel_form(matrix)
    }

    fn arrange(&self, columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        (**self).arrange(columns, parts, into)
    }

    fn tensor_part(&self, once: &[&[u8]]) -> Vec<u8> {
        (**self).tensor_part(once)
    }
}

/// How a weight matrix is stored.
pub trait Coding: Send + Sync {
    /// The tensors that a matrix of that shape is stored as; an error where the shape does not suit.
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited>;

    /// How many rows have to be coded together.
    fn unit(&self) -> usize {
        1
    }

    /// Whether the largest magnitude has to be known before the first row is coded.
    fn needs_peak(&self) -> bool {
        false
    }

    /// What a block of rows adds to what is known before the first row is coded; its largest magnitude is `peak`.
    fn gather(&self, _values: &[f32], peak: f32) -> f64 {
        f64::from(peak)
    }

    /// What is known of the whole matrix, from what was gathered of its blocks.
    fn conclude(&self, _matrix: Matrix, gathered: &[f64]) -> f32 {
        gathered.iter().fold(0f64, |peak, found| peak.max(*found)) as f32
    }

    /// Whether what there is once per tensor is that of all weights that runtimes fuse.
    fn shares_peak(&self) -> bool {
        true
    }

    /// Codes `block`: for each part, in the order of [`Coding::parts`], its bytes of these rows into `out` (nothing for
    /// parts placed once; as many runs as lines for transposed ones), and what they decode to into `decoded`.
    /// Returns how many weights lay outside the representable range by more than half a step.
    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64;

    /// The bytes of the parts that are placed once, in the order of [`Coding::parts`].
    fn constants(&self, _matrix: Matrix, _peak: f32) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// What stored rows stand for, in FP32: exactly what [`Coding::encode`] gives as decoded. `parts` holds the bytes of
    /// these rows, placed as `encode` places them, and all bytes of what is placed once; `decoded` has room for the rows,
    /// which begin at a multiple of [`Coding::unit`]. The libraries compute the same and round it to the model's type.
    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]);

    /// Its codes as methods see them that choose scales, zero points and codes themselves; none where it has no such.
    fn grid(&self) -> Option<Box<dyn Grid>> {
        None
    }

    /// Whether its own search for scales goes by the importance of inputs, where that is known.
    fn weighs(&self) -> bool {
        false
    }

    /// The form in which kernels read exactly what is stored of a matrix of that shape, if they have one.
    fn kernel_form(&self, _matrix: Matrix) -> Option<KernelForm> {
        None
    }

    /// Puts stored rows into that form, for just as many as there is room. `parts` is as for [`Coding::decode`]; an error
    /// where it holds what the coding would not have written.
    fn arrange(&self, _columns: usize, _parts: &[&[u8]], _into: CodesMut<'_>) -> Result<(), Unsuited> {
        Err("has no form that kernels read".to_owned())
    }

    /// What that form has once for all rows, made of the parts that are placed once.
    fn tensor_part(&self, _once: &[&[u8]]) -> Vec<u8> {
        Vec::new()
    }
}
