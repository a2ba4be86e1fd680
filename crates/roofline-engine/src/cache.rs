//! Keys and values of the tokens so far.

use roofline_core::Format;
use roofline_run::cpu::{Buffer, Tensor};

use crate::{Error, Result};

/// Rows that a sliding window has beyond itself, so that it is moved once in a while and not with every token.
const SLACK: usize = 256;

/// The cache of one layer, for all sequences: `[sequence][head][capacity][feature]`.
pub(crate) struct LayerCache {
    pub(crate) keys: Side,
    pub(crate) values: Side,
    pub(crate) heads: usize,
    pub(crate) capacity: usize,
    window: Option<usize>,
    /// The position of each sequence's first row; more than zero once a window has moved on.
    pub(crate) first: Vec<usize>,
}

/// Keys or values.
pub(crate) struct Side {
    pub(crate) format: Format,
    pub(crate) width: usize,
    pub(crate) codes: Buffer,
    pub(crate) scales: Buffer,
}

impl Side {
    fn new(format: Format, rows: usize, width: usize) -> Result<Self> {
        let row = width * format.nominal_bits() as usize / 8;
        let scales = if has_scales(format) { 2 * rows } else { 0 };
        let memory = |bytes: usize| Buffer::zeroed(bytes).ok_or_else(|| Error::memory(bytes as u64, "the KV cache"));
        Ok(Self { format, width, codes: memory(rows * row)?, scales: memory(scales)? })
    }

    /// All rows of these sequences.
    pub(crate) fn tensor(&self, sequences: std::ops::Range<usize>, rows_each: usize) -> Tensor<'_> {
        let row = self.width * self.format.nominal_bits() as usize / 8;
        let (from, until) = (sequences.start * rows_each, sequences.end * rows_each);
        let scales = if self.scales.is_empty() { &[][..] } else { &self.scales[2 * from..2 * until] };
        let codes = &self.codes[from * row..until * row];
        Tensor { scales, ..Tensor::plain(self.format, until - from, self.width, codes) }
    }

    fn shift(&mut self, start: usize, from: usize, count: usize) {
        let row = self.width * self.format.nominal_bits() as usize / 8;
        self.codes.copy_within((start + from) * row..(start + from + count) * row, start * row);
        if !self.scales.is_empty() {
            self.scales.copy_within(2 * (start + from)..2 * (start + from + count), 2 * start);
        }
    }
}

/// Whether rows of a format have a scale each.
fn has_scales(format: Format) -> bool {
    matches!(format, Format::INT8 | Format::FP8) || format.to_string() == "fp8-e5m2"
}

impl LayerCache {
    /// Room for `sequences` of `context` tokens, of which up to `chunk` come at once; a sliding window keeps what it can
    /// see.
    pub(crate) fn new(
        format: Format,
        (sequences, heads, width): (usize, usize, usize),
        window: Option<usize>,
        context: usize,
        chunk: usize,
    ) -> Result<Self> {
        let capacity = window.map_or(context, |window| context.min(window + chunk.max(SLACK.min(window))));
        let rows = sequences * heads * capacity;
        let (keys, values) = (Side::new(format, rows, width)?, Side::new(format, rows, width)?);
        Ok(Self { keys, values, heads, capacity, window, first: vec![0; sequences] })
    }

    /// Makes room for `new` tokens after the `length` that a sequence has, and says how many rows it has then.
    pub(crate) fn advance(&mut self, sequence: usize, length: usize, new: usize) -> usize {
        let first = self.first[sequence];
        if length + new - first <= self.capacity {
            return length + new - first;
        }
        // The first of the new tokens sees the window's length with itself in it.
        let kept = self.window.map_or(0, |window| window - 1).min(length - first);
        let from = length - kept - first;
        for head in 0..self.heads {
            let start = (sequence * self.heads + head) * self.capacity;
            self.keys.shift(start, from, kept);
            self.values.shift(start, from, kept);
        }
        self.first[sequence] = length - kept;
        kept + new
    }

    /// The rows that `new` tokens of a sequence go to, a head after the other for each token.
    pub(crate) fn slots(&self, sequence: usize, length: usize, new: usize, slots: &mut Vec<usize>) {
        for token in 0..new {
            let row = length + token - self.first[sequence];
            slots.extend((0..self.heads).map(|head| (sequence * self.heads + head) * self.capacity + row));
        }
    }

    /// Whether all that a token after the first `length` sees is still there.
    pub(crate) fn holds(&self, length: usize) -> bool {
        let from = self.window.map_or(0, |window| (length + 1).saturating_sub(window));
        self.first.iter().all(|first| *first <= from)
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        [&self.keys, &self.values].iter().map(|side| (side.codes.len() + side.scales.len()) as u64).sum()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.first.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of 5 with chunks of 3 has room for 8: each token finds the four before it, wherever they lie.
    #[test]
    fn a_window_moves_on() {
        let mut cache = LayerCache::new(Format::FP32, (2, 1, 1), Some(5), 100, 3).unwrap();
        assert_eq!(cache.capacity, 10);
        let mut length = 0;
        for new in [3, 3, 1, 1, 1, 3, 2, 1, 3, 3, 1, 1, 1, 1] {
            let rows = cache.advance(1, length, new);
            let mut slots = Vec::new();
            cache.slots(1, length, new, &mut slots);
            for (token, slot) in slots.iter().enumerate() {
                let value = ((length + token) as f32).to_le_bytes();
                cache.keys.codes[4 * slot..4 * slot + 4].copy_from_slice(&value);
            }
            length += new;
            assert_eq!(cache.first[1] + rows, length);
            let seen = cache.keys.tensor(1..2, cache.capacity).codes;
            for back in 0..(4 + new).min(length) {
                let at = 4 * (rows - 1 - back);
                let value = f32::from_le_bytes([seen[at], seen[at + 1], seen[at + 2], seen[at + 3]]);
                assert_eq!(value, (length - 1 - back) as f32, "{back} before {length}");
            }
        }
        assert_eq!((cache.first[0], cache.bytes()), (0, 2 * 2 * 10 * 4));
    }
}
