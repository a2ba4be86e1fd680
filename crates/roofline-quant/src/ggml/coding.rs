//! The seam to files: a [`Type`] as a [`Coding`].

use super::{Type, codes, codes::BlockGrid, decode, divisor, encode, encode_scaled, encode_weighted};
use crate::{
    Dtype,
    coding::{Block, Coding, Grid, Matrix, Part, Placing, Unsuited},
};

/// A weight stored as a tensor of that type, one that [`Type::is_written`]. NVFP4 has a second tensor, `scale`, that
/// every weight is multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlCoding(pub Type);

impl GgmlCoding {
    /// The bytes of a row of that many weights.
    fn row(self, columns: usize) -> Option<usize> {
        self.0.bytes(columns as u64).map(|bytes| bytes as usize)
    }
}

impl Coding for GgmlCoding {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let ty = self.0;
        if !ty.is_written() {
            return Err(format!("would be {ty}, which is read and not written"));
        }
        let Some(bytes) = self.row(matrix.columns) else {
            return Err(format!("has {} columns, no multiple of the block of {}", matrix.columns, ty.block()));
        };
        let weight = Part {
            name: "weight",
            dtype: Dtype::U8,
            shape: vec![matrix.rows, bytes],
            placing: Placing::Rows { rows: 1, bytes },
        };
        let scale = Part { name: "scale", dtype: Dtype::F32, shape: vec![1], placing: Placing::Once { bytes: 4 } };
        Ok(if ty == Type::Nvfp4 { vec![weight, scale] } else { vec![weight] })
    }

    fn needs_peak(&self) -> bool {
        self.0 == Type::Nvfp4
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let (ty, values) = (self.0, block.values);
        let bytes = &mut *out[0];
        let scale = if ty == Type::Nvfp4 {
            let divisor = divisor(block.peak);
            encode_scaled(values, divisor, bytes);
            1.0 / divisor
        } else {
            match block.importance {
                Some(importance) => encode_weighted(ty, values, importance, bytes),
                None => encode(ty, values, bytes),
            }
            if let Some(chosen) = block.chosen {
                // Its scales were found by the same search.
                codes::put(ty, chosen.codes, bytes);
            }
            1.0
        };
        let known = decode(ty, bytes, scale, decoded);
        debug_assert!(known, "{ty} is written, so it can be read");
        let limit = ty.limit().unwrap_or(0.0);
        values.iter().map(|x| u64::from(x.abs() > limit)).sum()
    }

    fn decode(&self, _columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let scale = parts.get(1).and_then(|scale| scale.first_chunk()).map_or(1.0, |scale| f32::from_le_bytes(*scale));
        let known = decode(self.0, parts[0], scale, decoded);
        debug_assert!(known, "{} is written, so it can be read", self.0);
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        BlockGrid::of(self.0).map(|grid| Box::new(grid) as Box<dyn Grid>)
    }

    fn weighs(&self) -> bool {
        // Of the types that are written, those of single numbers, of eight bits and of FP4 have no search.
        !matches!(self.0, Type::F32 | Type::F16 | Type::Bf16 | Type::Q8_0 | Type::Mxfp4 | Type::Nvfp4)
    }

    fn constants(&self, _matrix: Matrix, peak: f32) -> Vec<Vec<u8>> {
        if self.0 == Type::Nvfp4 { vec![(1.0 / divisor(peak)).to_le_bytes().to_vec()] } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_no_whole_number_of_blocks_are_refused() {
        let matrix = Matrix { rows: 2, columns: 200 };
        assert_eq!(
            GgmlCoding(Type::Q4K).parts(matrix).unwrap_err(),
            "has 200 columns, no multiple of the block of 256"
        );
        assert!(GgmlCoding(Type::I32).parts(Matrix { rows: 2, columns: 256 }).unwrap_err().contains("I32"));
    }

    #[test]
    fn nvfp4_comes_with_the_scale_of_the_tensor() {
        let coding = GgmlCoding(Type::Nvfp4);
        let parts = coding.parts(Matrix { rows: 3, columns: 128 }).unwrap();
        assert_eq!(parts[0].placing, Placing::Rows { rows: 1, bytes: 72 });
        assert_eq!((parts[1].name, parts[1].placing), ("scale", Placing::Once { bytes: 4 }));
        assert!(coding.needs_peak());
        let scale = coding.constants(Matrix { rows: 3, columns: 128 }, 26.88);
        assert_eq!(scale, [(1.0 / divisor(26.88)).to_le_bytes().to_vec()]);
    }

    #[test]
    fn weights_beyond_the_scale_are_counted_and_stay_finite() {
        for ty in Type::ALL.iter().filter(|ty| ty.is_written()) {
            for huge in [1e4, 1e6, 1e8, 1e12, 1e20, 1e30, f32::MAX] {
                let mut values = [0.25f32; 256];
                (values[3], values[200]) = (huge, -huge);
                let mut bytes = vec![0; ty.bytes(256).unwrap() as usize];
                let mut decoded = [0.0; 256];
                for importance in [[1e30; 256], [0.0; 256]] {
                    let importance = Some(&importance[..]);
                    let block = Block { values: &values, columns: 256, peak: huge, importance, chosen: None };
                    GgmlCoding(*ty).encode(block, &mut [&mut bytes], &mut decoded);
                    assert!(decoded.iter().all(|x| x.is_finite()), "{ty} {huge:e} {importance:?}");
                }
                let block = Block { values: &values, columns: 256, peak: huge, importance: None, chosen: None };
                let clipped = GgmlCoding(*ty).encode(block, &mut [&mut bytes], &mut decoded);
                assert_eq!(clipped, if huge > ty.limit().unwrap() { 2 } else { 0 }, "{ty} {huge:e}");
                assert!(decoded.iter().all(|x| x.is_finite()), "{ty} {huge:e}");
                if clipped == 0 {
                    assert!((decoded[3] / huge - 1.0).abs() < 0.3, "{ty} {huge:e} {}", decoded[3]);
                    assert!((decoded[200] / -huge - 1.0).abs() < 0.3, "{ty} {huge:e} {}", decoded[200]);
                }
            }
        }
    }
}
