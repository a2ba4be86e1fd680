//! What holds for every coding, method and type.

use proptest::prelude::*;

use super::{
    Coding, bitsandbytes as bnb, compressed_tensors as ct, fine_grained,
    golden::{Encoded, store},
    mlx, torchao,
};
use crate::{
    Dtype, Method,
    rounding::{Bf16, F16, Rounding},
};

/// Every coding there is, with its name; all take rows of 128.
fn codings(dtype: Dtype) -> Vec<(String, Box<dyn Coding>)> {
    let int = |bits, group, zero| ct::Scheme::Int { bits, group, zero };
    let ours = [
        int(4, Some(32), false),
        int(4, Some(128), true),
        int(4, None, true),
        int(8, Some(64), false),
        int(8, None, true),
        ct::Scheme::Int4Bytes { group: 64 },
        ct::Scheme::Int8Channel,
        ct::Scheme::Fp8Channel,
        ct::Scheme::Fp8Tensor,
        ct::Scheme::Fp8Block,
        ct::Scheme::Nvfp4,
        ct::Scheme::Mxfp4,
        ct::Scheme::Mxfp8,
    ];
    let theirs = [
        torchao::Scheme::Int8 { group: None },
        torchao::Scheme::Int8 { group: Some(32) },
        torchao::Scheme::Float8,
        torchao::Scheme::Int4 { group: 64 },
        torchao::Scheme::Intx { bits: 4, group: Some(32), zero: true },
        torchao::Scheme::Intx { bits: 8, group: None, zero: false },
    ];
    let ours = ours.into_iter().flat_map(|scheme| {
        let methods = scheme.methods().iter();
        methods.map(move |method| (format!("{scheme:?} {method}"), ct::coding(scheme, dtype, *method).unwrap()))
    });
    let theirs = theirs.into_iter().flat_map(|scheme| {
        let methods = scheme.methods().iter();
        methods.map(move |method| {
            (format!("torchao {scheme:?} {method}"), torchao::coding(scheme, dtype, *method).unwrap())
        })
    });
    let fours = bnb::Quantiles::ALL
        .into_iter()
        .flat_map(|quantiles| [false, true].map(|double| bnb::Scheme::Four { quantiles, double }));
    let bytes = fours.chain([bnb::Scheme::Int8]).map(|scheme| {
        (format!("bitsandbytes {scheme:?}"), bnb::coding(scheme, 128, dtype, crate::Method::Rtn).unwrap())
    });
    let affine = |bits, group, centred| mlx::Scheme::Affine { bits, group, centred };
    let apples = [
        affine(4, 32, false),
        affine(4, 128, true),
        affine(6, 64, false),
        affine(8, 128, false),
        mlx::Scheme::Mxfp4,
        mlx::Scheme::Mxfp8,
    ];
    let apples = apples.into_iter().flat_map(|scheme| {
        let methods = scheme.methods().iter();
        methods.map(move |method| (format!("MLX {scheme:?} {method}"), mlx::coding(scheme, dtype, *method).unwrap()))
    });
    // GPTQ's and AWQ's packings take whole words of rows; they are held to their libraries alone.
    let fine = ("fine-grained FP8".to_owned(), fine_grained::coding(Method::Rtn).unwrap());
    ours.chain(theirs).chain(bytes).chain(apples).chain([fine]).collect()
}

fn rounded(values: &[f32], dtype: Dtype) -> Vec<f32> {
    let round = match dtype {
        Dtype::Bf16 => Bf16::round,
        Dtype::F16 => F16::round,
        _ => |value| value,
    };
    values.iter().map(|value| round(*value)).collect()
}

fn energy(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum()
}

/// Matrices of 1 to 9 rows, whose weights span some magnitudes, with zeros and groups of zeros.
fn matrices() -> impl Strategy<Value = Vec<f32>> {
    let weight = prop_oneof![
        8 => -0.1f32..0.1,
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
        1 => -3f32..3.0,
        1 => -1e-6f32..1e-6,
    ];
    (1usize..10, prop::collection::vec(weight, 9 * 128), any::<bool>()).prop_map(|(rows, mut values, zeros)| {
        values.truncate(rows * 128);
        if zeros {
            values[..64].fill(0.0);
        }
        values
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// `store` itself checks that what is stored decodes to what was announced.
    #[test]
    fn decoded_weights_are_near(values in matrices()) {
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let values = rounded(&values, dtype);
            for (name, coding) in codings(dtype) {
                let Encoded { decoded, .. } = store(&*coding, &values, 128, None);
                prop_assert!(decoded.iter().all(|value| value.is_finite()), "{name} {dtype}");
                let lost = energy(values.iter().zip(&decoded).map(|(value, decoded)| value - decoded));
                // Four bits of one scale for a row with outliers lose the most.
                prop_assert!(lost <= 0.15 * energy(values.iter().copied()), "{name} {dtype}: {lost:e}");
            }
        }
    }

    #[test]
    fn every_width_of_vectors_gives_the_same_bytes(values in matrices(), importance in prop::collection::vec(0f32..9.0, 128)) {
        let values = rounded(&values, Dtype::Bf16);
        for (name, coding) in codings(Dtype::Bf16) {
            let mut stored = roofline_isa::at_every_level(|| store(&*coding, &values, 128, Some(&importance))).into_iter();
            let first = stored.next().unwrap();
            prop_assert!(stored.all(|other| other.tensors == first.tensors && other.outside == first.outside), "{name}");
        }
    }
}

/// No scale is zero, nothing overflows and everything is a number, however small the weights.
#[test]
fn tiny_weights_stay_tiny() {
    // Numbers of both signs in no order, half of one row zero.
    let values: Vec<f32> =
        (0..256u16).map(|at| if at < 64 { 0.0 } else { f32::from(at * 37 % 101) / 50.5 - 1.0 }).collect();
    for exponent in 1..120u32 {
        let unit = f32::from_bits(exponent << 23);
        for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
            let values = rounded(&values.iter().map(|value| value * unit).collect::<Vec<_>>(), dtype);
            for (name, coding) in codings(dtype) {
                let Encoded { decoded, .. } = store(&*coding, &values, 128, None);
                for (value, decoded) in values.iter().zip(&decoded) {
                    assert!(decoded.abs() <= 2.0 * unit + 1e-7, "{name} {dtype}: {value:e} became {decoded:e}");
                }
            }
        }
    }
}

#[test]
fn a_last_block_may_have_fewer_rows() {
    // 9 rows fill one word of eight zero points and begin another; `store` codes block by block.
    let values: Vec<f32> = (0..9 * 128u16).map(|at| (f32::from(at % 37) - 15.0) / 64.0).collect();
    for (name, coding) in codings(Dtype::Bf16) {
        let whole = store(&*coding, &values, 128, None);
        let last = store(&*coding, &values[8 * 128..], 128, None);
        if coding.unit() < 128 && !coding.needs_peak() {
            assert_eq!(whole.decoded[8 * 128..], last.decoded, "{name}");
        }
    }
}
