use super::*;
use crate::{
    checkpoint::{SINGLE, tests::write},
    rows::Spare,
    scratch::Scratch,
};

type Tensors<'a> = Vec<(&'a str, Dtype, &'a [usize], Vec<u8>)>;

fn open(scratch: &Scratch, config: &str, tensors: &Tensors<'_>) -> Checkpoint {
    std::fs::write(scratch.path().join("config.json"), config).unwrap();
    write(&scratch.path().join(SINGLE), tensors);
    Checkpoint::open(scratch.path()).unwrap()
}

/// A matrix of 4 rows of packed integers whose `weight_shape` is as given.
fn packed<'a>(words: &'a [usize; 2], shape: [u64; 2], scales: &'a [usize; 2]) -> Tensors<'a> {
    let bytes = |shape: &[usize; 2], size: usize| vec![0; shape.iter().product::<usize>() * size];
    let shape_bytes = shape.iter().flat_map(|dim| dim.to_le_bytes()).collect();
    vec![
        ("m.weight_packed", Dtype::I32, words, bytes(words, 4)),
        ("m.weight_scale", Dtype::Bf16, scales, bytes(scales, 2)),
        ("m.weight_shape", Dtype::I64, &[2], shape_bytes),
    ]
}

#[test]
fn packed_words_must_be_as_many_as_the_shape_says() {
    let scratch = Scratch::new("packed");
    for (words, shape, scales, scheme) in [
        ([4, 16], [4, 128], [4, 4], Some("INT4 in groups of 32")),
        ([4, 16], [4, 121], [4, 1], Some("INT4 per channel")),
        ([4, 32], [4, 128], [4, 1], Some("INT8 per channel")),
        // Three bits take other words, two columns could be either, groups must be whole.
        ([4, 12], [4, 128], [4, 1], None),
        ([4, 1], [4, 2], [4, 1], None),
        ([4, 16], [4, 128], [4, 3], None),
        ([4, 16], [5, 128], [4, 1], None),
        // Eight times this wraps to 64.
        ([4, 1], [4, (1 << 61) + 8], [4, 1], None),
        ([4, 1], [4, u64::MAX], [4, 1], None),
        ([4, 16], [4, 0], [4, 1], None),
        ([0, 1 << 61], [0, 1 << 63], [0, 1], None),
        ([0, 1 << 60], [0, 1 << 63], [0, 1], None),
    ] {
        let checkpoint = open(&scratch, "{}", &packed(&words, shape, &scales));
        let (all, unknown) = StoredTensor::survey(&checkpoint).unwrap();
        if let Some(scheme) = scheme {
            assert!(unknown.is_empty());
            assert!(matches!(&all[..], [one] if one.is_coded() && one.format() == scheme), "{shape:?}");
        } else {
            assert_eq!((all.len(), unknown.len()), (3, 3), "{shape:?}");
            assert!(StoredTensor::all(&checkpoint).is_err());
        }
    }
}

#[test]
fn parts_that_a_scheme_does_not_have_are_not_ignored() {
    let scratch = Scratch::new("more");
    let plain = packed(&[4, 16], [4, 128], &[4, 1]);
    for (name, dtype, shape) in [
        ("m.weight_g_idx", Dtype::I32, &[128usize][..]),
        ("m.weight_global_scale", Dtype::F32, &[1]),
        ("m.weight", Dtype::Bf16, &[4]),
    ] {
        let mut tensors = plain.clone();
        tensors.push((name, dtype, shape, vec![0; shape[0] * dtype.bytes()]));
        let said = StoredTensor::all(&open(&scratch, "{}", &tensors)).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("weight `m.weight`: is in codes of a kind"), "{name}: {said}");
    }
    // Neither another module nor what scales activations is part of it.
    let mut tensors = plain;
    tensors.push(("m.weights.weight", Dtype::Bf16, &[1], vec![0; 2]));
    tensors.push(("m.input_global_scale", Dtype::F32, &[1], vec![0; 4]));
    assert_eq!(StoredTensor::all(&open(&scratch, "{}", &tensors)).unwrap().len(), 3);
    // INT8 bytes with zero points.
    let bytes: Tensors<'_> = vec![
        ("m.weight", Dtype::I8, &[4, 8], vec![0; 32]),
        ("m.weight_scale", Dtype::Bf16, &[4, 1], vec![0; 8]),
        ("m.weight_zero_point", Dtype::I8, &[4, 1], vec![0; 4]),
    ];
    let checkpoint = open(&scratch, "{}", &bytes);
    assert_eq!(StoredTensor::survey(&checkpoint).unwrap().1.len(), 2, "the scale and the zero point");
    assert_eq!(StoredTensor::all(&open(&scratch, "{}", &bytes[..2].to_vec())).unwrap().len(), 1);
}

