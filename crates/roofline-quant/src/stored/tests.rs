use super::*;
use crate::{
    checkpoint::{SINGLE, tests::write},
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
        let (all, unknown) = Stored::survey(&checkpoint).unwrap();
        if let Some(scheme) = scheme {
            assert!(unknown.is_empty());
            assert!(matches!(&all[..], [Stored::Coded(coded)] if coded.scheme == scheme), "{shape:?}");
        } else {
            assert_eq!((all.len(), unknown.len()), (3, 3), "{shape:?}");
            assert!(Stored::all(&checkpoint).is_err());
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
        let said = Stored::all(&open(&scratch, "{}", &tensors)).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("weight `m.weight`: is in codes of a kind"), "{name}: {said}");
    }
    // Neither another module nor what scales activations is part of it.
    let mut tensors = plain;
    tensors.push(("m.weights.weight", Dtype::Bf16, &[1], vec![0; 2]));
    tensors.push(("m.input_global_scale", Dtype::F32, &[1], vec![0; 4]));
    assert_eq!(Stored::all(&open(&scratch, "{}", &tensors)).unwrap().len(), 3);
    // INT8 bytes with zero points.
    let bytes: Tensors<'_> = vec![
        ("m.weight", Dtype::I8, &[4, 8], vec![0; 32]),
        ("m.weight_scale", Dtype::Bf16, &[4, 1], vec![0; 8]),
        ("m.weight_zero_point", Dtype::I8, &[4, 1], vec![0; 4]),
    ];
    let checkpoint = open(&scratch, "{}", &bytes);
    assert_eq!(Stored::survey(&checkpoint).unwrap().1.len(), 2, "the scale and the zero point");
    assert_eq!(Stored::all(&open(&scratch, "{}", &bytes[..2].to_vec())).unwrap().len(), 1);
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
        assert_eq!(Stored::all(&open(&scratch, "{}", &tensors)).is_ok(), undeclared, "{name}");
        assert_eq!(Stored::all(&open(&scratch, declared, &tensors)).is_ok(), known, "{name}");
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
    let all = Stored::all(&checkpoint).unwrap();
    let [Stored::Coded(weight)] = &all[..] else { panic!("{}", all.len()) };
    assert_eq!((weight.name.as_str(), weight.scheme.as_str()), ("m.weight", "FP8 in blocks of 128 x 128"));
    let mut out = vec![0.0; 3 * 140];
    weight.read(127..130, &mut Spare::default(), &mut out).unwrap();
    // Row 127 is of -2 in the upper blocks, 128 of 1 and 129 of -2 in the lower.
    assert_eq!([out[0], out[127], out[128], out[139]], [-1.0, -1.0, -6.0, -6.0]);
    assert_eq!([out[140], out[140 + 128], out[280], out[280 + 139]], [0.25, 7.0, -0.5, -14.0]);
    // Blocks of 100 x 100 have as many scales, and other places.
    assert!(Stored::all(&open(&scratch, &config(100), &tensors)).is_err());
}
