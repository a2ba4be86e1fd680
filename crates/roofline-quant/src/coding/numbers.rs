//! Plain numbers of another type, rounded to nearest.

use super::{Block, Coding, Matrix, Part, Placing, Unsuited, scales};
use crate::{
    Dtype,
    rounding::{Bf16, F16, F32},
};

/// Numbers of one type: BF16, F16 or F32.
pub(crate) struct Numbers(pub(crate) Dtype);

impl Coding for Numbers {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let bytes = matrix.columns * self.0.bytes();
        let placing = Placing::Rows { rows: 1, bytes };
        Ok(vec![Part { name: "weight", dtype: self.0, shape: vec![matrix.rows, matrix.columns], placing }])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        match self.0 {
            Dtype::F16 => scales::write_scales::<F16>(block.values, out[0]),
            Dtype::F32 => scales::write_scales::<F32>(block.values, out[0]),
            _ => scales::write_scales::<Bf16>(block.values, out[0]),
        }
        self.decode(block.columns, &[&*out[0]], decoded);
        decoded.iter().filter(|value| !value.is_finite()).count() as u64
    }

    fn decode(&self, _columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        match self.0 {
            Dtype::F16 => scales::read_scales::<F16>(parts[0], decoded),
            Dtype::F32 => scales::read_scales::<F32>(parts[0], decoded),
            _ => scales::read_scales::<Bf16>(parts[0], decoded),
        }
    }
}
