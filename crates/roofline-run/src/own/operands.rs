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
    operands: Vec<Operand>,
    dtype: Dtype,
    shape: Vec<usize>,
    limit: f64,
}

impl Operands {
    /// For `subject`; refused where kernels of others are not measured or the numbers have no layout that they could read.
    pub fn of(subject: &Subject) -> Result<Self> {
        let formats = &subject.formats;
        let size = |dim: Dim| dim.get() as usize;
        let (operands, output, shape) = match &subject.op {
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
        Ok(Self { op: subject.op, operands, dtype, shape, limit: allowed(&subject.op, formats, output) })
    }

    /// Everything that a kernel is given, in this order.
    pub fn parts(&self) -> Vec<Part<'_>> {
        self.operands.iter().flat_map(Operand::parts).collect()
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
        match &self.op {
            Op::Attention(shape) => self.attended(shape),
            _ => {
                let rows = spread(rows, VALUES / width.max(1));
                let exact = exact::linear(&self.operands[0].pattern, &self.operands[1].pattern, &rows);
                Ok((rows, exact))
            }
        }
    }

    fn attended(&self, shape: &Attention) -> std::result::Result<(Vec<usize>, Vec<f64>), String> {
        let [q, k, v] = [0, 1, 2].map(|at| &self.operands[at].pattern);
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
mod tests {
    use roofline_core::{Graph, Registry, graph::Node, precision::PrecisionSpec};

    use super::*;

    fn subject(node: &Node, precision: &str) -> Subject {
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        Subject::new(node, precision, precision.parse::<PrecisionSpec>().unwrap().on(&h200).unwrap())
    }

    fn product(m: u64, n: u64, k: u64, precision: &str) -> Result<Operands> {
        Operands::of(&subject(&Graph::gemm(m, n, k).unwrap().nodes[0], precision))
    }

    /// The product of what parts hold, in FP32, as somebody's kernel would compute it.
    fn computed(operands: &Operands) -> Written {
        let [x, w] = [0, 1].map(|at| &operands.operands[at].pattern);
        let dot = |row: &[f32], column: &[f32]| row.iter().zip(column).map(|(x, w)| x * w).sum::<f32>();
        let values = (0..x.rows).flat_map(|row| (0..w.rows).map(move |column| dot(x.row(row), w.row(column))));
        let bytes = values.flat_map(f32::to_le_bytes).collect();
        Written { dtype: Dtype::Float32, shape: operands.shape.clone(), bytes }
    }

    #[test]
    fn a_right_result_passes_and_a_wrong_value_is_named() {
        let operands = product(3, 70, 128, "fp32").unwrap();
        let right = computed(&operands);
        let check = operands.check(&right).unwrap();
        assert_eq!(check.values, 210);
        assert!(check.error < check.limit);
        let mut wrong = right.clone();
        wrong.bytes[(70 + 5) * 4..][..4].copy_from_slice(&9f32.to_le_bytes());
        let reason = operands.check(&wrong).unwrap_err();
        assert!(reason.contains("y[1, 5] is 9.000000 and should be"), "{reason}");
        let mut broken = right.clone();
        broken.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(operands.check(&broken).unwrap_err(), "1 of 210 values are not finite: y[0, 0] is NaN");
        let flat = Written { shape: vec![70, 3], ..right.clone() };
        assert!(operands.check(&flat).unwrap_err().contains("[70, 3] where [3, 70] is expected"));
        let thin = Written { shape: vec![1, 3, 1, 70], ..right.clone() };
        assert!(operands.check(&thin).is_ok(), "a dimension of one is no mistake");
        let integers = Written { dtype: Dtype::Int8, bytes: vec![0; 210], ..right.clone() };
        assert!(operands.check(&integers).unwrap_err().contains("int8"));
        let short = Written { bytes: right.bytes[4..].to_vec(), ..right };
        assert!(operands.check(&short).unwrap_err().contains("are no 210 numbers"));
    }

    /// A kernel that forgets the last column of k is off by 1/sqrt(k), far beyond rounding to 16 bit.
    #[test]
    fn a_kernel_that_stops_too_early_is_noticed() {
        for precision in ["fp32", "bf16", "w8a16", "w4a16", "fp8"] {
            let operands = product(2, 64, 4096, precision).unwrap();
            assert!(operands.check(&computed(&operands)).is_ok(), "{precision}");
            let [x, w] = [0, 1].map(|at| &operands.operands[at].pattern);
            let dot = |row: &[f32], column: &[f32]| row[1..].iter().zip(&column[1..]).map(|(x, w)| x * w).sum::<f32>();
            let values = (0..2).flat_map(|row| (0..64).map(move |column| dot(x.row(row), w.row(column))));
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            let off = Written { dtype: Dtype::Float32, shape: vec![2, 64], bytes };
            assert!(operands.check(&off).is_err(), "{precision}");
        }
    }

    /// Arrays together have the bytes that the operator reads.
    #[test]
    fn parts_have_names_shapes_and_exact_sizes() {
        let parts = |precision: &str| -> Vec<(String, &'static str, Vec<usize>, bool)> {
            let operands = product(2, 64, 256, precision).unwrap();
            let subject = subject(&Graph::gemm(2, 64, 256).unwrap().nodes[0], precision);
            let read = subject.op.work(&subject.formats, roofline_core::format::Sizes::Exact).read;
            let sum: usize = operands.parts().iter().map(|part| part.bytes().len()).sum();
            assert_eq!(sum as f64, read.value(), "{precision}");
            let told = |part: Part<'_>| (part.name.clone(), part.dtype.name(), part.shape.clone(), part.rotated);
            operands.parts().into_iter().map(told).collect()
        };
        let named = |name: &str, dtype, shape: &[usize], rotated| (name.to_owned(), dtype, shape.to_vec(), rotated);
        assert_eq!(parts("bf16"), [named("x", "bfloat16", &[2, 256], false), named("w", "bfloat16", &[64, 256], true)]);
        assert_eq!(
            parts("int8"),
            [
                named("x", "int8", &[2, 256], false),
                named("x_scales", "bfloat16", &[2], false),
                named("w", "int8", &[64, 256], true),
                named("w_scales", "bfloat16", &[64], true),
            ]
        );
        let grouped = parts("w4a16");
        assert_eq!(grouped[1], named("w", "uint8", &[64, 128], true));
        assert_eq!(grouped[2], named("w_scales", "bfloat16", &[64, 2], true));
        assert_eq!(parts("fp8a16")[1], named("w", "float8_e4m3fn", &[64, 256], true));
        assert_eq!(parts("nvfp4a16")[3], named("w_tensor", "float32", &[1], false));
        assert_eq!(parts("mxfp4a16")[2], named("w_scales", "uint8", &[64, 8], true));
        assert_eq!(parts("int4-g128-zp/bf16")[3], named("w_zeros", "uint8", &[64, 1], true));
        let vector = product(1, 64, 256, "fp32").unwrap();
        assert_eq!((&vector.parts()[0].shape[..], vector.output().1), (&[256][..], &[64][..]));
        assert!(vector.parts().iter().all(|part| part.bytes().iter().any(|byte| *byte != 0)));
    }

    #[test]
    fn what_has_no_arrays_is_refused() {
        let refused = |n, k, precision: &str| product(1, n, k, precision).err().unwrap().to_string();
        assert!(refused(64, 256, "q4_k/bf16").contains("q4_k"), "{}", refused(64, 256, "q4_k/bf16"));
        assert!(refused(64, 100, "w4a16").contains("rows of 100"));
        let ffn = Graph::ffn(
            roofline_core::graph::Ffn {
                tokens: Dim::ONE,
                hidden: Dim::new("hidden", 64).unwrap(),
                inner: Dim::new("inner", 64).unwrap(),
                gated: true,
            },
            true,
        );
        let node = ffn.nodes.iter().find(|node| !matches!(node.op, Op::Linear(_))).unwrap();
        assert!(Operands::of(&subject(node, "bf16")).err().unwrap().to_string().contains("no product"));
    }

    #[test]
    fn attention_is_checked_query_by_query() {
        let dim = |value| Dim::new("x", value).unwrap();
        let shape = Attention {
            batch: dim(2),
            heads: dim(4),
            kv_heads: dim(2),
            head_dim: dim(16),
            value_dim: dim(16),
            queries: dim(3),
            context: dim(37),
            causal: true,
            window: None,
            cache: Cache::Separate,
        };
        let operands = Operands::of(&subject(&Graph::attention(shape, true).nodes[0], "fp32")).unwrap();
        let names: Vec<String> = operands.parts().into_iter().map(|part| part.name).collect();
        assert_eq!(names, ["q", "k", "v"]);
        // All of it by the reference at once, whose causal mask is written otherwise.
        let whole = |at: usize| -> Vec<f32> {
            let pattern = &operands.operands[at].pattern;
            (0..pattern.rows).flat_map(|row| pattern.row(row)).copied().collect()
        };
        let exact = crate::reference::attention::attention(&shape, &whole(0), &whole(1), &whole(2));
        let bytes: Vec<u8> = exact.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
        let right = Written { dtype: Dtype::Float32, shape: vec![2, 3, 4, 16], bytes };
        assert_eq!(operands.check(&right).unwrap().values, 2 * 3 * 4 * 16);
        let mut wrong = right;
        // The sign of a number.
        wrong.bytes[103] ^= 0x80;
        assert!(operands.check(&wrong).is_err());
    }
}
