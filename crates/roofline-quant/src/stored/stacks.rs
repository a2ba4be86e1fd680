//! The experts of gpt-oss as they were released: all of a layer in MXFP4, `S_blocks` of `[experts, outputs, inputs / 32,
//! 16]` bytes with two codes each, and `S_scales` with a power of two per 32.
//!
//! A plain checkpoint has them as `S` of `[experts, inputs, outputs]`: transposed, so that what is neighbours in one is far
//! apart in the other. A run of inputs is read for all outputs, in tiles.

use std::{collections::BTreeMap, ops::Range};

use roofline_core::Format;

use super::{Coded, Kind, Located, StoredTensor, sensible};
use crate::{
    Dtype, Result,
    coding::{Matrix, element::from_e2m1},
    kernel_form::{CodesMut, KernelForm, check},
    rounding::power_of_two,
    rows::{Rows, Spare},
};

/// Weights that share a power of two.
const BLOCK: usize = 32;
/// Bytes they take.
const BYTES: usize = BLOCK / 2;
/// Rows that are read together: eight blocks of an output lie side by side.
const TOGETHER: usize = 8 * BLOCK;
/// Outputs that are transposed together, so that whole lines of memory are written.
const TILE: usize = 16;
/// The most outputs: whole rows are held in memory.
const MOST_OUTPUTS: usize = 1 << 24;

/// The stack whose codes have that name, if its scales fit.
pub(super) fn experts<'a>(name: &str, tensors: &BTreeMap<&str, Located<'a>>) -> Option<StoredTensor<'a>> {
    let stem = name.strip_suffix("_blocks")?;
    let (blocks, scales) = (*tensors.get(name)?, *tensors.get(format!("{stem}_scales").as_str())?);
    let [experts, outputs, groups, BYTES] = blocks.1.shape[..] else { return None };
    let inputs = groups.checked_mul(BLOCK)?;
    let sizes = [experts, outputs, inputs].iter().all(|size| sensible(*size));
    let fits = scales.1.shape == [experts, outputs, groups] && outputs <= MOST_OUTPUTS;
    let types = [blocks.1.dtype, scales.1.dtype] == [Dtype::U8, Dtype::U8];
    // A plain tensor of the name would be the same weight once more.
    if !sizes || !fits || !types || tensors.contains_key(stem) {
        return None;
    }
    let rows = Box::new(Stack { blocks, scales, experts, outputs, inputs });
    let kind = Kind::Coded(Coded { scheme: "MXFP4".to_owned(), rows, parts: vec![blocks, scales] });
    Some(StoredTensor { name: stem.to_owned(), shape: vec![experts, inputs, outputs], dtype: Dtype::Bf16, kind })
}

struct Stack<'a> {
    blocks: Located<'a>,
    scales: Located<'a>,
    experts: usize,
    outputs: usize,
    inputs: usize,
}

impl Stack<'_> {
    /// Inputs `wanted` of one expert.
    fn part(&self, expert: usize, wanted: Range<usize>, bytes: &mut Vec<u8>, out: &mut [f32]) -> Result<()> {
        let groups = self.inputs / BLOCK;
        let read = wanted.start / BLOCK..wanted.end.div_ceil(BLOCK);
        let skip = wanted.start - read.start * BLOCK;
        // All scales of an expert are few; of its codes, what is wanted.
        let mut scales = vec![0; self.outputs * groups];
        self.scales.0.read(self.scales.1, (expert * self.outputs * groups) as u64, &mut scales)?;
        let width = read.len() * BLOCK;
        let mut tile = vec![0.0; TILE * width];
        bytes.resize(read.len() * BYTES, 0);
        for first in (0..self.outputs).step_by(TILE) {
            let here = first..self.outputs.min(first + TILE);
            for (output, tile) in here.clone().zip(tile.chunks_exact_mut(width)) {
                let at = ((expert * self.outputs + output) * groups + read.start) * BYTES;
                self.blocks.0.read(self.blocks.1, at as u64, bytes)?;
                expand(bytes, &scales[output * groups..][read.clone()], tile);
            }
            for (input, row) in out.chunks_exact_mut(self.outputs).enumerate() {
                for (at, value) in row[here.clone()].iter_mut().enumerate() {
                    *value = tile[at * width + skip + input];
                }
            }
        }
        Ok(())
    }
}

impl Rows for Stack<'_> {
    fn matrix(&self) -> Matrix {
        Matrix { rows: self.experts * self.inputs, columns: self.outputs }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let mut from = rows.start;
        while from < rows.end {
            let (expert, first) = (from / self.inputs, from % self.inputs);
            let until = rows.end.min((expert + 1) * self.inputs);
            let out = &mut out[(from - rows.start) * self.outputs..(until - rows.start) * self.outputs];
            self.part(expert, first..first + until - from, &mut spare.bytes, out)?;
            from = until;
        }
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.blocks.1.bytes() + self.scales.1.bytes()
    }

    fn unit(&self) -> usize {
        TOGETHER
    }

    fn turned(&self, parts: usize) -> Option<Box<dyn Rows + '_>> {
        if parts == self.experts { Some(Box::new(Outputs(self))) } else { None }
    }
}

/// The stack as it lies in the file: a row for each output of each expert.
struct Outputs<'a>(&'a Stack<'a>);

impl Rows for Outputs<'_> {
    fn matrix(&self) -> Matrix {
        Matrix { rows: self.0.experts * self.0.outputs, columns: self.0.inputs }
    }

    fn read(&self, rows: Range<usize>, spare: &mut Spare, out: &mut [f32]) -> Result<()> {
        let Stack { blocks, scales, inputs, .. } = self.0;
        let groups = inputs / BLOCK;
        let mut powers = vec![0; rows.len() * groups];
        scales.0.read(scales.1, (rows.start * groups) as u64, &mut powers)?;
        spare.bytes.resize(powers.len() * BYTES, 0);
        blocks.0.read(blocks.1, (rows.start * groups * BYTES) as u64, &mut spare.bytes)?;
        expand(&spare.bytes, &powers, out);
        Ok(())
    }

    fn stored(&self) -> u64 {
        self.0.stored()
    }

    fn kernel_form(&self) -> Option<KernelForm> {
        KernelForm::new(Format::MXFP4, self.matrix(), false)
    }

    fn read_codes(&self, rows: Range<usize>, into: CodesMut<'_>) -> Result<()> {
        let form = check(self.kernel_form(), &rows, &into)?;
        let Stack { blocks, scales, .. } = self.0;
        blocks.0.read(blocks.1, (rows.start * form.codes) as u64, into.codes)?;
        scales.0.read(scales.1, (rows.start * form.scales) as u64, into.scales)
    }
}

/// What blocks of codes stand for.
fn expand(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    for ((out, codes), scale) in out.chunks_exact_mut(BLOCK).zip(codes.chunks_exact(BYTES)).zip(scales) {
        let scale = power_of_two(*scale);
        for (pair, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            *pair = [from_e2m1(code & 15) * scale, from_e2m1(code >> 4) * scale];
        }
    }
}
