//! Integers with a scale per group or per row, as compressed-tensors stores them: `pack-quantized` and
//! `int-quantized`.
//!
//! Symmetric: `s = amax / ((2^b - 1) / 2)`, `q = rint(clamp(w / s))`. With zero points: `s = (max - min) / (2^b - 1)`,
//! `z = rint(clamp(-2^(b-1) - min / s))`, `q = rint(clamp(w / s + z))`. Zero is always within min and max. Every
//! result is rounded to the model's type `R` before the next step; a scale of zero becomes `R`'s epsilon.

use std::marker::PhantomData;

use roofline_core::Format;

use super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    grid::{Asymmetric, Elements, Grid, Symmetric, clippings},
    packing::{pack_words, unpack_words, word_bytes},
    row::{code, expand, peaks, ranges},
    scales::{Span, read_scales, write_scales},
};
use crate::{
    Dtype, Method,
    data::ChosenRows,
    kernel_form::{CodesMut, KernelForm, int4, narrow, repeat},
    method::{
        half_quadratic::{objective, refine_zero},
        search::{NEGLIGIBLE, importance_of, least_error},
    },
    rounding::{F32, Reciprocal, Rounding, clamp, nearest},
};

/// Integers of 4 or 8 bits.
pub(crate) struct Integers<R> {
    bits: u8,
    span: Span,
    zero: bool,
    /// Whether codes are packed in words; else one byte each.
    packed: bool,
    method: Method,
    rounding: PhantomData<R>,
}

impl<R: Rounding> Integers<R> {
    /// `pack-quantized`.
    pub(crate) fn packed(bits: u8, group: Option<u32>, zero: bool, method: Method) -> Self {
        Self { bits, span: Span::new(group), zero, packed: true, method, rounding: PhantomData }
    }

    /// `int-quantized`: a byte for each code, whatever its width, with a scale per row or group.
    pub(crate) fn bytes(bits: u8, group: Option<u32>, method: Method) -> Self {
        Self { bits, span: Span::new(group), zero: false, packed: false, method, rounding: PhantomData }
    }

    fn row_bytes(&self, columns: usize) -> usize {
        if self.packed { word_bytes(columns, self.bits) } else { columns }
    }

    /// Rows whose zero points share a word.
    fn rows_per_word(&self) -> usize {
        32 / usize::from(self.bits)
    }

    /// The scales, and zero points, of a row, rounded to nearest.
    fn choose(&self, row: &[f32], group: usize, scales: &mut [f32], zeros: &mut [f32]) {
        let steps = steps(self.bits);
        if self.zero {
            ranges(row, group, zeros, scales);
            for (scale, zero) in scales.iter_mut().zip(zeros) {
                (*scale, *zero) = shifted::<R>(*zero, *scale, steps);
            }
        } else {
            peaks(row, group, scales);
            for scale in scales {
                *scale = symmetric::<R>(*scale, steps);
            }
        }
    }

    /// Of the scales for weights clipped at several fractions of the largest, those with the least squared error.
    fn search(&self, row: &[f32], importance: Option<&[f32]>, group: usize, scales: &mut [f32], zeros: &mut [f32]) {
        let steps = steps(self.bits);
        let (mut lows, mut highs) = (vec![0.0; scales.len()], vec![0.0; scales.len()]);
        ranges(row, group, &mut lows, &mut highs);
        for (at, (row, (low, high))) in row.chunks_exact(group).zip(lows.iter().zip(&highs)).enumerate() {
            let peak = high.max(-low);
            if peak < NEGLIGIBLE {
                (scales[at], zeros[at]) = (R::EPSILON, 0.0);
                continue;
            }
            let importance = importance_of(importance, at, group);
            let candidates = clippings().map(|part| {
                if self.zero {
                    shifted::<R>(low * part, high * part, steps)
                } else {
                    (symmetric::<R>(peak * part, steps), 0.0)
                }
            });
            let (found, shifts) = (candidates.map(|(scale, _)| scale), candidates.map(|(_, zero)| zero));
            let best = if self.zero {
                least_error(Asymmetric::<Reciprocal>::new(self.bits), row, importance, &found, &shifts)
            } else {
                least_error(Symmetric::<Reciprocal>::new(self.bits), row, importance, &found, &shifts)
            };
            (scales[at], zeros[at]) = candidates[best];
        }
    }

