//! OCP Microscaling: a power of two per 32 weights, as compressed-tensors stores it: `mxfp4-pack-quantized` and
//! `mxfp8-quantized`.
//!
//! The exponent of the largest magnitude, one more from a mantissa of 1.75 on, less the exponent of the element's
//! largest number: `w / 2^e` is then below 7 for FP4, of which all above 6 is clamped, and below 448 for FP8. The power
//! is rounded to the model's type `R`, whose zero becomes one.

use std::marker::PhantomData;

use roofline_core::Format;

use super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    grid::{E2m1, E4m3, Element},
    packing::{pack_nibbles, unpack_nibbles},
    row::{code, expand, peaks},
    scales::Span,
};
use crate::{
    Dtype, Method,
    kernel_form::{CodesMut, KernelForm},
    method::search::{importance_of, least_error},
    rounding::{Reciprocal, Rounding, power_of_two},
};

/// Weights that share a power of two.
const BLOCK: usize = 32;

/// The element of a Microscaling format.
pub(crate) trait Micro: Send + Sync + 'static {
    /// The exponent of the largest number.
    const EXPONENT: i32;
    /// How many codes share a byte.
    const TOGETHER: usize;
    /// The tensor of codes.
    const NAME: &'static str;
    /// Its type.
    const DTYPE: Dtype;
    /// What kernels call it, where there are any.
    const KERNELS: Option<Format>;

    /// How it is coded in the arithmetic of `R`.
    fn element<R: Rounding>() -> impl Element;
}

/// MXFP4.
pub(crate) struct Four;
/// MXFP8 with E4M3.
pub(crate) struct Eight;

impl Micro for Four {
    const EXPONENT: i32 = 2;
    const TOGETHER: usize = 2;
    const NAME: &'static str = "weight_packed";
    const DTYPE: Dtype = Dtype::U8;
    const KERNELS: Option<Format> = Some(Format::MXFP4);

    fn element<R: Rounding>() -> impl Element {
        E2m1::<R>(PhantomData)
    }
}

impl Micro for Eight {
    const EXPONENT: i32 = 8;
    const TOGETHER: usize = 1;
    const NAME: &'static str = "weight";
    const DTYPE: Dtype = Dtype::F8E4M3;
    const KERNELS: Option<Format> = None;

    fn element<R: Rounding>() -> impl Element {
        E4m3::<R>(PhantomData)
    }
}

/// Elements `M` of a model in `R`.
pub(crate) struct Microscaled<M, R>(Method, PhantomData<(M, R)>);

impl<M, R> Microscaled<M, R> {
    pub(crate) fn new(method: Method) -> Self {
        Self(method, PhantomData)
    }
}

/// The E8M0 byte for weights up to `peak`.
pub(crate) fn exponent<M: Micro, R: Rounding>(peak: f32) -> u8 {
    let byte = (R::exponent(peak) - M::EXPONENT).clamp(0, 254) as u8;
    if R::round(power_of_two(byte)) == 0.0 { 127 } else { byte }
}

/// Of that byte and its neighbours, the one with the least squared error.
fn search<M: Micro>(first: u8, values: &[f32], importance: &[f32]) -> u8 {
    // Nothing is gained at the ends, where reciprocals or the scales themselves are infinite.
    if !(8..254).contains(&first) {
        return first;
    }
    let bytes = [first, first - 1, first + 1];
    let scales = bytes.map(power_of_two);
    bytes[least_error(M::element::<Reciprocal>(), values, importance, &scales, &[0.0; 3])]
}

impl<M: Micro, R: Rounding> Coding for Microscaled<M, R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = Span::Group(BLOCK).groups(columns)?;
        let wide = columns / M::TOGETHER;
        let row = |bytes| Placing::Rows { rows: 1, bytes };
        Ok(vec![
            Part { name: M::NAME, dtype: M::DTYPE, shape: vec![rows, wide], placing: row(wide) },
            Part { name: "weight_scale", dtype: Dtype::U8, shape: vec![rows, groups], placing: row(groups) },
        ])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [packed, stored] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let groups = columns / BLOCK;
        let (mut scales, zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = packed.chunks_exact_mut(columns / M::TOGETHER).zip(stored.chunks_exact_mut(groups));
        let mut outside = 0;
        for ((row, decoded), (packed, stored)) in rows.zip(stored) {
            peaks(row, BLOCK, &mut scales);
            for (at, (scale, stored)) in scales.iter_mut().zip(stored).enumerate() {
                *stored = exponent::<M, R>(*scale);
                if self.0 == Method::Mse {
                    let importance = importance_of(block.importance, at, BLOCK);
                    *stored = search::<M>(*stored, &row[at * BLOCK..][..BLOCK], importance);
                }
                *scale = power_of_two(*stored);
            }
            outside += code(M::element::<R>(), row, BLOCK, &scales, &zeros, &mut codes);
            if M::TOGETHER == 2 {
                pack_nibbles(&codes, 0, packed);
            } else {
                packed.copy_from_slice(&codes);
            }
            expand(M::element::<R>(), &codes, BLOCK, &scales, &zeros, decoded);
        }
        outside
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let groups = columns / BLOCK;
        let (mut scales, zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let stored = parts[0].chunks_exact(columns / M::TOGETHER).zip(parts[1].chunks_exact(groups));
        for (decoded, (packed, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            for (scale, stored) in scales.iter_mut().zip(stored) {
                *scale = power_of_two(*stored);
            }
            if M::TOGETHER == 2 {
                unpack_nibbles(packed, 0, &mut codes);
            } else {
                codes.copy_from_slice(packed);
            }
            expand(M::element::<R>(), &codes, BLOCK, &scales, &zeros, decoded);
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
}
