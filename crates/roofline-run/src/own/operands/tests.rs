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
    let [x, w] = [0, 1].map(|at| &operands.tensors[at].pattern);
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
        let [x, w] = [0, 1].map(|at| &operands.tensors[at].pattern);
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
        let pattern = &operands.tensors[at].pattern;
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
