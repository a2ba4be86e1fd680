//! Weights as torchao's tensor subclasses hold them, which it stores flattened into plain tensors.
//!
//! With [`Method::Rtn`] the bytes are torchao 0.18's own, but for FP8 rows whose scale it rounds to zero - all-zero
//! ones above all - and stores codes that are not numbers.

mod int4;
mod int8;
mod intx;

use std::{fmt, marker::PhantomData};

use super::{
    Block, Coding, Matrix, Part, Placing, Unsuited,
    element::E4M3_MAX,
    float8,
    grid::E4m3,
    row::{code, expand, peaks},
    scales::Span,
};
use crate::{
    Dtype, Error, Method, Result,
    kernel_form::{CodesMut, KernelForm},
    rounding::{F32, Rounding, in_type},
};
use int4::Int4;
use int8::Int8;
use intx::Intx;

/// Which tensor subclass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `Int8Tensor`, with a scale per row or per group.
    Int8 {
        /// Weights that share a scale; a row's where there is none.
        group: Option<u32>,
    },
    /// `Float8Tensor` with a scale per row.
    Float8,
    /// `Int4Tensor` in its plain layout, with a scale and a zero point per group.
    Int4 {
        /// Weights that share a scale.
        group: u32,
    },
    /// `IntxUnpackedToInt8Tensor`: a byte for each integer of fewer bits, which kernels for CPUs pack when they load it.
    Intx {
        /// 2 to 8.
        bits: u8,
        /// Weights that share a scale; a row's where there is none.
        group: Option<u32>,
        /// Whether there are zero points other than zero.
        zero: bool,
    },
}

impl Scheme {
    /// The methods it can be quantized by.
    pub fn methods(self) -> &'static [Method] {
        match self {
            Self::Int8 { .. } => &[Method::Rtn, Method::Mse],
            Self::Float8 | Self::Intx { .. } => &[Method::Rtn],
            Self::Int4 { .. } => &[Method::Rtn, Method::Mse, Method::Hqq],
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int8 { group: None } => f.write_str("INT8 per row"),
            Self::Int8 { group: Some(group) } => write!(f, "INT8 in groups of {group}"),
            Self::Float8 => f.write_str("FP8 per row"),
            Self::Int4 { group } => write!(f, "INT4 in groups of {group} with zero points"),
            Self::Intx { bits, group, zero } => {
                write!(f, "INT{bits} in bytes")?;
                match group {
                    None => f.write_str(" per row")?,
                    Some(group) => write!(f, " in groups of {group}")?,
                }
                f.write_str(if *zero { " with zero points" } else { "" })
            }
        }
    }
}

/// The coding of `scheme` for a model whose weights are of `dtype`.
pub fn coding(scheme: Scheme, dtype: Dtype, method: Method) -> Result<Box<dyn Coding>> {
    method.among(scheme.methods(), &scheme.to_string())?;
    if let Scheme::Intx { bits: bits @ (0..2 | 9..), .. } = scheme {
        return Err(Error::unsupported(format!("there are no integers of {bits} bits"), "take 2 to 8 bits"));
    }
    if matches!(
        scheme,
        Scheme::Int8 { group: Some(0) } | Scheme::Int4 { group: 0 } | Scheme::Intx { group: Some(0), .. }
    ) {
        return Err(Error::unsupported("no weights share a scale in groups of 0", "take groups of 32, 64 or 128"));
    }
    in_type!(dtype, of(scheme, method))
}

fn of<R: Rounding>(scheme: Scheme, method: Method) -> Box<dyn Coding> {
    match scheme {
        Scheme::Int8 { group } => Box::new(Int8::<R>::new(group, method)),
        Scheme::Float8 => Box::new(Float8::<R>(PhantomData)),
        Scheme::Int4 { group } => Box::new(Int4::<R>::new(group, method)),
        Scheme::Intx { bits, group, zero } => Box::new(Intx::<R>::new(bits, group, zero)),
    }
}

/// The parts of a matrix of bytes: a scale of the type `S` and a zero point of eight bits for every group.
fn byte_parts<S: Rounding>(span: Span, matrix: Matrix) -> std::result::Result<Vec<Part>, Unsuited> {
    let Matrix { rows, columns } = matrix;
    let groups = span.groups(columns)?;
    let bytes = |name, wide| {
        let placing = Placing::Rows { rows: 1, bytes: wide };
        Part { name, dtype: Dtype::I8, shape: vec![rows, wide], placing }
    };
    Ok(vec![bytes("qdata", columns), Span::part::<S>("scale", rows, groups), bytes("zero_point", groups)])
}

/// E4M3 with an FP32 scale per row: `s = R(amax / 448)`, `q = e4m3(clamp(w / s))` in FP32.
struct Float8<R>(PhantomData<R>);

