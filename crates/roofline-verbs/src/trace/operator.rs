//! Operators of PyTorch as those of the core: what `aten::addmm` over these shapes has to compute and to move.
//!
//! Only what the shapes say for certain is lowered. An operator that is not here, a mask that cannot be read or operands of
//! several formats have no work, and what they took is told without a roof.

use roofline_core::{
    Dim,
    op::{Attention, Cache, Elementwise, ElementwiseKind, Linear, Op},
};
use serde_json::Value;

/// What a profiler noted of an operator's operands.
pub(super) struct Operands {
    /// One list for each argument; none for what is no tensor.
    pub(super) dims: Vec<Option<Vec<u64>>>,
    /// The number type of each argument, as C++ says it.
    pub(super) types: Vec<String>,
    /// Each argument's value in words, where it is no tensor.
    pub(super) values: Vec<String>,
}

/// What an operator computes, and in which precision it holds its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lowered {
    pub(super) op: Op,
    pub(super) precision: &'static str,
}

/// How an operator reads its arguments.
#[derive(Clone, Copy)]
enum Form {
    /// Two matrices, of which the first is this argument.
    Product(usize),
    /// Matrices in pairs, of which the first is this argument.
    Batch(usize),
    /// An input of any rank and a weight of `[n, k]`.
    Linear,
    /// Queries, keys and values; heads before tokens or after; who sees whom is in that argument.
    Attention { heads_first: bool, causal: usize },
    /// A row for each vector of the first argument.
    Rows(ElementwiseKind),
    /// Two of the same shape.
    Pair,
    /// Scores to probabilities.
    Softmax,
    /// Rows of a table.
    Lookup,
}

const fn attention(heads_first: bool, causal: usize) -> Form {
    Form::Attention { heads_first, causal }
}

const FORMS: &[(&str, Form)] = &[
    ("aten::mm", Form::Product(0)),
    ("aten::_int_mm", Form::Product(0)),
    ("aten::_scaled_mm", Form::Product(0)),
    ("aten::addmm", Form::Product(1)),
    ("aten::_addmm_activation", Form::Product(1)),
    ("aten::bmm", Form::Batch(0)),
    ("aten::baddbmm", Form::Batch(1)),
    ("aten::linear", Form::Linear),
    ("aten::mkldnn_linear", Form::Linear),
    ("aten::scaled_dot_product_attention", attention(true, 5)),
    ("aten::_scaled_dot_product_flash_attention", attention(true, 4)),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", attention(true, 4)),
    ("aten::_scaled_dot_product_efficient_attention", attention(true, 6)),
    ("aten::_scaled_dot_product_cudnn_attention", attention(true, 6)),
    ("aten::_cudnn_attention_forward", attention(true, 10)),
    ("aten::_flash_attention_forward", attention(false, 8)),
    ("aten::_efficient_attention_forward", attention(false, 9)),
    ("aten::layer_norm", Form::Rows(ElementwiseKind::Norm)),
    ("aten::native_layer_norm", Form::Rows(ElementwiseKind::Norm)),
    ("aten::rms_norm", Form::Rows(ElementwiseKind::Norm)),
    ("aten::_fused_rms_norm", Form::Rows(ElementwiseKind::Norm)),
    ("aten::gelu", Form::Rows(ElementwiseKind::Activation)),
    ("aten::silu", Form::Rows(ElementwiseKind::Activation)),
    ("aten::relu", Form::Rows(ElementwiseKind::Activation)),
    ("aten::sigmoid", Form::Rows(ElementwiseKind::Activation)),
    ("aten::tanh", Form::Rows(ElementwiseKind::Activation)),
    ("aten::add", Form::Pair),
    ("aten::add_", Form::Pair),
    ("aten::mul", Form::Pair),
    ("aten::mul_", Form::Pair),
    ("aten::softmax", Form::Softmax),
    ("aten::_softmax", Form::Softmax),
    ("aten::embedding", Form::Lookup),
    ("aten::index_select", Form::Lookup),
];

/// Whether an operator of that name has a formula.
pub(super) fn is_known(name: &str) -> bool {
    FORMS.iter().any(|(known, _)| *known == name)
}

