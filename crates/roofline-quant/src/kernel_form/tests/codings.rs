//! Everything that is stored in codes, in the form of kernels and row by row.

use std::sync::Arc;

use super::*;
use crate::{
    Method,
    checkpoint::Shard,
    coding::{
        Coding, awq, bitsandbytes as bnb, compressed_tensors as ct, fine_grained, golden::store, gptq, mlx,
        torchao as ao,
    },
    rows::Added,
    stored,
};

/// A matrix whose rows differ in magnitude, stored by `coding` and read back.
fn with(coding: Box<dyn Coding>, rows: usize, columns: usize, then: impl FnOnce(&dyn Rows)) {
    let number = |at: usize| ((at * 7919 % 1009) as f32 - 503.0) / 211.0 * (1.0 + (at / columns) as f32);
    let values: Vec<f32> = (0..rows * columns).map(number).collect();
    let stored = store(&*coding, &values, columns, None);
    let matrix = Matrix { rows, columns };
    let parts = coding.parts(matrix).unwrap();
    let file: Vec<_> =
        parts.iter().map(|part| (part.name, part.dtype, &part.shape[..], stored.tensors[part.name].clone())).collect();
    let scratch = Scratch::new(&format!("form-{:?}", std::thread::current().id()));
    let path = scratch.path().join(SINGLE);
    write(&path, &file);
    let shard = Shard::open(&path).unwrap();
    let find = |name: &str| shard.header.tensors.iter().find(|entry| entry.name == name).unwrap();
    let parts = parts.into_iter().map(|part| (part.clone(), (&shard, find(part.name)))).collect();
    then(&*stored::decoded(matrix, Arc::from(coding), parts));
}

/// Thirteen rows, which fill neither words of zero points nor bands.
const ROWS: usize = 13;
const TYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

#[test]
fn compressed_tensors_are_rearranged() {
    let int = |bits, group, zero| ct::Scheme::Int { bits, group, zero };
    // The form with scales in BF16, and whether there is one with others.
    for (scheme, columns, format, others) in [
        (int(4, Some(32), false), 256, Some("int4-g32"), false),
        (int(4, Some(64), false), 256, Some("int4-g64"), false),
        (int(4, Some(128), false), 256, Some("int4-g128"), false),
        (int(4, Some(32), true), 96, Some("int4-g32-zp"), false),
        (int(4, Some(64), true), 192, Some("int4-g64-zp"), false),
        (int(4, Some(128), true), 256, Some("int4-g128-zp"), false),
        // Two or three of the kernels' groups.
        (int(4, Some(256), true), 512, Some("int4-g128-zp"), false),
        (int(4, Some(96), false), 192, Some("int4-g32"), false),
        (int(4, None, false), 300, Some("int4-g128"), true),
        (int(4, None, true), 301, Some("int4-g128-zp"), true),
        (int(4, Some(16), false), 64, None, false),
        (int(8, None, false), 257, Some("int8"), true),
        (int(8, None, true), 256, None, false),
        (int(8, Some(128), false), 256, None, false),
        (ct::Scheme::Int4Bytes { group: 32 }, 96, Some("int4-g32"), false),
        (ct::Scheme::Int8Channel, 77, Some("int8"), true),
        (ct::Scheme::Fp8Channel, 77, Some("fp8"), true),
        (ct::Scheme::Fp8Tensor, 77, Some("fp8"), true),
        (ct::Scheme::Fp8Block, 256, None, false),
        (ct::Scheme::Mxfp8, 64, None, false),
    ] {
        for dtype in TYPES {
            let coding = ct::coding(scheme, dtype, Method::Rtn).unwrap();
            with(coding, ROWS, columns, |rows| match format.filter(|_| others || dtype == Dtype::Bf16) {
                Some(format) => same(rows, format, dtype != Dtype::Bf16),
                None => assert_eq!(rows.kernel_form(), None, "{scheme} {dtype}"),
            });
        }
    }
    for (scheme, format) in [(ct::Scheme::Mxfp4, "mxfp4"), (ct::Scheme::Nvfp4, "nvfp4")] {
        with(ct::coding(scheme, Dtype::F16, Method::Rtn).unwrap(), ROWS, 96, |rows| same(rows, format, false));
    }
}