    /// The scales, zero points and codes of a row. Returns how many weights lay outside.
    fn code_row(&self, row: &[f32], importance: Option<&[f32]>, group: usize, chosen: &mut Chosen) -> u64 {
        let Chosen { scales, zeros, codes } = chosen;
        if self.method == Method::Mse {
            self.search(row, importance, group, scales, zeros);
            return if self.zero {
                code(Asymmetric::<Reciprocal>::new(self.bits), row, group, scales, zeros, codes)
            } else {
                code(Symmetric::<Reciprocal>::new(self.bits), row, group, scales, zeros, codes)
            };
        }
        self.choose(row, group, scales, zeros);
        if !self.zero {
            return code(Symmetric::<R>::new(self.bits), row, group, scales, zeros, codes);
        }
        let outside = code(Asymmetric::<R>::new(self.bits), row, group, scales, zeros, codes);
        if self.method == Method::Hqq { self.move_zeros(row, group, chosen) } else { outside }
    }

    /// Takes what was chosen for a row. Returns how many of its weights lie outside.
    fn take_row(&self, row: &[f32], taken: ChosenRows<'_>, group: usize, chosen: &mut Chosen) -> u64 {
        chosen.scales.copy_from_slice(taken.scales);
        chosen.zeros.copy_from_slice(taken.zeros);
        let Chosen { scales, zeros, codes } = chosen;
        let outside = if self.zero {
            code(Asymmetric::<F32>::new(self.bits), row, group, scales, zeros, codes)
        } else {
            code(Symmetric::<F32>::new(self.bits), row, group, scales, zeros, codes)
        };
        codes.copy_from_slice(taken.codes);
        outside
    }

    /// Moves the zero points where that lowers the objective of half-quadratic quantization.
    fn move_zeros(&self, row: &[f32], group: usize, chosen: &mut Chosen) -> u64 {
        let high = f32::from((1u8 << (self.bits - 1)) - 1);
        let (exact, moved) = (Asymmetric::<R>::new(self.bits), Asymmetric::<F32>::new(self.bits));
        let (mut codes, mut decoded) = (vec![0; group], vec![0.0; group]);
        let mut outside = 0;
        for (at, row) in row.chunks_exact(group).enumerate() {
            let (scale, zero) = ([chosen.scales[at]], chosen.zeros[at]);
            let kept = &mut chosen.codes[at * group..][..group];
            let mut count = code(exact, row, group, &scale, &[zero], kept);
            expand(exact, kept, group, &scale, &[zero], &mut decoded);
            let mut least = objective(row, &decoded);
            if least == 0.0 || scale[0] < NEGLIGIBLE {
                outside += count;
                continue;
            }
            let found = -refine_zero(row, scale[0], -zero * scale[0], high) / scale[0];
            let found = nearest(clamp(found, -high - 1.0, high));
            for candidate in [zero, found - 1.0, found, found + 1.0] {
                let candidate = [clamp(candidate, -high - 1.0, high)];
                let beyond = code(moved, row, group, &scale, &candidate, &mut codes);
                expand(moved, &codes, group, &scale, &candidate, &mut decoded);
                let error = objective(row, &decoded);
                if error < least {
                    (least, count) = (error, beyond);
                    chosen.zeros[at] = candidate[0];
                    kept.copy_from_slice(&codes);
                }
            }
            outside += count;
        }
        outside
    }

    fn decode_row(&self, codes: &[u8], group: usize, scales: &[f32], zeros: &[f32], decoded: &mut [f32]) {
        if self.zero {
            expand(Asymmetric::<R>::new(self.bits), codes, group, scales, zeros, decoded);
        } else {
            expand(Symmetric::<R>::new(self.bits), codes, group, scales, zeros, decoded);
        }
    }
}

/// What is stored of a row.
struct Chosen {
    scales: Vec<f32>,
    zeros: Vec<f32>,
    codes: Vec<u8>,
}

/// A scale that can be divided by.
fn unless_zero<R: Rounding>(scale: f32) -> f32 {
    if scale == 0.0 { R::EPSILON } else { scale }
}

/// Steps between the first code and the last.
fn steps(bits: u8) -> f32 {
    f32::from(((1u16 << bits) - 1) as u8)
}

