//! Operands that kernels of others are given, and what they should make of them.
//!
//! They are the numbers that our own kernels get: seeded, never zeros, a few distinct rows repeated, in the stored formats of a
//! precision. Codes, scales and zero points are arrays of their own, row-major, in the layout of
//! [`Encoded`](roofline_core::format::Encoded).

use roofline_core::{
    Dim, Format, Math, Op, Precision,
    format::{Element, ScaleNumber},
    measurement::{Check, Subject},
    op::{Attention, Cache},
    units::Bytes,
};

use crate::{
    Error, Result,
    cpu::operands::{Pattern, repeat},
    exact,
    tolerance::{decoded, limit, spread},
};

/// Values of a result that are compared at most; of a larger one, whole rows from the first to the last.
const VALUES: usize = 1 << 22;
/// Multiplications of the reference at most, for attention.
const PRODUCTS: usize = 1 << 27;

/// What the elements of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE double precision.
    Float64,
    /// IEEE single precision.
    Float32,
    /// IEEE half precision.
    Float16,
    /// bfloat16.
    Bfloat16,
    /// 8 bits, largest 448.
    Float8E4m3,
    /// 8 bits, largest 57344.
    Float8E5m2,
    /// Two's complement.
    Int8,
    /// Bytes: packed codes, exponents, zero points.
    Uint8,
}

impl Dtype {
    const ALL: [Self; 8] = [
        Self::Float64,
        Self::Float32,
        Self::Float16,
        Self::Bfloat16,
        Self::Float8E4m3,
        Self::Float8E5m2,
        Self::Int8,
        Self::Uint8,
    ];

    /// As array libraries call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float64 => "float64",
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4m3 => "float8_e4m3fn",
            Self::Float8E5m2 => "float8_e5m2",
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::Float64 => 8,
            Self::Float32 => 4,
            Self::Float16 | Self::Bfloat16 => 2,
            _ => 1,
        }
    }

    /// Of a plain float format; none where it is none.
    fn of(format: Format) -> Option<Self> {
        match format {
            Format::FP32 => Some(Self::Float32),
            Format::FP16 => Some(Self::Float16),
            Format::BF16 => Some(Self::Bfloat16),
            _ => None,
        }
    }

    /// The numbers in `bytes`; none where these are no floats that a result may be in.
    fn values(self, bytes: &[u8]) -> Option<Vec<f64>> {
        Some(match self {
            Self::Float64 => bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
            Self::Float32 => decoded(bytes, Format::FP32),
            Self::Float16 => decoded(bytes, Format::FP16),
            Self::Bfloat16 => decoded(bytes, Format::BF16),
            _ => return None,
        })
    }
}

/// An array that a kernel is given.
pub struct Part<'a> {
    /// `x`, `w`, `w_scales`, ...
    pub name: String,
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Whether every call of a cold measurement gets another copy: weights and caches, not inputs.
    pub rotated: bool,
    pattern: &'a [u8],
}

impl Part<'_> {
    /// Bytes of the array.
    pub fn size(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// The array.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size()];
        repeat(&mut bytes, self.pattern, 0);
        bytes
    }

    /// What repeats in it.
    pub(crate) fn pattern(&self) -> &[u8] {
        self.pattern
    }
}

/// What a kernel wrote.
#[derive(Clone, Debug)]
pub struct Written {
    /// What its elements are.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// The array, row-major.
    pub bytes: Vec<u8>,
}

/// A tensor with its name, the dimensions before its columns, and whether it is rotated.
struct Operand {
    name: &'static str,
    pattern: Pattern,
    lead: Vec<usize>,
    rotated: bool,
}

/// The operands of one operator.
pub struct Operands {
    op: Op,
    tensors: Vec<Operand>,
    dtype: Dtype,
    shape: Vec<usize>,
    limit: f64,
}

