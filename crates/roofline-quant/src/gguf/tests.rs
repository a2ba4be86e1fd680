use std::iter;

use proptest::prelude::*;

use super::*;

type Metadata = Vec<(String, Value)>;
type Tensors = Vec<(String, Vec<u64>, Type)>;

/// A file of these, with data of zeros.
fn file(metadata: &[(String, Value)], tensors: &[(String, Vec<u64>, Type)]) -> Vec<u8> {
    let head = head(metadata, tensors).unwrap();
    let mut file = head.bytes;
    file.resize(head.length as usize, 0);
    file
}

fn parse(file: &[u8]) -> Result<Header, String> {
    Header::parse(file, file.len() as u64)
}

fn small() -> (Metadata, Tensors) {
    let metadata = vec![
        ("general.architecture".to_owned(), Value::from("llama")),
        ("llama.block_count".to_owned(), Value::U32(2)),
        ("tokens".to_owned(), Value::Array(Array::String(vec!["a".to_owned(), "bc".to_owned()]))),
    ];
    let tensors = vec![("norm".to_owned(), vec![3], Type::F32), ("q.weight".to_owned(), vec![256, 2], Type::Q4K)];
    (metadata, tensors)
}

/// Where `needle` begins in `file`.
fn position(file: &[u8], needle: &[u8]) -> usize {
    (0..file.len()).find(|at| file[*at..].starts_with(needle)).unwrap()
}

