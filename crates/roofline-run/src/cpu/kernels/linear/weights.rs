//! Stored weights: where the codes and the scales of a row are, and what they mean.

use roofline_core::{
    Format,
    format::{Element, GgufBlock, NF4},
};
use roofline_isa::number::{from_bf16, from_e4m3, from_fp16};

use super::Unsupported;
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
    /// Two's complement, eight to three bytes.
    Int3,
    /// Two's complement, four to a byte.
    Int2,
    /// Blocks with their scales in them.
    Gguf(GgufBlock),
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

/// What is subtracted from codes before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    None,
    /// Of four bits, per group.
    Integer,
    /// What the middle code, 8, stands for: BF16, per group.
    Float,
}

/// How the rows of a weight are stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) format: Format,
    pub(super) code: Code,
    pub(super) scale: Scale,
    pub(super) zero: Zero,
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
    /// Bytes of zero points in a row.
    pub(super) row_zeros: usize,
}

impl Stored {
    pub(super) fn new(format: Format, k: usize) -> Result<Self, Unsupported> {
        let block = format.block().unwrap_or(k as u64) as usize;
        let refuse = |why: String| Err(Unsupported(why));
        let (code, scale, zero) = match format {
            Format::FP32 => (Code::Fp32, Scale::None, Zero::None),
            Format::FP16 => (Code::Fp16, Scale::None, Zero::None),
            Format::BF16 => (Code::Bf16, Scale::None, Zero::None),
            Format::INT8 => (Code::Int8, Scale::Row, Zero::None),
            Format::FP8 => (Code::Fp8, Scale::Row, Zero::None),
            Format::MXFP4 => (Code::Nibble, Scale::Micro, Zero::None),
            Format::NVFP4 => (Code::Nibble, Scale::TwoLevel, Zero::None),
            Format::INT3_G64 => (Code::Int3, Scale::Group, Zero::None),
            Format::INT2_G64 => (Code::Int2, Scale::Group, Zero::None),
            Format::NF4 if k.is_multiple_of(block) => (Code::Nibble, Scale::Absmax, Zero::None),
            Format::NF4 => return refuse(format!("nf4 blocks of {block} straddle rows of {k} elements")),
            _ => match (format.gguf(), int4(format, block)) {
                (Some(gguf), _) if k.is_multiple_of(gguf.elements()) => (Code::Gguf(gguf), Scale::None, Zero::None),
                (Some(gguf), _) => {
                    return refuse(format!("rows of {k} elements are no whole {format} blocks of {}", gguf.elements()));
                }
                (None, Some(zero)) => (Code::Nibble, Scale::Group, zero),
                (None, None) => return refuse(format!("no processor kernel reads weights stored as {format}")),
            },
        };
        let table = match (format.element(), zero) {
            (Element::Nf4, _) => NF4,
            (element, Zero::None) if code == Code::Nibble => std::array::from_fn(|code| element.decode(code as u64)),
            _ => std::array::from_fn(|code| code as f32),
        };
        let scale_bytes = match scale {
            Scale::None => 0,
            Scale::Row | Scale::Group => 2,
            Scale::Micro | Scale::TwoLevel => 1,
            Scale::Absmax => 4,
        };
        let row_bytes = match code {
            Code::Gguf(gguf) => k / gguf.elements() * gguf.bytes(),
            _ => (k * format.nominal_bits() as usize).div_ceil(8),
        };
        let groups = k.div_ceil(block);
        let row_zeros = match zero {
            Zero::None => 0,
            Zero::Integer => groups.div_ceil(2),
            Zero::Float => 2 * groups,
        };
        Ok(Self { format, code, scale, zero, block, table, k, row_bytes, row_scales: scale_bytes * groups, row_zeros })
    }

    /// Groups of a row that have a scale each.
    pub(super) fn groups(&self) -> usize {
        self.k.div_ceil(self.block)
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
        assert!(tensor.zeros.len() >= tensor.rows * self.row_zeros, "the weights lack zero points");
        let factor = match self.scale {
            Scale::TwoLevel => {
                f32::from_le_bytes([tensor.tensor[0], tensor.tensor[1], tensor.tensor[2], tensor.tensor[3]])
            }
            _ => 1.0,
        };
        let Tensor { rows: count, codes, scales, zeros, .. } = *tensor;
        Rows { stored: self, count, codes, scales, zeros, factor }
    }
}

