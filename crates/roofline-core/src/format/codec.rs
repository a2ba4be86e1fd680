//! Packing a tensor and reading it back: the reference that faster code paths are checked against.
//!
//! Blocks are contiguous in row-major order whatever their kind - squares once the tensor is in their order - so the flow is
//! the same for every format: cut into blocks, choose and store a scale per block (`scale.rs`), code the elements, pack the bits. Blocks of ggml are
//! the exception: their bytes are ggml's own business (`gguf.rs`).

use std::ops::Range;

use super::{
    ABSMAX_BLOCK, Element, Format, Overflow, Scaling, Shape, Span, Zero,
    bits::{pack, unpack},
    minifloat::round_even,
    squares::restored,
};
use crate::{Dim, Error, Result};

/// A packed tensor: what a file or a kernel would hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    pub(super) format: Format,
    rows: usize,
    pub(super) columns: usize,
    /// Elements, bit-packed; of ggml's block types whole blocks, row after row, as in a GGUF file.
    pub codes: Vec<u8>,
    /// One entry per block: BF16, E8M0, E4M3, FP32 or an 8-bit maximum, as the format says.
    pub scales: Vec<u8>,
    /// Zero points; second-level scales in double quantization.
    pub zeros: Vec<u8>,
    /// What there is once per tensor.
    pub tensor: Vec<u8>,
}

impl Format {
    /// Packs `values`, row-major, `columns` to a row.
    pub fn encode(self, values: &[f32], columns: Dim) -> Result<Encoded> {
        let refuse = |reason: String| Error::Encode { format: self.to_string(), reason };
        let width = columns.get() as usize;
        if values.is_empty() || !values.len().is_multiple_of(width) {
            return Err(refuse(format!("{} values do not make rows of {width}", values.len())));
        }
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            return Err(refuse(format!("value {at} is {}", values[at])));
        }
        if let Some(block) = self.gguf().filter(|block| !width.is_multiple_of(block.elements())) {
            return Err(refuse(format!("rows of {width} are no whole number of blocks of {}", block.elements())));
        }
        let mut encoded = Encoded::new(self, values.len() / width, width);
        encoded.codes = if let Some(block) = self.gguf() {
            block.encoded(values)
        } else {
            let codes = encoded.code(values);
            encoded.pack_elements(&codes)
        };
        Ok(encoded)
    }

    /// What finite `values` become: encoded and decoded, without packing the bits in between.
    pub(super) fn rounded(self, values: &[f32], columns: usize) -> Vec<f32> {
        if let Some(block) = self.gguf() {
            return block.decoded(&block.encoded(values));
        }
        let mut encoded = Encoded::new(self, values.len() / columns, columns);
        let codes = encoded.code(values);
        encoded.values(&codes)
    }

    /// Whether blocks and padding run over the flattened tensor rather than along rows.
    fn is_flat(self) -> bool {
        matches!(self.scaling, Scaling::Absmax | Scaling::AbsmaxDouble)
    }
}

impl Encoded {
    fn new(format: Format, rows: usize, columns: usize) -> Self {
        let (codes, scales, zeros, tensor) = Default::default();
        Self { format, rows, columns, codes, scales, zeros, tensor }
    }

    /// Chooses and stores the scales, and returns the elements' codes.
    fn code(&mut self, values: &[f32]) -> Vec<u64> {
        let Some(order) = self.squares() else { return self.code_blocks(values) };
        let ordered: Vec<f32> = order.iter().map(|at| values[*at]).collect();
        restored(&order, &self.code_blocks(&ordered))
    }

    fn code_blocks(&mut self, values: &[f32]) -> Vec<u64> {
        let blocks: Vec<&[f32]> = self.blocks().into_iter().map(|range| &values[range]).collect();
        let affines = self.store_scales(&blocks);
        let coding = Coding::of(self.format);
        let mut codes = Vec::with_capacity(values.len());
        for (block, affine) in blocks.iter().zip(affines) {
            codes.extend(block.iter().map(|value| coding.code(f64::from(*value) / affine.scale + affine.zero)));
        }
        codes
    }

