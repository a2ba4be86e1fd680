//! NVFP4 as NVIDIA's ModelOpt stores it: two codes to a byte of `weight`, an E4M3 scale per 16 in `weight_scale`, and
//! `weight_scale_2`, which multiplies all of them. (compressed-tensors stores its reciprocal, under other names.)

use std::{collections::BTreeMap, ops::Range};

use roofline_core::Format;
use roofline_isa::widest;

use super::{Coded, Kind, Located, StoredTensor, complete, sensible};
use crate::{
    Dtype, Result,
    coding::{
        Matrix,
        element::{from_e2m1, from_e4m3},
    },
    kernel_form::{CodesMut, KernelForm, check},
    rows::{Rows, Spare},
};

/// Weights that share a scale.
const BLOCK: usize = 16;

/// The weight of a module, if its tensors are those and no others. What smooths activations has been worked into such
/// weights, and would be lost.
pub(super) fn weight<'a>(module: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Option<StoredTensor<'a>> {
    let find = |part: &str| tensors.get(format!("{module}.{part}").as_str()).copied();
    let (codes, scales, whole) = (find("weight")?, find("weight_scale")?, find("weight_scale_2")?);
    let ([rows, bytes], [_, groups]) = (&codes.1.shape[..], &scales.1.shape[..]) else { return None };
    let (rows, columns) = (*rows, bytes.checked_mul(2)?);
    let types = [codes.1.dtype, scales.1.dtype, whole.1.dtype] == [Dtype::U8, Dtype::F8E4M3, Dtype::F32];
    let fits = scales.1.shape[0] == rows && groups.checked_mul(BLOCK) == Some(columns);
    let one = matches!(whole.1.shape[..], [] | [1]);
    if !types || !fits || !one || !sensible(rows) || !sensible(columns) || find("pre_quant_scale").is_some() {
        return None;
    }
    let parts = vec![codes, scales, whole];
    if !complete(module, tensors, &parts) {
        return None;
    }
    let rows_of = Nvfp4 { codes, scales, whole, matrix: Matrix { rows, columns } };
    let kind = Kind::Coded(Coded { scheme: "NVFP4".to_owned(), rows: Box::new(rows_of), parts });
    Some(StoredTensor { name: format!("{module}.weight"), shape: vec![rows, columns], dtype: Dtype::Bf16, kind })
}

struct Nvfp4<'a> {
    codes: Located<'a>,
    scales: Located<'a>,
    whole: Located<'a>,
    matrix: Matrix,
}

widest! {
    /// Blocks of eight bytes with their scales.
    fn expand(codes: &[u8], scales: &[u8], whole: f32, out: &mut [f32]) {
        let blocks = codes.as_chunks::<{ BLOCK / 2 }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0);
        for ((codes, out), scale) in blocks.zip(scales) {
            let scale = from_e4m3(*scale) * whole;
            for (pair, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *pair = [from_e2m1(code & 15) * scale, from_e2m1(code >> 4) * scale];
            }
        }
    }
}

impl Rows for Nvfp4<'_> {
    fn matrix(&self) -> Matrix {
        self.matrix
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let (wide, groups) = (self.matrix.columns / 2, self.matrix.columns / BLOCK);
        let mut scales = vec![0; rows.len() * groups];
        self.scales.0.read(self.scales.1, (rows.start * groups) as u64, &mut scales)?;
        let mut whole = [0; 4];
        self.whole.0.read(self.whole.1, 0, &mut whole)?;
        spare.bytes.resize(rows.len() * wide, 0);
        self.codes.0.read(self.codes.1, (rows.start * wide) as u64, &mut spare.bytes)?;
        expand(&spare.bytes, &scales, f32::from_le_bytes(whole), out);
        Ok(())
    }

    fn stored(&self) -> u64 {
        [self.codes, self.scales, self.whole].iter().map(|(_, entry)| entry.bytes()).sum()
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        KernelForm::new(Format::NVFP4, self.matrix, false)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        let form = check(self.kernel_form(), &rows, &into)?;
        self.codes.0.read(self.codes.1, (rows.start * form.codes) as u64, into.codes)?;
        self.scales.0.read(self.scales.1, (rows.start * form.scales) as u64, into.scales)
    }

    fn tensor_part(&self) -> Result<Vec<u8>> {
        let mut whole = vec![0; 4];
        self.whole.0.read(self.whole.1, 0, &mut whole)?;
        Ok(whole)
    }
}
