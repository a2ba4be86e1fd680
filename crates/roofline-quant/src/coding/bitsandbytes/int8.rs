//! LLM.int8(): `q = rint(w * (1 / amax * 127))` with the largest magnitude of each row in FP32, of weights rounded to FP16
//! first. A code stands for `q * amax * (1 / 127)`.

use roofline_core::Format;

use super::super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    grid::Element,
    row::{code, expand, peaks},
    scales::Span,
};
use crate::{
    Dtype,
    kernel_form::{CodesMut, KernelForm},
    rounding::{F16, F32, Rounding, nearest_byte},
};

/// The library's own constant for 1 / 127.
const INVERSE: f32 = 0.007_874_016;

/// Bytes with the largest magnitude of each row.
pub(crate) struct Int8 {
    /// Whether a tensor says how the codes lie; old files have none.
    pub(crate) told: bool,
}

/// A byte under `127 / amax` when it is coded, and under `amax` when it is decoded.
#[derive(Clone, Copy)]
struct Byte;

impl Element for Byte {
    #[inline(always)]
    fn code(self, weight: f32, factor: f32, _zero: f32) -> (u8, bool) {
        (nearest_byte(weight * factor), false)
    }

    #[inline(always)]
    fn value(self, code: u8, max: f32, _zero: f32) -> f32 {
        f32::from(code as i8) * max * INVERSE
    }
}

impl Coding for Int8 {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        Span::Row.groups(columns)?;
        let row = |bytes| Placing::Rows { rows: 1, bytes };
        let mut parts = vec![
            Part { name: "weight", dtype: Dtype::I8, shape: vec![rows, columns], placing: row(columns) },
            Part { name: "SCB", dtype: Dtype::F32, shape: vec![rows], placing: row(4) },
        ];
        if self.told {
            let placing = Placing::Once { bytes: 1 };
            parts.push(Part { name: "weight_format", dtype: Dtype::U8, shape: Vec::new(), placing });
        }
        Ok(parts)
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [codes, maxima, ..] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = codes.chunks_exact_mut(columns).zip(maxima.chunks_exact_mut(4));
        let mut half = vec![0.0; columns];
        for ((row, decoded), (codes, stored)) in rows.zip(stored) {
            for (half, weight) in half.iter_mut().zip(row) {
                *half = F16::round(*weight);
            }
            let mut max = [0.0];
            peaks(&half, columns, &mut max);
            F32::write(max[0], stored);
            // A row of zeros has no factor. PyTorch divides a number by a tensor as a reciprocal and a product.
            let factor = if max[0] == 0.0 { 0.0 } else { 1.0 / max[0] * 127.0 };
            code(Byte, &half, columns, &[factor], &[0.0], codes);
            expand(Byte, codes, columns, &max, &[0.0], decoded);
        }
        0
    }

    fn constants(&self, _matrix: Matrix, _peak: f32) -> Vec<Vec<u8>> {
        // Row by row.
        if self.told { vec![vec![0]] } else { Vec::new() }
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let stored = parts[0].chunks_exact(columns).zip(parts[1].chunks_exact(4));
        for (decoded, (codes, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            expand(Byte, codes, columns, &[F32::read(stored)], &[0.0], decoded);
        }
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        KernelForm::new(Format::INT8, matrix, true)
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], mut into: CodesMut<'_>) -> Result<(), Unsuited> {
        into.codes.copy_from_slice(parts[0]);
        into.scale(Dtype::F32, parts[1]);
        into.factors.iter_mut().for_each(|max| *max *= INVERSE);
        Ok(())
    }
}
