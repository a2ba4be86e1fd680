//! FP8 E4M3 with an FP32 scale per block of 128 x 128, as transformers' fine-grained FP8 stores it: DeepSeek-V3's and
//! Qwen's releases.
//!
//! `f = 448 / amax`, in FP32 as a reciprocal and a product (PyTorch divides a number by a tensor so); a code is
//! `e4m3(clamp(w f))`, and the stored multiplier `1 / f`, despite its name: `weight_scale_inv`. A block of zeros has a
//! multiplier of one. Blocks at the right and lower edges are cut.

use std::marker::PhantomData;

use super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    element::{E4M3_MAX, e4m3, from_e4m3},
    float8::{SIDE, codes_part, each_side, expand_stripe},
    grid::{E4m3, Element},
    row::{code, peaks},
    scales::{Span, read_scales, write_scales},
};
use crate::{
    Dtype, Method, Result,
    rounding::{F32, clamp},
};

/// FP8 in blocks, with what is multiplied in FP32.
struct FineGrained;

/// The coding.
pub fn coding(method: Method) -> Result<Box<dyn Coding>> {
    method.among(&[Method::Rtn], "HF's fine-grained FP8")?;
    Ok(Box::new(FineGrained))
}

/// A weight times its factor.
#[derive(Clone, Copy)]
struct Times;

impl Element for Times {
    #[inline(always)]
    fn code(self, weight: f32, factor: f32, _zero: f32) -> (u8, bool) {
        let x = weight * factor;
        (e4m3(clamp(x, -E4M3_MAX, E4M3_MAX)), x.abs() > E4M3_MAX + 16.0)
    }

    #[inline(always)]
    fn value(self, code: u8, factor: f32, _zero: f32) -> f32 {
        from_e4m3(code) / factor
    }
}

/// What weights up to `peak` are multiplied with. Below 2^-119 it would be infinite; the largest power of two stands in.
fn factor(peak: f32) -> f32 {
    let factor = if peak > 0.0 { (1.0 / peak) * E4M3_MAX } else { 1.0 };
    factor.min(f32::from_bits(0x7f00_0000))
}

impl Coding for FineGrained {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        Span::Row.groups(matrix.columns)?;
        let (down, across) = (matrix.rows.div_ceil(SIDE), matrix.columns.div_ceil(SIDE));
        let placing = Placing::Rows { rows: SIDE, bytes: across * 4 };
        let scales = Part { name: "weight_scale_inv", dtype: Dtype::F32, shape: vec![down, across], placing };
        Ok(vec![codes_part(matrix), scales])
    }

    fn unit(&self) -> usize {
        SIDE
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [codes, stored] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let across = columns.div_ceil(SIDE);
        let (mut factors, mut found, zeros) = (vec![0.0f32; across], vec![0.0; across], vec![0.0; across]);
        let stripe = SIDE * columns;
        let stripes = block.values.chunks(stripe).zip(codes.chunks_mut(stripe)).zip(decoded.chunks_mut(stripe));
        let mut outside = 0;
        for (((values, codes), decoded), stored) in stripes.zip(stored.chunks_exact_mut(across * 4)) {
            factors.fill(0.0);
            for row in values.chunks_exact(columns) {
                each_side(columns, |at, blocks, length| peaks(&row[at], length, &mut found[blocks]));
                for (factor, found) in factors.iter_mut().zip(&found) {
                    *factor = factor.max(*found);
                }
            }
            for peak in &mut factors {
                *peak = factor(*peak);
            }
            for (row, codes) in values.chunks_exact(columns).zip(codes.chunks_exact_mut(columns)) {
                each_side(columns, |at, blocks, length| {
                    let (row, codes) = (&row[at.clone()], &mut codes[at]);
                    outside += code(Times, row, length, &factors[blocks.clone()], &zeros[blocks], codes);
                });
            }
            for factor in &mut factors {
                *factor = 1.0 / *factor;
            }
            write_scales::<F32>(&factors, stored);
            expand_stripe(E4m3::<F32>(PhantomData), codes, columns, &factors, &zeros, decoded);
        }
        outside
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let across = columns.div_ceil(SIDE);
        let (mut scales, zeros) = (vec![0.0; across], vec![0.0; across]);
        let stripe = SIDE * columns;
        let stored = parts[0].chunks(stripe).zip(parts[1].chunks_exact(across * 4));
        for (decoded, (codes, stored)) in decoded.chunks_mut(stripe).zip(stored) {
            read_scales::<F32>(stored, &mut scales);
            expand_stripe(E4m3::<F32>(PhantomData), codes, columns, &scales, &zeros, decoded);
        }
    }
}