/// The scale of weights up to `peak` in magnitude.
fn symmetric<R: Rounding>(peak: f32, steps: f32) -> f32 {
    unless_zero::<R>(R::round(peak / (steps / 2.0)))
}

/// The scale and the zero point of weights between `low <= 0` and `high >= 0`, with `steps` steps between the first
/// code and the last.
fn shifted<R: Rounding>(low: f32, high: f32, steps: f32) -> (f32, f32) {
    let scale = R::round(R::round(high - low) / steps);
    let first = -steps.midpoint(1.0);
    let zero = if scale == 0.0 {
        // The library divides by zero here: infinity is clamped, and what is not a number becomes zero.
        if low < 0.0 { first + steps } else { 0.0 }
    } else {
        nearest(clamp(R::round(first - R::round(low / scale)), first, first + steps))
    };
    (unless_zero::<R>(scale), zero)
}

impl<R: Rounding> Coding for Integers<R> {
    fn parts(&self, matrix: Matrix) -> Result<Vec<Part>, Unsuited> {
        let Matrix { rows, columns } = matrix;
        let groups = self.span.groups(columns)?;
        let bytes = self.row_bytes(columns);
        let (name, dtype, wide) =
            if self.packed { ("weight_packed", Dtype::I32, bytes / 4) } else { ("weight", Dtype::I8, bytes) };
        let mut parts = vec![
            Part { name, dtype, shape: vec![rows, wide], placing: Placing::Rows { rows: 1, bytes } },
            Span::part::<R>("weight_scale", rows, groups),
        ];
        if self.zero {
            let together = self.rows_per_word();
            parts.push(Part {
                name: "weight_zero_point",
                dtype: Dtype::I32,
                shape: vec![rows.div_ceil(together), groups],
                placing: Placing::Rows { rows: together, bytes: 4 * groups },
            });
        }
        if self.packed {
            let placing = Placing::Once { bytes: 16 };
            parts.push(Part { name: "weight_shape", dtype: Dtype::I64, shape: vec![2], placing });
        }
        Ok(parts)
    }