#[test]
fn torchao_is_rearranged() {
    let intx = |bits, group| ao::Scheme::Intx { bits, group, zero: true };
    for (scheme, dtype, form) in [
        (ao::Scheme::Int8 { group: None }, Dtype::Bf16, Some(("int8", true))),
        (ao::Scheme::Int8 { group: Some(32) }, Dtype::Bf16, None),
        (ao::Scheme::Float8, Dtype::Bf16, Some(("fp8", true))),
        (ao::Scheme::Int4 { group: 32 }, Dtype::Bf16, Some(("int4-g32-zp16", false))),
        (ao::Scheme::Int4 { group: 128 }, Dtype::Bf16, Some(("int4-g128-zp16", false))),
        (ao::Scheme::Int4 { group: 256 }, Dtype::Bf16, Some(("int4-g128-zp16", false))),
        (ao::Scheme::Int4 { group: 128 }, Dtype::F16, None),
        (intx(4, Some(32)), Dtype::Bf16, Some(("int4-g32-zp", false))),
        (intx(3, Some(64)), Dtype::Bf16, Some(("int4-g64-zp", false))),
        (intx(4, None), Dtype::F16, Some(("int4-g128-zp", true))),
        (intx(4, Some(32)), Dtype::F16, None),
        (intx(8, None), Dtype::Bf16, None),
    ] {
        with(ao::coding(scheme, dtype, Method::Rtn).unwrap(), ROWS, 512, |rows| match form {
            Some((format, factors)) => same(rows, format, factors),
            None => assert_eq!(rows.kernel_form(), None, "{scheme} {dtype}"),
        });
    }
}

#[test]
fn other_boxes_are_rearranged_where_that_is_exact() {
    let four = |quantiles, double| bnb::Scheme::Four { quantiles, double };
    let coding = |scheme, columns| bnb::coding(scheme, columns, Dtype::Bf16, Method::Rtn).unwrap();
    with(coding(four(bnb::Quantiles::Nf4, false), 192), ROWS, 192, |rows| same(rows, "nf4", false));
    // Blocks that straddle rows, maxima in codes, and numbers that kernels do not know.
    for (quantiles, double, columns) in
        [(bnb::Quantiles::Nf4, false, 96), (bnb::Quantiles::Nf4, true, 192), (bnb::Quantiles::Fp4, false, 192)]
    {
        let coding = coding(four(quantiles, double), columns);
        with(coding, 16, columns, |rows| assert_eq!(rows.kernel_form(), None));
    }
    // `code * max * (1 / 127)`, of which the last two are multiplied first.
    with(coding(bnb::Scheme::Int8, 77), ROWS, 77, |rows| near(rows, "int8", true, 2.0 * LAST_PLACE));
    let mlx = |scheme| mlx::coding(scheme, Dtype::Bf16, Method::Rtn).unwrap();
    with(mlx(mlx::Scheme::Mxfp4), ROWS, 96, |rows| same(rows, "mxfp4", false));
    with(mlx(mlx::Scheme::Nvfp4), ROWS, 96, |rows| same(rows, "nvfp4", false));
    let none = |coding| with(coding, 32, 256, |rows| assert_eq!(rows.kernel_form(), None));
    none(mlx(mlx::Scheme::Mxfp8));
    none(mlx(mlx::Scheme::Affine { bits: 4, group: 64, centred: false }));
    none(fine_grained::coding(Method::Rtn).unwrap());
    // Scales of FP16 for each group.
    none(gptq::coding(gptq::Scheme { bits: 4, group: Some(128), zero: true }, Method::Rtn).unwrap());
    none(awq::coding(awq::Scheme { group: 128 }, Method::Rtn).unwrap());
}

