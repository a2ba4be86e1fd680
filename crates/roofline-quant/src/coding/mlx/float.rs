//! `mxfp4`, `mxfp8` and `nvfp4`: small floating-point numbers with a scale in a byte.
//!
//! The scale is that of `R(amax / 6)`, or of `R(amax / 448)` for eight bits: the next power of two above it, or the
//! nearest E4M3. Codes are the nearest to `w / s`; FP4 takes the smaller of two that are as near, and has no negative zero.

use std::marker::PhantomData;

use roofline_core::Format;

use super::super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    element::{E2M1_MAX, E4M3_MAX, e4m3, from_e2m1, from_e4m3},
    grid::{E4m3, Element},
    packing::{pack_nibbles, unpack_nibbles},
    row::{code, expand, peaks},
    scales::Span,
};
use crate::{
    Dtype,
    kernel_form::{CodesMut, KernelForm},
    rounding::{F32, Rounding, power_of_two},
};

/// A mode of the library.
pub(super) trait Mode: Send + Sync + 'static {
    /// Weights that share a scale.
    const GROUP: usize;
    /// Codes that share a byte.
    const TOGETHER: usize;
    /// The largest number of a code.
    const MAX: f32;
    /// What kernels call it, where there are any.
    const KERNELS: Option<Format>;

    /// How a number is coded.
    fn element() -> impl Element;

    /// The byte of a scale, and the scale of a byte.
    fn byte(scale: f32) -> u8;

    /// What the byte stands for.
    fn scale(byte: u8) -> f32;
}

/// `mxfp4`.
pub(super) struct Four;
/// `mxfp8`.
pub(super) struct Eight;
/// `nvfp4`.
pub(super) struct Nvidia;

/// The byte of the next power of two from `scale` on; one for zero.
fn power_above(scale: f32) -> u8 {
    let bits = scale.to_bits();
    if bits == 0 { 127 } else { ((bits >> 23) + u32::from(bits & 0x007f_ffff != 0)).min(254) as u8 }
}

impl Mode for Four {
    const GROUP: usize = 32;
    const TOGETHER: usize = 2;
    const MAX: f32 = E2M1_MAX;
    const KERNELS: Option<Format> = Some(Format::MXFP4);

    fn element() -> impl Element {
        Smaller
    }

    fn byte(scale: f32) -> u8 {
        power_above(scale)
    }

    fn scale(byte: u8) -> f32 {
        power_of_two(byte)
    }
}

impl Mode for Eight {
    const GROUP: usize = 32;
    const TOGETHER: usize = 1;
    const MAX: f32 = E4M3_MAX;
    const KERNELS: Option<Format> = None;

    fn element() -> impl Element {
        E4m3::<F32>(PhantomData)
    }

    fn byte(scale: f32) -> u8 {
        power_above(scale)
    }

    fn scale(byte: u8) -> f32 {
        power_of_two(byte)
    }
}

impl Mode for Nvidia {
    const GROUP: usize = 16;
    const TOGETHER: usize = 2;
    const MAX: f32 = E2M1_MAX;
    const KERNELS: Option<Format> = Some(Format::NVFP4);

    fn element() -> impl Element {
        Smaller
    }

    fn byte(scale: f32) -> u8 {
        e4m3(scale.min(E4M3_MAX))
    }

    fn scale(byte: u8) -> f32 {
        from_e4m3(byte)
    }
}

/// E2M1 that takes the smaller of two numbers that are as near.
#[derive(Clone, Copy)]
struct Smaller;

impl Element for Smaller {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, _zero: f32) -> (u8, bool) {
        // A scale may be zero where all weights are small.
        let x = if scale == 0.0 { 0.0 } else { weight / scale };
        let magnitude = x.abs();
        let mut code = 0u8;
        for middle in [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0] {
            code += u8::from(magnitude > middle);
        }
        let sign = if x < 0.0 && code > 0 { 8 } else { 0 };
        // The largest numbers are 2 apart.
        (code | sign, magnitude > E2M1_MAX + 1.0)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, _zero: f32) -> f32 {
        from_e2m1(code) * scale
    }
}

/// Weights of a model in `R`, in the mode `M`.
pub(super) struct Floats<M, R>(PhantomData<(M, R)>);

impl<M, R> Floats<M, R> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<M: Mode, R: Rounding> Coding for Floats<M, R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = Span::Group(M::GROUP).groups(columns)?;
        let row = |bytes| Placing::Rows { rows: 1, bytes };
        let bytes = columns / M::TOGETHER;
        Ok(vec![
            Part { name: "weight", dtype: Dtype::U32, shape: vec![rows, bytes / 4], placing: row(bytes) },
            Part { name: "scales", dtype: Dtype::U8, shape: vec![rows, groups], placing: row(groups) },
        ])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [packed, stored] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let groups = columns / M::GROUP;
        // A negative zero leaves the sign of E4M3's zeros alone.
        let (mut scales, zeros, mut codes) = (vec![0.0; groups], vec![-0.0; groups], vec![0; columns]);
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = packed.chunks_exact_mut(columns / M::TOGETHER).zip(stored.chunks_exact_mut(groups));
        let mut outside = 0;
        for ((row, decoded), (packed, stored)) in rows.zip(stored) {
            peaks(row, M::GROUP, &mut scales);
            for (scale, stored) in scales.iter_mut().zip(stored) {
                *stored = M::byte(R::round(*scale / M::MAX));
                *scale = M::scale(*stored);
            }
            outside += code(M::element(), row, M::GROUP, &scales, &zeros, &mut codes);
            if M::TOGETHER == 2 {
                pack_nibbles(&codes, 0, packed);
            } else {
                packed.copy_from_slice(&codes);
            }
            expand(M::element(), &codes, M::GROUP, &scales, &zeros, decoded);
        }
        outside
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let groups = columns / M::GROUP;
        let (mut scales, zeros, mut codes) = (vec![0.0; groups], vec![-0.0; groups], vec![0; columns]);
        let stored = parts[0].chunks_exact(columns / M::TOGETHER).zip(parts[1].chunks_exact(groups));
        for (decoded, (packed, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            for (scale, stored) in scales.iter_mut().zip(stored) {
                *scale = M::scale(*stored);
            }
            if M::TOGETHER == 2 {
                unpack_nibbles(packed, 0, &mut codes);
            } else {
                codes.copy_from_slice(packed);
            }
            expand(M::element(), &codes, M::GROUP, &scales, &zeros, decoded);
        }
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        KernelForm::new(M::KERNELS?, matrix, false)
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        into.codes.copy_from_slice(parts[0]);
        into.scales.copy_from_slice(parts[1]);
        Ok(())
    }

    /// The library's NVFP4 has no scale of the tensor.
    fn tensor_part(&self, _once: &[&[u8]]) -> Vec<u8> {
        if M::KERNELS == Some(Format::NVFP4) { 1f32.to_le_bytes().to_vec() } else { Vec::new() }
    }
}