impl Operands {
    /// For `subject`; refused where kernels of others are not measured or the numbers have no layout that they could read.
    pub fn of(subject: &Subject) -> Result<Self> {
        let formats = &subject.formats;
        let size = |dim: Dim| dim.get() as usize;
        let (tensors, output, shape) = match &subject.op {
            Op::Linear(linear) => {
                let (m, n, k) = (size(linear.m), size(linear.n), size(linear.k));
                let scale = 1.0 / (k as f32).sqrt();
                let rows = |count: usize| if count == 1 { Vec::new() } else { vec![count] };
                let x = Operand::new("x", formats.activations, rows(m), k, 1.0, 2)?;
                let w = Operand::new("w", formats.weights, vec![n], k, scale, 1)?.rotating();
                (vec![x, w], formats.output, [rows(m), vec![n]].concat())
            }
            Op::Attention(shape) => {
                let (batch, heads, kv_heads) = (size(shape.batch), size(shape.heads), size(shape.kv_heads));
                let (queries, context) = (size(shape.queries), size(shape.context));
                let cached = if shape.cache == Cache::Expanded { formats.query } else { formats.kv };
                let (asked, kept) = (vec![batch, queries, heads], vec![batch, kv_heads, context]);
                let written = [asked.clone(), vec![size(shape.value_dim)]].concat();
                let q = Operand::new("q", formats.query, asked, size(shape.head_dim), 1.0, 3)?;
                let k = Operand::new("k", cached, kept.clone(), size(shape.head_dim), 1.0, 4)?.rotating();
                let v = Operand::new("v", cached, kept, size(shape.value_dim), 1.0, 5)?.rotating();
                (vec![q, k, v], formats.query, written)
            }
            op => {
                let reason = format!("{} is no product and no attention", op.words(&subject.site));
                return Err(Error::Unsupported { backend: "own", reason });
            }
        };
        let dtype = Dtype::of(output).ok_or_else(|| Error::Unsupported {
            backend: "own",
            reason: format!("results in {output} are not checked: it is fp32, fp16 or bf16"),
        })?;
        Ok(Self { op: subject.op, tensors, dtype, shape, limit: allowed(&subject.op, formats, output) })
    }

    /// Everything that a kernel is given, in this order.
    pub fn parts(&self) -> Vec<Part<'_>> {
        self.tensors.iter().flat_map(Operand::parts).collect()
    }

    /// Bytes of one copy of what is rotated.
    pub fn rotated(&self) -> Bytes {
        let rotated = self.parts().into_iter().filter(|part| part.rotated);
        Bytes::new(rotated.map(|part| part.size() as f64).sum())
    }

    /// What the result is counted as: its elements and its dimensions.
    pub fn output(&self) -> (Dtype, &[usize]) {
        (self.dtype, &self.shape)
    }

    /// How far `written` is from what it should be; the text of the error says what is wrong.
    pub fn check(&self, written: &Written) -> std::result::Result<Check, String> {
        let thick = |shape: &[usize]| shape.iter().copied().filter(|dim| *dim != 1).collect::<Vec<_>>();
        if thick(&written.shape) != thick(&self.shape) {
            return Err(format!("the result has the shape {:?} where {:?} is expected", written.shape, self.shape));
        }
        let refused = || format!("the result is {}: it is a float", written.dtype.name());
        let size = self.shape.iter().product::<usize>();
        if written.bytes.len() != size * written.dtype.size() {
            return Err(format!("{} bytes are no {size} numbers", written.bytes.len()));
        }
        let width = self.shape.last().copied().unwrap_or(1);
        let (rows, expected) = self.expected(size / width, width)?;
        let stride = width * written.dtype.size();
        let mut result = Vec::with_capacity(expected.len());
        for row in &rows {
            let bytes = &written.bytes[row * stride..(row + 1) * stride];
            result.extend(written.dtype.values(bytes).ok_or_else(refused)?);
        }
        let place = |at: usize| self.place(rows[at / width] * width + at % width);
        let broken = result.iter().filter(|value| !value.is_finite()).count();
        if let Some(at) = result.iter().position(|value| !value.is_finite()) {
            let all = result.len();
            return Err(format!("{broken} of {all} values are not finite: y{} is {}", place(at), result[at]));
        }
        Check::of(&result, &expected, self.limit).map_err(|reason| {
            let off = |at: &usize| (result[*at] - expected[*at]).abs();
            let worst = (0..result.len()).max_by(|one, other| off(one).total_cmp(&off(other))).unwrap_or(0);
            let (is, should) = (result[worst], expected[worst]);
            format!("{reason}; y{} is {is:.6} and should be {should:.6}", place(worst))
        })
    }

    /// Rows of the result that are compared, and what they should be.
    fn expected(&self, rows: usize, width: usize) -> std::result::Result<(Vec<usize>, Vec<f64>), String> {
        if let Op::Attention(shape) = &self.op {
            return self.attended(shape);
        }
        let rows = spread(rows, VALUES / width.max(1));
        let exact = exact::linear(&self.tensors[0].pattern, &self.tensors[1].pattern, &rows);
        Ok((rows, exact))
    }

    fn attended(&self, shape: &Attention) -> std::result::Result<(Vec<usize>, Vec<f64>), String> {
        let [q, k, v] = [0, 1, 2].map(|at| &self.tensors[at].pattern);
        let products = |dims: [Dim; 4]| dims.iter().map(|dim| dim.get() as usize).product::<usize>();
        let one = 2 * products([shape.batch, shape.heads, shape.context, shape.head_dim]);
        let (mut rows, mut expected) = (Vec::new(), Vec::new());
        for index in spread(shape.queries.get() as usize, PRODUCTS / one.max(1)) {
            let (own, exact) = exact::attention(shape, q, [k, v], index)?;
            rows.extend(own);
            expected.extend(exact);
        }
        Ok((rows, expected))
    }

    /// `[3, 17]`, of an element of the result.
    fn place(&self, at: usize) -> String {
        let mut rest = at;
        let mut place: Vec<String> = Vec::new();
        for dim in self.shape.iter().rev() {
            place.push((rest % dim).to_string());
            rest /= dim;
        }
        place.reverse();
        format!("[{}]", place.join(", "))
    }
}