/// What a file claims to be of four bits, and is not, is refused when it is read.
#[test]
fn wide_integers_are_not_cut() {
    let scratch = Scratch::new("wide");
    let codes = [&[3; 31][..], &[8]].concat();
    let file = [
        ("m.weight", Dtype::I8, &[1usize, 64][..], [codes, vec![0xf8; 32]].concat()),
        ("m.weight_scale", Dtype::Bf16, &[1, 2], [0x80, 0x3f].repeat(2)),
    ];
    write(&scratch.path().join(SINGLE), &file);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let stored = &StoredTensor::all(&checkpoint).unwrap()[0];
    let form = stored.kernel_form().unwrap();
    let said = stored.read_codes(0..1, form.room(1).all()).unwrap_err().to_string();
    assert_eq!(said, "weight `m.weight`: has 8 among its integers of four bits");
}

type Tensors = Vec<(&'static str, Dtype, &'static [usize], Vec<u8>)>;

/// The experts of gpt-oss as they were released, static FP8 and ModelOpt's NVFP4.
fn of_other_makers() -> Tensors {
    let bytes = |count: usize, below: usize| (0..count).map(|at| (at * 37 % below) as u8).collect::<Vec<u8>>();
    let scales = |count: usize| (0..count).map(|at| 120 + (at % 9) as u8).collect::<Vec<u8>>();
    let floats = |count: usize| (1..=count).flat_map(|at| (0.3 * at as f32).to_le_bytes()).collect::<Vec<u8>>();
    vec![
        ("e.down_proj_blocks", Dtype::U8, &[2, 3, 2, 16], bytes(192, 256)),
        ("e.down_proj_scales", Dtype::U8, &[2, 3, 2], scales(12)),
        // No NaN among them.
        ("f.weight", Dtype::F8E4M3, &[3, 5], bytes(15, 126)),
        ("f.weight_scale", Dtype::F32, &[3], floats(3)),
        ("g.weight", Dtype::F8E4M3, &[3, 5], bytes(15, 126)),
        ("g.weight_scale", Dtype::Bf16, &[], vec![0x20, 0x3e]),
        ("n.weight", Dtype::U8, &[3, 16], bytes(48, 256)),
        ("n.weight_scale", Dtype::F8E4M3, &[3, 2], bytes(6, 100).iter().map(|code| code + 1).collect()),
        ("n.weight_scale_2", Dtype::F32, &[], floats(1)),
    ]
}

#[test]
fn files_of_other_makers_are_read_as_they_are() {
    let scratch = Scratch::new("makers");
    write(&scratch.path().join(SINGLE), &of_other_makers());
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let all = StoredTensor::all(&checkpoint).unwrap();
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["e.down_proj", "f.weight", "g.weight", "n.weight"]);
    // As it is called, its rows are inputs.
    assert_eq!(all[0].kernel_form(), None);
    assert_eq!(all[0].turned().unwrap().matrix(), Matrix { rows: 6, columns: 64 });
    same(&*all[0].turned().unwrap(), "mxfp4", false);
    assert!(all[1].turned().is_err());
    let turned = StoredTensor::all(&checkpoint).unwrap().remove(0);
    for (stored, form) in all.into_iter().zip([None, Some(("fp8", true)), Some(("fp8", false)), Some(("nvfp4", false))])
    {
        let rows = stored.into_rows().unwrap();
        match form {
            Some((format, factors)) => same(&*rows, format, factors),
            None => transposed(&*rows, &*turned.turned().unwrap(), 2),
        }
    }
}

