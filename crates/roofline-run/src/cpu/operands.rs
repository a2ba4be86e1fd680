//! Operands to time and to check: real numbers in their stored format, never zeros.
//!
//! A stored tensor is made of a few distinct rows, repeated. A processor's memory does not notice; a kernel that mixes up
//! rows does, because the number of distinct ones is a prime that no block or vector is a multiple of.

use std::ops::Range;

use roofline_core::{Dim, Format, format::Encoded, units::Bytes};

use super::{pool::share, tensor::Tensor};
use crate::{Result, random::Random};

/// Distinct rows of a tensor.
const DISTINCT: usize = 61;
/// Parts of a slot start on cache lines.
const LINE: usize = 64;
const PAGE: usize = 4096;

/// The rows of a stored tensor.
pub(crate) struct Pattern {
    encoded: Encoded,
    /// Rows of the whole tensor.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// What the distinct rows decode to.
    pub(crate) values: Vec<f32>,
}

impl Pattern {
    /// `rows` of normally distributed numbers of standard deviation `scale`; equal seeds give equal numbers.
    pub(crate) fn new(format: Format, rows: usize, columns: usize, scale: f32, seed: u64) -> Result<Self> {
        // NF4 blocks run over row ends where the width is no multiple of them; then no row repeats another.
        let repeats = format.block().is_none_or(|block| columns.is_multiple_of(block as usize));
        let distinct = if repeats { rows.min(DISTINCT) } else { rows };
        let mut random = Random(seed);
        let values: Vec<f32> = (0..distinct * columns).map(|_| random.normal() * scale).collect();
        let encoded = format.encode(&values, Dim::new("columns", columns as u64)?)?;
        let values = encoded.decode();
        Ok(Self { encoded, rows, columns, values })
    }

    /// The distinct rows as they are stored.
    pub(crate) fn encoded(&self) -> &Encoded {
        &self.encoded
    }

    /// Distinct rows.
    pub(crate) fn distinct(&self) -> usize {
        self.encoded.rows()
    }

    fn codes(&self) -> usize {
        self.encoded.codes.len() * self.rows / self.distinct()
    }

    fn scales(&self) -> usize {
        self.encoded.scales.len() * self.rows / self.distinct()
    }

    fn zeros(&self) -> usize {
        self.encoded.zeros.len() * self.rows / self.distinct()
    }

    /// Where codes, scales and zero points are in a slot that starts at zero.
    fn parts(&self) -> [Range<usize>; 3] {
        let mut start = 0;
        [self.codes(), self.scales(), self.zeros()].map(|length| {
            let part = start..start + length;
            start = part.end.next_multiple_of(LINE);
            part
        })
    }

    /// Bytes of the whole tensor in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.parts()[2].end.next_multiple_of(LINE)
    }

    /// Writes the whole tensor.
    pub(crate) fn write(&self, slot: &mut [u8]) {
        for piece in self.pieces(0, 1) {
            piece.write(&mut slot[piece.place.clone()]);
        }
    }

    /// Part `part` of `parts`, whole rows where rows are whole bytes: kernels cut in the same way, so that a page belongs to
    /// the socket that reads it.
    fn pieces(&self, part: usize, parts: usize) -> [Piece<'_>; 3] {
        let [codes, scales, zeros] = self.parts();
        let Encoded { codes: code, scales: scale, zeros: zero, .. } = &self.encoded;
        [(codes, code), (scales, scale), (zeros, zero)].map(|(place, pattern)| {
            let row = (place.len() / self.rows).max(1);
            let own = share(place.len(), row, part, parts);
            Piece { place: place.start + own.start..place.start + own.end, pattern, start: own.start }
        })
    }

    /// The tensor that was written to `slot`.
    pub(crate) fn tensor<'a>(&'a self, slot: &'a [u8]) -> Tensor<'a> {
        let [codes, scales, zeros] = self.parts();
        Tensor {
            format: self.encoded.format(),
            rows: self.rows,
            columns: self.columns,
            codes: &slot[codes],
            scales: &slot[scales],
            zeros: &slot[zeros],
            tensor: &self.encoded.tensor,
        }
    }

    /// What row `row` decodes to.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        let start = row % self.distinct() * self.columns;
        &self.values[start..start + self.columns]
    }
}

/// Bytes of a copy that one thread writes.
pub(crate) struct Piece<'a> {
    /// Where in the copy.
    pub(crate) place: Range<usize>,
    pattern: &'a [u8],
    /// Where it is in the repeated pattern.
    start: usize,
}

impl Piece<'_> {
    /// Writes it to its place.
    pub(crate) fn write(&self, place: &mut [u8]) {
        repeat(place, self.pattern, self.start);
    }
}

/// Fills `place` with what copies of `pattern`, one after the other, hold from `start` on.
pub(crate) fn repeat(place: &mut [u8], pattern: &[u8], start: usize) {
    let mut rest = place;
    let mut at = start.checked_rem(pattern.len()).unwrap_or(0);
    while !rest.is_empty() && !pattern.is_empty() {
        let length = rest.len().min(pattern.len() - at);
        let (part, after) = rest.split_at_mut(length);
        part.copy_from_slice(&pattern[at..at + length]);
        (rest, at) = (after, 0);
    }
}

