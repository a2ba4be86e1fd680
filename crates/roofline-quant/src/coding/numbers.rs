//! Plain numbers of another type, rounded to nearest.

use roofline_isa::widest;

use super::{Block, Coding, Matrix, Part, Placing, Unsuited, scales};
use crate::{
    Dtype,
    rounding::{Bf16, F16, F32, Rounding},
};

/// Numbers of one type: BF16, F16 or F32.
pub(crate) struct Numbers(pub(crate) Dtype);

widest! {
    /// The nearest numbers of the type, infinite beyond its range.
    fn round<R: Rounding>(values: &[f32], rounded: &mut [f32]) {
        for (value, rounded) in values.iter().zip(rounded) {
            *rounded = R::round(*value);
        }
    }
}

fn encode<R: Rounding>(values: &[f32], out: &mut [u8], decoded: &mut [f32]) {
    round::<R>(values, decoded);
    scales::write_scales::<R>(decoded, out);
}

impl Coding for Numbers {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let bytes = matrix.columns * self.0.bytes();
        let placing = Placing::Rows { rows: 1, bytes };
        Ok(vec![Part { name: "weight", dtype: self.0, shape: vec![matrix.rows, matrix.columns], placing }])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        match self.0 {
            Dtype::F16 => encode::<F16>(block.values, out[0], decoded),
            Dtype::F32 => encode::<F32>(block.values, out[0], decoded),
            _ => encode::<Bf16>(block.values, out[0], decoded),
        }
        0
    }

    fn decode(&self, _columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        match self.0 {
            Dtype::F16 => scales::read_scales::<F16>(parts[0], decoded),
            Dtype::F32 => scales::read_scales::<F32>(parts[0], decoded),
            _ => scales::read_scales::<Bf16>(parts[0], decoded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        // 1 + 3 * 2^-9 lies between 1 + 2^-8 and 1 + 2^-7, nearer to the second by a tie to even.
        let values = [1.0 + 3.0 / 512.0, -1.0 - 3.0 / 512.0, 1e6];
        let (mut bytes, mut decoded) = (vec![0; 6], vec![0.0; 3]);
        let block = Block { values: &values, columns: 3, peak: 0.0, importance: None, chosen: None };
        Numbers(Dtype::Bf16).encode(block, &mut [&mut bytes], &mut decoded);
        assert_eq!(decoded, [1.0 + 1.0 / 128.0, -1.0 - 1.0 / 128.0, 999_424.0]);
        let mut again = vec![0.0; 3];
        Numbers(Dtype::Bf16).decode(3, &[&bytes], &mut again);
        assert_eq!(again, decoded);
        // What a type cannot hold is infinite, which no run accepts.
        Numbers(Dtype::F16).encode(block, &mut [&mut bytes], &mut decoded);
        assert_eq!(decoded[2], f32::INFINITY);
    }
}