    fn unit(&self) -> usize {
        if self.zero { self.rows_per_word() } else { 1 }
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let columns = block.columns;
        let group = self.span.length(columns);
        let groups = columns / group;
        let row_bytes = self.row_bytes(columns);
        let scale_bytes = groups * R::DTYPE.bytes();
        let mut chosen = Chosen { scales: vec![0.0; groups], zeros: vec![0.0; groups], codes: vec![0; columns] };
        let mut outside = 0;
        if self.zero {
            out[2].fill(0);
        }
        for (at, (row, decoded)) in
            block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns)).enumerate()
        {
            outside += match block.chosen {
                Some(rows) => self.take_row(row, rows.row(at, columns, groups), group, &mut chosen),
                None => self.code_row(row, block.importance, group, &mut chosen),
            };
            let Chosen { scales, zeros, codes } = &chosen;
            let packed = &mut out[0][at * row_bytes..][..row_bytes];
            if self.packed {
                pack_words(codes, self.bits, packed);
            } else {
                packed.copy_from_slice(codes);
            }
            write_scales::<R>(scales, &mut out[1][at * scale_bytes..][..scale_bytes]);
            if self.zero {
                self.pack_zeros(at, zeros, out[2]);
            }
            self.decode_row(codes, group, scales, zeros, decoded);
        }
        outside
    }

    fn constants(&self, matrix: Matrix, _peak: f32) -> Vec<Vec<u8>> {
        let shape = [matrix.rows as i64, matrix.columns as i64];
        if self.packed { vec![shape.map(i64::to_le_bytes).concat()] } else { Vec::new() }
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let group = self.span.length(columns);
        let groups = columns / group;
        let row_bytes = self.row_bytes(columns);
        let scale_bytes = groups * R::DTYPE.bytes();
        let (mut scales, mut zeros) = (vec![0.0; groups], vec![0.0; groups]);
        let mut codes = vec![0; columns];
        for (at, decoded) in decoded.chunks_exact_mut(columns).enumerate() {
            let packed = &parts[0][at * row_bytes..][..row_bytes];
            if self.packed {
                unpack_words(packed, self.bits, &mut codes);
            } else {
                codes.copy_from_slice(packed);
            }
            read_scales::<R>(&parts[1][at * scale_bytes..][..scale_bytes], &mut scales);
            if self.zero {
                self.unpack_zeros(at, parts[2], &mut zeros);
            }
            self.decode_row(&codes, group, &scales, &zeros, decoded);
        }
    }

    fn grid(&self) -> Option<Box<dyn Grid>> {
        let (bits, span) = (self.bits, self.span);
        let steps = steps(bits);
        Some(if self.zero {
            let reach = move |low: f32, high: f32| shifted::<R>(low, high, steps);
            Box::new(Elements { element: Asymmetric::<F32>::new(bits), span, reach })
        } else {
            let reach = move |low: f32, high: f32| (symmetric::<R>(high.max(-low), steps), 0.0);
            Box::new(Elements { element: Symmetric::<F32>::new(bits), span, reach })
        })
    }

    /// Scales that BF16 cannot say can stand beside rows, not beside groups.
    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        let narrow = R::DTYPE == Dtype::Bf16;
        let format = match (self.bits, self.span) {
            (8, Span::Row) if !self.zero => Format::INT8,
            (4, span) if narrow || span == Span::Row => int4(span, if self.zero { "-zp" } else { "" })?,
            _ => return None,
        };
        KernelForm::new(format, matrix, !narrow)
    }

    fn arrange(&self, columns: usize, parts: &[&[u8]], mut into: CodesMut<'_>) -> Result<(), Unsuited> {
        let row_bytes = self.row_bytes(columns);
        let wide = into.codes.len() / into.rows.max(1);
        // Words hold codes with half the range added, as kernels want them where there are zero points.
        let flip = match (self.packed, self.bits, self.zero) {
            (true, 4, false) => 0x88,
            (true, 8, false) => 0x80,
            _ => 0,
        };
        for (codes, stored) in into.codes.chunks_exact_mut(wide).zip(parts[0].chunks_exact(row_bytes)) {
            if self.bits == 4 && !self.packed {
                narrow(stored, 0, codes)?;
                continue;
            }
            for (code, stored) in codes.iter_mut().zip(stored) {
                *code = stored ^ flip;
            }
            if let Some(last) = codes.last_mut().filter(|_| self.bits == 4 && !columns.is_multiple_of(2)) {
                *last &= 15;
            }
        }
        into.scale(R::DTYPE, parts[1]);
        if self.zero {
            let mut zeros = vec![0.0; columns / self.span.length(columns)];
            let groups = into.scales.len() / 2 / into.rows.max(1);
            let (mut stored, mut spread) = (vec![0; zeros.len()], vec![0; groups]);
            for (at, out) in into.zeros.chunks_exact_mut(groups.div_ceil(2)).enumerate() {
                self.unpack_zeros(at, parts[2], &mut zeros);
                stored.iter_mut().zip(&zeros).for_each(|(code, zero)| *code = *zero as i8 as u8);
                repeat(&stored, &mut spread);
                narrow(&spread, 0x88, out)?;
            }
        }
        Ok(())
    }
}

/// Zero points run down the columns of their tensor: a word holds one group of 8 rows of 4 bits, or 4 rows of 8.
impl<R: Rounding> Integers<R> {
    fn pack_zeros(&self, row: usize, zeros: &[f32], words: &mut [u8]) {
        let (word, shift) = self.place(row);
        let words = words[word * 4 * zeros.len()..].chunks_exact_mut(4);
        for (word, zero) in words.zip(zeros) {
            let code = (*zero as i32 + (1 << (self.bits - 1))) as u32;
            for (byte, bits) in word.iter_mut().zip((code << shift).to_le_bytes()) {
                *byte |= bits;
            }
        }
    }

    fn unpack_zeros(&self, row: usize, words: &[u8], zeros: &mut [f32]) {
        let (word, shift) = self.place(row);
        let (words, _) = words[word * 4 * zeros.len()..].as_chunks::<4>();
        for (word, zero) in words.iter().zip(zeros) {
            let code = u32::from_le_bytes(*word) >> shift & ((1 << self.bits) - 1);
            *zero = (code as i32 - (1 << (self.bits - 1))) as f32;
        }
    }

    /// Which word of a group holds a row's zero point, and how far from the low end.
    fn place(&self, row: usize) -> (usize, usize) {
        let together = self.rows_per_word();
        (row / together, row % together * usize::from(self.bits))
    }
}