/// Copies of several tensors that are read together, one after the other in memory.
pub(crate) struct Slots {
    patterns: Vec<Pattern>,
    /// Bytes that a kernel writes, behind the tensors it reads.
    output: usize,
    /// Bytes from one copy to the next: an odd number of pages, so that copies do not all start in the same cache set.
    stride: usize,
}

impl Slots {
    pub(crate) fn new(patterns: Vec<Pattern>) -> Self {
        Self { stride: stride(&patterns, 0), patterns, output: 0 }
    }

    /// The same with room for what a kernel writes, so that writes are as cold as reads.
    pub(crate) fn with_output(self, output: usize) -> Self {
        Self { stride: stride(&self.patterns, output), output, ..self }
    }

    /// Bytes of one copy.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::new(self.stride as f64)
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn pattern(&self, at: usize) -> &Pattern {
        &self.patterns[at]
    }

    /// What thread `part` of `parts` writes of each copy.
    pub(crate) fn pieces(&self, part: usize, parts: usize) -> Vec<Piece<'_>> {
        let mut before = 0;
        let mut all = Vec::new();
        for pattern in &self.patterns {
            all.extend(pattern.pieces(part, parts).map(|piece| {
                let place = before + piece.place.start..before + piece.place.end;
                Piece { place, ..piece }
            }));
            before += pattern.bytes();
        }
        // Touched here, so that no sample waits for a page that nobody has had before.
        let own = share(self.output, PAGE, part, parts);
        all.push(Piece { place: before + own.start..before + own.end, pattern: &[0; PAGE], start: own.start });
        all
    }

    /// All tensors of copy `copy`, and the place for what is written.
    pub(crate) fn split<'a>(&'a self, memory: &'a mut [u8], copy: usize) -> (Vec<Tensor<'a>>, &'a mut [u8]) {
        let slot = &mut memory[copy * self.stride..(copy + 1) * self.stride];
        let read: usize = self.patterns.iter().map(Pattern::bytes).sum();
        let (inputs, rest) = slot.split_at_mut(read);
        let mut rest_in: &[u8] = inputs;
        let tensor = |pattern: &'a Pattern| {
            let (own, after) = rest_in.split_at(pattern.bytes());
            rest_in = after;
            pattern.tensor(own)
        };
        (self.patterns.iter().map(tensor).collect(), &mut rest[..self.output])
    }

    /// Tensor `at` of copy `copy`.
    pub(crate) fn tensor<'a>(&'a self, memory: &'a [u8], copy: usize, at: usize) -> Tensor<'a> {
        let before: usize = self.patterns[..at].iter().map(Pattern::bytes).sum();
        let start = copy * self.stride + before;
        let pattern = &self.patterns[at];
        pattern.tensor(&memory[start..start + pattern.bytes()])
    }
}

fn stride(patterns: &[Pattern], output: usize) -> usize {
    let bytes = patterns.iter().map(Pattern::bytes).sum::<usize>() + output;
    (bytes.div_ceil(PAGE) | 1) * PAGE
}

#[cfg(test)]
mod tests {
    use roofline_core::format::{Shape, Sizes};

    use super::*;

    #[test]
    fn a_repeated_tensor_decodes_row_by_row_and_has_its_exact_size() {
        for name in ["fp32", "bf16", "int8", "int4-g128", "nf4", "fp8", "mxfp4", "nvfp4"] {
            let format: Format = name.parse().unwrap();
            let (rows, columns) = (130, 256);
            let pattern = Pattern::new(format, rows, columns, 1.0, 7).unwrap();
            let mut slot = vec![0; pattern.bytes()];
            // In parts, as threads do.
            for piece in (0..3).flat_map(|part| pattern.pieces(part, 3)) {
                piece.write(&mut slot[piece.place.clone()]);
            }
            let tensor = pattern.tensor(&slot);
            let stored = tensor.codes.len() + tensor.scales.len() + tensor.zeros.len() + tensor.tensor.len();
            let shape = Shape::matrix(Dim::new("rows", 130).unwrap(), Dim::new("columns", 256).unwrap());
            assert_eq!(stored as f64, format.bytes(shape, Sizes::Exact).value(), "{name}");
            // Rows 61 and 122 are row 0 again, bytes and all.
            let bytes = tensor.codes.len() / rows;
            let row = |at: usize| &tensor.codes[at * bytes..(at + 1) * bytes];
            assert_eq!((row(0), row(60)), (row(122), row(121)), "{name}");
            assert_ne!(row(0), row(1), "{name}");
            assert_eq!(pattern.row(62), pattern.row(1));
        }
    }

    /// What is not touched before the first sample is paid for in it.
    #[test]
    fn threads_touch_every_byte_of_a_copy() {
        let pattern = Pattern::new(Format::INT8, 130, 256, 1.0, 7).unwrap();
        let (read, written) = (pattern.bytes(), 3 * PAGE + 100);
        let slots = Slots::new(vec![pattern]).with_output(written);
        let mut slot = vec![0x5a; slots.stride()];
        for piece in (0..3).flat_map(|part| slots.pieces(part, 3)) {
            piece.write(&mut slot[piece.place.clone()]);
        }
        assert!(slot[read..read + written].iter().all(|byte| *byte == 0));
        assert!(slot[read + written..].iter().all(|byte| *byte == 0x5a));
    }
}