/// A negative zero as zero point leaves a weight's sign alone.
const SIGNED: [f32; 1] = [-0.0];

impl<R: Rounding> Coding for Float8<R> {
    fn parts(&self, matrix: Matrix) -> std::result::Result<Vec<Part>, Unsuited> {
        let groups = Span::Row.groups(matrix.columns)?;
        let codes = Part { name: "qdata", ..float8::codes_part(matrix) };
        Ok(vec![codes, Span::part::<F32>("scale", matrix.rows, groups)])
    }

    fn encode(&self, block: Block<'_>, out: &mut [&mut [u8]], decoded: &mut [f32]) -> u64 {
        let [codes, scales] = out else { unreachable!("a buffer for each part") };
        let (columns, element) = (block.columns, E4m3::<F32>(PhantomData));
        let rows = block.values.chunks_exact(columns).zip(decoded.chunks_exact_mut(columns));
        let mut outside = 0;
        for ((row, decoded), (codes, stored)) in
            rows.zip(codes.chunks_exact_mut(columns).zip(scales.chunks_exact_mut(4)))
        {
            let mut peak = [0.0];
            peaks(row, columns, &mut peak);
            let (scale, rounded) = (peak[0] / E4M3_MAX, R::round(peak[0] / E4M3_MAX));
            let scale = [if rounded == 0.0 { scale.max(f32::MIN_POSITIVE) } else { rounded }];
            F32::write(scale[0], stored);
            outside += code(element, row, columns, &scale, &SIGNED, codes);
            expand(element, codes, columns, &scale, &SIGNED, decoded);
        }
        outside
    }

    fn decode(&self, columns: usize, parts: &[&[u8]], decoded: &mut [f32]) {
        let stored = parts[0].chunks_exact(columns).zip(parts[1].chunks_exact(4));
        for (decoded, (codes, stored)) in decoded.chunks_exact_mut(columns).zip(stored) {
            expand(E4m3::<F32>(PhantomData), codes, columns, &[F32::read(stored)], &SIGNED, decoded);
        }
    }

    fn kernel_form(&self, matrix: Matrix) -> Option<KernelForm> {
        float8::form::<F32>(matrix)
    }

    fn arrange(&self, _columns: usize, parts: &[&[u8]], into: CodesMut<'_>) -> std::result::Result<(), Unsuited> {
        float8::arrange::<F32>(parts, into);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::{
        Placing,
        golden::{Golden, store},
    };

    fn scheme(name: &str) -> Scheme {
        let group = name.split('-').find_map(|word| word.strip_prefix('g')).map(|group| group.parse().unwrap());
        match name.split('-').nth(1).unwrap() {
            "int8" => Scheme::Int8 { group },
            "fp8" => Scheme::Float8,
            "int4" => Scheme::Int4 { group: group.unwrap() },
            "intx4" => Scheme::Intx { bits: 4, group, zero: name.ends_with("-zp") },
            other => panic!("{other}"),
        }
    }

    #[test]
    fn bytes_are_those_of_the_library() {
        let mut golden = Golden::read();
        // The row of zeros, whose codes are not numbers.
        golden.replace("torchao-fp8", "qdata", 5 * 256..6 * 256, 0);
        golden.replace("torchao-fp8", "scale", 5 * 4..6 * 4, 0);
        golden.replace("torchao-fp8", "scale", 5 * 4 + 2..5 * 4 + 3, 0x80);
        let compared = golden.compare("torchao", |name, dtype, _| coding(scheme(name), dtype, Method::Rtn).unwrap());
        assert_eq!(compared, 4 + 12);
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        for scheme in [Scheme::Float8, Scheme::Int8 { group: None }, Scheme::Int4 { group: 32 }] {
            let stored = store(&*coding(scheme, Dtype::Bf16, Method::Rtn).unwrap(), &[0.0; 64], 32, None);
            assert!(stored.decoded.iter().all(|value| *value == 0.0), "{scheme:?}");
            assert_eq!(stored.outside, 0);
        }
    }

    #[test]
    fn int4_is_transposed() {
        let coding = coding(Scheme::Int4 { group: 32 }, Dtype::Bf16, Method::Rtn).unwrap();
        let parts = coding.parts(Matrix { rows: 3, columns: 64 }).unwrap();
        let shapes: Vec<_> = parts.iter().map(|part| (part.name, part.dtype, part.shape.clone())).collect();
        let transposed = |name| (name, Dtype::Bf16, vec![2, 3]);
        assert_eq!(shapes, [("qdata", Dtype::I8, vec![3, 32]), transposed("scale"), transposed("zero_point")]);
        assert_eq!(parts[1].placing, Placing::Columns { lines: 2, rows: 1, bytes: 2 });
        assert!(coding.parts(Matrix { rows: 3, columns: 48 }).is_err());
    }
}
