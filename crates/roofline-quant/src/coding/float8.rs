//! FP8 E4M3 with a scale per row, per block of 128 x 128 or per matrix, as compressed-tensors stores it: `float-quantized`.
//!
//! `s = amax / 448`, `q = e4m3(clamp(w / s + 0))`, each rounded to the model's type `R`; a scale of zero becomes `R`'s
//! epsilon. Blocks at the right and lower edges are cut, as if the matrix were filled up with zeros.

use std::marker::PhantomData;

use roofline_core::Format;

use super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    element::E4M3_MAX,
    grid::{E4m3, Element},
    row::{code, expand, peaks},
    scales::{Span, read_scales, write_scales},
};
use crate::{
    Dtype, Method,
    kernel_form::{CodesMut, KernelForm},
    method::search::{NEGLIGIBLE, least_error},
    rounding::{Reciprocal, Rounding},
};

/// Rows and columns of a block.
pub(super) const SIDE: usize = 128;

/// FP8 with a scale per row.
pub(crate) struct Float8Rows<R>(Method, PhantomData<R>);

/// FP8 with a scale per block.
pub(crate) struct Float8Blocks<R>(Method, PhantomData<R>);

/// FP8 with one scale.
pub(crate) struct Float8Whole<R>(PhantomData<R>);

impl<R> Float8Whole<R> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R> Float8Rows<R> {
    pub(crate) fn new(method: Method) -> Self {
        Self(method, PhantomData)
    }
}

impl<R: Rounding> Float8Blocks<R> {
    pub(crate) fn new(method: Method) -> Self {
        Self(method, PhantomData)
    }

    /// [`search`] for the block of a stripe of rows that begins at column `first`.
    fn search(peak: f32, stripe: &[f32], columns: usize, first: usize, importance: Option<&[f32]>) -> f32 {
        let here = first..(first + SIDE).min(columns);
        let gather = |row: &[f32]| row[here.clone()].to_vec();
        let values: Vec<f32> = stripe.chunks_exact(columns).flat_map(gather).collect();
        let importance = importance.map_or(Vec::new(), |row| gather(row).repeat(values.len() / here.len()));
        search::<R>(peak, &values, &importance)
    }
}

/// The scale of numbers up to `peak`.
pub(super) fn scale<R: Rounding>(peak: f32) -> f32 {
    let scale = R::round(peak / E4M3_MAX);
    if scale == 0.0 { R::EPSILON } else { scale }
}

/// Of the scales within an octave, the one with the least squared error: twice the scale has the same numbers but for
/// the largest and the smallest.
fn search<R: Rounding>(peak: f32, values: &[f32], importance: &[f32]) -> f32 {
    if peak < NEGLIGIBLE {
        return R::EPSILON;
    }
    let scales: [f32; 12] = std::array::from_fn(|at| R::round(peak / E4M3_MAX * (1.0 + (at as f32 - 1.0) / 12.0)));
    scales[least_error(E4m3::<Reciprocal>(PhantomData), values, importance, &scales, &[0.0; 12])]
}

pub(crate) fn codes_part(matrix: Matrix) -> Part {
    let Matrix { rows, columns } = matrix;
    let placing = Placing::Rows { rows: 1, bytes: columns };
    Part { name: "weight", dtype: Dtype::F8E4M3, shape: vec![rows, columns], placing }
}