#[test]
fn codes_are_known_by_their_names_or_where_the_configuration_says_there_are_any() {
    let scratch = Scratch::new("codes");
    let declared = r#"{"quantization_config": {"quant_method": "x"}}"#;
    for (name, dtype, shape, undeclared, known) in [
        ("m.qweight", Dtype::I32, &[2usize, 2][..], false, false),
        ("m.weight.absmax", Dtype::F32, &[2], false, false),
        ("m.weight", Dtype::F8E4M3, &[2, 2], true, false),
        ("m.weight", Dtype::U32, &[2, 2], true, false),
        ("m.experts.down_proj_blocks", Dtype::U8, &[2, 2, 2, 2], true, false),
        ("m.position_ids", Dtype::I64, &[1, 8], true, true),
        ("m.mask", Dtype::Bool, &[2, 2], true, true),
        // Weight norm's, of models that speak.
        ("m.weight_g", Dtype::F32, &[2, 1], true, true),
        ("m.weight", Dtype::Bf16, &[2, 2], true, true),
    ] {
        let tensors = vec![(name, dtype, shape, vec![0; shape.iter().product::<usize>() * dtype.bytes()])];
        assert_eq!(StoredTensor::all(&open(&scratch, "{}", &tensors)).is_ok(), undeclared, "{name}");
        assert_eq!(StoredTensor::all(&open(&scratch, declared, &tensors)).is_ok(), known, "{name}");
    }
}

