//! Stored weights: where the codes and the scales of a row are, and what they mean.

use roofline_core::{
    Format,
    format::{Element, NF4},
};

use super::{
    Unsupported,
    number::{from_bf16, from_fp16},
};
use crate::cpu::tensor::Tensor;

/// One stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Fp32,
    Fp16,
    Bf16,
    Int8,
    Fp8,
    /// Two to a byte, the lower half first, through a table of 16.
    Nibble,
}

/// What codes are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    None,
    /// BF16 per row.
    Row,
    /// BF16 per group of a row.
    Group,
    /// E8M0 per 32.
    Micro,
    /// E4M3 per 16, FP32 per tensor.
    TwoLevel,
    /// FP32 per 64.
    Absmax,
}

/// How the rows of a weight are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) code: Code,
    pub(super) scale: Scale,
    /// Elements that share a scale.
    pub(super) block: usize,
    /// What the codes of [`Code::Nibble`] stand for.
    pub(super) table: [f32; 16],
    /// Elements of a row.
    pub(super) k: usize,
    /// Bytes of codes in a row.
    pub(super) row_bytes: usize,
    /// Bytes of scales in a row.
    pub(super) row_scales: usize,
}

impl Stored {
    pub(super) fn new(format: Format, k: usize) -> Result<Self, Unsupported> {
        let block = format.block().unwrap_or(k as u64) as usize;
        let (code, scale) = match format {
            Format::FP32 => (Code::Fp32, Scale::None),
            Format::FP16 => (Code::Fp16, Scale::None),
            Format::BF16 => (Code::Bf16, Scale::None),
            Format::INT8 => (Code::Int8, Scale::Row),
            Format::FP8 => (Code::Fp8, Scale::Row),
            Format::MXFP4 => (Code::Nibble, Scale::Micro),
            Format::NVFP4 => (Code::Nibble, Scale::TwoLevel),
            Format::NF4 if k.is_multiple_of(block) => (Code::Nibble, Scale::Absmax),
            Format::NF4 => {
                return Err(Unsupported(format!("nf4 blocks of {block} straddle rows of {k} elements")));
            }
            _ if is_symmetric_int4(format, block) => (Code::Nibble, Scale::Group),
            _ => return Err(Unsupported(format!("no processor kernel reads weights stored as {format}"))),
        };
        let table = match format.element() {
            Element::Nf4 => NF4,
            element => std::array::from_fn(|code| element.decode(code as u64)),
        };
        let scale_bytes = match scale {
            Scale::None => 0,
            Scale::Row | Scale::Group => 2,
            Scale::Micro | Scale::TwoLevel => 1,
            Scale::Absmax => 4,
        };
        let row_bytes = (k * format.nominal_bits() as usize).div_ceil(8);
        Ok(Self { code, scale, block, table, k, row_bytes, row_scales: scale_bytes * k.div_ceil(block) })
    }

    /// The rows of `tensor`.
    ///
    /// # Panics
    ///
    /// When the tensor is shorter than it says: kernels read it through pointers.
    pub(super) fn rows<'a>(&'a self, tensor: &Tensor<'a>) -> Rows<'a> {
        assert_eq!(tensor.columns, self.k, "the weights have rows of another length");
        assert!(tensor.codes.len() >= tensor.rows * self.row_bytes, "the weights lack codes");
        assert!(tensor.scales.len() >= tensor.rows * self.row_scales, "the weights lack scales");
        let factor = match self.scale {
            Scale::TwoLevel => {
                f32::from_le_bytes([tensor.tensor[0], tensor.tensor[1], tensor.tensor[2], tensor.tensor[3]])
            }
            _ => 1.0,
        };
        Rows { stored: self, count: tensor.rows, codes: tensor.codes, scales: tensor.scales, factor }
    }
}

fn is_symmetric_int4(format: Format, block: usize) -> bool {
    matches!(block, 32 | 64 | 128) && format!("int4-g{block}").parse() == Ok::<_, roofline_core::Error>(format)
}