/// The zero point of a format of four-bit integers in groups; none for any other.
fn int4(format: Format, block: usize) -> Option<Zero> {
    let named = |suffix: &str| format!("int4-g{block}{suffix}").parse() == Ok::<_, roofline_core::Error>(format);
    let zeros = [("", Zero::None), ("-zp", Zero::Integer), ("-zp16", Zero::Float)];
    zeros.into_iter().find(|(suffix, _)| matches!(block, 32 | 64 | 128) && named(suffix)).map(|(_, zero)| zero)
}

/// The rows of one stored weight.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) stored: &'a Stored,
    pub(super) count: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    zeros: &'a [u8],
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

    #[inline(always)]
    pub(super) fn zeros(&self, row: usize) -> &'a [u8] {
        &self.zeros[row * self.stored.row_zeros..][..self.stored.row_zeros]
    }

    /// The code that stands for zero in block `index` of a row, and what is added to every value.
    #[inline(always)]
    fn block_zero(&self, zeros: &[u8], index: usize) -> (f32, f32) {
        match self.stored.zero {
            Zero::None => (0.0, 0.0),
            Zero::Integer => (f32::from(zeros[index / 2] >> (4 * (index % 2)) & 15), 0.0),
            Zero::Float => (8.0, bf16_at(zeros, index)),
        }
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
            Scale::TwoLevel => from_e4m3(scales[index]) * self.factor,
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
                    *out = from_e4m3(*code);
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
            Code::Int3 => {
                for (at, out) in out.iter_mut().enumerate() {
                    let bit = 3 * (start + at);
                    let pair = u16::from(codes[bit / 8]) | u16::from(*codes.get(bit / 8 + 1).unwrap_or(&0)) << 8;
                    *out = f32::from((pair << (13 - bit % 8)) as i16 >> 13);
                }
            }
            Code::Int2 => {
                for (at, out) in out.iter_mut().enumerate() {
                    let code = codes[(start + at) / 4] >> (2 * ((start + at) % 4));
                    *out = f32::from((code << 6) as i8 >> 6);
                }
            }
            Code::Gguf(gguf) => {
                let mut values = [0.0; 256];
                let values = &mut values[..gguf.elements()];
                let mut at = 0;
                while at < out.len() {
                    let (block, skip) = ((start + at) / gguf.elements(), (start + at) % gguf.elements());
                    gguf.decode(&codes[block * gguf.bytes()..][..gguf.bytes()], values);
                    let length = (gguf.elements() - skip).min(out.len() - at);
                    out[at..at + length].copy_from_slice(&values[skip..skip + length]);
                    at += length;
                }
            }
        }
        if self.stored.scale != Scale::None {
            let (scales, block) = (self.scales(row), self.stored.block);
            let first = start / block;
            for (index, values) in out.chunks_mut(block - start % block).enumerate() {
                let scale = self.block_scale(scales, first + index);
                let (zero, middle) = self.block_zero(self.zeros(row), first + index);
                for value in values {
                    *value = (*value - zero) * scale + middle;
                }
            }
        }
    }
}

#[inline(always)]
fn bf16_at(bytes: &[u8], index: usize) -> f32 {
    from_bf16(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]))
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
        for name in super::super::tests::WEIGHTS {
            let format: Format = name.parse().unwrap();
            for k in [64, 128, 200, 384, 512] {
                let Ok(stored) = Stored::new(format, k) else {
                    let whole = format.gguf().map_or(64, GgufBlock::elements);
                    assert!((name == "nf4" || format.gguf().is_some()) && k % whole != 0, "{name} {k}");
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
        assert!(Stored::new("int4-g16".parse().unwrap(), 256).is_err());
        assert!(Stored::new("mxfp8".parse().unwrap(), 256).is_err());
    }
}
