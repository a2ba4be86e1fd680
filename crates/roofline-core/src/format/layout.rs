//! How many bytes the parts of a packed tensor take.

use super::{ABSMAX_BLOCK, DOUBLE_BLOCK, Format, MICRO_BLOCK, NVFP4_BLOCK, Scaling, Shape, Span, Zero};

/// Byte counts of the parts of a packed tensor, which are those of [`Encoded`](super::Encoded).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements.
    pub codes: u128,
    /// Scales of blocks or rows.
    pub scales: u128,
    /// Zero points; second-level scales in double quantization.
    pub zeros: u128,
    /// What there is once per tensor.
    pub tensor: u128,
}

impl Layout {
    /// The parts of a tensor of that shape.
    pub fn new(format: Format, shape: Shape) -> Self {
        let bits = u64::from(format.element.bits());
        let columns = shape.columns.get();
        let by_row = |bytes: u64| shape.rows * u128::from(bytes);
        let rows_of_codes = by_row((columns * bits).div_ceil(8));
        let plain = Self { codes: rows_of_codes, scales: 0, zeros: 0, tensor: 0 };
        match format.scaling {
            Scaling::None => plain,
            Scaling::Linear(Span::Tensor, zero) => Self {
                tensor: 4 + match zero {
                    Zero::None => 0,
                    Zero::Integer => u128::from(bits.div_ceil(8)),
                    Zero::Float16 => 2,
                },
                ..plain
            },
            Scaling::Linear(Span::Tile(side), _) => {
                let tiles = shape.rows.div_ceil(u128::from(side)) * u128::from(columns.div_ceil(u64::from(side)));
                Self { scales: 2 * tiles, ..plain }
            }
            Scaling::Linear(span, zero) => {
                let groups = if let Span::Group(group) = span { columns.div_ceil(u64::from(group)) } else { 1 };
                let zeros = match zero {
                    Zero::None => 0,
                    Zero::Integer => (groups * bits).div_ceil(8),
                    Zero::Float16 => 2 * groups,
                };
                Self { scales: by_row(2 * groups), zeros: by_row(zeros), ..plain }
            }
            Scaling::Gguf(block) => {
                let blocks = columns.div_ceil(block.elements() as u64);
                Self { codes: by_row(blocks * block.bytes() as u64), ..plain }
            }
            Scaling::Micro => Self { scales: by_row(columns.div_ceil(MICRO_BLOCK)), ..plain },
            Scaling::TwoLevel => Self { scales: by_row(columns.div_ceil(NVFP4_BLOCK)), tensor: 4, ..plain },
            Scaling::Absmax | Scaling::AbsmaxDouble => {
                let codes = (shape.elements() * u128::from(bits)).div_ceil(8);
                let blocks = shape.elements().div_ceil(u128::from(ABSMAX_BLOCK));
                if format.scaling == Scaling::Absmax {
                    Self { codes, scales: 4 * blocks, ..plain }
                } else {
                    // 8-bit maxima, an FP32 scale per 256 of them, and their common FP32 offset.
                    let second = 4 * blocks.div_ceil(u128::from(DOUBLE_BLOCK));
                    Self { codes, scales: blocks, zeros: second, tensor: 4 }
                }
            }
        }
    }

    /// All of it.
    pub fn bytes(&self) -> u128 {
        self.codes + self.scales + self.zeros + self.tensor
    }
}