/// The rows of one stored weight.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) stored: &'a Stored,
    pub(super) count: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    /// What every value is multiplied by on top: the tensor's own scale.
    pub(super) factor: f32,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub(super) fn codes(&self, row: usize) -> &'a [u8] {
        &self.codes[row * self.stored.row_bytes..][..self.stored.row_bytes]
    }

    #[inline(always)]
    pub(super) fn scales(&self, row: usize) -> &'a [u8] {
        &self.scales[row * self.stored.row_scales..][..self.stored.row_scales]
    }

    /// The scale of a whole row, where there is one.
    #[inline(always)]
    pub(super) fn row_scale(&self, row: usize) -> f32 {
        match self.stored.scale {
            Scale::Row => bf16_at(self.scales(row), 0),
            _ => self.factor,
        }
    }

    /// The scale of block `index` of a row.
    #[inline(always)]
    pub(super) fn block_scale(&self, scales: &[u8], index: usize) -> f32 {
        match self.stored.scale {
            Scale::None => 1.0,
            Scale::Row | Scale::Group => bf16_at(scales, index),
            // 2^-127, the code zero, is the one subnormal among them.
            Scale::Micro => f32::from_bits((u32::from(scales[index]) << 23).max(1 << 22)),
            Scale::TwoLevel => from_fp8(scales[index]) * self.factor,
            Scale::Absmax => f32::from_le_bytes([0, 1, 2, 3].map(|byte| scales[4 * index + byte])),
        }
    }

    /// The values of `row` from element `start` on, which is a multiple of 128 (so that it starts a block and a byte).
    #[inline(always)]
    pub(super) fn decode(&self, row: usize, start: usize, out: &mut [f32]) {
        let codes = self.codes(row);
        match self.stored.code {
            Code::Fp32 => {
                for (out, code) in out.iter_mut().zip(codes[4 * start..].as_chunks::<4>().0) {
                    *out = f32::from_le_bytes(*code);
                }
            }
            Code::Fp16 => {
                for (out, code) in out.iter_mut().zip(codes[2 * start..].as_chunks::<2>().0) {
                    *out = from_fp16(u16::from_le_bytes(*code));
                }
            }
            Code::Bf16 => {
                for (out, code) in out.iter_mut().zip(codes[2 * start..].as_chunks::<2>().0) {
                    *out = from_bf16(u16::from_le_bytes(*code));
                }
            }
            Code::Int8 => {
                for (out, code) in out.iter_mut().zip(&codes[start..]) {
                    *out = f32::from(*code as i8);
                }
            }
            Code::Fp8 => {
                for (out, code) in out.iter_mut().zip(&codes[start..]) {
                    *out = from_fp8(*code);
                }
            }
            Code::Nibble => {
                let table = &self.stored.table;
                for (pair, code) in out.chunks_mut(2).zip(&codes[start / 2..]) {
                    pair[0] = table[usize::from(*code & 15)];
                    if let Some(second) = pair.get_mut(1) {
                        *second = table[usize::from(*code >> 4)];
                    }
                }
            }
        }
        if self.stored.scale != Scale::None {
            let (scales, block) = (self.scales(row), self.stored.block);
            let first = start / block;
            for (index, values) in out.chunks_mut(block - start % block).enumerate() {
                let scale = self.block_scale(scales, first + index);
                for value in values {
                    *value *= scale;
                }
            }
        }
    }
}

#[inline(always)]
fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    from_bf16(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]))
}

/// E4M3 with its sign and fields moved to their FP16 places is an FP16 number of 2^-8 times the value (biases 15 and 7).
#[inline(always)]
pub(super) fn from_fp8(code: u8) -> f32 {
    from_fp16(((i16::from(code as i8) << 7) & !0x4000) as u16) * 256.0
}

#[cfg(test)]
mod tests {
    use roofline_core::Dim;

    use super::*;

    /// But for the product of NVFP4's two scales, which is rounded once more here.
    fn same(got: &[f32], want: &[f32]) -> bool {
        got.len() == want.len() && got.iter().zip(want).all(|(got, want)| (got - want).abs() <= want.abs() * 1.2e-7)
    }

    #[test]
    fn rows_decode_as_the_codec_does() {
        for name in
            ["fp32", "fp16", "bf16", "int8", "fp8", "int4-g32", "int4-g64", "int4-g128", "nf4", "mxfp4", "nvfp4"]
        {
            let format: Format = name.parse().unwrap();
            for k in [64, 128, 200, 384] {
                let Ok(stored) = Stored::new(format, k) else {
                    assert_eq!((name, k), ("nf4", 200));
                    continue;
                };
                let values: Vec<f32> = (0..3 * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 13.0).collect();
                let encoded = format.encode(&values, Dim::new("columns", k as u64).unwrap()).unwrap();
                let tensor = Tensor::from(&encoded);
                let rows = stored.rows(&tensor);
                let mut got = vec![0.0; k];
                for (row, want) in encoded.decode().chunks(k).enumerate() {
                    rows.decode(row, 0, &mut got);
                    assert!(same(&got, want), "{name} {k}: {got:?}, not {want:?}");
                    if k > 128 {
                        rows.decode(row, 128, &mut got[..k - 128]);
                        assert!(same(&got[..k - 128], &want[128..]), "{name} {k} from 128");
                    }
                }
            }
        }
        assert!(Stored::new("int4-g128-zp".parse().unwrap(), 256).is_err());
        assert!(Stored::new("int4-g16".parse().unwrap(), 256).is_err());
        assert!(Stored::new("mxfp8".parse().unwrap(), 256).is_err());
    }

    #[test]
    fn fp8_through_fp16_is_exact() {
        for code in (0..=255u8).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(from_fp8(code), Element::Fp8E4M3.decode(code.into()));
        }
    }
}
