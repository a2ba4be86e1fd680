//! FP8 with one scale for all of a weight, or one for each row without a second dimension: static FP8 as llm-compressor,
//! ModelOpt and vLLM's own scripts write it.
//!
//! What scales activations beside it (`input_scale`) says nothing about the weight.

use std::{collections::BTreeMap, ops::Range};

use roofline_core::Format;
use roofline_isa::widest;

use super::{Coded, Kind, Located, StoredTensor, complete, sensible};
use crate::{
    Dtype, Result,
    coding::{Matrix, element::from_e4m3},
    kernel_form::{CodesMut, KernelForm, check},
    number::{is_number, read},
    rows::{Rows, Spare},
};

/// The weight of a module, if its tensors are those and no others.
pub(super) fn weight<'a>(module: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Option<StoredTensor<'a>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let (codes, scale) = (find("weight")?, find("weight_scale")?);
    let [rows, columns] = codes.1.shape[..] else { return None };
    let per_row = match scale.1.shape[..] {
        [] | [1] | [1, 1] => false,
        [scales] if scales == rows => true,
        _ => return None,
    };
    if codes.1.dtype != Dtype::F8E4M3 || !is_number(scale.1.dtype) || !sensible(rows) || !sensible(columns) {
        return None;
    }
    let parts = vec![codes, scale];
    if !complete(module, tensors, &parts) {
        return None;
    }
    let dtype = if scale.1.dtype == Dtype::F16 { Dtype::F16 } else { Dtype::Bf16 };
    let scheme = if per_row { "FP8 per channel" } else { "FP8 per tensor" }.to_owned();
    let rows_of = Scaled { codes, scale, per_row, matrix: Matrix { rows, columns } };
    let kind = Kind::Coded(Coded { scheme, rows: Box::new(rows_of), parts });
    Some(StoredTensor { name: format!("{module}.weight"), shape: vec![rows, columns], dtype, kind })
}

/// Codes and their scale.
struct Scaled<'a> {
    codes: Located<'a>,
    scale: Located<'a>,
    per_row: bool,
    matrix: Matrix,
}

widest! {
    fn expand(codes: &[u8], scale: f32, out: &mut [f32]) {
        for (code, out) in codes.iter().zip(out) {
            *out = from_e4m3(*code) * scale;
        }
    }
}

impl Scaled<'_> {
    /// The scales of these rows, or that of all.
    fn scales(&self, rows: &Range<usize>) -> Result<Vec<u8>> {
        let (shard, scale) = self.scale;
        let (first, count) = if self.per_row { (rows.start, rows.len()) } else { (0, 1) };
        let size = scale.dtype.bytes();
        let mut bytes = vec![0; count * size];
        shard.read(scale, (first * size) as u64, &mut bytes)?;
        Ok(bytes)
    }
}

impl Rows for Scaled<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let ((shard, codes), (_, scale)) = (self.codes, self.scale);
        let columns = self.matrix.columns;
        let bytes = self.scales(&rows)?;
        let mut scales = vec![0.0; bytes.len() / scale.dtype.bytes()];
        read(scale.dtype, &bytes, &mut scales);
        spare.bytes.resize(rows.len() * columns, 0);
        shard.read(codes, (rows.start * columns) as u64, &mut spare.bytes)?;
        let each = if self.per_row { columns } else { rows.len() * columns };
        let run = spare.bytes.chunks_exact(each.max(1)).zip(out.chunks_exact_mut(each.max(1)));
        for ((codes, out), scale) in run.zip(scales) {
            expand(codes, scale, out);
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.codes.1.bytes() + self.scale.1.bytes()
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        KernelForm::new(Format::FP8, self.matrix, self.scale.1.dtype != Dtype::Bf16)
    }

    fn read_codes(&self, rows: Range<usize>, mut into: CodesMut<'_>) -> Result<()> {
        check(self.kernel_form(), &rows, &into)?;
        let (shard, codes) = self.codes;
        shard.read(codes, (rows.start * self.matrix.columns) as u64, into.codes)?;
        into.scale(self.scale.1.dtype, &self.scales(&rows)?);
        Ok(())
    }
}
