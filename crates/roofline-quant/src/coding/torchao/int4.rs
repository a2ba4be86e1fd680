//! `Int4Tensor`, plain: `s = max(max - min, 1e-6) / 15`, `q = clamp(rint((w - min) / s), 0, 15) - 8` in FP32. Stored are
//! `s` and the value of code zero, `z = min + 8 s`, both in the model's type `R`; a code stands for `q * s + z`.

use std::marker::PhantomData;

use super::super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    grid::{Element, Elements, Grid},
    packing::{extend_sign, pack_nibbles, unpack_nibbles},
    row::{code, expand, extremes},
    scales::Span,
};
use crate::{
    Dtype, Method,
    kernel_form::{CodesMut, KernelForm, int4, repeat},
    method::{
        half_quadratic::{objective, refine_zero},
        search::{importance_of, least_error},
    },
    rounding::{Rounding, clamp, nearest_byte},
};

/// Four bits with a scale and a zero point per group.
pub(super) struct Int4<R> {
    group: usize,
    method: Method,
    rounding: PhantomData<R>,
}

/// Codes under the stored scale and zero point.
#[derive(Clone, Copy)]
struct StoredScale;

impl Element for StoredScale {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, zero: f32) -> (u8, bool) {
        let x = (weight - zero) * (1.0 / scale);
        (nearest_byte(clamp(x, -8.0, 7.0)), !(-8.5..=7.5).contains(&x))
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, zero: f32) -> f32 {
        f32::from(code as i8) * scale + zero
    }
}

/// Codes as the library finds them: under the scale and the least weight before they are rounded.
#[derive(Clone, Copy)]
struct Unrounded;

impl Element for Unrounded {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, least: f32) -> (u8, bool) {
        let x = (weight - least) / scale;
        (nearest_byte(clamp(x, 0.0, 15.0)).wrapping_sub(8), !(-0.5..=15.5).contains(&x))
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, least: f32) -> f32 {
        (f32::from(code as i8) + 8.0) * scale + least
    }
}

/// The scale of weights between `low` and `high`.
fn scale(low: f32, high: f32) -> f32 {
    (high - low).max(1e-6) / 15.0
}

impl<R: Rounding> Int4<R> {
    pub(super) fn new(group: u32, method: Method) -> Self {
        Self { group: group as usize, method, rounding: PhantomData }
    }

    /// The stored scale and zero point of weights between `low` and `high`. No type rounds the least scale,
    /// 1e-6 / 15, to zero.
    fn stored(low: f32, high: f32) -> (f32, f32) {
        let scale = scale(low, high);
        (R::round(scale), R::round(low + scale * 8.0))
    }

    /// Of the scales and zero points for weights clipped at several fractions of their ends, the best.
    fn search(row: &[f32], importance: &[f32], low: f32, high: f32) -> (f32, f32) {
        let middle = low.midpoint(high);
        let candidates: [(f32, f32); 24] = std::array::from_fn(|at| {
            let part = 1.06 - 0.02 * at as f32;
            Self::stored(middle + (low - middle) * part, middle + (high - middle) * part)
        });
        let (scales, zeros) = (candidates.map(|(scale, _)| scale), candidates.map(|(_, zero)| zero));
        candidates[least_error(StoredScale, row, importance, &scales, &zeros)]
    }

    /// Codes one group; returns its scale, its zero point and how many weights lay outside.
    fn code_group(&self, row: &[f32], importance: &[f32], low: f32, high: f32, codes: &mut [u8]) -> (f32, f32, u64) {
        let (scale, zero) = Self::stored(low, high);
        let group = row.len();
        if self.method == Method::Mse {
            let (scale, zero) = Self::search(row, importance, low, high);
            return (scale, zero, code(StoredScale, row, group, &[scale], &[zero], codes));
        }
        let unrounded = self::scale(low, high);
        let outside = code(Unrounded, row, group, &[unrounded], &[low], codes);
        if self.method == Method::Hqq {
            let (mut decoded, mut moved) = (vec![0.0; group], vec![0; group]);
            expand(StoredScale, codes, group, &[scale], &[zero], &mut decoded);
            let least = objective(row, &decoded);
            let found = R::round(refine_zero(row, scale, zero, 7.0));
            let beyond = code(StoredScale, row, group, &[scale], &[found], &mut moved);
            expand(StoredScale, &moved, group, &[scale], &[found], &mut decoded);
            if objective(row, &decoded) < least {
                codes.copy_from_slice(&moved);
                return (scale, found, beyond);
            }
        }
        (scale, zero, outside)
    }
}

