//! `affine`: `q = clamp(rint((w - b) / s))`, which stands for `q s + b`.
//!
//! The range of a group gives a scale, negative where the greater magnitude is above zero; the bias is the weight of
//! that magnitude, and the scale is then moved so that zero is a code. Everything is computed in FP32, and `s` and `b`
//! are rounded to the model's type `R` after the codes were found.

use std::marker::PhantomData;

use super::super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    grid::{Element, Elements, Grid},
    packing::{pack_stream, unpack_stream},
    row::{code, expand, extremes, peaks},
    scales::{Span, read_scales, write_scales},
};
use crate::{
    Dtype, Method,
    data::ChosenRows,
    method::search::{importance_of, least_error},
    rounding::{Rounding, clamp, nearest, nearest_byte},
};

/// The least scale of a range.
const LEAST: f32 = 1e-7;

/// Integers with a scale and a bias per group.
pub(super) struct Affine<R> {
    bits: u8,
    group: usize,
    centred: bool,
    method: Method,
    rounding: PhantomData<R>,
}

/// `code s + b`.
#[derive(Clone, Copy)]
struct Linear {
    top: f32,
}

impl Element for Linear {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, bias: f32) -> (u8, bool) {
        let x = (weight - bias) / scale;
        (nearest_byte(clamp(x, 0.0, self.top)), x < -0.5 || x > self.top + 0.5)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, bias: f32) -> f32 {
        f32::from(code) * scale + bias
    }
}

/// The same by the reciprocal, where no library's bytes are to be met.
#[derive(Clone, Copy)]
struct Quick(Linear);

impl Element for Quick {
    #[inline(always)]
    fn code(self, weight: f32, scale: f32, bias: f32) -> (u8, bool) {
        let x = (weight - bias) * (1.0 / scale);
        (nearest_byte(clamp(x, 0.0, self.0.top)), x < -0.5 || x > self.0.top + 0.5)
    }

    #[inline(always)]
    fn value(self, code: u8, scale: f32, bias: f32) -> f32 {
        self.0.value(code, scale, bias)
    }
}

/// The scale and the bias of weights from `low` to `high`, as the library finds them.
fn ranged(low: f32, high: f32, top: f32) -> (f32, f32) {
    let below = low.abs() > high.abs();
    let scale = ((high - low) / top).max(LEAST);
    let (scale, edge) = if below { (scale, low) } else { (-scale, high) };
    let steps = nearest(edge / scale);
    if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
}

/// The stored scale and bias of weights from `low` to `high`, whose first and last are codes.
fn spanned<R: Rounding>(low: f32, high: f32, top: f32) -> (f32, f32) {
    (R::round(((high - low) / top).max(LEAST)), R::round(low))
}

/// The same of integers on both sides of zero, for weights up to `peak` in magnitude.
fn centred<R: Rounding>(peak: f32, top: f32) -> (f32, f32) {
    let rounded = R::round(peak / (top / 2.0));
    let scale = if rounded == 0.0 { R::EPSILON } else { rounded };
    (scale, R::round(-top.midpoint(1.0) * scale))
}

impl<R: Rounding> Affine<R> {
    pub(super) fn new(bits: u8, group: u32, centred: bool, method: Method) -> Self {
        Self { bits, group: group as usize, centred, method, rounding: PhantomData }
    }

    fn linear(&self) -> Linear {
        Linear { top: f32::from(((1u16 << self.bits) - 1) as u8) }
    }

    /// Scales and biases of integers on both sides of zero, as they are stored.
    fn centre(&self, row: &[f32], scales: &mut [f32], biases: &mut [f32]) {
        peaks(row, self.group, scales);
        for (scale, bias) in scales.iter_mut().zip(biases) {
            (*scale, *bias) = centred::<R>(*scale, self.linear().top);
        }
    }

    /// Takes what was chosen for a row. Returns how many of its weights lie outside.
    fn take_row(&self, row: &[f32], taken: ChosenRows<'_>, found: &mut Found) -> u64 {
        let Found { scales, biases, codes } = found;
        scales.copy_from_slice(taken.scales);
        biases.copy_from_slice(taken.zeros);
        let outside = code(self.linear(), row, self.group, scales, biases, codes);
        codes.copy_from_slice(taken.codes);
        outside
    }