#[test]
fn a_head_is_laid_out_as_the_format_says() {
    let (metadata, tensors) = small();
    let head = head(&metadata, &tensors).unwrap();
    let start = head.bytes.len() as u64;
    assert_eq!(start % 32, 0);
    assert_eq!(head.bytes[..24], *b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0");
    assert_eq!(head.bytes[24..32], 20u64.to_le_bytes());
    assert_eq!(head.bytes[52..64], *b"\x08\0\0\0\x05\0\0\0\0\0\0\0");
    // 12 bytes of the norm are padded to 32, 2 x 144 of the weight are a multiple already.
    assert_eq!((head.offsets, head.length), (vec![start, start + 32], start + 320));
}

#[test]
fn what_was_written_is_read() {
    let (metadata, tensors) = small();
    let header = parse(&file(&metadata, &tensors)).unwrap();
    assert_eq!(header.metadata, metadata);
    assert_eq!(header.tensor("q.weight").unwrap().dims, [256, 2]);
    assert_eq!(header.tensor("q.weight").unwrap().offset, 32);
    assert_eq!(header.get("general.architecture").unwrap().as_str(), Some("llama"));
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let (metadata, tensors) = small();
    let file = file(&metadata, &tensors);
    for length in 0..file.len() {
        assert!(parse(&file[..length]).is_err(), "{length}");
        // As if the file system said one thing and the disk another.
        if length < position(&file, b"q.weight") {
            assert!(Header::parse(&file[..length], file.len() as u64).is_err(), "{length}");
        }
    }
}

#[test]
fn a_byte_changed_anywhere_never_panics() {
    let (metadata, tensors) = small();
    let file = file(&metadata, &tensors);
    for at in 0..file.len() - 320 {
        for byte in [0, 1, 9, 0x7f, 0xff] {
            let mut changed = file.clone();
            changed[at] = byte;
            let _ = parse(&changed);
        }
    }
}

/// What is said of a file where the bytes after the first `before` are replaced by `with`.
fn said(before: &[u8], with: &[u8]) -> String {
    let (metadata, tensors) = small();
    let mut file = file(&metadata, &tensors);
    let at = position(&file, before) + before.len();
    file[at..at + with.len()].copy_from_slice(with);
    parse(&file).unwrap_err()
}

#[test]
fn what_is_wrong_is_said_by_name() {
    for (before, with, reason) in [
        (&b""[..], &b"GGML"[..], "does not begin with `GGUF`"),
        (b"GGUF", &[0, 0, 0, 3], "big-endian"),
        (b"GGUF", &[9, 0, 0, 0], "version 9"),
        (b"GGUF\x03\0\0\0", &[0xff; 8], "claims 18446744073709551615 tensors"),
        (b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0", &[0, 0, 0, 1], "claims 16777216 keys"),
        (b"general.architecture", &[77], "`general.architecture` has the type 77"),
        (b"general.architecture\x08\0\0\0", &[0xff; 4], "`general.architecture` claims 4294967295 bytes"),
        (b"tokens\x09\0\0\0\x08\0\0\0", &[0, 0, 1], "`tokens` claims 65536 items"),
        (b"norm", &[5], "`norm` has 5 dimensions"),
        (b"norm\x01\0\0\0", &[0], "no size"),
        (b"norm\x01\0\0\0\x03\0\0\0\0\0\0\0", &[99], "`norm` has the type 99"),
        (b"norm\x01\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0", &[1], "`norm` begins at 1, no multiple of 32"),
        (b"norm\x01\0\0\0", &[20], "overlap"),
        (b"norm\x01\0\0\0", &[0, 0, 1], "`norm` ends beyond"),
        (b"q.weight\x02\0\0\0", &[200, 0], "`q.weight` has 200 columns, no multiple of the block of 256"),
        (b"q.weight\x02\0\0\0\0\x01\0\0\0\0\0\0", &[0xff; 8], "no size"),
    ] {
        let said = said(before, with);
        assert!(said.contains(reason), "{said:?} lacks {reason:?}");
    }
}

#[test]
fn a_long_file_does_not_make_a_long_head() {
    // As many strings as a file of a terabyte has room for, in a file that is one hole but for its first bytes.
    let mut start = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\x09\0\0\0\x08\0\0\0".to_vec();
    start.extend((1u64 << 36).to_le_bytes());
    let hole = std::io::Read::chain(&start[..], std::io::repeat(0));
    let said = Header::parse(hole, 1 << 40).unwrap_err();
    assert!(said.starts_with("the key `k` claims 68719476736 items, more than the 1342"), "{said}");
}

#[test]
fn alignments_that_are_none_are_refused() {
    for (value, good) in [
        (Value::U32(64), true),
        (Value::U32(0), false),
        (Value::U32(48), false),
        (Value::U32(1 << 31), false),
        (Value::from("32"), false),
    ] {
        let (_, tensors) = small();
        let metadata = [("general.alignment".to_owned(), value)];
        match head(&metadata, &tensors) {
            Ok(head) => assert!(good && head.bytes.len() % 64 == 0 && head.offsets[1] % 64 == 0),
            Err(error) => assert!(!good && error.to_string().contains("general.alignment"), "{error}"),
        }
    }
}

#[test]
fn names_and_keys_are_unique() {
    let (mut metadata, mut tensors) = small();
    metadata.push(metadata[0].clone());
    assert!(parse(&file(&metadata, &tensors)).unwrap_err().contains("`general.architecture` is there twice"));
    metadata.pop();
    tensors.push(tensors[0].clone());
    assert!(parse(&file(&metadata, &tensors)).unwrap_err().contains("`norm` is there twice"));
}

#[test]
fn arrays_nest_four_deep_and_no_deeper() {
    let nested = |deep: usize| (0..deep).fold(Array::U8(vec![1, 2]), |inner, _| Array::Array(vec![inner]));
    for (deep, good) in [(3, true), (4, false), (200, false)] {
        let file = file(&[("deep".to_owned(), Value::Array(nested(deep)))], &[]);
        assert_eq!(parse(&file).is_ok(), good, "{deep}");
    }
}

#[test]
fn names_too_long_for_ggml_are_refused() {
    let tensors = [("x".repeat(64), vec![1], Type::F32)];
    assert!(head(&[], &tensors).unwrap_err().to_string().contains("64 bytes"));
    assert!(head(&[], &[("x".to_owned(), vec![100], Type::Q8_0)]).unwrap_err().to_string().contains("Q8_0"));
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<f32>().prop_filter("comparable", |x| !x.is_nan()).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        prop::collection::vec(".{0,9}", 0..9).prop_map(|items| Value::Array(Array::String(items))),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(|items| Value::Array(Array::I32(items))),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(|items| Value::Array(Array::Bool(items))),
    ]
}

fn any_tensor() -> impl Strategy<Value = (Vec<u64>, Type)> {
    const TYPES: [Type; 8] =
        [Type::F32, Type::F16, Type::Bf16, Type::Q8_0, Type::Q4K, Type::Nvfp4, Type::Iq2Xs, Type::I64];
    (prop::sample::select(&TYPES[..]), 1..4u64, prop::collection::vec(1..5u64, 0..3))
        .prop_map(|(ty, blocks, rest)| (iter::once(blocks * ty.block() as u64).chain(rest).collect(), ty))
}

proptest! {
    #[test]
    fn anything_written_is_read_back(
        values in prop::collection::vec(any_value(), 0..8),
        shapes in prop::collection::vec(any_tensor(), 0..8),
    ) {
        let metadata: Vec<_> = values.into_iter().enumerate().map(|(at, value)| (format!("key.{at}"), value)).collect();
        let tensors: Vec<_> =
            shapes.into_iter().enumerate().map(|(at, (dims, ty))| (format!("t{at}"), dims, ty)).collect();
        let header = parse(&file(&metadata, &tensors)).unwrap();
        let offsets = head(&metadata, &tensors).unwrap().offsets;
        prop_assert_eq!(&header.metadata, &metadata);
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for ((tensor, (name, dims, ty)), offset) in header.tensors.iter().zip(&tensors).zip(offsets) {
            prop_assert_eq!((&tensor.name, &tensor.dims, tensor.ty), (name, dims, *ty));
            prop_assert_eq!(tensor.offset + header.data_start, offset);
        }
    }

    #[test]
    fn noise_after_the_magic_never_panics(noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(noise);
        let _ = parse(&file);
    }
}