    /// What codes mean with the stored scales.
    fn values(&self, codes: &[u64]) -> Vec<f32> {
        let Some(order) = self.squares() else { return self.values_of_blocks(codes) };
        let ordered: Vec<u64> = order.iter().map(|at| codes[*at]).collect();
        restored(&order, &self.values_of_blocks(&ordered))
    }

    fn values_of_blocks(&self, codes: &[u64]) -> Vec<f32> {
        let coding = Coding::of(self.format);
        let bits = self.format.element.bits();
        // Narrow codes are looked up: a table of them costs less than decoding a row.
        let table: Vec<f64> =
            if bits <= 8 { (0..1 << bits).map(|code| coding.value(code)).collect() } else { Vec::new() };
        let mut values = Vec::with_capacity(codes.len());
        for (range, affine) in self.blocks().into_iter().zip(self.read_scales()) {
            values.extend(codes[range].iter().map(|code| {
                let plain = table.get(*code as usize).map_or_else(|| coding.value(*code), |value| *value);
                let value = (plain - affine.zero) * affine.scale;
                let finite = value.clamp(f64::from(f32::MIN), f64::from(f32::MAX));
                if value.is_finite() { finite as f32 } else { value as f32 }
            }));
        }
        values
    }

    /// Bytes in all parts together.
    pub fn len(&self) -> usize {
        self.codes.len() + self.scales.len() + self.zeros.len() + self.tensor.len()
    }

    /// Never: a tensor has at least one element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it is packed in.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows that were packed.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The shape that was packed.
    pub fn shape(&self) -> Shape {
        let columns = Dim::new("columns", self.columns as u64).unwrap_or(Dim::ONE);
        Shape::new(self.rows as u128, columns)
    }

    /// The values, row-major.
    pub fn decode(&self) -> Vec<f32> {
        match self.format.gguf() {
            Some(block) => block.decoded(&self.codes),
            None => self.values(&self.unpack_elements()),
        }
    }

    /// Elements of a row that share a scale.
    pub(super) fn span(&self) -> usize {
        self.format.block().map_or(self.columns, |block| block as usize)
    }

    /// The elements that share a scale, in order.
    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        let all = self.rows * self.columns;
        if let Some(squares) = self.ranges_of_squares() {
            return squares;
        }
        let (line, block) = match self.format.scaling {
            Scaling::None | Scaling::Linear(Span::Tensor, _) => (all, all),
            Scaling::Absmax | Scaling::AbsmaxDouble => (all, ABSMAX_BLOCK as usize),
            _ => (self.columns, self.span()),
        };
        (0..all)
            .step_by(line)
            .flat_map(|start| (start..start + line).step_by(block).map(move |at| at..(at + block).min(start + line)))
            .collect()
    }

    fn pack_elements(&self, codes: &[u64]) -> Vec<u8> {
        let line = if self.format.is_flat() { codes.len() } else { self.columns };
        let mut bytes = Vec::new();
        codes.chunks(line).for_each(|row| pack(row.iter().copied(), self.format.element.bits(), &mut bytes));
        bytes
    }

    fn unpack_elements(&self) -> Vec<u64> {
        let bits = self.format.element.bits();
        let line = if self.format.is_flat() { self.rows * self.columns } else { self.columns };
        let line_bytes = (line * bits as usize).div_ceil(8);
        let lines = self.codes.chunks(line_bytes);
        lines.flat_map(|bytes| (0..line).map(move |at| unpack(bytes, bits, at))).collect()
    }
}

/// How a scaled number becomes a code: by the element's own encoding, or as an unsigned integer above a zero point.
#[derive(Clone, Copy)]
enum Coding {
    Element(Element),
    Unsigned { top: f64 },
}

impl Coding {
    fn of(format: Format) -> Self {
        match format.scaling {
            Scaling::Linear(_, Zero::Integer | Zero::Float16) => {
                Self::Unsigned { top: f64::from((1u32 << format.element.bits()) - 1) }
            }
            _ => Self::Element(format.element),
        }
    }