#[test]
fn fine_grained_fp8_is_decoded() {
    let scratch = Scratch::new("fine");
    // 0x38 is 1, 0xc0 is -2: a row of each in every block of 128 x 128, cut at 130 x 140.
    let codes: Vec<u8> = (0..130 * 140).map(|at| if at / 140 % 2 == 0 { 0x38 } else { 0xc0 }).collect();
    let scales = [0.5f32, 3.0, 0.25, 7.0].iter().flat_map(|scale| scale.to_le_bytes()).collect::<Vec<_>>();
    let tensors: Tensors<'_> =
        vec![("m.weight", Dtype::F8E4M3, &[130, 140], codes), ("m.weight_scale_inv", Dtype::F32, &[2, 2], scales)];
    let config = |side: u32| format!(r#"{{"quantization_config": {{"weight_block_size": [{side}, {side}]}}}}"#);
    let checkpoint = open(&scratch, &config(128), &tensors);
    let mut all = StoredTensor::all(&checkpoint).unwrap();
    let [weight] = &all[..] else { panic!("{}", all.len()) };
    assert_eq!((weight.name.as_str(), weight.format()), ("m.weight", "FP8 in blocks of 128 x 128"));
    let mut out = vec![0.0; 3 * 140];
    let weight = all.remove(0).into_rows().unwrap();
    weight.read(127..130, &mut Spare::default(), &mut out).unwrap();
    // Row 127 is of -2 in the upper blocks, 128 of 1 and 129 of -2 in the lower.
    assert_eq!([out[0], out[127], out[128], out[139]], [-1.0, -1.0, -6.0, -6.0]);
    assert_eq!([out[140], out[140 + 128], out[280], out[280 + 139]], [0.25, 7.0, -0.5, -14.0]);
    // Blocks of 100 x 100 have as many scales, and other places.
    assert!(StoredTensor::all(&open(&scratch, &config(100), &tensors)).is_err());
}

/// A matrix of 2 x 64 in NF4, all of whose codes are 15, with the description given.
fn four<'a>(state: &'a str, shape: &'a [usize; 1]) -> Tensors<'a> {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    vec![
        ("m.weight", Dtype::U8, &[64, 1], vec![0xff; 64]),
        ("m.weight.absmax", Dtype::F32, &[2], floats(&[0.5, 3.0])),
        ("m.weight.quant_map", Dtype::F32, &[16], floats(&roofline_core::format::NF4)),
        ("m.weight.quant_state.bitsandbytes__nf4", Dtype::U8, shape, state.as_bytes().to_vec()),
    ]
}

#[test]
fn four_bits_are_what_their_description_says() {
    let scratch = Scratch::new("four");
    let described = |kind: &str, block: u32, shape: &str| {
        format!(r#"{{"quant_type": "{kind}", "blocksize": {block}, "dtype": "float16", "shape": {shape}}}"#)
    };
    for (state, known) in [
        (described("nf4", 64, "[2, 64]"), true),
        (described("nf4", 64, "[2, 64]") + "   ", true),
        // As many codes, and other blocks; a shape that takes other bytes; none; another kind.
        (described("nf4", 64, "[1, 128]"), true),
        (described("nf4", 32, "[2, 64]"), false),
        (described("nf4", 100, "[2, 64]"), false),
        (described("nf4", 64, "[2, 65]"), false),
        (described("nf4", 64, "[4294967296, 4294967296]"), false),
        (described("nf4", 64, "[0, 64]"), false),
        (described("nf4", 64, "[128]"), false),
        (described("fp4", 64, "[2, 64]"), false),
        ("[]".to_owned(), false),
    ] {
        let length = [state.len()];
        let checkpoint = open(&scratch, "{}", &four(&state, &length));
        let (mut all, unknown) = StoredTensor::survey(&checkpoint).unwrap();
        assert_eq!(unknown.is_empty(), known, "{state}");
        if known {
            assert_eq!((all[0].format(), all[0].dtype), ("NF4 in blocks of 64", Dtype::F16));
            let rows = all.remove(0).into_rows().unwrap();
            let mut out = vec![0.0; 128];
            rows.read(0..rows.matrix().rows, &mut Spare::default(), &mut out).unwrap();
            assert_eq!((out[0], out[63], out[64], out[127]), (0.5, 0.5, 3.0, 3.0));
        }
    }
}

#[test]
fn bytes_of_llm_int8_lie_row_by_row() {
    let scratch = Scratch::new("int8");
    let scales: Vec<u8> = [127.0f32, 254.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let mut tensors: Tensors<'_> = vec![
        ("m.SCB", Dtype::F32, &[2], scales),
        ("m.weight", Dtype::I8, &[2, 2], vec![1, 0xff, 2, 0]),
        ("m.weight_format", Dtype::U8, &[], vec![0]),
    ];
    for told in [true, false] {
        let checkpoint = open(&scratch, r#"{"dtype": "bfloat16"}"#, &tensors);
        let mut all = StoredTensor::all(&checkpoint).unwrap();
        assert_eq!((all.len(), all[0].format()), (1, "LLM.int8()"), "{told}");
        let mut out = [0.0; 4];
        all.remove(0).into_rows().unwrap().read(0..2, &mut Spare::default(), &mut out).unwrap();
        assert!(out.iter().zip([1.0, -1.0, 4.0, 0.0]).all(|(out, value)| (out - value).abs() < 1e-6), "{out:?}");
        // Old files do not say how the codes lie.
        tensors.truncate(2);
    }
    // GPUs of old had orders of their own.
    tensors.push(("m.weight_format", Dtype::U8, &[], vec![1]));
    assert!(StoredTensor::all(&open(&scratch, "{}", &tensors)).is_err());
}

#[test]
fn words_of_mlx_are_what_the_configuration_says() {
    let scratch = Scratch::new("words");
    let affine: Tensors<'_> = vec![
        ("m.biases", Dtype::Bf16, &[2, 2], vec![0; 8]),
        ("m.scales", Dtype::Bf16, &[2, 2], [0x80, 0x3f].repeat(4)),
        ("m.weight", Dtype::U32, &[2, 16], vec![0x21; 128]),
    ];
    // The product of group and bits does not tell 4 bits in groups of 64 from 8 in groups of 32, nor from 2 in groups of 128.
    for (quantization, format) in [
        (r#"{"group_size": 64, "bits": 4}"#, Some("INT4 in groups of 64 with biases")),
        (r#"{"group_size": 32, "bits": 8}"#, Some("INT8 in groups of 32 with biases")),
        (
            r#"{"group_size": 64, "bits": 8, "m": {"group_size": 128, "bits": 2}}"#,
            Some("INT2 in groups of 128 with biases"),
        ),
        (r#"{"group_size": 64, "bits": 8}"#, None),
        (r#"{"group_size": 64, "bits": 7}"#, None),
        (r#"{"group_size": 0, "bits": 4}"#, None),
    ] {
        let config = format!(r#"{{"quantization": {quantization}}}"#);
        let checkpoint = open(&scratch, &config, &affine);
        let (all, unknown) = StoredTensor::survey(&checkpoint).unwrap();
        assert_eq!(unknown.is_empty(), format.is_some(), "{quantization}");
        assert!(format.is_none_or(|format| all.len() == 1 && all[0].format() == format), "{quantization}");
    }
    let config = r#"{"quantization": {"group_size": 64, "bits": 4}}"#;
    let checkpoint = open(&scratch, config, &affine);
    let mut out = vec![0.0; 256];
    StoredTensor::all(&checkpoint)
        .unwrap()
        .remove(0)
        .into_rows()
        .unwrap()
        .read(0..2, &mut Spare::default(), &mut out)
        .unwrap();
    assert_eq!(out[..4], [1.0, 2.0, 1.0, 2.0]);
    // A scale for the whole is not among what is read.
    let mut more = affine;
    more.push(("m.global_scale", Dtype::F32, &[1], vec![0; 4]));
    assert!(StoredTensor::all(&open(&scratch, config, &more)).is_err());
}

/// Experts in one tensor have their names again, in codes and as numbers.
#[test]
fn experts_of_mlx_come_apart() {
    let scratch = Scratch::new("experts");
    let codes: Vec<u8> = (0..3u8).flat_map(|expert| [expert; 2 * 16]).collect();
    let tensors: Tensors<'_> = vec![
        ("l.mlp.switch_mlp.up_proj.scales", Dtype::U8, &[3, 2, 1], vec![127; 6]),
        ("l.mlp.switch_mlp.up_proj.weight", Dtype::U32, &[3, 2, 4], codes),
        ("l.block_sparse_moe.switch_mlp.down_proj.weight", Dtype::Bf16, &[2, 1, 1], vec![0x80, 0x3f, 0, 0x40]),
    ];
    let checkpoint = open(&scratch, r#"{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}"#, &tensors);
    let all = StoredTensor::all(&checkpoint).unwrap();
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "l.block_sparse_moe.experts.0.w2.weight",
            "l.block_sparse_moe.experts.1.w2.weight",
            "l.mlp.experts.0.up_proj.weight",
            "l.mlp.experts.1.up_proj.weight",
            "l.mlp.experts.2.up_proj.weight",
        ]
    );
    // 16 bytes of codes and one of scales for each of two rows.
    assert_eq!((all[4].bytes(), all[4].format()), (34, "MXFP4"));
    let mut read = Vec::new();
    for stored in all {
        let rows = stored.into_rows().unwrap();
        let mut out = vec![0.0; rows.matrix().rows * rows.matrix().columns];
        rows.read(0..rows.matrix().rows, &mut Spare::default(), &mut out).unwrap();
        read.push(out[0]);
    }
    assert_eq!(read, [1.0, 2.0, 0.0, 0.5, 1.0]);
}
