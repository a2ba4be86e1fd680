//! Which scale a block gets, and how it is stored.
//!
//! Chosen from the largest magnitude of the block ("absmax", round to nearest), the way the ecosystem's own tools do it
//! without calibration data:
//!
//! * integers, symmetric: `scale = absmax / ((2^b - 1) / 2)`, so that all `2^b` codes are in use (compressed-tensors);
//! * integers with a zero point: `scale = (max - min) / (2^b - 1)`;
//! * FP8, FP6: `scale = absmax / element max`;
//! * MX: the exponent of `absmax` less that of the element's largest value, one higher where the block would otherwise be
//!   clipped by half a step or more: from a mantissa of 1.75 for FP4 and FP8 (compressed-tensors), later for elements
//!   that reach further. The floor rule of the OCP specification clips those blocks;
//! * NVFP4: `tensor scale = absmax / (448 * 6)`, block scale = E4M3 of `absmax / 6 / tensor scale`;
//! * NF4: `absmax` itself (bitsandbytes).
//!
//! 16-bit scales are rounded up, so that no value of a block is clipped: with the nearest one, the largest of an INT8 row
//! could lose a whole step.

use super::{
    DOUBLE_BLOCK, Element, Format, Overflow, Scaling, Span, Zero,
    bits::{pack, unpack},
    codec::Encoded,
    dynamic,
    minifloat::{Minifloat, exp2, floor_log2},
};

/// `value = (code - zero) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub(super) scale: f64,
    pub(super) zero: f64,
}

impl Affine {
    /// `value = code * scale`.
    pub(super) fn scale(scale: f64) -> Self {
        Self { scale, zero: 0.0 }
    }
}

impl Encoded {
    /// Chooses a scale per block, stores it, and returns what the elements are to be coded with.
    pub(super) fn store_scales(&mut self, blocks: &[&[f32]]) -> Vec<Affine> {
        match self.format.scaling {
            // Blocks of ggml keep their scales among the codes.
            Scaling::None | Scaling::Gguf(_) => {}
            Scaling::Linear(span, Zero::None) => {
                let divisor = symmetric_divisor(self.format);
                for block in blocks {
                    self.push_scale(span, absmax(block) / divisor);
                }
            }
            Scaling::Linear(span, zero) => self.store_asymmetric(blocks, span, zero),
            Scaling::Micro => {
                let element = self.format.element;
                self.scales = blocks.iter().map(|block| micro_exponent(absmax(block), element)).collect();
            }
            Scaling::TwoLevel => self.store_two_level(blocks),
            Scaling::Absmax | Scaling::AbsmaxDouble => {
                let maxima: Vec<f32> = blocks.iter().map(|block| absmax(block) as f32).collect();
                if self.format.scaling == Scaling::Absmax {
                    self.scales = maxima.iter().flat_map(|max| max.to_le_bytes()).collect();
                } else {
                    self.store_double(&maxima);
                }
                // bitsandbytes codes the elements before it quantizes the maxima; a zero block is coded with 1.
                return maxima.iter().map(|max| Affine::scale(positive(f64::from(*max)))).collect();
            }
        }
        self.read_scales()
    }

    /// The stored scales, one per block.
    pub(super) fn read_scales(&self) -> Vec<Affine> {
        let blocks = 0..self.blocks().len();
        let tensor = || f64::from(read_f32(&self.tensor, 0));
        match self.format.scaling {
            Scaling::None | Scaling::Gguf(_) => vec![Affine::scale(1.0)],
            Scaling::Linear(span, zero) => blocks.map(|block| self.read_linear(span, zero, block)).collect(),
            Scaling::Micro => self.scales.iter().map(|code| Affine::scale(exp2(i32::from(*code) - 127))).collect(),
            Scaling::TwoLevel => {
                let block_scale = |code: &u8| f64::from(Minifloat::E4M3.decode((*code).into()));
                self.scales.iter().map(|code| Affine::scale(positive(block_scale(code) * tensor()))).collect()
            }
            Scaling::Absmax => blocks.map(|block| Affine::scale(read_f32(&self.scales, block).into())).collect(),
            Scaling::AbsmaxDouble => blocks
                .map(|block| {
                    let second = read_f32(&self.zeros, block / DOUBLE_BLOCK as usize);
                    let max = dynamic::decode(self.scales[block]) * second + read_f32(&self.tensor, 0);
                    Affine::scale(max.clamp(f32::MIN, f32::MAX).into())
                })
                .collect(),
        }
    }

    fn read_linear(&self, span: Span, zero: Zero, block: usize) -> Affine {
        let bits = self.format.element.bits();
        let (scale, zeros, index) = match span {
            Span::Tensor => (read_f32(&self.tensor, 0), &self.tensor[4..], 0),
            _ => (read_bf16(&self.scales, block), &self.zeros[..], block),
        };
        let scale = f64::from(scale);
        let zero = match zero {
            Zero::None => 0.0,
            Zero::Float16 => exp2(bits as i32 - 1) - f64::from(read_bf16(zeros, index)) / scale,
            Zero::Integer => {
                let groups = if span == Span::Tensor { 1 } else { self.columns.div_ceil(self.span()) };
                let row = &zeros[index / groups * (groups * bits as usize).div_ceil(8)..];
                unpack(row, bits, index % groups) as f64
            }
        };
        Affine { scale, zero }
    }