impl<R: Rounding> Coding for Float8Rows<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let groups = Span::Row.groups(matrix.columns)?;
        Ok(vec![codes_part(matrix), Span::part::<R>("weight_scale", matrix.rows, groups)])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [codes, scales] = out else { unreachable!("a buffer for each part") };
        let (columns, element) = (block.columns, E4m3::<R>(PhantomData));
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let stored = codes.chunks_exact_mut(columns).zip(scales.chunks_exact_mut(R::DTYPE.bytes()));
        let mut outside = 0;
        for ((row, decoded), (codes, stored)) in rows.zip(stored) {
            let mut factor = [0.0];
            peaks(row, columns, &mut factor);
            let factor = factor.map(|peak| match self.0 {
                Method::Mse => search::<R>(peak, row, block.importance.unwrap_or_default()),
                _ => scale::<R>(peak),
            });
            R::write(factor[0], stored);
            outside += match self.0 {
                Method::Mse => code(E4m3::<Reciprocal>(PhantomData), row, columns, &factor, &[0.0], codes),
                _ => code(element, row, columns, &factor, &[0.0], codes),
            };
            expand(element, codes, columns, &factor, &[0.0], decoded);
        }
        outside
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let stored = parts[0].chunks_exact(columns).zip(parts[1].chunks_exact(R::DTYPE.bytes()));
        for (decoded, (codes, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            expand(E4m3::<R>(PhantomData), codes, columns, &[R::read(stored)], &[0.0], decoded);
        }
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        form::<R>(matrix)
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        arrange::<R>(parts, into);
        Ok(())
    }
}

/// The form of codes with a scale of the type `R` for each row, or one for all.
pub(super) fn form<R: Rounding>(matrix: Matrix) -> Option<KernelForm> {
    KernelForm::new(Format::FP8, matrix, R::DTYPE != Dtype::Bf16)
}

/// Codes and scales into that form.
pub(super) fn arrange<R: Rounding>(parts: &[&[u8]], mut into: CodesMut<'_>) {
    into.codes.copy_from_slice(parts[0]);
    into.scale(R::DTYPE, parts[1]);
}

impl<R: Rounding> Coding for Float8Whole<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        Span::Row.groups(matrix.columns)?;
        let placing = Placing::Once { bytes: R::DTYPE.bytes() };
        Ok(vec![codes_part(matrix), Part { name: "weight_scale", dtype: R::DTYPE, shape: vec![1], placing }])
    }

    fn needs_peak(&self) -> bool {
        true
    }

    fn shares_peak(&self) -> bool {
        false
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let (factor, element) = ([scale::<R>(block.peak)], E4m3::<R>(PhantomData));
        let count = block.values.len();
        let outside = code(element, block.values, count, &factor, &[0.0], out[0]);
        expand(element, out[0], count, &factor, &[0.0], decoded);
        outside
    }

    fn constants(&self, _matrix: Matrix, peak: f32) -> Vec<Vec<u8>> {
        let mut bytes = vec![0; R::DTYPE.bytes()];
        R::write(scale::<R>(peak), &mut bytes);
        vec![bytes]
    }

    fn decode(&self, _columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        expand(E4m3::<R>(PhantomData), parts[0], decoded.len(), &[R::read(parts[1])], &[0.0], decoded);
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        form::<R>(matrix)
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        arrange::<R>(parts, into);
        Ok(())
    }
}

impl<R: Rounding> Coding for Float8Blocks<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        block_parts::<R>("weight_scale", matrix)
    }

    fn unit(&self) -> usize {
        SIDE
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let scale_of = |peak: f32, stripe: &[f32], first: usize| match self.0 {
            Method::Mse => Self::search(peak, stripe, block.columns, first, block.importance),
            _ => scale::<R>(peak),
        };
        let same = |scale: f32| scale;
        match self.0 {
            Method::Mse => encode_blocks::<R>(&block, out, decoded, E4m3::<Reciprocal>(PhantomData), scale_of, same),
            _ => encode_blocks::<R>(&block, out, decoded, E4m3::<R>(PhantomData), scale_of, same),
        }
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        decode_blocks::<R>(columns, parts, decoded);
    }
}

/// The parts of a matrix whose blocks have a scale each, in the type `R`.
pub(super) fn block_parts<R: Rounding>(scales: &'static str, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
    Span::Row.groups(matrix.columns)?;
    let (down, across) = (matrix.rows.div_ceil(SIDE), matrix.columns.div_ceil(SIDE));
    let placing = Placing::Rows { rows: SIDE, bytes: across * R::DTYPE.bytes() };
    Ok(vec![codes_part(matrix), Part { name: scales, dtype: R::DTYPE, shape: vec![down, across], placing }])
}