    fn code(self, scaled: f64) -> u64 {
        match self {
            Self::Element(element) => element.encode(scaled as f32, Overflow::Saturate),
            Self::Unsigned { top } => round_even(scaled.clamp(0.0, top)) as u64,
        }
    }

    fn value(self, code: u64) -> f64 {
        match self {
            Self::Element(element) => f64::from(element.decode(code)),
            Self::Unsigned { .. } => code as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::scale::Affine, *};
    use crate::format::{CATALOGUE, Sizes};

    fn formats() -> impl Strategy<Value = Format> {
        let extra =
            ["int8-g128", "int8-zp", "int4-tensor-zp16", "int4-tensor-zp", "fp8-tensor", "int3-g32-zp16", "int8-b16"];
        let names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).chain(extra).collect();
        prop::sample::select(names).prop_map(|name| name.parse().unwrap())
    }

    /// A format, and a matrix it can hold: rows of ggml's block types are whole blocks.
    fn cases() -> impl Strategy<Value = (Format, (Vec<f32>, usize))> {
        formats().prop_flat_map(|format| {
            let columns = match format.gguf() {
                Some(block) => (1..3usize).prop_map(move |blocks| blocks * block.elements()).boxed(),
                None => (1..200usize).boxed(),
            };
            (Just(format), matrices(columns))
        })
    }

    /// Matrices whose rows differ in magnitude, some of them zero.
    fn matrices(columns: BoxedStrategy<usize>) -> impl Strategy<Value = (Vec<f32>, usize)> {
        (1usize..6, columns).prop_flat_map(|(rows, columns)| {
            let row = (prop::collection::vec(-1f32..1.0, columns), -30i32..30, prop::bool::weighted(0.1)).prop_map(
                |(row, exponent, zero)| {
                    let factor = if zero { 0.0 } else { exp2(exponent) };
                    row.into_iter().map(|value| value * factor).collect::<Vec<f32>>()
                },
            );
            (prop::collection::vec(row, rows).prop_map(|rows| rows.concat()), Just(columns))
        })
    }

    fn exp2(exponent: i32) -> f32 {
        crate::format::minifloat::exp2(exponent) as f32
    }

    proptest! {
        #[test]
        fn stored_size_is_the_packed_length((format, (values, columns)) in cases()) {
            let encoded = format.encode(&values, Dim::new("columns", columns as u64).unwrap()).unwrap();
            let bytes = format.bytes(encoded.shape(), Sizes::Exact);
            prop_assert_eq!(bytes.value(), encoded.len() as f64, "{}", format);
        }

        /// Every element lands on a level at most half a step away, whatever the block around it looks like.
        #[test]
        fn decoding_is_within_half_a_step((format, (values, columns)) in cases()) {
            let encoded = format.encode(&values, Dim::new("columns", columns as u64).unwrap()).unwrap();
            let decoded = encoded.decode();
            prop_assert_eq!(&decoded, &format.rounded(&values, columns));
            // Double quantization changes the scale after the codes were chosen; bitsandbytes is its test. What blocks of
            // ggml may lose is said beside them.
            if format.scaling == Scaling::AbsmaxDouble || format.gguf().is_some() {
                return Ok(());
            }
            let in_blocks = |values: Vec<f32>| match encoded.squares() {
                Some(order) => order.iter().map(|at| values[*at]).collect(),
                None => values,
            };
            let (values, decoded) = (in_blocks(values), in_blocks(decoded));
            for (range, affine) in encoded.blocks().into_iter().zip(encoded.read_scales()) {
                if affine.scale == 0.0 {
                    prop_assert!(range.into_iter().all(|at| values[at] == 0.0 && decoded[at] == 0.0));
                    continue;
                }
                for at in range {
                    let scaled = f64::from(values[at]) / affine.scale + affine.zero;
                    let got = f64::from(decoded[at]) / affine.scale + affine.zero;
                    let allowed = half_step(format, scaled, affine);
                    prop_assert!((scaled - got).abs() <= allowed, "{format}: {scaled} became {got}, allowed {allowed}");
                }
            }
        }
    }