/// What an operator has to do; none where its operands do not say.
pub(super) fn lowered(name: &str, operands: &Operands) -> Option<Lowered> {
    let (_, form) = FORMS.iter().find(|(known, _)| *known == name)?;
    let lowered = |op: Op, at: &[usize]| Some(Lowered { op: op.checked().ok()?, precision: operands.precision(at)? });
    match *form {
        Form::Product(first) => {
            let ([m, k], [inner, n]) = (operands.sides(first)?, operands.sides(first + 1)?);
            let op = Op::Linear(Linear::new(m, n, k).ok().filter(|_| inner == k)?);
            lowered(op, &[first, first + 1])
        }
        Form::Batch(first) => {
            let ([batch, m, k], [other, inner, n]) = (operands.sides(first)?, operands.sides(first + 1)?);
            // Products side by side move and compute what the scores of so many heads do.
            let op = Op::Scores(heads([batch, 1, 1, m, n, k, 1], false).filter(|_| (other, inner) == (batch, k))?);
            lowered(op, &[first, first + 1])
        }
        Form::Linear => {
            let ((rows, k), [n, inner]) = (operands.rows(0)?, operands.sides(1)?);
            let op = Op::Linear(Linear::new(rows, n, k).ok().filter(|_| inner == k)?);
            lowered(op, &[0, 1])
        }
        Form::Attention { heads_first, causal } => {
            let op = Op::Attention(operands.attention(heads_first, causal, name)?);
            lowered(op, &[0, 1, 2])
        }
        Form::Rows(kind) => {
            let (rows, width) = operands.rows(0)?;
            lowered(elementwise(kind, rows, width)?, &[0])
        }
        Form::Pair => {
            let (rows, width) = operands.rows(0)?;
            let same = operands.dims.get(1)? == operands.dims.first()?;
            lowered(elementwise(ElementwiseKind::Residual, rows, width).filter(|_| same)?, &[0, 1])
        }
        Form::Softmax => {
            let (rows, width) = operands.rows(0)?;
            lowered(Op::Softmax(heads([1, 1, 1, rows, width, 1, 1], false)?), &[0])
        }
        Form::Lookup => {
            let [_, width] = operands.sides(0)?;
            let at = if name == "aten::embedding" { 1 } else { 2 };
            let tokens = product(operands.dims.get(at)?.as_deref()?)?;
            lowered(elementwise(ElementwiseKind::Embedding, tokens, width)?, &[0])
        }
    }
}

fn elementwise(kind: ElementwiseKind, rows: u64, width: u64) -> Option<Op> {
    let width = Dim::new("width", width).ok()?;
    Some(Op::Elementwise(Elementwise { kind, tokens: rows.into(), vectors: Dim::ONE, width }))
}

/// Attention of batch, heads, key heads, queries, keys, and the widths of keys and values.
fn heads(sizes: [u64; 7], causal: bool) -> Option<Attention> {
    let dim = |at: usize| Dim::new("dimension", sizes[at]).ok();
    Some(Attention {
        batch: dim(0)?,
        heads: dim(1)?,
        kv_heads: dim(2)?,
        queries: dim(3)?,
        context: dim(4)?,
        head_dim: dim(5)?,
        value_dim: dim(6)?,
        causal,
        window: None,
        cache: Cache::Separate,
    })
}

fn product(dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim)).filter(|product| *product > 0)
}

impl Operands {
    /// Reads the three lists; what is not of the form that profilers write is as if it were not there.
    pub(super) fn read(dims: Option<&Value>, types: Option<&Value>, values: Option<&Value>) -> Option<Self> {
        let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
        let sizes = |value: &Value| -> Option<Vec<u64>> {
            value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()
        };
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let dims: Vec<Option<Vec<u64>>> = dims?.as_array()?.iter().map(sizes).collect();
        let (types, values) = (list(types).iter().map(text).collect(), list(values).iter().map(text).collect());
        Some(Self { dims, types, values })
    }

    fn sides<const RANK: usize>(&self, at: usize) -> Option<[u64; RANK]> {
        self.dims.get(at)?.as_deref()?.try_into().ok()
    }

    /// Rows of the last dimension, and its width.
    fn rows(&self, at: usize) -> Option<(u64, u64)> {
        let (width, outer) = self.dims.get(at)?.as_deref()?.split_last()?;
        Some((product(outer)?, *width))
    }