    fn push_scale(&mut self, span: Span, ideal: f64) -> f64 {
        if span == Span::Tensor {
            let scale = positive(ideal) as f32;
            self.tensor.extend(scale.to_le_bytes());
            f64::from(scale)
        } else {
            let scale = if ideal == 0.0 { 1.0 } else { bf16_above(ideal) };
            self.scales.extend(bf16_bytes(scale));
            f64::from(scale)
        }
    }

    fn store_asymmetric(&mut self, blocks: &[&[f32]], span: Span, zero: Zero) {
        let bits = self.format.element.bits();
        let top = exp2(bits as i32) - 1.0;
        let mut points = Vec::new();
        for block in blocks {
            // An integer zero point can only stand for a zero inside the range.
            let start = if zero == Zero::Integer { 0.0 } else { f64::from(block[0]) };
            let low = block.iter().fold(start, |low, value| low.min(f64::from(*value)));
            let high = block.iter().fold(start, |high, value| high.max(f64::from(*value)));
            let scale = self.push_scale(span, (high - low) / top);
            if zero == Zero::Integer {
                points.push((-low / scale).round_ties_even().clamp(0.0, top) as u64);
            } else {
                let centre = low + exp2(bits as i32 - 1) * scale;
                let part = if span == Span::Tensor { &mut self.tensor } else { &mut self.zeros };
                part.extend(bf16_bytes(centre as f32));
            }
        }
        let groups = if span == Span::Tensor { 1 } else { self.columns.div_ceil(self.span()) };
        let part = if span == Span::Tensor { &mut self.tensor } else { &mut self.zeros };
        points.chunks(groups).for_each(|row| pack(row.iter().copied(), bits, part));
    }

    fn store_two_level(&mut self, blocks: &[&[f32]]) {
        let top = self.format.element.max();
        let largest = blocks.iter().map(|block| absmax(block)).fold(0.0, f64::max);
        let tensor = positive(largest / (Minifloat::E4M3.max() * top)) as f32;
        self.tensor = tensor.to_le_bytes().to_vec();
        self.scales = blocks
            .iter()
            .map(|block| {
                let ideal = absmax(block) / top / f64::from(tensor);
                let code = Minifloat::E4M3.encode(ideal as f32, Overflow::Saturate);
                // Subnormal scales of blocks far below the tensor's maximum round coarsely; one that would clip by more
                // than half a step (7 still rounds to 6) takes the next.
                let clips = ideal > f64::from(Minifloat::E4M3.decode(code)) * 7.0 / 6.0;
                (code + u32::from(clips)) as u8
            })
            .collect();
    }

    fn store_double(&mut self, maxima: &[f32]) {
        let mean = maxima.iter().map(|max| f64::from(*max)).sum::<f64>() / maxima.len() as f64;
        let offset = mean as f32;
        self.tensor = offset.to_le_bytes().to_vec();
        for block in maxima.chunks(DOUBLE_BLOCK as usize) {
            let centred: Vec<f32> = block.iter().map(|max| max - offset).collect();
            let second = absmax(&centred) as f32;
            self.zeros.extend(second.to_le_bytes());
            let scaled = centred.iter().map(|max| if second > 0.0 { max / second } else { 0.0 });
            self.scales.extend(scaled.map(dynamic::encode));
        }
    }
}

/// What the largest magnitude of a block is divided by.
fn symmetric_divisor(format: Format) -> f64 {
    let element = format.element;
    if element.is_integer() { (exp2(element.bits() as i32) - 1.0) / 2.0 } else { element.max() }
}

/// The E8M0 code of a block; zero for an all-zero one.
fn micro_exponent(absmax: f64, element: Element) -> u8 {
    let largest = floor_log2(element.max());
    // The largest value and half its distance to the next, as a mantissa; compressed-tensors has 1.75 for FP8, too.
    let full = match element {
        Element::Fp6E3M2 => 1.875,
        Element::Fp6E2M3 => 1.9375,
        Element::FixedInt8 => 1.992_187_5,
        _ => 1.75,
    };
    let exponent = floor_log2(absmax);
    let up = absmax > 0.0 && absmax / exp2(exponent) >= full;
    (exponent + i32::from(up) - largest + 127).clamp(0, 254) as u8
}

/// `ideal` where it is a usable FP32 scale; 1 for an all-zero block, never zero otherwise.
fn positive(ideal: f64) -> f64 {
    if ideal == 0.0 { 1.0 } else { ideal.max(f64::from(f32::from_bits(1))) }
}

fn absmax(block: &[f32]) -> f64 {
    f64::from(block.iter().fold(0.0f32, |max, value| max.max(value.abs())))
}

/// The smallest BF16 number that is not below `ideal`.
fn bf16_above(ideal: f64) -> f32 {
    let nearest = Minifloat::BF16.round(ideal as f32);
    let next = f32::from_bits(nearest.to_bits() + (1 << 16));
    if f64::from(nearest) < ideal { next } else { nearest }
}

fn bf16_bytes(value: f32) -> [u8; 2] {
    (Minifloat::BF16.encode(value, Overflow::Saturate) as u16).to_le_bytes()
}

fn read_bf16(bytes: &[u8], index: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])) << 16)
}

fn read_f32(bytes: &[u8], index: usize) -> f32 {
    let at = 4 * index;
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
