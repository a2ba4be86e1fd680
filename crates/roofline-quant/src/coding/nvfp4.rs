//! NVFP4: an E4M3 scale per 16 weights and an FP32 divisor per matrix, as compressed-tensors stores it:
//! `nvfp4-pack-quantized`.
//!
//! The divisor `G = 2688 / amax` maps the largest magnitude of the matrix - and of those that are fused with it, which
//! must share it - to the largest scale times the largest element, 448 * 6. A block's scale is
//! `s = e4m3(clamp(amax16 / 6 * G))`, and a code `e2m1(clamp(w / (s / G) + 0))`; it stands for `code * (s / G)`. Only
//! `amax16 / 6` and `G` are computed in the model's type `R`, the rest in FP32. (PyTorch divides a number by a tensor
//! as a reciprocal and a product, both rounded.)

use std::marker::PhantomData;

use roofline_core::Format;
use roofline_isa::widest;

use super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    element::{E2M1_MAX, E4M3_MAX, e4m3, from_e4m3},
    grid::E2m1,
    packing::{pack_nibbles, unpack_nibbles},
    row::{code, expand, peaks},
    scales::Span,
};
use crate::{
    Dtype, Method,
    kernel_form::{CodesMut, KernelForm},
    method::search::{importance_of, least_error},
    rounding::{F32, Reciprocal, Rounding},
};

/// Weights that share a scale.
const BLOCK: usize = 16;
/// What the library stores for a scale that rounds to zero: 0.125.
const SMALLEST: u8 = 0x20;

/// The smallest E4M3 above zero, 2^-9, and the code of the largest.
const SMALLEST_SCALE: f32 = 0.001_953_125;
const E4M3_MAX_CODE: u8 = 0x7e;

/// NVFP4 of a model in `R`.
pub(crate) struct Nvfp4<R>(Method, PhantomData<R>);

/// What numbers up to `peak` are divided by before their blocks are scaled.
pub(super) fn divisor<R: Rounding>(peak: f32) -> f32 {
    unless_infinite(R::round(R::round(1.0 / peak.max(R::TINY)) * (E4M3_MAX * E2M1_MAX)))
}

fn unless_infinite(divisor: f32) -> f32 {
    if divisor.is_finite() { divisor } else { 1.0 }
}

impl<R: Rounding> Nvfp4<R> {
    pub(crate) fn new(method: Method) -> Self {
        Self(method, PhantomData)
    }

    /// The divisor of a matrix whose magnitudes reach `peak`; one where it would be infinite, which in F16 begins with
    /// magnitudes below 0.041. A method that may choose a larger scale than `amax16 / 6` needs room for it: a scale of
    /// 256 can become one of 384, which is also exact. Its divisor is not rounded.
    fn divisor(&self, peak: f32) -> f32 {
        match self.0 {
            Method::Rtn => divisor::<R>(peak),
            _ => unless_infinite(256.0 * E2M1_MAX / peak.max(R::TINY)),
        }
    }

    /// Replaces the scale codes of a row by those with the least squared error.
    fn search(&self, row: &[f32], importance: Option<&[f32]>, peaks: &[f32], divisor: f32, stored: &mut [u8]) {
        for (at, (peak, stored)) in peaks.iter().zip(stored).enumerate() {
            let nearest = |top: f32| e4m3((peak / top * divisor).clamp(SMALLEST_SCALE, E4M3_MAX));
            let mut codes = [0; 10];
            let codes = if self.0 == Method::FourOverSix {
                codes[..2].copy_from_slice(&[nearest(6.0), nearest(4.0)]);
                &codes[..2]
            } else {
                // The neighbours of the code for six, as far up as the code for four.
                let first = nearest(6.0);
                codes = std::array::from_fn(|step| (first + step as u8).saturating_sub(3).clamp(1, E4M3_MAX_CODE));
                &codes[..]
            };
            let mut scales = [0.0; 10];
            factors(codes, divisor, &mut scales);
            let values = &row[at * BLOCK..][..BLOCK];
            let importance = importance_of(importance, at, BLOCK);
            let scales = &scales[..codes.len()];
            *stored = codes[least_error(E2m1::<Reciprocal>(PhantomData), values, importance, scales, &[0.0; 10])];
        }
    }
}

widest! {
    /// The scale codes of blocks with these largest magnitudes.
    fn scale_codes<R: Rounding>(_rounding: PhantomData<R>, peaks: &[f32], divisor: f32, stored: &mut [u8]) {
        for (peak, stored) in peaks.iter().zip(stored) {
            let scale = R::round(*peak / E2M1_MAX) * divisor;
            let code = e4m3(if scale > E4M3_MAX { E4M3_MAX } else { scale });
            *stored = if code == 0 { SMALLEST } else { code };
        }
    }
}

widest! {
    /// What a code's element is multiplied with.
    fn factors(stored: &[u8], divisor: f32, factors: &mut [f32]) {
        for (stored, factor) in stored.iter().zip(factors) {
            *factor = from_e4m3(*stored) / divisor;
        }
    }
}

impl<R: Rounding> Coding for Nvfp4<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = Span::Group(BLOCK).groups(columns)?;
        let row = |bytes| Placing::Rows { rows: 1, bytes };
        Ok(vec![
            Part { name: "weight_packed", dtype: Dtype::U8, shape: vec![rows, columns / 2], placing: row(columns / 2) },
            Part { name: "weight_scale", dtype: Dtype::F8E4M3, shape: vec![rows, groups], placing: row(groups) },
            Part {
                name: "weight_global_scale",
                dtype: Dtype::F32,
                shape: vec![1],
                placing: Placing::Once { bytes: 4 },
            },
        ])
    }

    fn needs_peak(&self) -> bool {
        true
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [packed, stored, ..] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let groups = columns / BLOCK;
        let divisor = self.divisor(block.peak);
        let (mut scales, zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = packed.chunks_exact_mut(columns / 2).zip(stored.chunks_exact_mut(groups));
        let mut outside = 0;
        for ((row, decoded), (packed, stored)) in rows.zip(stored) {
            peaks(row, BLOCK, &mut scales);
            scale_codes(PhantomData::<R>, &scales, divisor, stored);
            if self.0 != Method::Rtn {
                self.search(row, block.importance, &scales, divisor, stored);
            }
            factors(stored, divisor, &mut scales);
            outside += code(E2m1::<F32>(PhantomData), row, BLOCK, &scales, &zeros, &mut codes);
            pack_nibbles(&codes, 0, packed);
            expand(E2m1::<F32>(PhantomData), &codes, BLOCK, &scales, &zeros, decoded);
        }
        outside
    }

    fn constants(&self, _matrix: Matrix, peak: f32) -> Vec<Vec<u8>> {
        vec![self.divisor(peak).to_le_bytes().to_vec()]
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let groups = columns / BLOCK;
        let divisor = F32::read(parts[2]);
        let (mut scales, zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let stored = parts[0].chunks_exact(columns / 2).zip(parts[1].chunks_exact(groups));
        for (decoded, (packed, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            factors(stored, divisor, &mut scales);
            unpack_nibbles(packed, 0, &mut codes);
            expand(E2m1::<F32>(PhantomData), &codes, BLOCK, &scales, &zeros, decoded);
        }
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        KernelForm::new(Format::NVFP4, matrix, false)
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        into.codes.copy_from_slice(parts[0]);
        into.scales.copy_from_slice(parts[1]);
        Ok(())
    }

    /// Kernels multiply by what the library divides by.
    fn tensor_part(&self, once: &[&[u8]]) -> Vec<u8> {
        (1.0 / F32::read(once[0])).to_le_bytes().to_vec()
    }
}
