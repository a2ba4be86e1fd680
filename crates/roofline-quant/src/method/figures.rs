//! What the methods are worth, on weights of a known distribution.

use roofline_core::format::Distribution;

use super::{Method, half_quadratic::objective};
use crate::{
    Dtype,
    coding::{
        Coding,
        compressed_tensors::{Scheme, coding},
        golden::{Stored, store},
        torchao,
    },
    rounding::{Bf16, Rounding},
};

const COLUMNS: usize = 4096;

fn weights(distribution: Distribution) -> Vec<f32> {
    distribution.sample().into_iter().map(Bf16::round).collect()
}

fn relative_error(weights: &[f32], stored: &Stored) -> f64 {
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let lost = sum(&mut weights.iter().zip(&stored.decoded).map(|(w, q)| f64::from(*w) - f64::from(*q)));
    (lost / sum(&mut weights.iter().map(|w| f64::from(*w)))).sqrt()
}

/// The relative errors of rounding to nearest and of `method`.
fn errors(coding: impl Fn(Method) -> Box<dyn Coding>, method: Method, distribution: Distribution) -> (f64, f64) {
    let weights = weights(distribution);
    let error = |method| relative_error(&weights, &store(&*coding(method), &weights, COLUMNS, None));
    (error(Method::Rtn), error(method))
}

fn scheme(scheme: Scheme) -> impl Fn(Method) -> Box<dyn Coding> {
    move |method| coding(scheme, Dtype::Bf16, method).unwrap()
}

#[test]
fn figures() {
    for (name, s, m) in [
        ("int4-g128", Scheme::Int { bits: 4, group: Some(128), zero: false }, Method::Mse),
        ("int4-g32", Scheme::Int { bits: 4, group: Some(32), zero: false }, Method::Mse),
        ("int4-g128-zp", Scheme::Int { bits: 4, group: Some(128), zero: true }, Method::Mse),
        ("int4-g128-zp", Scheme::Int { bits: 4, group: Some(128), zero: true }, Method::Hqq),
        ("int8", Scheme::Int8Channel, Method::Mse),
        ("fp8", Scheme::Fp8Channel, Method::Mse),
        ("nvfp4", Scheme::Nvfp4, Method::Mse),
        ("nvfp4", Scheme::Nvfp4, Method::FourOverSix),
        ("mxfp4", Scheme::Mxfp4, Method::Mse),
        ("mxfp8", Scheme::Mxfp8, Method::Mse),
    ] {
        for d in [Distribution::Gaussian, Distribution::StudentT5] {
            let (a, b) = errors(scheme(s), m, d);
            println!("{name} {m} {d:?}: {a:.4} {b:.4} {:.1} %", 100.0 * (1.0 - b / a));
        }
    }
    for m in [Method::Mse, Method::Hqq] {
        for d in [Distribution::Gaussian, Distribution::StudentT5] {
            let (a, b) =
                errors(|m| torchao::coding(torchao::Scheme::Int4 { group: 128 }, Dtype::Bf16, m).unwrap(), m, d);
            println!("ao int4 {m} {d:?}: {a:.4} {b:.4} {:.1} %", 100.0 * (1.0 - b / a));
        }
    }
}