/// What rounding may cost: that of the result, and of products where numbers are multiplied in 16 bit or less. Who runs a
/// kernel of theirs chooses its unit, so what any unit of the precision does is allowed.
fn allowed(op: &Op, formats: &Precision, output: Format) -> f64 {
    let narrow = formats.math == Math::Tf32 || formats.weights == Format::FP8;
    let through = match formats.activations {
        sixteen @ (Format::BF16 | Format::FP16) => sixteen,
        _ if narrow => Format::FP16,
        _ => Format::FP32,
    };
    match op {
        // As our own: exponentials are polynomials good to about 2^-20, and weights are rounded before they multiply.
        Op::Attention(_) => limit(output, formats.query).max(1e-4),
        _ => limit(output, through),
    }
}

impl Operand {
    fn new(name: &'static str, format: Format, lead: Vec<usize>, width: usize, scale: f32, seed: u64) -> Result<Self> {
        let refused = |reason: String| Error::Unsupported { backend: "own", reason };
        let plain = Dtype::of(format).is_some();
        if !plain && format.row_scales().is_none() {
            let reason = format!("operands in {format} have no arrays of their own for codes and scales");
            return Err(refused(reason));
        }
        if let Some(block) = format.block().filter(|block| !width.is_multiple_of(*block as usize)) {
            return Err(refused(format!("rows of {width} are no whole number of {format}'s blocks of {block}")));
        }
        let pattern = Pattern::new(format, lead.iter().product(), width, scale, seed)?;
        Ok(Self { name, pattern, lead, rotated: false })
    }

    fn rotating(self) -> Self {
        Self { rotated: true, ..self }
    }

    fn parts(&self) -> Vec<Part<'_>> {
        let encoded = self.pattern.encoded();
        let format = encoded.format();
        let codes = match format.element() {
            Element::Fp32 => Dtype::Float32,
            Element::Fp16 => Dtype::Float16,
            Element::Bf16 => Dtype::Bfloat16,
            Element::Fp8E4M3 => Dtype::Float8E4m3,
            Element::Fp8E5M2 => Dtype::Float8E5m2,
            // Codes above a zero point have no sign.
            Element::Int8 if encoded.zeros.is_empty() => Dtype::Int8,
            _ => Dtype::Uint8,
        };
        let scales = match format.row_scales() {
            Some(ScaleNumber::Bf16) => Dtype::Bfloat16,
            Some(ScaleNumber::Fp32) => Dtype::Float32,
            Some(ScaleNumber::E4M3) => Dtype::Float8E4m3,
            Some(ScaleNumber::E8M0) | None => Dtype::Uint8,
        };
        let of_rows = |suffix: &str, dtype: Dtype, pattern: &'_ [u8]| {
            let line = pattern.len() / self.pattern.distinct() / dtype.size();
            // A row with one scale has a number, not an array of one.
            let columns = (suffix.is_empty() || format.block().is_some()).then_some(line);
            let shape = self.lead.iter().copied().chain(columns).collect();
            (format!("{}{suffix}", self.name), dtype, shape)
        };
        let mut parts = Vec::new();
        let stored = [("", codes, &encoded.codes), ("_scales", scales, &encoded.scales)];
        for (suffix, dtype, pattern) in stored.into_iter().chain([("_zeros", Dtype::Uint8, &encoded.zeros)]) {
            if !pattern.is_empty() {
                let (name, dtype, shape) = of_rows(suffix, dtype, pattern);
                parts.push(Part { name, dtype, shape, rotated: self.rotated, pattern });
            }
        }
        if !encoded.tensor.is_empty() {
            let (name, pattern) = (format!("{}_tensor", self.name), encoded.tensor.as_slice());
            parts.push(Part { name, dtype: Dtype::Float32, shape: vec![pattern.len() / 4], rotated: false, pattern });
        }
        parts
    }
}

#[cfg(test)]
mod tests;