/// Codes stripes of 128 rows, block by block. `factor` says what a block is coded by, from its largest magnitude, its stripe
/// and its first column; `stored` turns that into the scale that is written, and that codes are multiplied with again.
pub(super) fn encode_blocks<R: Rounding>(
    block: &Block<'_>,
    out: &mut [&mut [u8]],
    decoded: &mut [f32],
    element: impl Element,
    factor: impl Fn(f32, &[f32], usize) -> f32,
    stored: impl Fn(f32) -> f32,
) -> u64 {
    let [codes, scales] = out else { unreachable!("a buffer for each part") };
    let columns = block.columns;
    let across = columns.div_ceil(SIDE);
    let (mut factors, mut found, zeros) = (vec![0.0f32; across], vec![0.0; across], vec![0.0; across]);
    let stripe = SIDE * columns;
    let stripes = block.values.chunks(stripe).zip(codes.chunks_mut(stripe)).zip(decoded.chunks_mut(stripe));
    let mut outside = 0;
    for (((values, codes), decoded), scales) in stripes.zip(scales.chunks_exact_mut(across * R::DTYPE.bytes())) {
        factors.fill(0.0);
        for row in values.chunks_exact(columns) {
            each_side(columns, |at, blocks, length| peaks(&row[at], length, &mut found[blocks]));
            for (peak, found) in factors.iter_mut().zip(&found) {
                *peak = peak.max(*found);
            }
        }
        for (at, peak) in factors.iter_mut().enumerate() {
            *peak = factor(*peak, values, at * SIDE);
        }
        for (row, codes) in values.chunks_exact(columns).zip(codes.chunks_exact_mut(columns)) {
            each_side(columns, |at, blocks, length| {
                let (row, codes) = (&row[at.clone()], &mut codes[at]);
                outside += code(element, row, length, &factors[blocks.clone()], &zeros[blocks], codes);
            });
        }
        for factor in &mut factors {
            *factor = stored(*factor);
        }
        write_scales::<R>(&factors, scales);
        expand_stripe(E4m3::<R>(PhantomData), codes, columns, &factors, &zeros, decoded);
    }
    outside
}

/// What codes in blocks stand for.
pub(super) fn decode_blocks<R: Rounding>(columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
    let across = columns.div_ceil(SIDE);
    let (mut scales, zeros) = (vec![0.0; across], vec![0.0; across]);
    let stripe = SIDE * columns;
    let stored = parts[0].chunks(stripe).zip(parts[1].chunks_exact(across * R::DTYPE.bytes()));
    for (decoded, (codes, stored)) in decoded.chunks_mut(stripe).zip(stored) {
        read_scales::<R>(stored, &mut scales);
        expand_stripe(E4m3::<R>(PhantomData), codes, columns, &scales, &zeros, decoded);
    }
}

/// Calls `body` with the columns, the blocks and the width of the whole blocks of a row, and of the rest.
fn each_side(columns: usize, mut body: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>, usize)) {
    let (whole, rest) = (columns / SIDE, columns % SIDE);
    body(0..whole * SIDE, 0..whole, SIDE);
    if rest > 0 {
        body(whole * SIDE..columns, whole..whole + 1, rest);
    }
}

/// What up to 128 rows of codes stand for.
fn expand_stripe(element: impl Element, codes: &[u8], columns: usize, scales: &[f32], zeros: &[f32], out: &mut [f32]) {
    for (codes, out) in codes.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        each_side(columns, |at, blocks, length| {
            expand(element, &codes[at.clone()], length, &scales[blocks.clone()], &zeros[blocks], &mut out[at]);
        });
    }
}