/// A stack that can only be decoded is turned as it is decoded.
#[test]
fn stacks_without_a_form_are_turned_too() {
    let scratch = Scratch::new("turned");
    let numbers: Vec<u8> = (0..24).flat_map(|at| f64::from(at).to_le_bytes()).collect();
    write(&scratch.path().join(SINGLE), &[("s", Dtype::F64, &[2, 3, 4], numbers)]);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    let mut stored = StoredTensor::all(&checkpoint).unwrap().remove(0);
    let (shard, entry) = stored.first();
    let plain = || Plain::new(shard, entry).unwrap();
    assert_eq!(stored.turned().unwrap().kernel_form(), None);
    transposed(&plain(), &*stored.turned().unwrap(), 2);
    // What something is added to has no other way.
    stored.kind = Kind::Rearranged(Box::new(Added::new(plain(), 0.5)), vec![(shard, entry)]);
    assert_eq!(stored.turned().unwrap().kernel_form(), None);
    transposed(&Added::new(plain(), 0.5), &*stored.turned().unwrap(), 2);
    stored.shape = vec![2, 4, 3];
    assert!(stored.turned().is_err());
}

/// Sizes that only a file without data can claim.
#[test]
fn claims_of_empty_files_do_not_panic() {
    let scratch = Scratch::new("claims");
    for shape in [&[0, 1 << 40][..], &[1 << 40, 0], &[1 << 40, 0, 1 << 40], &[1 << 40, 1 << 20, 0], &[0, 0, 0], &[0]] {
        for dtype in [Dtype::Bf16, Dtype::F8E4M3, Dtype::I8, Dtype::U8, Dtype::I32] {
            write(&scratch.path().join(SINGLE), &[("m.weight", dtype, shape, Vec::new())]);
            let Ok(checkpoint) = Checkpoint::open(scratch.path()) else { continue };
            let (all, _) = StoredTensor::survey(&checkpoint).unwrap();
            for stored in all {
                assert_eq!(stored.kernel_form(), None, "{dtype} {shape:?}");
                assert!(stored.turned().is_err(), "{dtype} {shape:?}");
            }
        }
    }
    let matrix = Matrix { rows: usize::MAX, columns: i32::MAX as usize };
    assert_eq!(KernelForm::new(Format::FP32, matrix, true), None);
    assert_eq!(KernelForm::new(Format::FP32, Matrix { rows: 1, columns: usize::MAX }, true), None);
    assert_eq!(KernelForm::new(Format::Q4_K, Matrix { rows: 1, columns: 300 }, false), None);
}

/// Headers with a byte changed: what is still believed is read, or refused with a word.
#[test]
fn a_byte_changed_anywhere_never_panics() {
    let scratch = Scratch::new("changed");
    let path = scratch.path().join(SINGLE);
    let packed: Tensors = vec![
        ("p.weight_packed", Dtype::I32, &[9, 8], vec![0x9a; 288]),
        ("p.weight_scale", Dtype::Bf16, &[9, 2], [0x80, 0x3f].repeat(18)),
        ("p.weight_shape", Dtype::I64, &[2], [9u64, 64].iter().flat_map(|dim| dim.to_le_bytes()).collect()),
        ("p.weight_zero_point", Dtype::I32, &[2, 2], vec![0x5a; 16]),
        ("s", Dtype::Bf16, &[2, 3, 4], vec![0x3f; 48]),
    ];
    write(&path, &[of_other_makers(), packed].concat());
    let file = std::fs::read(&path).unwrap();
    let length = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut read = 0;
    for at in 8..length {
        for byte in if file[at].is_ascii_digit() { &b"019"[..] } else { &b"x"[..] } {
            let mut changed = file.clone();
            changed[at] = *byte;
            std::fs::write(&path, &changed).unwrap();
            let Ok(checkpoint) = Checkpoint::open(scratch.path()) else { continue };
            let Ok((all, _)) = StoredTensor::survey(&checkpoint) else { continue };
            for stored in all {
                if let Some(form) = stored.kernel_form() {
                    stored.read_codes(0..form.matrix.rows, form.room(form.matrix.rows).all()).unwrap();
                    assert_eq!(stored.tensor_part().unwrap().len(), form.tensor);
                    read += 1;
                }
                let Ok(turned) = stored.turned() else { continue };
                let form = turned.kernel_form().unwrap();
                turned.read_codes(0..form.matrix.rows, form.room(form.matrix.rows).all()).unwrap();
            }
        }
    }
    assert!(read > 1000);
}
