//! What the methods are worth, on weights of a known distribution.

use roofline_core::format::Distribution;

use super::{Method, half_quadratic::objective};
use crate::{
    Dtype,
    coding::{
        Coding,
        compressed_tensors::{Scheme, coding},
        golden::{Encoded, store},
        torchao,
    },
    rounding::{Bf16, Rounding},
};

const COLUMNS: usize = 4096;

fn weights(distribution: Distribution) -> Vec<f32> {
    distribution.sample().into_iter().map(Bf16::round).collect()
}

fn relative_error(weights: &[f32], stored: &Encoded) -> f64 {
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let lost = sum(&mut weights.iter().zip(&stored.decoded).map(|(w, q)| f64::from(*w) - f64::from(*q)));
    (lost / sum(&mut weights.iter().map(|w| f64::from(*w)))).sqrt()
}

fn scheme(scheme: Scheme) -> impl Fn(Method) -> Box<dyn Coding> {
    move |method| coding(scheme, Dtype::Bf16, method).unwrap()
}

/// By how much `method` lowers the relative error of rounding to nearest, in percent.
fn gain(coding: impl Fn(Method) -> Box<dyn Coding>, method: Method, distribution: Distribution) -> f64 {
    let weights = weights(distribution);
    let error = |method| relative_error(&weights, &store(&*coding(method), &weights, COLUMNS, None));
    100.0 * (1.0 - error(method) / error(Method::Rtn))
}

const INT4: Scheme = Scheme::Int { bits: 4, group: Some(128), zero: false };
const INT4_ZERO: Scheme = Scheme::Int { bits: 4, group: Some(128), zero: true };

fn plain_int4(method: Method) -> Box<dyn Coding> {
    torchao::coding(torchao::Scheme::Int4 { group: 128 }, Dtype::Bf16, method).unwrap()
}

#[test]
fn searching_for_the_scale_lowers_the_error() {
    use Distribution::{Gaussian, StudentT5};
    // Measured with this sample, to the percent below.
    let figures = [
        (INT4, Gaussian, 9.0),
        (INT4, StudentT5, 8.9),
        (INT4_ZERO, Gaussian, 5.0),
        (INT4_ZERO, StudentT5, 4.5),
        (Scheme::Int8Channel, Gaussian, 6.0),
        (Scheme::Fp8Channel, Gaussian, 2.5),
        (Scheme::Fp8Block, Gaussian, 2.5),
        (Scheme::Nvfp4, Gaussian, 14.0),
        (Scheme::Nvfp4, StudentT5, 11.0),
        (Scheme::Mxfp4, Gaussian, 0.5),
        (Scheme::Mxfp4, StudentT5, 1.0),
    ];
    for (format, distribution, least) in figures {
        let gain = gain(scheme(format), Method::Mse, distribution);
        assert!(gain > least, "{format:?} {distribution:?}: {gain:.2} %");
    }
    for distribution in [Gaussian, StudentT5] {
        let gain = gain(plain_int4, Method::Mse, distribution);
        assert!(gain > 5.5, "{distribution:?}: {gain:.2} %");
    }
}

#[test]
fn four_over_six_lowers_the_error() {
    let gain = |distribution| gain(scheme(Scheme::Nvfp4), Method::FourOverSix, distribution);
    let gains = [Distribution::Gaussian, Distribution::StudentT5].map(gain);
    assert!(gains[0] > 8.4 && gains[1] > 6.0, "{gains:?}");
}

#[test]
fn half_quadratic_lowers_its_objective_and_raises_it_in_no_group() {
    for distribution in [Distribution::Gaussian, Distribution::StudentT5] {
        let weights = weights(distribution);
        // An integer can hardly follow the zero point; a float can.
        for (coding, least) in [(&scheme(INT4_ZERO) as &dyn Fn(Method) -> Box<dyn Coding>, 0.02), (&plain_int4, 1.5)] {
            let groups = |method| {
                let stored = store(&*coding(method), &weights, COLUMNS, None);
                let pairs = weights.chunks(128).zip(stored.decoded.chunks(128));
                pairs.map(|(weights, decoded)| f64::from(objective(weights, decoded))).collect::<Vec<_>>()
            };
            let (before, after) = (groups(Method::Rtn), groups(Method::Hqq));
            assert!(before.iter().zip(&after).all(|(before, after)| after <= before));
            let gain = 100.0 * (1.0 - after.iter().sum::<f64>() / before.iter().sum::<f64>());
            assert!(gain > least, "{distribution:?}: {gain:.2} %");
        }
    }
}

#[test]
fn importance_moves_the_error_to_where_it_matters_less() {
    let weights = weights(Distribution::StudentT5);
    // Every fourth input channel is a hundred times as important.
    let importance: Vec<f32> = (0..COLUMNS).map(|at| if at % 4 == 0 { 100.0 } else { 1.0 }).collect();
    let weighted = |stored: &Encoded| -> f64 {
        let pairs = weights.iter().zip(&stored.decoded).zip(importance.iter().cycle());
        pairs.map(|((w, q), importance)| f64::from(*importance) * f64::from(w - q).powi(2)).sum()
    };
    let zero = scheme(INT4_ZERO)(Method::Mse);
    let formats = [INT4, Scheme::Int8Channel, Scheme::Fp8Channel, Scheme::Fp8Block, Scheme::Nvfp4, Scheme::Mxfp4];
    for coding in formats.map(|format| scheme(format)(Method::Mse)).into_iter().chain([zero, plain_int4(Method::Mse)]) {
        let blind = weighted(&store(&*coding, &weights, COLUMNS, None));
        let seeing = weighted(&store(&*coding, &weights, COLUMNS, Some(&importance)));
        assert!(seeing < blind);
    }
}
