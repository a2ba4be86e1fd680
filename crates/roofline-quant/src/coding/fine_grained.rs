//! FP8 E4M3 with an FP32 scale per block of 128 x 128, as transformers' fine-grained FP8 stores it: DeepSeek-V3's and
//! Qwen's releases.
//!
//! `f = 448 / amax`, in FP32 as a reciprocal and a product (PyTorch divides a number by a tensor so); a code is
//! `e4m3(clamp(w f))`, and the stored multiplier `1 / f`, despite its name: `weight_scale_inv`. A block of zeros has a
//! multiplier of one. Blocks at the right and lower edges are cut.

use super::{
    Block, Coding, Matrix, Part, Unsuited,
    element::{E4M3_MAX, e4m3, from_e4m3},
    float8::{SIDE, block_parts, decode_blocks, encode_blocks},
    grid::Element,
};
use crate::{
    Method, Result,
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
        block_parts::<F32>("weight_scale_inv", matrix)
    }

    fn unit(&self) -> usize {
        SIDE
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        encode_blocks::<F32>(&block, out, decoded, Times, |peak, _, _| factor(peak), |factor| 1.0 / factor)
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        decode_blocks::<F32>(columns, parts, decoded);
    }
}
