use roofline_core::{Registry, measurement::Subject, precision::PrecisionSpec};

use super::*;

const GEMV: &str = r#"
source = "kernels/gemv.cu"
entry = "gemv"
op = "gemv"
precision = "w8a16"
n = [4096, 14336]
k = "1024..4096"
block = [32, "2 * 4"]
grid = "min(ceil_div(n, 8), 2 * multiprocessors)"
shared = "4 * k"
arguments = ["x", "w", "w_scales", "y", "n", "k"]
[defines]
ROWS = 8
STEPS = "k / threads"
"#;

fn parse(text: &str) -> Result<Manifest> {
    Manifest::parse(text, Path::new("folder/gemv.toml"))
}

/// The manifest with one line replaced.
fn with(field: &str, line: &str) -> String {
    let mut found = false;
    let lines = GEMV.lines().map(|old| {
        let is = old.starts_with(&format!("{field} ="));
        found |= is;
        if is { line } else { old }
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    if found { text } else { format!("{line}\n{text}") }
}

fn why(text: &str) -> (String, String) {
    let error = parse(text).unwrap_err();
    assert!(error.is_input(), "{error}");
    (error.to_string(), error.hint().unwrap_or_default())
}

fn operands(manifest: &Manifest, shape: &Shape) -> Operands {
    let h200 = Registry::builtin().find("h200").unwrap().into_owned();
    let formats = manifest.precision.parse::<PrecisionSpec>().unwrap().on(&h200).unwrap();
    Operands::of(&Subject::new(&manifest.graph(shape).unwrap().nodes[0], "x", formats)).unwrap()
}

#[test]
fn shapes_are_every_combination() {
    let manifest = parse(GEMV).unwrap();
    let shapes: Vec<Vec<u64>> =
        manifest.shapes().iter().map(|shape| shape.0.iter().map(|(_, size)| *size).collect()).collect();
    assert_eq!(shapes, [[4096, 1024], [4096, 2048], [4096, 4096], [14336, 1024], [14336, 2048], [14336, 4096]]);
    assert_eq!((manifest.name.as_str(), manifest.kind), ("gemv", Kind::Gemv));
}

#[test]
fn a_kernel_has_its_numbers() {
    let manifest = parse(GEMV).unwrap();
    let shape = &manifest.shapes()[0];
    let kernel = manifest.kernel(shape, &operands(&manifest, shape), "text".to_owned(), 132).unwrap();
    assert_eq!((kernel.block, kernel.grid, kernel.shared), ([32, 8, 1], [264, 1, 1], 4096));
    assert_eq!(kernel.defines, [("ROWS".to_owned(), 8), ("STEPS".to_owned(), 4)]);
    assert_eq!(kernel.folder.as_deref(), Some(Path::new("folder/kernels")));
    let array = |name: &str| Argument::Array(name.to_owned());
    let arguments = [array("x"), array("w"), array("w_scales"), Argument::Output];
    assert_eq!(kernel.arguments[..4], arguments);
    assert_eq!(kernel.arguments[4..], [Argument::Count("n", 4096), Argument::Count("k", 1024)]);
}

#[test]
fn attention_fills_in_what_is_left_out() {
    let text = r#"
source = "a.cu"
entry = "a"
op = "attention"
precision = "bf16"
heads = 8
head_dim = 128
context = 1024
block = 128
grid = "batch * heads"
arguments = ["q", "k", "v", "y", "context", "kv_heads"]
"#;
    let manifest = parse(text).unwrap();
    let shape = &manifest.shapes()[0];
    let kernel = manifest.kernel(shape, &operands(&manifest, shape), String::new(), 1).unwrap();
    assert_eq!(kernel.grid, [8, 1, 1]);
    // Keys, not the columns of a product.
    assert_eq!(kernel.arguments[1], Argument::Array("k".to_owned()));
    assert_eq!(kernel.arguments[5], Argument::Count("kv_heads", 8));
    let (message, _) = why(&text.replace("heads = 8", "heads = 8\nkv_heads = 3"));
    assert!(message.contains('3'), "{message}");
}

#[test]
fn what_is_wrong_is_named_with_its_value_and_what_is_allowed() {
    let cases = [
        (with("sorce", "sorce = 1"), "unknown field `sorce`; did you mean `source`?", "fields: name, source"),
        (with("source", ""), "`source` is missing", "relative to the manifest"),
        (with("source", "source = 7"), "`source` is 7", "it is a text"),
        (with("entry", "entry = \"a b\""), "`entry` is \"a b\"", "the name of a function in C"),
        (with("op", "op = \"gemw\""), "`op` is \"gemw\"", "gemv, gemm or attention"),
        (with("m", "m = 4"), "`m` is 4", "gemv has the dimensions n, k"),
        (with("n", "n = 0"), "`n` is 0", "from 1 to 2147483647"),
        (with("n", "n = -4"), "`n` is -4", "from 1 to 2147483647"),
        (with("n", "n = []"), "`n` is []", "one, a list, or a range"),
        (with("n", "n = \"8..1\""), "`n` is \"8..1\"", "a range such as"),
        (with("n", ""), "`n` is missing", "a range such as"),
        (with("k", "k = \"1..1000000000+1\""), "`k` is", "a range such as"),
        (with("k", "k = \"1..40+1\""), "make 80 shapes", "64 at most"),
        (with("causal", "causal = true"), "`causal` is true", "only attention"),
        (with("block", "block = 0"), "`block` is 0 in x", "from 1 to 1024"),
        (with("block", "block = 2048"), "`block` is 2048 in x", "from 1 to 1024"),
        (with("block", "block = [64, 64]"), "`block` has 4096 threads", "1024 at most"),
        (with("block", "block = [1, 1, 65]"), "`block` is 65 in z", "from 1 to 64"),
        (with("block", "block = [1, 1, 1, 1]"), "`block` is [1, 1, 1, 1]", "one to three"),
        (with("block", "block = 1.5"), "`block` is 1.5", "a count"),
        (with("grid", "grid = [1, 65536]"), "`grid` is 65536 in y", "from 1 to 65535"),
        (with("grid", "grid = \"rows\""), "`grid` is `rows`, which names `rows`", "multiprocessors, threads"),
        (with("grid", "grid = \"n / (k - k)\""), "`grid` is `n / (k - k)`, which divides 4096 by 0", "ceil_div"),
        (with("grid", ""), "`grid` is missing", "a count"),
        (with("shared", "shared = 2000000"), "`shared` is 2000000 bytes", "227 KiB"),
        (with("shared", "shared = -1"), "`shared` is -1", "from 0 on"),
        (with("arguments", "arguments = [\"x\", \"w\"]"), "`arguments` is", "`y`, where the result goes"),
        (with("arguments", "arguments = [\"x\", \"q\", \"y\"]"), "unknown argument `q`", "w_scales"),
        (with("arguments", "arguments = [1]"), "unknown argument `1`", "in the order"),
        (with("arguments", "arguments = []"), "`arguments` is []", "in the order"),
        ("source = ".to_owned(), "line 1: ", "TOML"),
        (GEMV.replace("ROWS = 8", "\"a b\" = 8"), "`defines` is", "names of C"),
        ("#".repeat(LONGEST + 1), "too long", "at most"),
    ];
    for (text, message, hint) in cases {
        let (said, hinted) = why(&text);
        assert!(said.starts_with("folder/gemv.toml: ") && said.contains(message), "{message}: {said}");
        assert!(hinted.contains(hint), "{message}: {hinted}");
    }
}

#[test]
fn an_array_that_the_precision_lacks_is_named() {
    let manifest = parse(&with("precision", "precision = \"bf16\"")).unwrap();
    let shape = &manifest.shapes()[0];
    let error = manifest.kernel(shape, &operands(&manifest, shape), String::new(), 1).unwrap_err();
    assert!(error.to_string().contains("bf16 has no array `w_scales`"), "{error}");
    assert_eq!(error.hint().unwrap(), "it has x, w");
}

proptest::proptest! {
    /// Whatever a file holds, it is refused or read.
    #[test]
    fn any_text_is_a_manifest_or_an_error(field in "[a-z_]{1,12}", value in ".{0,40}") {
        let _ = parse(&with(&field, &format!("{field} = {value}")));
        let _ = parse(&value);
    }
}