    fn attention(&self, heads_first: bool, causal: usize, name: &str) -> Option<Attention> {
        let in_order = |[batch, second, third, width]: [u64; 4]| {
            if heads_first { [batch, second, third, width] } else { [batch, third, second, width] }
        };
        let [batch, query_heads, queries, width] = in_order(self.sides(0)?);
        let [_, kv_heads, keys, inner] = in_order(self.sides(1)?);
        let [_, _, _, value_width] = in_order(self.sides(2)?);
        let causal = match self.values.get(causal)?.as_str() {
            "True" | "true" | "1" | "2" => true,
            "False" | "false" | "0" => false,
            _ => return None,
        };
        // A triangle that does not end at the last key counts from the first; only flash's always ends there.
        if inner != width || (causal && queries != keys && name != "aten::_flash_attention_forward") {
            return None;
        }
        heads([batch, query_heads, kv_heads, queries, keys, width, value_width], causal)
    }

    /// The precision that all of those arguments share.
    fn precision(&self, at: &[usize]) -> Option<&'static str> {
        let mut all = at.iter().map(|at| self.types.get(*at).map(String::as_str).and_then(precision));
        let first = all.next()??;
        all.all(|other| other == Some(first)).then_some(first)
    }
}

/// A number type of C++ as a precision.
fn precision(kind: &str) -> Option<&'static str> {
    Some(match kind.trim_start_matches("c10::") {
        "float" => "fp32",
        "BFloat16" => "bf16",
        "Half" => "fp16",
        "signed char" => "int8",
        "Float8_e4m3fn" => "fp8",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(name: &str, dims: &Value, kind: &str, values: &Value) -> Option<Lowered> {
        let types: Vec<&str> = dims.as_array().unwrap().iter().map(|_| kind).collect();
        lowered(name, &Operands::read(Some(dims), Some(&json!(types)), Some(values)).unwrap())
    }

    #[test]
    fn products_by_their_sides() {
        let linear = |m, n, k| Some(Op::Linear(Linear::new(m, n, k).unwrap()));
        let op = |name, dims| of(name, &dims, "c10::BFloat16", &json!([])).map(|lowered| lowered.op);
        assert_eq!(op("aten::mm", json!([[5, 7], [7, 9]])), linear(5, 9, 7));
        assert_eq!(op("aten::addmm", json!([[9], [5, 7], [7, 9], [], []])), linear(5, 9, 7));
        assert_eq!(op("aten::linear", json!([[2, 5, 7], [9, 7], [9]])), linear(10, 9, 7));
        // Sides that do not meet, sides that are missing, nothing to multiply.
        assert_eq!(op("aten::mm", json!([[5, 7], [8, 9]])), None);
        assert_eq!(op("aten::mm", json!([[5, 7]])), None);
        assert_eq!(op("aten::mm", json!([[5, 0], [0, 9]])), None);
        assert_eq!(op("aten::mm", json!([[[5, 7]], "x"])), None);
        assert_eq!(op("aten::linear", json!([[u64::MAX, 2, 7], [9, 7]])), None);
    }

    #[test]
    fn heads_stand_before_tokens_or_behind() {
        let shape = json!([[2, 8, 32, 64], [2, 4, 32, 64], [2, 4, 32, 64]]);
        let turned = json!([[2, 32, 8, 64], [2, 32, 4, 64], [2, 32, 4, 64]]);
        let first =
            of("aten::_scaled_dot_product_flash_attention", &shape, "c10::Half", &json!(["", "", "", "0.", "True"]));
        let last = json!(["", "", "", "", "", "", "", "0.", "True"]);
        let behind = of("aten::_flash_attention_forward", &turned, "c10::Half", &last);
        assert!(first.is_some());
        assert_eq!(first, behind);
        // Who sees whom is not known.
        assert_eq!(of("aten::_flash_attention_forward", &turned, "c10::Half", &json!([])), None);
    }

    #[test]
    fn operands_of_two_kinds_have_no_precision() {
        let operands = Operands::read(
            Some(&json!([[5, 7], [7, 9]])),
            Some(&json!(["float", "c10::Half"])),
            Some(&json!(["", ""])),
        );
        assert_eq!(lowered("aten::mm", &operands.unwrap()), None);
        assert_eq!(of("aten::mm", &json!([[5, 7], [7, 9]]), "double", &json!([])), None);
        assert!(of("aten::mm", &json!([[5, 7], [7, 9]]), "float", &json!([])).is_some());
    }
}