    /// Of the ranges cut at several fractions, the one with the least squared error.
    fn search(&self, row: &[f32], importance: &[f32], low: f32, high: f32) -> (f32, f32) {
        let (top, middle) = (self.linear().top, low.midpoint(high));
        let candidates: [(f32, f32); 24] = std::array::from_fn(|at| {
            let part = 1.06 - 0.03 * at as f32;
            spanned::<R>(middle + (low - middle) * part, middle + (high - middle) * part, top)
        });
        let (scales, biases) = (candidates.map(|(scale, _)| scale), candidates.map(|(_, bias)| bias));
        candidates[least_error(Quick(self.linear()), row, importance, &scales, &biases)]
    }

    /// Scales and biases of a row as they are stored, and its codes. Returns how many weights lay outside.
    fn code_row(&self, row: &[f32], importance: Option<&[f32]>, found: &mut Found) -> u64 {
        let Found { scales, biases, codes } = found;
        if self.centred {
            self.centre(row, scales, biases);
            return code(self.linear(), row, self.group, scales, biases, codes);
        }
        extremes(row, self.group, biases, scales);
        if self.method == Method::Mse {
            for (at, row) in row.chunks_exact(self.group).enumerate() {
                let importance = importance_of(importance, at, self.group);
                (scales[at], biases[at]) = self.search(row, importance, biases[at], scales[at]);
            }
            return code(Quick(self.linear()), row, self.group, scales, biases, codes);
        }
        for (scale, bias) in scales.iter_mut().zip(&mut *biases) {
            (*scale, *bias) = ranged(*bias, *scale, self.linear().top);
        }
        let outside = code(self.linear(), row, self.group, scales, biases, codes);
        for number in scales.iter_mut().chain(biases) {
            *number = R::round(*number);
        }
        outside
    }
}

/// What is stored of a row.
struct Found {
    scales: Vec<f32>,
    biases: Vec<f32>,
    codes: Vec<u8>,
}

impl<R: Rounding> Coding for Affine<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = Span::Group(self.group).groups(columns)?;
        // Groups are whole words.
        let words = columns / 32 * usize::from(self.bits);
        let placing = Placing::Rows { rows: 1, bytes: 4 * words };
        Ok(vec![
            Part { name: "weight", dtype: Dtype::U32, shape: vec![rows, words], placing },
            Span::part::<R>("scales", rows, groups),
            Span::part::<R>("biases", rows, groups),
        ])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [packed, scales, biases] = out else { unreachable!("a buffer for each part") };
        let columns = block.columns;
        let groups = columns / self.group;
        let (bytes, size) = (columns / 8 * usize::from(self.bits), groups * R::DTYPE.bytes());
        let mut found = Found { scales: vec![0.0; groups], biases: vec![0.0; groups], codes: vec![0; columns] };
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let beside = scales.chunks_exact_mut(size).zip(biases.chunks_exact_mut(size));
        let mut outside = 0;
        let all = rows.zip(packed.chunks_exact_mut(bytes).zip(beside)).enumerate();
        for (at, ((row, decoded), (packed, (scales, biases)))) in all {
            outside += match block.chosen {
                Some(rows) => self.take_row(row, rows.row(at, columns, groups), &mut found),
                None => self.code_row(row, block.importance, &mut found),
            };
            pack_stream(&found.codes, self.bits, packed);
            write_scales::<R>(&found.scales, scales);
            write_scales::<R>(&found.biases, biases);
            expand(self.linear(), &found.codes, self.group, &found.scales, &found.biases, decoded);
        }
        outside
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        let (element, top, both) = (self.linear(), self.linear().top, self.centred);
        let reach = move |low: f32, high: f32| {
            if both { centred::<R>(high.max(-low), top) } else { spanned::<R>(low, high, top) }
        };
        Some(Box::new(Elements { element, span: Span::Group(self.group), reach }))
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let groups = columns / self.group;
        let (bytes, size) = (columns / 8 * usize::from(self.bits), groups * R::DTYPE.bytes());
        let (mut scales, mut biases, mut codes) = (vec![0.0; groups], vec![0.0; groups], vec![0; columns]);
        let beside = parts[1].chunks_exact(size).zip(parts[2].chunks_exact(size));
        for (decoded, (packed, beside)) in
            decoded.chunks_exact_mut(columns).zip(parts[0].chunks_exact(bytes).zip(beside))
        {
            read_scales::<R>(beside.0, &mut scales);
            read_scales::<R>(beside.1, &mut biases);
            unpack_stream(packed, self.bits, &mut codes);
            expand(self.linear(), &codes, self.group, &scales, &biases, decoded);
        }
    }
}