    /// Half the distance of the levels around `scaled`, and what rounding of the stored scales adds on top.
    fn half_step(format: Format, scaled: f64, affine: Affine) -> f64 {
        let slack = 1e-5 * (scaled.abs() + affine.zero.abs());
        let element = match Coding::of(format) {
            Coding::Element(element) => element,
            // A 16-bit zero point is off by up to 2^-9 of itself.
            Coding::Unsigned { .. } if format.to_string().ends_with("zp16") => {
                return 0.5 + affine.zero.abs() / 256.0 + slack;
            }
            Coding::Unsigned { .. } => return 0.5 + slack,
        };
        let Some(levels) = element.codebook() else { return plain_half_step(element, scaled) };
        let above = levels.partition_point(|level| f64::from(*level) < scaled).clamp(1, levels.len() - 1);
        let step = f64::from(levels[above] - levels[above - 1]);
        step / 2.0 + slack
    }

    /// 2^-(m+1) of the value, at least half the smallest subnormal; past the largest value, whatever is left over.
    fn plain_half_step(element: Element, value: f64) -> f64 {
        let (exponent, mantissa) = element.exponent_mantissa().unwrap();
        let relative = value.abs() * f64::from(exp2(-(mantissa.min(23) as i32) - 1));
        let smallest = 2f64.powi(2 - (1 << (exponent - 1)) - mantissa as i32);
        relative.max(smallest / 2.0).max(value.abs() - element.max())
    }

    /// A square of 8 x 8 has a scale of its own: what is large in one leaves the others alone.
    #[test]
    fn squares_are_scaled_one_by_one() {
        let format: Format = "fp8-b8".parse().unwrap();
        let value = |at: usize| if at / 20 < 8 && at % 20 < 8 { 448e3 } else { 1.0 };
        let values: Vec<f32> = (0..10 * 20).map(value).collect();
        let encoded = format.encode(&values, Dim::new("columns", 20).unwrap()).unwrap();
        // 2 x 3 squares of two bytes.
        assert_eq!((encoded.scales.len(), encoded.codes.len()), (12, 200));
        let largest = |from: f32, to: f32| (from - to).abs() / from;
        let decoded = encoded.decode();
        assert!(values.iter().zip(&decoded).all(|(from, to)| largest(*from, *to) < 0.01), "{decoded:?}");
    }

    #[test]
    fn bad_values_are_refused() {
        let columns = Dim::new("columns", 4).unwrap();
        let why = |values: &[f32]| Format::NVFP4.encode(values, columns).unwrap_err().to_string();
        assert_eq!(why(&[1.0; 3]), "cannot encode as nvfp4: 3 values do not make rows of 4");
        assert_eq!(why(&[]), "cannot encode as nvfp4: 0 values do not make rows of 4");
        assert_eq!(why(&[1.0, f32::NAN, 0.0, 0.0]), "cannot encode as nvfp4: value 1 is NaN");
        let ragged = Format::Q4_K.encode(&[1.0; 600], Dim::new("columns", 300).unwrap()).unwrap_err().to_string();
        assert_eq!(ragged, "cannot encode as q4_k: rows of 300 are no whole number of blocks of 256");
    }

    #[test]
    fn extreme_blocks_stay_finite() {
        for entry in CATALOGUE {
            let format: Format = entry.name.parse().unwrap();
            for value in [f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 1.7e38] {
                // Two NF4 blocks, so that double quantization has something to quantize.
                let values: Vec<f32> =
                    [[value, -value, value / 2.0, 0.0]; 16].concat().into_iter().chain([0.0; 192]).collect();
                let columns = format.gguf().map_or(4, |block| block.elements() as u64);
                let encoded = format.encode(&values, Dim::new("columns", columns).unwrap()).unwrap();
                assert!(encoded.decode().iter().all(|value| value.is_finite()), "{format} {value:e}");
            }
        }
    }
}
