//! Single elements and scales of a packed tensor.

use roofline_core::format::Encoded;

/// Bits `at * bits ..` of `bytes`, for widths that divide a byte or are whole bytes.
fn element(bytes: &[u8], bits: usize, at: usize) -> u32 {
    match bits {
        4 => u32::from(bytes[at / 2] >> (4 * (at % 2)) & 15),
        8 => u32::from(bytes[at]),
        16 => u32::from(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])),
        _ => u32::from_le_bytes([bytes[4 * at], bytes[4 * at + 1], bytes[4 * at + 2], bytes[4 * at + 3]]),
    }
}

/// A tensor of a few distinct rows, which repeat.
pub(super) struct Codes<'a> {
    encoded: &'a Encoded,
    bits: usize,
    /// Bytes of a row.
    row: usize,
    /// Blocks of a row.
    groups: usize,
}

impl<'a> Codes<'a> {
    pub(super) fn new(encoded: &'a Encoded) -> Self {
        let bits = encoded.format().nominal_bits() as usize;
        let groups = encoded.format().block().map_or(1, |block| encoded.columns().div_ceil(block as usize));
        Self { encoded, bits, row: (encoded.columns() * bits).div_ceil(8), groups }
    }

    /// The code at a row and a column; zero past the last column.
    pub(super) fn at(&self, row: usize, column: usize) -> u32 {
        if column >= self.encoded.columns() {
            return 0;
        }
        element(&self.encoded.codes[row % self.encoded.rows() * self.row..], self.bits, column)
    }

    /// The scale of group `group` of a row, `bits` wide; zero past the last group.
    pub(super) fn scale(&self, row: usize, group: usize, bits: usize) -> u32 {
        if group >= self.groups {
            return 0;
        }
        element(&self.encoded.scales, bits, row % self.encoded.rows() * self.groups + group)
    }

    /// The 4-bit zero point of group `group` of a row.
    pub(super) fn zero(&self, row: usize, group: usize) -> u32 {
        if group >= self.groups {
            return 0;
        }
        let line = self.groups.div_ceil(2);
        element(&self.encoded.zeros[row % self.encoded.rows() * line..], 4, group)
    }
}