impl<R: Rounding> Coding for Int4<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = Span::Group(self.group).groups(columns)?;
        if !columns.is_multiple_of(2) {
            return Err(format!("has {columns} columns, an odd number, and two share a byte"));
        }
        let placing = Placing::Rows { rows: 1, bytes: columns / 2 };
        let codes = Part { name: "qdata", dtype: Dtype::I8, shape: vec![rows, columns / 2], placing };
        let transposed = |name| {
            let placing = Placing::Columns { lines: groups, rows: 1, bytes: R::DTYPE.bytes() };
            Part { name, dtype: R::DTYPE, shape: vec![groups, rows], placing }
        };
        Ok(vec![codes, transposed("scale"), transposed("zero_point")])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [packed, scales_out, zeros_out] = out else { unreachable!("a buffer for each part") };
        let (columns, rows, group) = (block.columns, block.rows(), self.group);
        let (groups, bytes) = (columns / group, R::DTYPE.bytes());
        let (mut lows, mut highs) = (vec![0.0; groups], vec![0.0; groups]);
        let (mut scales, mut zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let mut outside = 0;
        let all = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        for (at, ((row, decoded), packed)) in all.zip(packed.chunks_exact_mut(columns / 2)).enumerate() {
            extremes(row, group, &mut lows, &mut highs);
            for (line, (row, codes)) in row.chunks_exact(group).zip(codes.chunks_exact_mut(group)).enumerate() {
                let (scale, zero, beyond) = if let Some(taken) = block.chosen {
                    let (scale, zero) = (taken.scales[at * groups + line], taken.zeros[at * groups + line]);
                    let beyond = code(StoredScale, row, group, &[scale], &[zero], codes);
                    codes.copy_from_slice(&taken.codes[at * columns + line * group..][..group]);
                    (scale, zero, beyond)
                } else {
                    let importance = importance_of(block.importance, line, group);
                    self.code_group(row, importance, lows[line], highs[line], codes)
                };
                outside += beyond;
                (scales[line], zeros[line]) = (scale, zero);
                let place = (line * rows + at) * bytes..(line * rows + at + 1) * bytes;
                R::write(scale, &mut scales_out[place.clone()]);
                R::write(zero, &mut zeros_out[place]);
            }
            pack_nibbles(&codes, 0, packed);
            expand(StoredScale, &codes, group, &scales, &zeros, decoded);
        }
        outside
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        Some(Box::new(Elements { element: StoredScale, span: Span::Group(self.group), reach: Self::stored }))
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let (rows, groups, bytes) = (decoded.len() / columns, columns / self.group, R::DTYPE.bytes());
        let (mut scales, mut zeros, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        for (at, (decoded, packed)) in
            decoded.chunks_exact_mut(columns).zip(parts[0].chunks_exact(columns / 2)).enumerate()
        {
            for (line, (scale, zero)) in scales.iter_mut().zip(&mut zeros).enumerate() {
                let place = (line * rows + at) * bytes..(line * rows + at + 1) * bytes;
                *scale = R::read(&parts[1][place.clone()]);
                *zero = R::read(&parts[2][place]);
            }
            unpack_nibbles(packed, 0, &mut codes);
            extend_sign(&mut codes);
            expand(StoredScale, &codes, self.group, &scales, &zeros, decoded);
        }
    }

    /// Zero points are what the middle code stands for, in BF16, as kernels have it.
    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        let format = int4(Span::Group(self.group), "-zp16").filter(|_| R::DTYPE == Dtype::Bf16)?;
        KernelForm::new(format, matrix, false)
    }

    fn arrange(&self, columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> Result<(), Unsuited> {
        for (code, stored) in into.codes.iter_mut().zip(parts[0]) {
            *code = stored ^ 0x88;
        }
        let (rows, groups) = (into.rows, columns / self.group);
        for (out, part) in [(into.scales, parts[1]), (into.zeros, parts[2])] {
            let stored = part.as_chunks::<2>().0;
            let wide = out.len() / rows.max(1);
            let mut row = vec![[0; 2]; groups];
            for (at, out) in out.chunks_exact_mut(wide).enumerate() {
                row.iter_mut().enumerate().for_each(|(line, to)| *to = stored[line * rows + at]);
                repeat(&row, out.as_chunks_mut::<2>().0);
            }
        }
        Ok(())
    }
}
